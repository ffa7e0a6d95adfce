"""Check T2 (c) and T10 (a): the exponent gamma at which a band of half-width c L^gamma accepts two lengths alike
(section 6)."""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any

import mpmath as mp
import numpy as np
from hypothesis import strategies as st
from scipy import optimize, special

from fspo.rules import Rule
from fspo.theory import Floats
from proofs_check.frame import Check, Method, Outcome
from proofs_check.models import FractionalNoise, LogRatioModel, ScaledStudent, matching_means
from proofs_check.tools.compare import close, frequencies, holds, homogeneous, together, worst
from proofs_check.tools.falsify import search
from proofs_check.tools.one_law import Law, accepted, gamma_law, logistic, mask, student
from proofs_check.tools.settings import DIGITS, GRID, MU, SIGMA


def changing(z: Floats, length: float) -> Floats:
    """Return Student's distribution function at z, with more degrees of freedom for longer responses. T10 assumes one
    law at all lengths, so this one is a control.
    """
    return special.stdtr(2.0 + math.sqrt(length), z)


def fair_exponent(
    rng: np.random.Generator, laws: tuple[Law, ...] = (logistic, student, gamma_law), off: float = 0.0
) -> Outcome:
    """Check T2 (c): where the log-ratio spreads like L^H, a root search over gamma finds that a band of half-width c
    L^gamma accepts two lengths equally at gamma = H alone. At H - .25 the shorter length is accepted more, at H + .25
    the longer one.
    """
    roots, stated = [], []
    for law in laws:
        for H in (0.3, 0.5, 0.65, 1.0):
            for _ in range(4):
                c_lo, c_hi = rng.uniform(0.2, 0.9, 2)
                pair = np.sort(np.exp(rng.uniform(0, math.log(4096), 2))) * np.array([1.0, 2.0])

                def difference(gamma: float, law=law, H=H, c_lo=c_lo, c_hi=c_hi, pair=pair) -> float:
                    a = accepted(mask("power", c_lo, c_hi, gamma), pair, law, H, -3e-4)
                    return float(a[0] - a[1])

                if not difference(H - 0.25) > 0 > difference(H + 0.25):
                    return Outcome(-1.0, "sign change", note=f"no fair exponent within .25 of {H}")
                roots.append(optimize.brentq(difference, H - 0.25, H + 0.25, xtol=1e-13))
                stated.append(H + off)
    return close(roots, stated, 1e-8, pairs=len(roots))


def directions(rng: np.random.Generator, hurst: tuple[float, ...] = (0.3, 0.5, 0.8), swap: bool = False) -> Outcome:
    """Check T2 (c): let the log-ratio spread like L^H. A product mask (fixed band) then accepts a strictly smaller
    share of longer responses if H > 0, and a geometric mask (linear band) a strictly greater one if H < 1.
    """
    lengths, slack = np.unique(np.round(10 ** np.linspace(0, 3, 40))), []
    for law in (logistic, student, gamma_law):
        for H in hurst:
            scale = 10 ** rng.uniform(-0.3, 0.6)
            masks = mask("fixed", scale, 1.3 * scale), mask("linear", 0.02 * scale, 0.03 * scale)
            product, geometric = (accepted(rule, lengths, law, H, -3e-4) for rule in masks)
            falls, rises = (geometric, product) if swap else (product, geometric)
            slack += [np.min(-np.diff(falls)), np.min(np.diff(rises))]
    return holds(np.array(slack) - 1e-13, "least step of the acceptance")


def jumps_cdf(x: Any, length: int) -> Any:
    """Return P(|R| <= x), an mpmath number, for R the sum of ``length`` token log-ratios, each of which is 0, except
    with probability JUMP, when it is standard normal.
    """
    jump = mp.mpf(JUMP)
    total = (1 - jump) ** length
    for k in range(1, length + 1):
        share = mp.binomial(length, k) * jump**k * (1 - jump) ** (length - k)
        total += share * mp.erf(x / mp.sqrt(2 * k))
        if k > length * jump and share < mp.mpf(10) ** -(DIGITS - 10):
            break
    return total


JUMP, SHORT, LONG = 0.05, 32, 512
"""The example in docs/theory.md after T10: the probability that a token's log-ratio is not 0, and two lengths.
"""


@cache
def jumps_quantile(alpha: float, length: int) -> Any:
    """Return x with P(|R| <= x) = ``alpha``, to 30 digits. R is the sum of ``length`` token log-ratios, most of which
    are exactly 0 and the others standard normal (`jumps_cdf`)."""
    guess = math.sqrt(length * JUMP) * float(special.ndtri((1 + alpha) / 2))
    return mp.findroot(lambda x: jumps_cdf(x, length) - mp.mpf(alpha), (guess, 0.9 * guess), tol=1e-30)


def quantile_exponent(alpha: float) -> float:
    """Return the exponent gamma_alpha of T10 (a): a band of half-width c L^gamma_alpha accepts the share ``alpha`` at
    both lengths SHORT and LONG.
    """
    with mp.workdps(DIGITS):
        ratio = jumps_quantile(alpha, LONG) / jumps_quantile(alpha, SHORT)
        return float(mp.log(ratio) / mp.log(mp.mpf(LONG) / SHORT))


QUANTILES = {0.3: 0.795, 0.5: 0.600, 0.85: 0.505, 0.99: 0.444}
"""Exponents gamma of the example in docs/theory.md after T10, by the share of responses accepted at both lengths."""


def jumps_exponents(rng: np.random.Generator, of_variance: bool = False, other: float | None = None) -> Outcome:
    """Check T10 (a) where most token log-ratios are 0: a band of half-width c L^gamma, gamma from `quantile_exponent`,
    accepts the share alpha at both lengths SHORT and LONG. The variance grows like L, and yet gamma is not 1/2 but as
    in ``QUANTILES``.
    """
    del rng
    outcomes, gaps = [], []
    for alpha, stated in QUANTILES.items():
        gamma = 0.5 if of_variance else quantile_exponent(other or alpha)
        with mp.workdps(DIGITS):
            c = float(jumps_quantile(alpha, SHORT)) / SHORT**gamma
            _, hi = Rule("power", c, c, gamma=gamma, outside="mask", on="engine").band(np.array([SHORT, LONG * 1.0]))
            shares = [float(jumps_cdf(mp.mpf(float(x)), n)) for x, n in zip(hi, (SHORT, LONG), strict=True)]
        outcomes.append(close(shares, [alpha, alpha], 1e-9))
        gaps.append(0.0005 - abs(quantile_exponent(alpha) - stated))
    formula = worst(*outcomes)
    return formula if min(gaps) > 0 else holds(gaps, "exponent within .0005 of the page")


def jumps_simulated(rng: np.random.Generator, alpha: float = 0.85, gamma: float | None = None) -> Outcome:
    """Check T10 (a) by drawing responses whose token log-ratios are mostly 0: a rule that masks outside a band of
    half-width c L^gamma, gamma from `quantile_exponent`, accepts the share ``alpha`` at both lengths SHORT and LONG.
    """
    gamma, draws = quantile_exponent(alpha) if gamma is None else gamma, 200_000
    with mp.workdps(DIGITS):
        c = float(jumps_quantile(alpha, SHORT)) / SHORT**gamma
    rule, kept = Rule("power", c, c, gamma=gamma, outside="mask", on="engine"), []
    for length in (SHORT, LONG):
        R = np.sqrt(rng.binomial(length, JUMP, draws)) * rng.standard_normal(draws)
        kept.append(int(rule.apply(R, np.full(draws, length), np.ones(draws)).multiplier.sum()))
    return frequencies(kept, draws, alpha, wanted=0.01, draws=draws)


def masks_simulated(rng: np.random.Generator, off: float = 0.0, shape: str = "power", draws: int = 100_000) -> Outcome:
    """Check T2 (c) by drawing engine log-ratios E from three laws that spread like L^H: a mask with a band of
    half-width c L^gamma accepts all lengths equally if gamma = H. The sign of the advantage alternates, because a mask
    must not depend on it.
    """
    laws: tuple[tuple[LogRatioModel, float], ...] = (
        (FractionalNoise(MU, SIGMA, hurst=0.35), 0.35),
        (FractionalNoise(MU, SIGMA, hurst=0.65), 0.65),
        (ScaledStudent(MU, SIGMA, df=3.0), 0.5),
    )
    outcomes = []
    for model, H in laws:
        rule = mask(shape, 0.9 * SIGMA, 1.2 * SIGMA, H + off if shape == "power" else None)
        n = np.broadcast_to(GRID, (draws, GRID.size))
        signs = np.where(np.arange(draws) % 2, 1.0, -1.0)[:, None]
        applied = rule.apply(model.sample(rng, n), n, signs, rule.centre(matching_means(model)))
        outcomes.append(homogeneous(applied.multiplier.sum(axis=0), draws, wanted=0.01))
    return together(outcomes, "; ".join(one.note for one in outcomes))


@st.composite
def discrete_laws(draw: st.DrawFn) -> tuple[list[int], list[int], int, int, float, float, int, int]:
    """Draw a law of a few values (in eighths) with integer weights, the band's half-widths at length 1 and its exponent
    gamma, the exponent H of the law's spread, and two lengths as powers of 4.
    """
    atoms = draw(st.lists(st.integers(-24, 24), min_size=1, max_size=5, unique=True))
    weights = draw(st.lists(st.integers(1, 9), min_size=len(atoms), max_size=len(atoms)))
    halves = st.sampled_from([0.0, 0.5, 1.0])
    first = draw(st.integers(0, 3))
    lengths = first, first + draw(st.integers(1, 2))
    return atoms, weights, draw(st.integers(1, 12)), draw(st.integers(1, 12)), draw(halves), draw(halves), *lengths


def exponent_attack(rng: np.random.Generator, gap_allowed: bool = True, reversed_sign: bool = False) -> Outcome:
    """Check T2 (c) for laws of a few values that spread like L^H, in exact counts. A band of half-width c L^gamma
    accepts two lengths equally often if and only if gamma = H or no value lies between the two lengths' edges. Else it
    accepts the longer one more if gamma > H, less if gamma < H. With ``gap_allowed=False`` (a control) a false variant
    is tested, without the exception that no value lies between the edges.
    """

    def excess(example: tuple[list[int], list[int], int, int, float, float, int, int]) -> float:
        atoms, weights, c_lo, c_hi, gamma, H, first, second = example
        lengths, z, mass = 4.0 ** np.array([first, second]), np.array(atoms) / 8, np.array(weights)
        rule = Rule("power", c_lo / 8, c_hi / 8, gamma=gamma, drift="kl", outside="mask", on="engine")
        counts = []
        for n in lengths:
            R = z * n**H - n / 8
            kept = rule.apply(R, np.full(z.size, n), np.where(mass % 2, 1.0, -1.0), -1 / 8).multiplier
            counts.append(int(mass @ kept))
        # X holds the excess at length 1 of each value of the law: the factor on both half-widths at which the band just
        # accepts the value.
        X = np.maximum(z / (c_hi / 8), -z / (c_lo / 8))
        inner, outer = np.sort(lengths ** (gamma - H))
        alike = not np.any((inner < X) & (outer >= X))
        if not gap_allowed:
            alike = gamma == H or counts[0] in (0, mass.sum())
        change = (counts[1] - counts[0]) * (np.sign(gamma - H) or 1.0) * (-1.0 if reversed_sign else 1.0)
        broken = (counts[0] == counts[1]) != alike or change < 0
        return 0.5 if broken else -0.5

    return search(rng, discrete_laws(), excess, 100, "laws, exact counts")


CHECKS = (
    Check(
        "T2",
        Method.CLOSED,
        "two lengths are accepted alike at gamma = H alone, by root search",
        fair_exponent,
        {
            "gamma = H + .25": partial(fair_exponent, off=0.25),
            "a law that changes with the length": partial(fair_exponent, laws=(changing,)),
        },
    ),
    Check(
        "T2",
        Method.CLOSED,
        "longer responses: a product mask accepts a smaller share, a geometric mask a greater one",
        directions,
        {
            "the other way round": partial(directions, swap=True),
            "the geometric mask at H = 1.2": partial(directions, hurst=(1.2,)),
        },
    ),
    Check(
        "T10",
        Method.CLOSED,
        "tokens that rarely move: the exponent is that of the quantile, 50 digits",
        jumps_exponents,
        {
            "exponent of the variance": partial(jumps_exponents, of_variance=True),
            "exponent of the 99 % quantile": partial(jumps_exponents, other=0.99),
        },
    ),
    Check(
        "T2",
        Method.ATTACKED,
        "hypothesis: laws of a few atoms, exact counts",
        exponent_attack,
        {
            "acceptance in (0, 1) is enough": partial(exponent_attack, gap_allowed=False),
            "sign reversed": partial(exponent_attack, reversed_sign=True),
        },
    ),
    Check(
        "T2",
        Method.SIMULATED,
        "masks on E with gamma = H under fractional noise and Student-t laws",
        masks_simulated,
        {
            "gamma = H + .25": partial(masks_simulated, off=0.25),
            "gamma = H - .25": partial(masks_simulated, off=-0.25),
            "product mask": partial(masks_simulated, shape="fixed"),
            "geometric mask": partial(masks_simulated, shape="linear"),
        },
    ),
    Check(
        "T10",
        Method.SIMULATED,
        "tokens that rarely move, drawn: 85 % at both lengths",
        jumps_simulated,
        {
            "exponent of the 50 % quantile": partial(jumps_simulated, gamma=0.6),
            "gamma .25 more": partial(jumps_simulated, gamma=0.75),
        },
    ),
)
