"""Read what a run of the record wrote, as arrays by place: logs, metrics, weights and tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from analysis.tables.files import COLUMNS

Values = dict[str, np.ndarray]
TIMES = ("time/", "step_time", "seconds", "wall", "commit")
"""How the names of times and of the commit begin, as metrics and as keys of JSON files."""


def _array(column: Any) -> np.ndarray:
    """A column as float64 with NaN for null, or as text."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    while pa.types.is_fixed_size_list(column.type) or pa.types.is_list(column.type):
        column = column.flatten()
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.array(["" if v is None else str(v) for v in column.to_pylist()], dtype=np.str_)


def _table(place: str, table: pa.Table) -> Values:
    """Every column, without the rows that hold times."""
    columns = {name: _array(table.column(name)) for name in table.column_names}
    text = [column for column in columns.values() if column.dtype.kind == "U" and len(column)]
    timed = np.any([np.char.startswith(column, t) for column in text for t in TIMES], axis=0) if text else None
    if timed is not None and timed.any():
        columns = {name: column[~timed] for name, column in columns.items()}
    return {f"{place}/{name}": column for name, column in columns.items()}


def _flat(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Leaves of a JSON value, without times."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not str(key).startswith(TIMES):
                yield from _flat(f"{place}.{key}" if place else str(key), inner)
    elif isinstance(value, list) and any(isinstance(v, (Mapping, list, str)) for v in value):
        for i, inner in enumerate(value):
            yield from _flat(f"{place}.{i}", inner)
    else:
        yield place, value


def read_json(place: str, value: Any) -> Values:
    out: Values = {}
    for name, leaf in _flat("", value):
        key = f"{place}/{name}"
        numbers = [np.nan if v is None else v for v in leaf] if isinstance(leaf, list) else [leaf]
        if all(isinstance(v, (int, float)) for v in numbers):
            out[key] = np.array(numbers, np.float64)
        else:
            out[key] = np.array([str(leaf)], np.str_)
    return out


def read_log(place: str, folder: Path) -> Values:
    files = sorted(folder.glob("*.parquet"))
    tables = [pq.read_table(path).replace_schema_metadata() for path in files]
    return _table(place, pa.concat_tables(tables, promote_options="permissive"))


def _metrics(place: str, path: Path) -> Values:
    """Each key's values, in the order of the lines that have it."""
    columns: dict[str, list[Any]] = {}
    for line in path.read_text().splitlines():
        for key, value in json.loads(line).items():
            if not key.startswith(TIMES):
                columns.setdefault(key, []).append(value)
    out: Values = {}
    for key, values in columns.items():
        kind = np.str_ if any(isinstance(v, str) for v in values) else np.float64
        out[f"{place}/{key}"] = np.array([np.nan if v is None else v for v in values]).astype(kind)
    return out


def _weights(place: str, path: Path) -> Values:
    from safetensors.numpy import load_file

    return {f"{place}/{name}": value.astype(np.float64).ravel() for name, value in sorted(load_file(path).items())}


def read_training(place: str, run: Path) -> Values:
    """Log, metrics and final weights of a run."""
    return {
        **read_log(f"{place}/log", run / "gradlog"),
        **_metrics(f"{place}/metrics", run / "metrics.jsonl"),
        **_weights(f"{place}/weights", run / "model/model.safetensors"),
    }


def read_analysis(place: str, run: Path) -> Values:
    """Every table and the summary of an analysed run."""
    out: Values = {}
    for path in sorted(next(run.glob("analysis*")).iterdir()):
        name = f"{place}/{path.stem}"
        if path.suffix == ".parquet":
            out |= _table(name, pq.read_table(path))
        elif path.suffix == ".csv" and path.name != COLUMNS and not path.with_suffix(".parquet").exists():
            out |= _table(name, pyarrow.csv.read_csv(path))
        elif path.suffix == ".json":
            out |= read_json(name, json.loads(path.read_text()))
    return out
