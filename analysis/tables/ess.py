"""Table ess: effective sample size by length of the weights that a rule leaves, and their mean (docs/theory.md, T10).

Intervals of the effective sample size are a delete-one-cluster jackknife of its logarithm with Student's t. They are
too short where few weights decide: with 60 clusters and Var(E) = .25 they held the truth in 88 of 100 simulated logs.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from analysis.log.rows import Floats
from analysis.rules.layout import Grouping
from analysis.tables.columns import UNKNOWN, BinKey, CaseKey, Interval, mean_at
from fspo.stats.clusters import MIN_CLUSTERS, TOO_FEW, ratios_of_sums
from fspo.stats.intervals import t_quantile

EXACT = "exact"
"""Name of the rule that keeps every response with its weight exp(S)."""


class EssRow(NamedTuple):
    """Effective sample size of a rule's weights M w: one row for each rule, set of rows and bin.

    Written for every run, with a rule "exact" that keeps every response with its weight exp(S). docs/theory.md T10; the
    mean weight of "exact" is 1 at first use, and by length how lengths shift (T9, T16).
    """

    case: CaseKey
    place: BinKey
    count: Annotated[int, "rows: one for each response and update", "rows"]
    clusters: Annotated[int, "clusters, prompts of one rollout, with a row", "clusters"]
    estimate: Annotated[Interval, "(sum of M w)^2 over n sum of (M w)^2, at most 1", "share"]
    mean_weight: Annotated[Interval, "mean of M w", "number"]
    reason: Annotated[str, "why there is no number; else empty", "text"]


def ess_rows(
    case: CaseKey, layout: Grouping, rows: Floats, weights: Floats, squares: Floats, clusters: np.ndarray, mean: Floats
) -> list[EssRow]:
    """Make a row for each bin and for all bins.

    Parameters
    ----------
    rows, weights, squares : arrays (G, K)
        Number of responses, sum of their weights and of the squared weights, by group of clusters and bin.
    clusters : int array (K+1,)
        Clusters with a response.
    mean : array (K+1,)
        Mean coordinate.
    """
    found = ratios_of_sums(rows, weights, rows, clusters=clusters)
    n, x, xx = (np.column_stack([v, v.sum(1)]) for v in (rows, weights, squares))
    out: list[EssRow] = []
    for k in range(len(layout.bins) + 1):
        key = case, BinKey.of(layout.bins, k, float(mean[k])), int(found.count[k]), int(clusters[k])
        if clusters[k] < MIN_CLUSTERS:
            out.append(EssRow(*key, UNKNOWN, UNKNOWN, TOO_FEW))
            continue
        some = n[:, k] > 0
        share, why = effective_share(n[some, k], x[some, k], xx[some, k])
        out.append(EssRow(*key, share, mean_at(found, k), why))
    return out


def effective_share(n: Floats, x: Floats, xx: Floats) -> tuple[Interval, str]:
    """Return (sum x)^2 / (n sum x^2) with its interval, or the reason why there is none, from sums by group (G,)."""

    def log_share(n: Floats, x: Floats, xx: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            return 2 * np.log(x) - np.log(n) - np.log(xx)

    totals = [v.sum() for v in (n, x, xx)]
    whole = float(log_share(*totals))
    if not np.isfinite(whole):
        return UNKNOWN, "all weights are 0"
    # where one group holds all of the weight, the sums without it are 0 up to rounding
    without = log_share(*(np.maximum(total - v, 0.0) for total, v in zip(totals, (n, x, xx), strict=True)))
    if not np.isfinite(without).all():
        return Interval(np.exp(whole)), "no interval: one cluster holds all of the weight"
    number = len(n)
    half = float(t_quantile(number - 1) * np.sqrt(np.sum((without - without.mean()) ** 2) * (number - 1) / number))
    return Interval(float(np.exp(whole)), float(np.exp(whole - half)), min(float(np.exp(whole + half)), 1.0)), ""
