"""Confidence intervals: the level of all of them, Student's t, shares and means over clusters, simultaneous bands."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize
from scipy import stats as sps

from fspo.stats.clusters import MIN_CLUSTERS, Floats

CONFIDENCE = 0.95
"""The level of every interval that is written, unless its table names another one."""
EQUIVALENCE = 2 * CONFIDENCE - 1
"""The level of the interval that lies within -margin..margin exactly where two one-sided tests find equivalence."""
PERCENT = f"{100 * CONFIDENCE:g} %"
"""The level in words, for captions, reports and help."""


@lru_cache(maxsize=1024)
def t_quantile(df: float, level: float = CONFIDENCE) -> float:
    """Half-width, in standard errors, of the two-sided Student's t interval on ``df`` degrees of freedom.

    The normal law's where ``df`` is infinite, NaN where it is not positive.
    """
    return float(sps.t.ppf((1 + level) / 2, df))


def sample_interval(values: ArrayLike, level: float = CONFIDENCE) -> tuple[float, float, float]:
    """Mean of independent values (N,) with both ends of its Student's t interval.

    NaN ends with fewer than two values, and a NaN mean with none.
    """
    x = np.asarray(values, np.float64)
    mean = float(x.mean()) if x.size else float("nan")
    half = float(t_quantile(x.size - 1, level) * x.std(ddof=1) / np.sqrt(x.size)) if x.size >= 2 else float("nan")
    return mean, mean - half, mean + half


def proportion_interval(
    value: ArrayLike, variance: ArrayLike, count: ArrayLike, clusters: ArrayLike, level: float = CONFIDENCE
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
    value: ArrayLike, variance: ArrayLike, clusters: ArrayLike, level: float = CONFIDENCE
) -> tuple[Floats, Floats]:
    """Student's t interval on C-1 degrees; NaN below ``MIN_CLUSTERS``."""
    m, v, c = (np.asarray(x, np.float64) for x in (value, variance, clusters))
    half = sps.t.ppf((1 + level) / 2, np.maximum(c - 1, 1)) * np.sqrt(v)
    few = c < MIN_CLUSTERS
    return np.where(few, np.nan, m - half), np.where(few, np.nan, m + half)


def detectable(half_width: float, df: float = np.inf, *, level: float = CONFIDENCE, power: float = 0.8) -> float:
    """Smallest true difference from 0 that a two-sided test at 1 - ``level`` finds with probability ``power``.

    Parameters
    ----------
    half_width : float
        Of the interval at ``level``, Student's t on ``df`` degrees of freedom (normal by default).

    Returns
    -------
    float
        About 1.43 half-widths for a normal interval at 95 % and a power of 80 %. The test finds a difference in either
        direction; the chance of the wrong one is included.
    """
    if not (np.isfinite(half_width) and half_width >= 0):
        return float("nan")
    if half_width == 0:
        return 0.0
    critical = t_quantile(df, level)

    # Student's t is a normal over the root of a chi-square: average over that root
    levels = (np.arange(2000) + 0.5) / 2000
    root = np.ones(1) if np.isinf(df) else np.sqrt(sps.chi2.ppf(levels, df) / df)

    def missing(shift: float) -> float:
        found = sps.norm.sf(critical * root - shift) + sps.norm.cdf(-critical * root - shift)
        return float(np.mean(found)) - power

    shift: Any = optimize.brentq(missing, 0.0, 4 * critical + 10)
    return half_width / critical * float(shift)


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


def simultaneous_half_widths(covariance: Floats, df: int, level: float = CONFIDENCE) -> Floats:
    """Half-widths (K,) of bands that hold together with probability ``level`` (max-t); 0 where the variance is 0."""
    se = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    some = se > 0
    if not np.any(some):
        return se
    draws = error_draws(covariance, df)[:, some] / se[some]
    return se * float(np.quantile(np.max(np.abs(draws), axis=1), level))
