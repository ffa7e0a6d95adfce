"""Check T9: the share of weight that a band keeps, beside the share of responses that it keeps (section 4). In the
clipped loss responses count by their weight.
"""

from __future__ import annotations

from functools import partial

import mpmath as mp
import numpy as np

from fspo import theory
from fspo.rules import Rule, preset
from proofs_check.frame import Check, Method, Outcome
from proofs_check.models import GaussianTokens, matching_means
from proofs_check.tools.compare import close, holds, mean_is, worst


def weight_quadrature(rng: np.random.Generator, as_band: bool = False) -> Outcome:
    """Check T9's formula of b(l), the share of weight that a band keeps at length l, against quadrature of e^s times
    the normal density of S over the band, with 30 digits.
    """
    outcomes = []
    drifts = ("none", "kl", "gaussian", "tilted")
    for i in range(24):
        sigma, length = 10 ** rng.uniform(-2, -1), float(np.round(10 ** rng.uniform(0.5, 3)))
        u_lo, u_hi = rng.uniform(0.3, 2.0, 2)
        rule = Rule("sqrt", u_lo * sigma, u_hi * sigma, drift=drifts[i % 4])  # type: ignore[arg-type]
        means, mu = theory.gaussian_means(sigma), -(sigma**2) / 2
        with mp.workdps(30):
            drift = {"none": 0, "kl": mu, "gaussian": mu, "tilted": -mu}[rule.drift] * mp.mpf(length)
            lo, hi = drift - rule.range_lo * mp.sqrt(length), drift + rule.range_hi * mp.sqrt(length)
            mean, scale = mp.mpf(mu) * length, mp.mpf(sigma) * mp.sqrt(length)
            inside = mp.quad(lambda s, m=mean, c=scale: mp.e**s * mp.npdf(s, m, c), mp.linspace(lo, hi, 5))
            whole = mp.e ** (mean + scale**2 / 2)
            exact = float(inside / whole)
        formula = theory.band_acceptance if as_band else theory.weight_acceptance
        outcomes.append(close(formula(rule, [length], mu, sigma, rule.centre(means)), exact, 1e-10))
    return worst(*outcomes)


def weight_fairness(rng: np.random.Generator, drift: str = "tilted") -> Outcome:
    """Check T9 (share of weight kept): a band with the drift named ``tilted``, + sigma^2/2 per token with sigma the
    scale of S, keeps the same share of weight at all lengths, for every range and sigma.

    A band around 0 with equal ranges keeps as large a share of weight as of responses.
    """
    largest, unequal = 0.0, 0.0
    lengths = np.array([1.0, 10, 100, 1_000, 10_000])
    for _ in range(100):
        sigma, (u_lo, u_hi) = 10 ** rng.uniform(-2.5, -1), rng.uniform(0.3, 2.0, 2)
        means, mu = theory.gaussian_means(sigma), -(sigma**2) / 2
        fair = Rule("sqrt", u_lo * sigma, u_hi * sigma, drift=drift)  # type: ignore[arg-type]
        b = theory.weight_acceptance(fair, lengths, mu, sigma, fair.centre(means))
        largest = max(largest, theory.lre(np.ones(5), b).inf)
        even = Rule("sqrt", u_lo * sigma, u_lo * sigma)
        a_even, b_even = (f(even, lengths[:3], mu, sigma) for f in (theory.band_acceptance, theory.weight_acceptance))
        # np.max is NaN if one of the numbers is NaN, so that a NaN is not overlooked.
        unequal = float(np.maximum(unequal, np.max(np.abs(a_even / b_even - 1))))
    return holds(
        1e-9 - np.maximum(largest, unequal), "LRE_inf of b", note=f"LRE_inf {largest:.0e}, |a/b - 1| {unequal:.0e}"
    )


def weight_example(rng: np.random.Generator, sigma: float = 0.03) -> Outcome:
    """Check T9's example. With ranges of one standard deviation of S, a band centred at the mean of S keeps .683 of
    responses and .495 of weight, and a band centred at 0 keeps .630 of both. The first band has LRE 0 for responses of
    two lengths; all the same the cosine of clipped and true update is .848 there.
    """
    del rng
    means, mu = theory.gaussian_means(sigma), -(sigma**2) / 2
    centred, plain = Rule("sqrt", 0.03, 0.03, drift="gaussian"), Rule("sqrt", 0.03, 0.03)
    found = [
        *theory.band_acceptance(centred, [1000.0], mu, sigma, centred.centre(means)),
        *theory.weight_acceptance(centred, [1000.0], mu, sigma, centred.centre(means)),
        *theory.band_acceptance(plain, [1000.0], mu, sigma),
        *theory.weight_acceptance(plain, [1000.0], mu, sigma),
    ]
    pair = [10.0, 2000.0]
    g = np.array([[1.0, 0.0], [-0.6, 0.8]])
    b = theory.weight_acceptance(centred, pair, mu, sigma, centred.centre(means))
    a = theory.band_acceptance(centred, pair, mu, sigma, centred.centre(means))
    lemma = theory.cosine_lemma(np.array([0.5, 0.5]), a, g, b[:, None] * g)
    gaps = np.abs(np.array([*found, lemma.cosine]) - [0.683, 0.495, 0.630, 0.630, 0.848])
    return holds([5e-4 - gaps.max(), 1e-9 - lemma.lre.inf], "probability", cosine=round(lemma.cosine, 4))


def weight_simulated(rng: np.random.Generator, as_band: bool = False, draws: int = 200_000) -> Outcome:
    """Check T9 (share of weight kept): at each length, the mean over drawn responses of w, counted as 0 outside the
    band, is the share of weight that the formula gives; the mean of w over all responses is 1. ``rule.apply`` gives w
    and says which responses are in the band.
    """
    sigma, lengths = 0.03, np.array([16.0, 64, 256, 1000])
    model = GaussianTokens(-(sigma**2) / 2, sigma)
    rule = preset("fspo-kl").rule
    m = rule.centre(matching_means(model))
    n = np.broadcast_to(lengths, (draws, lengths.size))
    applied = rule.apply(model.sample(rng, n), n, np.ones_like(n), m)
    formula = theory.band_acceptance if as_band else theory.weight_acceptance
    expected = formula(rule, lengths, model.mu, sigma, m)
    return mean_is(np.where(applied.in_band, applied.weight, 0.0), expected, wanted=0.01, draws=draws)


CHECKS = (
    Check(
        "T9",
        Method.CLOSED,
        "b(l) by quadrature of the weighted law",
        weight_quadrature,
        {"a for b": partial(weight_quadrature, as_band=True)},
    ),
    Check(
        "T9",
        Method.CLOSED,
        "drift tilted flattens b; a = b for none",
        weight_fairness,
        {"drift gaussian": partial(weight_fairness, drift="gaussian")},
    ),
    Check(
        "T9",
        Method.CLOSED,
        "example: .683 .495 .630, cosine .848 at LRE = 0",
        weight_example,
        {"sigma = .031": partial(weight_example, sigma=0.031)},
    ),
    Check(
        "T9",
        Method.SIMULATED,
        "weights of in-band responses through rule.apply",
        weight_simulated,
        {"a for b": partial(weight_simulated, as_band=True)},
    ),
)
