"""Distributions of the excess X of changed responses (T10): tails near and far, and mixtures."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath as mp
from scipy import optimize, special


class Changed(NamedTuple):
    """A distribution function F of the excess X, over L^H, of changed responses: ``tail(x)`` is 1 - F(x), the
    probability beyond x, an mpmath number; ``quantile(p)`` is the x with F(x) = p, 0 < p < 1, a float."""

    tail: Callable[[Any], Any]
    quantile: Callable[[float], float]


NORMAL = Changed(lambda x: mp.erfc(x / mp.sqrt(2)), lambda p: float(special.ndtri((1 + p) / 2)))
"""|Z| with Z standard normal."""
STUDENT = Changed(
    lambda x: 2 / mp.pi * (mp.atan(mp.sqrt(3) / x) - (x / mp.sqrt(3)) / (1 + x**2 / 3)),
    lambda p: float(special.stdtrit(3.0, (1 + p) / 2)),
)
LOGISTIC = Changed(lambda x: 2 / (1 + mp.exp(x)), lambda p: 2 * math.atanh(p))
"""|Z| with Z logistic; ``STUDENT``: with Z a Student-t variable of 3 degrees of freedom."""
ONE_EDGE = Changed(lambda x: 1 / (1 + mp.exp(x)), lambda p: float(special.logit(p)))
"""Z itself, logistic, for a band with one edge: half of the changed responses move away from it, F(0) = 1/2."""
FLAT = Changed(lambda x: max(1 - 3 * x / 4, min(mp.mpf(1) / 4, 1 / (2 * x))), lambda p: 4 * p / 3)
"""A distribution with F = 3/4 from 1 to 2, uniform below; ``quantile`` holds up to 3/4. Several edges accept 3/4."""
DISTRIBUTIONS = (NORMAL, STUDENT, LOGISTIC, ONE_EDGE)


def inverse(cdf: Callable[[float], float]) -> Callable[[float], float]:
    """Return the inverse of a distribution function on x > 0, by root search."""

    def quantile(p: float) -> float:
        found: Any = optimize.brentq(lambda x: cdf(x) - p, 0.0, 1e6, xtol=1e-14)
        return float(found)

    return quantile


class Component(NamedTuple):
    """A component of a mixture (T10 (b)) of distributions of the excess X: ``tail(z, q)`` is the probability that X > q
    at the log length z, and ``growth(z, t)`` the slope in z of the log of that q at which this probability is t."""

    tail: Callable[[Any, Any], Any]
    growth: Callable[[Any, Any], Any]


def scaled(dist: Changed, H: float) -> Component:
    """Return the component of which the excess X over l^H has the distribution ``dist`` at every length l."""
    return Component(lambda z, q: dist.tail(q * mp.exp(-H * z)), lambda z, t: H)


def log_logistic(H: float, power: float, slope: float) -> Component:
    """Return a component whose excess X exceeds q with probability 1/(1 + (q/l^H)^k) at the length l; the power k =
    ``power`` + ``slope`` log l changes with l."""

    def k(z: Any) -> Any:
        return power + slope * z

    def growth(z: Any, t: Any) -> Any:  # its quantile at the tail t is l^H ((1 - t)/t)^(1/k)
        return H - slope / k(z) ** 2 * mp.log((1 - t) / t)

    return Component(lambda z, q: 1 / (1 + (q * mp.exp(-H * z)) ** k(z)), growth)


UNCHANGED = Component(lambda z, q: mp.mpf(0), lambda z, t: mp.mpf(0))
"""Responses with X = 0, for which d g is 0."""


class Mixture(NamedTuple):
    """A mixture of the components ``dists``, each with a share proportional to exp(level + slope log l) at the length
    l. ``tail`` is the probability that the excess exceeds the quantile which `log_quantile` finds."""

    dists: list[Component]
    level: list[float]
    slope: list[float]
    tail: Any

    def shares(self, z: Any) -> list[Any]:
        """Return the components' shares at the log length z; they sum to 1."""
        raw = [mp.exp(a + b * z) for a, b in zip(self.level, self.slope, strict=True)]
        return [x / mp.fsum(raw) for x in raw]

    def log_quantile(self, z: Any) -> Any:
        """Return the log of the excess that is exceeded with the probability ``tail`` at the log length z."""
        pi = self.shares(z)

        def beyond(y: Any) -> Any:
            return mp.fsum(p * one.tail(z, mp.exp(y)) for p, one in zip(pi, self.dists, strict=True)) - self.tail

        return mp.findroot(beyond, (-12, 12), solver="anderson", tol=1e-40)


class FarTail(NamedTuple):
    """The tail 1 - F(x) of a distribution at large x. It falls like x^-k, or, if ``k`` is infinite, faster.
    ``log_z(y)`` is log x at the x where 1 - F(x) = e^-y; the check of T10 (d) takes y near n^2, n in ``steps``."""

    log_z: Callable[[Any], Any]
    k: float
    steps: tuple[int, ...] = (10, 100, 1000, 10_000)


def solved(tail: Callable[[Any], Any], guess: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return ``log_z`` of a `FarTail`, by root search: the function of y > 0 that gives log x at the x (not its log)
    where the probability ``tail(x)`` is e^-y. The search for log x starts at ``guess(y)``. All are mpmath numbers."""
    return lambda y: mp.findroot(lambda t: mp.log(tail(mp.exp(t))) + y, (guess(y), guess(y) * (1 + mp.mpf(10) ** -6)))


def in_steps(y: Any) -> Any:
    """Return log x at the x with 1 - F(x) = e^-y, for a distribution F whose tail is lighter than any power and falls
    in steps: log(1 - F) is -n^2 at 4^n and -n^2 - 2^-n at 2 4^n, n = 0, 1, ..., linear in log x in between."""
    n = int(mp.floor(mp.sqrt(y)))
    flat, past = mp.mpf(2) ** -n, y - n**2
    if past <= flat:
        return n * mp.log(4) + past / flat * mp.log(2)
    return n * mp.log(4) + mp.log(2) * (1 + (past - flat) / (2 * n + 1 - flat))


FAR_TAILS = {
    "normal": FarTail(solved(NORMAL.tail, lambda y: mp.log(2 * y) / 2), math.inf),
    "logistic": FarTail(lambda y: mp.log(mp.log(2 * mp.exp(y) - 1)), math.inf),
    "lognormal": FarTail(solved(lambda x: mp.erfc(mp.log(x) / mp.sqrt(2)) / 2, lambda y: mp.sqrt(2 * y)), math.inf),
    "bounded": FarTail(lambda y: mp.log1p(-mp.exp(-y)), math.inf),
    "Student": FarTail(solved(STUDENT.tail, lambda y: y / 3), 3.0, (4, 6, 8, 10)),
    "1/(1 + x^2)": FarTail(lambda y: mp.log(mp.exp(y) - 1) / 2, 2.0, (4, 6, 8, 10)),
}
