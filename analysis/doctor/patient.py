"""Hold the data that the doctor's checks read: a run's rows as arrays and its metrics. Shares and means of the rows
have intervals over clusters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.doctor.findings import Evidence
from analysis.log.rows import numbered, repeated
from fspo.rules import Rule
from fspo.stats.clusters import MIN_CLUSTERS, ratios
from fspo.stats.intervals import CONFIDENCE, mean_interval, proportion_interval, sample_interval

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
MIN_LINES = 8
"""Least number of values in metrics.jsonl from which a metric is judged, where the log has no rows to judge by."""
MIN_ROWS = 50
"""Least number of rows from which the checks judge a share or a mean over them."""


class Rows:
    """Some or all rows of a gradient log, as columns (N,), NaN where unknown.

    If only some rows are selected, a column's values are copied when the column is first read.

    Parameters
    ----------
    columns : dict of arrays
        Columns of all rows.
    which : int array (N,), optional
        Index of the selected rows; by default all rows.
    """

    def __init__(self, columns: dict[str, NDArray[Any]], which: Ints | None = None) -> None:
        self.columns = columns
        self.which = which
        self._taken: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        if self.which is None:
            return self.columns[name]
        if name not in self._taken:
            self._taken[name] = self.columns[name][self.which]
        return self._taken[name]

    def __len__(self) -> int:
        return len(self.columns["log_ratio"]) if self.which is None else len(self.which)

    def take(self, which: NDArray[Any]) -> Rows:
        """Return the rows that a mask (N,) selects."""
        index = np.flatnonzero(which)
        return Rows(self.columns, index if self.which is None else self.which[index])

    def copy(self) -> Rows:
        """Return these rows as arrays that share no memory with the rows from which they were selected."""
        return Rows({name: self[name].copy() for name in self.columns})

    @staticmethod
    def joined(parts: Sequence[Rows]) -> Rows:
        """Join several ``Rows`` into one, in order."""
        return Rows({name: np.concatenate([part[name] for part in parts]) for name in parts[0].columns})

    def has(self, *names: str) -> bool:
        """Return whether every named column has a known value in some row."""
        return all(bool(np.isfinite(self[name]).any()) for name in names)

    @cached_property
    def S(self) -> Floats:
        """The log-ratio S of each row (N,), nats."""
        return self["log_ratio"]

    @cached_property
    def L(self) -> Floats:
        """The length of each row (N,), tokens; a length below 1 counts as 1."""
        return np.maximum(self["length"], 1.0)

    @cached_property
    def first(self) -> Mask:
        """Whether each row (N,) is the first row of its response."""
        return ~repeated(self["rollout"], self["response_id"])

    @cached_property
    def cluster(self) -> Ints:
        """The number of each row's cluster (N,). The clusters, pairs (rollout, prompt), are numbered 0, 1, 2, ..."""
        return numbered(self["rollout"], self["prompt_id"])

    @cached_property
    def clusters(self) -> int:
        """Number of clusters, that is of different pairs (rollout, prompt)."""
        return int(self.cluster.max()) + 1 if len(self) else 0

    def share(self, name: str, event: NDArray[Any], level: float = CONFIDENCE) -> Evidence:
        """Return the share of rows with ``event`` (N,) true, called ``name``, with an interval over clusters."""
        if len(self) == 0:
            return Evidence(name, math.nan, unit="share")
        zero = np.zeros(len(self), np.int64)
        r = ratios(np.asarray(event, np.float64), self.cluster, zero, 1, binary=True)
        low, high = proportion_interval(r.value, r.variance, r.count, r.clusters, level)
        return Evidence(name, float(r.value[-1]), float(low[-1]), float(high[-1]), "share")

    def mean(self, name: str, y: Floats, d: Floats | None = None, unit: str = "") -> Evidence:
        """Return sum(y) / sum(d) over the rows, or without d the mean of y (N,), with its interval over clusters."""
        if len(self) == 0:
            return Evidence(name, math.nan, unit=unit)
        r = ratios(y, self.cluster, np.zeros(len(self), np.int64), 1, d)
        low, high = mean_interval(r.value, r.variance, r.clusters)
        return Evidence(name, float(r.value[-1]), float(low[-1]), float(high[-1]), unit)


@dataclass(frozen=True)
class Patient:
    """The data of one run, as the doctor's checks read it.

    Attributes
    ----------
    rows : Rows
        Rows of the phase train, also those with numbers that are not finite.
    noise : Rows
        Rows of the phase noise (a rollout at learning rate 0).
    metrics : dict
        Name of a metric to its (rollout, value) pairs from the train lines of metrics.jsonl, in order.
    """

    path: Path
    rule: Rule | None
    aggregation: str | None
    rows: Rows
    noise: Rows
    logged: frozenset[str]
    metrics: dict[str, list[tuple[float, float]]]
    notes: tuple[str, ...] = field(default=())

    @cached_property
    def finite(self) -> Rows:
        """The training rows with a finite S and at least one token."""
        return self.rows.take(np.isfinite(self.rows.S) & (self.rows["length"] >= 1))

    @cached_property
    def moved(self) -> Rows:
        """The training rows with a finite S and at least one token that were logged after at least one update since
        their rollout.
        """
        return self.finite.take(self.finite["updates_since_rollout"] >= 1)

    @cached_property
    def unmoved(self) -> Rows:
        """The finite rows scored with the weights that gave the old log-probabilities (before any update, or at
        learning rate 0): only numerics make S differ from 0 there.
        """
        still = self.finite.take(self.finite["updates_since_rollout"] == 0)
        if len(self.noise) == 0:
            return still
        noise = self.noise.take(np.isfinite(self.noise.S) & (self.noise["length"] >= 1))
        return Rows({name: np.concatenate([still[name], noise[name]]) for name in self.rows.columns})

    @cached_property
    def responses(self) -> Rows:
        """The first row of each response."""
        return self.rows.take(self.rows.first)

    def band(self, rows: Rows) -> tuple[Floats, Floats] | None:
        """Return the edges of the band on S (N,), as logged or from the header's rule; None if there is no band."""
        if rows.has("lo", "hi") and not np.isinf(rows["lo"]).all():
            return rows["lo"], rows["hi"]
        rule = self.rule
        if rule is None or rule.level != "sequence" or rule.shape == "none" or rule.needs_stats:
            return None
        return rule.band(rows.L)

    def out_of_band(self, rows: Rows) -> Mask | None:
        """Return whether S of each row lies outside the band (N,); None if unknown.

        Under a rule on tokens: whether any token of the row lies outside its band.
        """
        band = self.band(rows)
        if band is not None:
            return (band[0] > rows.S) | (band[1] < rows.S)
        if "band_accept" in self.logged and self.rule is not None and self.rule.shape != "none":
            return rows["band_accept"] == 0
        return None

    def metric(self, name: str) -> Floats:
        """Return the values of a metric, in the order of metrics.jsonl; empty if it was not logged."""
        return np.array([value for _, value in self.metrics.get(name, [])])

    def over_lines(self, name: str, label: str) -> Evidence | None:
        """Return the mean of a metric that is a share, over the last quarter (at least ``MIN_LINES``) of its values.

        Return None if metrics.jsonl has fewer than ``MIN_LINES`` values of the metric. The interval takes the values as
        independent.
        """
        values = self.metric(name)
        if len(values) < MIN_LINES:
            return None
        values = values[-max(len(values) // 4, MIN_LINES) :]
        return Evidence(label, *sample_interval(values), "share")


def enough(rows: Rows) -> str:
    """Say why there are too few rows for a finding; return "" if there are enough."""
    if len(rows) < MIN_ROWS:
        return f"{len(rows)} rows, {MIN_ROWS} are wanted"
    if rows.clusters < MIN_CLUSTERS:
        return f"{rows.clusters} prompts, {MIN_CLUSTERS} are wanted"
    return ""
