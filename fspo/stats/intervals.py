"""Confidence intervals: their level, Student's t, shares and means over clusters."""

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

    With infinite ``df`` it is the half-width of the normal interval. It is NaN if ``df`` is not positive."""
    return float(special.stdtrit(df, (1 + level) / 2))


def sample_interval(values: ArrayLike, level: float = CONFIDENCE) -> tuple[float, float, float]:
    """Return the mean of independent values (N,) and both ends of its Student's t interval.

    The ends are NaN with fewer than two values, and the mean is NaN with none."""
    x = np.asarray(values, np.float64)
    mean = float(x.mean()) if x.size else float("nan")
    half = float(t_quantile(x.size - 1, level) * x.std(ddof=1) / np.sqrt(x.size)) if x.size >= 2 else float("nan")
    return mean, mean - half, mean + half


def proportion_interval(
    value: ArrayLike, variance: ArrayLike, count: ArrayLike, clusters: ArrayLike, level: float = CONFIDENCE
) -> tuple[Float64[np.ndarray, "*K"], Float64[np.ndarray, "*K"]]:
    """Return both ends of the Wilson interval of each of K shares p (``value``), ``variance`` the variance of p.

    The sample size in Wilson's formula is C, the number of ``clusters``, if p is 0 or 1, else p(1-p)/variance, but at
    most ``count``, the number of rows. The quantile is Student's t on C-1 degrees of freedom. NaN if C < 5."""
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
    """Return both ends of Student's t interval of each of K means (``value``), ``variance`` the variance of the mean,
    on C-1 degrees of freedom, C the number of ``clusters``; NaN if C < 5."""
    m, v, c = (np.asarray(x, np.float64) for x in (value, variance, clusters))
    half = special.stdtrit(np.maximum(c - 1, 1), (1 + level) / 2) * np.sqrt(v)
    few = c < MIN_CLUSTERS
    return np.where(few, np.nan, m - half), np.where(few, np.nan, m + half)
