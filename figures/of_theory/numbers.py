"""Compute the tables of the theory's figures (docs/theory.md), one for each figure and of its name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import binom, binomtest

from figures.tables import Tables
from fspo import theory
from fspo.rules import COMPARED, Rule, preset, scaled
from fspo.stats.intervals import CONFIDENCE
from proofs_check.frame import generator
from proofs_check.models import ExponentialTokens, GaussianTokens, StudentTokens, matching_means
from proofs_check.tools.policy import PRESETS, calibrated, make_bandit, strata
from proofs_check.tools.settings import SIGMA
from proofs_check.tools.strata import Strata, random_strata, sharp_strata

Floats = theory.Floats
Row = dict[str, Any]

DRAWS = 20_000
"""Number of responses of each simulated point."""
ACCEPTANCE = 0.85
"""The band acceptance, averaged over ``LENGTHS``, to which the range of every rule is scaled."""
LENGTHS = np.unique(np.round(np.geomspace(1, 1e5, 121)))
"""Response lengths in tokens. They are equally likely, so log length is nearly uniform."""
SIMULATED_LENGTHS = np.geomspace(1, 10**4.5, 10)
"""Lengths at which the first rule of a panel is simulated. Each further rule is simulated at lengths a tenth of a
decade longer, so that its points do not cover the others."""
DISTRIBUTIONS = {
    "no drift error": (0.0, COMPARED),
    "drift -sigma^2/2": (-(SIGMA**2) / 2, (*COMPARED, "fspo-kl")),
}
"""Panels of the figure of acceptance by length. A panel is given by the drift mu of S in nats per token, and the names
of its rules. fspo-kl's band is centred at the drift, all others at 0."""
RANGES = ((1.0, 1.0, False), (0.5, 1.5, True))
"""Panels of the figure of LRE by drift error (T3): lower and upper range in standard deviations of S, and whether drift
errors of both signs occur."""
TOKEN_LENGTHS = np.unique(np.round(np.geomspace(1, 4096, 37))).astype(int)
EXPONENTIAL, STUDENT = ExponentialTokens(0.0, 1.0), StudentTokens(0.0, 1.0, df=5.0)


def matched_rule(name: str, mu: float) -> tuple[Rule, float]:
    """Return the rule of the preset ``name``, its range scaled so that the band acceptance, averaged over lengths from
    1 to 10^5, is .85; and the drift of its band, nats per token. S given the length L is N(mu L, sigma^2 L)."""
    base = preset(name).rule
    m = base.centre(matching_means(GaussianTokens(mu, SIGMA))) if base.needs_stats else 0.0

    def excess(log_factor: float) -> float:
        rule = scaled(base, math.exp(log_factor))
        return float(theory.band_acceptance(rule, LENGTHS, mu, SIGMA, m).mean()) - ACCEPTANCE

    high = 0.0
    while excess(high) < 0:  # Small steps: a range far too wide is no range of a rule with the edges log(1 - eps).
        high += 1.0
    found: Any = brentq(excess, high - 8, high, xtol=1e-12)
    return scaled(base, math.exp(found)), m


def acceptance_models(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    """Yield rows of each rule's band acceptance at each length (T1, T2). The ranges are such that all rules have the
    same mean acceptance.

    The column kind says how it was computed: ``formula``, or ``simulated`` from ``draws`` responses at each length,
    with the interval of Clopper and Pearson."""
    for panel, (mu, rules) in DISTRIBUTIONS.items():
        model = GaussianTokens(mu, SIGMA)
        for place, name in enumerate(rules):
            rule, m = matched_rule(name, mu)
            head = {"panel": panel, "mu": mu, "sigma": SIGMA, "target": ACCEPTANCE, "rule": name}
            a = theory.band_acceptance(rule, LENGTHS, mu, SIGMA, m)
            for length, value in zip(LENGTHS, a, strict=True):
                yield {**head, "kind": "formula", "length": length, "acceptance": value}
            for length in np.round(SIMULATED_LENGTHS * 10 ** (0.1 * place)).tolist():
                S = model.sample(rng, np.full(draws, length))
                hits = int(rule.apply(S, np.full(draws, length), np.ones(draws), m).in_band.sum())
                low, high = binomtest(hits, draws).proportion_ci(CONFIDENCE, method="exact")
                found = {"acceptance": hits / draws, "ci_low": low, "ci_high": high, "draws": draws}
                yield {**head, "kind": "simulated", "length": length, **found}


def drift_and_scale(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    """Yield rows of T3: how large LRE_inf can be, over all shares of the lengths, if the drift error of every length is
    between 0 and x (or between -x and x), and T3's bounds on it.

    A row belongs to one pair of ranges, lower and upper, over sigma (``u_lo``, ``u_hi``), and one x. ``one_sided`` and
    ``two_sided`` are T3's bounds for drift errors of one and of both signs, None where T3 gives none. Not random."""
    del rng, draws
    for u_lo, u_hi, mixed in RANGES:
        a_0 = float(theory.interval_probability(-u_lo, u_hi))
        for x in np.linspace(0, 1.2, 25).tolist():
            least = -x if mixed else 0.0
            bound = float(np.max(theory.drift_error_bound(u_lo, u_hi, [least, x])))
            yield {
                "u_lo": u_lo,
                "u_hi": u_hi,
                "mixed_signs": mixed,
                "a_0": a_0,
                "x": x,
                "lre": theory.worst_lre(u_lo, u_hi, (least, x)),
                "one_sided": theory.lre_bound(bound, a_0, one_sided=True),
                "two_sided": theory.lre_bound(bound, a_0, one_sided=False),
            }


def cosine_tightness(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    """Yield rows that show how near the cosine of clipped and unclipped gradient comes to T7's bound: for ``draws`` /
    10 random sets of strata, for softmax policies with their lengths as strata, and for strata that reach the bound
    (T7s)."""

    def row(source: str, case: Strata) -> Row:
        lemma, sine = case.lemma(), case.sine()  # 1 - cosine^2 would lose the digits of a small sine
        return {"source": source, "rho": lemma.rho, "cosine": lemma.cosine, "sine": sine}

    for _ in range(draws // 10):
        yield row("random", random_strata(rng))
    for i in range(24):
        bandit = make_bandit(rng, step=(0.02, 0.05, 0.1, 0.3)[i % 4])
        for name in PRESETS:
            yield row("policy", Strata(*strata(bandit, calibrated(bandit, name, (0.99, 0.95)[i % 2]))))
    for rho in [*np.geomspace(1e-4, 0.1, 7), *np.linspace(0.2, 0.9, 8), 0.99, 0.999]:
        yield row("T7s", sharp_strata(float(rho)))


def edge_errors(tokens: str, length: int) -> tuple[Any, Any]:
    """Return places z of a band's edge, in standard deviations of S, and F(z) - Phi(z) at each: F is the distribution
    function of S, a sum of ``length`` tokens of the distribution ``tokens``, and Phi the standard normal one.

    Where F jumps, z occurs twice: once with F's limit from the left, once with F's value."""
    if tokens == "signs":
        steps = np.arange(length + 1)
        atoms = (2.0 * steps - length) / math.sqrt(length)
        below, at = binom.cdf(steps - 1, length, 0.5), binom.cdf(steps, length, 0.5)
        return np.repeat(atoms, 2), (np.stack([below, at], axis=1) - ndtr(atoms)[:, None]).ravel()
    if tokens == "exponential":
        z = np.linspace(-8, 8, 1601)
        return z, EXPONENTIAL.cdf(z * math.sqrt(length), length) - ndtr(z)
    z = np.linspace(0, 4, 61)
    error = STUDENT.cdf(z * math.sqrt(length), length) - ndtr(z)
    # The distribution of a Student-t token is symmetric, so the error at -z is minus the error at z.
    return np.concatenate([-z[:0:-1], z]), np.concatenate([-error[:0:-1], error])


def worst_band(z: Floats, error: Floats) -> float:
    """Return the largest difference between a band's acceptance and what it would be under Gaussian S, over all bands
    that contain 0. ``z`` are places of an edge, ``error`` is S's distribution function less the Gaussian one."""
    upper, lower = error[z >= 0], error[z <= 0]
    return float(max(upper.max() - lower.min(), lower.max() - upper.min()))


def normal_approximation(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    """Yield rows of T4 for each distribution of the tokens and each length: the largest distance of a band's acceptance
    from that under Gaussian S, and the Berry-Esseen bound of that distance. Nothing is drawn at random."""
    del rng, draws
    for tokens, rho3 in (("exponential", float(EXPONENTIAL.RHO3)), ("signs", 1.0), ("student", STUDENT.rho3)):
        lengths = 2 ** np.arange(13) if tokens == "student" else TOKEN_LENGTHS
        for length, bound in zip(lengths.tolist(), theory.berry_esseen_bound(rho3, lengths), strict=True):
            difference = worst_band(*edge_errors(tokens, length))
            yield {"distribution": tokens, "rho3": rho3, "length": length, "envelope": bound, "difference": difference}


TABLES: dict[str, Callable[[np.random.Generator, int], Iterator[Row]]] = {
    "acceptance_models": acceptance_models,
    "drift_and_scale": drift_and_scale,
    "cosine_tightness": cosine_tightness,
    "normal_approximation": normal_approximation,
}
"""Name of each table, and the function that yields its rows from a random generator and a number of draws."""


def theory_tables(only: Sequence[str] = (), draws: int = DRAWS) -> Tables:
    """Compute the tables of the theory's figures that are named in ``only``, or of all. ``draws`` is the size of a
    simulation. Each table has a random stream of its own; the same ``draws`` give the same numbers."""
    chosen = {name: rows for name, rows in TABLES.items() if not only or name in only}
    return Tables({name: pd.DataFrame(rows(generator(0, name, "curve"), draws)) for name, rows in chosen.items()})
