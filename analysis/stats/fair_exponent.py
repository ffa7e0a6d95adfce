"""Find the exponent at which a band accepts every length alike, and what each sign of A adds to it.

Theory: docs/theory.md T1 and T10. A band accepts a response where X <= f L^gamma; X is how far S lies from 0, and f is
the range. In each block of a log, f is set so that the band accepts the share ``share`` of the responses. With one f
for all blocks, a distribution of S that changes between blocks would look like a distribution that changes with the
length. By T10 (a), the exponent gamma is fair (every length is accepted alike) if the ``share``-quantile of X given L
grows as L^gamma."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from analysis.log.rows import Floats, Ints, Rows, windows
from analysis.options import Options
from fspo.stats.clusters import MIN_SHOWING, dense
from fspo.stats.intervals import t_quantile

ResponseSet = Literal["all", "A != 0, both edges", "A != 0", "A > 0", "A < 0"]
"""A set of responses of a log, and which edges of a band count. In the first two sets a response is accepted where S
lies in the band. In the others the band clips a response only at the edge of its active side: the upper edge if A > 0,
the lower one if A < 0."""
BOTH_EDGES: tuple[ResponseSet, ...] = ("all", "A != 0, both edges")
WINDOW = Options.window
"""Number of rollouts in a block, as in the tables of ``fspo analyse``."""
WIDEST = 3.0
"""The fair exponent is searched for from -WIDEST to WIDEST."""

BANDWIDTH = 0.15
"""Width of the kernel that estimates a density at a band's edge, in the log of the distance from the centre."""


class Bounded(NamedTuple):
    """An estimate ``value`` and the ends ``low`` and ``high`` of its 95 % interval; NaN if it cannot be computed."""

    value: float
    low: float
    high: float


def members_of(A: Floats, responses: ResponseSet) -> NDArray[np.bool_]:
    """Return a mask (N,) of the responses, with advantages A (N,), that belong to the set named ``responses``."""
    sets = {"all": np.ones(len(A), bool), "A > 0": A > 0, "A < 0": A < 0}
    return sets.get(responses, A != 0)


def distance(S: Floats, A: Floats, responses: ResponseSet) -> Floats:
    """Return X of each response (N,): how far S lies from 0 towards the edges that can clip the response, nats.

    In a set whose responses both edges can clip ("all"; "A != 0, both edges"), X is |S|. Else X is S where A > 0, and
    -S where A < 0."""
    return np.abs(S) if responses in BOTH_EDGES else np.sign(A) * S


def trend(X: Floats, L: Floats, share: float, gamma: float, parts: Sequence[Ints]) -> float:
    """Return how much the acceptance of the band X <= f L^gamma (the share of responses in it) changes for each
    doubling of the length L.

    X is how far S lies from 0 (`distance`), f the range. In each block f is set so that the band accepts the share
    ``share`` of the responses. ``parts`` holds the indices of each block's rows."""
    scaled, accepted = X / L**gamma, np.zeros(len(X), bool)
    for rows in parts:
        accepted[rows] = scaled[rows] <= np.quantile(scaled[rows], share)
    x = np.log2(L) - np.log2(L).mean()
    return float(x @ accepted / (x @ x))


def fair_exponent(X: Floats, L: Floats, share: float, window: Ints) -> float:
    """Return the exponent gamma at which the acceptance of the band X <= f L^gamma does not change with the length.

    In each block the range f is set so that the band accepts the share ``share`` of the responses (`trend`). The slope
    rises with gamma in steps; the result is the gamma at which it changes its sign: -inf if that lies below -3, inf if
    it lies above 3. The result is NaN if the ``share``-quantile of X is not above 0 in some block, or if the slope does
    not depend on gamma, as with equal lengths.

    Parameters
    ----------
    X, L : float arrays (N,)
        How far each response's S lies from 0, nats (`distance`); the response's length, tokens.
    window : int array (N,)
        Each response's block.
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
    rows: Rows, shares: Sequence[float], responses: ResponseSet = "all", size: int = WINDOW
) -> list[Bounded]:
    """Return the fair exponent of a log, with its interval, at several acceptances.

    Parameters
    ----------
    rows : Rows
        Rows of the log, of which those in the set ``responses`` are used.
    shares : sequence of float
        Acceptances at which a band is set in each block of rollouts: the share that it does not clip.
    size : int
        Number of rollouts in a block.
    """
    some = rows if responses == "all" else rows.take(members_of(rows.A, responses))
    X, window = distance(some.S, some.A, responses), windows(some.rollout, size)
    return [with_interval(X, some.length, share, window, some.cluster) for share in shares]


class Fair(NamedTuple):
    """The fair exponent of a set of responses, such as those with A > 0, and what the set adds to the exponent of all
    (docs/theory.md T10 (b)).

    The exponent of all responses with A != 0 is, near one length, the sum of ``weight * exponent + of_shares`` over the
    two signs of A: the sign's own exponent, weighted by the sign's share of the responses near the edge, and what the
    change of the sign's share with the length adds."""

    exponent: Bounded
    weight: float
    of_shares: float


def fair_by_sign(rows: Rows, share: float, size: int = WINDOW) -> dict[str, Fair]:
    """Return the fair exponents of all responses with A != 0 ("all") and of A > 0 and A < 0 ("positive", "negative").

    A response is clipped at the edge of its active side. In each block of ``size`` rollouts the range is such that the
    share ``share`` of all is kept; a sign's own exponent is the fair one at the share of its responses that is kept."""
    some = rows.take(rows.A != 0)
    X, L, window, cluster = distance(some.S, some.A, "A != 0"), some.length, windows(some.rollout, size), some.cluster
    gamma = with_interval(X, L, share, window, cluster)
    unknown, x, total, both = Bounded(math.nan, math.nan, math.nan), np.log(L), 0.0, {}
    if math.isfinite(gamma.value):
        beyond = beyond_edge(X, L, share, gamma.value, members(window))
        x, total = x - x.mean(), float(near_edge(beyond).sum())
        # The scale that makes the edge the same in all blocks: a clipped response has X > L^gamma.
        X = np.exp(beyond) * L**gamma.value
    for name, sign in (("positive", 1.0), ("negative", -1.0)):
        at = np.sign(some.A) == sign
        if not total or not at.any():
            both[name] = Fair(unknown, math.nan, math.nan)
            continue
        cut = float(np.mean(beyond[at] > 0))
        own = with_interval(X[at], L[at], 1 - cut, np.zeros(at.sum(), np.int64), cluster[at])
        shift = float(x @ at / (x @ x)) * cut * len(x) / total
        both[name] = Fair(own, float(near_edge(beyond[at]).sum()) / total, shift)
    return {"all": Fair(gamma, 1.0, sum(sign.of_shares for sign in both.values())), **both}


def beyond_edge(X: Floats, L: Floats, share: float, gamma: float, parts: Sequence[Ints]) -> Floats:
    """Return for each response (N,) the log of X / (f L^gamma): above 0 beyond the edge, -inf where X <= 0. X is its
    `distance`, f the range; in each block of ``parts`` (indices of rows) f accepts the share ``share``."""
    with np.errstate(divide="ignore", invalid="ignore"):
        out = np.where(X > 0, np.log(X) - gamma * np.log(L), -np.inf)
    for rows in parts:
        out[rows] -= np.quantile(out[rows], share, method="inverted_cdf")
    return out


def near_edge(beyond: Floats) -> Floats:
    """Return each response's (N,) normal kernel of width .15 at its log distance ``beyond`` from the edge; their mean
    estimates the density of responses at the edge."""
    return np.exp(-((beyond / BANDWIDTH) ** 2) / 2) / (BANDWIDTH * math.sqrt(2 * math.pi))


def with_interval(X: Floats, L: Floats, share: float, window: Ints, cluster: Ints) -> Bounded:
    """Return the `fair_exponent` and its interval over clusters. ``X``, ``L``, ``window`` and ``cluster`` (N,) are each
    response's `distance` (nats: |S|, or S signed towards the active side), length, block and cluster; ``share`` is the
    acceptance in each block. The exponent is where the slope of acceptance on log L is 0. So its standard error is the
    slope's cluster-robust error over the slope's derivative in the exponent. As the range is fitted to each block, log
    L counts in both less its mean over the block's responses at the edge (weighted by `near_edge`)."""
    gamma = fair_exponent(X, L, share, window)
    if not math.isfinite(gamma):
        return Bounded(gamma, math.nan, math.nan)
    x, code, group = np.log(L), dense(window), dense(cluster)
    beyond = beyond_edge(X, L, share, gamma, members(window))
    near = near_edge(beyond)
    x = x - (np.bincount(code, near * x) / np.maximum(np.bincount(code, near), 1e-300))[code]
    scores = np.bincount(group, x * ((beyond <= 0) - share))
    unusual = np.count_nonzero(np.bincount(group, beyond > 0))
    change = float(near @ (x * np.log(L)))
    if unusual < MIN_SHOWING or not change > 0:
        return Bounded(gamma, math.nan, math.nan)
    error = math.sqrt(float(scores @ scores) * len(scores) / (len(scores) - 1)) / change
    half = t_quantile(unusual - 1) * error
    return Bounded(gamma, gamma - half, gamma + half)


def members(group: Ints) -> list[Ints]:
    """Return the indices of the rows of each group, groups in increasing order; ``group`` (N,) is each row's group."""
    order = np.argsort(group, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
