"""Check T4: how unfair the sqrt band can get if token log-ratios are not normal or depend on each other (section
4).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from fspo import theory
from fspo.rules import Rule, preset
from proofs_check.frame import Check, Method, Outcome
from proofs_check.models import (
    AutoregressiveTokens,
    ExponentialTokens,
    TokenByToken,
    matching_means,
)
from proofs_check.tools.compare import close, frequencies, holds, worst
from proofs_check.tools.sampling import band_counts

ROUNDING = 1e-10  # rounding allowed where an acceptance is compared with its bound


def berry_esseen_closed(rng: np.random.Generator, factor: float = 1.0, cases: int = 300) -> Outcome:
    """Check T4 (token log-ratios that are not normal): let token log-ratios be exponential, so that S has a gamma law,
    or +-1, so that it has a binomial law. The acceptance of a band then differs from that of Gaussian S by at most the
    Berry-Esseen bound.
    """
    from scipy.stats import binom

    slack = []
    lengths = np.unique(np.round(2.0 ** np.arange(0, 17)))
    for _ in range(cases):
        u_lo, u_hi = 10 ** rng.uniform(-2, 0.6, 2)
        sigma = 0.03
        model = ExponentialTokens(-(sigma**2) / 2, sigma)
        rule = Rule("sqrt", u_lo * sigma, u_hi * sigma, drift="kl")
        lo, hi = rule.band(lengths, rule.centre(matching_means(model)))
        gaussian = theory.band_acceptance(rule, lengths, model.mu, sigma, rule.centre(matching_means(model)))
        truth = model.cdf(hi, lengths) - model.cdf(lo, lengths)
        envelope = factor * theory.berry_esseen_bound(model.RHO3, lengths)
        slack.append(np.min((envelope - np.abs(truth - gaussian)) / envelope))
    even = 2.0 ** np.arange(1, 17)
    # If each token log-ratio is +1 or -1, a closed band that contains 0 and no other value of S accepts the share
    # P(S=0).
    atom = binom.pmf(even / 2, even, 0.5)
    envelope = factor * theory.berry_esseen_bound(1.0, even)
    slack.append(np.min((envelope - atom) / envelope))
    return holds(slack, "(envelope - gap)/envelope", cases=cases, lengths=lengths.size)


def berry_esseen_simulated(rng: np.random.Generator, skewed: bool = True, draws: int = 100_000) -> Outcome:
    """Check T4 (token log-ratios that are not normal): the rule accepts drawn sums of exponential token log-ratios as
    often as the law of such sums, a gamma law, says.
    """
    sigma, lengths = 0.03, np.array([1.0, 4, 16, 64, 1024])
    model = ExponentialTokens(-(sigma**2) / 2, sigma)
    rule = preset("fspo-kl", range_hi=0.02).rule
    m = rule.centre(matching_means(model))
    counts = band_counts(rng, rule, model, lengths, draws)
    lo, hi = rule.band(lengths, m)
    gaussian = theory.band_acceptance(rule, lengths, model.mu, sigma, m)
    expected = model.cdf(hi, lengths) - model.cdf(lo, lengths) if skewed else gaussian
    return frequencies(counts, draws, expected, wanted=0.01, draws=draws)


def ar1_closed(rng: np.random.Generator, factor: float = 1.0) -> Outcome:
    """Check T4 (dependent tokens): for AR(1) token log-ratios the formula of Var S equals the double sum of their
    autocovariances. The acceptance at this variance differs from that at the long-run variance by at most T3's bound
    for a wrong scale, and the error of the log scale is at most |alpha|/((1 - |alpha|) l).
    """
    errors, slack = [], []
    for _ in range(40):
        ar, u = float(rng.uniform(-0.95, 0.95)), float(10 ** rng.uniform(-1, 0.7))
        lengths = np.array([1.0, 2, 5, 20, 60])
        direct = []
        for length in lengths.astype(int):
            gap = np.abs(np.subtract.outer(np.arange(length), np.arange(length)))
            # (1 - ar)/(1 + ar), with ar the AR(1) coefficient, is the variance of a token log-ratio divided by the
            # long-run variance of the token log-ratios.
            direct.append(np.sum(ar**gap) * (1 - ar) / (1 + ar) / length)
        ratio = theory.ar1_variance_ratio(ar, lengths)
        errors.append(close(ratio * factor, direct, 1e-10))
        a = theory.band_acceptance(Rule("sqrt", 0.03 * u, 0.03 * u), lengths, 0.0, 0.03 * np.sqrt(ratio))
        tau = np.abs(np.log(ratio)) / 2
        slack.append(np.min(abs(ar) / ((1 - abs(ar)) * lengths) - tau))
        slack.append(np.min(2 * theory.PHI_1 * tau - np.abs(a - theory.interval_probability(-u, u))))
    return worst(*errors) if min(slack) >= -ROUNDING else holds(slack, "probability")


def ar1_rate(rng: np.random.Generator, power: float = 1.0) -> Outcome:
    """Check T4's rate: for AR(1) token log-ratios and lengths from l_min to 64 l_min, LRE_inf falls like 1/l_min as
    l_min grows. The product of l_min and LRE_inf must converge.
    """
    del rng
    scaled = []
    for start in (1e3, 1e4, 1e5, 1e6):
        lengths = start * 2.0 ** np.arange(7)
        sigma = 0.03 * np.sqrt(theory.ar1_variance_ratio(0.6, lengths))
        a = theory.band_acceptance(Rule("sqrt", 0.03, 0.03), lengths, 0.0, sigma)
        scaled.append(start**power * theory.lre(np.ones(7), a).inf)
    return close(np.array(scaled[1:]) / scaled[-1], np.ones(3), 1e-2, ar=0.6)


def ar1_simulated(rng: np.random.Generator, finite: bool = True, draws: int = 40_000) -> Outcome:
    """Check T4 (dependent tokens): fspo's band accepts sums of AR(1) token log-ratios, drawn token by token, as often
    as the normal law with the variance of S at their length says. The normal law with the long-run variance, sigma^2 L,
    says something else (a control).
    """
    model = AutoregressiveTokens(0.0, 0.03, 0.6)
    rule, lengths = preset("fspo").rule, np.array([1.0, 3, 10, 40])
    counts = band_counts(rng, rule, TokenByToken(model), lengths, draws)
    ratio = theory.ar1_variance_ratio(model.ar, lengths) if finite else np.ones(4)
    expected = theory.band_acceptance(rule, lengths, 0.0, model.sigma * np.sqrt(ratio))
    return frequencies(counts, draws, expected, wanted=0.015, ar=model.ar, draws=draws)


CHECKS = (
    Check(
        "T4",
        Method.CLOSED,
        "gamma and binomial laws inside the Berry-Esseen envelope",
        berry_esseen_closed,
        {"constant .39 (Esseen's lower limit is .4097)": partial(berry_esseen_closed, factor=0.39 / 0.4748)},
    ),
    Check(
        "T4",
        Method.SIMULATED,
        "exponential tokens through the rule",
        berry_esseen_simulated,
        {"Gaussian law instead": partial(berry_esseen_simulated, skewed=False)},
    ),
    Check(
        "T4",
        Method.CLOSED,
        "Var S_l of AR(1) tokens, T3 with tau_l",
        ar1_closed,
        {"variance x 1.01": partial(ar1_closed, factor=1.01)},
    ),
    Check("T4", Method.CLOSED, "LRE = O(1/l_min)", ar1_rate, {"O(l_min^-1.2)": partial(ar1_rate, power=1.2)}),
    Check(
        "T4",
        Method.SIMULATED,
        "AR(1) tokens through the rule",
        ar1_simulated,
        {"long-run variance at every length": partial(ar1_simulated, finite=False)},
    ),
)
