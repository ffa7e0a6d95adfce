"""The functions of ``import fspo`` that read a log (a run folder or a table of responses) and return DataFrames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from analysis.doctor.examine import examine
from analysis.importing.run import ImportOptions, import_run
from analysis.log.partition import find_partition
from analysis.log.ratio import known_ratio
from analysis.options import Options
from analysis.run import analyse_runs
from analysis.tables.files import read_tables
from fspo.gradlog import read_log, run_folder

Source = str | Path | pd.DataFrame


@contextmanager
def _run_folder(source: Source, columns: Mapping[str, str] | None) -> Iterator[Path]:
    """Yield ``source`` if it is a run folder, else a temporary run folder into which ``source`` was imported."""
    if not isinstance(source, pd.DataFrame) and (Path(source) / run_folder.GRADLOG).is_dir():
        yield Path(source)
        return
    with TemporaryDirectory() as place:
        run = Path(place) / "run"
        if isinstance(source, pd.DataFrame):
            table = Path(place) / "table.parquet"
            source.to_parquet(table, index=False)
            source = table
        import_run(source, run, ImportOptions(columns=columns or {}))
        yield run


def load_run(source: Source, columns: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Return the rows of a gradient log, one for each response and update; `fspo.gradlog.schema` explains the columns.

    Parameters
    ----------
    source : path or DataFrame
        A run folder; or another trainer's log, or a table with one row a response, which is imported
        (docs/diagnose.md).
    columns : mapping of str to str, optional
        For a column name of this project, as listed in `analysis.importing.names`, the name of the table's column that
        holds its values. Needed only where that list lacks the table's name.

    Raises
    ------
    UserError
        If nothing can be read.
    """
    with _run_folder(source, columns) as run:
        table = read_log(run).table
        return table.drop_columns([c for c in ("score_unit",) if c in table.column_names]).to_pandas()


def analyse(source: Source, columns: Mapping[str, str] | None = None, **options: Any) -> dict[str, pd.DataFrame]:
    """Return the tables of ``fspo analyse`` by name; `analysis.tables` explains them and their columns.

    Parameters
    ----------
    source, columns
        A run folder or a log to import, and the names of its columns, as for `load_run`. Tables of a run folder are
        also written to it.
    options
        Keyword arguments of `analysis.options.Options`: ``rules``, ``targets``, ``bins``, ``by``, ``on``, ...

    Raises
    ------
    UserError
        If the log or an option is bad.
    """
    wanted = Options(**options)
    with _run_folder(source, columns) as run:
        analyse_runs([run], wanted)
        return read_tables([run], find_partition(wanted.by), known_ratio(wanted.on))


def doctor(source: Source, columns: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Return the doctor's answers: a row for each check with the columns check, status, severity, summary and `fix`.

    Parameters
    ----------
    source, columns
        A run folder or a log to import, and the names of its columns, as for `load_run`.

    Raises
    ------
    UserError
        If there is nothing to examine.
    """
    with _run_folder(source, columns) as run:
        answers = [answer.to_dict() for answer in examine(run).answers]
    table = pd.DataFrame(answers, columns=["id", "status", "severity", "summary", "fix"])
    return table.rename(columns={"id": "check"})
