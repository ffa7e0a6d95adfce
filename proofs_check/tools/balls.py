"""Ball arithmetic for the certified checks: intervals that are proved to contain acceptances and LREs, and inequalities
proved over boxes (an interval for each parameter).

A ball of python-flint (Arb) is a midpoint and a radius that is guaranteed to contain the true value: every operation
rounds outwards. A comparison is true only if it holds for all values of both balls. Formulas are those of
docs/theory.md sections 3 and 4, computed here from the error function alone.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
from flint import arb, ctx
from numpy.typing import ArrayLike, NDArray

from fspo.base.errors import UserError
from proofs_check.frame import Outcome

Floats = NDArray[np.float64]
Box = tuple[tuple[float, float], ...]
BITS = 96
"""Precision in bits for computations over boxes. It is low, because the results are wide intervals already: the
parameters vary within the box.
"""
POINT_BITS = 320
"""Precision in bits for computations at single values of the parameters, where the difference Phi(hi) - Phi(lo) of
normal probabilities may lose many digits.
"""
NEAR = 0.125
"""Where a drift error, or the log of the true over the assumed standard deviation, is smaller than NEAR, the change of
acceptance that it makes, divided by a power of the error, is computed as an integral: the difference of two nearly
equal values would lose digits.
"""


def with_precision(bits: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that runs a function with ``bits`` of precision (flint's precision is a global variable)."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with ctx.workprec(bits):
                return function(*args, **kwargs)

        return run

    return decorate


class Span(NamedTuple):
    """An interval of one parameter, from ``lo`` to ``hi``. A box is one interval for each of several parameters.

    If a function is monotone, its values at both ends enclose its values at all other points of the interval.
    """

    lo: arb
    hi: arb

    @property
    def ball(self) -> arb:
        """Return a ball that contains the interval."""
        return self.lo.union(self.hi)

    @property
    def width(self) -> float:
        """Return the length of the interval, ``hi - lo``."""
        return float(self.hi - self.lo)


def span(lo: float, hi: float | None = None) -> Span:
    """Return the interval from exactly ``lo`` to exactly ``hi``, or the point ``lo`` if ``hi`` is None."""
    return Span(arb(lo), arb(lo if hi is None else hi))


def outward(low: arb, high: arb | None = None) -> tuple[float, float]:
    """Return two floats: one at or below every number of the ball ``low``, one at or above every number of the ball
    ``high``.

    Without ``high`` the two floats enclose the ball ``low``.
    """
    lower, upper = low.lower(), (low if high is None else high).upper()
    return math.nextafter(float(lower), -math.inf), math.nextafter(float(upper), math.inf)


def normal_density(t: arb) -> arb:
    """Return phi(t), the standard normal density."""
    return (-t * t / 2).exp() / (2 * arb.pi()).sqrt()


def phi_1() -> arb:
    """Return phi(1), the standard normal density at 1. It is a constant of the bounds in T3 and T4."""
    return normal_density(arb(1))


def density_slope(t: arb) -> arb:
    """Return t phi(t), phi the standard normal density: minus the slope of phi. Its largest value, phi(1), is a
    constant of the bounds in T3 and T4.
    """
    return t * normal_density(t)


def normal_probability(lo: arb, hi: arb) -> arb:
    """Return the probability Phi(hi) - Phi(lo) of the interval from ``lo`` to ``hi``, with Phi the normal distribution
    function.

    An interval right of 0 is mirrored, so that no digits cancel.
    """
    root = arb(2).sqrt()
    if lo > 0:
        lo, hi = -hi, -lo
    return ((-hi / root).erfc() - (-lo / root).erfc()) / 2


def acceptance(u_lo: arb, u_hi: arb, x: arb) -> arb:
    """Return the acceptance Phi(u_hi + x) - Phi(-u_lo + x) of a band under Gaussian S (docs/theory.md section 4).

    u_lo and u_hi are the half-widths below and above the band's centre and x is the drift error, all in standard
    deviations of S; Phi is the standard normal distribution function.
    """
    return normal_probability(x - u_lo, u_hi + x)


def sqrt_band_acceptance(
    c_lo: arb | float, c_hi: arb | float, mu: arb, sigma: arb, length: float, drift: arb | None = None
) -> arb:
    """Return the probability that S ~ N(mu L, sigma^2 L), L = ``length``, lies in the sqrt band: at most c_lo sqrt(L)
    nats below and c_hi sqrt(L) above the centre, which is ``drift`` times L.
    """
    root, centre = arb(length).sqrt(), (0 if drift is None else drift) * arb(length)
    edges = (centre - c_lo * root, centre + c_hi * root)
    lo, hi = ((edge - mu * arb(length)) / (sigma * root) for edge in edges)
    return normal_probability(lo, hi)


def scale_change(u: Span, v: Span) -> arb:
    """Return a ball that contains (Phi(u e^-v) - Phi(u))/v for all u and v of two intervals; Phi is the standard normal
    distribution function.

    Let a band's edge lie u assumed standard deviations of S from its mean. If the true standard deviation is e^v times
    the assumed one, the numerator is the change of the probability that S is below that edge (T4).
    """
    if v.lo >= NEAR or v.hi <= -NEAR:
        # Far from v = 0, bound the numerator Phi(u e^-v) - Phi(u) by the mean value theorem: its value in the middle of
        # the intervals of u and v, plus, for u and for v, a ball of its slope times the distance from the middle.
        # ``image`` is the interval of u e^-v.
        image = Span(u.lo * (-v.hi).exp(), u.hi * (-v.lo).exp())
        centre_u, centre_v = (u.lo + u.hi) / 2, (v.lo + v.hi) / 2
        at = normal_probability(centre_u, centre_u * (-centre_v).exp())
        slope_u = normal_density(image.ball) * (-v.ball).exp() - normal_density(u.ball)
        slope_v = -density_slope(image.ball)
        return (at + slope_u * (u.ball - centre_u) + slope_v * (v.ball - centre_v)) / v.ball
    total = arb(0)
    for k in range(4):
        step = Span(arb(k) / 4, arb(k + 1) / 4).ball
        total += density_slope(u.ball * (-step * v.ball).exp()) / 4
    return -total


def acceptance_range(u_lo: Span, u_hi: Span, x: Span) -> tuple[arb, arb]:
    """Return balls that contain the least and the largest `acceptance` over a box of half-widths u_lo, u_hi and drift
    errors x.

    Acceptance rises in both half-widths. In x it rises up to (u_lo - u_hi)/2 and falls after it. So the least value is
    at an end of the interval of x. Where (u_lo - u_hi)/2 may lie inside that interval, the largest value is
    2 Phi((u_lo + u_hi)/2) - 1, Phi the standard normal distribution function.
    """
    least = acceptance(u_lo.lo, u_hi.lo, x.lo).min(acceptance(u_lo.lo, u_hi.lo, x.hi))
    peak = (u_lo.hi - u_hi.hi) / 2
    most = acceptance(u_lo.hi, u_hi.hi, x.lo).max(acceptance(u_lo.hi, u_hi.hi, x.hi))
    if not (peak < x.lo or peak > x.hi):
        most = most.max(acceptance(u_lo.hi, u_hi.hi, peak))
    return least, most


@dataclass(frozen=True)
class Certificate:
    """The result of an attempt to prove that a slack (a bound less what it bounds) is >= 0 in boxes of parameters, by
    halving the boxes again and again.

    ``margin`` is a proved lower bound of the slack over all boxes (>= 0: the inequality is proved), or a proved upper
    bound of the slack at the point ``witness`` (< 0: the inequality is false there), or NaN where neither was found.
    """

    margin: float
    boxes: int
    witness: tuple[float, ...] = ()

    def outcome(self, unit: str, note: str = "") -> Outcome:
        """Return the outcome of a check whose inequality the certificate proves, refutes or leaves undecided."""
        if math.isnan(self.margin):
            found = f"not decided after {self.boxes} boxes"
        elif self.margin < 0:
            found = "false at " + ", ".join(f"{x:.4g}" for x in self.witness)
        else:
            found = f"proved over {self.boxes} boxes"
        return Outcome(self.margin, unit, note=f"{found}; {note}" if note else found)


def decide(slacks: Iterable[arb], unit: str, note: str = "") -> Outcome:
    """Judge whether each of several slacks is >= 0, so that its inequality holds; return the outcome of the check. A
    slack is a ball, computed at one point.

    The margin is a proved lower bound of all slacks if all are proved to be >= 0, a proved upper bound of a slack that
    is negative, and NaN if a ball contains numbers of both signs.
    """
    balls = list(slacks)
    if not balls:
        return Outcome(note="nothing to decide")
    false = [outward(ball)[1] for ball in balls if ball < 0]
    if false:
        return Outcome(min(false), unit, note=note)
    if all(ball >= 0 for ball in balls):
        return Outcome(max(0.0, min(outward(ball)[0] for ball in balls)), unit, note=note)
    return Outcome(math.nan, unit, note=f"an enclosure straddles 0; {note}")


def size(ball: arb) -> float:
    """Return a float that is at least the absolute value of a ball."""
    return math.nextafter(float(ball.abs_upper()), math.inf)


def inside(value: ArrayLike, exact: Iterable[arb], tolerance: float) -> Outcome:
    """Compare float64 values with balls that contain the exact values; return the outcome of the check. The margin is
    log10 of ``tolerance`` over the largest relative error of the float64 values.
    """
    errors = [size(arb(v) / ball - 1) for v, ball in zip(np.ravel(value).tolist(), exact, strict=True)]
    largest = float(np.max(errors))  # np.max returns NaN if an entry is NaN; Python's max might not
    if not math.isfinite(largest):
        return Outcome(note="a value is not finite, or an enclosure contains 0: no relative error")
    return Outcome(math.log10(tolerance / max(largest, 1e-17)), "decades", note=f"max relative error {largest:.1e}")


@with_precision(BITS)
def certify(slack: Callable[..., arb], boxes: Sequence[Box], cap: int = 30_000) -> Certificate:
    """Prove that ``slack`` is >= 0 everywhere in boxes of parameters, or find a point where it is < 0. The box whose
    lower bound of the slack is least is halved first.

    Parameters
    ----------
    slack : function of one Span for each parameter
        Returns a ball that contains the slack at every point of the box; a ball with NaN decides nothing.
    boxes : sequence of Box
        Each box as the intervals (lo, hi) of its parameters. A box is halved in the parameter whose interval is
        longest, relative to the interval with which the search began.
    cap : int
        Largest number of boxes that are tried; the attempt at a proof ends there, undecided.
    """
    heap: list[tuple[float, int, Box, Box]] = []
    seen, least = 0, math.inf

    def enter(box: Box, first: Box) -> Certificate | None:
        nonlocal seen, least
        seen += 1
        found = slack(*(span(*side) for side in box))
        if found >= 0:
            least = min(least, max(0.0, outward(found)[0]))
            return None
        middle = tuple((lo + hi) / 2 for lo, hi in box)
        point = slack(*(span(x) for x in middle))
        if point < 0:
            return Certificate(outward(point)[1], seen, middle)
        lower = outward(found)[0]
        heapq.heappush(heap, (lower if math.isfinite(lower) else -math.inf, seen, box, first))
        return None

    for box in boxes:
        if violated := enter(box, box):
            return violated
    while heap:
        if seen >= cap:
            return Certificate(math.nan, seen)
        _, _, box, first = heapq.heappop(heap)
        shares = [(hi - lo) / max(top - low, 1e-300) for (lo, hi), (low, top) in zip(box, first, strict=True)]
        side = int(np.argmax(shares))
        lo, hi = box[side]
        for half in ((lo, (lo + hi) / 2), ((lo + hi) / 2, hi)):
            if violated := enter((*box[:side], half, *box[side + 1 :]), first):
                return violated
    return Certificate(least, seen)


def _side(value: float | tuple[float, float], name: str) -> tuple[float, float]:
    lo, hi = value if isinstance(value, tuple) else (value, value)
    if not (0 < lo <= hi < math.inf):
        raise UserError(f"{name}={value} must be a positive number or a pair (low, high) of them with low <= high")
    return float(lo), float(hi)


@with_precision(POINT_BITS)
def lre_enclosure(
    u_lo: float | tuple[float, float],
    u_hi: float | tuple[float, float],
    x_min: float,
    x_max: float,
    pieces: int = 32,
) -> tuple[float, float]:
    """Return proved bounds of the largest LRE_inf over all shares of the lengths (docs/theory.md section 3, T3).

    The drift error of a length may be any number in [x_min, x_max]. The largest LRE_inf is then the largest acceptance
    over the least, less 1.

    Parameters
    ----------
    u_lo, u_hi : float or pair
        Half-widths below and above the centre in standard deviations of S, each one number or an interval.
    x_min, x_max : float
        Least and largest drift error (dimensionless).
    pieces : int
        Number of parts into which an interval of half-widths is cut.

    Returns
    -------
    low, high : float
        ``low`` is at most, and ``high`` at least, the largest LRE_inf at every pair of half-widths in the intervals. If
        the half-widths are single numbers, the two are some units of the last place apart.

    Raises
    ------
    UserError
        If a half-width is not positive, x_min > x_max, or one of these is infinite.
    """
    sides = _side(u_lo, "u_lo"), _side(u_hi, "u_hi")
    if not (-math.inf < x_min <= x_max < math.inf):
        raise UserError(f"drift errors from {x_min} to {x_max}: give finite numbers, the least first")
    grids = [np.linspace(lo, hi, pieces + 1 if hi > lo else 2).tolist() for lo, hi in sides]
    x, found = span(x_min, x_max), None
    for below, above in product(*(list(pairwise(grid)) for grid in grids)):
        value = largest_lre(span(*below), span(*above), x)
        found = value if found is None else found.union(value)
    assert found is not None
    low, high = outward(found)
    return max(0.0, low), high


def largest_lre(u_lo: Span, u_hi: Span, x: Span) -> arb:
    """Return a ball that contains, for all half-widths u_lo, u_hi of a box, the largest LRE_inf over all shares of
    lengths: max a / min a - 1, with a the acceptance and the extremes taken over drift errors in ``x``.
    """
    weak = acceptance_range(Span(u_lo.lo, u_lo.lo), Span(u_hi.lo, u_hi.lo), x)
    strong = acceptance_range(Span(u_lo.hi, u_lo.hi), Span(u_hi.hi, u_hi.hi), x)
    # The largest and the least acceptance over the drift errors both rise with u_lo and u_hi, so it suffices to compute
    # them where both half-widths are least and where both are largest.
    return weak[1].union(strong[1]) / weak[0].union(strong[0]) - 1
