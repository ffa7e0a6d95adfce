"""The exponent at which a band accepts every length alike, and why a sqrt band's acceptance depends on the length.

Theory: docs/theory.md T1 and T17. A band accepts a response where X <= f L^gamma; X is how far S lies from 0, and f
makes the mean acceptance ``share``. T17 (c): gamma is fair at this share where the ``share``-quantiles of X grow as
L^gamma.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from analysis.log.rows import Floats, Ints
from fspo.stats.bins import quantile_bins
from fspo.stats.intervals import CONFIDENCE

SIGNS = {"all": 0, "A > 0": 1, "A < 0": -1}
"""Which responses: both edges cut "all"; the upper edge alone cuts those with A > 0, the lower those with A < 0."""
WIDEST = 3.0
"""Exponents from -WIDEST to WIDEST are tried."""


class Bounded(NamedTuple):
    """An estimate with the ends of its interval at the level ``CONFIDENCE``; NaN where there is none."""

    value: float
    low: float
    high: float


def distance(S: Floats, sign: int) -> Floats:
    """Return how far S lies beyond 0 towards the edges that can cut it: |S|, S (A > 0) or -S (A < 0), nats."""
    return np.abs(S) if sign == 0 else sign * S


def trend(X: Floats, L: Floats, share: float, gamma: float) -> float:
    """Return the change of acceptance for each doubling of L of the band X <= f L^gamma that accepts ``share``."""
    scaled = X / L**gamma
    accepted = scaled <= np.quantile(scaled, share)
    x = np.log2(L) - np.log2(L).mean()
    return float(x @ accepted / (x @ x))


def fair_exponent(X: Floats, L: Floats, share: float) -> float:
    """Return the gamma at which `trend` is 0; NaN if there is none between -WIDEST and WIDEST, or the quantile is 0.

    The trend rises with gamma in steps; the answer is where it changes its sign.
    """
    if len(X) == 0 or np.ptp(L) == 0 or np.quantile(X, share) <= 0:
        return float("nan")
    if not trend(X, L, share, -WIDEST) < 0 < trend(X, L, share, WIDEST):
        return float("nan")
    found: Any = optimize.bisect(lambda gamma: trend(X, L, share, gamma), -WIDEST, WIDEST, xtol=1e-3)
    return float(found)


class Parts(NamedTuple):
    """The trend of a sqrt band around 0, and its parts, which add up to it; acceptance for each doubling of L."""

    trend: float
    drift: float
    scale: float
    shape: float


def trend_parts(S: Floats, L: Floats, share: float) -> Parts:
    """Split the trend of the band |S| <= f sqrt(L) that accepts ``share``.

    In bins of lengths, drift is what goes when the bin's mean of S is taken away, and scale what then goes when S is
    scaled to a variance proportional to L. Shape is the trend that is left: the bins' laws differ in more than both.
    """
    bin_ = quantile_bins(L).index(L)
    count = np.bincount(bin_)
    centred = S - (np.bincount(bin_, S) / np.maximum(count, 1))[bin_]
    slope = np.bincount(bin_, centred**2) / np.maximum(np.bincount(bin_, L), 1e-300)
    spread = np.sqrt(np.maximum(slope, 1e-300))[bin_]
    steps = [trend(np.abs(x), L, share, 0.5) for x in (S, centred, centred / spread)]
    return Parts(steps[0], steps[0] - steps[1], steps[1] - steps[2], steps[2])


def interval(of: Callable[[Ints], Floats], cluster: Ints, resamples: int = 200, seed: int = 0) -> list[Bounded]:
    """Return estimates with percentile intervals from resampled clusters.

    Parameters
    ----------
    of : callable
        Row numbers (N,) to estimates (K,).
    cluster : int array (N,)
        Each row's cluster.
    """
    value = of(np.arange(len(cluster)))
    drawn = np.array([of(rows) for rows in _resampled(cluster, resamples, seed)])
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], axis=0)  # NaN where a resample has no estimate
    return [Bounded(*map(float, ends)) for ends in zip(value, low, high, strict=True)]


def _resampled(cluster: Ints, resamples: int, seed: int) -> Iterator[Ints]:
    order = np.argsort(cluster, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(cluster[order])) + 1)
    draw = np.random.default_rng(seed)
    for _ in range(resamples):
        yield np.concatenate([members[i] for i in draw.integers(len(members), size=len(members))])
