"""Find the files of another trainer's log in a folder, and tell what kind each of them is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from analysis.importing.names import (
    COLUMNS,
    MARKS,
    STATE,
    TRL_TABLE,
    canonical,
    inner_name,
    is_log_probability,
    step_column,
)
from analysis.importing.tables import TABLES, column_names, console
from fspo.base.errors import UserError
from fspo.gradlog.run_folder import GRADLOG

Kind = Literal["state", "scalars", "table"]
CONSOLES = (".txt", ".log", ".out")
_MARKING = {canonical(alias) for name in MARKS for alias in COLUMNS[name]}


@dataclass
class Sources:
    """The files of another trainer that an import reads, by kind, each list in the order of training."""

    state: list[Path] = field(default_factory=list)  # TRL's trainer_state.json; a later one repeats earlier ones
    scalars: list[Path] = field(default_factory=list)  # scalars as JSON lines or CSV, one line for each step
    table: list[Path] = field(default_factory=list)  # tables of another trainer, one row for each response
    ignored: list[str] = field(default_factory=list)  # files that were left out, each with the reason

    @property
    def first_step(self) -> int:
        """Number of a run's first update: 1 for TRL, which logs an update when it is done, and otherwise 0."""
        return int(bool(self.state) or any(file.name.startswith(TRL_TABLE) for file in self.table))

    def __bool__(self) -> bool:
        return bool(self.state or self.scalars or self.table)


def find_sources(source: str | Path, given: Mapping[str, str] | None = None) -> Sources:
    """Find the source files in a folder and below it, or look at a single file.

    ``given`` maps this project's names of columns to the source's: a file with one of these is read for it.

    Raise UserError if ``source`` does not exist, is a run folder of this project, or holds no file that can be read
    as a log.
    """
    path = Path(source)
    if (path / GRADLOG).is_dir():
        raise UserError(f"{path} holds a gradient log already: run `fspo analyse {path}`")
    if not path.is_file() and not path.is_dir():
        what = "is no regular file" if path.exists() else "does not exist"
        raise UserError(f"{path} {what}: name a trainer's output folder or one of its log files")
    files = [path] if path.is_file() else sorted(filter(Path.is_file, path.rglob("[!.]*")), key=_order)
    found = Sources()
    for file in files:
        try:
            if kind := kind_of(file, given):
                getattr(found, kind).append(file)
        except UserError as error:
            if file == path:
                raise
            found.ignored.append(str(error))
    if not found:
        why = f" ({found.ignored[0]})" if found.ignored else ""
        what = "is" if path.is_file() else f"holds no log that can be read{why}:"
        raise UserError(
            f"{path} {what} neither {STATE}, verl's console text, nor a .jsonl, .csv or .parquet of scalars by step or "
            "of one row a response"
        )
    return found


def _order(path: Path) -> tuple[tuple[int, Any], ...]:
    """Return a sort key under which 2.jsonl comes before 10.jsonl: numbers in names are compared as numbers."""
    return tuple((1, int(p)) if p.isdigit() else (0, p) for p in re.split(r"(\d+)", str(path)))


def kind_of(path: Path, given: Mapping[str, str] | None = None) -> Kind | None:
    """Tell what kind of source a file is, from its name and columns; None if its name and text are those of no log.

    Raise UserError if a log or table cannot be read, is empty, or has neither scalars by step nor responses.
    """
    if path.name == STATE:
        return "state"
    if ".tfevents." in path.name:
        raise UserError(f"{path} is a file of TensorBoard, which is not read: name {STATE} or a CSV of its scalars")
    if not path.name.endswith(TABLES):
        printed = console(path) if path.name.endswith(CONSOLES) else ""
        if printed == "hugging face":
            raise UserError(
                f"{path} is console text of a Hugging Face trainer, which names no steps: {STATE} of the same run (in "
                "its output folder or a checkpoint's) has these scalars with their steps; name that file"
            )
        return "scalars" if printed else None
    present = column_names(path)
    names = {canonical(part) for name in present for part in (str(name), inner_name(str(name)))}
    if not names:
        raise UserError(f"{path} is empty: name a file with a row for each response")
    told = {ours for ours, theirs in (given or {}).items() if canonical(theirs) in names and ours in COLUMNS}
    if names & _MARKING or any(is_log_probability(str(name)) for name in present) or told & {"length", *MARKS}:
        return "table"
    if (told or step_column(present)) and not path.name.endswith(".parquet"):
        return "scalars"
    raise UserError(
        f"{path} has no column of steps, which scalars need, and none that tells of responses; it has "
        f"{', '.join(present[:20])}: name one with --columns step=COLUMN or, with a row for each response, "
        "log_ratio=COLUMN"
    )
