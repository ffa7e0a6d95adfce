"""Check T7 and T8 (cosine lemma, split of the error) on strata that reach T7's bound, on all responses of a small
policy, and on drawn responses (section 5).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from fspo import theory
from fspo.rules import OF_CLIP_RULES, Rule, preset
from proofs_check.frame import Check, Method, Outcome
from proofs_check.tools.compare import close, mean_is, worst
from proofs_check.tools.lemma_claims import STATED, WITHOUT_KAPPA, LemmaBound, Strata, sharp_strata
from proofs_check.tools.lemma_search import Judged, random_strata
from proofs_check.tools.policy import PRESETS, Bandit, calibrated, make_bandit, strata

LRE_ALONE = replace(WITHOUT_KAPPA, name="LRE without kappa and eta", with_eta=False)


def sharp_case(rng: np.random.Generator, orthogonal: bool = True) -> Outcome:
    """Check T7s: for rho from 1e-5 to .999 two strata exist whose clipped and true update have the cosine sqrt(1 -
    rho^2), T7's lower bound, to machine precision.
    """
    gaps = []
    for rho in np.concatenate([10.0 ** np.arange(-5, 0), [0.2, 0.5, 0.9, 0.99, 0.999]]):
        eps = min(0.9, 10 ** rng.uniform(-2, -0.1))
        case = sharp_strata(float(rho), eps, orthogonal)
        lemma, bound = case.lemma(), math.sqrt((1 - rho) * (1 + rho))
        if lemma.bound is None:
            return Outcome(-1.0, "decades", note=f"no bound at rho = {rho}")
        sine, _ = case.sine()
        gaps += [close(sine, lemma.rho, 1e-8), close(lemma.cosine, lemma.bound, 1e-9), close(lemma.bound, bound, 1e-9)]
    return worst(*gaps, note="sin = rho and cos = sqrt(1 - rho^2) at rho = 1e-5 ... .999")


def identity(rng: np.random.Generator, drop_inner: bool = False) -> Outcome:
    """Check T8 on random strata in numpy.longdouble: the clipped update, divided by the mean acceptance, is the true
    update plus e_len (the error because lengths are reweighted) plus e_in (the error because of clipping inside
    lengths).
    """
    errors = []
    for _ in range(400):
        case = random_strata(rng)
        p, a, g, delta = (np.asarray(x, np.longdouble) for x in (case.p, case.a, case.g, case.delta))
        p = p / p.sum()
        a_bar = p @ a
        left = (p * a) @ (g + delta) / a_bar
        lemma = case.lemma()
        right = p @ g + lemma.e_len + (0.0 if drop_inner else lemma.e_in)
        size = np.abs(left).max() + np.abs(lemma.e_len).max() + np.abs(lemma.e_in).max()
        errors.append(float(np.abs(left - right).max() / size))
    largest = float(np.max(errors))  # NaN if one of the errors is NaN
    return Outcome(math.log10(1e-12 / max(largest, 1e-17)), "decades", note=f"max relative error {largest:.1e}")


def _rules(bandit: Bandit, target: float) -> list[Rule]:
    bases = [calibrated(bandit, name, target) for name in PRESETS]
    return [replace(base, outside=outside) for base in bases for outside in OF_CLIP_RULES]


def exact_policy(rng: np.random.Generator, claim: LemmaBound = STATED, policies: int = 6) -> Outcome:
    """Check T7 and T8 (cosine lemma, split of the error) on softmax policies, whose true and clipped updates are sums
    over all their responses. Every preset of ``PRESETS`` is tried with drop, truncate and cap.
    """
    tally, residuals = Judged(claim), []
    for i in range(policies):
        bandit = make_bandit(rng, step=(0.02, 0.1, 0.3)[i % 3])
        for rule in _rules(bandit, (0.99, 0.95, 0.85)[i % 3]):
            p, g, clipped, a = strata(bandit, rule)
            residuals.append(theory.cosine_lemma(p, a, g, clipped).identity_residual)
            tally.add(Strata.of_gradients(p, g, clipped, a))
    return _with_identity(tally, residuals)


def _with_identity(tally: Judged, residuals: list[float]) -> Outcome:
    largest = float(np.max(residuals))  # NaN if one of the residuals is NaN; the comparison below then fails the check
    note = f"identity residual {largest:.0e}"
    if not largest <= 1e-12:
        return Outcome(-largest, "identity residual", note=note)
    return tally.outcome(5, note)


def true_update(rng: np.random.Generator, weighted: bool = True) -> Outcome:
    """Check that the true update, summed over all responses, is the gradient of the new policy's expected advantage,
    computed by finite (central) differences.
    """
    bandit = make_bandit(rng, vocabulary=2, max_length=4)
    unclipped = preset("none").rule
    p, g, _, _ = strata(bandit, unclipped)
    total = p @ g
    if not weighted:
        psi = bandit.psi
        total = (bandit.p_old * bandit.advantages) @ psi
    h, numeric = 1e-5, np.zeros(bandit.new.size)
    for i in range(numeric.size):
        step = np.zeros(bandit.new.size)
        step[i] = h
        step = step.reshape(bandit.new.shape)
        numeric[i] = (bandit.expected_advantage(bandit.new + step) - bandit.expected_advantage(bandit.new - step)) / (
            2 * h
        )
    error = float(np.linalg.norm(total - numeric) / np.linalg.norm(numeric))
    return Outcome(math.log10(1e-7 / error), "decades", note=f"relative error {error:.1e}")


def sampled_update(rng: np.random.Generator, keep_weight: bool = True, draws: int = 200_000) -> Outcome:
    """Check that the clipped gradients of drawn responses, as ``rule.apply`` clips them, have the expected clipped
    update as their mean. Both are compared along 8 random directions. The expected update is a sum over all responses,
    clipped as section 2 of docs/theory.md defines drop.
    """
    bandit = make_bandit(rng, max_length=5, step=0.1)
    rule = calibrated(bandit, "fspo-kl", 0.9)
    directions = rng.standard_normal((bandit.new.size, 8))
    rows = rng.choice(bandit.p_old.size, draws, p=bandit.p_old / bandit.p_old.sum())
    S, n = bandit.log_ratio, bandit.lengths
    applied = rule.apply(S, n, bandit.advantages, rule.centre(bandit.drift_stats()))
    projected = bandit.psi @ directions
    weight = applied.clipped_weight if keep_weight else applied.multiplier
    terms = (weight * bandit.advantages)[:, None] * projected
    # Section 2 defines drop: a response is clipped if A > 0 and S > hi, or A < 0 and S < lo.
    drift = -bandit.drift_stats().k3 * n
    above, below = drift + rule.range_hi * np.sqrt(n) < S, drift - rule.range_lo * np.sqrt(n) > S
    kept = ~((bandit.advantages > 0) & above | (bandit.advantages < 0) & below)
    exact = (bandit.p_old * kept * np.exp(S) * bandit.advantages) @ projected
    return mean_is(terms[rows], exact, wanted=0.1, draws=draws)


CHECKS = (
    Check(
        "T7",
        Method.CLOSED,
        "sharp case T7s to machine precision",
        sharp_case,
        {"e orthogonal to g instead of g + e": partial(sharp_case, orthogonal=False)},
    ),
    Check(
        "T7",
        Method.ENUMERATED,
        "softmax policy, real scores: rules x drop, truncate, cap",
        exact_policy,
        {"LRE without kappa and eta": partial(exact_policy, claim=LRE_ALONE)},
    ),
    Check(
        "T7",
        Method.SIMULATED,
        "sampled clipped update has mean g_clip",
        sampled_update,
        {"weight w left out": partial(sampled_update, keep_weight=False)},
    ),
    Check(
        "T8",
        Method.CLOSED,
        "g_clip/a_bar = g + e_len + e_in on random strata",
        identity,
        {"e_in left out": partial(identity, drop_inner=True)},
    ),
    Check(
        "T8",
        Method.ENUMERATED,
        "g is the gradient of E_new[A]",
        true_update,
        {"weight w left out": partial(true_update, weighted=False)},
    ),
)
