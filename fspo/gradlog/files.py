"""Files of a gradient log: names, versions, row groups, and reading of all files and row groups that are undamaged.

A file that cannot be read, or whose schema has another major version, is left out, and a message names the file and the
reason. If only a part of a file is broken, its undamaged row groups are read. Until rows are asked for, only the files'
footers are read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fspo.base.errors import UserError
from fspo.gradlog import schema as gradschema
from fspo.gradlog.run_folder import GRADLOG, METRICS

if TYPE_CHECKING:
    import pyarrow as pa

NAME = re.compile(r"rollout-(\d{8,})-rank-(\d{4,})\.parquet")
FEW_VALUES = tuple(name for name, column in gradschema.LOG_COLUMNS.items() if column.kind == "string")
"""The log's columns of text, which have few distinct values: they are read as dictionary codes to save memory."""


def file_name(rollout: int, rank: int) -> str:
    """Return the name of the log file that the process number ``rank`` writes of one rollout."""
    return f"rollout-{rollout:08d}-rank-{rank:04d}.parquet"


def log_paths(run: str | Path) -> list[Path]:
    """List the paths of a run's log files by rollout, then process, including files that cannot be read."""
    folder = Path(run) / GRADLOG
    # glob would pass over a folder that may not be read
    paths = [path for path in folder.iterdir() if NAME.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(paths, key=lambda path: (len(path.name), path.name))


def rollout_of(path: Path) -> int:
    """Return the number of the rollout in the name of a log file; raise ValueError for another name."""
    match = NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path.name} is no name of a log file")
    return int(match[1])


@dataclass(frozen=True)
class Group:
    """One row group (a part of a Parquet file that can be read alone) of a log file.

    Attributes
    ----------
    rows : int
        Number of rows in the group.
    first, last : int
        Least and greatest number of a rollout in the group: from the file's statistics, else from the file's name.
    nulls : dict of str to int
        Number of null values in each column of which the file has statistics.
    """

    rows: int
    first: int
    last: int
    nulls: dict[str, int]


@dataclass(frozen=True)
class LogFile:
    """A log file as its footer describes it, without its rows: path, names of columns, header (``metadata``) and row
    groups."""

    path: Path
    columns: frozenset[str]
    metadata: dict[str, Any]  # plain values from the file's header: the ``metadata`` passed to GradLogWriter
    groups: tuple[Group, ...]

    @property
    def rows(self) -> int:
        """Number of rows in the file, those of all phases (such as "train" and "noise") together."""
        return sum(group.rows for group in self.groups)


def broken(path: Path, error: BaseException) -> str:
    """Return one line that names the file ``path``, which cannot be read, and the reason, from ``error``."""
    text = str(error).splitlines()
    return f"{path.name}: {text[0] if text else type(error).__name__}"


def unreadable(folder: Path, damage: str) -> UserError:
    """Make the error for a log in ``folder`` of which no file can be read; ``damage`` is the reason for one file."""
    return UserError(f"no readable file in {folder}: {damage}; copy the log again, or name another run")


def log_files(run: str | Path, rollouts: tuple[int, int] | None = None) -> tuple[list[LogFile], list[str]]:
    """Return the readable log files of a run, sorted by name, and one message for each file that cannot be read.

    Parameters
    ----------
    rollouts : (first, last), optional
        Inclusive range of the rollouts in the files' names.

    Raises
    ------
    UserError
        If there is no file, or none that can be read.
    """
    import pyarrow as pa

    folder = Path(run) / GRADLOG
    paths = [p for p in log_paths(run) if rollouts is None or rollouts[0] <= rollout_of(p) <= rollouts[1]]
    if not paths:
        if folder.parent.name == GRADLOG and log_paths(folder.parent.parent):
            raise UserError(f"{run} is the log alone: give the run folder, {folder.parent.parent}")
        if (Path(run) / METRICS).is_file():
            raise UserError(f"{run} holds scalars, and no row for a response: `fspo doctor {run}` examines scalars")
        raise UserError(
            f"no gradient log under {folder}: give a run folder, or make one of another log with `fspo import {run}`"
        )
    files: list[LogFile] = []
    damage: list[str] = []
    for path in paths:
        try:
            files.append(_footer(path))
        except (UserError, pa.ArrowException, OSError, ValueError) as error:
            damage.append(broken(path, error))
    if not files:
        raise unreadable(folder, damage[0])
    return files, damage


def _footer(path: Path) -> LogFile:
    import pyarrow.parquet as pq

    if not path.is_file():  # to open a pipe would wait for a writer for ever
        raise UserError("it is no regular file; remove it from the folder")
    with pq.ParquetFile(path) as file:
        found, names = file.metadata, file.schema_arrow.names
        if twice := {name for name in names if names.count(name) > 1}:
            raise UserError(f"its column {min(twice)} stands twice; copy the log again")
        header = found.metadata or {}
        _check_version(header)
        run = json.loads(header.get(b"fspo.run", b"{}"))
        if not isinstance(run, dict):
            raise UserError("its header fspo.run is no JSON object; remove the file from the folder")
        places = {found.schema.column(i).path.split(".")[0]: i for i in range(found.num_columns)}
        places |= {found.schema.column(i).path: i for i in range(found.num_columns)}
        groups = tuple(_group(found.row_group(g), places, path) for g in range(found.num_row_groups))
    return LogFile(path, frozenset(names), run, groups)


def _group(group: Any, places: Mapping[str, int], path: Path) -> Group:
    nulls: dict[str, int] = {}
    match = NAME.fullmatch(path.name)
    first = last = int(match[1]) if match else 0
    for name, place in places.items():
        statistics = group.column(place).statistics
        if statistics is None:
            continue
        if statistics.has_null_count:
            nulls[name] = int(statistics.null_count)
        if name == "rollout" and statistics.has_min_max:
            first, last = int(statistics.min), int(statistics.max)
    return Group(int(group.num_rows), first, last, nulls)


def _check_version(header: Mapping[bytes, bytes]) -> None:
    text = header.get(b"fspo.schema", b"").decode()
    if not re.fullmatch(r"\d+\.\d+", text):
        raise UserError("it is no gradient log (its header has no fspo.schema); remove it from the folder")
    major = gradschema.SCHEMA_VERSION[0]
    if int(text.split(".")[0]) != major:
        raise UserError(f"schema {text}; this fspo reads {major}.x: use the release that wrote it")


def read_rows(
    file: LogFile, columns: Sequence[str] | None, phases: Iterable[str] | None, groups: Sequence[int] | None = None
) -> tuple[list[pa.Table], list[str]]:
    """Read rows of one log file; return a list of tables and a list of messages on what cannot be read.

    There is one table for each row group that can be read, and one message for each that cannot, or one for the whole
    file if it cannot be opened. The tables do not carry the file's header.

    Parameters
    ----------
    columns : sequence of str, optional
        Columns to read, if the file has them; ``phase`` is read too. All columns by default.
    phases : iterable of str or None
        Phases whose rows are kept (a null phase counts as "train"); None keeps all rows.
    groups : sequence of int, optional
        Numbers of the row groups to read; all by default.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = None if columns is None else [c for c in dict.fromkeys([*columns, "phase"]) if c in file.columns]
    numbers = list(range(len(file.groups))) if groups is None else list(groups)
    codes = [c for c in FEW_VALUES if c in file.columns and (wanted is None or c in wanted)]
    damage: list[str] = []
    tables: list[pa.Table] = []
    errors = (pa.ArrowException, OSError, ValueError)
    try:
        with pq.ParquetFile(file.path, read_dictionary=codes, page_checksum_verification=True) as source:
            for some in [[number] for number in numbers] or [[]]:  # no row group: a table without rows
                try:
                    tables.append(source.read_row_groups(some, columns=wanted, use_threads=False))
                except errors as error:
                    lost = f"row group {some[0]}, {file.groups[some[0]].rows} rows lost"
                    damage.append(f"{broken(file.path, error)} ({lost})")
    except errors as error:
        damage.append(f"{broken(file.path, error)} ({sum(file.groups[g].rows for g in numbers)} rows lost)")
    chosen = None if phases is None else list(phases)
    return [_of_phases(table, chosen).replace_schema_metadata(None) for table in tables], damage


def _of_phases(table: pa.Table, phases: list[str] | None) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    if phases is None or "phase" not in table.column_names:
        return table
    kept = table["phase"]
    if pa.types.is_dictionary(kept.type):
        seen = {value for chunk in kept.chunks for value in chunk.dictionary.to_pylist()}
        if seen <= set(phases) and ("train" in phases or not kept.null_count):
            return table
        kept = kept.cast(pa.string())
    kept = pc.is_in(pc.fill_null(kept, "train"), pa.array(phases))  # type: ignore[attr-defined]
    return table.filter(kept)
