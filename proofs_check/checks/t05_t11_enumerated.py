"""Check T5 to T11: mean weight by length, unbounded weights, the sign of A, the price of clipping (sections 4, 6)."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from fspo import theory
from fspo.rules import Rule, calibrate, preset
from proofs_check.frame import Check, Method, Outcome
from proofs_check.models import GaussianTokens, LogRatioModel, ScaledGamma, matching_means
from proofs_check.tools.compare import frequencies, holds, homogeneous
from proofs_check.tools.policy import (
    make_bandit,
    strata,
)


def sign_identity(rng: np.random.Generator, crossed: bool = False) -> Outcome:
    """Check T9 over all responses of a policy: at each length the share not clipped equals T9's formula. The formula
    needs three probabilities: of S above the band if A > 0, of S below it if A < 0, and of S beyond the dual clip if A
    < 0; and the share of A > 0.
    """
    outcomes = []
    for i in range(12):
        bandit = make_bandit(rng, step=0.3)
        S, n = bandit.log_ratio, bandit.lengths
        A, rule = bandit.advantages, preset("fspo-kl", range_hi=0.02).rule
        m = rule.centre(bandit.drift_stats())
        rule = calibrate(rule, S, n, A, 0.7, m)
        rule = replace(rule, dual=1.5) if i % 2 else rule
        lo, hi = rule.band(n, m)
        dual = dual_edge(rule, hi, m * n)
        _, _, _, a = strata(bandit, rule)
        for k, length in enumerate(np.unique(n[A != 0])):
            at = n == length
            mass = {sign: np.where(at & (np.sign(A) == sign), bandit.p_old, 0.0) for sign in (1, -1)}
            total = {sign: max(float(part.sum()), 1e-300) for sign, part in mass.items()}
            tail = {
                "high": mass[1] @ (hi < S) / total[1],
                "low": mass[-1] @ (lo > S) / total[-1],
                "dual": mass[-1] @ (dual < S) / total[-1],
            }
            positive = float(mass[1].sum() / (mass[1].sum() + mass[-1].sum()))
            high, low = (tail["low"], tail["high"]) if crossed else (tail["high"], tail["low"])
            # With ``crossed`` (a control) T9's formula gets the shares of S below and above the band in each other's
            # place, and 0 for the share beyond the dual clip.
            beyond = 0.0 if crossed else tail["dual"]
            stated = theory.update_acceptance(positive, high, low, beyond)
            outcomes.append(abs(float(stated) - a[k]))
    error = float(np.max(outcomes))  # np.max is NaN if the error at one length is NaN
    return Outcome(math.log10(1e-11 / max(error, 1e-17)), "decades", note=f"largest error {error:.1e}")


def dual_edge(rule: Rule, hi: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Return the dual clip's edge of S for each response: its distance above the centre is ``rule.dual`` times that of
    the upper edge ``hi``. It is infinite without a dual clip.
    """
    if rule.dual is None:
        return np.full(hi.shape, math.inf)
    return centre + rule.dual * (hi - centre)


def sign_fairness(
    rng: np.random.Generator,
    c_hi: float = 0.03,
    dual: float | None = None,
    model: LogRatioModel | None = None,
    shift: float = 0.0,
    draws: int = 100_000,
) -> Outcome:
    """Check T9: if the law of S is symmetric about the band's centre, S is independent of A and both ranges are equal,
    the share of drawn responses that is not clipped is the same at all lengths, although the share of A > 0 varies with
    the length.
    """
    sigma, lengths = 0.03, np.array([16.0, 64, 256, 1024, 4096])
    model = model or GaussianTokens(-(sigma**2) / 2, sigma)
    n = np.broadcast_to(lengths, (draws, lengths.size))
    A = np.where(rng.random(n.shape) < np.linspace(0.1, 0.9, lengths.size), 1.0, -1.0)
    S = model.sample(rng, n) + shift * np.sqrt(n) * (A > 0)
    rule = preset("fspo-kl", range_lo=0.03, range_hi=c_hi, dual=dual).rule
    kept = rule.apply(S, n, A, rule.centre(matching_means(model))).multiplier == 1
    return homogeneous(kept.sum(axis=0), draws, wanted=0.01, draws=draws)


def sign_closed(rng: np.random.Generator, c_ratio: float = 1.0, dual: float | None = None) -> Outcome:
    """Check T9's formula of the share not clipped. If Gaussian S lies above the band as often as below it, the LRE of
    that share is 0, whatever the shares of A > 0 at the lengths are.
    """
    largest = 0.0
    for _ in range(200):
        u = rng.uniform(0.3, 2.0)
        positive, p = rng.random(6), rng.dirichlet(np.ones(6))
        high = theory.interval_probability(c_ratio * u, np.inf)
        low = theory.interval_probability(-np.inf, -u)
        beyond = 0.0 if dual is None else theory.interval_probability(dual * c_ratio * u, np.inf)
        largest = max(largest, theory.lre(p, theory.update_acceptance(positive, high, low, beyond)).inf)
    return holds(1e-12 - largest, "LRE_inf below 1e-12", note=f"largest LRE_inf {largest:.1e}")


def sign_simulated(rng: np.random.Generator, forget_sign: bool = False, draws: int = 100_000) -> Outcome:
    """Check T9: if the two ranges differ and the share of A > 0 varies with the length, the share of drawn responses
    that is not clipped equals T9's formula, which needs the shares of S above and below the band and the share of A >
    0.
    """
    sigma, lengths = 0.03, np.array([16.0, 256, 4096])
    model = GaussianTokens(-(sigma**2) / 2, sigma)
    rule = preset("fspo-kl", range_lo=0.02, range_hi=0.05).rule
    positive = np.array([0.2, 0.5, 0.9])
    n = np.broadcast_to(lengths, (draws, 3))
    A = np.where(rng.random(n.shape) < positive, 1.0, -1.0)
    kept = rule.apply(model.sample(rng, n), n, A, rule.centre(matching_means(model))).multiplier == 1
    high = theory.interval_probability(0.05 / sigma, np.inf)
    low = theory.interval_probability(-np.inf, -0.02 / sigma)
    expected = theory.update_acceptance(0.5 if forget_sign else positive, high, low)
    return frequencies(kept.sum(axis=0), draws, expected, wanted=0.01, draws=draws)


_SKEWED = ScaledGamma(mu=-0.0005, sigma=0.03, shape=0.5)

CHECKS = (
    Check(
        "T9",
        Method.ENUMERATED,
        "a_upd by sign of A equals E[M | l], with dual clip too",
        sign_identity,
        {"sides exchanged": partial(sign_identity, crossed=True)},
    ),
    Check(
        "T9",
        Method.CLOSED,
        "LRE of a_upd is 0 for symmetric S and ranges",
        sign_closed,
        {"c_hi = 1.1 c_lo": partial(sign_closed, c_ratio=1.1), "dual clip": partial(sign_closed, dual=2.0)},
    ),
    Check(
        "T9",
        Method.SIMULATED,
        "fair band stays fair: symmetric S independent of A",
        sign_fairness,
        {
            "c_hi = 1.2 c_lo": partial(sign_fairness, c_hi=0.036),
            "dual clip": partial(sign_fairness, dual=1.5),
            "skewed S": partial(sign_fairness, model=_SKEWED),
            "S larger where A > 0": partial(sign_fairness, shift=0.01),
        },
    ),
    Check(
        "T9",
        Method.SIMULATED,
        "asymmetric ranges through rule.apply",
        sign_simulated,
        {"share of positive A taken as 1/2": partial(sign_simulated, forget_sign=True)},
    ),
)
