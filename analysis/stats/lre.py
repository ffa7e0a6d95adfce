"""Length Reweighting Error (LRE) with intervals (docs/theory.md section 3).

For bins with shares of rows p and acceptances a, let r = a / mean a - 1. LRE_2^2 is bias-corrected: the sampling
variance in the plug-in ``sum p r^2`` is subtracted. The interval of LRE_2^2 inverts tests. It covers the LRE_2^2 of
those candidates for the true acceptances under which the observed plug-in is not in a tail of the plug-in's simulated
distribution (:mod:`analysis.stats.error_law`). The candidates lie on a curve that runs from equal acceptances (exact
fairness) through the estimated acceptances; all candidates have the same mean. LRE_inf and LRE_1 are plug-ins, biased
upwards; their intervals come from simultaneous confidence limits of r in all bins. docs/coverage.md shows how often
the intervals hold the true value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from scipy import optimize, special

from analysis.stats.error_law import ErrorLaw, error_law
from fspo.stats.clusters import BORROW, Floats, Ratios
from fspo.stats.intervals import CONFIDENCE

NORMS = ("inf", "l1", "l2", "l2_squared")
FARTHEST = 40.0
"""Largest position on the curve of candidate acceptances, on either side of the estimate (position 0); there the curve
is within e^-40 of its limit.
"""
TAILS = (0.45, 0.3)
"""Shares of the interval's probability of error (1 less its level) given to the tests of its low and its high end."""


@dataclass(frozen=True)
class LreEstimate:
    """The estimate of LRE in one norm, its interval, and its value without bias correction (``plug_in``).

    ``reason`` says why these numbers are NaN, or which share of the rows they leave out.

    ``wald_p`` is the p-value of the test that acceptance is constant, and ``detectable`` the LRE_2 that this test can
    detect (:func:`constant_test`). These two numbers are the same for every norm.
    """

    norm: str
    estimate: float
    ci_low: float
    ci_high: float
    plug_in: float
    wald_p: float
    detectable: float
    reason: str


def lre_estimates(found: Ratios, level: float = CONFIDENCE) -> list[LreEstimate]:
    """Return the LRE in each norm of ``NORMS``, with intervals; ``found`` holds the acceptances by cluster and bin."""
    law, reason = error_law(found)
    nan = float("nan")
    if law is None:
        return [LreEstimate(norm, nan, nan, nan, nan, nan, nan, reason) for norm in NORMS]
    r, low, high = bands(law, level)
    nearest = np.where((low <= 0) & (high >= 0), 0.0, np.minimum(np.abs(low), np.abs(high)))
    farthest = np.maximum(np.abs(low), np.abs(high))
    plug_in = float(squared(law.p, law.a))
    two = squared_interval(law, level, (r, low, high))
    corrected = plug_in - law.noise
    two = min(two[0], corrected), max(two[1], corrected)
    test = constant_test(law)
    l1, inf = float(law.p @ np.abs(r)), float(np.max(np.abs(r)))
    root = np.sqrt
    # LRE_1 is below 2, because no acceptance is below 0.
    return [
        LreEstimate("inf", inf, float(np.max(nearest)), float(np.max(farthest)), inf, *test, reason),
        LreEstimate("l1", l1, float(law.p @ nearest), min(float(law.p @ farthest), 2.0), l1, *test, reason),
        LreEstimate(
            "l2", root(max(corrected, 0.0)), root(max(two[0], 0.0)), root(two[1]), root(plug_in), *test, reason
        ),
        LreEstimate("l2_squared", corrected, *two, plug_in, *test, reason),
    ]


def squared(p: Floats, a: Floats) -> Floats:
    """Return LRE_2^2 of acceptances ``a`` (..., K) and shares of rows ``p`` (..., K) or (K,)."""
    mean = np.sum(p * a, axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.sum(p * (a / mean - 1) ** 2, axis=-1)


@dataclass(frozen=True)
class AcceptanceCurve:
    """Candidates for the true acceptances, all with the same mean: from equal acceptances through the estimate and
    beyond.

    Let v (K,) be the deviations of the K bins' acceptances from their mean (in logits for shares, so that candidates
    stay in (0, 1)), times the square roots of the bins' shares of rows. Let Sigma be the covariance of v_hat, the
    estimate of v, divided by its largest eigenvalue. Each number mu <= 1 gives the candidate
    ``v = (I - mu Sigma)^-1 v_hat``. Of all v of the same norm it is the nearest to v_hat, in units of the errors of
    v_hat. mu is -inf at exact fairness (v = 0), 0 at the estimate, 1 at the farthest candidate. A straight line through
    the estimate would not do, because the direction of a small deviation is itself uncertain.
    """

    law: ErrorLaw
    root: Floats  # square roots of the bins' shares p
    # Eigenvalues of the covariance of v_hat, divided by the largest of them. v_hat holds the estimated deviations of
    # the bins' acceptances from their mean.
    values: Floats
    vectors: Floats
    # Components of v_hat, the deviations of the bins' estimated acceptances from their mean, along the eigenvectors of
    # the covariance of v_hat.
    along: Floats

    @staticmethod
    def of(law: ErrorLaw) -> AcceptanceCurve:
        """Make the curve of candidates for the true acceptances.

        ``law`` holds the estimated acceptances and the law of their errors."""
        k, root = len(law), np.sqrt(law.p)
        centre = np.eye(k) - np.outer(np.ones(k), law.p)
        deviation = root * (centre @ (special.logit(law.smooth) if law.binary else law.a))
        lever = root[:, None] * centre
        values, vectors = np.linalg.eigh(lever @ law.covariance[:k, :k] @ lever.T)
        along = vectors.T @ deviation
        if not values[-1] > 0:
            # The covariance of the estimated acceptances is 0, as in a log whose S is 0 everywhere. Its eigenvalues
            # cannot be divided by the largest, so all are set to 1. If the estimated acceptances of the bins are equal,
            # these values do not matter: every candidate for the true acceptances is then the estimate itself.
            return AcceptanceCurve(law, root, np.ones(k), vectors, along)
        largest = values > (1 - 1e-9) * values[-1]
        if np.sqrt(np.sum(along[largest] ** 2)) < 1e-9 * np.sqrt(values[-1]):
            # The vector v_hat of estimated deviations of the bins' acceptances from their mean has no component along
            # the eigenvectors of the largest eigenvalue of its covariance, for example because all estimated
            # acceptances are equal. Add a tiny component in a fixed direction. Without it the interval would depend on
            # the arbitrary signs of eigh's eigenvectors, which differ between machines.
            bend = root * (centre @ np.arange(k) ** 2.0)
            along += 1e-9 * np.sqrt(values[-1]) * np.where(largest, vectors.T @ bend, 0.0)
        return AcceptanceCurve(law, root, np.maximum(values / values[-1], 0.0), vectors, along)

    def __call__(self, x: float) -> Floats:
        """Return the candidate for the true acceptances of the K bins at position x on the curve: (K,).

        The K acceptances are all equal at x = -inf, are the estimates at x = 0, and are ever more unequal for x > 0.
        The class writes mu for 1 - exp(-x).
        """
        mu = -float(np.expm1(-x))
        # The denominator is 1 - mu * eigenvalue, and the largest eigenvalue is 1. For a large position x on the curve,
        # mu = 1 - exp(-x) rounds to 1, so the floor of 1e-15 keeps the denominator above 0.
        left = np.maximum(1 - mu * np.maximum(self.values, 1e-9), 1e-15)
        kept = np.where(self.values > 1e-9, self.along / left, 0.0)
        moved = self.vectors @ kept / self.root
        mean = float(self.law.p @ self.law.smooth)
        return levelled(moved, self.law.p, mean) if self.law.binary else mean + moved


def squared_interval(
    law: ErrorLaw, level: float = CONFIDENCE, limits: tuple[Floats, Floats, Floats] | None = None
) -> tuple[float, float]:
    """Compute the interval of LRE_2^2 by test inversion; the plug-in is LRE_2^2 of the estimated acceptances.

    Returns
    -------
    (low, high) : floats
        If exact fairness (equal acceptances) is not rejected, ``low`` is not 0 but the plug-in less the upper quantile
        of the plug-ins simulated under fairness, at most 0. A negative ``low`` is what an interval of the difference of
        two LRE_2^2 needs. ``high`` is at least the mean of the plug-ins simulated under fairness, so that a log whose
        noise is small by chance does not seem too precise.
    """
    plug_in, curve = float(squared(law.p, law.a)), AcceptanceCurve.of(law)
    low_tail, high_tail = (share * (1 - level) for share in TAILS)
    fair = np.sort(_simulated(law, curve(-FARTHEST)))
    above = float(fair[int((1 - low_tail) * len(fair))])
    low = _crossing(law, curve, plug_in, 1 - low_tail, -1.0) if above < plug_in else min(plug_in - above, 0.0)
    high = _crossing(law, curve, plug_in, high_tail, 1.0) if fair[int(high_tail * len(fair))] <= plug_in else 0.0
    if law.binary and law.showing < BORROW:
        # With few rejections it is unknown which bins' acceptances deviate from the mean. So the high end of the
        # interval of LRE_2^2 also covers candidates for the true acceptances in which one bin accepts as little as its
        # simultaneous limits (`bands`) allow and all other bins have equal acceptances.
        _, fewest, _ = bands(law, level) if limits is None else limits
        high = max(high, float(np.max(fewest**2 * law.p / (1 - law.p))))
    return low, max(high, float(np.mean(fair)), low)


def _simulated(law: ErrorLaw, a: Floats) -> Floats:
    """Return LRE_2^2 of those simulated estimates of the acceptances that accept something, as if ``a`` (K,) were the
    true acceptances. Where nothing is accepted there is no LRE.
    """
    values = law.plug_ins(a)
    return values[np.isfinite(values)]


def _crossing(law: ErrorLaw, curve: Callable[[float], Floats], plug_in: float, q: float, start: float) -> float:
    """Return one end of the interval of LRE_2^2, by inverting a test.

    A candidate for the truth is a vector of the bins' acceptances, ``curve(x)`` for a number x. The test simulates
    estimates of LRE_2^2 (without bias correction) as if the candidate were true. Where the ``q`` quantile of these
    estimates equals the log's own estimate ``plug_in``, the test just does not reject the candidate, and the end is the
    candidate's LRE_2^2. The search over x begins at ``start``.

    The curve may end before the test rejects: where bins accept everything or nothing, no candidate with the same mean
    is more unequal. Then the end of the interval lies above the last candidate's LRE_2^2, by as much as the quantile is
    below the log's own estimate.
    """

    @cache
    def excess(x: float) -> float:
        values = _simulated(law, curve(x))
        rank = min(int(q * len(values)), len(values) - 1)
        return float(np.partition(values, rank)[rank]) - plug_in

    low = high = start
    if excess(start) < 0:
        while excess(high) < 0:
            if high >= FARTHEST:
                return float(squared(law.p, curve(high))) - excess(high)
            low, high = high, high + 2.0
    else:
        while excess(low) >= 0:
            if low <= -FARTHEST:
                return float(squared(law.p, curve(low)))
            low, high = low - 2.0, low
    found: Any = optimize.brentq(excess, low, high, xtol=1e-6)
    return float(squared(law.p, curve(float(found))))


def levelled(moved: Floats, p: Floats, mean: float) -> Floats:
    """Return K acceptances in (0, 1) whose mean, weighted by p, is ``mean``.

    Their logits are ``moved`` (K,) plus one constant, which is found by Newton's method.
    """
    level = float(special.logit(mean))
    for _ in range(100):
        a = special.expit(level + moved)
        step = min(max(float(p @ a - mean) / max(float(p @ (a * (1 - a))), 1e-300), -1.0), 1.0)
        level -= step
        if abs(step) < 1e-10:
            break
    return special.expit(level + moved)


def bands(law: ErrorLaw, level: float = CONFIDENCE) -> tuple[Floats, Floats, Floats]:
    """Return the relative acceptance r of each bin (its acceptance over the mean acceptance, less 1) and simultaneous
    confidence limits of all r, which come from score tests of each value that r may have.

    A value of r lies inside the limits if the distance between the bin's estimated acceptance and the acceptance that r
    implies is at most a critical value times the standard error that r implies. The critical value comes from a
    simulation with equal acceptances: it is the quantile at ``level`` of the largest ratio of distance to standard
    error over the K bins.
    """
    p, k, mean = law.p, len(law), float(law.p @ law.a)
    own, others = np.eye(k), law.scale(law.smooth)
    r = law.a / mean - 1

    def error(rho: Floats) -> Floats:
        """Return for each of K bins the standard error (..., K) of a - (1 + rho) m, with a the bin's estimated
        acceptance and m the estimated mean acceptance. It holds if the bin's true acceptance is (1 + rho) times the
        true mean acceptance.
        """
        one = (1 + rho)[..., None]
        at = np.minimum(np.maximum(one * mean, 1e-12), 1 - 1e-12) if law.binary else law.a[:, None]
        sizes = np.where(own > 0, law.scale(at), others)
        rates = np.where(own > 0, at, law.smooth)
        lever = np.concatenate([(own - one * p) * sizes, -one * rates], axis=-1)
        return np.sqrt(np.maximum(np.sum((lever @ law.covariance) * lever, axis=-1), 0.0))

    fair = np.full(k, float(p @ law.smooth)) if law.binary else law.a
    covariance = law.covariance_at(fair)
    relative = fair / float(p @ fair)
    lever = np.hstack([own - np.outer(relative, p), -np.outer(relative, fair)])
    sizes = np.sqrt(np.maximum(np.einsum("ki,ij,kj->k", lever, covariance, lever), 1e-300))
    shares, rates = law.draws(fair)
    means = np.sum(shares * rates, axis=1, keepdims=True)
    critical = float(np.quantile(np.max(np.abs(rates - relative * means) / sizes, axis=1), level))

    if law.binary:
        # No acceptance is above 1, so no r is above 1 / mean - 1. The mean is at least p a in each bin, so no r is
        # above 1 / p - 1 either. The true mean and the true shares p may be as low as Wilson's lower limits: with the
        # estimates in their place, the limits of a bin that accepts everything would have no room above r.
        lever_of_mean, smooth = np.concatenate([p * others, law.smooth]), float(p @ law.smooth)
        of_mean = float(lever_of_mean @ law.covariance @ lever_of_mean) / (smooth * (1 - smooth))
        of_share = np.diag(law.covariance)[k:] / (p * (1 - p))
        least = wilson_low(mean, critical**2 * of_mean), wilson_low(p, critical**2 * of_share)
        highest = np.maximum(1 / np.maximum(*least) - 1, r)
    else:
        highest = r + 20 * critical * error(r) / mean + 1e-12
    near, far = np.stack([r, r]), np.stack([np.full(k, -1.0), highest])
    for _ in range(25):
        middle = (near + far) / 2
        inside = np.abs(law.a - (1 + middle) * mean) <= critical * error(middle)
        near, far = np.where(inside, middle, near), np.where(inside, far, middle)
    return r, far[0], far[1]


def wilson_low(share: Floats | float, z: Floats | float) -> Floats:
    """Return Wilson's lower limit of a share. It is above 0 if the share is.

    ``z`` is the square of the critical value over the number of rows. For rows that are not independent, it is the
    square of the critical value times the variance of the share, over ``share (1 - share)``.
    """
    share = np.asarray(share)
    room = np.sqrt(np.maximum(z * share * (1 - share), 0.0))
    return share**2 / (share + z / 2 + np.hypot(room, z / 2))


def constant_test(law: ErrorLaw) -> tuple[float, float]:
    """Test whether acceptance is equal in all bins, by a cluster-robust Wald statistic with Hotelling's F.

    For acceptances that are shares (of rows or of weight), the covariance is that under equal acceptances, as in a
    score test.

    Returns
    -------
    (p, detectable) : floats
        The p-value, and the LRE_2 from which on a test at 5 % rejects with at least 80 % probability, whichever bins
        deviate. This LRE_2 is computed for the pattern of deviations over the bins that is hardest to detect. Both
        numbers are NaN if the covariance has too few degrees of freedom.
    """
    rank, k = len(law) - 1, len(law)
    if law.df - rank + 1 < 1:
        return float("nan"), float("nan")
    fair = np.full(k, float(law.p @ law.smooth)) if law.binary else law.a
    # Compute the covariance of the K relative acceptances r = a / mean a - 1 at equal acceptances. The mean of r over
    # bins, weighted by their shares of rows, is 0 by definition. So the covariance has rank K - 1, and the test has
    # K - 1 degrees of freedom in the numerator of F.
    mean = float(law.p @ fair)
    lever = np.hstack([np.eye(k) / mean - np.outer(fair, law.p) / mean**2, -np.outer(fair, fair) / mean**2])
    covariance = lever @ law.covariance_at(fair) @ lever.T
    r = law.a / float(law.p @ law.a) - 1
    statistic = max(float(r @ np.linalg.pinv(covariance, rcond=1e-10, hermitian=True) @ r), 0.0)
    p = float(special.fdtrc(rank, law.df - rank + 1, statistic * (law.df - rank + 1) / (law.df * rank)))
    root = np.sqrt(law.p)
    hardest = float(np.linalg.eigvalsh(covariance * np.outer(root, root))[-1])
    return p, float(np.sqrt(max(hardest, 0.0) * _seen(rank, law.df - rank + 1)))


@lru_cache(maxsize=256)
def _seen(above: int, below: float, level: float = CONFIDENCE, power: float = 0.8) -> float:
    """Return the noncentrality of the F statistic at which an F test at 5 % rejects with probability ``power``;
    ``above`` and ``below`` are the degrees of freedom of numerator and denominator."""
    critical = float(special.fdtri(above, below, level))

    def missing(noncentrality: float) -> float:
        return 1 - float(special.ncfdtr(above, below, noncentrality, critical)) - power

    high = 10.0
    while missing(high) < 0:
        high *= 2
    found: Any = optimize.brentq(missing, 0.0, high)
    return float(found)
