"""The rows of one run that the diagnostics use, as plain arrays.

Only rows with a finite S and at least one update since their rollout (before that S = 0). First-use rows
(``times_used`` = 0) and trained-on rows are never mixed (docs/theory.md section 1, "First use").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from analysis.partition import LENGTH, Partition, coordinates
from fspo.errors import UserError
from fspo.gradlog import GradLog, read_log, step_drift_stats
from fspo.rules import DriftStats, Rule

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
USES = ("first", "reused")
SUBSETS = ("all", "nonzero")
ROW_COLUMNS = (
    *("rollout", "step", "updates_since_rollout", "times_used", "prompt_id", "response_id", "length", "log_ratio"),
    *("reward", "advantage", "sum_sq_log_ratio", "k3_sum", "drift", "band_accept", "side", "multiplier", "weight"),
    *("lo", "hi"),
    *("score_status", "rule"),
)


@dataclass(frozen=True)
class RowDrift:
    """The drift statistics of each row's own minibatch, arrays (N,) where ``DriftStats`` has numbers.

    ``Rule.band`` reads only ``k3`` and ``sigma2`` and broadcasts, so all minibatches go through one call.
    """

    k3: Floats
    sigma2: Floats
    by_sign: Floats

    def signed(self, A: Floats) -> Floats:
        """Each row's mean log-ratio per token over its minibatch's responses with the sign of its A (N,)."""
        del A  # the rows' own advantages are in it
        return self.by_sign


@dataclass(frozen=True)
class Rows:
    """Arrays (N,), one entry a response and update."""

    rollout: Ints
    step: Ints
    used: Ints
    updates: Ints  # since the rollout
    length: Floats
    S: Floats
    A: Floats
    cluster: Ints  # (rollout, prompt_id), numbered
    prompt: Ints
    reward: Floats  # NaN if not logged
    leave_one_out: Floats  # reward minus the mean of the prompt's other responses; NaN if there is none
    k3_sum: Floats  # of the response, nats; NaN if not logged
    k3: Floats  # per token of the row's minibatch
    sigma2: Floats
    k3_lagged: Floats  # of the minibatch before
    sigma2_lagged: Floats
    by_sign: Floats  # mean log-ratio per token of the minibatch's rows with the same sign of A; 0 where A = 0
    by_sign_lagged: Floats
    lo: Floats  # edges as logged; NaN if not logged
    hi: Floats
    drift: Floats  # as logged; NaN if not logged
    side: Ints
    multiplier: Floats
    weight: Floats
    band_accept: NDArray[np.bool_]
    response: Ints  # (rollout, step, response) names a row
    coordinate: Floats  # what the bins are made of: the length, or another partition's
    trend: Floats  # abscissa of trends: log2 of the length (analysis.partition)

    def __len__(self) -> int:
        return len(self.S)

    def take(self, which: NDArray[Any]) -> Rows:
        """The rows of a mask or index."""
        return Rows(**{f.name: getattr(self, f.name)[which] for f in fields(self)})

    def use(self, use: str) -> Rows:
        """First-use or trained-on rows, or "all"."""
        if use == "all":
            return self
        return self.take(self.used == 0 if use == "first" else self.used > 0)

    def subset(self, subset: str) -> Rows:
        """All rows, or those with A != 0 ("nonzero")."""
        return self if subset == "all" else self.take(self.A != 0)

    def drift_stats(self, rule: Rule) -> DriftStats:
        """What ``rule`` centres its band on in each row's minibatch."""
        lagged = rule.drift_source == "lagged"
        now = self.k3, self.sigma2, self.by_sign
        return cast(
            DriftStats, RowDrift(*((self.k3_lagged, self.sigma2_lagged, self.by_sign_lagged) if lagged else now))
        )

    def logged_stats(self, rule: Rule) -> DriftStats:
        """Statistics that give back the logged drift of the rule that trained."""
        sigma2 = 2 * self.drift if rule.drift == "tilted" else -2 * self.drift
        return cast(DriftStats, RowDrift(-self.drift, sigma2, self.drift))


@dataclass(frozen=True)
class Run:
    """One run: its rows, the rule that trained and what was found wrong while reading."""

    path: Path
    name: str
    seed: float  # NaN if unknown
    trained_rule: str
    rule: Rule | None
    rows: Rows
    logged: frozenset[str]  # columns that the log has
    counts: dict[str, int]
    damage: list[str]
    warnings: list[str]
    score_options: dict[str, Any] = field(default_factory=dict)  # how scores were taken, from the log's header
    partition: Partition = LENGTH

    @property
    def clusters(self) -> int:
        """Number of (rollout, prompt)."""
        return int(self.rows.cluster.max()) + 1

    @property
    def streamed(self) -> bool:
        """Whether ``rows`` is a sample and the whole log is read window by window."""
        return False

    def windows(self, size: int) -> Iterator[tuple[int, Rows]]:
        """The rows of each window of ``size`` successive rollouts, with the window's first rollout."""
        window = windows(self.rows.rollout, size)
        order = np.argsort(window, kind="stable")
        starts = np.flatnonzero(np.diff(window[order], prepend=-1))
        for first, at in zip(window[order][starts].tolist(), np.split(order, starts[1:]), strict=True):
            yield int(first), self.rows.take(np.sort(at))

    @property
    def key(self) -> dict[str, Any]:
        """The key columns of every table."""
        return {"run": self.name, "trained_rule": self.trained_rule, "seed": self.seed}


def load_run(path: str | Path, partition: Partition = LENGTH) -> Run:
    """Read a run folder's gradient log, without sketches.

    Parameters
    ----------
    path : path
    partition : Partition
        What the bins will be made of; rows without a value are left out and counted.

    Raises
    ------
    UserError
        If the folder has no readable log, no row that can be analysed, or not the partition's column.
    """
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"{path} is no folder: give the run folder that holds gradlog/")
    log = read_log(path, columns=[*ROW_COLUMNS, partition.column])
    warnings: list[str] = []
    S, length = log.column("log_ratio"), log.column("length")
    good = np.isfinite(S) & np.isfinite(log.column("advantage")) & (length >= 1)
    counts = {"rows": len(log), "rows_not_finite": int(np.sum(~good))}
    if counts["rows_not_finite"]:
        warnings.append(f"{counts['rows_not_finite']} rows left out: S or A is not finite, or the length is below 1")
        log = log.where(good)
    names = pd.MultiIndex.from_arrays([log.column(c).astype(np.int64) for c in ("rollout", "step", "response_id")])
    repeated = np.asarray(names.duplicated())
    if repeated.any():
        counts["rows_repeated"] = int(repeated.sum())
        warnings.append(f"{counts['rows_repeated']} rows left out: the same response twice in one update")
        log = log.where(~repeated)
    rows, updates = _rows(log, warnings, partition)
    if without := int(np.sum(~np.isfinite(rows.coordinate))):
        counts["rows_without_coordinate"] = without
        warnings.append(f"{without} rows left out: no value of {partition.name}")
    moved = (updates >= 1) & np.isfinite(rows.coordinate)
    counts |= {"rows_after_an_update": int(moved.sum()), "rows_before_an_update": int((updates < 1).sum())}
    rows = rows.take(moved)
    if len(rows) == 0:
        raise UserError(
            f"{path}: no row with an update since its rollout, so S is 0 everywhere; "
            "train with more than one minibatch or epoch a rollout"
        )
    if not np.any(rows.S != 0):
        warnings.append("S is 0 in every row: old log-probabilities were taken with the new weights, or nothing moved")
    counts |= {
        "rows_first_use": int(np.sum(rows.used == 0)),
        "rows_reused": int(np.sum(rows.used > 0)),
        "rows_nonzero_advantage": int(np.sum(rows.A != 0)),
    }
    if "score_status" in log:
        counts["scores_failed"] = int(np.sum(log.column("score_status") == "failed"))
        if counts["scores_failed"]:
            warnings.append(f"{counts['scores_failed']} scores failed when they were taken: left out of the cosines")
    rule = log.rule if "rule" in log.metadata else None
    label = rule.label if rule else str(log.column("rule")[0]) if "rule" in log else "unknown"
    if rule is None:
        warnings.append("the log's header names no rule: the rows of the rule that trained are left out")
    logged = frozenset(c for c in ROW_COLUMNS if c in log)
    scores = log.metadata.get("scores")
    options = scores if isinstance(scores, dict) else {}
    name = path.resolve().name
    return Run(
        path, name, _seed(path, log), label, rule, rows, logged, counts, log.damage, warnings, options, partition
    )


def _rows(log: GradLog, warnings: list[str], partition: Partition) -> tuple[Rows, Ints]:
    n = len(log)

    def column(name: str, default: Any, dtype: Any) -> NDArray[Any]:
        if name not in log:
            return np.full(n, default, dtype)
        return log.column(name).astype(dtype)

    rollout, step = column("rollout", 0, np.int64), column("step", 0, np.int64)
    response = column("response_id", 0, np.int64)
    keys = np.stack([rollout, column("prompt_id", 0, np.int64)], axis=1)
    cluster = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    if "updates_since_rollout" in log:
        updates = column("updates_since_rollout", 0, np.int64)
    else:
        warnings.append("no column updates_since_rollout: counted from each rollout's first step")
        number, code = np.unique(rollout, return_inverse=True)
        first = np.full(len(number), np.iinfo(np.int64).max)
        np.minimum.at(first, code, step)
        updates = step - first[code]
    if "times_used" in log:
        used = column("times_used", 0, np.int64)
    else:
        warnings.append("no column times_used: counted from the steps at which each response appears")
        used = _appearances(rollout, response, step)
    drifts = _drifts(log, step) if "k3_sum" in log and "sum_sq_log_ratio" in log else np.full((4, n), np.nan)
    by_sign = _drifts_by_sign(log, step)
    reward = column("reward", np.nan, np.float64)
    coordinate, _ = coordinates(log, partition, cluster)
    rows = Rows(
        rollout=rollout,
        step=step,
        used=used,
        updates=updates,
        length=column("length", 1, np.float64),
        S=column("log_ratio", np.nan, np.float64),
        A=column("advantage", np.nan, np.float64),
        cluster=cluster,
        prompt=keys[:, 1],
        reward=reward,
        leave_one_out=leave_one_out(reward, cluster, response),
        k3_sum=column("k3_sum", np.nan, np.float64),
        k3=drifts[0],
        sigma2=drifts[1],
        k3_lagged=drifts[2],
        sigma2_lagged=drifts[3],
        by_sign=by_sign[0],
        by_sign_lagged=by_sign[1],
        lo=column("lo", np.nan, np.float64),
        hi=column("hi", np.nan, np.float64),
        drift=column("drift", np.nan, np.float64),
        side=column("side", 0, np.int64),
        multiplier=column("multiplier", np.nan, np.float64),
        weight=column("weight", np.nan, np.float64),
        band_accept=column("band_accept", False, np.bool_),
        response=response,
        coordinate=coordinate,
        trend=partition.trend_coordinate(coordinate),
    )
    return rows, updates


def leave_one_out(reward: Floats, cluster: Ints, response: Ints) -> Floats:
    """Reward minus the mean reward of the other responses of its cluster (N,); NaN where it is the only one.

    A response with several rows counts once (docs/theory.md section 5, fresh reference).
    """
    if not len(reward):
        return reward
    first = np.unique(np.stack([cluster, response]), axis=1, return_index=True)[1]
    group = cluster[first]
    count = np.bincount(group, minlength=int(cluster.max()) + 1)[cluster]
    total = np.bincount(group, reward[first], minlength=int(cluster.max()) + 1)[cluster]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count > 1, reward - (total - reward) / (count - 1), np.nan)


def _drifts(log: GradLog, step: Ints) -> Floats:
    stats = step_drift_stats(log)
    steps = np.array(sorted(stats))
    now = np.array([(stats[s].k3, stats[s].sigma2) for s in steps])
    before = np.vstack([np.zeros((1, 2)), now[:-1]])
    at = np.searchsorted(steps, step)
    return np.concatenate([now[at].T, before[at].T])


def _drifts_by_sign(log: GradLog, step: Ints) -> Floats:
    """Mean log-ratio per token over the step's (and the step before's) rows with the sign of each row's A (2, N)."""
    S, n, A = (log.column(c).astype(np.float64) for c in ("log_ratio", "length", "advantage"))
    code = np.unique(step, return_inverse=True)[1]
    found = np.zeros((2, len(S)))
    for sign in (1, -1):
        of = (np.sign(A) == sign) & np.isfinite(S)
        total, tokens = (np.bincount(code[of], x[of], code.max(initial=0) + 1) for x in (S, n))
        mean = np.divide(total, tokens, out=np.zeros(len(total)), where=tokens > 0)
        at = np.sign(A) == sign
        found[:, at] = mean[code[at]], np.concatenate([[0.0], mean[:-1]])[code[at]]
    return found


def _appearances(rollout: Ints, response: Ints, step: Ints) -> Ints:
    """How many earlier rows of the same (rollout, response) there are."""
    order = np.lexsort((step, response, rollout))
    same = np.zeros(len(order), bool)
    same[1:] = (rollout[order][1:] == rollout[order][:-1]) & (response[order][1:] == response[order][:-1])
    position = np.arange(len(order))
    start = np.maximum.accumulate(np.where(same, 0, position))
    used = np.empty(len(order), np.int64)
    used[order] = position - start
    return used


def _seed(path: Path, log: GradLog) -> float:
    config: Any = {}
    file = path / "config.yaml"
    if file.is_file():
        try:
            config = yaml.safe_load(file.read_text())
        except yaml.YAMLError as error:
            raise UserError(f"{file} is no valid YAML: {str(error).splitlines()[0]}") from error
    seed = config.get("seed") if isinstance(config, dict) else None
    seed = log.metadata.get("seed") if seed is None else seed
    return float(seed) if isinstance(seed, (int, float)) else float("nan")


def windows(rollout: Ints, size: int) -> Ints:
    """First rollout of each row's window; a window is ``size`` successive rollouts of the log."""
    if size < 1:
        raise UserError(f"--window {size}: a window has at least 1 rollout")
    numbers = np.unique(rollout)
    place = np.searchsorted(numbers, rollout)
    return numbers[(place // size) * size]
