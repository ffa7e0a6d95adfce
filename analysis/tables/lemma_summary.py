"""The table lemma_summary: rho, cosine and other quantities of T7 (docs/theory.md), averaged over updates.

The table gives means over updates with Student's t, and the share of updates with a guarantee (rho < 1) with Wilson's
interval. The clusters are rollouts, because updates of one rollout share its responses. An interval is about the mean
over further rollouts like those of the log. It is too short if neighbouring rollouts resemble each other more than
distant ones do, as happens while training changes the policy.

The means are over plug-in values of single updates, each computed from finitely many responses, and averaging does not
remove their bias. Noise adds more to the norm of each bin's mean gradient than to the norm of the mean over bins, the
true update. So kappa, kappa_c, eta and rho are biased upward, and the bound of the cosine and the share of updates with
a guarantee are biased downward. (Only where the bins' gradients cancel each other more strongly than noise would is
kappa biased downward.) The intervals are about the mean at the log's number of responses an update; they do not cover
the value of an infinite batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np

from analysis.tables.acceptance import Reason
from analysis.tables.columns import UNKNOWN, CaseKey, Interval
from analysis.tables.lemma import LemmaRow
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
"""Columns of the table lemma that are averaged, each with the least and the greatest value that it can have."""
SHARE = "guaranteed"
NO_GUARANTEE = "no guarantee"
"""Reason given for a missing mean bound: no update has rho < 1, without which T7 gives no bound of the cosine."""


class LemmaSummaryRow(NamedTuple):
    """Quantities of T7 (rho, eta, cosine, ...), averaged over a run's scored updates: one row for each rule, use and
    quantity.

    Empty for a run without scores. docs/theory.md section 5, T7.
    """

    case: CaseKey
    weight: Annotated[str, "sequence: the weight exp(S) for every rule", "text"]
    quantity: Annotated[
        str, f"column of the table lemma: {', '.join(QUANTITIES)}; {SHARE}: share of updates with a guarantee", "text"
    ]
    estimate: Annotated[Interval, "mean over the updates; the interval's clusters are rollouts", "the quantity's"]
    count: Annotated[int, "updates that the estimate is made of", "updates"]
    updates: Annotated[int, "updates that were evaluated", "updates"]
    rollouts: Annotated[int, "rollouts of the updates in count", "rollouts"]
    reason: Reason


def lemma_summary(table: Sequence[LemmaRow]) -> list[LemmaSummaryRow]:
    """Make the rows for each case, use and quantity from the rows of single updates in the table lemma.

    ``count`` is the number of updates in which the quantity has a value, ``updates`` that of all updates. An update in
    which nothing is accepted counts as one without a guarantee (rho < 1). With fewer than ``MIN_CLUSTERS`` rollouts the
    interval is NaN.
    """
    groups: dict[str, list[LemmaRow]] = {}
    for row in table:
        # Group by the text of the case: a missing target is NaN, and NaN != NaN, so equal cases would compare unequal.
        groups.setdefault(repr((row.case, row.weight)), []).append(row)
    return [line for found in groups.values() for line in _of_case(found)]


def _of_case(rows: Sequence[LemmaRow]) -> list[LemmaSummaryRow]:
    single = [row for row in rows if row.updates == 1]
    why = "; ".join(dict.fromkeys(row.reason for row in rows if row.reason))
    rollout = np.array([row.window for row in single], np.int64)
    out = []
    for name in (*QUANTITIES, SHARE):
        values = np.array([getattr(row, name) for row in single], np.float64)
        known = np.isfinite(values)
        counts = int(known.sum()), len(single), len(np.unique(rollout[known]))
        estimate, reason = _mean(values[known], rollout[known], QUANTITIES.get(name))
        if name == "bound" and single and not known.any():
            reason = NO_GUARANTEE
        elif not known.any() and why:
            reason = why
        out.append(LemmaSummaryRow(rows[0].case, rows[0].weight, name, estimate, *counts, reason))
    return out


def _mean(values: np.ndarray, rollout: np.ndarray, within: tuple[float, float] | None) -> tuple[Interval, str]:
    """Return the mean of the values (U,) of U updates with its interval, and a text that says why the mean or the
    interval is missing, or "". ``rollout`` (U,) is the rollout of each update; the rollouts are the clusters.

    ``within`` holds the smallest and the largest possible value; None if the values are 0 or 1, so that their mean is a
    share.
    """
    if not len(values):
        return UNKNOWN, "no scored update"
    found: Ratios = ratios(values, dense(rollout), np.zeros(len(values), np.int64), 1, binary=within is None)
    numbers = found.value[-1], found.variance[-1]
    if within is None:
        low, high = proportion_interval(*numbers, found.count[-1], found.clusters[-1])
    else:
        low, high = np.clip(mean_interval(*numbers, found.clusters[-1]), *within)
    few = f"fewer than {MIN_CLUSTERS} rollouts: no interval" if found.clusters[-1] < MIN_CLUSTERS else ""
    return Interval(float(found.value[-1]), float(low), float(high)), few
