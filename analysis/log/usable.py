"""Select the rows of a log that can be analysed (:class:`analysis.log.rows.Rows`), and count the rows left out.

An analysis is about one log-ratio (`analysis.log.ratio`). A row can be analysed if its log-ratio is finite and if an
update came before it (for S) or it is of the first epoch (for the other log-ratios). `usable` lists all conditions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.log.copies import find_copies
from analysis.log.partition import Partition, coordinates
from analysis.log.ratio import LARGEST, UPDATE, LoggedRatio
from analysis.log.rows import Floats, Ints, Rows, appearances, numbered, repeated
from fspo.gradlog import GradLog

ROW_COLUMNS = (
    *("rollout", "step", "updates_since_rollout", "times_used", "prompt_id", "response_id", "length", "log_ratio"),
    *("reward", "advantage", "sum_sq_log_ratio", "k3_sum", "drift", "band_accept", "side", "multiplier", "weight"),
    *("lo", "hi", "score_status", "rule"),
)
SEVERAL = (
    "use a rollout for several updates (TRL: steps_per_generation above gradient_accumulation_steps, or num_iterations "
    "above 1)"
)
"""What to do for an S that is not 0."""
Recompute = Callable[[GradLog], Mapping[str, int]]
"""Type of a function that compares logged columns with recomputed ones and returns, by name, how many rows differ."""


def nothing(log: GradLog) -> Mapping[str, int]:
    """Return no counts. It is passed to `usable` in the place of the comparison of logged with recomputed columns, if
    another call makes that comparison for the same rows."""
    del log
    return {}


def columns_of(partition: Partition, ratio: LoggedRatio) -> tuple[str, ...]:
    """Return the names of the columns of the gradient log from which :func:`usable` chooses rows and makes `Rows`."""
    return tuple(dict.fromkeys([*ROW_COLUMNS, *ratio.columns, partition.column]))


def usable(
    log: GradLog,
    partition: Partition,
    spread: float | None = None,
    ratio: LoggedRatio = UPDATE,
    recomputed: Recompute = nothing,
) -> tuple[Rows, dict[str, int]]:
    """Return the rows that can be analysed, and the number of rows of each kind (counts of ``summary.json``).

    A row is left out if its ratio or A is not finite, if its length is below 1, if an earlier row has the same response
    in the same update, if it is a copy under another id (`analysis.log.copies`), or if it has no coordinate. For the
    update's ratio, rows before the first update since the rollout are left out too; for any other ratio, rows after the
    response's first epoch.

    Parameters
    ----------
    spread : float, optional
        Standard deviation of the coordinate in the complete log, where ``log`` is only a part of it.
    recomputed : callable
        Function of the log less the rows that are not finite, repeated or copied. It compares logged columns with
        recomputed ones (`analysis.rules.recompute.differing`) and returns how many rows differ, added to the counts.
    """
    log, counts = _sound(log, ratio)
    counts |= recomputed(log)
    rows, updates = _rows(log, partition, spread, ratio)
    known = np.isfinite(rows.coordinate)
    moved = (updates >= 1) & known
    counted = (rows.used == 0) & known if ratio.once else moved
    used = rows.used[counted]
    counts |= {
        "rows_without_coordinate": len(rows) - int(np.count_nonzero(known)),
        "rows_after_an_update": int(np.count_nonzero(moved)),
        "rows_before_an_update": int(np.count_nonzero(updates < 1)),
        "rows_first_use": int(np.count_nonzero(used == 0)),
        "rows_reused": int(np.count_nonzero(used > 0)),
        "rows_nonzero_advantage": int(np.count_nonzero(rows.A[counted])),
        "rows_S_not_0": int(np.count_nonzero(rows.S[counted])),
    }
    return (rows if counted.all() else rows.take(np.flatnonzero(counted))), counts


def _sound(log: GradLog, ratio: LoggedRatio) -> tuple[GradLog, dict[str, int]]:
    """Return the log without unsound rows, and the number of rows of each kind.

    Unsound are rows whose ratio or A is not finite or whose length is below 1, further rows of a response in one
    update, and copies under other ids."""
    S, length = ratio.of(log), log.column("length")
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
    keys = (log.column(c) for c in ("rollout", "step", "prompt_id", "response_id", "length"))
    sums = (log.column(c) for c in (ratio.sum_sq, ratio.k3_sum) if c in log)
    again = find_copies(*keys, ratio.of(log), *sums).again
    if again.any():
        counts["rows_copied"] = int(np.count_nonzero(again))
        log = log.where(~again)
    return log, counts


def tells_updates(columns: Mapping[str, Any]) -> bool:
    """Return whether `fspo analyse` finds a row to analyse S in a log with these ``columns`` (N,). Such a row has S and
    a length, was logged after an update on its rollout, and repeats no other row."""
    good = np.isfinite(columns["log_ratio"]) & (columns["length"] >= 1)
    keys = (np.asarray(columns[name][good], np.int64) for name in ("rollout", "step", "response_id"))
    return bool(np.any(columns["updates_since_rollout"][good][~repeated(*keys)] >= 1))


def counted_updates(rollout: Ints, step: Ints, S: Floats, used: NDArray[Any] | None = None) -> tuple[Ints, bool]:
    """Return for each row the number of updates since its rollout (N,), computed from ``step``; and whether ``step``
    counts rollouts instead of updates.

    The number is the row's step less the first step of its rollout, or the logged number of times that its response was
    ``used`` if that is larger. If every rollout has a single step and yet S is not 0 everywhere, then ``step`` counts
    rollouts, and every row gets at least the number 1: it was logged after an update."""
    number, code = np.unique(rollout, return_inverse=True)
    first = np.full(len(number), np.iinfo(np.int64).max)
    np.minimum.at(first, code, step)
    updates = step - first[code]
    by_rollout = bool(not updates.any() and np.any(np.nan_to_num(S)))
    return np.fmax(updates + by_rollout, 0 if used is None else used).astype(np.int64), by_rollout


def _rows(log: GradLog, partition: Partition, spread: float | None, ratio: LoggedRatio) -> tuple[Rows, Ints]:
    n = len(log)

    def column(name: str, default: Any, dtype: Any) -> NDArray[Any]:
        if name not in log:
            return np.full(n, default, dtype)
        return log.column(name).astype(dtype, copy=False)

    def done(name: str, default: Any, dtype: Any) -> NDArray[Any]:
        return column(ratio.done.get(name, ""), default, dtype)

    rollout, step = column("rollout", 0, np.int64), column("step", 0, np.int64)
    response = column("response_id", 0, np.int64)
    prompt = column("prompt_id", 0, np.int64)
    cluster = numbered(rollout, prompt)
    used = column("times_used", 0, np.int64) if "times_used" in log else appearances(rollout, response, step)
    if "updates_since_rollout" in log:
        updates = column("updates_since_rollout", 0, np.int64)
    else:
        updates = counted_updates(rollout, step, log.column("log_ratio"), used)[0]
    S, length = ratio.of(log).astype(np.float64, copy=False), column("length", 1, np.float64)
    A = column("advantage", np.nan, np.float64)
    k3_sum, sum_sq = (column(name, np.nan, np.float64) for name in (ratio.k3_sum, ratio.sum_sq))
    largest = [column(name if ratio.once else "", np.nan, np.float64) for name in LARGEST]
    if ratio.on == "engine":
        same = column("staleness_log_ratio", np.nan, np.float64) == 0
        largest = [np.where(same, values, np.nan) for values in largest]
    known = ratio.k3_sum in log and ratio.sum_sq in log
    batch = numbered(step)
    drifts = _drifts(k3_sum, sum_sq, length, batch) if known else np.full((4, n), np.nan)
    reward = column("reward", np.nan, np.float64)
    coordinate = coordinates(log, partition)
    rows = Rows(
        rollout=rollout, step=step, used=used, updates=updates, length=length, S=S, A=A, cluster=cluster, prompt=prompt,
        reward=reward, k3_sum=k3_sum, k2_sum=sum_sq / 2, k2_max=largest[0], k3_max=largest[1], k3=drifts[0],
        sigma2=drifts[1], k3_lagged=drifts[2], sigma2_lagged=drifts[3], response=response, coordinate=coordinate,
        **{name: done(name, np.nan, np.float64) for name in ("lo", "hi", "drift", "multiplier", "weight")},
        side=done("side", 0, np.int64),
        band_accept=done("band_accept", False, np.bool_),
        trend=partition.trend_coordinate(coordinate, spread),
    )  # fmt: skip
    return rows, updates


def _drifts(k3_sum: Floats, sum_sq: Floats, length: Floats, code: Ints) -> Floats:
    """Return for each row four means over tokens (4, N): of k3 and s^2 in its step, of k3 and s^2 in the step before.

    ``code`` (N,) numbers the steps, each the update on one minibatch; before the first: 0. s: token log-ratio."""
    if not len(code):
        return np.zeros((4, 0))
    k3, square, tokens = (np.bincount(code, x) for x in (k3_sum, sum_sq, length))
    now = np.stack([k3, square]) / tokens
    before = np.concatenate([np.zeros((2, 1)), now[:, :-1]], axis=1)
    return np.concatenate([now[:, code], before[:, code]])
