"""T7: the cosine lemma, with its sharp constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import minimize

from fspo import theory
from fspo.rules import OF_CLIP_RULES, calibrate, preset
from fspo.theory import CosineLemma, Floats
from proofs_check.frame import Method, Outcome, Test, check, near_miss
from proofs_check.models import CHAIN, MarkovTokens, ScaledGamma, StudentTokens
from proofs_check.tools.compare import all_of, at_most, beside, close, equal, holds
from proofs_check.tools.policy import PRESETS, calibrated, make_bandit, strata
from proofs_check.tools.settings import MODELS, MU, SIGMA
from proofs_check.tools.strata import Strata, random_strata, sharp_strata

RHO: dict[str, Callable[[CosineLemma], float]] = {
    "stated": lambda lemma: lemma.rho,
    "LRE without kappa": lambda lemma: lemma.lre.inf + lemma.eta,
    "eta left out": lambda lemma: lemma.rho - lemma.eta,
    "LRE_2 beside kappa_inf": lambda lemma: lemma.lre.l2 * lemma.kappa_inf + lemma.eta,
    "the LRE": lambda lemma: lemma.lre.inf,
}
"""T7's rho, and numbers in its place with which T7 must fail."""


def below(cases: Iterable[Strata], rho: str, needed: int) -> Test:
    """Test that the sine of the angle between unclipped and clipped gradient is at most rho in each of ``cases`` with
    rho < 1, and that `theory.cosine_lemma` gives the bound sqrt(1 - rho^2) of the cosine. With fewer than ``needed``
    such cases the outcome is undecided. ``rho`` is a name in `RHO`: T7's own number, or a false one of a near miss.
    Falsified by x, the test multiplies rho by 1 - x. Cases with rho below 1e-6, or with gradients whose mean g is below
    1e-4 of their mean norm, do not count: rounding would decide."""
    sines, rhos, bounds = [], [], []
    for case in cases:
        lemma = case.lemma()
        cancelled = lemma.g_norm < 1e-4 * float(case.p @ np.linalg.norm(case.g, axis=1))
        if 1e-6 < RHO[rho](lemma) < 1 and not cancelled:
            sines.append(case.sine())
            rhos.append(RHO[rho](lemma))
            if rho == "stated":
                bounds.append(math.sqrt((1 - lemma.rho) * (1 + lemma.rho)) - (lemma.bound or 0.0))
    if len(sines) < needed:
        return lambda x: Outcome(note=f"only {len(sines)} cases have rho < 1")
    same = close(1 + np.array([0.0, *bounds]), 1, 1e-12)
    return beside(at_most(sines, rhos, 1e-8), same)


@check("T7", Method.ATTACKED, "sine at most rho: random, degenerate and sharp strata", "of rho", 1e-6)
@near_miss("LRE without kappa", rho="LRE without kappa")
@near_miss("eta left out", rho="eta left out")
@near_miss("LRE_2 beside kappa_inf", rho="LRE_2 beside kappa_inf")
def attacked(rng: np.random.Generator, rho: str = "stated") -> Test:
    """Test T7's bound rho (`below`) on 700 sets of strata that might break it: random, degenerate, and ones that reach
    it; with and without eta, the loss inside strata. Falsified by x, the test multiplies rho by 1 - x. Near misses have
    for ``rho`` a number that is sometimes too small: without kappa or eta, or with LRE_2 kappa_inf."""
    cases = [random_strata(rng) for _ in range(600)]
    cases += [sharp_strata(*rng.uniform(0.01, 0.99, 3)) for _ in range(100)]
    return below(cases, rho, 300)


def length_constants(p: Floats, g: Floats) -> tuple[float, float]:
    """Return T7's kappa_inf and kappa_2 times |mean of g|, of strata with shares p (K,) and mean gradients g (K, D)."""
    lemma = theory.cosine_lemma(p, np.ones(p.size), g, g)
    return lemma.kappa_inf * lemma.g_norm, lemma.kappa_2 * lemma.g_norm


def reached_by_signs(p: Floats, g: Floats, rng: np.random.Generator) -> float:
    """Return the largest norm of sum p r g over factors r (K,) in [-1, 1] with sum p r = 0 that an ascent from 40
    random directions finds, for K strata with the shares p (K,) and mean gradients g (K, D). In each step r is the sign
    of g's component along the direction less its median (p-weighted), and the sum is the next direction."""
    best = 0.0
    for u in rng.normal(size=(40, g.shape[1])):
        for _ in range(30):
            along = g @ u
            order = np.argsort(along)
            median = along[order][min(np.searchsorted(np.cumsum(p[order]), 0.5), p.size - 1)]
            r = np.sign(along - median)
            tie = r == 0
            r[tie] = -(p @ r) / p[tie].sum()
            e = (p * r) @ g
            if np.linalg.norm(e) <= best * (1 + 1e-15):
                break
            best, u = float(np.linalg.norm(e)), e
    return best


def least_distance(p: Floats, g: Floats) -> float:
    """Return the least mean distance sum p |g - c| of the gradients g (K, D) with the shares p (K,) from one point c,
    which a minimiser finds or which is one of the g."""
    mean = lambda c: float(p @ np.linalg.norm(g - c, axis=1))  # noqa: E731
    found: Any = minimize(mean, p @ g, method="Nelder-Mead", options={"xatol": 1e-12, "fatol": 1e-14, "maxfev": 20_000})
    return min(found.fun, *map(mean, g))


@check("T7", Method.ATTACKED, "kappa_2, kappa_inf are suprema of |e_len|: eigenvector, signs", "of the constants", 1e-7)
@near_miss("covariance without p", unweighted=True)
@near_miss("LRE_2 beside kappa_inf", exchanged=True)
@near_miss("kappa_inf |g| = min_c E|g_L - c| in space too", line=3)
def constants(rng: np.random.Generator, unweighted: bool = False, exchanged: bool = False, line: int = 1) -> Test:
    """Test that T7's constants are the best: with r a stratum's acceptance over the mean, less 1, the largest norm of
    the error e_len = sum p r g is LRE_2 kappa_2 |g|, and LRE_inf kappa_inf |g|, for strata with shares p and mean
    gradients g.

    On 60 random sets one r reaches each: r along the first eigenvector of the covariance of g, and r = +-LRE_inf on
    both sides of a median (`reached_by_signs`); 30 random r do not exceed them. On 15 more, kappa_inf |g| is at most
    the least mean distance of the g from one point: equal to it in one dimension, for 30 strata computed as it.
    Falsified by x, the test multiplies the constants by 1 + x. Near misses: ``unweighted`` has equal shares,
    ``exchanged`` bounds e_len by LRE_2 kappa_inf, too small, ``line`` 3 states the equality in three dimensions."""
    found, exact, values, bounds = [], [], [], []
    for _ in range(60):
        K, D = int(rng.integers(2, 8)), int(rng.integers(1, 6))
        p, g = rng.dirichlet(np.ones(K)), rng.normal(size=(K, D)) * 10 ** rng.uniform(-2, 2)
        inf, two = length_constants(np.ones(K) if unweighted else p, g)
        centred = g - p @ g
        _, vectors = np.linalg.eigh((centred * p[:, None]).T @ centred)
        r = centred @ vectors[:, -1]
        found += [two, inf]
        exact += [np.linalg.norm((p * r) @ g) / math.sqrt(p @ r**2), reached_by_signs(p, g, rng)]
        for r in rng.uniform(-1, 1, (30, K)):
            r = r - p @ r
            size = np.linalg.norm((p * r) @ g)
            values += [size, size]
            bounds += [math.sqrt(p @ r**2) * two, (math.sqrt(p @ r**2) if exchanged else np.abs(r).max()) * inf]
    distances, infs = [], []
    for K, D, alike in ((7, line, True), (30, 4, True), (7, 3, False)) * 5:
        p, g = rng.dirichlet(np.ones(K)), rng.normal(size=(K, D))
        inf, _ = length_constants(p, g)
        distance = least_distance(p, g)
        values += [reached_by_signs(p, g, rng), inf]
        bounds += [inf, distance]
        if alike:
            distances, infs = [*distances, distance], [*infs, inf]
    sup = beside(equal(found, exact, 1e-9), at_most(values, bounds, 1e-9)(0.0))
    return all_of(sup, equal(distances, infs, 1e-8))


@check("T7", Method.CLOSED, "T7s: cosine sqrt(1 - rho^2) is reached, rho from 1e-5 to .999", "of rho", 1e-6)
@near_miss("e orthogonal to g instead of g + e", orthogonal=False)
def sharp(rng: np.random.Generator, orthogonal: bool = True) -> Test:
    """Test T7s at ten rho from 10^-5 to .999: in the strata of `sharp_strata` the sine of the angle between clipped and
    unclipped gradient is rho; their cosine, and the bound of `theory.cosine_lemma`, are sqrt(1 - rho^2), which is at
    least (1 - rho)/(1 + rho). Falsified by x, the test multiplies rho by 1 + x. The near miss, ``orthogonal`` False,
    has an error e orthogonal to the unclipped gradient g, not to g + e: then rho is the tangent."""
    rhos, cases = np.array([*10.0 ** np.arange(-5, 0), 0.2, 0.5, 0.9, 0.99, 0.999]), []
    for rho in rhos:
        eps = min(0.9, 10 ** rng.uniform(-2, -0.1))
        cases.append(sharp_strata(float(rho), eps, float(rng.choice([0.0, 0.4])), orthogonal))
    lemmas = [case.lemma() for case in cases]
    cosines = np.sqrt((1 - rhos) * (1 + rhos))
    fixed = close(
        [*(lemma.cosine for lemma in lemmas), *(lemma.bound or 0.0 for lemma in lemmas)], [*cosines, *cosines], 1e-9
    )
    found = equal([lemma.rho for lemma in lemmas], [case.sine() for case in cases], 1e-8)
    return beside(found, fixed, holds(cosines - (1 - rhos) / (1 + rhos), "cosine"))


@check("T7", Method.ENUMERATED, "softmax policies, real scores: rules with drop, truncate, cap", "of rho", 0.5)
@near_miss("rho = LRE", rho="the LRE")
@near_miss("eta left out", rho="eta left out")
def policies(rng: np.random.Generator, rho: str = "stated") -> Test:
    """Test T7's bound rho (`below`) over all responses of six softmax policies with real scores, four presets, drop,
    truncate and cap. Falsified by x: rho times 1 - x. Near misses: ``rho`` is LRE_inf, or lacks eta."""
    cases = []
    for i in range(6):
        bandit = make_bandit(rng, step=(0.02, 0.1, 0.3)[i % 3])
        for name in PRESETS:
            rule = calibrated(bandit, name, (0.99, 0.95, 0.85)[i % 3])
            for outside in OF_CLIP_RULES:
                cases.append(Strata(*strata(bandit, replace(rule, outside=outside))))
    return below(cases, rho, 10)


OTHERS = (
    MarkovTokens(MU, SIGMA, persistence=0.9, share=0.2, mean_part=0.7, noise_ratio=3.0),
    StudentTokens(MU, SIGMA, df=4.0),
    ScaledGamma(MU, SIGMA, shape=0.5),
    CHAIN,
)
"""Models of which no power of L scales S, or whose S is skewed."""


@check("T7", Method.SIMULATED, "drawn responses of every log-ratio model", "of rho", 0.5)
@near_miss("rho = LRE", rho="the LRE")
@near_miss("eta left out", rho="eta left out")
def simulated(rng: np.random.Generator, rho: str = "stated", draws: int = 1_500) -> Test:
    """Test T7's bound rho (`below`) on ``draws`` responses at each of four lengths from every log-ratio model, and from
    a Gaussian one with part of S put to 0; made-up scores differ by length and follow S a little; the sqrt band accepts
    90 %. Falsified by x, the test multiplies rho by 1 - x. Near misses: ``rho`` as LRE_inf alone, or without eta."""
    cases, lengths, models = [], np.array([4.0, 16, 64, 128]), [*MODELS.values(), *OTHERS]
    for i, model in enumerate([*models, MODELS["Gaussian"]]):
        n = np.repeat(lengths, draws)
        S = model.sample(rng, n)
        S = S - np.repeat(S.reshape(4, draws).mean(axis=1), draws)  # around the mean of its length
        if i == len(models):
            S = np.where(rng.random(n.size) < 0.4 + 0.1 * np.log2(n / 4), S, 0.0)
        A = rng.choice([-1.0, 1.0], n.size)
        rule = calibrate(preset("fspo").rule, S, n, A, 0.9, 0.0)
        applied = rule.apply(S, n, A)
        towards = np.array([1.0, 0, 0]) + 0.5 * rng.normal(size=(4, 3))
        scores = np.repeat(towards, draws, axis=0) * A[:, None] + 0.2 * (S / np.std(S))[:, None] * rng.normal(size=3)
        terms = (A * applied.weight)[:, None] * scores
        g, clipped = (x.reshape(4, draws, 3).mean(axis=1) for x in (terms, applied.multiplier[:, None] * terms))
        a = applied.multiplier.reshape(4, draws).mean(axis=1)
        cases.append(Strata(np.full(4, 0.25), g, clipped, a))
    return below(cases, rho, 8)
