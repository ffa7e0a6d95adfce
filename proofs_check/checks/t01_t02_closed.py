"""Check T1 and T2 by formulas: a sqrt band whose centre is the mean of S keeps all lengths equally often, and bands of
other shapes do not.
"""

from __future__ import annotations

import math
from functools import partial

import mpmath as mp
import numpy as np

from fspo import theory
from fspo.rules import Rule, preset
from proofs_check.frame import Check, Method, Outcome
from proofs_check.models import GaussianTokens, ScaledGamma
from proofs_check.tools.compare import close, frequencies, holds, homogeneous, worst
from proofs_check.tools.sampling import band_counts
from proofs_check.tools.settings import DIGITS, LENGTHS


def exact_probability(lo: float, hi: float, mean: float, scale: float) -> float:
    """Return P(lo <= S <= hi) for S ~ N(mean, scale^2), computed with 50 digits from the complementary error
    function."""
    with mp.workdps(DIGITS):
        root = mp.mpf(scale) * mp.sqrt(2)
        a, b = (mp.mpf(lo) - mp.mpf(mean)) / root, (mp.mpf(hi) - mp.mpf(mean)) / root
        if a > 0:
            a, b = -b, -a
        return float((mp.erfc(-b) - mp.erfc(-a)) / 2)


def sqrt_band(c_lo: float, c_hi: float, gamma: float = 0.5, drift: str = "gaussian") -> Rule:
    """Return the rule with the band that the checks of T1 test: a band of shape sqrt, or of shape power if gamma is not
    1/2 (a control).
    """
    if gamma == 0.5:
        return Rule("sqrt", c_lo, c_hi, drift=drift)  # type: ignore[arg-type]
    return Rule("power", c_lo, c_hi, gamma=gamma, drift=drift)  # type: ignore[arg-type]


def fair_closed(rng: np.random.Generator, gamma: float = 0.5, drift: str = "gaussian") -> Outcome:
    """Check T1 (the sqrt band keeps all lengths equally often): the band whose centre is the mean of S accepts at every
    length the share Phi(c_hi/sigma) - Phi(-c_lo/sigma), computed with 50 digits; c_lo and c_hi are its ranges, sigma
    the scale of S and Phi the normal distribution function. LRE_inf is then 0 for any shares of the lengths; they are
    drawn at random.
    """
    errors, fairness, cases = [], [], 0
    for _ in range(60):
        sigma = 10 ** rng.uniform(-3, 0)
        u_lo, u_hi = 10 ** rng.uniform(-2, 1.6, 2)
        rule = sqrt_band(u_lo * sigma, u_hi * sigma, gamma, drift)
        a = theory.band_acceptance(rule, LENGTHS, -(sigma**2) / 2, sigma, rule.centre(theory.gaussian_means(sigma)))
        exact = exact_probability(-rule.range_lo, rule.range_hi, 0.0, sigma)
        errors.append(close(a, np.full(LENGTHS.shape, exact), 1e-8))
        p = rng.dirichlet(np.full(LENGTHS.size, 0.5))
        fairness.append(1e-8 - theory.lre(p, a).inf)
        cases += LENGTHS.size
    return worst(*errors) if min(fairness) > 0 else holds(fairness, "LRE_inf below 1e-8", cases=cases)


def converse(rng: np.random.Generator, drift: str = "gaussian") -> Outcome:
    """Check T1's converse: a band of half-width c L^gamma, centred at the mean of S, accepts two lengths equally often
    only if gamma = 1/2. For random pairs of lengths a root search looks for the gamma at which both acceptances are
    equal. It must find 1/2.
    """
    from scipy.optimize import brentq

    roots = []
    for _ in range(60):
        sigma = 10 ** rng.uniform(-2.5, -0.5)
        u_lo, u_hi = rng.uniform(0.3, 1.5, 2)
        pair = np.sort(np.exp(rng.uniform(0, math.log(1e5), 2)))
        pair[1] = max(pair[1], pair[0] * 1.5)

        def difference(gamma: float, sigma=sigma, u_lo=u_lo, u_hi=u_hi, pair=pair) -> float:
            rule = Rule("power", u_lo * sigma, u_hi * sigma, gamma=gamma, drift=drift)  # type: ignore[arg-type]
            a = theory.band_acceptance(rule, pair, -(sigma**2) / 2, sigma, rule.centre(theory.gaussian_means(sigma)))
            return float(a[0] - a[1])

        # The search runs over exponents .4 to .6 only: with others the float64 acceptance of long responses is 0 or 1.
        ends = difference(0.4), difference(0.6)
        if not ends[0] > 0 > ends[1]:
            return Outcome(-1.0, "sign change", note=f"no exponent in [.4, .6] equalises lengths {pair.round(1)}")
        roots.append(brentq(difference, 0.4, 0.6, xtol=1e-13))
    return close(roots, np.full(60, 0.5), 1e-8, pairs=60)


def fair_simulated(rng: np.random.Generator, gamma: float = 0.5, drift: str = "kl", draws: int = 100_000) -> Outcome:
    """Check T1 (the sqrt band keeps all lengths equally often): for Gaussian S of lengths 4 to 65,536, ``rule.apply``
    leaves in the band the share Phi(c_hi/sigma) - Phi(-c_lo/sigma) of the responses, with ranges c_lo, c_hi, scale
    sigma of S, and Phi the normal distribution function.
    """
    sigma, lengths = 0.03, 4.0 ** np.arange(1, 9)
    model = GaussianTokens(-(sigma**2) / 2, sigma)
    rule = sqrt_band(0.03, 0.045, gamma, drift)
    counts = band_counts(rng, rule, model, lengths, draws)
    expected = theory.interval_probability(-rule.range_lo / sigma, rule.range_hi / sigma)
    return frequencies(counts, draws, expected, wanted=0.01, sigma=sigma, draws=draws)


def fair_without_normality(rng: np.random.Generator, gamma: float = 0.5, draws: int = 100_000) -> Outcome:
    """Check T1 (the sqrt band keeps all lengths equally often) without normality. Let S less the band's centre, divided
    by sqrt(L), have the same skewed law at all lengths. Then drawn S lies in the band with the same probability at all
    lengths. The check uses no formula for the acceptance.
    """
    model = ScaledGamma(mu=-0.0005, sigma=0.03, shape=0.5)
    lengths = 4.0 ** np.arange(1, 9)
    counts = band_counts(rng, sqrt_band(0.03, 0.03, gamma, "kl"), model, lengths, draws)
    return homogeneous(counts, draws, wanted=0.01, skew=-2 / math.sqrt(model.shape), draws=draws)


def _symmetric_fixed(b: float) -> Rule:
    return Rule("fixed", -math.expm1(-b), math.expm1(b))


def _symmetric_linear(eps: float) -> Rule:
    return Rule("linear", -math.expm1(-eps), math.expm1(eps))


def monotone(rng: np.random.Generator, swap: bool = False) -> Outcome:
    """Check T2 (other bands keep some lengths more often) if S has mean 0: acceptance falls strictly with the length
    for the fixed band and rises strictly for the linear band.
    """
    slack = []
    lengths = np.unique(np.round(10 ** np.linspace(0, 5, 60)))
    for _ in range(40):
        sigma = 10 ** rng.uniform(-2.5, 0)
        # The half-widths are small, so that float64 rounds no acceptance to 1. An acceptance rounded to 1 could not
        # rise strictly.
        fixed = _symmetric_fixed(sigma * rng.uniform(0.5, 5.0))
        linear = _symmetric_linear(sigma * rng.uniform(0.002, 0.015))
        a_fixed = theory.band_acceptance(fixed, lengths, 0.0, sigma)
        a_linear = theory.band_acceptance(linear, lengths, 0.0, sigma)
        if swap:
            a_fixed, a_linear = a_linear, a_fixed
        slack += [np.min(-np.diff(a_fixed) / a_fixed[1:]), np.min(np.diff(a_linear) / a_linear[1:])]
    return holds(np.array(slack) - 1e-13, "relative step", lengths=lengths.size)


def fixed_ratio(rng: np.random.Generator, mu_factor: float = 0.5, power: float = 0.5) -> Outcome:
    """Check T2: as a fixed band narrows, the ratio of its acceptances at lengths l1 < l2 tends to sqrt(l2/l1) if S has
    mean 0, and to sqrt(l2/l1) exp(sigma^2 (l2 - l1)/8) if S has mean -sigma^2 l/2, sigma the scale of S.
    """
    outcomes = []
    for _ in range(40):
        l1, l2 = np.sort(np.exp(rng.uniform(0, math.log(3e3), 2)))
        sigma = 10 ** rng.uniform(-3, -1)
        rule = _symmetric_fixed(1e-6 * sigma)
        pair = np.array([l1, l2])
        for mu in (0.0, -(sigma**2) / 2):
            a = theory.band_acceptance(rule, pair, mu * mu_factor / 0.5, sigma)
            limit = (l2 / l1) ** power * math.exp(sigma**2 * (l2 - l1) / 8 if mu else 0.0)
            outcomes.append(close(a[0] / a[1], limit, 1e-6, b_over_sigma=1e-6))
    return worst(*outcomes)


def drifted_linear(rng: np.random.Generator, threshold: float = 0.5) -> Outcome:
    """Check T2 (other bands keep some lengths more often): if S has mean -sigma^2 l/2 and variance sigma^2 l, the
    linear band with lower edge l log(1 - eps_lo) accepts a share that tends to 1, 1/2 or 0 in long responses, where
    -log(1 - eps_lo) is above, at or below sigma^2/2.
    """
    gaps = []
    for _ in range(40):
        sigma = 10 ** rng.uniform(-2, -0.5)
        for side, limit in ((1.05, 1.0), (1.0, 0.5), (0.95, 0.0)):
            reach = side * threshold * sigma**2
            rule = Rule("linear", -math.expm1(-reach), 0.5)
            a = theory.band_acceptance(rule, [1e9 / sigma**2], -(sigma**2) / 2, sigma)[0]
            gaps.append(1e-5 - abs(a - limit))
    return holds(gaps, "probability", length="1e9 / sigma^2")


def gspo_numbers(rng: np.random.Generator, sigma: float = 0.03) -> Outcome:
    """Check T2's example: if S has the scale sigma = .03 nats, the preset gspo accepts .09, .25, .31 and .06 of the
    responses of 1e2, 1e3, 1e4 and 1e5 tokens. If sigma exceeds .0245, the acceptance of long responses falls with the
    length. mpmath computes the values again, without fspo.
    """
    del rng
    stated = np.array([0.09, 0.25, 0.31, 0.06])
    rule = preset("gspo").rule
    a = theory.band_acceptance(rule, [1e2, 1e3, 1e4, 1e5], -(sigma**2) / 2, sigma)
    with mp.workdps(DIGITS):
        lo, hi, mean = mp.log(1 - mp.mpf("0.0003")), mp.log(1 + mp.mpf("0.0004")), -(mp.mpf("0.03") ** 2) / 2
        exact = [
            float(exact_probability(float(lo * n), float(hi * n), float(mean * n), 0.03 * math.sqrt(n)))
            for n in (100, 1_000, 10_000, 100_000)
        ]
        threshold = float(mp.sqrt(-2 * lo))
    rounded = 0.005 - np.max(np.abs(a - stated))
    agreement = 1e-9 - np.max(np.abs(a - exact))
    return holds(
        [rounded, agreement, 5e-5 - abs(threshold - 0.0245)], "probability", acceptances=np.round(a, 4).tolist()
    )


def unfair_simulated(rng: np.random.Generator, mu_error: float = 0.0, draws: int = 50_000) -> Outcome:
    """Check T2 (other bands keep some lengths more often): rloo's fixed band and gspo's linear band accept drawn
    Gaussian S of each length as often as ``theory.band_acceptance`` computes.
    """
    sigma, lengths = 0.03, np.array([16.0, 64, 256, 1024, 4096, 16384])
    model = GaussianTokens(-(sigma**2) / 2, sigma)
    counts, expected = [], []
    for name in ("rloo", "gspo"):
        rule = preset(name).rule
        counts.append(band_counts(rng, rule, model, lengths, draws))
        expected.append(theory.band_acceptance(rule, lengths, model.mu * (1 - mu_error), sigma))
    return frequencies(np.concatenate(counts), draws, np.concatenate(expected), wanted=0.01, draws=draws)


CHECKS = (
    Check(
        "T1",
        Method.CLOSED,
        "a(l) = Phi(u+) - Phi(-u-) at 50 digits, LRE = 0",
        fair_closed,
        {"gamma = .45": partial(fair_closed, gamma=0.45), "drift dropped": partial(fair_closed, drift="none")},
    ),
    Check(
        "T1",
        Method.CLOSED,
        "converse: equal acceptance forces gamma = 1/2",
        converse,
        {"drift dropped": partial(converse, drift="none")},
    ),
    Check(
        "T1",
        Method.SIMULATED,
        "Gaussian S through rule.apply",
        fair_simulated,
        {"gamma = .45": partial(fair_simulated, gamma=0.45), "drift dropped": partial(fair_simulated, drift="none")},
    ),
    Check(
        "T1",
        Method.SIMULATED,
        "skewed S with one law of (S - m)/sqrt(L)",
        fair_without_normality,
        {"gamma = .45": partial(fair_without_normality, gamma=0.45)},
    ),
    Check(
        "T2",
        Method.CLOSED,
        "fixed band falls, linear band rises (mu = 0)",
        monotone,
        {"bands exchanged": partial(monotone, swap=True)},
    ),
    Check(
        "T2",
        Method.CLOSED,
        "limits of a(l1)/a(l2), fixed band",
        fixed_ratio,
        {"exponent .45": partial(fixed_ratio, power=0.45), "mu = -.45 sigma^2": partial(fixed_ratio, mu_factor=0.45)},
    ),
    Check(
        "T2",
        Method.CLOSED,
        "limits 1, 1/2, 0 of the drifted linear band",
        drifted_linear,
        {"threshold .45 sigma^2": partial(drifted_linear, threshold=0.45)},
    ),
    Check(
        "T2",
        Method.CLOSED,
        "gspo's preset: .09 .25 .31 .06, threshold .0245",
        gspo_numbers,
        {"sigma = .031": partial(gspo_numbers, sigma=0.031)},
    ),
    Check(
        "T2",
        Method.SIMULATED,
        "rloo and gspo bands through rule.apply",
        unfair_simulated,
        {"drift off by 10 %": partial(unfair_simulated, mu_error=0.1)},
    ),
)
