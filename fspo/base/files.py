"""Files and folders that are whole or not there, written under a temporary name and renamed; JSON lines; digests."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def _part(path: Path) -> Path:
    """The temporary name of a file or folder while this process writes it."""
    return path.with_name(f".part-{os.getpid()}-{path.name}")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn a file or folder that cannot be read into one line.

    Raises
    ------
    UserError
        If the block raises OSError.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; change its permissions") from error


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``; it takes that name when the block ends, and goes when the block fails.

    Folders are made. A killed process leaves ``.part-PID-NAME`` behind, which no reader takes for the file.

    Raises
    ------
    UserError
        If the file cannot be written.
    """
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
    """Give an empty temporary folder beside ``path``; it takes that name when the block ends, in place of an old one.

    It goes when the block fails, and the old one stays. A killed process leaves ``.part-PID-NAME`` behind
    (:func:`remove_parts`). Errors as in :func:`writing`.

    Raises
    ------
    UserError
        If the folder cannot be written.
    """
    path = path.resolve()
    part = _part(path)
    try:
        with writing(path, *others):
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            yield part
            if path.exists():
                remove_folder(path)
            os.replace(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder; killed half-way, nothing that looks whole is left."""
    rubbish = path.with_name(f".part-old-{path.name}")
    shutil.rmtree(rubbish, ignore_errors=True)
    os.replace(path, rubbish)
    shutil.rmtree(rubbish)


def remove_parts(folder: Path, name: str = "") -> int:
    """Remove what killed processes left half-written in ``folder``, and count it; nobody may be writing there.

    Parameters
    ----------
    name : str
        End of the names that the files or folders would have taken; any by default.
    """
    parts = list(folder.glob(f".part-*{glob.escape(name)}"))
    for part in parts:
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink()
    return len(parts)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, whole or not at all."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")


def refuse_foreign(folder: Path, ours: Mapping[str, Callable[[Path], bool]], writer: str, option: str = "") -> None:
    """Refuse a folder with files that would be overwritten although ``writer`` did not write them.

    A folder that is missing or empty may be used. Any other must hold at least one of the files that the writer
    writes, and each of those that it holds must look like the writer's own.

    Parameters
    ----------
    folder : Path
    ours : mapping of str to function
        Name (or pattern) of each file that the writer may write, and a test of whether a file of that name is its own.
    writer : str
        The command, for the message.
    option : str
        The option that named the folder, for the message.

    Raises
    ------
    UserError
        If it is a file, or not the writer's.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{option} {folder} is a file: name a folder".strip())
    with reading(folder):
        present = [path for path in folder.iterdir() if not path.name.startswith(".part-")] if folder.exists() else []
    known = [(path, own) for name, own in ours.items() for path in present if path.match(name)]
    for path, own in known:
        _refuse_unless(_holds(own, path), path, writer, "name another folder")
    if present and not known:
        raise UserError(f"{folder} holds files, and none that {writer} wrote: name a new or an empty folder")


def refuse_foreign_file(path: Path, own: Callable[[Path], bool], writer: str) -> None:
    """The same for a file that is to be written: it must be missing, or one that ``writer`` wrote.

    Raises
    ------
    UserError
        If it is a folder, or another file.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder: name a file")
    if path.exists():
        _refuse_unless(_holds(own, path), path, writer, "name another file")


def _refuse_unless(own: bool, path: Path, writer: str, cure: str) -> None:
    if not own:
        raise UserError(f"{path} is there, and {writer} did not write it, so it is not overwritten: {cure}")


def _holds(own: Callable[[Path], bool], path: Path) -> bool:
    with reading(path):
        return own(path)


def begins_with(*starts: str) -> Callable[[Path], bool]:
    """A test of files: whether the text begins with one of these."""
    most = max(len(start.encode()) for start in starts)

    def own(path: Path) -> bool:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(most).startswith(tuple(start.encode() for start in starts))

    return own


def json_with(*keys: str) -> Callable[[Path], bool]:
    """A test of files: whether it is JSON, an object with these keys or a list of such objects."""

    def own(path: Path) -> bool:
        try:
            content = json.loads(path.read_bytes()) if path.is_file() else None
        except (ValueError, RecursionError):
            return False
        objects = content if isinstance(content, list) else [content]
        return all(isinstance(found, dict) and set(keys) <= found.keys() for found in objects)

    return own


def json_lines(lines: Iterable[str | bytes]) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Records of JSON lines, each with the number of its line from 1; empty lines are passed over.

    In place of a record that cannot be read stands what is wrong with its line.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            record = f"no valid JSON ({error.msg} at column {error.colno})"
        except (ValueError, RecursionError) as error:  # bytes that are no text; brackets without end
            record = f"no valid JSON ({error})"
        else:
            if not isinstance(record, dict):
                record = f"the row is {type(record).__name__}, not an object of names and values"
        yield number, record


def digest(content: bytes | str) -> str:
    """Short hash of bytes or of UTF-8 text, for names and stamps."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]


def digest_of(value: Any) -> str:
    """Short hash of plain values, whatever the order of their keys; other values enter by their text."""
    return digest(json.dumps(value, sort_keys=True, default=str))
