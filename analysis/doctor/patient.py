"""What the checks look at: the rows of a run as plain arrays, its metrics, and intervals over its clusters."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.doctor.findings import Evidence
from fspo.rules import Rule
from fspo.stats.clusters import MIN_CLUSTERS, ratios
from fspo.stats.intervals import CONFIDENCE, mean_interval, proportion_interval, sample_interval

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
MIN_LINES = 8
"""Lines of metrics.jsonl that a scalar needs before it is judged, where there are no rows to look at."""
MIN_ROWS = 50
"""Below this many rows a share says too little to be a finding."""


class Rows:
    """Columns of some rows, each (N,); NaN where unknown. A selection copies a column when it is asked for.

    Parameters
    ----------
    columns : dict of arrays
        Of all rows.
    which : int array (N,), optional
        The rows that are meant; all by default.
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
        """The rows of a mask (N,)."""
        index = np.flatnonzero(which)
        return Rows(self.columns, index if self.which is None else self.which[index])

    def has(self, *names: str) -> bool:
        """Whether every one of these is known somewhere."""
        return all(bool(np.isfinite(self[name]).any()) for name in names)

    @cached_property
    def S(self) -> Floats:
        """log_ratio."""
        return self["log_ratio"]

    @cached_property
    def L(self) -> Floats:
        """length, at least 1."""
        return np.maximum(self["length"], 1.0)

    @cached_property
    def cluster(self) -> Ints:
        """Dense numbers of (rollout, prompt)."""
        return pd.factorize(self["cluster"])[0].astype(np.int64)

    @cached_property
    def clusters(self) -> int:
        """How many clusters there are."""
        return int(self.cluster.max()) + 1 if len(self) else 0

    def share(self, name: str, event: NDArray[Any], level: float = CONFIDENCE) -> Evidence:
        """Share of rows with an event (N,), with its interval."""
        if len(self) == 0:
            return Evidence(name, math.nan, unit="share")
        zero = np.zeros(len(self), np.int64)
        r = ratios(np.asarray(event, np.float64), self.cluster, zero, 1, binary=True)
        low, high = proportion_interval(r.value, r.variance, r.count, r.clusters, level)
        return Evidence(name, float(r.value[-1]), float(low[-1]), float(high[-1]), "share")

    def mean(self, name: str, y: Floats, d: Floats | None = None, unit: str = "") -> Evidence:
        """Ratio sum(y) / sum(d), or the mean of y (N,), with its interval."""
        if len(self) == 0:
            return Evidence(name, math.nan, unit=unit)
        r = ratios(y, self.cluster, np.zeros(len(self), np.int64), 1, d)
        low, high = mean_interval(r.value, r.variance, r.clusters)
        return Evidence(name, float(r.value[-1]), float(low[-1]), float(high[-1]), unit)


@dataclass(frozen=True)
class Patient:
    """One run.

    Attributes
    ----------
    rows : Rows
        Of phase train, finite or not.
    noise : Rows
        Of phase noise (a rollout at learning rate 0).
    metrics : dict
        Values of metrics.jsonl by name, train lines only, in order; each (rollout, value).
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
        """Train rows with a finite S and at least one token."""
        return self.rows.take(np.isfinite(self.rows.S) & (self.rows["length"] >= 1))

    @cached_property
    def moved(self) -> Rows:
        """Of these, rows that have seen an update since their rollout."""
        return self.finite.take(self.finite["updates_since_rollout"] >= 1)

    @cached_property
    def unmoved(self) -> Rows:
        """Rows at the parameters that the old log-probabilities were taken with: S there is numerics alone."""
        still = self.finite.take(self.finite["updates_since_rollout"] == 0)
        if len(self.noise) == 0:
            return still
        noise = self.noise.take(np.isfinite(self.noise.S) & (self.noise["length"] >= 1))
        return Rows({name: np.concatenate([still[name], noise[name]]) for name in self.rows.columns})

    @cached_property
    def responses(self) -> Rows:
        """Each response once, at its first row."""
        again = pd.Series(pairs(self.rows["rollout"], self.rows["response_id"])).duplicated().to_numpy()
        return self.rows.take(~again)

    def band(self, rows: Rows) -> tuple[Floats, Floats] | None:
        """Edges of the band on S (N,): as logged, or by the header's rule; None where there is none."""
        if rows.has("lo", "hi") and not np.isinf(rows["lo"]).all():
            return rows["lo"], rows["hi"]
        rule = self.rule
        if rule is None or rule.level != "sequence" or rule.shape == "none" or rule.needs_stats:
            return None
        return rule.band(rows.L)

    def out_of_band(self, rows: Rows) -> Mask | None:
        """Whether S lies outside the band (N,); for token rules whether any token does."""
        band = self.band(rows)
        if band is not None:
            return (band[0] > rows.S) | (band[1] < rows.S)
        if "band_accept" in self.logged and self.rule is not None and self.rule.shape != "none":
            return rows["band_accept"] == 0
        return None

    def metric(self, name: str) -> Floats:
        """Values of a metric, in order; empty if it was not logged."""
        return np.array([value for _, value in self.metrics.get(name, [])])

    def over_lines(self, name: str, label: str) -> Evidence | None:
        """Mean of a logged share over the last quarter of metrics.jsonl, lines taken as independent; None: too few."""
        values = self.metric(name)
        if len(values) < MIN_LINES:
            return None
        values = values[-max(len(values) // 4, MIN_LINES) :]
        return Evidence(label, *sample_interval(values), "share")


def enough(rows: Rows) -> str:
    """Why these rows are too few for a finding; "" if they are not."""
    if len(rows) < MIN_ROWS:
        return f"{len(rows)} rows, {MIN_ROWS} are wanted"
    if rows.clusters < MIN_CLUSTERS:
        return f"{rows.clusters} prompts, {MIN_CLUSTERS} are wanted"
    return ""


def pairs(a: Ints, b: Ints) -> Ints:
    """A number for each pair (N,), by hashing: sorting rows of two columns takes a hundred times as long."""
    first, second = pd.factorize(a)[0].astype(np.int64), pd.factorize(b)[0].astype(np.int64)
    return first * (int(second.max(initial=0)) + 1) + second
