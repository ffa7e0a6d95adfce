"""Slopes of a linear regression with cluster-robust standard errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Integer
from numpy.typing import ArrayLike
from scipy import special

from fspo.stats.clusters import MIN_CLUSTERS, TOO_FEW, dense, totals
from fspo.stats.intervals import EQUIVALENCE, t_quantile


@dataclass(frozen=True)
class Slope:
    """A regression slope with two cluster-robust intervals, at the levels CONFIDENCE (``ci``) and EQUIVALENCE
    (``ci90``), and two tests.

    One test is of the hypothesis that the slope is 0, the other of the hypothesis that it is beyond a margin around 0.
    """

    slope: float
    se: float
    ci_low: float
    ci_high: float
    ci90_low: float
    ci90_high: float
    p_value: float  # two-sided p-value of the hypothesis that the true slope is 0
    tost_p: float  # p-value of the hypothesis |slope| >= margin, two one-sided tests
    clusters: int
    reason: str = ""


def no_slope(reason: str) -> Slope:
    """Return a slope whose numbers are all NaN, with the reason why there is no estimate."""
    nan = float("nan")
    return Slope(nan, nan, nan, nan, nan, nan, nan, nan, 0, reason)


def cluster_slope(
    y: ArrayLike,
    x: ArrayLike,
    cluster: Integer[np.ndarray, " N"],
    weight: ArrayLike | None = None,
    *,
    strata: Integer[np.ndarray, " N"] | None = None,
    margin: float,
) -> Slope:
    """Fit y on x by least squares, with cluster-robust (CR1) standard error and Student's t on C-1 degrees of freedom.

    Parameters
    ----------
    y : array (N,)
        Outcome of each row: an indicator or a multiplier. If fewer than ``MIN_CLUSTERS`` clusters hold a value other
        than the median, for example because nearly all responses are accepted, the residuals underestimate the
        variance of the slope. It is then made at least as large as for a y with the variance q (1 - q), where q is the
        share of those clusters after two with and two without such a value are added.
    x, weight : array (N,)
        Regressor and weight of each row; all weights are 1 by default.
    cluster : int array (N,)
        Cluster of each row, numbered from 0 without gaps.
    strata : int array (N,), optional
        x and y are centred within each stratum (fixed effects). By default all rows are one stratum.
    margin : float
        Equivalence margin of the two one-sided tests.
    """
    y, x = np.asarray(y, np.float64), np.asarray(x, np.float64)
    if y.size == 0:
        return no_slope("no rows")
    unusual = int(np.count_nonzero(np.bincount(cluster, y != np.median(y))))
    w = np.ones_like(y) if weight is None else np.asarray(weight, np.float64)
    group = np.zeros(len(y), np.int64) if strata is None else dense(strata)
    weights = np.bincount(group, w)
    x = x - (np.bincount(group, w * x) / weights)[group]
    y = y - (np.bincount(group, w * y) / weights)[group]
    some = np.bincount(cluster) > 0
    wx, wxx, wxy = (totals(cluster, len(some), values)[some] for values in (w * x, w * x * x, w * x * y))
    return slope_of_sums(wx, wxx, wxy, float(np.sum(w)), unusual, margin=margin)


def slope_of_sums(
    wx: Float64[np.ndarray, " C"],
    wxx: Float64[np.ndarray, " C"],
    wxy: Float64[np.ndarray, " C"],
    weight: float,
    unusual: int,
    *,
    margin: float,
) -> Slope:
    """Compute the slope of :func:`cluster_slope` from sums over each cluster's rows.

    Parameters
    ----------
    wx, wxx, wxy : array (C,)
        Sums of w x, w x^2 and w x y over each cluster's rows: w the weight, x the regressor and y the outcome of a
        row, x and y less their weighted means over the rows of the same ``strata`` value (by default, over all rows).
    weight : float
        Sum of w over all rows.
    unusual : int
        Number of clusters with a row whose y differs from the median of y over all rows.
    """
    clusters, spread = len(wx), float(np.sum(wxx))
    if clusters < MIN_CLUSTERS:
        return no_slope(TOO_FEW)
    if not spread > 1e-12 * weight:
        return no_slope("all responses have one length")
    slope = float(np.sum(wxy)) / spread
    se = float(np.sqrt(np.sum((wxy - slope * wxx) ** 2) * clusters / (clusters - 1))) / spread
    if unusual < MIN_CLUSTERS:
        share = (unusual + 2) / (clusters + 4)
        se = max(se, float(np.sqrt(share * (1 - share) * np.sum(wx**2))) / spread)
    df = clusters - 1
    t95, t90 = t_quantile(df), t_quantile(df, EQUIVALENCE)
    if se > 0:
        p_value = float(2 * special.stdtr(df, -abs(slope) / se))
        tost_p = float(max(special.stdtr(df, -(slope + margin) / se), special.stdtr(df, (slope - margin) / se)))
    else:
        p_value, tost_p = float(slope == 0), float(abs(slope) >= margin)
    return Slope(
        slope, se, slope - t95 * se, slope + t95 * se, slope - t90 * se, slope + t90 * se, p_value, tost_p, clusters
    )
