"""Read what a run of the record wrote, as arrays by place: logs, metrics, weights and tables."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file

Values = dict[str, np.ndarray]
TIMES = ("time/", "step_time", "seconds", "wall", "commit")
"""How the names of times and of the commit begin, as metrics and as keys of JSON files."""


def _array(column: pd.Series) -> np.ndarray:
    """A column as float64 with NaN for null, lists one after another, or as text with "" for null."""
    if column.map(np.ndim).any():
        column = column.dropna().explode()
    if pd.api.types.infer_dtype(column) in ("string", "categorical", "empty"):
        return column.astype(object).fillna("").to_numpy(np.str_)
    return column.to_numpy(np.float64, na_value=np.nan)


def _table(place: str, table: pa.Table) -> Values:
    """Every column, without the rows that hold times."""
    columns = {str(name): _array(column) for name, column in table.to_pandas().items()}
    for text in [column for column in columns.values() if column.dtype.kind == "U"]:
        timed = np.array([value.startswith(TIMES) for value in text], bool)
        if timed.any():
            columns = {name: column[~timed] for name, column in columns.items()}
            break
    return {f"{place}/{name}": column for name, column in columns.items()}


def read_json(place: str, value: Any, join: str = "/") -> Values:
    """The leaves of a JSON value, without times."""
    if isinstance(value, list) and any(isinstance(v, (dict, list, str)) for v in value):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        kept = {f"{place}{join}{key}": inner for key, inner in value.items() if not str(key).startswith(TIMES)}
        return {name: leaf for key, inner in kept.items() for name, leaf in read_json(key, inner, ".").items()}
    numbers = [np.nan if v is None else v for v in value] if isinstance(value, list) else [value]
    if all(isinstance(v, (int, float)) for v in numbers):
        return {place: np.array(numbers, np.float64)}
    return {place: np.array([str(value)], np.str_)}


def read_log(place: str, folder: Path) -> Values:
    tables = [pq.read_table(path).replace_schema_metadata() for path in sorted(folder.glob("*.parquet"))]
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
        elif path.suffix == ".json":
            out |= read_json(name, json.loads(path.read_text()))
    return out
