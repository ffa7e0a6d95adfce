"""T1: one distribution is what the sqrt band needs."""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy import special
from scipy.optimize import brentq

from fspo import theory
from fspo.rules import Rule
from proofs_check.frame import Method, Outcome, Test, check, near_miss
from proofs_check.models import (
    FractionalNoise,
    GaussianTokens,
    Heteroscedastic,
    LogRatioModel,
    ScaledGamma,
    ScaledStudent,
)
from proofs_check.tools.compare import alike, all_of, equal, unbroken
from proofs_check.tools.distributions import (
    Cdf,
    Discrete,
    accepted,
    band_counts,
    logistic,
    mask,
    normal,
    normal_share,
    skewed,
    student,
)
from proofs_check.tools.settings import GRID, LENGTHS, MU, SIGMA


def band(c_lo: float, c_hi: float, gamma: float = 0.5, drift: str = "gaussian") -> Rule:
    """Return the rule with the band m L + L^gamma [-c_lo, c_hi], nats, for responses of L tokens: of shape sqrt, or
    power if gamma is not 1/2 (a near miss). ``drift`` says how the rule finds m, the band's centre per token."""
    shape = {"shape": "sqrt"} if gamma == 0.5 else {"shape": "power", "gamma": gamma}
    return Rule(range_lo=c_lo, range_hi=c_hi, drift=drift, **shape)  # type: ignore[arg-type]


@check("T1", Method.CLOSED, "a(l) = Phi(u+) - Phi(-u-) of Gaussian S, at 50 digits", "of a(l)", 1e-8)
@near_miss("gamma = .45", gamma=0.45)
@near_miss("drift dropped", drift="none")
def gaussian(rng: np.random.Generator, gamma: float = 0.5, drift: str = "gaussian") -> Test:
    """Test `theory.band_acceptance` of a sqrt band around the mean of Gaussian S: it is P(-u_lo <= Z <= u_hi) at 50
    digits, Z standard normal and u the half-widths in standard deviations of S, at ten lengths from 1 to 10^7 tokens,
    for 60 random ranges and scales. Falsified by x, the test multiplies the computed acceptances by 1 + x. Near misses:
    with ``gamma`` .45 the band grows more slowly than S spreads; with ``drift`` none its centre is not the mean."""
    stated, exact = [], []
    for _ in range(60):
        sigma = 10 ** rng.uniform(-3, 0)
        u_lo, u_hi = 10 ** rng.uniform(-2, 1.6, 2)
        rule = band(u_lo * sigma, u_hi * sigma, gamma, drift)
        centre = rule.centre(theory.gaussian_means(sigma))
        stated.append(theory.band_acceptance(rule, LENGTHS, -(sigma**2) / 2, sigma, centre))
        exact.append(np.full(LENGTHS.shape, normal_share(-u_lo, u_hi)))
    return equal(stated, exact, 1e-9)


@check("T1", Method.CLOSED, "two lengths are accepted alike at gamma = H alone, by root search", "of H", 1e-7)
@near_miss("a distribution that changes with the length", dists=(partial(special.stdtr, np.array([4.0, 40.0])),))
def only_at_H(rng: np.random.Generator, dists: tuple[Cdf, ...] = (normal, logistic, student, skewed)) -> Test:
    """Test that a band m L + L^gamma [-c_lo, c_hi] accepts two lengths alike only at gamma = H, if (R - m L)/L^H of the
    log-ratio R has one distribution. For each of ``dists``, four H and three random pairs of lengths a root search
    finds this gamma; the shorter length is accepted more at H - .25, the longer at H + .25. Falsified by x, the test
    multiplies the stated H by 1 + x. The near miss has in ``dists`` Student's distribution with 4 degrees of freedom at
    the shorter length and 40 at the longer, so that gamma = H is not fair."""
    roots, H_of = [], []
    for dist in dists:
        for H in (0.3, 0.5, 0.65, 1.0):
            for _ in range(3):
                c_lo, c_hi = rng.uniform(0.2, 0.9, 2)
                pair = np.sort(np.exp(rng.uniform(0, np.log(4096), 2))) * np.array([1.0, 2.0])

                def difference(gamma: float, dist=dist, H=H, c_lo=c_lo, c_hi=c_hi, pair=pair) -> float:
                    a = accepted(mask(c_lo, c_hi, gamma), pair, dist, H, -3e-4)
                    return float(a[0] - a[1])

                if not difference(H - 0.25) > 0 > difference(H + 0.25):
                    return lambda x: Outcome(-1.0, "sign change", note="no exponent within .25 of H is fair")
                roots.append(brentq(difference, H - 0.25, H + 0.25, xtol=1e-13))
                H_of.append(H)
    return equal(H_of, roots, 1e-8, note=f"{len(roots)} pairs of lengths")


@check("T1", Method.ATTACKED, "all ranges alike exactly if one distribution, in exact counts", "of exponent of S", 0.02)
@near_miss("symmetric ranges are enough", symmetric=True)
@near_miss("one range is enough", first_alone=True)
def all_ranges(rng: np.random.Generator, symmetric: bool = False, first_alone: bool = False) -> Test:
    """Test that bands of all ranges accept two lengths alike exactly if (S - m L)/sqrt(L), m the drift per token, has
    one distribution at both: exact counts on 240 pairs of random distributions of up to 5 values (the same twice, one
    and its mirror image, or any two). Falsified by x, the test lets S spread like L^(1/2 + x). Near misses try too few
    ranges to see a difference: ``symmetric`` only equal ranges below and above the centre, ``first_alone`` only one."""
    cases = []
    for i in range(240):
        dist = Discrete.draw(rng)
        mirrored = Discrete(-dist.values, dist.weights)
        cases.append((dist, (dist, mirrored, Discrete.draw(rng))[i % 3], 4.0 ** np.sort(rng.integers(0, 5, 2))))

    def broken(x: float, dist: Discrete, other: Discrete, lengths: np.ndarray) -> bool:
        sizes = [1 / 16, *(np.unique(np.abs(np.concatenate([dist.values, other.values]))) + 1 / 16)]
        pairs = [(c, c) for c in sizes] if symmetric else [(c, d) for c in sizes for d in sizes]
        for c_lo, c_hi in pairs[:1] if first_alone else pairs:
            rule = Rule("sqrt", c_lo, c_hi, drift="kl")
            kept = []
            for one, n in zip((dist, other), lengths, strict=True):
                lo, hi = rule.band(np.full(one.values.size, n), -1 / 8)
                S = one.values * n ** (0.5 + x) - n / 8
                kept.append(one.weights @ ((lo <= S) & (hi >= S)) / one.weights.sum())
            if abs(kept[0] - kept[1]) > 1e-12:
                return dist.same_as(other)
        return not dist.same_as(other)

    return unbroken(broken, cases, "pairs of distributions")


ONE_DISTRIBUTION = (GaussianTokens(MU, SIGMA), ScaledGamma(MU, SIGMA, shape=0.5), ScaledStudent(MU, SIGMA, df=3.0))


@check("T1", Method.SIMULATED, "normal, skewed and heavy-tailed S through the rule", "of a(l), end to end", 0.03)
@near_miss("gamma = .48", gamma=0.48)
@near_miss("drift dropped", drift="none")
@near_miss("fractional noise, H = .53", models=(FractionalNoise(MU, SIGMA, 0.53),))
@near_miss("scale grows like l^.03", models=(Heteroscedastic(MU, SIGMA, beta=0.03),))
def simulated(
    rng: np.random.Generator,
    models: tuple[LogRatioModel, ...] = ONE_DISTRIBUTION,
    draws: int = 100_000,
    **wrong: object,
) -> Test:
    """Test that a sqrt band accepts the same share at six lengths, 4 to 4,096 tokens, of S drawn from each of
    ``models`` (normal, skewed, heavy-tailed): ``draws`` responses a length, chi-square test. Falsified by x: shares
    that fall evenly are stated, at the longest length 1 - x times that at the shortest. Near misses: ``models`` whose S
    does not spread like sqrt(L), and ``wrong`` arguments of `band`: gamma .48, or drift none (S has another mean)."""
    rule = band(**({"c_lo": 0.03, "c_hi": 0.045, "drift": "kl"} | wrong))  # type: ignore[arg-type]
    return all_of(*(alike(band_counts(rng, rule, model, GRID, draws), draws) for model in models))
