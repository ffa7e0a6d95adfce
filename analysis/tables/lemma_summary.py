"""Table lemma_summary: the lemma's quantities (T7) over a run's scored updates, by rule and use, with intervals.

Means over updates with Student's t, and the share of updates with a guarantee (rho < 1) with Wilson's interval. The
clusters are rollouts: updates of one rollout share its responses. An interval says how far the mean over further
rollouts like these would lie; training that moves on makes successive rollouts alike, which it does not know.

What is averaged are plug-in values of single updates, each from finitely many responses, and no average removes their
noise. It adds to every bin's norm more than to the norm of the bins' mean, so kappa, kappa_c, eta and rho are biased
upward, and the bound and the share with a guarantee downward. (Only where the bins' true updates cancel more strongly
than noise would is kappa biased downward.) The intervals are about the mean at this number of responses an update;
they do not cover the value of an infinite batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.tables.files import CASE
from fspo.stats.clusters import MIN_CLUSTERS, Ratios, dense, ratios
from fspo.stats.intervals import mean_interval, proportion_interval

QUANTITIES = {
    "kappa": (1.0, math.inf),
    "kappa_c": (0.0, math.inf),
    "eta": (0.0, math.inf),
    "rho": (0.0, math.inf),
    "bound": (0.0, 1.0),
    "cosine": (-1.0, 1.0),
}
"""Columns of the table lemma whose means are taken (``bound`` over the updates that have one), and the values that they
can have: an interval ends there."""
SHARE = "guaranteed"
NO_GUARANTEE = "no guarantee"
"""The reason where no update has a bound: rho >= 1 promises nothing, and nothing is not a bound of 0."""


def lemma_summary(table: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows by case and use, one a quantity, from the table lemma's rows of single updates.

    ``count`` is the number of updates that an estimate is made of, ``updates`` that of all; an update on which the
    lemma says nothing (nothing is accepted) has no guarantee. Below ``MIN_CLUSTERS`` rollouts there is no interval.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    names = [*CASE, "weight"]
    for row in table:
        # the target of a case that is not matched is NaN, which is no key
        key = tuple(None if row.get(name) != row.get(name) else row.get(name) for name in names)
        groups.setdefault(key, []).append(row)
    return [line for found in groups.values() for line in _of_case({name: found[0].get(name) for name in names}, found)]


def _of_case(key: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    single = [row for row in rows if row.get("updates") == 1]
    why = "; ".join(dict.fromkeys(row["reason"] for row in rows if row["reason"]))
    rollout = np.array([row["window"] for row in single], np.int64)
    out = []
    for name in (*QUANTITIES, SHARE):
        values = np.array([row[name] for row in single], np.float64)
        known = np.isfinite(values)
        line = {**key, "quantity": name, "updates": len(single), "count": int(known.sum())}
        line |= {"rollouts": len(np.unique(rollout[known]))}
        estimate, low, high, reason = _mean(values[known], rollout[known], QUANTITIES.get(name))
        if name == "bound" and single and not known.any():
            reason = NO_GUARANTEE
        elif not known.any() and why:
            reason = why
        out.append({**line, "estimate": estimate, "ci_low": low, "ci_high": high, "reason": reason})
    return out


def _mean(
    values: np.ndarray, rollout: np.ndarray, within: tuple[float, float] | None
) -> tuple[float, float, float, str]:
    """Mean of values (U,), its interval with the rollouts (U,) as clusters, and why there is none.

    ``within`` is what a value can be; None for the values of a share, 0 and 1.
    """
    if not len(values):
        return (float("nan"), float("nan"), float("nan"), "no scored update")
    found: Ratios = ratios(values, dense(rollout), np.zeros(len(values), np.int64), 1, binary=within is None)
    numbers = found.value[-1], found.variance[-1]
    if within is None:
        low, high = proportion_interval(*numbers, found.count[-1], found.clusters[-1])
    else:
        low, high = np.clip(mean_interval(*numbers, found.clusters[-1]), *within)
    few = f"fewer than {MIN_CLUSTERS} rollouts: no interval" if found.clusters[-1] < MIN_CLUSTERS else ""
    return float(found.value[-1]), float(low), float(high), few
