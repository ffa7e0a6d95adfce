"""Slopes of a linear regression with cluster-robust standard errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Integer
from numpy.typing import ArrayLike

from fspo.stats.clusters import MIN_CLUSTERS, MIN_SHOWING, TOO_FEW, dense, too_few_showing, totals
from fspo.stats.intervals import t_quantile

NAN = float("nan")


@dataclass(frozen=True)
class Slope:
    """A regression slope with its cluster-robust standard error ``se`` and the ends of its interval (95 %, Student's
    t), from ``clusters`` clusters.

    ``reason`` says why numbers are NaN: all of them, or the error and the ends of the interval; "" if none is."""

    slope: float = NAN
    se: float = NAN
    ci_low: float = NAN
    ci_high: float = NAN
    clusters: int = 0
    reason: str = ""


def cluster_slope(
    y: ArrayLike, x: ArrayLike, cluster: Integer[np.ndarray, " N"], weight: ArrayLike | None = None
) -> Slope:
    """Fit y on x and a constant by weighted least squares; return the slope of x, its cluster-robust (CR1) standard
    error and Student's t interval on u - 1 degrees of freedom, u the number of clusters with a y off the median.

    Parameters
    ----------
    y : array (N,)
        Outcome of each row: an indicator, a multiplier, or another number.
    x, weight : array (N,)
        Regressor and weight of each row; all weights are 1 by default.
    cluster : int array (N,)
        Cluster of each row, numbered from 0 without gaps.
    """
    y, x = np.asarray(y, np.float64), np.asarray(x, np.float64)
    if y.size == 0:
        return Slope(reason="no rows")
    unusual = int(np.count_nonzero(np.bincount(cluster, y != np.median(y))))
    w = np.ones_like(y) if weight is None else np.asarray(weight, np.float64)
    total = float(w.sum())
    x, y = x - float(w @ x) / total, y - float(w @ y) / total
    group = dense(cluster)
    wxx, wxy = (totals(group, int(group.max()) + 1, values) for values in (w * x * x, w * x * y))
    return slope_of_sums(wxx, wxy, total, unusual)


def slope_of_sums(wxx: Float64[np.ndarray, " C"], wxy: Float64[np.ndarray, " C"], weight: float, unusual: int) -> Slope:
    """Compute the slope of :func:`cluster_slope` from sums over each cluster's rows.

    Parameters
    ----------
    wxx, wxy : array (C,)
        Sums of w x^2 and w x y over the rows of each cluster (or group of clusters): w the weight, x the regressor and
        y the outcome of a row, x and y less their weighted means over all rows.
    weight : float
        Sum of w over all rows.
    unusual : int
        Number of clusters with a row whose y is not the usual value (the median, or the commoner of two outcomes).
        Below 10 the residuals tell too little of the slope's error, so error and interval are NaN.
    """
    clusters, spread = len(wxx), float(np.sum(wxx))
    if clusters < MIN_CLUSTERS:
        return Slope(reason=TOO_FEW)
    if not spread > 1e-12 * weight:
        return Slope(reason="all responses have one length")
    slope = float(np.sum(wxy)) / spread
    if unusual < MIN_SHOWING:
        return Slope(slope, clusters=clusters, reason=too_few_showing(unusual))
    se = float(np.sqrt(np.sum((wxy - slope * wxx) ** 2) * clusters / (clusters - 1))) / spread
    half = t_quantile(min(clusters, unusual) - 1) * se
    return Slope(slope, se, slope - half, slope + half, clusters)
