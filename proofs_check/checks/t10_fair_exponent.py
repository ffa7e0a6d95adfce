"""T10: the fair exponent."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any

import mpmath as mp
import numpy as np
from scipy import special

from fspo import theory
from fspo.rules import Rule
from fspo.theory import Floats
from proofs_check.frame import Method, Test, check, near_miss
from proofs_check.models import FractionalNoise, ScaledGamma
from proofs_check.tools import tails
from proofs_check.tools.compare import alike, all_of, beside, equal, holds, shares, unbroken
from proofs_check.tools.distributions import Cdf, Discrete, accepted, logistic, mask, skewed, student
from proofs_check.tools.settings import DIGITS, GRID, SIGMA

Pair = tuple[float, float]


def fair_exponent(
    quantile: Callable[[float], float], v: Floats | Pair, lengths: Floats | Pair, alpha: float, H: float
) -> float:
    """Return T10 (c)'s fair exponent: that at which two lengths have the acceptance ``alpha``; NaN if there is none. At
    the two ``lengths`` the shares ``v`` (two numbers) of the responses change, and the excess X of these over L^H has
    one distribution, whose quantile at a level in (0, 1) is ``quantile(level)``."""
    levels = 1 - (1 - alpha) / np.asarray(v)
    if not np.all(levels > 0):
        return math.nan
    z = np.array([quantile(float(level)) for level in levels])
    return H + math.log(z[1] / z[0]) / math.log(lengths[1] / lengths[0]) if np.all(z > 0) else math.nan


def drawn_pair(rng: np.random.Generator, quantile: Callable[[float], float]) -> tuple[Floats, Floats, float, float]:
    """Draw two shares that change, two lengths, an acceptance alpha and an exponent H, in this order, until T10 (c)'s
    fair exponent for them lies in [0, 2]; ``quantile`` gives the quantiles of X/L^H, X the excess of changed responses.
    """
    while True:
        v, H = rng.uniform(0.3, 1.0, 2), float(rng.choice([0.3, 0.5, 0.65, 1.0]))
        lengths = np.exp(rng.uniform(0, math.log(64))) * np.array([1.0, rng.uniform(4, 512)])
        alpha = float(rng.uniform(0.75, 0.995))
        if 0 <= fair_exponent(quantile, v, lengths, alpha, H) <= 2:
            return v, lengths, alpha, H


def least_root(f: Callable[[Any], Any], low: float, high: float) -> Any:
    """Return the least x from ``low`` to ``high`` with f(x) >= 0, for a rising f, by bisection with mpmath's digits."""
    low, high = mp.mpf(low), mp.mpf(high)
    for _ in range(180):
        middle = (low + high) / 2
        low, high = (low, middle) if f(middle) >= 0 else (middle, high)
    return high


def excess_at_second(
    dist: tails.Changed, v: Floats | Pair, lengths: Floats | Pair, alpha: float, H: float
) -> Callable[[Any], Any]:
    """Return a function of the exponent gamma: the acceptance of the second length by a band f L^gamma, less ``alpha``,
    where f is such that the band accepts alpha at the first. It rises in gamma if the second length is longer. Shares v
    of the two lengths change, the excess of these over L^H has the distribution ``dist``, and f is found by bisection.
    """
    (v_1, v_2), (l_1, l_2) = map(mp.mpf, map(float, v)), map(mp.mpf, map(float, lengths))
    edge = mp.exp(least_root(lambda y: 1 - v_1 * dist.tail(mp.exp(y)) - alpha, -30, 8))
    return lambda gamma: 1 - v_2 * dist.tail(edge * (l_2 / l_1) ** (gamma - H)) - alpha


def equal_acceptance(dist: tails.Changed, v: Floats | Pair, lengths: Floats | Pair, alpha: float, H: float) -> float:
    """Return the exponent at which two lengths have the acceptance ``alpha``, at 50 digits. Shares v of their responses
    change, and the excess of these over L^H has the distribution ``dist``."""
    with mp.workdps(DIGITS):
        return float(least_root(excess_at_second(dist, v, lengths, alpha, H), H - 4, H + 4))


@check("T10", Method.CLOSED, "(a), (c) unchanged responses: the only exponent by root search", "of the exponent", 1e-8)
@near_miss("share that changes ignored", v_ignored=True)
@near_miss("normal quantiles for every distribution", normal=True)
@near_miss("a distribution that is flat at the edge", flat=True)
def by_root_search(rng: np.random.Generator, v_ignored: bool = False, normal: bool = False, flat: bool = False) -> Test:
    """Test T10 (a) and (c): `fair_exponent`, from quantiles, is the exponent at which two lengths have the same
    acceptance, by root search on tails; at exponents 10^-6 below and above it the second, longer length is accepted
    less and more. It is above H, the exponent with which the excess grows, exactly if more of the longer responses
    change. Three pairs of lengths for each of four distributions (`tails.DISTRIBUTIONS`). Falsified by x, the test
    multiplies the exponent by 1 + x. Near misses: ``v_ignored`` lets all responses change, ``normal`` takes normal
    quantiles for each distribution, ``flat`` one flat at the edge, so that a range of exponents has this acceptance."""
    roots, stated, signs = [], [], []
    cases = [(dist, *drawn_pair(rng, dist.quantile)) for dist in tails.DISTRIBUTIONS for _ in range(3)]
    for dist, v, lengths, alpha, H in [(tails.FLAT, (1.0, 1.0), BETWEEN, 0.75, 0.5)] if flat else cases:
        roots.append(equal_acceptance(dist, v, lengths, alpha, H))
        quantile = tails.NORMAL.quantile if normal else dist.quantile
        stated.append(fair_exponent(quantile, np.ones(2) if v_ignored else v, lengths, alpha, H))
        with mp.workdps(DIGITS):
            excess = excess_at_second(dist, v, lengths, alpha, H)
            signs += [-float(excess(roots[-1] - 1e-6)) - 1e-12, float(excess(roots[-1] + 1e-6)) - 1e-12]
        signs.append((roots[-1] - H) * np.sign(v[1] - v[0]))
    return beside(equal(stated, roots, 1e-9), holds(signs, "acceptance, exponent"))


CHANGING: Pair = (0.4, 0.8)
BETWEEN: Pair = (16.0, 128.0)
"""The page's example of unchanged responses: the shares that change at two lengths, and the lengths."""


@check("T10", Method.CLOSED, "the page's digits of unchanged responses", "of the exponents", 2e-3)
@near_miss("42 % change at 16 tokens", changed=(0.42, 0.8))
@near_miss("H", at_H=True)
@near_miss("F(0) = 0 for one edge", at_0=0.0)
def digits(rng: np.random.Generator, changed: Pair = CHANGING, at_H: bool = False, at_0: float = 0.5) -> Test:
    """Test the example of T10 in docs/theory.md: shares ``changed`` of the responses of 16 and 128 tokens change; the
    fair exponents printed are right. There is one only at acceptances above what every band accepts at 16 tokens, 60 %
    with two edges, 80 % with one. If the acceptance comes 100 times nearer to that, the exponent grows by
    log(100)/log(8); if to 1, it tends, for Student's distribution with 3 degrees of freedom, to 1/2 + log(2)/(3
    log(8)). Falsified by x: the exponents and 40 %, 20 % times 1 + x. Near misses: ``changed`` .42 at 16 tokens,
    ``at_H`` each exponent 1/2, ``at_0`` 0 for F(0) = 1/2 with one edge, which gives 60 % there too."""
    del rng
    alphas = (0.75, 0.85, 0.95, 0.99)
    exact = [0.5 if at_H else equal_acceptance(tails.NORMAL, changed, BETWEEN, alpha, 0.5) for alpha in alphas]
    printed = np.array([0.849, 0.690, 0.593, 0.552])
    far = fair_exponent(tails.STUDENT.quantile, CHANGING, BETWEEN, 1 - 1e-9, 0.5)
    gaps, least, none = [far - 0.5 - math.log(2) / (3 * math.log(8))], [], []
    for dist in (tails.NORMAL, tails.ONE_EDGE):
        least.append(1 - CHANGING[0] * float(dist.tail(mp.mpf(10) ** -40)))
        found = [fair_exponent(dist.quantile, CHANGING, BETWEEN, least[-1] + e, 0.5) for e in (-1e-9, 1e-5, 1e-7, 1e-9)]
        gaps += [*(np.diff(found[1:]) - math.log(100) / math.log(8))]
        none.append(0.0 if math.isnan(found[0]) else -1.0)
    shown = lambda x: holds(5e-4 - np.abs(np.array(exact) - printed * (1 + x)), "the page's digits")  # noqa: E731
    border = equal([CHANGING[0], CHANGING[0] * (1 - at_0)], 1 - np.array(least), 1e-9)
    return all_of(beside(shown, holds([*(5e-4 - np.abs(gaps)), *none], "exponent")), border)


@check("T10", Method.CLOSED, "(b) mixtures: the two terms against the slope of the quantile", "of the exponent", 1e-8)
@near_miss("second term left out", second=0.0)
@near_miss("weights without densities", densities=False)
@near_miss("growth of the mixture's own level", own_level=False)
def mixture(rng: np.random.Generator, second: float = 1.0, densities: bool = True, own_level: bool = True) -> Test:
    """Test T10 (b) for eight mixtures of normal, Student, log-logistic (its tail's power changes with the length l) and
    unchanged responses, whose shares change with l: the statement's two terms, from the components' growth and from
    their shares' change, sum to the slope in log l of the log quantile of the excess, by numerical differentiation;
    their mean over log l by quadrature is the exponent of two lengths. Falsified by x: the sum times 1 + x. Near
    misses: ``second`` 0 leaves out the second term; ``densities`` False weights the components' growth by their shares
    alone, without densities; ``own_level`` False takes it at the mixture's tail probability, not at their own."""
    stated, exact = [], []
    nodes, weights = np.polynomial.legendre.leggauss(12)
    for i in range(8):
        (H_1, H_2), power, change = rng.uniform(0.3, 0.8, 2).tolist(), rng.uniform(2, 3), rng.uniform(-0.2, 0.3)
        dists = [tails.scaled(tails.NORMAL, 0.5), tails.scaled(tails.STUDENT, H_1)][: 1 + i % 2]
        dists += [tails.log_logistic(H_2, float(power), float(change)), tails.UNCHANGED]
        level, slope = rng.normal(0, 0.4, len(dists)), rng.normal(0, 0.3, len(dists))
        alpha, low = mp.mpf(float(rng.uniform(0.8, 0.97))), float(rng.uniform(0.5, 1.5))

        made = tails.Mixture(dists, level.tolist(), slope.tolist(), 1 - alpha)

        def local(z: Any, made: tails.Mixture = made) -> float:
            q, shares_of = mp.exp(made.log_quantile(z)), made.shares(z)
            tails = [one.tail(z, q) for one in made.dists]
            d = [-mp.diff(lambda y, one=one: one.tail(z, y), q) for one in made.dists]
            mass = mp.fdot(shares_of, d)
            growth = [one.growth(z, t if own_level else made.tail) for one, t in zip(made.dists, tails, strict=True)]
            weight = [p * (y if densities else 1) for p, y in zip(shares_of, d, strict=True)]
            moved = [mp.diff(lambda y, j=j: made.shares(y)[j], z) for j in range(len(made.dists))]
            return float(mp.fdot(weight, growth) / mp.fsum(weight) + second * mp.fdot(moved, tails) / (q * mass))

        with mp.workdps(DIGITS):
            stated.append(local(mp.mpf(low)))
            exact.append(float(mp.diff(made.log_quantile, mp.mpf(low))))
        if i < 2:
            with mp.workdps(25):
                stated.append(float(weights @ [local(mp.mpf(low + 0.75 * (1 + x))) for x in nodes]) / 2)
                exact.append(float((made.log_quantile(mp.mpf(low + 1.5)) - made.log_quantile(mp.mpf(low))) / 1.5))
    return equal(stated, exact, 1e-9)


@check("T10", Method.ATTACKED, "(c) a part changes: order and equality at two lengths, exact counts", "of H", 0.05)
@near_miss("any gamma", any_gamma=True)
@near_miss("also where the same share changes", ties=True)
def order(rng: np.random.Generator, any_gamma: bool = False, ties: bool = False) -> Test:
    """Test T10 (c) in exact counts, on 600 distributions of a few values of X/L^H, X the excess of changed responses,
    at two lengths: a band c L^gamma with gamma = H clips the same share of the changed at both; with gamma <= H it
    accepts less of the longer if more of it changes and some of it is clipped; with gamma >= H less of the shorter if
    more of that changes and is clipped. Falsified by x, the test lets X spread like L^(H + x). Near misses:
    ``any_gamma`` states the order at every gamma, ``ties`` also where the same share changes."""
    cases = []
    for i in range(600):
        dist, changed, unchanged = Discrete.draw(rng), rng.integers(1, 5, 2).tolist(), rng.integers(0, 31, 2).tolist()
        c, (gamma, H) = rng.integers(1, 13, 2) / 8, rng.choice([0.0, 0.5, 1.0], 2)
        first, c[0] = int(rng.integers(0, 4)), c[0] if i % 3 else 1e6  # a far lower edge: F(0) > 0
        cases.append((dist, changed, unchanged, c + 1 / 16, gamma, H, (first, first + int(rng.integers(1, 3)))))

    def broken(
        x: float, dist: Discrete, changed: list[int], rest: list[int], c: Floats, gamma: float, H: float, powers: Pair
    ) -> bool:
        rule = mask(c[0], c[1], gamma)
        kept_share, clipped_changed, v = [], [], []
        for power, copies, others in zip(powers, changed, rest, strict=True):
            n = 4.0**power
            R = np.append(dist.values * n ** (H + x), 0.0) - n / 8  # the last is unchanged, at the band's centre
            weight = [*(copies * dist.weights).tolist(), others]
            kept = rule.apply(R, np.full(R.size, n), np.ones(R.size), -1 / 8).multiplier
            lost = sum(w for w, k in zip(weight, kept, strict=True) if not k)
            v.append(Fraction(sum(weight[:-1]), sum(weight)))
            clipped_changed.append(Fraction(lost, sum(weight[:-1])))
            kept_share.append(1 - Fraction(lost, sum(weight)))
        (a_1, a_2), (v_1, v_2) = kept_share, v
        unequal = gamma == H and any(a != 1 - s * clipped_changed[0] for a, s in zip(kept_share, v, strict=True))
        if (v_1 < v_2 or (ties and v_1 == v_2)) and (gamma <= H or any_gamma) and a_2 < 1:
            return unequal or not a_1 > a_2
        if v_1 > v_2 and (gamma >= H or any_gamma) and a_1 < 1:
            return unequal or not a_1 < a_2
        return unequal

    return unbroken(broken, cases, "distributions")


def jumping(z: Floats) -> Floats:
    """Return, at each z, a distribution function with a jump of .7 at 1; the other .3 are logistic."""
    return 0.7 * (z >= 1) + 0.3 * logistic(z)


def of_all(rule: Rule, lengths: Floats, dist: Cdf, H: float, v: Floats) -> Floats:
    """Return the acceptance of a rule's band at each length L (K,) over all responses. Shares v (K,) of them change, of
    which (R + 3e-4 L)/L^H, R the log-ratio, has the distribution ``dist``; the others stay at the band's centre."""
    return v * accepted(rule, lengths, dist, H, -3e-4) + (1 - v)


@check("T10", Method.CLOSED, "(c) by rules: LRE at gamma = H, alpha at the stated exponent", "of rate and LRE", 1e-8)
@near_miss("gamma = H + .25 clips the changed alike", gamma_off=0.25)
@near_miss("without the factor (1 - a_bar)/a_bar", of_changed=True)
@near_miss("gamma = H is fair", at_H=True)
@near_miss("a distribution that jumps over alpha", dists=(jumping,))
def by_rules(
    rng: np.random.Generator, gamma_off: float = 0.0, of_changed: bool = False, at_H: bool = False,
    dists: tuple[Cdf, ...] = (logistic, student, skewed),
) -> Test:  # fmt: skip
    """Test T10 (c) by acceptances of the rule's band c L^gamma, for changed responses whose log-ratio, less the centre
    and over L^H, has one of ``dists``. With gamma = H the clip rate at five lengths is t v, v the share that changes, t
    the same at all, and each LRE is (1 - a)/a times that of v, a the mean acceptance; at the stated exponent
    (`fair_exponent`) with its range both of two lengths have the stated acceptance. Falsified by x, the test multiplies
    clip rates and LRE by 1 + x. Near misses: ``gamma_off`` .25 is added to H, ``of_changed`` leaves out (1 - a)/a,
    ``at_H`` takes H for the fair exponent, `jumping` in ``dists`` takes no such acceptance."""
    found, stated, lengths = [], [], np.array([2.0, 9, 60, 333, 4096])
    for dist in dists:
        for H in (0.3, 0.5, 0.75):
            p, v, c = rng.dirichlet(np.ones(5)), rng.uniform(0.2, 1.0, 5), rng.uniform(0.5, 2.0, 2)
            t = 1 - float(dist(c[1:])[0] - dist(-c[:1])[0])
            a = of_all(mask(c[0], c[1], H + gamma_off), lengths, dist, H, v)
            mean, lre, of_v = 1 - t * float(p @ v), theory.lre(p, a), theory.lre(p, v)
            factor = 1.0 if of_changed else (1 - mean) / mean
            found += [*(1 - a), lre.inf, lre.l1, lre.l2]
            stated += [*(t * v), *(factor * np.array([of_v.inf, of_v.l1, of_v.l2]))]

            inside = lambda x, dist=dist, c=c: float(dist(c[1:] * x)[0] - dist(-c[:1] * x)[0])  # noqa: E731
            quantile = tails.inverse(inside)
            pair, ends, alpha, _ = drawn_pair(rng, quantile)
            gamma = H if at_H else fair_exponent(quantile, pair, ends, alpha, H)
            if 0 <= gamma <= 2:
                f = quantile(1 - (1 - alpha) / pair[0]) * ends[0] ** (H - gamma)
                found += (1 - of_all(mask(f * c[0], f * c[1], gamma), ends, dist, H, pair)).tolist()
                stated += [1 - alpha] * 2
    return equal(stated, found, 1e-9)


@check("T10", Method.CLOSED, "(d) limits as alpha tends to 1, down to 1 - alpha = e^(-10^8)", "of beta", 5e-3)
@near_miss("limit H for tails like x^-k", light=True)
@near_miss("limit of x^-3 for the normal tail", of={"normal": tails.FAR_TAILS["normal"]._replace(k=3.0)})
@near_miss("lighter than any power is enough", of={"in steps": tails.FarTail(tails.in_steps, math.inf)})
def limits(rng: np.random.Generator, of: dict[str, tails.FarTail] | None = None, light: bool = False) -> Test:
    """Test T10 (d) for tails in ``of`` (by default `tails.FAR_TAILS`) that fall like x^-k, or faster (k infinite): the
    fair exponent of two lengths less H, over beta, the slope in log L of the log share that changes, comes ever nearer
    to 1/k as the acceptance tends to 1, at last within .001. Falsified by x, the test adds x to the distance from 1/k.
    Near misses: k = 3 for a normal tail; a light tail that falls in steps (no limit); ``light``, 1/k = 0 for all."""
    paths = []
    for tail in (of or tails.FAR_TAILS).values():
        for v in (rng.uniform(0.2, 0.5), rng.uniform(0.6, 1.0)), (rng.uniform(0.7, 1.0), rng.uniform(0.3, 0.6)):
            with mp.workdps(2 * DIGITS):
                logs = [mp.log(mp.mpf(share)) for share in v]
                path = []
                for n in tail.steps:
                    y = n**2 - sum(logs) / 2  # y = -log(1 - alpha)
                    path.append((tail.log_z(y + logs[1]) - tail.log_z(y + logs[0])) / (logs[1] - logs[0]))
                paths.append([one - (0 if light else 1 / mp.mpf(tail.k)) for one in path])
    nearer = [1 - float(abs(later) / abs(earlier)) for path in paths for earlier, later in pairwise(path)]
    last = np.array([float(path[-1]) for path in paths])
    return beside(lambda x: holds(1e-3 - np.abs(last + x), "exponent over beta"), holds(nearer, "part of the distance"))


@check("T10", Method.ATTACKED, "(e) update acceptance of two signs under drop, exact counts", "of the upper edge", 0.2)
@near_miss("alike only where both signs are clipped alike", either=False)
@near_miss("mask in the place of drop", outside="mask")
def two_signs(rng: np.random.Generator, either: bool = True, outside: str = "drop") -> Test:
    """Test T10 (e) in exact counts, on 400 random distributions of S with three values for each sign of A: at two
    lengths the update acceptance is 1 less the mean share that the signs lose, and the same exactly if both signs lose
    the same share or both lengths have the same ratio of signs. Falsified by x, the test multiplies the upper range by
    1 + x. Near misses: ``either`` False leaves out the latter, ``outside`` "mask" clips on both sides whatever A."""
    cases = []
    for _ in range(400):
        atoms = [rng.choice(np.arange(-24, 25), 3, replace=False) / 8 for _ in range(2)]
        weights, copies = rng.integers(1, 6, (2, 3)), rng.integers(1, 4, (2, 3))
        cases.append((atoms, weights, copies, rng.integers(1, 13, 2) / 8 + 1 / 16, float(rng.choice([0.0, 0.5, 1.0]))))

    def broken(x: float, atoms: list[Floats], weights: np.ndarray, copies: np.ndarray, c: Floats, H: float) -> bool:
        rule = Rule("power", c[0], c[1] * (1 + x), gamma=H, outside=outside)  # type: ignore[arg-type]
        total = weights.sum(axis=1).tolist()
        beyond = weights[0] @ (atoms[0] > c[1]), weights[1] @ (-atoms[1] > c[0])
        t = [Fraction(int(lost), n) for lost, n in zip(beyond, total, strict=True)]
        kept, ratio, wrong = [], [], False
        for power, (plus, minus, zero) in enumerate(copies.tolist()):
            n = 4.0 ** (1 + 2 * power)
            S = np.concatenate([*atoms, atoms[0]]) * n**H  # A = 0 has the values of A > 0; no edge may clip it
            mass = np.concatenate([plus * weights[0], minus * weights[1], zero * weights[0]])
            lost = int(mass @ (rule.apply(S, np.full(9, n), np.repeat([1.0, -1.0, 0.0], 3)).multiplier == 0))
            of_sign = plus * total[0], minus * total[1]
            kept.append(1 - Fraction(lost, sum(of_sign)))
            ratio.append(Fraction(*of_sign))
            wrong |= kept[-1] != 1 - (of_sign[0] * t[0] + of_sign[1] * t[1]) / sum(of_sign)
        return wrong or (kept[0] == kept[1]) != (t[0] == t[1] or (either and ratio[0] == ratio[1]))

    return unbroken(broken, cases, "distributions")


CHANGED: Floats = np.linspace(0.35, 0.9, GRID.size)
"""The share of responses that change at each length of ``GRID``."""


@check("T10", Method.SIMULATED, "(c), (e) drawn: a = 1 - t v(l); each sign with its own edge", "of a(l)", 0.03)
@near_miss("share that changes ignored", v_ignored=True)
@near_miss("mixture of the signs changes with the length", changes=0.4)
@near_miss("another H for A < 0", hurst=0.53)
def sqrt_band(
    rng: np.random.Generator, v_ignored: bool = False, changes: float = 0.0, hurst: float = 0.5, draws: int = 200_000
) -> Test:
    """Test T10 (c) and (e) on ``draws`` responses at each of six lengths, of which 35 % to 90 % change, with skewed S
    where A > 0 and normal S where A < 0, else S = 0 and A = 0: of the changed the sqrt band accepts the same share at
    every length, of each sign and, as update acceptance, of both. Falsified by x: the stated acceptances times 1 - x.
    Near misses: ``v_ignored`` states that all responses change; ``changes`` .4 lets the share of A > 0 grow by .4 from
    the first to the last length; with ``hurst`` .53 S spreads like L^.53, not L^.5, where A < 0."""
    n, v = np.broadcast_to(GRID, (draws, GRID.size)), np.ones(GRID.size) if v_ignored else CHANGED
    sign = np.where(rng.random(n.shape) < 0.6 + changes * np.linspace(-0.5, 0.5, GRID.size), 1.0, -1.0)
    A = np.where(rng.random(n.shape) < CHANGED, sign, 0.0)
    plus, minus = ScaledGamma(0.0, SIGMA, shape=2.0, sign=1), FractionalNoise(0.0, SIGMA, hurst=hurst)
    S = np.where(A > 0, plus.sample(rng, n), np.where(A < 0, minus.sample(rng, n), 0.0))
    applied = Rule("sqrt", 1.1 * SIGMA, 1.4 * SIGMA).apply(S, n, A)
    cut, t_minus = applied.side != 0, special.ndtr(-1.1)
    t_plus = special.gammaincc(2.0, 2 + 1.4 * math.sqrt(2))  # (G - 2)/sqrt(2) above 1.4, G of shape 2
    below_plus = special.gammainc(2.0, max(2 - 1.1 * math.sqrt(2), 0.0))
    both = 0.6 * (t_plus + below_plus) + 0.4 * (t_minus + special.ndtr(-1.4))
    tests = [shares(applied.in_band.sum(axis=0), draws, 1 - v * both)]
    tests.append(shares((~cut).sum(axis=0), draws, 1 - v * (1 - theory.update_acceptance(0.6, t_plus, t_minus))))
    return all_of(*tests, *(alike((~cut & of).sum(axis=0), of.sum(axis=0)) for of in (A != 0, A > 0, A < 0)))
