"""Write files and folders so that no reader finds one half-written, read JSON lines, and compute short hashes."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fspo.base.errors import UserError


def cache_folder(given: str | Path | None = None) -> Path:
    """Return the cache folder: ``given``, else that of the environment variable FSPO_CACHE, else ~/.cache/fspo. It is
    not created here."""
    return Path(given or os.environ.get("FSPO_CACHE") or "~/.cache/fspo").expanduser()


@contextmanager
def writing(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Turn a write error (a full disk, a read-only folder) inside a ``with`` block into a UserError of one line.

    ``others`` are exception classes beside OSError that a library raises for write errors."""
    try:
        yield
    except (OSError, *others) as error:
        why = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise UserError(f"cannot write {path}: {why}; make room or name another place") from error


def _part(path: Path) -> Path:
    """Return the temporary path under which this process writes a file or folder."""
    return path.with_name(f".part-{os.getpid()}-{path.name}")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; when the ``with`` block ends, rename the file to ``path``.

    If the block fails, the temporary file is removed. Missing folders are created. A killed process leaves
    ``.part-PID-NAME`` behind, a name that no reader looks for.

    Raises UserError if the file cannot be written."""
    part = _part(path)
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield part
            os.replace(part, path)
    finally:
        if part.exists():
            part.unlink()


@contextmanager
def whole_folder(path: Path, *others: type[Exception]) -> Iterator[Path]:
    """Yield an empty temporary folder beside ``path``; when the ``with`` block ends, it replaces the folder at
    ``path``.

    If the block fails, the temporary folder is removed and an old folder at ``path`` stays. A killed process leaves
    ``.part-PID-NAME`` behind, which :func:`remove_parts` removes.

    Raises UserError if the block raises OSError or one of ``others``, as in :func:`writing`."""
    path = path.resolve()
    part = _part(path)
    try:
        with writing(path, *others):
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            yield part
            old = _put_aside(path) if path.exists() else None
            os.replace(part, path)
            if old is not None:  # this may take long, so it comes last
                shutil.rmtree(old)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Rename a folder to a temporary name and remove it, so that a kill leaves no incomplete folder at ``path``."""
    shutil.rmtree(_put_aside(path))


def _put_aside(path: Path) -> Path:
    rubbish = path.with_name(f".part-old-{path.name}")
    shutil.rmtree(rubbish, ignore_errors=True)
    os.replace(path, rubbish)
    return rubbish


def remove_parts(folder: Path, name: str = "") -> int:
    """Remove the temporary files and folders that killed processes left in ``folder``; return their number.

    Call it only while no other process writes to ``folder``: that process's unfinished files would be removed too.

    If ``name`` is given, only temporary versions of files and folders whose names end with it are removed."""
    parts = list(folder.glob(f".part-*{glob.escape(name)}"))
    for part in parts:
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink()
    return len(parts)


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8 through `whole_file`: after an error the file has its old content or does not exist."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")


def refuse_foreign(folder: Path, ours: Mapping[str, str], writer: str, option: str = "") -> None:
    """Raise UserError if ``writer`` would overwrite files in the folder that it did not write.

    A folder that is missing or empty may be used. Any other folder must hold at least one file with a name that the
    writer uses, and each file with such a name must hold the writer's mark.

    Parameters
    ----------
    ours : mapping of str to str
        Name (or pattern) of each file that the writer may write, and its mark: text in the first MiB of each such file.
    writer, option : str
        The command, and the option that named the folder, for the message.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{option} {folder} is a file: name a folder".strip())
    present = [path for path in folder.iterdir() if not path.name.startswith(".part-")] if folder.exists() else []
    known = [(path, mark) for name, mark in ours.items() for path in present if path.match(name)]
    for path, mark in known:
        refuse_foreign_file(path, mark, writer, "name another folder")
    if present and not known:
        raise UserError(f"{folder} holds files, and none that {writer} wrote: name a new or an empty folder")


def refuse_foreign_file(path: Path, mark: str, writer: str, fix: str = "name another file") -> None:
    """Raise UserError unless the file at ``path`` is missing, or holds the text ``mark``, by which its writer marks its
    files, in its first MiB. ``fix`` says in the message what to do."""
    head = b""
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(2**20)
    if path.exists() and mark.encode() not in head:
        raise UserError(f"{path} is there, and {writer} did not write it, so it is not overwritten: {fix}")


def json_lines(lines: Iterable[str | bytes]) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Yield the line number (from 1) and the record of each JSON line; empty lines are skipped.

    For a line that is no JSON object the record is a text that says what is wrong with the line."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            record = f"no valid JSON ({error.msg} at column {error.colno})"
        except (ValueError, RecursionError) as error:  # for a line not in UTF-8, or with brackets nested too deeply
            record = f"no valid JSON ({error})"
        else:
            if not isinstance(record, dict):
                record = f"the row is {type(record).__name__}, not an object of names and values"
        yield number, record


def digest(content: bytes | str) -> str:
    """Return a short hash (16 hexadecimal digits) of bytes, or of text as UTF-8, for names of files and stamps."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]


def digest_of(value: Any) -> str:
    """Return a short hash of a value through its JSON text; the order of keys does not matter.

    Values that JSON does not know enter as their ``str()``."""
    return digest(json.dumps(value, sort_keys=True, default=str))
