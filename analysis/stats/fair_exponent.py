"""Find the exponent at which a band accepts every length alike, and the reasons why a sqrt band does not.

Theory: docs/theory.md T1 and T10. A band accepts a response where X <= f L^gamma; X is how far S lies from 0, and f is
the range. In each window of a log, f is set so that the band accepts the share ``share`` of the responses. With one f
for all windows, a law of S that changes between windows would look like a law that changes with the length. By T10 (a),
the exponent gamma is fair (every length is accepted alike) if the ``share``-quantile of X given L grows as L^gamma.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from analysis.log.rows import Floats, Ints, Rows, windows
from analysis.options import Options
from fspo.stats.bins import quantile_bins
from fspo.stats.clusters import dense
from fspo.stats.intervals import CONFIDENCE

ResponseSet = Literal["all", "A != 0, both edges", "A != 0", "A > 0", "A < 0"]
"""A set of responses of a log, and which edges of a band count. In the first two sets a response is accepted where S
lies in the band. In the others the band cuts a response only at the edge of its active side: the upper edge if A > 0,
the lower one if A < 0."""
BOTH_EDGES: tuple[ResponseSet, ...] = ("all", "A != 0, both edges")
WINDOW = Options.window
"""Number of rollouts in a window, as in the tables of ``fspo analyse``."""
WIDEST = 3.0
"""The fair exponent is searched for from -WIDEST to WIDEST."""


class Bounded(NamedTuple):
    """An estimate with the ends of its confidence interval (level ``CONFIDENCE``); NaN if it cannot be computed."""

    value: float
    low: float
    high: float


def members_of(A: Floats, responses: ResponseSet) -> NDArray[np.bool_]:
    """Return whether each response, with advantage A (N,), belongs to the set ``responses``."""
    sets = {"all": np.ones(len(A), bool), "A > 0": A > 0, "A < 0": A < 0}
    return sets.get(responses, A != 0)


def distance(S: Floats, A: Floats, responses: ResponseSet) -> Floats:
    """Return how far each S (N,) lies from 0 towards the edges that can cut the response, nats.

    This is |S| if both edges can (`BOTH_EDGES`), else S where A > 0 and -S where A < 0.
    """
    return np.abs(S) if responses in BOTH_EDGES else np.sign(A) * S


def trend(X: Floats, L: Floats, share: float, gamma: float, parts: Sequence[Ints]) -> float:
    """Return how much the acceptance of the band X <= f L^gamma changes for each doubling of the length L.

    X is how far S lies from 0 (`distance`), f the range. In each window f is set so that the band accepts the share
    ``share`` of the responses. ``parts`` holds the indices of each window's rows.
    """
    scaled, accepted = X / L**gamma, np.zeros(len(X), bool)
    for rows in parts:
        accepted[rows] = scaled[rows] <= np.quantile(scaled[rows], share)
    x = np.log2(L) - np.log2(L).mean()
    return float(x @ accepted / (x @ x))


def fair_exponent(X: Floats, L: Floats, share: float, window: Ints) -> float:
    """Return the exponent gamma at which the acceptance of the band X <= f L^gamma has no trend with the length.

    In each window the range f is set so that the band accepts the share ``share`` of the responses (`trend`). The trend
    rises with gamma in steps; the result is the gamma at which it changes its sign: -inf if that lies below -WIDEST,
    inf if it lies above WIDEST. The result is NaN if the ``share``-quantile of X is not above 0 in some window, or if
    the trend does not depend on gamma, as with equal lengths.

    Parameters
    ----------
    X, L : float arrays (N,)
        How far each response's S lies from 0, nats (`distance`); the response's length, tokens.
    window : int array (N,)
        Each response's window.
    """
    parts = members(window)
    if len(X) == 0 or np.ptp(L) == 0 or any(np.quantile(X[rows], share) <= 0 for rows in parts):
        return float("nan")
    least, most = (trend(X, L, share, end, parts) for end in (-WIDEST, WIDEST))
    if least == most:
        return float("nan")
    if not least < 0 < most:
        return -math.inf if least >= 0 else math.inf
    found: Any = optimize.bisect(lambda gamma: trend(X, L, share, gamma, parts), -WIDEST, WIDEST, xtol=1e-3)
    return float(found)


def fair_exponents(
    rows: Rows, shares: Sequence[float], responses: ResponseSet = "all", size: int = WINDOW, **sampling: int
) -> list[Bounded]:
    """Return for each accepted share the fair exponent (`fair_exponent`) with its bootstrap interval (`interval`).

    A window has ``size`` rollouts. Of the rows, those in the set ``responses`` are used. ``sampling`` are keyword
    arguments of `interval`.
    """
    some = rows if responses == "all" else rows.take(members_of(rows.A, responses))
    X, window = distance(some.S, some.A, responses), windows(some.rollout, size)

    def fitted(at: Ints) -> Floats:
        return np.array([fair_exponent(X[at], some.length[at], share, window[at]) for share in shares])

    return interval(fitted, dense(some.cluster), **sampling)


class Parts(NamedTuple):
    """The change of a sqrt band's acceptance for each doubling of L (``trend``), and three parts that add up to it.

    The band is centred at 0. `trend_parts` explains the parts.
    """

    trend: float
    drift: float
    scale: float
    shape: float


def trend_parts(S: Floats, L: Floats, share: float, window: Ints, one_edge: bool = False) -> Parts:
    """Split the `trend` with length of the acceptance of the band |S| <= f sqrt(L) into three parts.

    With ``one_edge`` the band is S <= f sqrt(L), for an S that is positive towards the edge that can cut the response.
    The range f is set in each window so that the share ``share`` is accepted. Each window is divided into bins of
    length. ``drift`` is what the trend loses when each bin's mean of S is subtracted from S. ``scale`` is what the
    trend then loses when S is divided, bin by bin, by a factor that makes its variance proportional to L. ``shape`` is
    the trend that is left, because the laws of S in the bins differ in more than mean and variance.
    """
    parts, centred, spread = members(window), np.empty_like(S), np.empty_like(S)
    for rows in parts:
        bin_ = quantile_bins(L[rows]).index(L[rows])
        count = np.bincount(bin_)
        centred[rows] = S[rows] - (np.bincount(bin_, S[rows]) / np.maximum(count, 1))[bin_]
        slope = np.bincount(bin_, centred[rows] ** 2) / np.maximum(np.bincount(bin_, L[rows]), 1e-300)
        spread[rows] = np.sqrt(np.maximum(slope, 1e-300))[bin_]
    steps = [trend(x if one_edge else np.abs(x), L, share, 0.5, parts) for x in (S, centred, centred / spread)]
    return Parts(steps[0], steps[0] - steps[1], steps[1] - steps[2], steps[2])


def members(group: Ints) -> list[Ints]:
    """Return the indices of the rows of each group, groups in increasing order; ``group`` (N,) is each row's group."""
    order = np.argsort(group, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(group[order])) + 1)


def interval(of: Callable[[Ints], Floats], cluster: Ints, resamples: int = 200, seed: int = 0) -> list[Bounded]:
    """Return K estimates with percentile intervals from a bootstrap that redraws whole clusters.

    Parameters
    ----------
    of : callable
        Function that computes K estimates (K,) from rows, given by their indices (N,).
    cluster : int array (N,)
        Each row's cluster.
    """
    value = of(np.arange(len(cluster)))
    drawn = np.array([of(rows) for rows in _resampled(cluster, resamples, seed)])
    tail = (1 - CONFIDENCE) / 2
    # Both ends of an interval are NaN if the estimate is NaN in some resample. Each end is one of the resampled
    # estimates, not an interpolation between two of them, because estimates may be infinite.
    low, high = np.quantile(drawn, [tail, 1 - tail], axis=0, method="inverted_cdf")
    return [Bounded(*map(float, ends)) for ends in zip(value, low, high, strict=True)]


def _resampled(cluster: Ints, resamples: int, seed: int) -> Iterator[Ints]:
    rows, draw = members(cluster), np.random.default_rng(seed)
    for _ in range(resamples):
        yield np.concatenate([rows[i] for i in draw.integers(len(rows), size=len(rows))])
