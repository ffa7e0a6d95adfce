"""Check T2 (c) and T10 (a): the exponent gamma at which a band of half-width c L^gamma accepts two lengths alike
(section 6)."""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any

import mpmath as mp
import numpy as np
from scipy import special

from fspo.rules import Rule
from proofs_check.frame import Check, Method, Outcome
from proofs_check.tools.compare import close, frequencies, holds, worst
from proofs_check.tools.settings import DIGITS


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


CHECKS = (
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
