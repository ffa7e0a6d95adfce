"""Make the table of a trained sweep: results of runs with one setting changed, beside the rule's unchanged runs.

With two seeds or more, intervals are over seeds. With one seed they are those within its run, which say nothing
about other seeds; the column ``note`` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import pandas as pd

from analysis.claims.evidence import groups, select
from analysis.claims.quantities import final_reward
from analysis.tables.columns import UNKNOWN, Interval, columns, frame
from analysis.tables.files import read_tables
from fspo.base.files import whole_file
from fspo.gradlog import metric_names as metric
from fspo.stats.intervals import sample_interval

NAME = "trained_sweep"
Z = 1.959964


class TrainedSweepRow(NamedTuple):
    """Results of training with one setting changed: one row for each rule and changed setting.

    Acceptance, trend, LRE and cosine are those of the rule that trained, on its run's own log. Written by
    ``paper_repro.py --sweep true``.
    """

    setting: Annotated[str, "setting that was changed", "text"]
    value: Annotated[str, "its value", "the setting's"]
    rule: Annotated[str, "preset that trained", "text"]
    changed: Annotated[str, "options of fspo.train that were changed", "text"]
    runs: Annotated[str, "names of the run folders, one for each seed", "text"]
    seeds: Annotated[int, "number of runs", "runs"]
    reward: Annotated[Interval, "mean held-out reward of the last fifth of the evaluations", "reward"] = UNKNOWN
    acceptance: Annotated[Interval, "share of first-use responses in the band", "share"] = UNKNOWN
    trend: Annotated[Interval, "change of that share for each doubling of length", "share for each doubling"] = UNKNOWN
    lre_2: Annotated[Interval, "LRE_2 of the band, bias-corrected (docs/theory.md section 3)", "share"] = UNKNOWN
    cosine: Annotated[
        Interval,
        "same-batch cosine of the clipped and the true update (section 5), one weight for each response",
        "cosine",
    ] = UNKNOWN
    note: Annotated[str, "what the intervals say nothing about, and what is missing", "text"] = ""


QUANTITIES = {c.name: c.meaning for c in columns(TrainedSweepRow) if c.name in TrainedSweepRow._fields[6:11]}
"""Columns of the trained sweep that hold an estimate of the trained rule, each with its meaning."""


@dataclass(frozen=True)
class Entry:
    """A row of the trained sweep: rule, changed setting, run folders (one a seed), and why runs are missing."""

    rule: str
    setting: str
    value: str
    changed: str
    runs: tuple[Path, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, and from how many seeds it comes."""

    value: float = np.nan
    low: float = np.nan
    high: float = np.nan
    seeds: int = 0


def combine(rows: pd.DataFrame, value: str) -> Estimate:
    """Return the mean of a column over the rows, one a seed, with Student's interval; of one seed its run's interval.

    Rows without a number are left out, and the column ``note`` says so.
    """
    names = [value, "ci_low", "ci_high"]
    numbers = rows.reindex(columns=names).to_numpy(np.float64)
    numbers = numbers[np.isfinite(numbers).all(axis=1)]
    if len(numbers) >= 2:
        return Estimate(*sample_interval(numbers[:, 0]), len(numbers))
    return Estimate(*map(float, numbers[0][:3]), seeds=1) if len(numbers) else Estimate()


def trained_sweep(entries: Sequence[Entry]) -> pd.DataFrame:
    """Return a row for each entry: every estimate with the ends of its interval, and a note.

    Parameters
    ----------
    entries : sequence of Entry
        Their runs must have been analysed with the same bins.

    Raises
    ------
    UserError
        If a run has no finished analysis.
    """
    rows = []
    for entry in entries:
        found = _estimates(entry.runs) if entry.runs else {}
        notes = [entry.reason, _note(found, len(entry.runs)) if entry.runs else ""]
        row = TrainedSweepRow(
            *(entry.setting, entry.value, entry.rule, entry.changed),
            *(" ".join(run.name for run in entry.runs), len(entry.runs)),
            **{name: Interval(part.value, part.low, part.high) for name, part in found.items()},
            note="; ".join(filter(None, notes)),
        )
        rows.append(row)
    return frame(TrainedSweepRow, rows)


def _estimates(runs: Sequence[Path]) -> dict[str, Estimate]:
    tables = read_tables(runs)
    own = {"source": "trained", "use": "first"}
    band = {**own, "measure": "band", "subset": "all"}
    cosine = {**own, "bin": -1, "control": False, "weight": "sequence", "reference": "same_batch"}
    return {
        "reward": combine(held_out(tables["training"]), "estimate"),
        "acceptance": combine(select(tables["acceptance"], **band, bin=-1), "estimate"),
        "trend": combine(select(tables["trend"], **band), "slope"),
        "lre_2": combine(select(tables["lre"], **band, norm="l2"), "estimate"),
        "cosine": combine(select(tables["cosine"], **cosine), "estimate"),
    }


def held_out(training: pd.DataFrame) -> pd.DataFrame:
    """Return the final held-out reward by seed, with an interval over the held-out prompts.

    The reward is the mean of several evaluations on the same prompts. Its standard error is the mean of theirs, which
    is never too small, however the evaluations depend on each other.
    """
    rows = []
    for (run, seed), some in groups(select(training, phase="eval"), ["run", "seed"]):
        reward = select(some, name=metric.HELD_OUT_REWARD)
        error = select(some, name=metric.HELD_OUT_STDERR)
        if len(reward):
            value, half = final_reward(reward), Z * final_reward(error) if len(error) else np.nan
            rows.append({"run": run, "seed": seed, "estimate": value, "ci_low": value - half, "ci_high": value + half})
    return pd.DataFrame(rows, columns=["run", "seed", "estimate", "ci_low", "ci_high"])


def _note(found: dict[str, Estimate], runs: int) -> str:
    gone = [name for name, part in found.items() if not np.isfinite(part.value)]
    fewer = [name for name, part in found.items() if 0 < part.seeds < runs]
    notes = ["one seed: intervals within the run, which say nothing about other seeds"] if runs == 1 else []
    if fewer:
        notes.append(f"not of all seeds: {', '.join(fewer)}")
    if gone:
        notes.append(f"too little data: {', '.join(gone)}")
    return "; ".join(notes)


def write_trained_sweep(path: Path, entries: Sequence[Entry]) -> None:
    """Write the table of the trained sweep as CSV; after a crash the old file is still there."""
    table = trained_sweep(entries)
    with whole_file(path) as part:
        table.to_csv(part, index=False)
