"""Prove T3 and T4 (how far a wrong drift or scale moves acceptance) by interval arithmetic over boxes of parameters. A
box is a product of intervals, one for each parameter.

Symbols: u a range and x the drift error, in standard deviations of S; v the error of the log scale; Phi, phi the normal
distribution function and density; h(t) = t phi(t). The slack of a bound is the bound less what it bounds; a proof shows
that the slack is >= 0. T3 and T4 attain their bounds at single points, near which subdividing boxes would never end.
Near these points phi(1) - h(t) is written as K(t) (t - 1)^2. Interval arithmetic proves K > 0, which implies that the
slack is >= 0:

- T3: the slack is phi(1)/2 + r(u, x) = int_0^1 (1-s) [phi(1) - h(u + s x)] ds
  with r = (Phi(u+x) - Phi(u) - phi(u) x)/x^2; it is at least the least K times a^2/2 + a x/3 + x^2/12, a = u - 1, which
  is positive definite.
- T4: the slack is phi(1) + e(u, v) = int_0^1 [phi(1) - h(u e^(-s v))] ds with e = (Phi(u e^-v) - Phi(u))/v.

In boxes away from these points the slack is computed from the error function. Outside all boxes no computation is
needed. For |x| above ``REACH`` the bound exceeds 1, the most by which an acceptance can change; for |v| above ``REACH``
the bound exceeds 1/2, the most by which the probability below an edge can change. For |u| above ``FAR``, |r| is at most
h(FAR - REACH)/2.
"""

from __future__ import annotations

import math
from functools import partial, reduce

import numpy as np
from flint import arb

from fspo import theory
from proofs_check.frame import Check, Method, Outcome
from proofs_check.tools import balls
from proofs_check.tools.balls import (
    NEAR,
    POINT_BITS,
    Span,
    certify,
    decide,
    density_slope,
    inside,
    normal_density,
    phi_1,
    scale_change,
    span,
    with_precision,
)
from proofs_check.tools.settings import AGREEMENT

REACH, FAR = 2.1, 8.0
# A box of T3 is three intervals: of u_lo, of u_hi (the ranges, in standard deviations of S) and of the largest drift
# error.
SHARP = ((0.7, 1.4), (0.7, 1.4), (0.8, 1.2))
UNEVEN = ((0.4, 0.5), (1.4, 1.6), (0.3, 0.5))
# In this box of T3 the lower range u_lo is above the upper range u_hi: acceptance rises with the drift error up to
# (u_lo - u_hi)/2 = .45 ... .6, then falls.
TURNING = ((1.4, 1.6), (0.4, 0.5), (0.3, 1.1))
# T4 is checked for u_lo and u_hi (the ranges, in standard deviations of S) that both lie in this interval. It contains
# 1, where T4's bound is reached.
SIDE = (0.85, 1.35)


def _curvature(t: Span) -> arb:
    """Return an interval that contains (phi(1) - h(t))/(t - 1)^2 for all t of an interval, with h(t) = t phi(t) and phi
    the normal density. phi(1) is the maximum of h, reached at t = 1.
    """
    lo, hi = t.lo.min(arb(1)), t.hi.max(arb(1))
    least, most = lo * (3 - hi * hi) * normal_density(hi), hi * (3 - lo * lo) * normal_density(lo)
    return least.union(most) / 2


def _near_one(t: Span) -> bool:
    return bool(t.lo > 0.6 and t.hi < 1.5)


@with_precision(POINT_BITS)
def supremum(rng: np.random.Generator, excess: float = 0.0) -> Outcome:
    """Check that h(t) = t phi(t), phi the normal density, is at most phi(1) for all t >= 0. Beyond t = 8 that is clear
    from h(t) <= exp(t - t^2/2) <= e^-24. The number ``theory.PHI_1`` must be phi(1) to a relative 1e-15.

    ``excess`` < 0 (a control) asks for the smaller bound (1 + excess) phi(1), which is false.
    """
    del rng

    def slack(t: Span) -> arb:
        if excess == 0 and _near_one(t):
            # Here h(t) = t phi(t), and phi(1) = h(1) is its maximum. At t = 1 the slack phi(1) - h(t) is 0, which no
            # interval can prove to be >= 0. So divide it by (t - 1)^2: the sign stays, and the quotient is above 0.
            return _curvature(t)
        return (1 + arb(excess)) * phi_1() - density_slope(t.ball)

    error = balls.size(arb(theory.PHI_1) / phi_1() - 1)
    if not error <= 1e-15:
        return Outcome(-error, "relative error", note="the float64 value of phi(1) is off")
    return certify(slack, [((0.0, 1.0),), ((1.0, 8.0),)]).outcome("slack, over (t-1)^2 near t = 1")


def _drift_remainder(u: Span, x: Span) -> arb:
    """Return an interval that contains (Phi(u + x) - Phi(u) - phi(u) x)/x^2 for all u and x of two intervals, Phi and
    phi the normal distribution function and density. A drift error x changes the probability below a band's edge at u
    by Phi(u + x) - Phi(u), in size; the numerator is the part of this change that is not linear in x.
    """
    end = Span(u.lo + x.lo, u.hi + x.hi)
    if x.lo >= NEAR or x.hi <= -NEAR:
        centre_u, centre_x = (u.lo + u.hi) / 2, (x.lo + x.hi) / 2

        def at(u_: arb, x_: arb) -> arb:
            return balls.normal_probability(u_, u_ + x_) - normal_density(u_) * x_

        gap = normal_density(end.ball) - normal_density(u.ball)
        slope_u = gap + density_slope(u.ball) * x.ball
        mean_value = at(centre_u, centre_x) + slope_u * (u.ball - centre_u) + gap * (x.ball - centre_x)
        return mean_value / (x.ball * x.ball)
    # (Phi(u + x) - Phi(u) - phi(u) x)/x^2 = -int_0^1 (1-s) h(u + s x) ds with h(t) = t phi(t). Over the four quarters
    # of [0, 1] the weights 1-s integrate to 7, 5, 3 and 1 over 32.
    total = arb(0)
    for k, weight in enumerate((7, 5, 3, 1)):
        step = Span(arb(k) / 4, arb(k + 1) / 4).ball
        total += arb(weight) / 32 * density_slope(u.ball + step * x.ball)
    return -total


def _drift_slack(u: Span, x: Span, factor: float = 1.0) -> arb:
    path = Span(u.lo.min(u.lo + x.lo), u.hi.max(u.hi + x.hi))
    if factor == 1 and _near_one(path):
        return _curvature(path)
    return arb(factor) * phi_1() / 2 + _drift_remainder(u, x)


def _stated_drift_slack(u_lo: arb, u_hi: arb, x: arb, factor: float) -> arb:
    """Return the slack of T3's bound on the change of acceptance by a drift error x: the bound less the change.

    ``u_lo``, ``u_hi``: the band's ranges in standard deviations of S; ``factor`` (not 1 in a control) multiplies the
    bound's term in x^2.
    """
    slope = abs(normal_density(u_hi) - normal_density(u_lo)) * abs(x)
    change = balls.acceptance(u_lo, u_hi, x) - balls.acceptance(u_lo, u_hi, arb(0))
    return slope + arb(factor) * phi_1() * x * x - abs(change)


@with_precision(POINT_BITS)
def drift_bound(rng: np.random.Generator, factor: float = 1.0) -> Outcome:
    """Check T3 (a wrong drift) for all ranges u_lo, u_hi and drift errors x, in standard deviations of S. The
    acceptance a differs from a_0, the acceptance at x = 0, by at most B = |D x| + phi(1) x^2, with D = phi(u_hi) -
    phi(u_lo) and phi the normal density.

    Let r(u, x) = (Phi(u+x) - Phi(u) - phi(u) x)/x^2, Phi the normal distribution function. Then a - a_0 = D x +
    (r(u_hi, x) + r(u_lo, -x)) x^2, so it is enough to prove |r| <= phi(1)/2 for all u and x. In a control B is too
    small; the check then proves that |a - a_0| exceeds B somewhere.
    """
    error = _float_drift(rng)
    if not error <= AGREEMENT:
        return Outcome(-error, "relative error", note="fspo.theory.drift_error_bound leaves its enclosure")
    boxes = [((-FAR, FAR), side) for side in ((-REACH, -NEAR), (-NEAR, NEAR), (NEAR, REACH))]
    found = certify(partial(_drift_slack, factor=factor), boxes)
    if found.margin < 0:
        u, x = abs(arb(found.witness[0])), arb(found.witness[1])
        stated = _stated_drift_slack(u, u, x, factor)
        margin = balls.outward(stated)[1] if stated < 0 else math.nan
        return Outcome(margin, "probability", note=f"false at u = {float(u):.4g}, x = {float(x):.4g}")
    tail = arb(factor) * phi_1() / 2 - density_slope(arb(FAR - REACH)) / 2
    far = arb(factor) * phi_1() * REACH**2 - 1
    if not (tail > 0 and far > 0):
        return Outcome(note="the tail's bound does not hold")
    return found.outcome("phi(1)/2 + rho, over the form near its zero", "tails in closed form")


def _float_drift(rng: np.random.Generator, cases: int = 300) -> float:
    """Return the largest relative error, over random ranges and drift errors, of T3's bound on the change of acceptance
    as ``fspo.theory`` computes it in float64.
    """
    largest = 0.0
    for _ in range(cases):
        u_lo, u_hi = (10 ** rng.uniform(-2, 1.6, 2)).tolist()
        x = float(10 ** rng.uniform(-4, 1.6))
        phi = [normal_density(arb(u)) for u in (u_lo, u_hi)]
        exact = abs(phi[1] - phi[0]) * x + phi_1() * x * x
        error = balls.size(arb(float(theory.drift_error_bound(u_lo, u_hi, x))) / exact - 1)
        # If the error is NaN, keep it as the largest: a NaN fails every comparison.
        largest = error if not error <= largest else largest
    return largest


def _scale_slack(u: Span, v: Span, factor: float = 1.0) -> arb:
    ends = [u.lo, u.hi, *(side * (-power).exp() for side in u for power in v)]
    path = Span(reduce(arb.min, ends), reduce(arb.max, ends))
    if factor == 1 and _near_one(path):
        return _curvature(path)
    return arb(factor) * phi_1() + scale_change(u, v)


def _largest(u_lo: Span, u_hi: Span, low: arb, high: Span) -> arb:
    """Return a ball (an interval) that contains, for every h in ``high``, the largest LRE_inf that drift errors between
    ``low`` and h can cause.

    The largest LRE_inf grows with h, so its values at both ends of ``high`` enclose it. ``u_lo`` and ``u_hi`` are the
    band's ranges in standard deviations of S.
    """
    ends = [balls.largest_lre(u_lo, u_hi, Span(low, end)) for end in high]
    return ends[0].union(ends[1])


def _drift_lre_slack(u_lo: Span, u_hi: Span, reach: Span, one_sided: bool, same_sign: bool, factor: float) -> arb:
    """Return an interval that contains (n B - LRE_inf (a_0 - B))/X^2 for all ranges and all largest drift errors X of
    three intervals. Where it is >= 0, T3's bound LRE_inf <= n B/(a_0 - B) holds. a_0 is the acceptance without drift
    error, B the bound on its change, and n is 1 if ``one_sided``, else 2.
    """
    a_0 = _at_zero(u_lo, u_hi)
    slope = abs(normal_density(u_hi.ball) - normal_density(u_lo.ball))
    bound = slope * reach.ball + arb(factor) * phi_1() * reach.ball * reach.ball
    if same_sign:
        found = _largest(u_lo, u_hi, arb(0), reach)
    else:
        wide = [balls.largest_lre(u_lo, u_hi, Span(-end, end)) for end in reach]
        found = wide[0].union(wide[1])
    return ((1 if one_sided else 2) * bound - found * (a_0 - bound)) / (reach.ball * reach.ball)


def _at_zero(u_lo: Span, u_hi: Span) -> arb:
    return balls.acceptance(u_lo.lo, u_hi.lo, arb(0)).union(balls.acceptance(u_lo.hi, u_hi.hi, arb(0)))


def drift_lre(rng: np.random.Generator, one_sided: bool = True, same_sign: bool = True, factor: float = 1.0) -> Outcome:
    """Check T3 (a wrong drift): LRE_inf <= n B/(a_0 - B) for all shares of lengths, with n = 1 if drift errors have one
    sign, else 2; a_0 is the acceptance without drift error and B the bound on its change that `drift_bound` proves.

    The bound is proved in three boxes of ranges and largest drift errors: one near the ranges at which the bound is
    reached, one with unequal ranges (there n = 1 is false for errors of both signs) and, for errors of one sign, one
    with these two ranges exchanged.
    """
    del rng
    slack = partial(_drift_lre_slack, one_sided=one_sided, same_sign=same_sign, factor=factor)
    return certify(slack, [SHARP, UNEVEN, *([TURNING] if same_sign else [])]).outcome("(nB - LRE (a_0 - B))/X^2")


@with_precision(POINT_BITS)
def scale_bound(rng: np.random.Generator, factor: float = 1.0) -> Outcome:
    """Check T4 (a wrong scale): for all ranges, and all scales within a factor e^+-tau of the assumed scale, acceptance
    differs from that at the assumed scale by at most 2 phi(1) tau, phi the normal density. It is proved that the
    probability below each of the two edges changes by at most phi(1) tau. In a control the bound is too small. The
    check then proves a violation at equal ranges, where the changes at both edges add up.
    """
    del rng
    taus = (1e-4, 0.3, 2.0)
    agreed = inside([theory.scale_error_bound(t) for t in taus], [2 * phi_1() * arb(t) for t in taus], AGREEMENT)
    if not agreed.margin >= 0:
        return agreed
    boxes = [((0.0, FAR), side) for side in ((-REACH, -NEAR), (-NEAR, NEAR), (NEAR, REACH))]
    found = certify(partial(_scale_slack, factor=factor), boxes)
    if found.margin < 0:
        u, v = (arb(w) for w in found.witness)
        change = balls.normal_probability(-u * (-v).exp(), u * (-v).exp()) - balls.normal_probability(-u, u)
        return decide([2 * arb(factor) * phi_1() * abs(v) - abs(change)], "probability", "|a - a_0| above B")
    limit = arb(factor) * phi_1()
    # Half-widths u > FAR (in standard deviations of S) need no interval arithmetic. Let S have the scale sigma e^-v in
    # place of sigma, h(t) = t phi(t) with phi the normal density, and e be Euler's number. The probability beyond an
    # edge then changes by at most h(FAR/e) |v| if |v| <= 1, by at most the normal law's tail beyond FAR e^-REACH if
    # 1 < |v| <= REACH, and by at most 1/2 if |v| > REACH. Each of these is compared with T4's limit phi(1) |v|.
    tails = limit - density_slope(FAR * arb(-1).exp()), limit - (FAR * arb(-REACH).exp() / arb(2).sqrt()).erfc() / 2
    if not (all(tail > 0 for tail in tails) and limit * REACH > arb(1) / 2):
        return Outcome(note="the tail's bound does not hold")
    return found.outcome("phi(1) + e, over the form near its zero", "tails in closed form")


def _scaled(u_lo: Span, u_hi: Span, v: Span) -> arb:
    """Return an interval that contains the acceptance of a band for all its half-widths u_lo and u_hi (in units of
    sigma) and all v in three given intervals, where S has the scale sigma e^-v. The acceptance rises in all three.
    """
    ends = ((u_lo.lo, u_hi.lo, v.lo.exp()), (u_lo.hi, u_hi.hi, v.hi.exp()))
    low, high = (balls.normal_probability(-below * scale, above * scale) for below, above, scale in ends)
    return low.union(high)


def _scale_lre_slack(u_lo: Span, u_hi: Span, tau: Span, one_sided: bool, same_sign: bool, factor: float) -> arb:
    """Return an interval that contains (n B - LRE_inf (a_0 - B))/tau for all ranges and all tau of three intervals.
    Where it is >= 0, T4's bound LRE_inf <= n B/(a_0 - B) holds. tau is the largest error of the log scale, a_0 the
    acceptance without such an error, B = 2 phi(1) tau with phi the normal density, and n is 1 if ``one_sided``, else 2.
    """
    a_0 = _at_zero(u_lo, u_hi)
    bound = 2 * arb(factor) * phi_1() * tau.ball
    more, less = _scaled(u_lo, u_hi, tau), _scaled(u_lo, u_hi, Span(-tau.hi, -tau.lo))
    found = (more / a_0).max(a_0 / less) if same_sign else more / less
    return ((1 if one_sided else 2) * bound - (found - 1) * (a_0 - bound)) / tau.ball


def scale_lre(
    rng: np.random.Generator, one_sided: bool = False, same_sign: bool = False, factor: float = 1.0
) -> Outcome:
    """Check T4 (a wrong scale): LRE_inf <= n B/(a_0 - B) if the log of the scale is off by at most tau; a_0 is the
    acceptance at the assumed scale, B = 2 phi(1) tau the bound on its change, n = 1 with ``one_sided``, else 2.

    The bound is proved in one box of ranges and tau, around the ranges at which B is reached.
    """
    del rng
    slack = partial(_scale_lre_slack, one_sided=one_sided, same_sign=same_sign, factor=factor)
    return certify(slack, [(SIDE, SIDE, (0.6, 0.8))]).outcome("(nB - LRE (a_0 - B))/tau")


@with_precision(POINT_BITS)
def scale_counterexample(rng: np.random.Generator, sides: int = 1) -> Outcome:
    """Check T4's counterexample: with ranges of one standard deviation of S and true scales e^-.01 and e^.01 times the
    assumed one, LRE_inf exceeds ``sides`` times B/(a_0 - B). Here a_0 is the acceptance at the assumed scale and B is
    T4's bound on its change.

    Nearly all responses have the length with the larger scale.
    """
    del rng
    one, tau = span(1.0), span(0.01)
    excess = -_scale_lre_slack(one, one, tau, one_sided=sides == 1, same_sign=False, factor=1.0)
    return decide([excess], "(LRE (a_0 - B) - nB)/tau")


CHECKS = (
    Check(
        "T3",
        Method.CERTIFIED,
        "phi(1) is the supremum of |t phi(t)|",
        supremum,
        {"phi(1) x .95": partial(supremum, excess=-0.05)},
    ),
    Check(
        "T3",
        Method.CERTIFIED,
        "|a(l) - a_0| <= B_l for all ranges and drift errors",
        drift_bound,
        {"constant x .95": partial(drift_bound, factor=0.95)},
    ),
    Check(
        "T3",
        Method.CERTIFIED,
        "LRE_inf <= B/(a_0 - B), one sign, over boxes",
        drift_lre,
        {"mixed signs": partial(drift_lre, same_sign=False), "constant x .8": partial(drift_lre, factor=0.8)},
    ),
    Check(
        "T3",
        Method.CERTIFIED,
        "LRE_inf <= 2B/(a_0 - B), mixed signs, over boxes",
        partial(drift_lre, one_sided=False, same_sign=False),
        {"factor 1 for 2": partial(drift_lre, one_sided=True, same_sign=False)},
    ),
    Check(
        "T4",
        Method.CERTIFIED,
        "|a(l) - a_0| <= 2 phi(1) tau for all ranges and scales",
        scale_bound,
        {"constant x .95": partial(scale_bound, factor=0.95)},
    ),
    Check(
        "T4",
        Method.CERTIFIED,
        "LRE_inf <= 2B/(a_0 - B), over boxes",
        scale_lre,
        {"one-sided form": partial(scale_lre, one_sided=True), "constant x .8": partial(scale_lre, factor=0.8)},
    ),
    Check(
        "T4",
        Method.CERTIFIED,
        "LRE_inf <= B/(a_0 - B), one sign, over boxes",
        partial(scale_lre, one_sided=True, same_sign=True),
        {"mixed signs": partial(scale_lre, one_sided=True)},
    ),
    Check(
        "T4",
        Method.CERTIFIED,
        "counterexample to the one-sided form",
        scale_counterexample,
        {"against 2B/(a_0 - B)": partial(scale_counterexample, sides=2)},
    ),
)
