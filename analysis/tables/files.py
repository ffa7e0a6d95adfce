"""Write and read the tables RUN/analysis/NAME.csv and NAME.parquet. A file gets its name only when it is complete."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.log.partition import LENGTH, Partition
from analysis.log.ratio import UPDATE
from analysis.tables.acceptance import AcceptanceRow, LreRow, TrendRow
from analysis.tables.cosine import CosineRow
from analysis.tables.lemma import LemmaRow
from analysis.tables.moments import MomentRow, ScalingRow
from analysis.tables.noise_floor import NoiseRow
from analysis.tables.over_time import OverTimeRow, TrainingRow
from analysis.tables.population import PopulationRow
from analysis.tables.typed_rows import RunKey, columns, frame, names
from fspo.base.errors import UserError
from fspo.base.files import refuse_foreign, whole_file, write_text, writing
from fspo.gradlog.files import log_files
from fspo.gradlog.run_folder import ANALYSIS, SUMMARY, check_run

TABLES: dict[str, Any] = {
    "acceptance": AcceptanceRow,
    "lre": LreRow,
    "trend": TrendRow,
    "moments": MomentRow,
    "scaling": ScalingRow,
    "cosine": CosineRow,
    "lemma": LemmaRow,
    "population": PopulationRow,
    "noise_floor": NoiseRow,
    "over_time": OverTimeRow,
    "training": TrainingRow,
}
"""The tables of an analysed run, by name of the table's file: the named tuple whose fields are the table's columns."""

COLUMNS, DESCRIBED = "columns.csv", ["table", "column", "meaning", "unit"]
"""The file that says what each column of the tables is, and its own columns."""


def folder_name(partition: Partition = LENGTH, on: str = UPDATE.on) -> str:
    """Return the name of the folder of an analysis's tables: ``analysis``, or ``analysis-on-engine-by-entropy`` if the
    engine ratio is analysed and responses are binned by entropy."""
    ratio = "" if on == UPDATE.on else f"-on-{on}"
    return f"{ANALYSIS}{ratio}" + ("" if partition == LENGTH else f"-by-{partition.slug}")


def options_of(partition: Partition, on: str) -> str:
    """Return the options of ``fspo analyse`` that choose a partition and a log-ratio, for example " --by entropy"."""
    return ("" if on == UPDATE.on else f" --on {on}") + ("" if partition == LENGTH else f" --by {partition.column}")


def check_folder(folder: Path) -> None:
    """Refuse a folder in which the analysis would overwrite files that it did not write.

    Raise UserError if the folder holds such a file, or is itself a file."""
    ours = {SUMMARY: '"integrity"', "sweep.csv": "run,setting,value,rule", COLUMNS: ",".join(DESCRIBED)}
    ours |= {f"{name}.csv": ",".join(RunKey._fields) for name in TABLES}
    refuse_foreign(folder, ours, "fspo analyse")


def write_tables(folder: Path, tables: Mapping[str, pd.DataFrame], summary: Mapping[str, Any]) -> None:
    """Write each table as CSV and Parquet, columns.csv (what columns mean) and, when all are done, summary.json."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SUMMARY).unlink(missing_ok=True)
    for name, table in tables.items():
        with whole_file(folder / f"{name}.csv") as part:
            table.to_csv(part, index=False)
        with whole_file(folder / f"{name}.parquet") as part:
            table.to_parquet(part, index=False)
    described = [(name, c.name, c.meaning, c.unit) for name, row in TABLES.items() for c in columns(row)]
    with whole_file(folder / COLUMNS) as part:
        pd.DataFrame(described, columns=DESCRIBED).to_csv(part, index=False)
    write_json(folder / SUMMARY, summary)


def write_json(path: Path, content: Any) -> None:
    """Write JSON, with null for numbers that are not finite. If writing crashes, the file keeps its old content."""
    write_text(path, json.dumps(_plain(content), indent=2, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, np.ndarray)):
        return [_plain(v) for v in value]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return None if not math.isfinite(value) else float(value)
    return value if value is None or isinstance(value, str) else str(value)


class Analysis(NamedTuple):
    """The tables of an analysed run, by name, and its summary.json."""

    tables: dict[str, pd.DataFrame]
    summary: dict[str, Any]


def read_analysis(run: str | Path, partition: Partition = LENGTH, on: str = UPDATE.on) -> Analysis:
    """Read what ``fspo analyse`` wrote about a run, by one partition and log-ratio.

    Raise UserError, which says what to do, if the run does not exist or has no finished analysis, or if a file
    is damaged or lacks a column, as one of an earlier release may."""
    check_run(run)
    folder, fix = Path(run) / folder_name(partition, on), f"run `fspo analyse {run}{options_of(partition, on)}`"
    if not (folder / SUMMARY).is_file():
        # If the run folder holds no log at all, `log_files` raises a UserError with the advice for that.
        log_files(run)
        raise UserError(f"{run} has no finished analysis: {fix} first")
    summary = _read_summary(folder / SUMMARY, f"{fix} again")
    tables = {name: _read_table(folder / f"{name}.parquet", f"{fix} again") for name in TABLES}
    for name, table in tables.items():
        if lacking := [column for column in names(TABLES[name]) if column not in table]:
            raise UserError(f"table '{name}' of {run} has no column '{lacking[0]}': {fix} again")
    return Analysis(tables, summary)


def _read_table(file: Path, fix: str) -> pd.DataFrame:
    try:
        return pd.read_parquet(file)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UserError(f"{file} cannot be read: {fix} ({why})") from error


def _read_summary(file: Path, fix: str) -> dict[str, Any]:
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
        if not {"damage", "warnings"} <= summary.keys():
            raise ValueError("it is no summary of an analysis")
        return summary
    except (OSError, ValueError, AttributeError) as error:
        # `check_folder` takes a damaged file for another program's, which is not overwritten.
        fix = fix if isinstance(error, OSError) else f"move it away, then {fix}"
        raise UserError(f"{file} cannot be read: {fix} ({getattr(error, 'strerror', None) or error})") from error


def read_tables(
    runs: Iterable[str | Path], partition: Partition = LENGTH, on: str = UPDATE.on
) -> dict[str, pd.DataFrame]:
    """Read the tables of several analysed runs, and join for each table name the rows of all runs into one table.

    Raise UserError if a run has no finished analysis, or a file is damaged or lacks a column."""
    found = [read_analysis(run, partition, on).tables for run in runs]
    full = {name: [of[name] for of in found if len(of[name])] for name in TABLES}
    return {
        name: pd.concat(some, ignore_index=True) if some else frame(TABLES[name], []) for name, some in full.items()
    }
