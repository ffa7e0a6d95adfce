"""Read rows from a jsonl or parquet file, a folder or a Hugging Face data set, each with its place ("line 3")."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fspo.base.errors import UserError
from fspo.base.files import json_lines

FILE_SUFFIXES = (".jsonl", ".parquet")


def read_rows(path: str, subset: str | None = None, split: str = "train") -> Iterator[tuple[str, Any]]:
    """Yield where each row of a source stands ("line 3"), and the row: a dict, or a text that says what is wrong.

    Parameters
    ----------
    path : str
        A ``.jsonl`` or ``.parquet`` file, a local folder, or a name for Hugging Face ``datasets``.
    subset, split : str
        Subset and split of a folder or a Hugging Face data set.

    Raises
    ------
    UserError
        If the source is missing or cannot be read.
    """
    file = Path(path)
    suffix = file.suffix.lower()
    if suffix in FILE_SUFFIXES and not file.is_file():
        raise UserError(f"no file {path}: correct the path")
    if suffix == ".jsonl":
        try:
            with file.open(encoding="utf-8-sig") as stream:
                for number, row in json_lines(stream):
                    yield f"line {number}", row
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: not UTF-8 ({error.reason}): save the file as UTF-8") from error
    elif file.is_file() and suffix != ".parquet":
        raise UserError(f"{path}: unknown file type {suffix!r}: convert it to .jsonl or .parquet")
    else:
        rows = _parquet(file) if suffix == ".parquet" else _hub(path, subset, split)
        for number, row in enumerate(rows, start=1):
            yield f"row {number}", row


def _parquet(path: Path) -> Iterator[Any]:
    try:
        with pq.ParquetFile(path) as parquet:
            for batch in parquet.iter_batches():
                yield from batch.to_pylist()
    except pa.ArrowInvalid as error:
        raise UserError(f"{path}: no readable parquet file ({error}): write it again") from error


def _hub(path: str, subset: str | None, split: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f'{path!r} is no .jsonl or .parquet file; hub datasets need: pip install ".[data]" in fspo\'s repository'
        ) from error
    try:
        if not any((Path(path) / name).exists() for name in ("state.json", "dataset_dict.json")):
            return datasets.load_dataset(path, subset, split=split)
        data = datasets.load_from_disk(path)
        return data[split] if isinstance(data, datasets.DatasetDict) else data
    except Exception as error:  # the datasets library raises many types of exception, plain Exception among them
        text = " ".join(str(error).split())[:300]
        raise UserError(
            f"cannot load dataset {path!r} (subset {subset}, split {split}): {text}: check path, subset and split"
        ) from error
