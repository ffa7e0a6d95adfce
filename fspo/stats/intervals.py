"""Confidence intervals: their level, Student's t, shares and means over clusters, simultaneous bands."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from jaxtyping import Float64
from numpy.typing import ArrayLike
from scipy import special

from fspo.stats.clusters import MIN_CLUSTERS

CONFIDENCE = 0.95
"""Level of every interval in tables and figures, unless its table names another one."""
PERCENT = f"{100 * CONFIDENCE:g} %"
"""`CONFIDENCE` as text, for captions, reports and help."""


@lru_cache(maxsize=1024)
def t_quantile(df: float, level: float = CONFIDENCE) -> float:
    """Return the half-width, in standard errors, of the two-sided Student's t interval on ``df`` degrees of freedom.

    With infinite ``df`` it is the half-width of the normal interval. It is NaN if ``df`` is not positive.
    """
    return float(special.stdtrit(df, (1 + level) / 2))


def sample_interval(values: ArrayLike, level: float = CONFIDENCE) -> tuple[float, float, float]:
    """Return the mean of independent values (N,) and both ends of its Student's t interval.

    The ends are NaN with fewer than two values, and the mean is NaN with none.
    """
    x = np.asarray(values, np.float64)
    mean = float(x.mean()) if x.size else float("nan")
    half = float(t_quantile(x.size - 1, level) * x.std(ddof=1) / np.sqrt(x.size)) if x.size >= 2 else float("nan")
    return mean, mean - half, mean + half


def proportion_interval(
    value: ArrayLike, variance: ArrayLike, count: ArrayLike, clusters: ArrayLike, level: float = CONFIDENCE
) -> tuple[Float64[np.ndarray, "*K"], Float64[np.ndarray, "*K"]]:
    """Return the Wilson interval of a share p at the effective sample size p(1-p)/variance.

    The interval uses the quantile of Student's t on C-1 degrees of freedom, C the number of clusters. The effective
    size is at most the number of rows; if p is 0 or 1 it is C. Both ends are NaN if C is below ``MIN_CLUSTERS``.
    """
    p, v, n, c = (np.asarray(x, np.float64) for x in (value, variance, count, clusters))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        size = np.where((p > 0) & (p < 1), np.minimum(p * (1 - p) / v, n), c)
    t2 = special.stdtrit(np.maximum(c - 1, 1), (1 + level) / 2) ** 2
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        centre = (p + t2 / (2 * size)) / (1 + t2 / size)
        half = np.sqrt(t2) / (1 + t2 / size) * np.sqrt(p * (1 - p) / size + t2 / (4 * size**2))
    # If the share p is 0 or 1, set the interval's end there to exactly p, which rounding would miss.
    low, high = np.where(p == 0, 0.0, np.clip(centre - half, 0, 1)), np.where(p == 1, 1.0, np.clip(centre + half, 0, 1))
    few = c < MIN_CLUSTERS
    return np.where(few, np.nan, low), np.where(few, np.nan, high)


def mean_interval(
    value: ArrayLike, variance: ArrayLike, clusters: ArrayLike, level: float = CONFIDENCE
) -> tuple[Float64[np.ndarray, "*K"], Float64[np.ndarray, "*K"]]:
    """Return Student's t interval of a mean over C clusters, on C-1 degrees of freedom; NaN if C < ``MIN_CLUSTERS``."""
    m, v, c = (np.asarray(x, np.float64) for x in (value, variance, clusters))
    half = special.stdtrit(np.maximum(c - 1, 1), (1 + level) / 2) * np.sqrt(v)
    few = c < MIN_CLUSTERS
    return np.where(few, np.nan, m - half), np.where(few, np.nan, m + half)


SEED = 20250911
"""Seed of the fixed normal draws from which intervals are computed."""


@lru_cache(maxsize=16)
def normal_draws(dimension: int, number: int = 4000, seed: int = SEED) -> Float64[np.ndarray, "{number} {dimension}"]:
    """Return fixed antithetic standard normal draws (number, dimension), so that intervals need no random state."""
    half = np.random.default_rng(seed).standard_normal((number // 2, dimension))
    draws = np.concatenate([half, -half])
    draws.setflags(write=False)
    return draws


@lru_cache(maxsize=64)
def _t_factors(df: int, number: int, seed: int = 20250912) -> Float64[np.ndarray, " {number}"]:
    return np.sqrt(df / np.random.default_rng(seed).chisquare(df, number))


def symmetric_root(covariance: Float64[np.ndarray, "K K"]) -> Float64[np.ndarray, "K K"]:
    """Return the symmetric square root (K, K) of a covariance.

    The symmetric root is unique, so intervals made with it do not depend on the numerical library. Eigenvectors are not
    unique: a library chooses their sign, and their rotation where eigenvalues agree. Eigenvalues below rounding are set
    to 0, because their root would enlarge the rounding error.
    """
    values, vectors = np.linalg.eigh(covariance)
    least = float(np.max(values, initial=0.0)) * len(covariance) * 1e-14
    return (vectors * np.sqrt(np.where(values > least, values, 0.0))) @ vectors.T


def error_draws(covariance: Float64[np.ndarray, "K K"], df: int) -> Float64[np.ndarray, "M K"]:
    """Return M draws (M, K) of the errors of K estimates: multivariate t with this covariance and ``df``."""
    draws = normal_draws(len(covariance))
    return (draws @ symmetric_root(covariance)) * _t_factors(max(df, 1), len(draws))[:, None]


def simultaneous_half_widths(
    covariance: Float64[np.ndarray, "K K"], df: int, level: float = CONFIDENCE
) -> Float64[np.ndarray, " K"]:
    """Return the half-widths (K,) of intervals around K estimates that all hold their true values at once with
    probability ``level`` (max-t).

    ``covariance`` is that of the estimates. A half-width is 0 where the estimate's variance is 0.
    """
    se = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    some = se > 0
    if not np.any(some):
        return se
    draws = error_draws(covariance, df)[:, some] / se[some]
    return se * float(np.quantile(np.max(np.abs(draws), axis=1), level))
