"""The rows of a log as the doctor's checks read them, what is kept of them in memory, and the metrics of the run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.doctor.issues import Evidence
from analysis.importing.watch import TokenDigest
from analysis.log.rows import appearances, numbered, repeated
from analysis.log.usable import counted_updates
from analysis.rules.recompute import numbers
from fspo.gradlog import GradLog
from fspo.gradlog.metrics_file import MetricsFile
from fspo.gradlog.run_folder import METRICS
from fspo.gradlog.schema import NO_ADVANTAGES
from fspo.rules import Rule
from fspo.stats.clusters import MIN_CLUSTERS, Floats, Ints, Mask, ratios
from fspo.stats.intervals import CONFIDENCE, mean_interval, proportion_interval

MIN_ROWS = 50  # least number of rows from which the checks judge a share or a mean over them
READ = (  # columns of the gradient log that the doctor's checks read
    *("rollout", "step", "updates_since_rollout", "times_used", "policy_version", "behaviour_version"),
    *("prompt_id", "response_id", "length", "truncated", "log_ratio", "sum_sq_log_ratio", "k3_sum"),
    *("engine_log_ratio", "engine_sum_sq", "engine_k3_sum", "staleness_log_ratio"),
    *("behaviour_log_ratio", "behaviour_sum_sq", "behaviour_k3_sum", "total_sum_sq", "total_k3_sum"),
    *("reward", "advantage", "lo", "hi", "band_accept", "side", "multiplier", "weight", "drift"),
    *("correction_lo", "correction_hi", "correction_drift", "correction_side", "correction_weight"),
)
IDS = ("rollout", "step", "prompt_id", "response_id")
KEPT = 500_000  # largest number of rows kept in memory: of more, most checks read evenly spread rollouts only


class Rows:
    """Some or all rows of a gradient log, as columns (N,), NaN where unknown; a column is copied whenever it is read.
    ``columns`` holds those of all rows, and ``which`` is the index (N,) of the selected rows, by default all."""

    def __init__(self, columns: dict[str, NDArray[Any]], which: Ints | None = None) -> None:
        self.columns = columns
        self.which = np.arange(len(columns["log_ratio"])) if which is None else which

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name][self.which]

    def __len__(self) -> int:
        return len(self.which)

    def take(self, which: NDArray[Any]) -> Rows:
        """Return the rows that ``which`` selects: a mask (N,), or an array of indices."""
        return Rows(self.columns, self.which[which])

    def copy(self) -> Rows:
        """Return the same rows as arrays that share no memory with the rows from which they were selected."""
        return Rows({name: self[name] for name in self.columns})

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
    def lag(self) -> Floats:
        """The policy lag of each row (N,): updates between the weights that sampled it and the old weights.

        Without policy_version a lower bound, in versions: the newest behaviour_version of the row's and all earlier
        rollouts, less the row's own. NaN in all rows if no such bound is above 0, or the log has one rollout alone."""
        names = ("behaviour_version", "policy_version", "updates_since_rollout")
        version, policy, since = (np.where(np.isfinite(x), x, np.nan) for x in map(self.__getitem__, names))
        exact = policy - since
        if np.isfinite(exact - version).any() or not np.isfinite(version).any():
            return exact - version
        number = numbered(self["rollout"])
        newest = np.full(int(number.max()) + 1, -np.inf)
        np.maximum.at(newest, number, np.nan_to_num(version, nan=-np.inf))
        least = np.maximum.accumulate(newest)[number] - version
        return least if (least > 0).any() and len(newest) > 1 else np.full(len(self), np.nan)

    @cached_property
    def first(self) -> Mask:
        """Whether each row (N,) is the first row of its response."""
        return ~repeated(self["rollout"], self["response_id"])

    @cached_property
    def cluster(self) -> Ints:
        """The number of each row's cluster (N,), a pair (rollout, prompt), counted from 0."""
        return numbered(self["rollout"], self["prompt_id"])

    @cached_property
    def clusters(self) -> int:
        """Number of clusters."""
        return int(self.cluster.max()) + 1 if len(self) else 0

    def mean(
        self, name: str, y: Floats | Mask, d: Floats | None = None, unit: str = "", level: float = CONFIDENCE
    ) -> Evidence:
        """Return the mean of y (N,) (of a mask: the share of True), or with d (N,) the ratio sum(y) / sum(d), as
        evidence called ``name`` in the unit ``unit``, with an interval over clusters of level ``level``."""
        share = y.dtype == bool
        unit = "share" if share else unit
        r = ratios(y, self.cluster, np.zeros(len(self), np.int64), 1, d, binary=share)
        of_mean = mean_interval(r.value, r.variance, r.clusters, level)
        low, high = proportion_interval(r.value, r.variance, r.count, r.clusters, level) if share else of_mean
        return Evidence(name, float(r.value[-1]), float(low[-1]), float(high[-1]), unit)


@dataclass
class Kept:
    """The rows of phase train that the checks read: all rows of every ``stride``-th rollout. ``stride`` is doubled
    whenever more than ``most`` rows are kept, unless two rollouts alone have more.

    Of each rollout, kept or not, ``rollouts`` has its number, how many rows and how many steps it has, its first and
    last step, its least and greatest response id; ``parts`` has the rows of each kept rollout, and its place in the
    order of all. ``valued`` names the columns that have a value."""

    imported: bool  # whether the log was made from another trainer's
    most: int = KEPT
    rows: int = 0  # kept or not
    short: int = 0  # rows, kept or not, with a length below 1
    rollouts: list[tuple[int, ...]] = field(default_factory=list)
    stride: int = 1
    parts: list[tuple[int, Rows]] = field(default_factory=list)
    valued: set[str] = field(default_factory=set)

    def add(self, log: GradLog) -> list[str]:
        """Add the rows of ``log`` (complete rollouts, later than those added before). Return what the columns of the
        log do not say, as sentences."""
        columns, lacking = columns_of(log)
        rows = Rows(columns)
        # An imported log has NaN where S or A is unknown, so a column of NaN counts as not logged; in any other log NaN
        # is a defect, which the check not_finite reports.
        unknown = {name for name in ("log_ratio", "advantage") if self.imported and not rows.has(name)}
        self.valued |= {name for name in READ if name in log} - unknown
        self.short += int(np.sum(rows["length"] < 1))
        self.rows += len(rows)
        for number in np.unique(rows["rollout"]).tolist():
            here = rows.take(rows["rollout"] == number)
            step, response = np.unique(here["step"]), here["response_id"]
            if len(self.rollouts) % self.stride == 0:
                self.parts.append((len(self.rollouts), here.copy()))
            self.rollouts.append((number, len(here), len(step), step[0], step[-1], response.min(), response.max()))
        while len(self.parts) > 2 and sum(len(part) for _, part in self.parts) > self.most:
            self.stride *= 2
            self.parts = [part for part in self.parts if part[0] % self.stride == 0]
        return lacking

    def joined(self) -> Rows:
        """Return the kept rows."""
        kept = [part.columns for _, part in self.parts]
        none = {name: np.zeros(0, np.int64 if name in IDS else np.float64) for name in READ}
        return Rows({name: np.concatenate([no, *(part[name] for part in kept)]) for name, no in none.items()})

    def notes(self) -> list[str]:
        """Return sentences on which rows are kept, and which have no length."""
        notes = []
        if self.stride > 1:
            kept = f"{len(self.parts)} of {len(self.rollouts)} rollouts, evenly spread"
            notes.append(f"{kept}, are examined, because the log has {self.rows} rows")
        if self.short:
            notes.append(f"{self.short} of {self.rows} rows have no length: left out where it matters")
        return notes


def columns_of(log: GradLog) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Return the columns ``READ`` of a log, by name, as float arrays (N,), those of ``IDS`` as integers. A column that
    the log lacks is NaN in all rows.

    times_used and updates_since_rollout are counted from steps and responses where the log lacks them. The second value
    holds a sentence on how the updates were counted, if they were."""
    plain = [name for name in READ if name not in IDS]
    out: dict[str, NDArray[Any]] = {name: np.full(len(log), np.nan) for name in plain}
    out |= {name: log.column(name).astype(np.int64) for name in IDS} | numbers(log, plain)
    if log.metadata.get("advantage") == NO_ADVANTAGES:
        out["advantage"] = np.full(len(log), np.nan)
    if "times_used" not in log:
        out["times_used"] = appearances(out["rollout"], out["response_id"], out["step"]).astype(np.float64)
    if "updates_since_rollout" in log:
        return out, []
    updates, by_rollout = counted_updates(*(out[n] for n in ("rollout", "step", "log_ratio", "times_used")))
    out["updates_since_rollout"] = updates.astype(np.float64)
    how = ": counted from each rollout's first step"
    if by_rollout:
        how = ", one step a rollout: the log does not say whether rows are of before or after their update, and they "
        how += "are analysed as of after it"
    return out, [f"no column updates_since_rollout{how}"]


def metrics_of(path: Path, notes: list[str]) -> dict[str, list[tuple[float, float]]]:
    """Return by name each metric's (rollout, value) pairs from the lines of metrics.jsonl of phase train in the run
    folder ``path``; add to ``notes`` how many lines cannot be read, if any."""
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


@dataclass(frozen=True)
class Patient:
    """The data of one run that the doctor's checks read. None stands for what is unknown."""

    rule: Rule | None  # the clip rule that trained
    aggregation: str | None  # how the loss is averaged
    rows: Rows  # of the phase train, also those with numbers that are not finite
    logged: frozenset[str]  # names of columns that have a value
    metrics: dict[str, list[tuple[float, float]]]  # (rollout, value) pairs of each metric (`metrics_of`)
    tokens: TokenDigest  # what an import noticed about the tokens of another trainer's log

    @cached_property
    def finite(self) -> Rows:
        """The training rows with a finite S and at least one token."""
        return self.rows.take(np.isfinite(self.rows.S) & (self.rows["length"] >= 1))

    @cached_property
    def moved(self) -> Rows:
        """The rows of `finite` that were logged after at least one update since their rollout."""
        return self.finite.take(self.finite["updates_since_rollout"] >= 1)

    @cached_property
    def unmoved(self) -> Rows:
        """The rows of `finite` before any update since their rollout: only numerical error makes S differ from 0."""
        return self.finite.take(self.finite["updates_since_rollout"] == 0)

    @cached_property
    def responses(self) -> Rows:
        """The first row of each response, whether its S is finite or not."""
        return self.rows.take(self.rows.first)

    def band(self, rows: Rows) -> tuple[Floats, Floats] | None:
        """Return the lower and the upper edge of the band on S for each row, (N,) both, nats, as logged or else
        computed from the header's rule; None if neither gives edges."""
        if rows.has("lo", "hi") and not np.isinf(rows["lo"]).all():
            return rows["lo"], rows["hi"]
        if (rule := self.rule) is None or rule.level != "sequence" or rule.shape == "none" or rule.needs_stats:
            return None
        return rule.band(rows.L)

    def out_of_band(self, rows: Rows) -> Mask | None:
        """Return for each row (N,) whether S, or a token under a rule on tokens, is out of the band; None: unknown."""
        if band := self.band(rows):
            return (band[0] > rows.S) | (band[1] < rows.S)
        if "band_accept" in self.logged and self.rule is not None and self.rule.shape != "none":
            return rows["band_accept"] == 0
        return None

    def metric(self, name: str) -> Floats:
        """Return the values of the metric called ``name``, in the order of metrics.jsonl; empty without any."""
        return np.array([value for _, value in self.metrics.get(name, [])])


def enough(rows: Rows) -> str:
    """Return a sentence that says why there are too few rows to find an error, or "" if there are enough."""
    if len(rows) < MIN_ROWS:
        return f"{len(rows)} rows, {MIN_ROWS} are wanted"
    if rows.clusters < MIN_CLUSTERS:
        return f"{rows.clusters} prompts, {MIN_CLUSTERS} are wanted"
    return ""
