"""Check T3 by ball arithmetic: the LRE over all lengths up to 1e6 with proved error bounds, and the float64 values of
``fspo.theory`` for bands in the far tails of S (docs/theory.md sections 3, 4).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
from flint import arb, arb_series

from fspo import theory
from fspo.rules import Rule
from proofs_check.frame import Check, Method, Outcome
from proofs_check.tools import balls
from proofs_check.tools.balls import (
    POINT_BITS,
    Span,
    decide,
    inside,
    normal_density,
    phi_1,
    sqrt_band_acceptance,
    with_precision,
)
from proofs_check.tools.compare import worst
from proofs_check.tools.settings import AGREEMENT, LENGTHS

MAX_LENGTH = 1_000_000


@with_precision(POINT_BITS)
def far_tails(rng: np.random.Generator, naive: bool = False, cases: int = 40) -> Outcome:
    """Check that the acceptances, LREs and bounds of T3 (a wrong drift) that ``fspo.theory`` computes in float64 agree
    with proved intervals, for half-widths and drift errors up to 40 standard deviations of S and lengths up to 1e7.

    Bands that lie wholly beyond 37 standard deviations of S are left out, because float64 gives them acceptance 0. The
    error of an LRE is taken relative to 1 + LRE.
    """
    from scipy.special import ndtr

    found = []
    for _ in range(cases):
        sigma, (u_lo, u_hi) = 10 ** rng.uniform(-3, 0), (10 ** rng.uniform(-2, 1.6, 2)).tolist()
        x = (rng.choice([-1, 1]) * np.linspace(0.05, u_lo + u_hi + 30, LENGTHS.size) * rng.random()).tolist()
        lo, hi = (np.array([sign * u + y for y in x]) for sign, u in ((-1, u_lo), (1, u_hi)))
        seen = (lo < 37) & (hi > -37)
        value = ndtr(hi) - ndtr(lo) if naive else theory.interval_probability(lo, hi)
        exact = [
            balls.normal_probability(arb(float(a)), arb(float(b))) for a, b in zip(lo[seen], hi[seen], strict=True)
        ]
        found.append(inside(value[seen], exact, AGREEMENT))
        p = rng.dirichlet(np.full(int(seen.sum()), 0.5)) + 1e-9
        if p.size > 2:
            p[int(np.argmin(value[seen]))] = 0.0  # a length with share 0 never occurs, so it must not change LRE_inf
        found.append(_lre_agrees(p, value[seen], exact))
        rule = Rule("sqrt", u_lo * sigma, u_hi * sigma)
        mu = float(0.3 * rng.choice([-1, 1]) * min(u_lo, u_hi) * sigma / math.sqrt(LENGTHS[-1]))
        band = [sqrt_band_acceptance(rule.range_lo, rule.range_hi, arb(mu), arb(sigma), n) for n in LENGTHS.tolist()]
        found.append(inside(theory.band_acceptance(rule, LENGTHS, mu, sigma), band, 1e-10))
        slope = abs(normal_density(arb(u_hi)) - normal_density(arb(u_lo)))
        bounds = [slope * abs(arb(y)) + phi_1() * arb(y) ** 2 for y in x]
        found.append(inside(theory.drift_error_bound(u_lo, u_hi, x), bounds, AGREEMENT))
        a_0, part = float(rng.uniform(0.05, 1)), float(rng.uniform(0.01, 0.9))
        stated = [theory.lre_bound(part * a_0, a_0, one_sided=same) or math.nan for same in (True, False)]
        ratio = arb(part * a_0) / (arb(a_0) - arb(part * a_0))
        found.append(inside(stated, [ratio, 2 * ratio], AGREEMENT))
    return worst(*found)


def _lre_agrees(p: np.ndarray, value: np.ndarray, exact: list[arb]) -> Outcome:
    shares = [arb(q) for q in p.tolist()]
    total = sum(shares, arb(0))
    mean = sum((q * a for q, a in zip(shares, exact, strict=True)), arb(0)) / total
    r = [a / mean - 1 for a in exact]
    square = sum((q * y * y for q, y in zip(shares, r, strict=True)), arb(0)) / total
    largest = arb(0)
    for q, y in zip(shares, r, strict=True):
        largest = largest.max(abs(y)) if q > 0 else largest
    lre = theory.lre(p, value)
    first = sum((q * abs(y) for q, y in zip(shares, r, strict=True)), arb(0)) / total
    norms = inside([1 + lre.inf, 1 + lre.l1, 1 + lre.l2], [1 + largest, 1 + first, 1 + square.sqrt()], 1e-11)
    kept = [q * a / (mean * total) for q, a in zip(shares, exact, strict=True) if q > 0]
    # q is a length's share of the accepted responses and p its share of all responses. The error of q is judged
    # relative to p + q, because q is rounded like p where a length is nearly never accepted.
    rounding = [q / total for q in shares if q > 0]
    found = theory.accepted_lengths(p, value)[p > 0].tolist()
    shifted = [float((x + arb(y)).mid()) for x, y in zip(rounding, found, strict=True)]
    return worst(norms, inside(shifted, [x + y for x, y in zip(rounding, kept, strict=True)], 1e-11))


def _blocks(length: int) -> Iterator[tuple[int, int]]:
    """Split the lengths 1..length into blocks: first single lengths, then blocks that grow with the length."""
    start = 1
    while start <= length:
        stop = min(length, start + start // 48)
        yield start, stop
        start = stop + 1


def sums_over_lengths(u_lo: arb, u_hi: arb, step: arb, length: int, power: int) -> tuple[arb, arb, arb]:
    """Return intervals that hold the mean acceptance, LRE_inf and LRE_2 over the lengths 1..length, whose shares are
    proportional to l^-power.

    At length l the band reaches from u_lo standard deviations of S below its centre to u_hi above it, and the drift
    error is step * sqrt(l). Sums over lengths are taken block by block. In a block of n successive lengths with
    midpoint c, the sum of a function F is enclosed by Taylor's formula to fourth order: sum F(l) = n F(c) + F''(c)/2
    sum (l-c)^2 + F''''/24 sum (l-c)^4. Here F'''' is enclosed over the whole block; terms of odd order cancel.
    """
    reference = balls.acceptance(u_lo, u_hi, step)
    total, first, second = arb(0), arb(0), arb(0)
    for start, stop in _blocks(length):
        n, middle = stop - start + 1, (arb(start) + stop) / 2
        spread = n * (arb(n) ** 2 - 1) / 12
        fourth = spread * (3 * arb(n) ** 2 - 7) / 20
        parts = [_terms(u_lo, u_hi, step, at, power, reference) for at in (middle, Span(arb(start), arb(stop)).ball)]
        sums = [n * at[0] + spread * at[2] + fourth * over[4] for at, over in zip(*parts, strict=True)]
        total, first, second = total + sums[0], first + sums[1], second + sums[2]
    shift = first / total
    mean = reference + shift
    lre_2 = (second / total - shift * shift).sqrt() / mean
    least, most = _extremes(u_lo, u_hi, step, length)
    return mean, (most / mean - 1).max(1 - least / mean), lre_2


def _terms(u_lo: arb, u_hi: arb, step: arb, at: arb, power: int, reference: arb) -> list[list[arb]]:
    """Return the first five Taylor coefficients, around the length ``at``, of the three functions of the length that
    `sums_over_lengths` sums: the share p, p (a - reference) and p (a - reference)^2, with a the acceptance and
    ``reference`` a number near it.
    """
    l = arb_series([at, 1], prec=5)
    x, root = l.sqrt() * step, arb(2).sqrt()
    p = arb_series([arb(1)], prec=5) if power == 0 else l ** (-power)
    gap = (((u_hi + x) / root).erf() - ((x - u_lo) / root).erf()) / 2 - reference
    return [_padded(series) for series in (p, p * gap, p * gap * gap)]


def _padded(series: arb_series) -> list[arb]:
    found = series.coeffs()
    return found + [arb(0)] * (5 - len(found))


def _extremes(u_lo: arb, u_hi: arb, step: arb, length: int) -> tuple[arb, arb]:
    """Return the least and the largest acceptance over the lengths 1..length of a band whose edges are u_lo standard
    deviations of S below the centre and u_hi above it. The drift error is step * sqrt(l) at length l. Acceptance rises
    up to the length at which the drift error is (u_lo - u_hi)/2, then falls.
    """
    peak = ((u_lo - u_hi) / (2 * step)).max(arb(0)) ** 2
    near = [n for n in range(int(float(peak)) - 1, int(float(peak)) + 3) if 1 <= n <= length]
    values = [balls.acceptance(u_lo, u_hi, step * arb(n).sqrt()) for n in (1, length, *near)]
    least, most = values[0].min(values[1]), values[0]
    for value in values[1:]:
        most = most.max(value)
    return least, most


@with_precision(128)
def all_lengths(rng: np.random.Generator, wrong_share: bool = False) -> Outcome:
    """Check the mean acceptance, LRE_inf and LRE_2 that ``fspo.theory`` computes in float64 for a sqrt band centred at
    0, over all lengths 1..1e6, against proved intervals. The lengths have equal shares, or shares proportional to 1/l.
    Check also that LRE_2 <= LRE_inf <= B/(a_0 - B), with a_0 the acceptance of the band centred at the mean of S, and B
    T3's bound on the change of acceptance.
    """
    lengths, found, slacks = np.arange(1.0, MAX_LENGTH + 1), [], []
    sigma = float(rng.uniform(0.0008, 0.0015))
    u_lo, u_hi = rng.uniform(0.8, 1.5, 2).tolist()
    rule, step = Rule("sqrt", u_lo * sigma, u_hi * sigma), arb(sigma) / 2
    below, above = (arb(c) / arb(sigma) for c in (rule.range_lo, rule.range_hi))
    parts = np.array_split(lengths, 16)  # the lengths are computed in 16 parts, so that arrays stay small
    a = np.concatenate([theory.band_acceptance(rule, part, -(sigma**2) / 2, sigma) for part in parts])
    reach, a_0 = step * arb(MAX_LENGTH).sqrt(), balls.acceptance(below, above, arb(0))
    bound = abs(normal_density(above) - normal_density(below)) * reach + phi_1() * reach * reach
    for power in (0, 1):
        mean, largest, second = sums_over_lengths(below, above, step, MAX_LENGTH, power)
        lre = theory.lre(lengths ** -(1 - power if wrong_share else power), a)
        found.append(inside([lre.mean_acceptance, lre.inf, lre.l2], [mean, largest, second], 1e-7))
        slacks += [largest - second, bound - largest * (a_0 - bound)]
    order = decide(slacks, "LRE")
    return worst(*found) if order.margin >= 0 else order


CHECKS = (
    Check(
        "T3",
        Method.CERTIFIED,
        "float64 a, LRE and B_l inside enclosures, l to 1e7, u to 40",
        far_tails,
        {"naive difference of Phi": partial(far_tails, naive=True)},
    ),
    Check(
        "T3",
        Method.CERTIFIED,
        "LRE over all l in 1..1e6, uniform and 1/l shares",
        all_lengths,
        {"shares exchanged": partial(all_lengths, wrong_share=True)},
    ),
)
