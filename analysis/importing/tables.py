"""Files read in chunks of rows: Parquet, CSV and JSON lines; TensorBoard's events one by one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fspo.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK = 50_000
"""Rows of one chunk of a table; JSON lines with token lists are cut earlier, after ``CHUNK_BYTES``."""
CHUNK_BYTES = 32 * 2**20
Chunk = dict[str, "pa.Array | list[Any]"]


def first_row(path: Path) -> dict[str, Any]:
    """The first row of a table by column, {} if it has none.

    Raises
    ------
    UserError
        If the file cannot be read.
    """
    import pyarrow as pa

    if path.name.endswith(".parquet"):
        import pyarrow.parquet as pq

        try:
            return dict.fromkeys(pq.read_schema(path).names)
        except (pa.ArrowInvalid, OSError) as error:
            raise unreadable(path, error) from error
    for chunk in read_chunks(path, rows=1):
        return {name: values[0] for name, values in chunk.items()}
    return {}


def unreadable(path: Path, error: Exception, where: str = "") -> UserError:
    """The error of a damaged file."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return UserError(f"{path}{where} cannot be read: {reason}; repair it or move it away")


def read_chunks(path: Path, rows: int = CHUNK) -> Iterator[Chunk]:
    """Chunks of at most ``rows`` rows: column name to values (an Arrow array, or a list for JSON lines).

    Raises
    ------
    UserError
        For a damaged file; the chunks before the damage have been given by then.
    """
    import pyarrow as pa

    try:
        if path.name.endswith(".parquet"):
            import pyarrow.parquet as pq

            for batch in pq.ParquetFile(path).iter_batches(batch_size=rows):
                yield dict(zip(batch.schema.names, batch.columns, strict=True))
        elif path.name.endswith(".csv"):
            yield from _csv(path)
        else:
            yield from _json_lines(path, rows)
    except (pa.ArrowInvalid, pa.ArrowKeyError, OSError, UnicodeDecodeError, EOFError) as error:
        raise unreadable(path, error) from error


def _csv(path: Path) -> Iterator[Chunk]:
    import pyarrow.csv as pacsv

    with path.open("rb") as file:
        if not file.read(1):
            return
    parse = pacsv.ParseOptions(newlines_in_values=True)
    read = pacsv.ReadOptions(block_size=CHUNK_BYTES)
    for batch in pacsv.open_csv(path, read_options=read, parse_options=parse):
        yield dict(zip(batch.schema.names, batch.columns, strict=True))


def _json_lines(path: Path, rows: int) -> Iterator[Chunk]:
    records: list[dict[str, Any]] = []
    size = 0
    with gzip.open(path, "rt", encoding="utf-8") if path.name.endswith(".gz") else path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise unreadable(path, error, f" line {number}") from error
            if not isinstance(record, dict):
                raise UserError(f"{path} line {number} is no JSON object: a row has the form {{'step': 1, ...}}")
            records.append(record)
            size += len(line)
            if len(records) >= rows or size >= CHUNK_BYTES:
                yield _columns(records)
                records, size = [], 0
    if records:
        yield _columns(records)


def _columns(records: list[dict[str, Any]]) -> Chunk:
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [record.get(name) for record in records] for name in names}


def events(path: Path) -> Iterator[tuple[int, str, float]]:
    """(step, tag, value) of each scalar of a TensorBoard file.

    Raises
    ------
    UserError
        If tensorboard is not installed or the file is damaged.
    """
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util import tensor_util
    except ImportError as error:
        raise UserError(f"{path} needs tensorboard: pip install 'fspo[tensorboard]'") from error
    if path.stat().st_size == 0:
        raise UserError(f"{path} is empty: the run wrote nothing to TensorBoard; move it away")
    try:
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                plugin = value.metadata.plugin_data.plugin_name
                if value.WhichOneof("value") == "tensor" and plugin in ("scalars", ""):
                    number = np.asarray(tensor_util.make_ndarray(value.tensor))
                    if number.size == 1 and number.dtype.kind in "fiu":
                        yield int(event.step), value.tag, float(number.reshape(-1)[0])
    except Exception as error:  # tensorboard's DataLossError and protobuf's DecodeError have no common base
        raise unreadable(path, error) from error
