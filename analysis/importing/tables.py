"""Read tables and console texts; a list ``damage`` receives a line for each part not read."""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.importing.names import STATE
from analysis.importing.values import NUMPY_NUMBER, paired
from fspo.base.errors import UserError
from fspo.base.files import json_lines

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK = 50_000
"""Rows in a chunk of a table. Chunks of JSON lines with token lists are smaller: they end after ``CHUNK_BYTES``."""
CHUNK_BYTES = 32 * 2**20
TABLES = (".parquet", ".csv", ".tsv", ".jsonl", ".jsonl.gz")
NESTS = ("data", "metrics", "scalars")
"""Names under which a line of scalars holds them as one object."""
TEXTS = ("prompt", "completion", "response", "messages")
"""Columns that are texts even where they hold objects."""
VERL_LINE = r"\bstep:(\d+) - (\S+:\S.*)"
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|-?inf"
Chunk = dict[str, "pa.Array | list[Any]"]


def column_names(path: Path) -> list[str]:
    """Return the names of a table's columns (for JSON lines: the keys of the first record); [] if the file is empty.

    Raise UserError if the file cannot be read.
    """
    if path.name.endswith(".parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return _once(path, _names(pq.read_schema(path)))
        except (pa.ArrowInvalid, OSError) as error:
            raise unreadable(path, error) from error
    if path.name.endswith((".csv", ".tsv")):
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                return _once(path, [name for name in next(csv.reader(file, delimiter=_separator(path)[0]), []) if name])
        except (UnicodeDecodeError, csv.Error) as error:
            raise unreadable(path, "it is not text in UTF-8") from error
    damage: list[str] = []
    for chunk in _json_lines(path, damage, rows=1):
        found = unnested(chunk)  # a number in an object may be a scalar, which is named outer/inner
        return [name.replace(".", "/") if isinstance(found[name][0], (int, float)) else name for name in found]
    if damage:
        raise UserError(damage[0])
    return []


def _names(fields: Any, before: str = "") -> list[str]:
    import pyarrow as pa

    nested = ((before + f.name, f.type if pa.types.is_struct(f.type) else ()) for f in fields)
    return [inner for name, within in nested for inner in (_names(within, f"{name}.") if within else [name])]


def _once(path: Path, names: list[str]) -> list[str]:
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise UserError(f"{path} names the column {twice[0]!r} twice: rename one of them or leave it out")
    return names


def unreadable(path: Path, error: Exception | str) -> UserError:
    """Return the UserError that says which file is damaged and why it cannot be read."""
    return UserError(f"{path} cannot be read: {_reason(error)}; repair it or move it away")


def _reason(error: Exception | str) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def read_chunks(path: Path, damage: list[str], rows: int = CHUNK) -> Iterator[Chunk]:
    """Yield a table file in chunks of at most ``rows`` rows: column name -> an Arrow array, or a list of JSON lines.

    ``damage`` receives one line if some rows, or the complete file, cannot be read.
    """
    if path.name == STATE:
        return _state(path, damage)
    if not path.name.endswith(TABLES):
        return _console(path)
    if path.name.endswith(".parquet"):
        return _parquet(path, damage, rows)
    return _csv(path, damage) if path.name.endswith((".csv", ".tsv")) else _json_lines(path, damage, rows)


def _parquet(path: Path, damage: list[str], rows: int) -> Iterator[Chunk]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    done = 0
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for number in range(file.num_row_groups):
                for batch in file.iter_batches(batch_size=rows, row_groups=[number]):
                    done += batch.num_rows
                    yield dict(zip(batch.schema.names, batch.columns, strict=True))
    except (pa.ArrowException, OSError, ValueError) as error:
        what = f"{path}: what follows row {done} cannot be read: {_reason(error)}"
        damage.append(what if done else str(unreadable(path, error)))


def _separator(path: Path) -> tuple[str, str]:
    """Return what separates a CSV file's columns (comma, semicolon or tab) and the decimal point of its numbers."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        names, first = file.readline(), file.readline()
    between = max(",;\t", key=names.count)
    comma = between != "," and re.search(rf"(?:^|{between})-?\d+,\d+(?:{between}|$)", first.strip("\r\n"))
    return between, "," if comma else "."


def _csv(path: Path, damage: list[str]) -> Iterator[Chunk]:
    import pyarrow as pa
    import pyarrow.csv as pacsv

    if not path.stat().st_size:
        return
    between, decimal = _separator(path)

    def table(**only: Any) -> pa.Table:
        return pacsv.read_csv(
            path,
            read_options=pacsv.ReadOptions(use_threads=False),  # threads would not name the row of an error
            parse_options=pacsv.ParseOptions(delimiter=between, newlines_in_values=True),
            convert_options=pacsv.ConvertOptions(decimal_point=decimal, **only),
        )

    try:
        found = table()
        for i, name in enumerate(found.column_names):
            column = found.column(i)
            if pa.types.is_floating(column.type) and np.any(np.abs(column.to_numpy()) >= 2**53):
                texts = table(include_columns=[name], column_types={name: pa.string()}).column(0)
                if all(text.isdecimal() for text in texts.to_pylist() if text):
                    found = found.set_column(i, name, texts)  # ids of 64 bits, which a float would merge
        for batch in found.combine_chunks().to_batches():
            yield dict(zip(batch.schema.names, batch.columns, strict=True))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        damage.append(str(unreadable(path, error)))


def _json_lines(path: Path, damage: list[str], rows: int) -> Iterator[Chunk]:
    records: list[dict[str, Any]] = []
    start = number = bad = 0
    why = ""
    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
            for number, record in json_lines(file):
                if isinstance(record, str):
                    bad, why = bad + 1, why or f"line {number}: {record}"
                    continue
                records.append(record)
                if len(records) >= rows or file.tell() - start >= CHUNK_BYTES:
                    yield _columns(records)
                    records, start = [], file.tell()
    except (OSError, EOFError, zlib.error) as error:
        what = f"{path}: what follows line {number} cannot be read: {_reason(error)}"
        damage.append(what if number else str(unreadable(path, error)))
    if bad:
        damage.append(f"{path}: {bad} of {number} lines cannot be read and are left out, the first is {why}")
    if records:
        yield _columns(records)


def _columns(records: list[dict[str, Any]]) -> Chunk:
    records = [row for record in records for row in _rows(record)]
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [record.get(name) for record in records] for name in names}


def unnested(chunk: Chunk) -> Chunk:
    """Return a chunk with a column ``outer.inner`` for each value of a column of objects, texts of prompts excepted."""
    import pyarrow as pa

    out: Chunk = {}
    for name, column in chunk.items():
        objects = column if isinstance(column, list) else column.to_pylist() if pa.types.is_struct(column.type) else []
        inner = dict.fromkeys(key for value in objects if isinstance(value, dict) for key in value)
        if not inner or name.lower() in TEXTS:
            out[name] = column
        else:
            values = {f"{name}.{key}": [v.get(key) if isinstance(v, dict) else None for v in objects] for key in inner}
            out |= unnested(values)
    return out


def _rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a record: one, or as many as each of its lists has values, if some of these are lists.

    NeMo-RL writes lists of one, and others a batch in one line. A nest of scalars is dissolved.
    """
    for name in NESTS:
        if isinstance(record.get(name), dict):
            record = {k: v for k, v in record.items() if k != name} | record[name]
    lists = {name: value for name, value in record.items() if isinstance(value, list)}
    sizes = {len(value) for value in lists.values()}
    batch = any(all(isinstance(v, list) for v in value) and not paired([value]) for value in lists.values())
    if len(lists) < 2 or len(sizes) > 1 or not batch:
        return [record]
    return [record | {name: value[i] for name, value in lists.items()} for i in range(sizes.pop())]


def _state(path: Path, damage: list[str]) -> Iterator[Chunk]:
    """Yield the scalars of TRL's trainer_state.json, with their steps."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        yield _columns([dict(entry) for entry in content["log_history"] if "step" in entry])
    except (OSError, ValueError) as error:
        damage.append(f"{path} is no JSON: {error}; it may have been cut off, name an older checkpoint's")
    except (KeyError, TypeError):
        damage.append(f"{path} has no log_history: it is not the {STATE} of a Hugging Face trainer")


def console(path: Path) -> str:
    """Return which trainer printed a text, as its first 100,000 characters show: "verl", "hugging face" or ""."""
    with path.open(encoding="utf-8", errors="replace") as file:
        text = file.read(100_000)
    if re.search(VERL_LINE, text):
        return "verl"
    return "hugging face" if re.search(r"(?m)^\{'(?:loss|reward|eval_loss|num_tokens)':", text) else ""


def _console(path: Path) -> Iterator[Chunk]:
    """Yield the scalars of each line that verl printed to the console, with their step."""
    records: list[dict[str, Any]] = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if found := re.search(VERL_LINE, line):
                pairs = [part.rpartition(":") for part in NUMPY_NUMBER.sub(r"\1", found[2]).strip().split(" - ")]
                values = {name: float(value) for name, _, value in pairs if name and re.fullmatch(NUMBER, value)}
                records.append({"step": int(found[1])} | values)
    yield _columns(records)
