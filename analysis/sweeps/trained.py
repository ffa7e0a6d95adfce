"""The table of a trained sweep: what runs with one setting changed came to, beside the rule's own runs.

Seeds are the outer unit where there are at least two; with one, the interval is the run's own, and the note says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.claims.catalogue import final_reward
from analysis.claims.evidence import Estimate, combine, groups, select
from analysis.tables.files import read_tables
from fspo.base.files import whole_file

NAME = "trained_sweep"
QUANTITIES = {
    "reward": "mean held-out reward of the last fifth of the evaluations",
    "acceptance": "share of first-use responses in the band",
    "trend": "change of that share for each doubling of length",
    "lre_2": "LRE_2 of the band, bias-corrected (docs/theory.md section 3)",
    "cosine": "same-batch cosine of the clipped and the true update (section 5), one weight for each response",
}
"""Of the rule that trained, on its own log."""
Z = 1.959964


@dataclass(frozen=True)
class Entry:
    """One row to be: a rule, what was changed, the run folders (one for each seed), or why there are fewer or none."""

    rule: str
    setting: str
    value: str
    changed: str
    runs: tuple[Path, ...] = ()
    reason: str = ""


def trained_sweep(entries: Sequence[Entry]) -> pd.DataFrame:
    """A row for each entry: every quantity with ``_ci_low`` and ``_ci_high``, and a note.

    Parameters
    ----------
    entries : sequence of Entry
        Their runs must have been analysed with the same bins.

    Raises
    ------
    UserError
        If a run was not analysed.
    """
    rows = []
    for entry in entries:
        row: dict[str, Any] = {"setting": entry.setting, "value": entry.value, "rule": entry.rule}
        row |= {"changed": entry.changed, "runs": " ".join(run.name for run in entry.runs), "seeds": len(entry.runs)}
        found = _estimates(entry.runs) if entry.runs else dict.fromkeys(QUANTITIES, Estimate())
        for name, part in found.items():
            row |= {name: part.value, f"{name}_ci_low": part.low, f"{name}_ci_high": part.high}
        notes = [entry.reason, _note(found, len(entry.runs)) if entry.runs else ""]
        rows.append(row | {"note": "; ".join(filter(None, notes))})
    return pd.DataFrame(rows)


def _estimates(runs: Sequence[Path]) -> dict[str, Estimate]:
    tables = read_tables(runs)
    own = {"source": "trained", "use": "first"}
    band = {**own, "measure": "band", "subset": "all"}
    cosine = {**own, "bin": -1, "control": False, "weight": "sequence", "reference": "same_batch"}
    ends = ("ci_low", "ci_high")
    return {
        "reward": combine(held_out(tables["training"]), "estimate", *ends),
        "acceptance": combine(select(tables["acceptance"], **band, bin=-1), "estimate", *ends),
        "trend": combine(select(tables["trend"], **band), "slope_per_doubling", *ends),
        "lre_2": combine(select(tables["lre"], **band, norm="l2"), "estimate", *ends),
        "cosine": combine(select(tables["cosine"], **cosine), "estimate", *ends),
    }


def held_out(training: pd.DataFrame) -> pd.DataFrame:
    """Final held-out reward by seed, with an interval over the held-out prompts.

    The averaged evaluations are of the same prompts, so their standard errors are averaged too: right whatever their
    dependence.
    """
    rows = []
    for (run, seed), some in groups(select(training, phase="eval"), ["run", "seed"]):
        reward = select(some, name="eval/reward")
        error = select(some, name="eval/reward_stderr")
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
    """Write the table as CSV, whole."""
    table = trained_sweep(entries)
    with whole_file(path) as part:
        table.to_csv(part, index=False)
