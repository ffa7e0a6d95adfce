"""Read rows from a jsonl or parquet file, a folder or a Hugging Face data set, each with its place ("line 3")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fspo.base.errors import UserError, unknown_name
from fspo.base.files import json_lines

JSONL_SUFFIXES = (".jsonl", ".ndjson")
FILE_SUFFIXES = (*JSONL_SUFFIXES, ".parquet")

Row = tuple[str, Any]
"""Where a row stands ("line 3"), and the row as a dict, or a message that says why it cannot be read."""


def _read_jsonl(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as stream:
        for number, row in json_lines(stream):
            yield f"line {number}", row


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as parquet:
            number = 0
            for batch in parquet.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", row
    except pa.ArrowInvalid as error:
        raise UserError(f"{path}: no readable parquet file ({error}): write it again") from error


def _read_hub(path: str, subset: str | None, split: str) -> Iterator[Row]:
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f'{path!r} is no .jsonl or .parquet file; Hugging Face datasets need: pip install "fspo[data]"'
        ) from error
    try:
        folder = Path(path)
        if (folder / "state.json").exists() or (folder / "dataset_dict.json").exists():
            data = datasets.load_from_disk(path)
            if isinstance(data, datasets.DatasetDict):
                if split not in data:
                    raise unknown_name(f"split of {path}", split, [str(known) for known in data])
                data = data[split]
        else:
            data = datasets.load_dataset(path, subset, split=split)
    except UserError:
        raise
    except Exception as error:  # the datasets library raises many types of exception, plain Exception among them
        text = " ".join(str(error).split())[:300]
        raise UserError(
            f"cannot load dataset {path!r} (subset {subset}, split {split}): {text}: check path, subset and split"
        ) from error
    for number, row in enumerate(data, start=1):
        yield f"row {number}", row


def read_rows(path: str, subset: str | None = None, split: str = "train") -> Iterable[Row]:
    """Return an iterator over the rows of a source, which are read one after another.

    Parameters
    ----------
    path : str
        A ``.jsonl``, ``.ndjson`` or ``.parquet`` file, a local folder, or a name for Hugging Face ``datasets``.
    subset, split : str
        Subset and split of a folder or a Hugging Face data set.

    Raises
    ------
    UserError
        If the source is missing or cannot be read. A damaged parquet file raises it during the iteration.
    """
    file = Path(path)
    suffix = file.suffix.lower()
    if suffix in FILE_SUFFIXES:
        if not file.is_file():
            raise UserError(f"no file {path}: correct the path")
        return _read_jsonl(file) if suffix in JSONL_SUFFIXES else _read_parquet(file)
    if file.is_file():
        raise UserError(f"{path}: unknown file type {suffix!r}: convert it to .jsonl or .parquet")
    return _read_hub(path, subset, split)
