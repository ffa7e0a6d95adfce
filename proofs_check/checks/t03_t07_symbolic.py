"""Prove inequalities over the reals with an SMT solver (z3): it looks for a solution of the negated inequality.

"unsat" (there is none) proves the inequality for all reals; "sat" is a counterexample, so the inequality is false; no
answer within the time limit leaves it undecided. z3 knows vectors by their inner products alone, because the proofs use
nothing else.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import z3

from proofs_check.frame import Check, Method, Outcome

Term = Any  # the type of a z3 expression; z3's own annotations are unions of all its types
TIME_LIMIT_MS = 60_000
"""Limit of each proof in milliseconds of wall time. A proof takes about a second on an idle machine."""


def prove(claim: Term, *given: Term, limit: int = TIME_LIMIT_MS) -> Outcome:
    """Return whether the inequality ``claim`` follows from the assumptions ``given``: proved, refuted or undecided. It
    is undecided if z3 finds that the assumptions contradict each other, because anything would follow from them.
    """
    solver = z3.Solver()
    solver.set("timeout", limit)
    solver.set("random_seed", 0)
    solver.add(*given)
    if solver.check() == z3.unsat:
        return Outcome(note="the assumptions contradict each other")
    solver.add(z3.Not(claim))
    answer = solver.check()
    if answer == z3.unsat:
        return Outcome(1.0, "1: proved, -1: refuted", note="no real counterexample")
    if answer == z3.sat:
        model = solver.model()
        values = [f"{name.name()} = {model[name]}" for name in model.decls() if name.arity() == 0]
        return Outcome(-1.0, "1: proved, -1: refuted", note="counterexample " + ", ".join(sorted(values)[:6]))
    return Outcome(note=f"no answer within {limit} ms: {solver.reason_unknown()}")


def _all(*outcomes: Outcome) -> Outcome:
    """Combine the outcomes of the parts of a check: refuted if one part is refuted, else undecided if one is undecided,
    else proved.
    """
    refuted = [found for found in outcomes if found.margin < 0]
    open_ = [found for found in outcomes if math.isnan(found.margin)]
    return (refuted or open_ or [outcomes[0]])[0]


def _fraction(text: str) -> Term:
    value = Fraction(text)
    return z3.Q(value.numerator, value.denominator)


def _reals(names: str) -> Term:
    return z3.Reals(names)


def cosine_core(rng: np.random.Generator, factor: str = "1") -> Outcome:
    """Check the core of T7 (cosine of clipped and true update). Let g be the true update, e the error of the clipped
    one, a = |g|^2, b = <g, e> and c = |e|^2. Cauchy-Schwarz and |e| <= rho |g|, rho < 1, imply a+b > 0 and (a+b)^2 >=
    (1-rho^2) a (a+2b+c), which says that the cosine of g and g+e is at least sqrt(1-rho^2).
    """
    del rng
    alpha, beta, gamma, rho = _reals("alpha beta gamma rho")
    given = [alpha > 0, gamma >= 0, beta * beta <= alpha * gamma, gamma <= rho * rho * alpha, rho >= 0, rho < 1]
    shrunk = _fraction(factor) * rho * rho
    size = prove((alpha + beta) * (alpha + beta) >= (1 - shrunk) * alpha * (alpha + 2 * beta + gamma), *given)
    return _all(size, prove(alpha + beta > 0, *given))


def last_step(rng: np.random.Generator, share: str = "1") -> Outcome:
    """Check T7's last inequality, squared: sqrt(1-rho^2) >= (1 - share rho)/(1+rho) for rho in [0, 1). In T7 ``share``
    is 1; a control has a smaller ``share``, which makes the inequality false.
    """
    del rng
    (rho,) = _reals("rho")
    right = 1 - _fraction(share) * rho
    return prove((1 - rho * rho) * (1 + rho) * (1 + rho) >= right * right, rho >= 0, rho < 1)


def lre_order(rng: np.random.Generator, shrink: str = "1", strata: tuple[int, ...] = (2, 3)) -> Outcome:
    """Check LRE_1 <= LRE_2 <= LRE_inf for 2 and 3 lengths, for all their shares and all values of |r|, with r the
    acceptance at a length over the mean acceptance, less 1.
    """
    del rng
    factor, found = _fraction(shrink), []
    for K in strata:
        p, y = _reals(" ".join(f"p{i}" for i in range(K))), _reals(" ".join(f"y{i}" for i in range(K)))
        (top,) = _reals("top")
        given = [*(x >= 0 for x in p), z3.Sum(p) == 1, *(z3.And(x >= 0, x <= top) for x in y)]
        first: Term = z3.Sum([a * b for a, b in zip(p, y, strict=True)])
        second: Term = z3.Sum([a * b * b for a, b in zip(p, y, strict=True)])
        found += [prove(first * first <= factor * second, *given), prove(second <= factor * top * top, *given)]
    return _all(*found)


def from_bound(rng: np.random.Generator, one_sided: bool = False, claimed: int = 2) -> Outcome:
    """Check the step of T3 and T4 from acceptances a(l) to LRE: |a(l) - a_bar| (a_0 - B) <= n B a_bar. Here a_bar is
    the mean of a(l) over lengths, a_0 the acceptance without an error of drift or scale, and B the bound on its change.
    It holds with n = 2 if all a(l) are within B of a_0, and with n = 1 if also no two of them differ by more than B.
    """
    del rng
    a, mean, a_0, bound, low, high = _reals("a a_bar a_0 B low high")
    given = [bound >= 0, bound < a_0, low <= a, a <= high, low <= mean, mean <= high, low >= a_0 - bound]
    given.append(high - low <= bound if one_sided else high <= a_0 + bound)
    gap = z3.If(a >= mean, a - mean, mean - a)
    return prove(gap * (a_0 - bound) <= claimed * bound * mean, *given)


def one_sided_range(rng: np.random.Generator, factor: str = "1") -> Outcome:
    """Check a step of T3 (a wrong drift): the acceptances f(x) at drift errors x in [0, X] differ from each other by at
    most B(X). T3's bound |f(x) - f(0)| <= B(x) = D x + k x^2 is assumed at X and at the point m of [0, X] where f is
    largest.

    f rises up to m and falls after it; m = 0 if f falls on all of [0, X]. If m < X, f(m) - f(X) <= k (X - m)^2. D is
    |phi(u_hi) - phi(u_lo)| and k is phi(1), with phi the normal density and u_lo, u_hi the ranges.
    """
    del rng
    f_0, f_p, f_x, slope, k, m, x = _reals("f_0 f_p f_X D k m X")
    shrunk = _fraction(factor) * k

    def bound(at: Term, constant: Term) -> Term:
        return slope * at + constant * at * at

    given = [slope >= 0, k > 0, x > 0, m >= 0, m <= x, f_p >= f_0, f_p >= f_x, f_p - f_0 <= bound(m, k)]
    given += [f_x - f_0 <= bound(x, k), f_0 - f_x <= bound(x, k)]
    given += [z3.Implies(m == 0, f_p == f_0), z3.Implies(m == x, f_p == f_x)]
    given += [z3.Implies(z3.And(m > 0, m < x), f_p - f_x <= k * (x - m) * (x - m))]
    least = z3.If(f_0 <= f_x, f_0, f_x)
    return prove(f_p - least <= bound(x, shrunk), *given)


CHECKS = (
    Check("T3", Method.SYMBOLIC, "z3: the range is at most B when drift errors share a sign", one_sided_range, {
        "constant x 9/10": partial(one_sided_range, factor="9/10"),
    }),
    Check("T3", Method.SYMBOLIC, "z3: LRE_inf <= 2B/(a_0 - B) from |a - a_0| <= B", from_bound, {
        "factor 1 for 2": partial(from_bound, claimed=1),
    }),
    Check(
        "T4",
        Method.SYMBOLIC,
        "z3: LRE_inf <= B/(a_0 - B) from a range of at most B",
        partial(from_bound, one_sided=True, claimed=1),
        {"range of 2B": partial(from_bound, claimed=1)},
    ),
    Check("T7", Method.SYMBOLIC, "z3: the scalar core", cosine_core, {
        "rho^2 x 19/20": partial(cosine_core, factor="19/20"),
    }),
    Check("T7", Method.SYMBOLIC, "z3: sqrt(1 - rho^2) >= (1 - rho)/(1 + rho)", last_step, {
        "1 - rho/2 for 1 - rho": partial(last_step, share="1/2"),
    }),
    Check("T7", Method.SYMBOLIC, "z3: LRE_1 <= LRE_2 <= LRE_inf for K = 2, 3", lre_order, {
        "constant 9/10": partial(lre_order, shrink="9/10"),
    }),
)  # fmt: skip
