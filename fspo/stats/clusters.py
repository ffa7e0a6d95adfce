"""Array kernels: ratios of sums over clusters, their linearised covariance, and intervals.

A cluster is (rollout, prompt): the responses of one prompt share its difficulty and, through the advantage,
each other's rewards. Everything here is a ratio ``sum y / sum d`` by length bin; the covariance comes from the
clusters' influence values ``z_c = (y_c - r d_c) / sum d``, each over one minus its share of ``sum d`` as in a
delete-one jackknife.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special
from scipy import stats as sps

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


def proportion_interval(
    value: ArrayLike, variance: ArrayLike, count: ArrayLike, clusters: ArrayLike, level: float = 0.95
) -> tuple[Floats, Floats]:
    """Wilson interval at the effective sample size p(1-p)/variance, with Student's t on C-1 degrees.

    The effective size is at most the row count; where all rows agree it is the number of clusters.
    """
    p, v, n, c = (np.asarray(x, np.float64) for x in (value, variance, count, clusters))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        size = np.where((p > 0) & (p < 1), np.minimum(p * (1 - p) / v, n), c)
    t2 = sps.t.ppf((1 + level) / 2, np.maximum(c - 1, 1)) ** 2
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        centre = (p + t2 / (2 * size)) / (1 + t2 / size)
        half = np.sqrt(t2) / (1 + t2 / size) * np.sqrt(p * (1 - p) / size + t2 / (4 * size**2))
    # where all rows agree that end is exact, and rounding would move it
    low, high = np.where(p == 0, 0.0, np.clip(centre - half, 0, 1)), np.where(p == 1, 1.0, np.clip(centre + half, 0, 1))
    few = c < MIN_CLUSTERS
    return np.where(few, np.nan, low), np.where(few, np.nan, high)


def mean_interval(
    value: ArrayLike, variance: ArrayLike, clusters: ArrayLike, level: float = 0.95
) -> tuple[Floats, Floats]:
    """Student's t interval on C-1 degrees; NaN below ``MIN_CLUSTERS``."""
    m, v, c = (np.asarray(x, np.float64) for x in (value, variance, clusters))
    half = sps.t.ppf((1 + level) / 2, np.maximum(c - 1, 1)) * np.sqrt(v)
    few = c < MIN_CLUSTERS
    return np.where(few, np.nan, m - half), np.where(few, np.nan, m + half)


def detectable(half_width: float, df: float = np.inf, *, level: float = 0.95, power: float = 0.8) -> float:
    """Smallest true difference from 0 that a two-sided test at 1 - ``level`` finds with probability ``power``.

    Parameters
    ----------
    half_width : float
        Of the interval at ``level``, Student's t on ``df`` degrees of freedom (normal by default).

    Returns
    -------
    float
        About 1.43 half-widths for a normal 95 % interval and a power of 80 %. The test finds a difference in either
        direction; the chance of the wrong one is included.
    """
    if not (np.isfinite(half_width) and half_width >= 0):
        return float("nan")
    if half_width == 0:
        return 0.0
    critical = float(sps.t.ppf((1 + level) / 2, df))

    # Student's t is a normal over the root of a chi-square: average over that root
    levels = (np.arange(2000) + 0.5) / 2000
    root = np.ones(1) if np.isinf(df) else np.sqrt(sps.chi2.ppf(levels, df) / df)

    def missing(shift: float) -> float:
        found = sps.norm.sf(critical * root - shift) + sps.norm.cdf(-critical * root - shift)
        return float(np.mean(found)) - power

    shift: Any = optimize.brentq(missing, 0.0, 4 * critical + 10)
    return half_width / critical * float(shift)


@dataclass(frozen=True)
class Slope:
    """A cluster-robust regression slope with 95 % and 90 % intervals and two tests."""

    slope: float
    se: float
    ci_low: float
    ci_high: float
    ci90_low: float
    ci90_high: float
    p_value: float  # of slope = 0, two-sided
    tost_p: float  # of |slope| >= margin, two one-sided tests
    clusters: int
    reason: str = ""


def no_slope(reason: str) -> Slope:
    """All NaN, with the reason."""
    nan = float("nan")
    return Slope(nan, nan, nan, nan, nan, nan, nan, nan, 0, reason)


def cluster_slope(
    y: ArrayLike,
    x: ArrayLike,
    cluster: Ints,
    weight: ArrayLike | None = None,
    *,
    strata: Ints | None = None,
    margin: float,
) -> Slope:
    """Least squares of y on x with cluster-robust (CR1) standard error and t on C-1 degrees.

    Parameters
    ----------
    y : array (N,)
        A rate: indicators or multipliers. Where fewer than ``MIN_CLUSTERS`` clusters hold anything but its usual
        value (all accepted, or nearly) residuals tell too little, and the variance is at least that of a proportion
        with two more successes and failures among the clusters.
    x, weight : array (N,)
    cluster : int array (N,), dense
    strata : int array (N,), optional
        x is centred within each stratum (fixed effects); all rows by default.
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


def slope_of_sums(wx: Floats, wxx: Floats, wxy: Floats, weight: float, unusual: int, *, margin: float) -> Slope:
    """:func:`cluster_slope` from sums by cluster.

    Parameters
    ----------
    wx, wxx, wxy : array (C,)
        Sums of w x, w x^2 and w x y, x and y less their means (in the stratum).
    weight : float
        Sum of w.
    unusual : int
        Clusters with another value of y than its median.
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
    t95, t90 = _t_quantiles(df)
    if se > 0:
        p_value = float(2 * special.stdtr(df, -abs(slope) / se))
        tost_p = float(max(special.stdtr(df, -(slope + margin) / se), special.stdtr(df, (slope - margin) / se)))
    else:
        p_value, tost_p = float(slope == 0), float(abs(slope) >= margin)
    return Slope(
        slope, se, slope - t95 * se, slope + t95 * se, slope - t90 * se, slope + t90 * se, p_value, tost_p, clusters
    )


@lru_cache(maxsize=64)
def _t_quantiles(df: int) -> tuple[float, float]:
    """97.5 % and 95 % quantiles of Student's t."""
    return float(sps.t.ppf(0.975, df)), float(sps.t.ppf(0.95, df))


@lru_cache(maxsize=16)
def normal_draws(dimension: int, number: int = 4000, seed: int = 20250911) -> Floats:
    """Fixed standard normal draws (number, dimension), antithetic: intervals do not depend on a generator's state."""
    half = np.random.default_rng(seed).standard_normal((number // 2, dimension))
    draws = np.concatenate([half, -half])
    draws.setflags(write=False)
    return draws


@lru_cache(maxsize=64)
def _t_factors(df: int, number: int, seed: int = 20250912) -> Floats:
    return np.sqrt(df / np.random.default_rng(seed).chisquare(df, number))


def symmetric_root(covariance: Floats) -> Floats:
    """The symmetric square root (K, K) of a covariance: fixed draws times it do not hang on a numerical library.

    Eigenvectors are known up to a sign, and up to a rotation where eigenvalues agree, which a library chooses as it
    likes; with ``vectors * sqrt(values)`` that choice would move the ends of intervals. Eigenvalues below rounding
    are 0: their root would blow rounding up.
    """
    values, vectors = np.linalg.eigh(covariance)
    least = float(np.max(values, initial=0.0)) * len(covariance) * 1e-14
    return (vectors * np.sqrt(np.where(values > least, values, 0.0))) @ vectors.T


def error_draws(covariance: Floats, df: int) -> Floats:
    """Draws (M, K) of an estimate's error: multivariate t with the given covariance and degrees of freedom."""
    draws = normal_draws(len(covariance))
    return (draws @ symmetric_root(covariance)) * _t_factors(max(df, 1), len(draws))[:, None]


def simultaneous_half_widths(covariance: Floats, df: int, level: float = 0.95) -> Floats:
    """Half-widths (K,) of bands that hold together with probability ``level`` (max-t); 0 where the variance is 0."""
    se = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    some = se > 0
    if not np.any(some):
        return se
    draws = error_draws(covariance, df)[:, some] / se[some]
    return se * float(np.quantile(np.max(np.abs(draws), axis=1), level))
