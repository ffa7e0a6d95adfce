"""Check T10: bands on responses of which, at each length, a part does not move (section 6)."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import mpmath as mp
import numpy as np
from hypothesis import strategies as st
from scipy import optimize, special

from fspo import theory
from fspo.rules import Rule
from fspo.theory import LRE, Floats
from proofs_check.frame import Check, Method, Outcome
from proofs_check.tools.compare import close, holds, worst
from proofs_check.tools.falsify import search
from proofs_check.tools.laws import Law, accepted, gamma_law, logistic, mask, student
from proofs_check.tools.settings import DIGITS


class MovingLaw(NamedTuple):
    """A law of X/L^H of the moving responses: X is a response's excess, H the exponent of the log-ratio's spread.

    ``tail`` is 1 - F at an mpmath number, F the distribution function; ``quantile`` is F's inverse in float64.
    """

    tail: Callable[[Any], Any]
    quantile: Callable[[float], float]


NORMAL = MovingLaw(lambda x: mp.erfc(x / mp.sqrt(2)), lambda p: float(special.ndtri((1 + p) / 2)))
"""|Z| with Z standard normal."""
STUDENT = MovingLaw(
    lambda x: 2 / mp.pi * (mp.atan(mp.sqrt(3) / x) - (x / mp.sqrt(3)) / (1 + x**2 / 3)),
    lambda p: float(special.stdtrit(3.0, (1 + p) / 2)),
)
"""|Z| with Z a Student-t variable of 3 degrees of freedom."""
LOGISTIC = MovingLaw(lambda x: 2 / (1 + mp.exp(x)), lambda p: 2 * math.atanh(p))
"""|Z| with Z logistic."""
ONE_EDGE = MovingLaw(lambda x: 1 / (1 + mp.exp(x)), lambda p: float(special.logit(p)))
"""Z itself, logistic, for a band with one edge: half of the moving responses move away from it, F(0) = 1/2."""
LAWS = (NORMAL, STUDENT, LOGISTIC, ONE_EDGE)


def drawn_pair(rng: np.random.Generator, quantile: Callable[[float], float]) -> tuple[Floats, Floats, float, float]:
    """Draw an example for T10 (c): the shares of responses that move at two lengths (2,), the lengths (2,), the share
    alpha of all responses that the band accepts, and H.

    ``quantile`` gives the quantiles of X/L^H of the moving responses. Draws are repeated until T10's fair exponent lies
    between 0 and 2, because rules take no other exponents.
    """
    while True:
        v, H = rng.uniform(0.3, 1.0, 2), float(rng.choice([0.3, 0.5, 0.65, 1.0]))
        lengths = np.exp(rng.uniform(0, math.log(64))) * np.array([1.0, rng.uniform(4, 512)])
        alpha = float(rng.uniform(0.75, 0.995))
        if 0 <= theory.fair_exponent_with_still(quantile, v, lengths, alpha, H) <= 2:
            return v, lengths, alpha, H


def root_of_equal_acceptance(law: MovingLaw, v: Floats, lengths: Floats, alpha: float, H: float) -> float:
    """Return the exponent gamma at which two lengths have the acceptance ``alpha``, found with 50 digits.

    For each gamma the range f is set so that the band accepts the share alpha at the first length, by bisection; the
    gamma is searched for with which it then accepts alpha at the second length too. No quantile is used.
    """
    with mp.workdps(DIGITS):
        (v_1, v_2), (l_1, l_2) = map(mp.mpf, v.tolist()), map(mp.mpf, lengths.tolist())
        alpha, H = mp.mpf(alpha), mp.mpf(H)
        bisect = partial(mp.findroot, solver="bisect")
        # the greatest X/L^H, X the excess, that a band accepts at the first length if it accepts the share alpha there
        edge = mp.exp(bisect(lambda y: 1 - v_1 * law.tail(mp.exp(y)) - alpha, (-30, 8)))

        def excess(gamma: Any) -> Any:
            f = edge * l_1 ** (H - gamma)
            return 1 - v_2 * law.tail(f * l_2 ** (gamma - H)) - alpha

        return float(bisect(excess, (H - 4, H + 4)))


def by_root_search(rng: np.random.Generator, v_ignored: bool = False, normal: bool = False) -> Outcome:
    """Check T10 (c): a root search over gamma, with 50 digits, finds the fair exponent that the formula states, for
    laws with light and heavy tails, with two edges and with one. It is above H exactly if more responses of the longer
    length move. Controls take the share that moves as 1, or quantiles of the normal law for all laws.
    """
    roots, stated, signs = [], [], []
    for law in LAWS:
        quantile = NORMAL.quantile if normal else law.quantile
        for _ in range(5):
            v, lengths, alpha, H = drawn_pair(rng, law.quantile)
            roots.append(root_of_equal_acceptance(law, v, lengths, alpha, H))
            used = np.ones(2) if v_ignored else v
            stated.append(theory.fair_exponent_with_still(quantile, used, lengths, alpha, H))
            signs.append((roots[-1] - H) * np.sign(v[1] - v[0]))
    formula = close(roots, stated, 1e-9, pairs=len(roots))
    return formula if min(signs) > 0 else holds(signs, "exponent less H, in the direction of v")


def accepted_of_all(rule: Rule, lengths: Floats, law: Law, H: float, m: float, v: Floats) -> Floats:
    """Return the share of all responses that a rule's band accepts at each length l.

    At each length the share ``v`` of the responses moves: their log-ratios have the mean m l, and (log-ratio - m l)/l^H
    has the law ``law`` (`accepted`). The other responses are still: their log-ratio is m l.
    """
    lo, hi = rule.band(lengths, m)
    still = (lo <= m * lengths) & (m * lengths <= hi)
    return v * accepted(rule, lengths, law, H, m) + (1 - v) * still


def excess_law(law: Law, c_lo: float, c_hi: float) -> tuple[Callable[[Floats], Floats], Callable[[float], float]]:
    """Return F and its inverse for X/L^H, X the excess over the half-widths c_lo and c_hi of log-ratios with the law
    ``law``: F(x) is the law's probability of [-c_lo x, c_hi x].
    """

    def cdf(x: Floats) -> Floats:
        return law(c_hi * np.asarray(x), 1.0) - law(-c_lo * np.asarray(x), 1.0)

    def quantile(p: float) -> float:
        found: Any = optimize.brentq(lambda x: float(cdf(x)) - p, 0.0, 1e6, xtol=1e-15)
        return float(found)

    return cdf, quantile


def through_rule(rng: np.random.Generator, v_ignored: bool = False, at_H: bool = False) -> Outcome:
    """Check T10 (c) on bands that the rules compute: at six lengths a band's acceptance over all responses is
    that of T10's formula, and with T10's fair exponent for two of these lengths both have the acceptance alpha.
    Controls: the formula as if all responses moved; the exponent H, which is fair to the moving responses alone.
    """
    found, stated = [], []
    for law in (logistic, student, gamma_law):
        for _ in range(6):
            c_lo, c_hi = rng.uniform(0.3, 0.9, 2)
            cdf, quantile = excess_law(law, c_lo, c_hi)
            v_pair, lengths, alpha, H = drawn_pair(rng, quantile)
            gamma = H if at_H else theory.fair_exponent_with_still(quantile, v_pair, lengths, alpha, H)
            f = quantile(1 - (1 - alpha) / v_pair[0]) * lengths[0] ** (H - gamma)
            rule = mask("power", f * c_lo, f * c_hi, gamma)
            n = np.concatenate([lengths, np.exp(rng.uniform(0, 8, 4))])
            v = np.concatenate([v_pair, rng.uniform(0.2, 1.0, 4)])
            a = accepted_of_all(rule, n, law, H, -3e-4, v)
            used = np.ones(6) if v_ignored else v
            found += [a, a[:2]]
            stated += [theory.acceptance_with_still(cdf, used, n, f, gamma, H), np.full(2, alpha)]
    return close(np.concatenate(found), np.concatenate(stated), 1e-9)


def lre_of_all(rng: np.random.Generator, gamma_off: float = 0.0, of_moving: bool = False) -> Outcome:
    """Check T10 (c). The half-width of the band grows as L^gamma, the spread of S as L^H. If gamma = H, the band has
    the LRE_1, LRE_2 and LRE_inf that T10 states over all responses, and its acceptance of the moving ones is the same
    at every length. Controls: gamma = H + .25, or an LRE without T10's factor (1 - a_bar)/a_bar.
    """
    lengths, errors, spread = np.array([2.0, 9, 60, 333, 4096]), [], []
    for law in (logistic, student, gamma_law):
        for H in (0.3, 0.5, 0.75):
            p, v, c = rng.dirichlet(np.ones(5)), rng.uniform(0.2, 1.0, 5), rng.uniform(0.5, 2.0, 2)
            rule = mask("power", c[0], c[1], H + gamma_off)
            moving = accepted(rule, lengths, law, H, -3e-4)
            a = accepted_of_all(rule, lengths, law, H, -3e-4, v)
            stated = theory.lre(p, v) if of_moving else theory.lre_with_still(p, v, 1 - float(moving[0]))
            errors.append(close(values(theory.lre(p, a)), values(stated), 1e-9))
            spread.append(1e-9 - np.ptp(moving))
    formula = worst(*errors)
    return formula if min(spread) > 0 else holds(spread, "acceptance of moving responses alike within 1e-9")


def values(found: LRE) -> list[float]:
    """Return the three Length Reweighting Errors as a list."""
    return [found.inf, found.l1, found.l2]


class FarTail(NamedTuple):
    """A tail 1 - F far out: ``log_z(y)`` is the logarithm of the x at which -log(1 - F(x)) = y (mpmath numbers).

    ``k`` is the power at which T10 (d) says it falls, infinity if faster than any. ``steps`` are the n at which the
    limit is looked at, where y is about n^2.
    """

    log_z: Callable[[Any], Any]
    k: float
    steps: tuple[int, ...] = (10, 100, 1000, 10_000)


def solved(tail: Callable[[Any], Any], guess: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function ``log_z`` of a `FarTail`. For a number y it finds, by root search from ``guess(y)``, the
    log x at which -log(1 - F(x)) = y, with ``tail`` = 1 - F.
    """
    return lambda y: mp.findroot(lambda t: mp.log(tail(mp.exp(t))) + y, (guess(y), guess(y) * (1 + mp.mpf(10) ** -6)))


def in_steps(y: Any) -> Any:
    """Return log x at which -log(1 - F(x)) = y for a law that falls in steps (docs/theory.md after T10).

    1 - F is e^(-n^2) at 4^n and e^(-n^2 - 2^-n) at 2 4^n. In between log(1 - F) is linear in log x. So it is lighter
    than any power.
    """
    n = int(mp.floor(mp.sqrt(y)))
    flat, past = mp.mpf(2) ** -n, y - n**2
    if past <= flat:
        return n * mp.log(4) + past / flat * mp.log(2)
    return n * mp.log(4) + mp.log(2) * (1 + (past - flat) / (2 * n + 1 - flat))


FAR_TAILS = {
    "normal": FarTail(solved(NORMAL.tail, lambda y: mp.log(2 * y) / 2), math.inf),
    "logistic": FarTail(lambda y: mp.log(mp.log(2 * mp.exp(y) - 1)), math.inf),
    "lognormal": FarTail(solved(lambda x: mp.erfc(mp.log(x) / mp.sqrt(2)) / 2, lambda y: mp.sqrt(2 * y)), math.inf),
    "bounded": FarTail(lambda y: mp.log1p(-mp.exp(-y)), math.inf),
    "Student": FarTail(solved(STUDENT.tail, lambda y: y / 3), 3.0, (4, 6, 8, 10)),
    "1/(1 + x^2)": FarTail(lambda y: mp.log(mp.exp(y) - 1) / 2, 2.0, (4, 6, 8, 10)),
}
"""Tails of X/L^H of the moving responses: those of |Z| for a normal, a logistic and a Student-t Z (3 degrees of
freedom), of e^Z for a normal Z, of a uniform law on (0, 1), and 1/(1 + x^2)."""


def limits(rng: np.random.Generator, tails: dict[str, FarTail] | None = None, light: bool = False) -> Outcome:
    """Check T10 (d): the limit of the fair exponent gamma_alpha as the accepted share alpha of all responses tends to
    1. It must come ever nearer to H if the tail of X/L^H of the moving responses falls faster than any power, and to
    H + beta/k if the tail falls like x^-k; the share of responses that moves grows like L^beta. At the largest alpha
    (1 - alpha is down to e^(-10^8)) the distance from the limit is at most a thousandth of beta. A control takes the
    limit H for all tails (``light``).
    """
    slack = []
    for tail in (tails or FAR_TAILS).values():
        for v in (rng.uniform(0.2, 0.5), rng.uniform(0.6, 1.0)), (rng.uniform(0.7, 1.0), rng.uniform(0.3, 0.6)):
            with mp.workdps(2 * DIGITS):
                logs = [mp.log(mp.mpf(share)) for share in v]
                beta, gaps = logs[1] - logs[0], []  # exponent beta of the moving share, if log(l2/l1) = 1
                for n in tail.steps:
                    y = n**2 - sum(logs) / 2  # y = -log(1 - alpha), alpha the acceptance
                    above = tail.log_z(y + logs[1]) - tail.log_z(y + logs[0])
                    gaps.append(abs(above / beta - (0 if light else 1 / mp.mpf(tail.k))))
                slack += [1 - float(later / earlier) for earlier, later in pairwise(gaps)]
                slack.append(1 - 1000 * float(gaps[-1]))
    return holds(slack, "1 - what is left of the distance from the limit")


def local_power(rng: np.random.Generator, of_density: bool = False, rises: bool = False) -> Outcome:
    """Check T10 (d): the exponent gamma_alpha at which two lengths have the same acceptance alpha is H + beta/k(x), x
    some point between the two lengths' edges.

    S spreads like L^H. beta is the difference of the logs of the two lengths' shares of moving responses, over that of
    the logs of the lengths. k(x) = x F'(x)/(1 - F(x)), by differentiation with 50 digits, is the local power of the
    tail of F, the law of the moving responses' excess. For these laws k rises, so gamma_alpha comes nearer to H as
    alpha rises. A control takes the hazard F'/(1 - F) for k.
    """
    slack = []
    for law in LAWS:
        for _ in range(4):
            v, ratio = rng.uniform(0.5, 1.0, 2), float(np.exp(rng.uniform(1, 6)))
            beta, distances = math.log(v[1] / v[0]) / math.log(ratio), []
            for alpha in (0.8, 0.9, 0.97, 0.995):
                above = theory.fair_exponent_with_still(law.quantile, v, [2.0, 2 * ratio], alpha, 0.5) - 0.5
                ends = [law.quantile(1 - (1 - alpha) / share) for share in v]
                with mp.workdps(DIGITS):
                    k = [
                        float(
                            -mp.diff(lambda t, law=law: mp.log(law.tail(mp.exp(t))), mp.log(z))
                            / (z if of_density else 1)
                        )
                        for z in ends
                    ]
                slack += [beta / above - min(k), max(k) - beta / above]
                distances.append(abs(above))
            slack += list(np.diff(distances) if rises else -np.diff(distances))
    return holds(slack, "power within its ends, and least step towards H", rounding=1e-9)


MOVING, BETWEEN = (0.4, 0.8), (16.0, 128.0)
"""The example in docs/theory.md after T10: the shares of the responses that move at two lengths, and the lengths."""
EXAMPLE = {0.75: (0.849, 0.886), 0.85: (0.690, 0.737), 0.95: (0.593, 0.652), 0.99: (0.552, 0.623)}
"""Fair exponents of the example, by the share of responses accepted: for the normal law and for Student's."""


def example(rng: np.random.Generator, moving: tuple[float, float] = MOVING, of_moving: bool = False) -> Outcome:
    """Check the example in docs/theory.md after T10: every fair exponent to the digits printed there, the acceptance
    below which no exponent is fair, how the fair exponent grows without bound just above that acceptance, and the limit
    of the fair exponent for Student's law.
    """
    del rng
    slack = []
    for alpha, stated in EXAMPLE.items():
        for law, digits in zip((NORMAL, STUDENT), stated, strict=True):
            exact = 0.5 if of_moving else root_of_equal_acceptance(law, np.array(moving), np.array(BETWEEN), alpha, 0.5)
            slack.append(0.0005 - abs(exact - digits))
    none = [math.isnan(theory.fair_exponent_with_still(NORMAL.quantile, moving, BETWEEN, a, 0.5)) for a in (0.6, 0.61)]
    slack.append(0.0005 if none == [True, False] else -1.0)
    # Only above the acceptance alpha = .6 does an exponent exist. Just above it, the edge at the shorter length is
    # proportional to alpha - .6. So where alpha - .6 is a thousand times smaller, the fair exponent is larger by
    # log(1000)/log(8), 8 being the ratio of the two lengths.
    near = [
        theory.fair_exponent_with_still(NORMAL.quantile, moving, BETWEEN, 0.6 + e, 0.5) for e in (1e-4, 1e-7, 1e-10)
    ]
    slack += list(0.0005 - np.abs(np.diff(near) - math.log(1000) / math.log(8)))
    slack.append(0.0005 - abs(0.5 + math.log(moving[1] / moving[0]) / (3 * math.log(8)) - 0.611))
    return holds(slack, "exponent within .0005 of the page")


@st.composite
def part_moves(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], list[int], int, int, float, float, int, int]:
    """Let hypothesis draw an example for T10 (c), in which part of the responses does not move.

    It has: a law of log-ratios (a few values, in eighths, with integer weights); for each of two lengths, how many
    copies of that law move and how many responses are still; the band's two half-widths at length 1; the exponent gamma
    of the band; the exponent H of the law's spread; and the two lengths as powers of 4.
    """
    atoms = draw(st.lists(st.integers(-24, 24), min_size=1, max_size=5, unique=True))
    weights = draw(st.lists(st.integers(1, 9), min_size=len(atoms), max_size=len(atoms)))
    moving = draw(st.lists(st.integers(1, 4), min_size=2, max_size=2))
    still = draw(st.lists(st.integers(0, 30), min_size=2, max_size=2))
    halves = st.sampled_from([0.0, 0.5, 1.0])
    first = draw(st.integers(0, 3))
    c = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    return atoms, weights, moving, still, *c, draw(halves), draw(halves), first, first + draw(st.integers(1, 2))


def order_attack(rng: np.random.Generator, any_gamma: bool = False, ties: bool = False) -> Outcome:
    """Check T10 (c) at two lengths, in exact counts, for laws of a few values; v(l) is the share of the responses of
    length l that move. With gamma = H a band cuts at both lengths the same share t of the moving responses, so t v(l)
    of all. Of the longer length it accepts less if v is greater there, gamma <= H and it cuts something there; more if
    v is less there, gamma >= H and it cuts something at the shorter. Controls: any gamma, or also equal v (``ties``).
    """

    def excess(case: tuple[list[int], list[int], list[int], list[int], int, int, float, float, int, int]) -> float:
        atoms, weights, moving, still, c_lo, c_hi, gamma, H, first, second = case
        z, mass, accepted_share, cut_moving, v = np.array(atoms) / 8, np.array(weights), [], [], []
        rule = Rule("power", c_lo / 8, c_hi / 8, gamma=gamma, drift="kl", outside="mask", on="engine")
        for power, copies, others in zip((first, second), moving, still, strict=True):
            n = 4.0**power
            R = np.append(z * n**H, 0.0) - n / 8  # last entry: a still response, at the band's centre
            weight = [*(copies * mass).tolist(), others]
            kept = rule.apply(R, np.full(R.size, n), np.where(np.arange(R.size) % 2, 1.0, -1.0), -1 / 8).multiplier
            v.append(Fraction(sum(weight[:-1]), sum(weight)))
            cut_moving.append(
                Fraction(sum(w for w, k in zip(weight[:-1], kept, strict=False) if not k), sum(weight[:-1]))
            )
            accepted_share.append(Fraction(sum(w for w, k in zip(weight, kept, strict=True) if k), sum(weight)))
        (a_1, a_2), (v_1, v_2) = accepted_share, v
        broken = gamma == H and (
            cut_moving[0] != cut_moving[1]
            or any(a != 1 - share * cut_moving[0] for a, share in zip(accepted_share, v, strict=True))
        )
        if (v_1 < v_2 or (ties and v_1 == v_2)) and (gamma <= H or any_gamma) and a_2 < 1:
            broken |= not a_1 > a_2
        if v_1 > v_2 and (gamma >= H or any_gamma) and a_1 < 1:
            broken |= not a_1 < a_2
        return 0.5 if broken else -0.5

    return search(rng, part_moves(), excess, 100, "laws, exact counts")


@st.composite
def two_signs(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]], list[list[int]], int, int, float, int, int]:
    """Draw for A > 0 and A < 0 a law of a few values (in eighths) with integer weights, how many copies of the laws of
    A > 0, A < 0 and A = 0 there are at each of two lengths, the band's half-widths at length 1, the exponent H of band
    and spread, and the two lengths as powers of 4.
    """
    atoms = [draw(st.lists(st.integers(-24, 24), min_size=3, max_size=3, unique=True)) for _ in range(2)]
    weights = [draw(st.lists(st.integers(1, 5), min_size=3, max_size=3)) for _ in range(2)]
    copies = [draw(st.lists(st.integers(1, 3), min_size=3, max_size=3)) for _ in range(2)]
    first = draw(st.integers(0, 3))
    c = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    return atoms, weights, copies, *c, draw(st.sampled_from([0.0, 0.5, 1.0])), first, first + draw(st.integers(1, 2))


def sign_attack(rng: np.random.Generator, either: bool = True, outside: str = "drop") -> Outcome:
    """Check T10 (e) for laws of a few values, in exact counts: under drop the update acceptance of two lengths is the
    same exactly if the band cuts the same share of both signs, or both lengths have the same ratio of A > 0 to A < 0.
    Controls: only the first of the two conditions makes them alike (``either=False``), or a mask in the place of drop.
    """

    def excess(case: tuple[list[list[int]], list[list[int]], list[list[int]], int, int, float, int, int]) -> float:
        atoms, weights, copies, c_lo, c_hi, H, first, second = case
        rule = Rule("power", c_lo / 8, c_hi / 8, gamma=H, outside=outside)  # type: ignore[arg-type]
        total = [sum(of_sign) for of_sign in weights]
        # Share of the responses with A > 0 that lie above the upper edge, and of those with A < 0 below the lower edge.
        t = [
            Fraction(sum(w for x, w in zip(atoms[0], weights[0], strict=True) if x > c_hi), total[0]),
            Fraction(sum(w for x, w in zip(atoms[1], weights[1], strict=True) if -x > c_lo), total[1]),
        ]
        kept_shares, ratio, broken = [], [], False
        for power, (plus, minus, zero) in zip((first, second), copies, strict=True):
            n = 4.0**power
            # The responses with A = 0 get the same values of S as those with A > 0; no edge may cut them.
            S = np.array([*atoms[0], *atoms[1], *atoms[0]]) / 8 * n**H
            A = np.repeat([1.0, -1.0, 0.0], 3)
            mass = [*(plus * w for w in weights[0]), *(minus * w for w in weights[1]), *(zero * w for w in weights[0])]
            cut = rule.apply(S, np.full(9, n), A).multiplier == 0
            lost = sum(m for m, c in zip(mass, cut, strict=True) if c)
            of_sign = plus * total[0], minus * total[1]
            kept_shares.append(1 - Fraction(lost, sum(of_sign)))
            ratio.append(Fraction(*of_sign))
            stated = 1 - (of_sign[0] * t[0] + of_sign[1] * t[1]) / sum(of_sign)
            broken |= kept_shares[-1] != stated
        alike = t[0] == t[1] or (either and ratio[0] == ratio[1])
        broken |= (kept_shares[0] == kept_shares[1]) != alike
        return 0.5 if broken else -0.5

    return search(rng, two_signs(), excess, 100, "laws, exact counts")


CHECKS = (
    Check(
        "T10",
        Method.CLOSED,
        "the fair exponent over all responses, by root search with 50 digits",
        by_root_search,
        {
            "share that moves ignored": partial(by_root_search, v_ignored=True),
            "normal quantiles for every law": partial(by_root_search, normal=True),
        },
    ),
    Check(
        "T10",
        Method.CLOSED,
        "acceptance over all responses through the rule's band, and alike at the stated exponent",
        through_rule,
        {
            "share that moves ignored": partial(through_rule, v_ignored=True),
            "gamma = H": partial(through_rule, at_H=True),
        },
    ),
    Check(
        "T10",
        Method.CLOSED,
        "LRE over all responses at gamma = H",
        lre_of_all,
        {
            "gamma = H + .25": partial(lre_of_all, gamma_off=0.25),
            "without the factor (1 - a_bar)/a_bar": partial(lre_of_all, of_moving=True),
        },
    ),
    Check(
        "T10",
        Method.CLOSED,
        "limits as alpha tends to 1, down to 1 - alpha = e^(-10^8)",
        limits,
        {
            "limit H for tails like x^-k": partial(limits, light=True),
            "limit of x^-3 for the normal tail": partial(limits, tails={"normal": FAR_TAILS["normal"]._replace(k=3.0)}),
            "lighter than any power is enough": partial(limits, tails={"in steps": FarTail(in_steps, math.inf)}),
        },
    ),
    Check(
        "T10",
        Method.CLOSED,
        "gamma less H is beta over the tail's local power, and shrinks as alpha rises",
        local_power,
        {
            "hazard in the place of the power": partial(local_power, of_density=True),
            "grows as alpha rises": partial(local_power, rises=True),
        },
    ),
    Check(
        "T10",
        Method.CLOSED,
        "example to its digits: .849 at 75 % to .552 at 99 %, none at 60 %",
        example,
        {
            "42 % move at 16 tokens": partial(example, moving=(0.42, 0.8)),
            "exponent of the moving responses": partial(example, of_moving=True),
        },
    ),
    Check(
        "T10",
        Method.ATTACKED,
        "hypothesis: a part moves, laws of a few values, exact counts",
        order_attack,
        {
            "any gamma": partial(order_attack, any_gamma=True),
            "also where the same share moves": partial(order_attack, ties=True),
        },
    ),
    Check(
        "T10",
        Method.ATTACKED,
        "hypothesis: update acceptance of two signs under drop, exact counts",
        sign_attack,
        {
            "alike only where both signs are cut alike": partial(sign_attack, either=False),
            "mask in the place of drop": partial(sign_attack, outside="mask"),
        },
    ),
)
