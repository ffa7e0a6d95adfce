"""Ratios of two sums over the rows of each length bin, and the ratios' linearised covariance.

A cluster is (rollout, prompt): the responses to one prompt depend on each other by its difficulty and, through the
advantage, by each other's rewards. A ratio r is ``sum y / sum d``, y and d the numerators and denominators of the rows.
The covariance of ratios comes from the clusters' influence values ``z_c = (y_c - r d_c) / sum d``, y_c and d_c the sums
over cluster c. Each z_c is divided by one minus the cluster's share of ``sum d``, as in a delete-one jackknife."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64, Integer, Shaped
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
MIN_CLUSTERS = 5
"""Least number of clusters for an estimate; with fewer, a table holds NaN and the reason."""
TOO_FEW = f"fewer than {MIN_CLUSTERS} clusters"
MIN_SHOWING = 10
"""Least number of clusters with a clipped response (or, where most are clipped, with one that is not) for an interval
of LRE or of a slope; with fewer, the intervals hold the truth too rarely."""


def too_few_showing(number: int) -> str:
    """Return the reason text for a missing interval: only ``number`` clusters have a row with the rarer outcome."""
    return f"too few: {number} clusters with a clipped response, or one that is not, and {MIN_SHOWING} are needed"


@dataclass(frozen=True)
class Ratios:
    """The ratio of two sums in each of K bins, with its error, from C clusters.

    An array of K+1 entries has a last entry for all bins together.

    Attributes
    ----------
    value, variance : array (K+1,)
        Each ratio and its variance.
    count, clusters : array (K+1,)
        Number of rows, and of clusters that have a row.
    influence : array (C, K+1)
        By how much each cluster moves each ratio, to first order; with z this array, the ratios' covariance, (K+1,
        K+1), is z^T z C/(C-1).
    rows, sums, base : array (C, K)
        Number of rows, sum of numerators and sum of denominators by cluster (or group of clusters) and bin.
    binary : bool
        Whether the ratios are shares of rows (the numerator is an indicator).
    """

    value: Float64[np.ndarray, " K1"]
    variance: Float64[np.ndarray, " K1"]
    count: Int64[np.ndarray, " K1"]
    clusters: Int64[np.ndarray, " K1"]
    influence: Float64[np.ndarray, "C K1"]
    rows: Float64[np.ndarray, "C K"]
    sums: Float64[np.ndarray, "C K"]
    base: Float64[np.ndarray, "C K"]
    binary: bool = False

    @property
    def shares(self) -> bool:
        """Whether all ratios are shares of rows or of weights: each cluster's numerator in each bin lies between
        0 and the denominator."""
        return self.binary or bool(np.all((self.sums >= 0) & (self.sums <= self.base * (1 + 1e-9))))


def totals(
    code: Integer[np.ndarray, " N"], number: int, values: ArrayLike | None = None
) -> Float64[np.ndarray, " {number}"]:
    """Return for each code c = 0..number-1 the sum of ``values`` over the rows whose ``code`` is c, (number,).

    ``code`` and ``values`` hold one entry for each of N rows. Without values, rows are counted."""
    return np.asarray(np.bincount(code, values, number), np.float64)


def sum_by(
    cluster: Integer[np.ndarray, " N"], bins: Integer[np.ndarray, " N"], number: int, values: ArrayLike
) -> Float64[np.ndarray, "C {number}"]:
    """Return sums of ``values`` (N,) by cluster and bin, (C, K), for the K = ``number`` bins. ``cluster`` and ``bins``
    (N,) give each value's cluster, numbered 0 to C-1 without gaps, and bin, 0 to K-1."""
    clusters = int(cluster.max()) + 1 if cluster.size else 0
    return totals(cluster * number + bins, clusters * number, values).reshape(clusters, number)


def dense(cluster: Shaped[np.ndarray, " N"]) -> Int64[np.ndarray, " N"]:
    """Return each row's cluster (N,), given by any numbers, renumbered in rising order as 0 to C-1 without gaps."""
    return np.unique(cluster, return_inverse=True)[1].reshape(-1).astype(np.int64)


def ratios(
    y: ArrayLike,
    cluster: Integer[np.ndarray, " N"],
    bins: Integer[np.ndarray, " N"],
    number: int,
    d: ArrayLike | None = None,
    *,
    binary: bool = False,
) -> Ratios:
    """Compute the ratios sum(y)/sum(d) in each of K = ``number`` bins and overall, with cluster-robust variances.

    Parameters
    ----------
    y, d : array (N,)
        Numerator and denominator of each row (d = 1 by default).
    cluster, bins : int array (N,)
        Each row's cluster, numbered from 0 without gaps (:func:`dense`), and its bin in 0..number-1.
    binary : bool
        Whether y is an indicator. If a bin then has only 0s or only 1s, its linearised variance is 0 and is replaced
        by that of :func:`flat_variance`.
    """
    y = np.asarray(y, np.float64)
    rows = sum_by(cluster, bins, number, np.ones_like(y))
    ys = sum_by(cluster, bins, number, y)
    ds = rows if d is None else sum_by(cluster, bins, number, d)
    return ratios_of_sums(rows, ys, ds, binary=binary)


def ratios_of_sums(
    rows: Float64[np.ndarray, "C K"],
    ys: Float64[np.ndarray, "C K"],
    ds: Float64[np.ndarray, "C K"],
    *,
    clusters: Int64[np.ndarray, " K+1"] | None = None,
    binary: bool = False,
) -> Ratios:
    """Compute the ratios sum(y)/sum(d) by bin and overall (:func:`ratios`) from sums by cluster and bin.

    Parameters
    ----------
    rows, ys, ds : array (C, K)
        Number of a log's rows, sum of their numerators and sum of their denominators, by cluster and bin; or by group
        of clusters and bin, C then the number of groups.
    clusters : int array (K+1,), optional
        Number of clusters with a row of the log in each bin and overall; needed if the sums are by group of clusters.
    """
    sums, base = ys, ds
    ys = np.column_stack([ys, ys.sum(1)])
    ds = np.column_stack([ds, ds.sum(1)])
    counts = np.column_stack([rows, rows.sum(1)])
    total = ds.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        value = np.where(total > 0, ys.sum(0) / total, np.nan)
        leverage = np.where(total > 0, np.minimum(ds / total, 0.9), 0.0)
        influence = np.where(total > 0, (ys - value * ds) / total, 0.0)
    met: Ints = np.sum(counts > 0, axis=0) if clusters is None else clusters
    present = max(len(ys), 2)
    # Scale each cluster's influence value to the change of the ratio if the cluster were deleted. Unscaled values make
    # intervals too short where clusters differ in size.
    influence = influence / (1 - leverage) * (present - 1) / present
    # Where training has collapsed, sums of weights are near 0 and ratios may overflow: numpy need not warn of it.
    with np.errstate(over="ignore"):
        variance = np.sum(influence**2, axis=0) * present / (present - 1)
    if binary:
        flat = (variance < 1e-300) & (met > 0)
        variance[flat] = flat_variance(met[flat])
    return Ratios(value, variance, counts.sum(0).astype(np.int64), met, influence, rows, sums, base, binary)


def flat_variance(clusters: ArrayLike) -> Any:
    """Return the variance to use for a share that is 0 (or 1) in each of c = ``clusters`` clusters, where the observed
    variance is 0: p (1 - p) / c with p = 2 / (c + 4), as if two successes and two failures were added."""
    met = np.asarray(clusters, np.float64)
    share = 2 / (met + 4)
    return share * (1 - share) / met
