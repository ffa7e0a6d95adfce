"""Prove T1 and T2 by interval (ball) arithmetic: the sqrt band accepts responses of all lengths equally often, and
bands of other shapes do not.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from flint import arb, arb_series

from fspo import theory
from fspo.rules import preset
from proofs_check.frame import Check, Method, Outcome
from proofs_check.tools import balls
from proofs_check.tools.balls import (
    NEAR,
    POINT_BITS,
    Span,
    certify,
    decide,
    inside,
    normal_density,
    scale_change,
    span,
    with_precision,
)
from proofs_check.tools.compare import worst
from proofs_check.tools.settings import AGREEMENT, LENGTHS


@with_precision(POINT_BITS)
def fair_from_edges(rng: np.random.Generator, gamma: float = 0.5, with_drift: bool = True) -> Outcome:
    """Check T1 (the sqrt band keeps all lengths equally often). The band with the edges m l - c_lo l^gamma and m l +
    c_hi l^gamma (nats; c_lo, c_hi its ranges, gamma = 1/2) accepts Gaussian S of mean m l equally often at all lengths
    l = 1 ... 1e7, with relative differences below 1e-30. The acceptance of the preset fspo-gaussian, computed in
    float64, must agree with the proved one.
    """
    slacks, found = [], []
    for _ in range(30):
        sigma = float(10 ** rng.uniform(-3, -2))
        c_lo, c_hi = (10 ** rng.uniform(-2, 1, 2) * sigma).tolist()
        mu, a = -arb(sigma) * arb(sigma) / 2, []
        for l in LENGTHS.tolist():
            n = arb(l)
            edges = [(mu if with_drift else 0) * n + c * n ** arb(gamma) for c in (-arb(c_lo), arb(c_hi))]
            lo, hi = ((edge - mu * n) / (sigma * n.sqrt()) for edge in edges)
            a.append(balls.normal_probability(lo, hi))
        slacks += [arb(10) ** -30 - abs(value / a[0] - 1) for value in a]
        rule = preset("fspo-gaussian", range_lo=c_lo, range_hi=c_hi).rule
        value = theory.band_acceptance(rule, LENGTHS, -(sigma**2) / 2, sigma, rule.centre(theory.gaussian_means(sigma)))
        found.append(inside(value, a, 1e-10))
    spread, agreed = decide(slacks, "relative spread"), worst(*found)
    return agreed if spread.margin >= 0 and not agreed.margin >= 0 else spread


def _converse_slack(u: Span, v: Span, drift_error: float) -> arb:
    """Return a ball (an interval) that contains (a1 - a2)/v for all u and v in two given intervals.

    Here a1 and a2 are a band's acceptances at lengths l1 and l2. Its half-width grows like l^gamma and is u standard
    deviations of S at l1, and v = (1/2 - gamma) log(l2/l1). The drift error is 0 at l1 and ``drift_error`` at l2. If
    ``drift_error`` is 0, the ball contains half of (a1 - a2)/v, which has the same sign.
    """
    if drift_error == 0:
        return -scale_change(u, v)
    x_2 = span(drift_error)
    ends = [balls.acceptance(u.ball * scale, u.ball * scale, x_2.lo) for scale in ((-v.lo).exp(), (-v.hi).exp())]
    return (balls.acceptance(u.ball, u.ball, arb(0)) - ends[0].union(ends[1])) / v.ball


def converse(rng: np.random.Generator, drift_error: float = 0.0) -> Outcome:
    """Check T1's converse: a band whose half-width grows like l^gamma, gamma != 1/2, accepts no two lengths l1, l2
    equally often. It is proved that (acceptance at l1 less acceptance at l2)/v, with v = (1/2 - gamma) log(l2/l1), is
    not 0 for any v in [-4, 4] and any half-width at l1 of .05 to 4 standard deviations of S. The band's centre is the
    mean of S; in a control it is off by the drift error ``drift_error`` at l2.
    """
    del rng
    sides = ((-4.0, -NEAR), (-NEAR, NEAR), (NEAR, 4.0)) if drift_error == 0 else ((-1.0, -NEAR), (NEAR, 1.0))
    return certify(partial(_converse_slack, drift_error=drift_error), [((0.05, 4.0), s) for s in sides]).outcome(
        "rate of change of an edge"
    )


def _law(z: arb, direction: int) -> arb:
    """Return d log a / d log l, how steeply log acceptance changes with log length; `monotone` proves its sign.

    The acceptance is a = 2 Phi(z) - 1, with Phi the normal distribution function and z the half-width in standard
    deviations of S. z grows like l^(direction/2): ``direction`` is -1 for the fixed band and 1 for the linear band.
    """
    t = arb_series([arb(0), arb(direction) / 2], prec=2)
    a = (t.exp() * (z / arb(2).sqrt())).erf()
    return a[1] / a[0]


def monotone(rng: np.random.Generator, swap: bool = False) -> Outcome:
    """Check T2 (other bands keep some lengths more often) if S has mean 0: acceptance falls with length for the fixed
    band and rises for the linear band. It is proved for half-widths of 1e-6 to 12 standard deviations of S.
    """
    del rng

    def slack(log_z: Span, shape: int) -> arb:
        z = log_z.lo.exp().union(log_z.hi.exp())
        return shape * (-1 if swap else 1) * _law(z, shape)

    box = [((math.log(1e-6), math.log(12.0)),)]
    found = [certify(partial(slack, shape=shape), box).outcome("|d log a / d log l|") for shape in (-1, 1)]
    return worst(*found)


@with_precision(POINT_BITS)
def fixed_ratio(rng: np.random.Generator, power: float = 0.5, growth: float = 0.125) -> Outcome:
    """Check T2: as a fixed band narrows, the ratio of its acceptances at two lengths l1, l2 tends to the limit that T2
    states. It is proved that the ratio is within 1e-6 of the limit for all half-widths b <= 1e-6 sigma, sigma the scale
    of S, if S has mean 0 and if it has mean -sigma^2 l/2. The acceptance over 2b lies between the least and the largest
    density of S on [-b, b], so one interval covers all such b.
    """
    gaps = []
    for _ in range(40):
        l_1, l_2 = (arb(float(x)) for x in np.sort(np.exp(rng.uniform(0, math.log(3e3), 2))))
        sigma = arb(float(10 ** rng.uniform(-3, -1)))
        y = (1e-6 * sigma).union(-1e-6 * sigma)
        for mu in (arb(0), -sigma * sigma / 2):
            density = [normal_density((y - mu * n) / (sigma * n.sqrt())) / n.sqrt() for n in (l_1, l_2)]
            drift = (arb(growth) * sigma * sigma * (l_2 - l_1)).exp() if mu != 0 else arb(1)
            gaps.append(arb(1e-6) - abs(density[0] / density[1] / ((l_2 / l_1) ** arb(power) * drift) - 1))
    return decide(gaps, "relative error")


@with_precision(POINT_BITS)
def drifted_linear(rng: np.random.Generator, threshold: float = 0.5) -> Outcome:
    """Check T2: let S have mean -sigma^2 l/2 and standard deviation sigma sqrt(l), and let the linear band have the
    lower edge l log(1 - eps_lo). Its acceptance tends to 1, 1/2 or 0 as l grows, where -log(1 - eps_lo) is above, at or
    below ``threshold`` times sigma^2. By T2 the threshold is 1/2; a control has another. It is proved that the
    acceptance is within 1e-5 of its limit for all sigma, all upper ranges and all l >= 1e9/sigma^2.
    """
    del rng
    gaps, root = [], arb(10**9).sqrt()
    for side, limit in ((1.05, 1.0), (1.0, 0.5), (0.95, 0.0)):
        lower = root * (arb(1) / 2 - arb(side) * arb(threshold))
        least, most = balls.normal_probability(lower, root / 2), (lower / arb(2).sqrt()).erfc() / 2
        gaps += [arb(1e-5) - abs(value - limit) for value in (least, most)]
    return decide(gaps, "probability")


@with_precision(POINT_BITS)
def gspo_numbers(rng: np.random.Generator, sigma: str = "0.03") -> Outcome:
    """Check T2's example: if S has the scale sigma = .03 nats, the preset gspo accepts .09, .25, .31 and .06 (rounded)
    of the responses of 1e2, 1e3, 1e4 and 1e5 tokens, and float64 gives the same values. If sigma exceeds .0245, the
    acceptance of long responses falls with the length.
    """
    del rng
    scale, lengths = arb(sigma), (100, 1_000, 10_000, 100_000)
    lo, hi, mu = (1 - arb("0.0003")).log(), (1 + arb("0.0004")).log(), -scale * scale / 2
    exact = [balls.normal_probability(*((edge - mu) * arb(n).sqrt() / scale for edge in (lo, hi))) for n in lengths]
    slacks = [
        arb("0.005") - abs(a - arb(stated)) for a, stated in zip(exact, ("0.09", "0.25", "0.31", "0.06"), strict=True)
    ]
    slacks += [exact[1] - exact[0], exact[2] - exact[1], exact[2] - exact[3]]
    slacks.append(arb("0.00005") - abs((-2 * lo).sqrt() - arb("0.0245")))
    value = theory.band_acceptance(preset("gspo").rule, lengths, -(float(sigma) ** 2) / 2, float(sigma))
    agreed = inside(value, exact, AGREEMENT)
    return decide(slacks, "probability", agreed.note) if agreed.margin >= 0 else agreed


CHECKS = (
    Check(
        "T1",
        Method.CERTIFIED,
        "a(l) from edges in nats, l = 1 ... 1e7",
        fair_from_edges,
        {
            "gamma = .45": partial(fair_from_edges, gamma=0.45),
            "drift dropped": partial(fair_from_edges, with_drift=False),
        },
    ),
    Check(
        "T1",
        Method.CERTIFIED,
        "converse: acceptance moves strictly with gamma, over boxes",
        converse,
        {"a drift error of 1": partial(converse, drift_error=1.0)},
    ),
    Check(
        "T2",
        Method.CERTIFIED,
        "fixed band falls, linear band rises (mu = 0), over boxes",
        monotone,
        {"bands exchanged": partial(monotone, swap=True)},
    ),
    Check(
        "T2",
        Method.CERTIFIED,
        "limits of a(l1)/a(l2), all narrow fixed bands",
        fixed_ratio,
        {"exponent .45": partial(fixed_ratio, power=0.45), "growth sigma^2/9": partial(fixed_ratio, growth=1 / 9)},
    ),
    Check(
        "T2",
        Method.CERTIFIED,
        "limits 1, 1/2, 0 of the drifted linear band, all large l",
        drifted_linear,
        {"threshold .45 sigma^2": partial(drifted_linear, threshold=0.45)},
    ),
    Check(
        "T2",
        Method.CERTIFIED,
        "gspo's numbers to their digits",
        gspo_numbers,
        {"sigma = .031": partial(gspo_numbers, sigma="0.031")},
    ),
)
