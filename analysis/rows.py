"""The rows of a log that the diagnostics use, as plain arrays.

Only rows with a finite S and at least one update since their rollout (before that S = 0). First-use rows
(``times_used`` = 0) and trained-on rows are never mixed (docs/theory.md section 1, "First use").
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.partition import LENGTH, Partition, coordinates
from fspo.errors import UserError
from fspo.gradlog import GradLog, step_drift_stats
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

    def take(self, which: NDArray[Any] | slice) -> Rows:
        """The rows of a mask, index or slice."""
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
class Scale:
    """What rows of one part of a log need to know of the whole.

    Attributes
    ----------
    spread : float
        Standard deviation of the coordinate, for trends (analysis.partition).
    categories : tuple of str
        Of a partition that is a column of text.
    """

    spread: float
    categories: tuple[str, ...] = ()


def usable(log: GradLog, partition: Partition, scale: Scale | None = None) -> tuple[Rows, dict[str, int]]:
    """The rows that can be analysed, and how many of each kind there were (keys of ``summary.json``'s counts).

    Left out are rows whose S or A is not finite or whose length is below 1, the same response twice in one update,
    rows without a coordinate, and rows before the first update since their rollout.

    Parameters
    ----------
    scale : Scale, optional
        Of the whole log, where ``log`` is a part.
    """
    log, counts = _sound(log)
    rows, updates = _rows(log, partition, scale)
    known = np.isfinite(rows.coordinate)
    moved = (updates >= 1) & known
    used = rows.used[moved]
    counts |= {
        "rows_without_coordinate": len(rows) - int(np.count_nonzero(known)),
        "rows_after_an_update": len(used),
        "rows_before_an_update": int(np.count_nonzero(updates < 1)),
        "rows_first_use": int(np.count_nonzero(used == 0)),
        "rows_reused": int(np.count_nonzero(used > 0)),
        "rows_nonzero_advantage": int(np.count_nonzero(rows.A[moved])),
        "rows_S_not_0": int(np.count_nonzero(rows.S[moved])),
    }
    return (rows if moved.all() else rows.take(np.flatnonzero(moved))), counts


def _sound(log: GradLog) -> tuple[GradLog, dict[str, int]]:
    """The log's rows with finite numbers, each response once in an update, and the counts of the others."""
    S, length = log.column("log_ratio"), log.column("length")
    good = np.isfinite(S) & np.isfinite(log.column("advantage")) & (length >= 1)
    counts = {"rows": len(log), "rows_not_finite": len(log) - int(np.count_nonzero(good))}
    counts["rows_without_S"] = int(np.count_nonzero(np.isnan(S)))
    if "score_status" in log:
        counts |= {
            "scores_failed": log.count("score_status", "failed"),
            "scores_taken": log.count("score_status", "ok"),
        }
    if counts["rows_not_finite"]:
        log = log.where(good)
    again = repeated(*(log.column(c).astype(np.int64, copy=False) for c in ("rollout", "step", "response_id")))
    counts["rows_repeated"] = int(np.count_nonzero(again))
    if counts["rows_repeated"]:
        log = log.where(~again)
    return log, counts


LEARNT = ("rollout", "step", "updates_since_rollout", "prompt_id", "response_id", "length", "log_ratio", "advantage")
"""Columns that :func:`learnt` reads."""


@dataclass(frozen=True)
class Learnt:
    """What a rule that follows a target is shown of a log, arrays (N,) in the order of steps and responses."""

    rollout: Ints
    step: Ints
    S: Floats
    length: Floats
    A: Floats

    @staticmethod
    def of(rows: Rows) -> Learnt:
        """Rows in this order."""
        return Learnt(rows.rollout, rows.step, rows.S, rows.length, rows.A)


def learnt(log: GradLog, partition: Partition, scale: Scale | None = None) -> Learnt:
    """The rows that :func:`usable` keeps, with a few of their columns, in the order of steps and responses.

    Parameters
    ----------
    log : GradLog
        With the columns ``LEARNT`` and the partition's.
    """
    log, _ = _sound(log)
    integers = ("rollout", "step", "response_id")
    rollout, step, response = (log.column(name).astype(np.int64, copy=False) for name in integers)
    keep = _updates(log, rollout, step) >= 1
    if partition != LENGTH:
        cluster = numbered(rollout, log.column("prompt_id").astype(np.int64, copy=False))
        keep &= np.isfinite(coordinates(log, partition, cluster, scale.categories if scale else ())[0])
    kept = np.flatnonzero(keep)
    kept = kept[in_order(step[kept], response[kept])]
    numbers = (log.column(name)[kept].astype(np.float64) for name in ("log_ratio", "length", "advantage"))
    return Learnt(rollout[kept], step[kept], *numbers)


def in_order(step: Ints, response: Ints) -> Ints | slice:
    """The order of the rows by step, and by response within it."""
    later, same = step[1:] > step[:-1], step[1:] == step[:-1]
    if np.all(later | (same & (response[1:] >= response[:-1]))):
        return slice(None)
    return np.lexsort((response, step))


def _updates(log: GradLog, rollout: Ints, step: Ints) -> Ints:
    """Updates since the rollout (N,); where they are not logged, they are counted."""
    if "updates_since_rollout" in log:
        return log.column("updates_since_rollout").astype(np.int64, copy=False)
    return counted_updates(rollout, step, log.column("log_ratio"))[0]


def numbered(*keys: Ints) -> Ints:
    """Dense numbers (N,) of the distinct tuples, in their order."""
    code = _combined(keys)
    if code is None:
        return np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    found, place = pd.factorize(code, sort=True)[:2]
    return found.astype(np.int64) if len(place) else code


def repeated(*keys: Ints) -> NDArray[np.bool_]:
    """Which tuples (N,) stood before."""
    code = _combined(keys)
    if code is not None and np.all(code[1:] > code[:-1]):
        return np.zeros(len(code), bool)
    again = pd.Series(code).duplicated() if code is not None else pd.MultiIndex.from_arrays(list(keys)).duplicated()
    return np.asarray(again)


def _combined(keys: tuple[Ints, ...]) -> Ints | None:
    """One number a tuple, in the tuples' order; None if they do not fit into 62 bits."""
    if not len(keys[0]):
        return keys[0]
    lows = [int(key.min()) for key in keys]
    sizes = [int(key.max()) - low + 1 for key, low in zip(keys, lows, strict=True)]
    if math.prod(sizes) >= 2**62:
        return None
    code = keys[0] - lows[0]
    for key, low, size in zip(keys[1:], lows[1:], sizes[1:], strict=True):
        code = code * size + (key - low)
    return code


def counted_updates(rollout: Ints, step: Ints, S: Floats) -> tuple[Ints, bool]:
    """Updates since the rollout (N,) where the log does not say, and whether the steps number rollouts.

    Counted from each rollout's first step. Where every rollout has one step alone and yet S moves, the steps count
    rollouts and not updates: then all rows stand after an update.
    """
    number, code = np.unique(rollout, return_inverse=True)
    first = np.full(len(number), np.iinfo(np.int64).max)
    np.minimum.at(first, code, step)
    updates = step - first[code]
    if not updates.any() and np.any(np.nan_to_num(S)):
        return np.ones_like(updates), True
    return updates, False


def _rows(log: GradLog, partition: Partition, scale: Scale | None) -> tuple[Rows, Ints]:
    n = len(log)

    def column(name: str, default: Any, dtype: Any) -> NDArray[Any]:
        if name not in log:
            return np.full(n, default, dtype)
        return log.column(name).astype(dtype, copy=False)

    rollout, step = column("rollout", 0, np.int64), column("step", 0, np.int64)
    response = column("response_id", 0, np.int64)
    prompt = column("prompt_id", 0, np.int64)
    cluster = numbered(rollout, prompt)
    updates = _updates(log, rollout, step)
    if "times_used" in log:
        used = column("times_used", 0, np.int64)
    else:
        used = _appearances(rollout, response, step)
    drifts = _drifts(log, step) if "k3_sum" in log and "sum_sq_log_ratio" in log else np.full((4, n), np.nan)
    by_sign = _drifts_by_sign(log, step)
    reward = column("reward", np.nan, np.float64)
    coordinate, _ = coordinates(log, partition, cluster, scale.categories if scale else ())
    rows = Rows(
        rollout=rollout,
        step=step,
        used=used,
        updates=updates,
        length=column("length", 1, np.float64),
        S=column("log_ratio", np.nan, np.float64),
        A=column("advantage", np.nan, np.float64),
        cluster=cluster,
        prompt=prompt,
        reward=reward,
        leave_one_out=leave_one_out(reward, cluster, response) if "reward" in log else reward,
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
        trend=partition.trend_coordinate(coordinate, scale.spread if scale else None),
    )
    return rows, updates


def leave_one_out(reward: Floats, cluster: Ints, response: Ints) -> Floats:
    """Reward minus the mean reward of the other responses of its cluster (N,); NaN where it is the only one.

    A response with several rows counts once (docs/theory.md section 5, fresh reference).
    """
    if not len(reward):
        return reward
    first = np.flatnonzero(~repeated(cluster, response))
    group = cluster[first]
    count = np.bincount(group, minlength=int(cluster.max()) + 1)[cluster]
    total = np.bincount(group, reward[first], minlength=int(cluster.max()) + 1)[cluster]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count > 1, reward - (total - reward) / (count - 1), np.nan)


def _drifts(log: GradLog, step: Ints) -> Floats:
    if not len(step):
        return np.zeros((4, 0))
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


def windows(rollout: Ints, size: int) -> Ints:
    """First rollout of each row's window; a window is ``size`` successive rollouts of the log."""
    if size < 1:
        raise UserError(f"--window {size}: a window has at least 1 rollout")
    numbers = np.unique(rollout)
    place = np.searchsorted(numbers, rollout)
    return numbers[(place // size) * size]
