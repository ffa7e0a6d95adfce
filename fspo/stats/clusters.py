"""Array kernels: ratios of sums over clusters, their linearised covariance, and intervals.

A cluster is (rollout, prompt): the responses of one prompt share its difficulty and, through the advantage,
each other's rewards. Everything here is a ratio ``sum y / sum d`` by length bin; the covariance comes from the
clusters' influence values ``z_c = (y_c - r d_c) / sum d``, each over one minus its share of ``sum d`` as in a
delete-one jackknife.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MIN_CLUSTERS = 5
"""Below this many clusters a cell of a table is NaN, with the reason."""
TOO_FEW = f"fewer than {MIN_CLUSTERS} clusters"
BORROW = 10.0
"""Clusters with a rarer outcome at which their own covariance counts as much as a model's."""


@dataclass(frozen=True)
class Ratios:
    """Ratios by bin; the last entry is all bins together.

    Attributes
    ----------
    value, variance : array (K+1,)
    count, clusters : array (K+1,)
        Rows and clusters with a row.
    influence : array (C, K+1)
        z_c; their cross products times C/(C-1) are the covariance.
    rows, sums, base : array (C, K)
        Rows, numerators and denominators by cluster and bin.
    binary : bool
        Rates of indicators.
    """

    value: Floats
    variance: Floats
    count: Ints
    clusters: Ints
    influence: Floats
    rows: Floats
    sums: Floats
    base: Floats
    binary: bool = False

    @property
    def shares(self) -> bool:
        """Whether every value is a share, of rows or of weights: no numerator is below 0 or above its denominator."""
        return self.binary or bool(np.all((self.sums >= 0) & (self.sums <= self.base * (1 + 1e-9))))


def totals(code: Ints, number: int, values: ArrayLike | None = None) -> Floats:
    """Sums of values (N,), or numbers of rows, by code 0..number-1."""
    return np.asarray(np.bincount(code, values, number), np.float64)


def sum_by(cluster: Ints, bins: Ints, number: int, values: ArrayLike) -> Floats:
    """Sums by cluster and bin (C, K) for dense cluster numbers."""
    clusters = int(cluster.max()) + 1 if cluster.size else 0
    return totals(cluster * number + bins, clusters * number, values).reshape(clusters, number)


def dense(cluster: Ints) -> Ints:
    """Cluster numbers 0..C-1."""
    return np.unique(cluster, return_inverse=True)[1].reshape(-1).astype(np.int64)


def ratios(
    y: ArrayLike, cluster: Ints, bins: Ints, number: int, d: ArrayLike | None = None, *, binary: bool = False
) -> Ratios:
    """Cluster-aware ratios sum(y)/sum(d) by bin and overall.

    Parameters
    ----------
    y, d : array (N,)
        Numerator and denominator of each row (d = 1 by default).
    cluster, bins : int array (N,)
        ``cluster`` numbered densely (:func:`dense`), ``bins`` in 0..number-1.
    binary : bool
        y is an indicator: where a bin has only 0s or only 1s the linearised variance is 0 and is replaced by
        that of a proportion with two more successes and failures among its clusters.
    """
    y = np.asarray(y, np.float64)
    rows = sum_by(cluster, bins, number, np.ones_like(y))
    ys = sum_by(cluster, bins, number, y)
    ds = rows if d is None else sum_by(cluster, bins, number, d)
    return ratios_of_sums(rows, ys, ds, binary=binary)


def ratios_of_sums(
    rows: Floats, ys: Floats, ds: Floats, *, clusters: Ints | None = None, binary: bool = False
) -> Ratios:
    """:func:`ratios` from sums by cluster and bin.

    Parameters
    ----------
    rows, ys, ds : array (C, K)
        Rows, numerators and denominators; a cluster may be a union of several, which are then as independent.
    clusters : int array (K+1,), optional
        Number of clusters with a row, where the sums are of unions.
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
    # the step that deleting the cluster would make; without it, uneven clusters make intervals too short
    influence = influence / (1 - leverage) * (present - 1) / present
    with np.errstate(over="ignore"):  # the clipped weights of a collapsed run over weights that are all but 0
        variance = np.sum(influence**2, axis=0) * present / (present - 1)
    if binary:
        flat = (variance < 1e-300) & (met > 0)
        variance[flat] = flat_variance(met[flat])
    return Ratios(value, variance, counts.sum(0).astype(np.int64), met, influence, rows, sums, base, binary)


def flat_variance(clusters: ArrayLike) -> Any:
    """Variance of a share where all clusters agree: that of two more successes and failures among them."""
    met = np.asarray(clusters, np.float64)
    share = 2 / (met + 4)
    return share * (1 - share) / met


def borrowed(rare: ArrayLike) -> Floats:
    """Weight of the clusters' own covariance, where ``rare`` clusters show the rarer outcome; the rest is a model's."""
    rare = np.asarray(rare, np.float64)
    return rare / (rare + BORROW)
