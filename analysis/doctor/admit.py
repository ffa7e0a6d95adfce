"""Read the columns of a log for the doctor's checks, and keep rows for the checks that need many rows at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.doctor.patient import Patient, Rows
from analysis.log.rows import appearances
from analysis.log.usable import counted_updates
from analysis.rules.recompute import numbers
from fspo.gradlog import GradLog
from fspo.gradlog.metrics_file import MetricsFile
from fspo.gradlog.run_folder import METRICS, saved_config
from fspo.gradlog.schema import NO_ADVANTAGES
from fspo.rules import PRESETS, Rule

READ = (
    *("rollout", "step", "updates_since_rollout", "times_used", "phase", "policy_version", "behaviour_version"),
    *("prompt_id", "response_id", "length", "truncated", "log_ratio", "sum_sq_log_ratio", "k3_sum"),
    *("engine_log_ratio", "engine_sum_sq", "engine_k3_sum", "staleness_log_ratio"),
    *("behaviour_log_ratio", "behaviour_sum_sq", "behaviour_k3_sum", "total_sum_sq", "total_k3_sum"),
    *("reward", "advantage", "lo", "hi", "band_accept", "side", "multiplier", "weight", "drift"),
    *("correction_lo", "correction_hi", "correction_drift", "correction_side", "correction_weight"),
)
"""Columns of the gradient log that the doctor's checks read."""
IDS = ("rollout", "step", "prompt_id", "response_id")
KEPT = 500_000
"""Largest number of rows kept in memory. Of a log with more rows, most checks read evenly spread rollouts only."""


@dataclass
class Kept:
    """The rows for the checks that need many rows at once: all rows of evenly spread rollouts. At most ``most`` rows of
    phase train are kept, unless two rollouts alone have more.
    """

    path: Path
    rule: Rule | None
    aggregation: str | None
    imported: bool
    rows: int = 0
    held: int = 0
    stride: int = 1
    seen: int = 0  # number of rollouts that `add` has got so far, kept or not
    # For each kept rollout: its place in the order of all rollouts, its rows of phase train, its rows of phase noise.
    parts: list[tuple[int, Rows, Rows]] = field(default_factory=list)
    valued: set[str] = field(default_factory=set)
    short: int = 0
    most: int = KEPT

    def add(self, rows: Rows, noise: Rows, present: set[str]) -> None:
        """Add the rows of complete rollouts, and keep those of every ``stride``-th rollout.

        ``stride`` is 1 at first, and is doubled whenever more than ``most`` rows are kept. ``rows`` are of phase train,
        ``noise`` of phase noise; ``present`` holds the names of the columns in ``READ`` that the log has.
        """
        unknown = {"log_ratio", "advantage"} if self.imported else set()
        # An imported log has NaN where S or A is unknown, so a column of NaN counts as not logged; in any other log NaN
        # is a defect, which the check not_finite reports.
        self.valued |= {n for n in present if n not in unknown or np.isfinite(rows[n]).any()}
        self.short += int(np.sum(rows["length"] < 1))
        self.rows += len(rows)
        for number in np.unique(np.concatenate([rows["rollout"], noise["rollout"]])):
            if self.seen % self.stride == 0:
                part = rows.take(rows["rollout"] == number).copy(), noise.take(noise["rollout"] == number).copy()
                self.parts.append((self.seen, *part))
                self.held += len(part[0])
            self.seen += 1
            while self.held > self.most and len(self.parts) > 2:
                self.stride *= 2
                self.parts = [part for part in self.parts if part[0] % self.stride == 0]
                self.held = sum(len(part[1]) for part in self.parts)

    def patient(self, notes: Sequence[str]) -> Patient:
        """Return the input of the doctor's checks that need many rows at once: the rows that were kept of the run, and
        the run's metrics and rule."""
        notes = list(notes)
        if self.stride > 1:
            notes.append(
                f"{len(self.parts)} of {self.seen} rollouts, evenly spread, serve the checks that need rows together: "
                f"the log has {self.rows} rows"
            )
        if self.short:
            notes.append(
                f"{self.short} of {self.rows} rows have a length below 1: unknown, and left out where it matters"
            )
        metrics = _metrics(self.path, notes)
        none = Rows({n: np.zeros(0, np.int64 if n in IDS else np.float64) for n in READ if n != "phase"})
        train = Rows.joined([none, *(rows for _, rows, _ in self.parts)])
        noise = Rows.joined([none, *(rows for _, _, rows in self.parts)])
        logged = frozenset(self.valued)
        return Patient(self.path, self.rule, self.aggregation, train, noise, logged, metrics, tuple(notes))


def columns_of(log: GradLog, notes: list[str]) -> dict[str, NDArray[Any]]:
    """Return the columns of ``READ``, except phase, as float arrays (N,); a column that the log lacks is all NaN.

    The columns of ``IDS`` (numbers of rollout, step, prompt and response) are integers. Where the log lacks times_used
    or updates_since_rollout, they are counted from the rows' steps and responses.
    """
    plain = [name for name in READ if name != "phase" and name not in IDS]
    out: dict[str, NDArray[Any]] = {name: np.full(len(log), np.nan) for name in plain}
    out |= {name: log.column(name).astype(np.int64) for name in IDS} | numbers(log, plain)
    if log.metadata.get("advantage") == NO_ADVANTAGES:
        out["advantage"] = np.full(len(log), np.nan)
    if "times_used" not in log:
        out["times_used"] = appearances(out["rollout"], out["response_id"], out["step"]).astype(np.float64)
    if "updates_since_rollout" not in log:
        updates, by_rollout = counted_updates(out["rollout"], out["step"], out["log_ratio"])
        out["updates_since_rollout"] = updates.astype(np.float64)
        notes.append(
            "no column updates_since_rollout, one step a rollout: all rows count as after an update"
            if by_rollout
            else "no column updates_since_rollout: counted from each rollout's first step"
        )
    return out


def aggregation_of(path: Path, metadata: Mapping[str, Any]) -> str | None:
    """Find how the loss was averaged, from the log's header, config.yaml, or the preset that config.yaml names."""
    if isinstance(named := metadata.get("aggregation"), str):
        return named
    rule = saved_config(path).get("rule")
    if not isinstance(rule, dict):
        return None
    named = rule.get("aggregation")
    given = PRESETS.get(str(rule.get("preset")))
    return str(named) if named else given.aggregation if given else None


def _metrics(path: Path, notes: list[str]) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    file = MetricsFile(path)
    for record in file.of_phase("train"):
        rollout = record.get("rollout", math.nan)
        for name, value in record.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                found.setdefault(name, []).append((float(rollout), float(value)))
    if torn := len(file.read()[1]):
        notes.append(f"damaged: {torn} lines of {METRICS}")
    return found
