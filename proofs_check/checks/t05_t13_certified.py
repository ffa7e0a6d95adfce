"""Prove T5, T6, T10 and T13 by interval arithmetic: token log-ratios that are not normal or depend on each other, the
largest weights, and the share of weight that a band keeps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
from flint import acb, arb, fmpq

from fspo import theory
from fspo.rules import Rule
from proofs_check.frame import Check, Method, Outcome
from proofs_check.models import ExponentialTokens
from proofs_check.tools import balls
from proofs_check.tools.balls import (
    POINT_BITS,
    Span,
    certify,
    decide,
    inside,
    sqrt_band_acceptance,
    with_precision,
)
from proofs_check.tools.compare import worst
from proofs_check.tools.settings import AGREEMENT, LENGTHS

EXACTLY = 1e-30  # acceptances whose relative spread is below this count as equal


def _two_point_gaps(p: fmpq, length: int) -> Iterator[arb]:
    """Yield |F - Phi|, just below and at each value of a sum of ``length`` token log-ratios of which each takes one of
    two values. F is the distribution function of the standardised sum, Phi the normal one; ``p`` is the probability of
    one of the two values.
    """
    q, scale = 1 - p, (arb(p) * arb(1 - p) * length).sqrt()
    odds, mass, below = arb(p) / arb(q), arb(q) ** length, arb(0)
    for k in range(length + 1):
        normal = (-(k - arb(p) * length) / (scale * arb(2).sqrt())).erfc() / 2
        yield abs(below - normal)
        below += mass
        yield abs(below - normal)
        mass = mass * (length - k) / (k + 1) * odds


@with_precision(128)
def berry_esseen_binomial(rng: np.random.Generator, constant: float = theory.BERRY_ESSEEN_IID) -> Outcome:
    """Check T5 if token log-ratios take two values, at every length l up to 250: the distribution function of S
    (standardised) differs from the normal one by at most ``constant`` times rho3/sqrt(l), with rho3 the third absolute
    moment of a standardised token log-ratio.

    This bound, taken at both edges of a band, gives T5. One of the two values has probability 1/2, 1/10 or .419; the
    last is near Esseen's extremal law.
    """
    del rng
    stated = inside(
        [theory.berry_esseen_bound(1.0, [1.0], identical=same)[0] for same in (True, False)],
        [2 * arb("0.4748"), 2 * arb("0.56")],
        1e-15,
    )
    if not stated.margin >= 0:
        return Outcome(-1.0, "constant", note="the suite's constants are not those of T5")
    slacks, largest = [], arb(0)
    for share in (fmpq(1, 2), fmpq(1, 10), fmpq(419, 1000)):
        p, q = arb(share), arb(1 - share)
        rho3 = (p * p + q * q) / (p * q).sqrt()
        for length in range(1, 251):
            distance = arb(0)
            for gap in _two_point_gaps(share, length):
                distance = distance.max(gap)
            ratio = distance * arb(length).sqrt() / rho3
            largest = largest.max(ratio)
            slacks.append(arb(constant) - ratio)
        agreed = inside(
            theory.berry_esseen_bound(balls.outward(rho3)[1], [250.0]),
            [arb(constant) * 2 * rho3 / arb(250).sqrt()],
            1e-12,
        )
        if constant == theory.BERRY_ESSEEN_IID and not agreed.margin >= 0:
            return agreed
    return decide(slacks, "constant", f"largest constant needed {float(largest):.4f}")


@with_precision(96)
def berry_esseen_gamma(rng: np.random.Generator, constant: float = theory.BERRY_ESSEEN_IID) -> Outcome:
    """Check T5 for exponential token log-ratios, at every length up to 120: the distribution function of S
    (standardised) differs from the normal one by at most the Berry-Esseen bound.

    The real line is cut into cells. Both distribution functions rise, so their values at the ends of a cell enclose
    those inside it.
    """
    del rng
    rho3, slacks, largest = 12 / arb.const_e() - 2, [], arb(0)
    if balls.size(ExponentialTokens.RHO3 / rho3 - 1) > 1e-9:
        return Outcome(-1.0, "rho3", note="the model's rho3 is not 12/e - 2")
    for length in range(1, 121):
        root, cells = arb(length).sqrt(), 16 + 16 * math.isqrt(length)
        # The distribution functions of the standardised gamma law and of the normal law are compared on a grid, from
        # the gamma law's left end (or -6, if that is higher) to 6. Outside the grid both are near 0 or 1.
        nodes = [-root.min(arb(6)) + (6 + root.min(arb(6))) * k / cells for k in range(cells + 1)]
        gamma = [
            1 - (length + x * root).gamma_upper(length, regularized=1) if k or length > 36 else arb(0)
            for k, x in enumerate(nodes)
        ]
        normal = [(-x / arb(2).sqrt()).erfc() / 2 for x in nodes]
        distance = gamma[0].max(normal[0]).max(1 - gamma[-1]).max(1 - normal[-1])
        for k in range(cells):
            distance = distance.max(gamma[k + 1] - normal[k]).max(normal[k + 1] - gamma[k])
        ratio = distance * root / rho3
        largest = largest.max(ratio)
        slacks.append(arb(constant) - ratio)
    return decide(slacks, "constant", f"largest constant needed at most {balls.outward(largest)[1]:.4f}")


@with_precision(POINT_BITS)
def ar1_exact(rng: np.random.Generator, factor: float = 1.0) -> Outcome:
    """Check T6 (dependent tokens) for AR(1) token log-ratios: Var S over (length times long-run variance), computed in
    float64, must equal the sum of autocovariances in exact fractions at short lengths, and T6's formula in interval
    (ball) arithmetic at lengths up to 1e7.
    """
    outcomes = []
    for _ in range(30):
        ar = fmpq(int(rng.integers(-97, 98)), 100)
        lengths = (1, 2, 3, 7, 40)
        direct = []
        for l in lengths:
            total = fmpq(l) + 2 * sum(((l - k) * ar**k for k in range(1, l)), fmpq(0))
            direct.append(arb(total * (1 - ar) / (1 + ar) / l))
        alpha = arb(ar)
        direct += [1 - 2 * alpha * (1 - alpha**l) / ((1 - alpha * alpha) * l) for l in (10**3, 10**7)]
        ratio = theory.ar1_variance_ratio(int(ar.p) / int(ar.q), [*lengths, 1e3, 1e7])
        outcomes.append(inside(factor * ratio, direct, 1e-11))
    return worst(*outcomes)


def _ar1_slack(alpha: Span, inverse: Span, length: int, factor: float) -> arb:
    """Return factor/(1 - |alpha|) - l tau_l/|alpha| for `ar1_rate`, at one length l. It is >= 0 where tau_l, the error
    of the log scale of S, is at most ``factor`` times |alpha|/((1 - |alpha|) l), as T6's rate says. alpha is the
    coefficient of AR(1) token log-ratios; ``length`` 0 stands for all l > 100.
    """
    a = alpha.ball
    power = a**length if length else (abs(a) ** 100).union(-(abs(a) ** 100))
    # scaled = l (1 - V)/alpha, with V the ratio of Var(S)/l at length l to its limit for long responses.
    scaled = 2 * (1 - power) / ((1 - a) * (1 + a))
    # 1/l is kept as a ball (interval), because no float holds it exactly
    y = a * scaled * (arb(1) / length if length else inverse.ball)
    growth = [-(-end).log1p() / end if end != 0 else arb(1) for end in (arb(y.lower()), arb(y.upper()))]
    # -log(1 - y)/y rises in y, so its values at both ends of the ball y enclose it. It is 1 at y = 0.
    return arb(factor) / (1 - abs(a)) - scaled * growth[0].union(growth[1]) / 2


def ar1_rate(rng: np.random.Generator, factor: float = 1.1) -> Outcome:
    """Check T6's constant: for AR(1) token log-ratios of coefficient alpha in [-.95, .95], the log of the scale of S
    differs from its long-run value by at most 1.1 |alpha|/((1 - |alpha|) l) at every length l. All l > 100 are proved
    at once, because |alpha^l| <= |alpha|^100.
    """
    del rng
    least, boxes = math.inf, 0
    for length in (*range(1, 101), 0):
        side = (0.0, 0.0) if length else (0.0, 0.01)
        found = certify(partial(_ar1_slack, length=length, factor=factor), [((-0.95, 0.95), side)])
        boxes += found.boxes
        if not found.margin >= 0:
            return found.outcome("constant", f"l = {length or '> 100'}")
        least = min(least, found.margin)
    return Outcome(least, "constant", note=f"proved over {boxes} boxes")


@with_precision(POINT_BITS)
def edge_supremum(rng: np.random.Generator, drift: float = -0.5, scale: float = 1.0) -> Outcome:
    """Check T10 (size of the weights): the upper edge of the sqrt band around -sigma^2 L/2 is at most u^2/2 nats for
    every length L, scale sigma and range c_hi = u sigma.

    With v defined by L = (u v/sigma)^2, the edge over u^2 is v - v^2/2 (controls have another ``drift`` than -1/2). It
    is proved to be at most 1/2 + 1e-9 for v in [0, 3]; beyond 3 it falls. The largest weight at the edge, e^(u^2/2),
    must agree in float64 and in ball arithmetic.
    """

    def slack(v: Span) -> arb:
        centre = (v.lo + v.hi) / 2
        rise = (1 + 2 * arb(drift) * v.ball) * (v.ball - centre)
        return arb(scale) / 2 + arb(1e-9) - (centre + arb(drift) * centre * centre + rise)

    u = rng.uniform(0.2, 4.0, 20).tolist()
    agreed = inside([theory.upper_edge_supremum(x) for x in u], [(arb(x) ** 2 / 2).exp() for x in u], AGREEMENT)
    if not agreed.margin >= 0:
        return agreed
    return certify(slack, [((0.0, 3.0),)]).outcome("exponent / u^2")


@with_precision(128)
def weight_integral(rng: np.random.Generator, as_band: bool = False) -> Outcome:
    """Check T13 (share of weight kept): the mean of w = e^S over responses, where w counts as 0 outside the band, is
    computed in float64 by ``fspo.theory``. It must agree with a proved interval of the integral of e^s times the normal
    density of S over the band.
    """
    outcomes = []
    formula = theory.band_acceptance if as_band else theory.weight_acceptance
    for _ in range(40):
        sigma = float(10 ** rng.uniform(-2.5, -1))
        c_lo, c_hi = (rng.uniform(0.3, 2.5, 2) * sigma).tolist()
        length = float(round(math.exp(rng.uniform(0, math.log(4 / sigma**2)))))
        mu, rule = -(sigma**2) / 2, Rule("sqrt", c_lo, c_hi)
        scale, mean = arb(sigma) * arb(length).sqrt(), arb(mu) * arb(length)
        lo, hi = ((edge * arb(length).sqrt() - mean) / scale for edge in (-arb(c_lo), arb(c_hi)))
        root = (2 * arb.pi()).sqrt()
        integral = acb.integral(
            lambda t, _, s=scale, m=mean, r=root: (m + s * t - t * t / 2).exp() / r, acb(lo), acb(hi)
        )
        outcomes.append(inside(formula(rule, [length], mu, sigma), [integral.real], 1e-10))
    return worst(*outcomes)


@with_precision(POINT_BITS)
def weight_fairness(rng: np.random.Generator, centre: float = 0.5) -> Outcome:
    """Check T13 (share of weight kept) for S of mean -sigma^2 l/2 and variance sigma^2 l. A sqrt band centred
    at +sigma^2 l/2 keeps the same share of weight at all lengths l = 1 ... 1e7 (with relative differences below 1e-30),
    but not the same share of responses. A sqrt band centred at 0, with equal lower and upper range, keeps as large a
    share of weight as of responses. ``centre`` is the first band's centre in units of sigma^2 l, by default 1/2.
    """
    slacks = []
    for _ in range(30):
        sigma, (u_lo, u_hi) = arb(float(10 ** rng.uniform(-3, -1))), rng.uniform(0.3, 2, 2).tolist()
        square = sigma * sigma
        mu, weighted = -square / 2, square / 2
        c = [u * sigma for u in (u_lo, u_hi)]
        b = [sqrt_band_acceptance(c[0], c[1], weighted, sigma, n, arb(centre) * square) for n in LENGTHS.tolist()]
        slacks += [EXACTLY - abs(value / b[0] - 1) for value in b]
        a = [sqrt_band_acceptance(c[0], c[1], mu, sigma, n, arb(centre) * square) for n in (1.0, 1e7)]
        slacks.append(abs(a[1] / a[0] - 1) - arb(1e-6))
        even = [(sqrt_band_acceptance(c[0], c[0], m, sigma, n)) for n in (7.0, 1e4) for m in (mu, weighted)]
        slacks += [EXACTLY - abs(even[0] / even[1] - 1), EXACTLY - abs(even[2] / even[3] - 1)]
    return decide(slacks, "relative spread")


@with_precision(POINT_BITS)
def weight_example(rng: np.random.Generator, sigma: str = "0.03") -> Outcome:
    """Check T13's example. With ranges of one standard deviation of S, a band centred at the mean of S keeps .683 of
    responses and .495 of weight, and a band centred at 0 keeps .630 of both. The first band has LRE 0 for responses of
    two lengths; all the same the cosine of clipped and true update is .848 there.
    """
    del rng
    s = arb(sigma)
    mu, weighted, c = -s * s / 2, s * s / 2, arb("0.03")
    values = [
        sqrt_band_acceptance(c, c, m, s, 1000.0, drift)
        for m, drift in ((mu, mu), (weighted, mu), (mu, None), (weighted, None))
    ]
    b = [sqrt_band_acceptance(c, c, weighted, s, n, mu) for n in (10.0, 2000.0)]
    clipped = (b[0] - arb("0.6") * b[1], arb("0.8") * b[1])
    g = (1 - arb("0.6"), arb("0.8"))
    dot = g[0] * clipped[0] + g[1] * clipped[1]
    norms = ((g[0] ** 2 + g[1] ** 2) * (clipped[0] ** 2 + clipped[1] ** 2)).sqrt()
    stated = ("0.683", "0.495", "0.630", "0.630", "0.848")
    return decide(
        [arb("0.0005") - abs(x - arb(y)) for x, y in zip([*values, dot / norms], stated, strict=True)], "probability"
    )


CHECKS = (
    Check(
        "T5",
        Method.CERTIFIED,
        "binomial laws, every l to 250, every edge",
        berry_esseen_binomial,
        {"constant .39": partial(berry_esseen_binomial, constant=0.39)},
    ),
    Check(
        "T5",
        Method.CERTIFIED,
        "gamma laws, every l to 120, every edge",
        berry_esseen_gamma,
        {"constant .05": partial(berry_esseen_gamma, constant=0.05)},
    ),
    Check(
        "T6",
        Method.CERTIFIED,
        "Var S_l in exact fractions, l to 1e7 in balls",
        ar1_exact,
        {"variance x (1 + 1e-9)": partial(ar1_exact, factor=1 + 1e-9)},
    ),
    Check(
        "T6",
        Method.CERTIFIED,
        "l tau_l bounded for every l, |alpha| <= .95",
        ar1_rate,
        {"half the constant": partial(ar1_rate, factor=0.55)},
    ),
    Check(
        "T10",
        Method.CERTIFIED,
        "upper edge at most exp(u^2/2) for every L",
        edge_supremum,
        {
            "drift none": partial(edge_supremum, drift=0.0),
            "drift tilted": partial(edge_supremum, drift=0.5),
            "exponent x .999": partial(edge_supremum, scale=0.999),
        },
    ),
    Check(
        "T13",
        Method.CERTIFIED,
        "b(l) by rigorous quadrature",
        weight_integral,
        {"a for b": partial(weight_integral, as_band=True)},
    ),
    Check(
        "T13",
        Method.CERTIFIED,
        "drift tilted flattens b and not a; a = b for none",
        weight_fairness,
        {"drift gaussian": partial(weight_fairness, centre=-0.5)},
    ),
    Check(
        "T13",
        Method.CERTIFIED,
        "example to its digits",
        weight_example,
        {"sigma = .031": partial(weight_example, sigma="0.031")},
    ),
)
