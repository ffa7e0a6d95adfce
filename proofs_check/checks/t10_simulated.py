"""Check T10 by drawing responses of which, at each length, a part does not move (section 6)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy import optimize, special

from fspo import theory
from fspo.rules import Rule
from fspo.theory import Floats
from proofs_check.frame import Check, Method, Outcome
from proofs_check.models import FractionalNoise, GaussianTokens, ScaledGamma, ScaledStudent
from proofs_check.models.scaled import ScaleFamily
from proofs_check.tools.compare import frequencies, homogeneous, together
from proofs_check.tools.settings import GRID, SIGMA

MOVING: Floats = np.linspace(0.35, 0.9, GRID.size)
"""The share of responses that move at each length of ``GRID``: it rises with the length, as on real logs."""


def draw(
    rng: np.random.Generator, model: ScaleFamily, lengths: Floats, moving: Floats, draws: int
) -> tuple[Floats, Floats, Floats]:
    """Draw responses of each length: lengths, log-ratios S and advantages A, all (draws, K).

    The share ``moving`` (K,) has an S from the model and A = 1 or -1 with equal probability; the others have S = 0 and
    A = 0, as have the responses of a group whose rewards are all equal.
    """
    n = np.broadcast_to(lengths, (draws, lengths.size))
    sign = np.where(rng.random(n.shape) < 0.5, 1.0, -1.0)
    moves = rng.random(n.shape) < moving
    return n, np.where(moves, model.sample(rng, n), 0.0), np.where(moves, sign, 0.0)


def excess_law(model: ScaleFamily, c_lo: float, c_hi: float) -> Callable[[Floats], Floats]:
    """Return F of T10 for a model: the distribution function of X/L^H of its responses, X the excess over the
    half-widths c_lo and c_hi at length 1. It is computed at L = 1.
    """
    return lambda x: model.cdf(c_hi * np.asarray(x), 1.0) - model.cdf(-c_lo * np.asarray(x), 1.0)


def all_and_moving(
    rng: np.random.Generator, gamma: float = 0.5, v_ignored: bool = False, draws: int = 100_000
) -> Outcome:
    """Check T10 (c): over all responses of length l the acceptance of a band of half-width c sqrt(l) is 1 - v(l) (1 -
    F(1)). Here v(l) is the share of the responses that move, and F the distribution function of X/sqrt(l) for these,
    with X the excess over the half-widths at length 1.

    The update acceptance must be the same at every length. Half of the moving responses have A > 0, and the laws of S,
    normal and Student's, are symmetric (T9).
    """
    outcomes = []
    for model in (GaussianTokens(0.0, SIGMA), ScaledStudent(0.0, SIGMA, df=3.0)):
        c = 1.2 * SIGMA
        rule = Rule("sqrt", c, c) if gamma == 0.5 else Rule("power", c, c, gamma=gamma)
        n, S, A = draw(rng, model, GRID, MOVING, draws)
        applied = rule.apply(S, n, A)
        used = np.ones(GRID.size) if v_ignored else MOVING
        stated = theory.acceptance_with_still(excess_law(model, c, c), used, GRID, 1.0, 0.5, 0.5)
        outcomes.append(frequencies(applied.in_band.sum(axis=0), draws, stated, wanted=0.01))
        kept = ((applied.side == 0) & (A != 0)).sum(axis=0)
        outcomes.append(homogeneous(kept, (A != 0).sum(axis=0), wanted=0.01))
    return together(outcomes, "; ".join(one.note for one in outcomes))


def fair_to_all(
    rng: np.random.Generator, alpha: float = 0.8, at_H: bool = False, exponent_of: float | None = None
) -> Outcome:
    """Check T10 (c): a band with the stated exponent accepts the share ``alpha`` of all responses at two lengths, of
    which more of the longer one move. Controls take the exponent H, or the one that is fair at the acceptance
    ``exponent_of``; the range still gives the share alpha at the shorter length.
    """
    lengths, moving, draws, outcomes = np.array([32.0, 1024]), np.array([0.4, 0.85]), 100_000, []
    laws: tuple[tuple[ScaleFamily, float], ...] = (
        (FractionalNoise(0.0, SIGMA, hurst=0.65), 0.65),
        (ScaledStudent(0.0, SIGMA, df=3.0), 0.5),
        (ScaledGamma(0.0, SIGMA, shape=2.0), 0.5),
    )
    for model, H in laws:
        c_lo, c_hi = 0.9 * SIGMA, 1.3 * SIGMA
        law = excess_law(model, c_lo, c_hi)

        def quantile(p: float, law: Callable[[Floats], Floats] = law) -> float:
            found: Any = optimize.brentq(lambda x: float(law(np.array(x))) - p, 0.0, 1e3, xtol=1e-12)
            return float(found)

        gamma = H if at_H else theory.fair_exponent_with_still(quantile, moving, lengths, exponent_of or alpha, H)
        f = quantile(1 - (1 - alpha) / float(moving[0])) * float(lengths[0]) ** (H - gamma)
        n, S, A = draw(rng, model, lengths, moving, draws)
        in_band = Rule("power", f * c_lo, f * c_hi, gamma=gamma).apply(S, n, A).in_band
        outcomes.append(frequencies(in_band.sum(axis=0), draws, alpha, wanted=0.01))
    return together(outcomes, "; ".join(one.note for one in outcomes))


def two_edges(
    rng: np.random.Generator, mixture: float = 0.0, hurst: float = 0.5, drift: bool = False, draws: int = 100_000
) -> Outcome:
    """Check T10 (e): under drop every length loses the same share of A > 0 and the same share of A < 0, although each
    sign has a law and an edge of its own, and although the share of A != 0 rises with the length. So the
    update acceptance is the same at every length while the signs' mixture is, and of all responses the stated share is
    cut. Controls: a mixture that changes by ``mixture`` over the lengths, another H or a drift for A < 0.
    """
    plus = ScaledGamma(0.0, SIGMA, shape=2.0, sign=1)
    minus = FractionalNoise(-5e-4 if drift else 0.0, SIGMA, hurst=hurst)
    rule = Rule("sqrt", 1.1 * SIGMA, 1.4 * SIGMA)
    n = np.broadcast_to(GRID, (draws, GRID.size))
    positive = 0.6 + mixture * np.linspace(-0.5, 0.5, GRID.size)
    sign = np.where(rng.random(n.shape) < positive, 1.0, -1.0)
    A = np.where(rng.random(n.shape) < MOVING, sign, 0.0)
    S = np.where(A > 0, plus.sample(rng, n), np.where(A < 0, minus.sample(rng, n), 0.0))
    cut = rule.apply(S, n, A).side != 0
    # Share of each sign beyond the edge that can cut it. For A > 0 the standardised S is (G - 2)/sqrt(2), G a gamma
    # variable of shape 2, and the edge is 1.4; for A < 0 it is standard normal, and the edge is -1.1.
    t_plus = special.gammaincc(2.0, 2 + 1.4 * np.sqrt(2.0))
    t_minus = special.ndtr(-1.1)
    stated = theory.update_acceptance(positive, t_plus, t_minus)
    outcomes = [frequencies(cut.sum(axis=0), draws, MOVING * (1 - stated), wanted=0.01)]
    for members in (A != 0, A > 0, A < 0):
        outcomes.append(homogeneous((~cut & members).sum(axis=0), members.sum(axis=0), wanted=0.02))
    return together(outcomes, "; ".join(one.note for one in outcomes))


CHECKS = (
    Check(
        "T10",
        Method.SIMULATED,
        "the sqrt band where a part moves: band acceptance follows that part, update acceptance is constant",
        all_and_moving,
        {
            "share that moves ignored": partial(all_and_moving, v_ignored=True),
            "gamma = .75": partial(all_and_moving, gamma=0.75),
        },
    ),
    Check(
        "T10",
        Method.SIMULATED,
        "80 % of all responses accepted at both lengths with the stated exponent",
        fair_to_all,
        {
            "gamma = H": partial(fair_to_all, at_H=True),
            "exponent of 90 % accepted": partial(fair_to_all, exponent_of=0.9),
        },
    ),
    Check(
        "T10",
        Method.SIMULATED,
        "drop, each sign with its own law and edge: cut alike at every length",
        two_edges,
        {
            "mixture of the signs changes with the length": partial(two_edges, mixture=0.4),
            "another H for A < 0": partial(two_edges, hurst=0.53),
            "a drift where A < 0": partial(two_edges, drift=True),
        },
    ),
)
