"""Read Parquet, CSV and JSON lines files in chunks of rows, and TensorBoard files event by event.

If part of a file cannot be read, a line that says so is added to the caller's list ``damage``, and the other rows or
events are returned.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fspo.base.errors import UserError
from fspo.base.files import json_lines

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK = 50_000
"""Rows in a chunk of a table. Chunks of JSON lines with token lists are smaller: they end after ``CHUNK_BYTES``."""
CHUNK_BYTES = 32 * 2**20
Chunk = dict[str, "pa.Array | list[Any]"]


def column_names(path: Path) -> list[str]:
    """Return the names of a table's columns (for JSON lines: the keys of the first record); [] if the file is empty.

    Raises
    ------
    UserError
        If the file cannot be read.
    """
    if path.name.endswith(".parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return list(pq.read_schema(path).names)
        except (pa.ArrowInvalid, OSError) as error:
            raise unreadable(path, error) from error
    if path.name.endswith((".csv", ".tsv")):
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                return [name for name in next(csv.reader(file, delimiter=_separator(path)[0]), []) if name]
        except (UnicodeDecodeError, csv.Error) as error:
            raise unreadable(path, "it is not text in UTF-8") from error
    damage: list[str] = []
    for chunk in _json_lines(path, damage, rows=1):
        return list(chunk)
    if damage:
        raise UserError(damage[0])
    return []


def unreadable(path: Path, error: Exception | str) -> UserError:
    """Return the UserError that says which file is damaged and why it cannot be read."""
    return UserError(f"{path} cannot be read: {_reason(error)}; repair it or move it away")


def _reason(error: Exception | str) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def read_chunks(path: Path, damage: list[str], rows: int = CHUNK) -> Iterator[Chunk]:
    """Read a table file in chunks of at most ``rows`` rows. Yield each chunk as a mapping from column names to values
    (an Arrow array, or a list for JSON lines).

    Parameters
    ----------
    damage : list of str
        Receives one line if some rows, or the complete file, cannot be read.
    """
    if path.name.endswith(".parquet"):
        return _parquet(path, damage, rows)
    return _csv(path, damage) if path.name.endswith((".csv", ".tsv")) else _json_lines(path, damage, rows)


def _parquet(path: Path, damage: list[str], rows: int) -> Iterator[Chunk]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    errors = (pa.ArrowException, OSError, ValueError)
    lost, why = 0, ""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for number in range(file.num_row_groups):
                left = file.metadata.row_group(number).num_rows
                try:
                    for batch in file.iter_batches(batch_size=rows, row_groups=[number]):
                        left -= batch.num_rows
                        yield dict(zip(batch.schema.names, batch.columns, strict=True))
                except errors as error:
                    lost, why = lost + left, why or _reason(error)
    except errors as error:
        damage.append(str(unreadable(path, error)))
    if lost:
        damage.append(f"{path}: {lost} rows lost, in row groups that cannot be read: {why}")


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

    with path.open("rb") as file:
        if not file.read(1):
            return
    bad: list[str] = []

    def skip(row: Any) -> str:
        bad.append(
            f"{row.actual_columns} columns in the place of {row.expected_columns}: put quotation marks around a cell "
            f"that holds {between!r}"
        )
        return "skip"

    between, decimal = _separator(path)
    numbers = pacsv.ConvertOptions(decimal_point=decimal)
    read = pacsv.ReadOptions(block_size=CHUNK_BYTES)
    given = 0
    # The file is first read without the handler `skip`, and with it only if a row has the wrong number of columns. The
    # reason: if a thread of pyarrow still holds a Python function such as `skip` when Python ends, the process aborts.
    for handler in (None, skip):
        parse = pacsv.ParseOptions(delimiter=between, newlines_in_values=True, invalid_row_handler=handler)
        passed = 0
        try:
            for batch in pacsv.open_csv(path, read_options=read, parse_options=parse, convert_options=numbers):
                new = batch.slice(max(given - passed, 0))
                passed += batch.num_rows
                given += new.num_rows
                if new.num_rows:
                    yield dict(zip(new.schema.names, new.columns, strict=True))
            break
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if handler is None and re.search(r"Expected \d+ columns", str(error)):
                continue
            what = f"{path}: what follows row {given} cannot be read: {_reason(error)}"
            damage.append(what if given else str(unreadable(path, error)))
            break
    if bad:
        damage.append(f"{path}: {len(bad)} rows left out, the first has {bad[0]}")


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
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [record.get(name) for record in records] for name in names}


def events(path: Path, damage: list[str]) -> Iterator[tuple[int, str, float]]:
    """Yield (step, tag, value) for each scalar of a TensorBoard file; ``damage`` receives a line if part is unreadable.

    Raises
    ------
    UserError
        If tensorboard is not installed.
    """
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util import tensor_util
    except ImportError as error:
        raise UserError(f"{path} needs tensorboard: pip install 'fspo[tensorboard]'") from error
    if path.stat().st_size == 0:
        damage.append(f"{path} is empty: the run wrote nothing to TensorBoard; move it away")
        return
    last = None
    try:
        for event in EventFileLoader(str(path)).Load():
            last = event.step
            for value in event.summary.value:
                plugin = value.metadata.plugin_data.plugin_name
                if value.WhichOneof("value") == "tensor" and plugin in ("scalars", ""):
                    number = np.asarray(tensor_util.make_ndarray(value.tensor))
                    if number.size == 1 and number.dtype.kind in "fiu":
                        yield int(event.step), value.tag, float(number.reshape(-1)[0])
    except Exception as error:  # tensorboard's DataLossError and protobuf's DecodeError share no narrower base class
        what = f"{path}: what follows step {last} cannot be read: {_reason(error)}"
        damage.append(str(unreadable(path, error)) if last is None else what)
    else:
        if last is None:
            damage.append(str(unreadable(path, "it holds no event of TensorBoard's")))
