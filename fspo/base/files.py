"""Files that are whole or not there: written under a temporary name and renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fspo.base.errors import UserError


def cache_folder(given: str | Path | None = None) -> Path:
    """Where things that can be made again are kept: ``given``, else FSPO_CACHE, else ~/.cache/fspo. Not made here."""
    return Path(given or os.environ.get("FSPO_CACHE") or "~/.cache/fspo").expanduser()


@contextmanager
def writing(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Turn a full disk, a read-only folder and the like into one line; ``others`` are what a library makes of them.

    Raises
    ------
    UserError
        If the block raises OSError or one of ``others``.
    """
    try:
        yield
    except (OSError, *others) as error:
        why = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise UserError(f"cannot write {path}: {why}; make room or name another place") from error


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``; it takes that name when the block ends, and goes when the block fails.

    Folders are made. A killed process leaves ``.part-PID-NAME`` behind, which no reader takes for the file.

    Raises
    ------
    UserError
        If the file cannot be written.
    """
    part = path.with_name(f".part-{os.getpid()}-{path.name}")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield part
            os.replace(part, path)
    finally:
        if part.exists():
            part.unlink()


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, whole or not at all."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")
