"""Check identities by computer algebra (sympy), for all values of their symbols at once.

Each check subtracts the two sides of an identity. It passes only if sympy reduces the difference (the left-over) to 0.
A control's left-over must differ from 0 at a rational point, where it is evaluated to 30 digits. So an expression that
sympy merely cannot simplify is undecided and not called false.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import sympy as sp

from proofs_check.frame import Check, Method, Outcome

Expr = Any  # the type of a sympy expression; sympy's own annotations are too wide to be of use


def _symbols(names: str, **assumptions: Any) -> Expr:
    return sp.symbols(names, **assumptions)


def vanish(left_overs: Iterable[Expr], rng: np.random.Generator, points: int = 5) -> Outcome:
    """Pass if every expression is identically 0; fail if one is not 0 at a rational point; otherwise undecided."""
    count = 0
    for left_over in left_overs:
        count += 1
        if sp.simplify(sp.expand(left_over)) == 0:
            continue
        symbols = sorted(left_over.free_symbols, key=str)
        for _ in range(points):
            at: dict[Expr, Expr] = {
                s: sp.Rational(int(rng.integers(1, 40)), int(rng.integers(41, 80))) for s in symbols
            }
            value = sp.N(left_over.subs(at), 30)
            if value.is_number and abs(value) > sp.Float(10) ** -15:
                return Outcome(-float(abs(value)), "left over", note=f"the two sides differ at {_shown(at)}")
        return Outcome(note="sympy neither reduces the left-over to 0 nor finds it different from 0")
    if not count:
        return Outcome(note="no identity")
    return Outcome(0.0, "left over", note=f"{count} identities")


def _shown(at: dict[Expr, Expr]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in list(at.items())[:4])


def lemma_forms(rng: np.random.Generator, factor: int = 1) -> Outcome:
    """Check an identity in T7's proof (cosine of clipped and true update). Let g be the true update, e the error of the
    clipped one, a = |g|^2, b = <g, e>, c = |e|^2 and rho any number. Then (a+b)^2 - (1-rho^2) a (a+2b+c) equals each of
    two expressions of the form square plus product. Both squares and both products are >= 0 where |e| <= rho |g|.
    """
    a, b, c, rho = _symbols("alpha beta gamma rho", real=True)
    left = (a + b) ** 2 - (1 - factor * rho**2) * a * (a + 2 * b + c)
    first = (b + rho**2 * a) ** 2 + (1 - rho**2) * a * (rho**2 * a - c)
    second = (b + c) ** 2 + (rho**2 * a - c) * (a + 2 * b + c)
    return vanish([left - first, left - second], rng)


def sharp_equality(rng: np.random.Generator, orthogonal: bool = True) -> Outcome:
    """Check T7s, an example of two strata of equal share in which T7's bound is an equality. Their acceptances, divided
    by the mean acceptance, are 1 + eps and 1 - eps; their mean gradients are g + v and g - v, with g the true update.
    It is checked that the error of the clipped update is eps v, that its norm is rho |g|, and that the cosine of
    clipped and true update squared is 1 - rho^2.
    """
    eps, rho = _symbols("epsilon rho", positive=True)
    # The true update g is (1, 0). Choose an error e of the clipped update g + e that has norm rho and is orthogonal to
    # g + e (in a control, to g). The strata's mean gradients are then g + v and g - v with v = e/eps.
    along = -(rho**2) if orthogonal else sp.Integer(0)
    across = rho * sp.sqrt(1 - rho**2) if orthogonal else rho
    g, e = sp.Matrix([1, 0]), sp.Matrix([along, across])
    v = e / eps
    half = sp.Rational(1, 2)
    strata, r = (g + v, g - v), (eps, -eps)
    e_len = half * r[0] * strata[0] + half * r[1] * strata[1]
    clipped = g + e_len
    kappa = (half * 2 * v.dot(v)) ** half
    cosine_squared = clipped.dot(g) ** 2 / clipped.dot(clipped)
    return vanish([*(e_len - e), (eps * kappa) ** 2 - rho**2, cosine_squared - (1 - rho**2)], rng)


def last_step(rng: np.random.Generator, power: int = 3) -> Outcome:
    """Check T7's last inequality, sqrt(1-rho^2) >= (1-rho)/(1+rho) for 0 <= rho < 1. Squared and multiplied out, it
    says (1+rho)^3 >= 1 - rho, and (1+rho)^3 - (1-rho) has positive coefficients only.
    """
    rho = _symbols("rho", positive=True)
    squared = (1 - rho**2) - ((1 - rho) / (1 + rho)) ** 2
    claimed = (1 - rho) * ((1 + rho) ** power - (1 - rho)) / (1 + rho) ** 2
    found = vanish([squared - claimed], rng)
    positive = all(c > 0 for c in sp.Poly(sp.expand((1 + rho) ** 3 - (1 - rho)), rho).coeffs())
    return found if positive else Outcome(-1.0, "coefficient")


def _dot(u: Iterable[Expr], v: Iterable[Expr]) -> Expr:
    return sum(x * y for x, y in zip(u, v, strict=True))


def strata_identity(rng: np.random.Generator, inner: int = 1) -> Outcome:
    """Check T8 in symbols for 2, 3 and 4 strata: the clipped update, divided by the mean acceptance, is the true update
    plus e_len (the error because lengths are reweighted) plus e_in (the error because of clipping inside lengths).
    e_len is computed from the strata's mean gradients, and again from these less the true update; by T8 both are equal.
    """
    left_overs: list[Expr] = []
    for K in (2, 3, 4):
        free, a = _symbols(f"p1:{K}", positive=True), _symbols(f"a1:{K + 1}", positive=True)
        p = (*free, 1 - sum(free))
        # T8's identity holds for each component of the vectors by itself. So one number stands for each stratum's mean
        # gradient g, and one for its error d (theory.md's delta).
        g, d = (_symbols(f"{name}:{K}", real=True) for name in ("g", "d"))
        mean, total = _dot(p, a), _dot(p, g)
        clipped = sum(w * x * (y + z) for w, x, y, z in zip(p, a, g, d, strict=True)) / mean
        e_in = inner * sum(w * x * z for w, x, z in zip(p, a, d, strict=True)) / mean
        for centre in (0, total):
            e_len = sum(w * (x / mean - 1) * (y - centre) for w, x, y in zip(p, a, g, strict=True))
            left_overs.append(sp.numer(sp.together(clipped - total - e_len - e_in)))
    return vanish(left_overs, rng)


def slope_peak(rng: np.random.Generator, peak: float = 1.0) -> Outcome:
    """Check a step of T3 (a wrong drift). In standard deviations of S, a band reaches from u_lo below its centre to
    u_hi above it, and x is the drift error. The second derivative of the band's acceptance in x is -(h(u_hi + x) +
    h(u_lo - x)), with h(t) = t phi(t) and phi the normal density. h is largest at t = 1, since h'(t) = (1 - t^2)
    phi(t).
    """
    t, x, below, above = _symbols("t x u_lo u_hi", positive=True)
    phi = sp.exp(-(t**2) / 2) / sp.sqrt(2 * sp.pi)
    h = t * phi
    f = (sp.erf((above + x) / sp.sqrt(2)) - sp.erf((x - below) / sp.sqrt(2))) / 2
    second = sp.diff(f, x, 2) + h.subs(t, above + x) + h.subs(t, below - x)
    at = sp.nsimplify(peak)
    return vanish([second, sp.diff(h, t) - (at**2 - t**2) * phi, sp.diff(h, t).subs(t, at)], rng)


def shifted_peak(rng: np.random.Generator, part: str = "1/2") -> Outcome:
    """Check a step of T3 (a wrong drift): the acceptance f(x) of a band with ranges u_lo, u_hi at the drift error x
    (all in standard deviations of S) is symmetric about x* = (u_lo - u_hi)/2, where its derivative is 0.
    """
    x, below, above = _symbols("x u_lo u_hi", positive=True)
    root = sp.sqrt(2)

    def f(at: Expr) -> Expr:
        return (sp.erf((above + at) / root) - sp.erf((at - below) / root)) / 2

    centre = sp.Rational(part) * (below - above)
    return vanish([f(centre + x) - f(centre - x), sp.diff(f(x), x).subs(x, centre)], rng)


def scale_slope(rng: np.random.Generator, sign: int = 1) -> Outcome:
    """Check a step of T4 (a wrong scale). If the scale of S is e^v times the assumed one, a band's edge at u assumed
    standard deviations lies at z = u e^-v true ones. Then d Phi(z)/dv = -z phi(z), with Phi, phi the normal
    distribution function and density. Both edges are checked.
    """
    u, v = _symbols("u v", positive=True)
    z = u * sp.exp(-v)
    slope = z * sp.exp(-(z**2) / 2) / sp.sqrt(2 * sp.pi)
    upper, lower = (sp.diff(sp.erf(edge / sp.sqrt(2)) / 2, v) for edge in (z, -z))
    return vanish([upper + sign * slope, lower - sign * slope], rng)


def ratio_limits(rng: np.random.Generator, growth: str = "1/8", threshold: str = "1/2") -> Outcome:
    """Check T2 (other bands keep some lengths more often): as the half-width of a fixed band tends to 0, the ratio of
    its acceptances at lengths l1, l2 tends to sqrt(l2/l1) if S has mean 0, and to sqrt(l2/l1) e^(sigma^2 (l2-l1)/8) if
    S has mean -sigma^2 l/2. Then, at T2's threshold -log(1 - eps) = sigma^2/2, the linear band's lower edge must be the
    mean of S at every length, and the band's acceptance must tend to 1/2 as the length grows.
    """
    b, sigma, l, m, upper = _symbols("b sigma l1 l2 u", positive=True)
    left_overs: list[Expr] = []
    for mu, stated in (
        (sp.Integer(0), sp.sqrt(m / l)),
        (-(sigma**2) / 2, sp.sqrt(m / l) * sp.exp(sp.Rational(growth) * sigma**2 * (m - l))),
    ):
        acceptance: list[Expr] = [
            sp.erf((b - mu * n) / (sigma * sp.sqrt(2 * n))) / 2 - sp.erf((-b - mu * n) / (sigma * sp.sqrt(2 * n))) / 2
            for n in (l, m)
        ]
        # Both lengths' acceptances are 0 at half-width b = 0, so their ratio tends, as b -> 0, to the ratio of
        # their derivatives in b.
        slopes: list[Expr] = [sp.diff(a, b).subs(b, 0) for a in acceptance]
        left_overs += [*(a.subs(b, 0) for a in acceptance), slopes[0] / slopes[1] - stated]
    # The edges of the linear band at length l are l log(1 - eps) and l upper, with upper = log(1 + eps_hi). Here they
    # stand less the mean of S, in standard deviations of S.
    eps = 1 - sp.exp(-sp.Rational(threshold) * sigma**2)
    low, high = ((edge + sigma**2 / 2) * l / (sigma * sp.sqrt(l)) for edge in (sp.log(1 - eps), upper))
    accepted = (sp.erf(high / sp.sqrt(2)) - sp.erf(low / sp.sqrt(2))) / 2
    return vanish([*left_overs, low, sp.limit(sp.simplify(accepted), l, sp.oo) - sp.Rational(1, 2)], rng)


def ar1_series(rng: np.random.Generator, factor: int = 2) -> Outcome:
    """Check T6's formula of V_l, the variance of S at length l if token log-ratios are AR(1) with coefficient alpha, by
    induction over l: V_1 is the variance gamma_0 of one token log-ratio, and V_(l+1) - V_l = gamma_0 (1 + 2
    sum_(k=1..l) alpha^k).
    """
    alpha, gamma = _symbols("alpha gamma_0", real=True)
    l = _symbols("l", positive=True)
    long_run = gamma * (1 + alpha) / (1 - alpha)
    power = _symbols("w", real=True)  # one symbol for alpha^l; alpha^(l+1) is then alpha times it

    def V(n: Expr, w: Expr) -> Expr:
        return n * long_run - long_run * factor * alpha * (1 - w) / (1 - alpha**2)

    geometric = alpha * (1 - power) / (1 - alpha)
    step = V(l + 1, alpha * power) - V(l, power) - gamma * (1 + 2 * geometric)
    induction = geometric.subs(power, alpha * power) - geometric - alpha * power
    return vanish([V(sp.Integer(1), alpha) - gamma, step, induction, geometric.subs(power, alpha) - alpha], rng)


def edge_parabola(rng: np.random.Generator, drift: str = "-1/2") -> Outcome:
    """Check T10 (size of the weights): the upper edge of fspo-gaussian's band is c_hi sqrt(L) - sigma^2 L/2 nats, sigma
    the scale of S. With u = c_hi/sigma it equals u^2/2 - (sigma sqrt(L) - u)^2/2, so it is at most u^2/2 at every L.
    """
    u, sigma, root = _symbols("u sigma r", positive=True)
    exponent = sp.Rational(drift) * root**2 * sigma**2 + u * sigma * root
    return vanish([exponent - u**2 / 2 + (sigma * root - u) ** 2 / 2], rng)


def tilt(rng: np.random.Generator, shift: int = 1) -> Outcome:
    """Check T9 (i) and T13: e^s times the density of N(mu l, sigma^2 l) at s is e^((mu + sigma^2/2) l) times that of
    N((mu + sigma^2) l, sigma^2 l). If mu = -sigma^2/2, the second density is the first one mirrored about 0, so a band
    around 0 with equal ranges keeps the same share of weight as of responses.
    """
    s, mu = _symbols("s mu", real=True)
    sigma, l = _symbols("sigma l", positive=True)
    variance = sigma**2 * l
    exponent = s - (s - mu * l) ** 2 / (2 * variance)
    tilted = (mu + sigma**2 / 2) * l - (s - (mu + shift * sigma**2) * l) ** 2 / (2 * variance)
    x = sigma * sp.sqrt(l) / 2  # distance of the band's centre 0 from the mean of S, in standard deviations
    return vanish([exponent - tilted, (x - shift * sigma * sp.sqrt(l)) + x], rng)


def error_split(rng: np.random.Generator, pairs_only: bool = True) -> Outcome:
    """Check T12 (squared error of the clipped update) over all draws of n = 2 and 3 prompts. A prompt's update is a
    number d with three possible values; values and probabilities are symbols.

    The mean of d over the prompts has the expected squared distance bias^2 + Var(d)/n from any target, where the bias
    is E d less the target. The mean of d_i d_j over pairs of different prompts i, j has expectation (E d)^2; if pairs i
    = j count too (a control), the expectation is larger by Var(d)/n.
    """
    points, (p, q) = _symbols("d0:3", real=True), _symbols("p q", positive=True)
    law, target = (p, q, 1 - p - q), _symbols("g", real=True)
    mean = _dot(law, points)
    variance = sum(w * d**2 for w, d in zip(law, points, strict=True)) - mean**2
    left_overs: list[Expr] = []
    for n in (2, 3):
        error, pairs = sp.Integer(0), sp.Integer(0)
        for draw in product(range(3), repeat=n):
            weight = math.prod((law[i] for i in draw), start=sp.Integer(1))
            d = [points[i] for i in draw]
            error += weight * (sum(d) / sp.Integer(n) - target) ** 2
            chosen = [(i, j) for i in range(n) for j in range(n) if i != j or not pairs_only]
            pairs += weight * sum(d[i] * d[j] for i, j in chosen) / sp.Integer(len(chosen))
        left_overs += [error - ((mean - target) ** 2 + variance / n), pairs - mean**2]
    return vanish(left_overs, rng)


def sign_split(rng: np.random.Generator, crossed: bool = False) -> Outcome:
    """Check T11 (share not clipped, by the sign of A). Every response has a sign of A and a place of S: below, in or
    above the band, or beyond the dual clip. The update acceptance that T11 states must follow from the probabilities of
    these pairs. If both active sides clip the same share, the update acceptance does not depend on the share of
    positive A.
    """
    names = "up_low up_in up_high up_dual down_low down_in down_high down_dual"
    mass = dict(zip(names.split(), _symbols(names, positive=True), strict=True))
    up, down = (sum(value for key, value in mass.items() if key.startswith(side)) for side in ("up", "down"))
    cut_high, cut_low, cut_dual = (
        (mass["up_high"] + mass["up_dual"]) / up,
        mass["down_low"] / down,
        mass["down_dual"] / down,
    )
    if crossed:
        cut_high, cut_low = mass["up_low"] / up, mass["down_high"] / down
    kept = up + down - mass["up_high"] - mass["up_dual"] - mass["down_low"] - mass["down_dual"]
    stated = 1 - (up * cut_high + down * (cut_low + cut_dual)) / (up + down)
    share, tail = _symbols("pi t", positive=True)
    symmetric = 1 - share * tail - (1 - share) * tail
    return vanish([kept / (up + down) - stated, sp.diff(symmetric, share)], rng)


CHECKS = (
    Check("T2", Method.SYMBOLIC, "limits of a(l1)/a(l2) as b -> 0", ratio_limits, {
        "growth sigma^2/9": partial(ratio_limits, growth="1/9"),
        "threshold sigma^2/3": partial(ratio_limits, threshold="1/3"),
    }),
    Check("T3", Method.SYMBOLIC, "a'' = -(h + h), h' = (1 - t^2) phi", slope_peak, {
        "peak at .95": partial(slope_peak, peak=0.95),
    }),
    Check("T3", Method.SYMBOLIC, "symmetry about x* = (u- - u+)/2", shifted_peak, {
        "x* = (u- - u+)/3": partial(shifted_peak, part="1/3"),
    }),
    Check("T4", Method.SYMBOLIC, "d Phi(u e^-v)/dv = -z phi(z)", scale_slope, {
        "the sign turned": partial(scale_slope, sign=-1),
    }),
    Check("T6", Method.SYMBOLIC, "Var S_l by induction", ar1_series, {
        "3 alpha for 2 alpha": partial(ar1_series, factor=3),
    }),
    Check("T7", Method.SYMBOLIC, "both sums of squares in the proof", lemma_forms, {
        "1 - 2 rho^2": partial(lemma_forms, factor=2),
    }),
    Check("T7", Method.SYMBOLIC, "T7s: cos^2 = 1 - rho^2", sharp_equality, {
        "error orthogonal to g": partial(sharp_equality, orthogonal=False),
    }),
    Check("T7", Method.SYMBOLIC, "(1 + rho)^3 >= 1 - rho", last_step, {
        "square for cube": partial(last_step, power=2),
    }),
    Check("T8", Method.SYMBOLIC, "K = 2, 3, 4 symbolic strata", strata_identity, {
        "e_in left out": partial(strata_identity, inner=0),
    }),
    Check("T9", Method.SYMBOLIC, "E exp S and the tilted law, completing the square", tilt, {
        "mean moved by 2 sigma^2": partial(tilt, shift=2),
    }),
    Check("T10", Method.SYMBOLIC, "edge = u^2/2 minus a square", edge_parabola, {
        "drift -.45 sigma^2": partial(edge_parabola, drift="-9/20"),
    }),
    Check("T11", Method.SYMBOLIC, "a_upd from masses by sign and side", sign_split, {
        "sides exchanged": partial(sign_split, crossed=True),
    }),
    Check("T12", Method.SYMBOLIC, "squared error and pairs, n = 2, 3 prompts", error_split, {
        "plug-in (i = j too)": partial(error_split, pairs_only=False),
    }),
    Check("T13", Method.SYMBOLIC, "b is a with the mean moved by sigma^2 l", tilt, {
        "mean moved by 2 sigma^2": partial(tilt, shift=2),
    }),
)  # fmt: skip
