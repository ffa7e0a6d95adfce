"""Computer algebra and the SMT solver: neither tool's silence counts as a proof, and counterexamples are ones.

That every check passes as stated and its controls fail is tested with the whole catalogue.
"""

from __future__ import annotations

import math

import numpy as np
import sympy as sp
import z3

from proofs_check.checks import t02_t13_symbolic as symbolic
from proofs_check.checks import t03_t07_symbolic as solver
from proofs_check.frame import Verdict, judge


def test_an_identity_a_difference_and_an_open_case():
    rng = np.random.default_rng(0)
    x = sp.symbols("x", positive=True)
    assert symbolic.vanish([sp.sin(x) ** 2 + sp.cos(x) ** 2 - 1], rng).margin == 0
    assert symbolic.vanish([(x + 1) ** 2 - x**2 - 2 * x - 1, x * sp.Rational(1, 10**6)], rng).margin < 0
    assert math.isnan(symbolic.vanish([], rng).margin)
    # 0 only on the points that are tried: not called true, not called false
    hidden = sp.Function("F")(x)
    assert judge(symbolic.vanish([hidden], rng)) is Verdict.UNDECIDED


def test_the_solver_proves_refutes_and_gives_up():
    x, y = z3.Reals("x y")
    assert solver.prove(x * x + y * y >= 2 * x * y).margin == 1
    refuted = solver.prove(x * x >= x)
    assert refuted.margin == -1
    assert "x = " in refuted.note
    assert math.isnan(solver.prove(x >= 0, x > 1, x < 1).margin)
    # Cauchy-Schwarz on raw vectors of 12 dimensions: no answer in 30 ms, which is no proof
    u, v = z3.Reals(" ".join(f"u{i}" for i in range(12))), z3.Reals(" ".join(f"v{i}" for i in range(12)))
    dot = z3.Sum([a * b for a, b in zip(u, v, strict=True)])
    norms = z3.Sum([a * a for a in u]) * z3.Sum([b * b for b in v])
    outcome = solver.prove(dot * dot * dot * dot <= norms * norms, limit=30)
    assert judge(outcome) is Verdict.UNDECIDED
    assert "no answer" in outcome.note


def test_a_refuted_part_outweighs_an_open_one():
    proved, refuted, open_ = (solver.Outcome(margin) for margin in (1.0, -1.0, math.nan))
    assert solver._all(proved, open_, refuted).margin == -1
    assert math.isnan(solver._all(proved, open_).margin)
    assert solver._all(proved, proved).margin == 1


def test_the_counterexample_to_a_smaller_constant_is_one():
    note = solver.cosine_core(np.random.default_rng(0), factor="19/20").note
    value = dict(part.split(" = ") for part in note.removeprefix("counterexample ").split(", "))
    alpha, beta, gamma, rho = (sp.Rational(value[name]) for name in ("alpha", "beta", "gamma", "rho"))
    assert beta**2 <= alpha * gamma
    assert gamma <= rho**2 * alpha
    assert (alpha + beta) ** 2 < (1 - sp.Rational(19, 20) * rho**2) * alpha * (alpha + 2 * beta + gamma)
