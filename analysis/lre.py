"""Length Reweighting Error with honest intervals (docs/theory.md section 3).

LRE_2^2 is bias-corrected: the plug-in ``sum p r^2`` minus the sampling variance that it holds,
``sum p Var(r)``, with clusters. LRE_2's interval inverts the plug-in's law (:func:`analysis.stats.quadratic_interval`),
which is honest at 0; ``l2_squared`` keeps its sign and has a moment interval (it can be negative). LRE_inf and
LRE_1 have intervals from simultaneous max-t bands on r; their estimates are the plug-in, biased upwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats as sps

from analysis.stats import MIN_CLUSTERS, Ratios, quadratic_interval, simultaneous_half_widths

NORMS = ("inf", "l1", "l2", "l2_squared")


@dataclass(frozen=True)
class LreEstimate:
    """One norm's estimate, 95 % interval, plug-in value, and why it is NaN."""

    norm: str
    estimate: float
    ci_low: float
    ci_high: float
    plug_in: float
    wald_p: float
    reason: str


def relative_errors(found: Ratios) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, str, float]:
    """Estimated r(l) of the usable bins, p, covariance of r and the bins used.

    The covariance follows the influence of each cluster on r = a/a_bar - 1, a_bar = sum p a, with p estimated too.

    Returns
    -------
    r, p : arrays (K',); covariance (K', K'); used : bool (K,); reason : str; noise : float
        ``noise`` is the sampling variance that the plug-in sum p r^2 holds. Bins where all rows agree add nothing to
        it, as their noise did not show, though the covariance, which intervals are made of, allows for it.
    """
    bins = found.rows.shape[1]
    used = found.clusters[:bins] >= MIN_CLUSTERS
    dropped = float(1 - found.count[:bins][used].sum() / max(found.count[bins], 1))
    reason = f"bins with fewer than {MIN_CLUSTERS} clusters left out: {dropped:.1%} of the rows" if dropped > 0 else ""
    empty = np.zeros(0)
    if used.sum() < 2:
        return empty, empty, np.zeros((0, 0)), used, f"fewer than 2 bins with {MIN_CLUSTERS} clusters", 0.0
    rows, a, z = found.rows[:, used], found.value[:bins][used], found.influence[:, :bins][:, used]
    total = rows.sum()
    p = rows.sum(0) / total
    mean = float(p @ a)
    if not mean > 0:
        return empty, empty, np.zeros((0, 0)), used, "nothing is accepted: a_bar = 0", 0.0
    share = (rows - p * rows.sum(1, keepdims=True)) / total
    influence = z / mean - np.outer(z @ p + share @ a, a / mean**2)
    clusters = max(int(np.sum(rows.sum(1) > 0)), 2)
    covariance = influence.T @ influence * clusters / (clusters - 1)
    noise = float(p @ np.diag(covariance))
    # bins where all rows agree have no linearised variance: add that of Ratios' adjusted proportion
    linear = np.sum(z**2, axis=0) * clusters / (clusters - 1)
    extra = np.maximum(found.variance[:bins][used] - linear, 0.0)
    if np.any(extra > 1e-14):
        jacobian = np.eye(len(a)) / mean - np.outer(a / mean**2, p)
        covariance = covariance + jacobian @ np.diag(extra) @ jacobian.T
    return a / mean - 1, p, covariance, used, reason, noise


def lre_estimates(found: Ratios) -> list[LreEstimate]:
    """LRE in each norm, with intervals, from cluster-aware acceptances."""
    r, p, covariance, _, reason, noise = relative_errors(found)
    nan = float("nan")
    if len(r) == 0:
        return [LreEstimate(norm, nan, nan, nan, nan, nan, reason) for norm in NORMS]
    df = int(found.clusters[-1]) - 1
    half = simultaneous_half_widths(covariance, df)
    nearest, farthest = np.maximum(np.abs(r) - half, 0.0), np.abs(r) + half
    plug_in = float(p @ r**2)
    squared = plug_in - noise
    low, high = quadratic_interval(r, p, covariance, df)
    weighted = covariance * p[:, None]
    spread = 4 * float((p * r) @ covariance @ (p * r)) + 2 * float(np.trace(weighted @ weighted))
    step = float(sps.t.ppf(0.975, max(df, 1))) * np.sqrt(spread)
    wald = constant_test(r, covariance, df)
    l1 = float(p @ np.abs(r))
    inf = float(np.max(np.abs(r)))
    return [
        LreEstimate("inf", inf, float(np.max(nearest)), float(np.max(farthest)), inf, wald, reason),
        LreEstimate("l1", l1, float(p @ nearest), float(p @ farthest), l1, wald, reason),
        LreEstimate("l2", float(np.sqrt(max(squared, 0.0))), np.sqrt(low), np.sqrt(high), plug_in**0.5, wald, reason),
        LreEstimate("l2_squared", squared, squared - step, squared + step, plug_in, wald, reason),
    ]


def constant_test(r: np.ndarray, covariance: np.ndarray, df: int) -> float:
    """p-value of "a(l) is constant": cluster-robust Wald statistic, Hotelling's F (r has rank K-1)."""
    rank = len(r) - 1
    if df - rank + 1 < 1:
        return float("nan")
    statistic = float(r @ np.linalg.pinv(covariance, rcond=1e-10, hermitian=True) @ r)
    return float(sps.f.sf(statistic * (df - rank + 1) / (df * rank), rank, df - rank + 1))
