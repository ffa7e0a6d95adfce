"""The searches for counterexamples to T7, and the judge with many digits that has the last word."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

from fspo import theory
from proofs_check.checks import t07_attacked as attacks
from proofs_check.checks.t07_attacked import (
    hypothesis_search,
    maximise,
    random_search,
)
from proofs_check.frame import Verdict, judge
from proofs_check.tools.lemma_claims import (
    STATED,
    Strata,
    exact_terms,
    float_terms,
    judge_exactly,
    shrunk,
)
from proofs_check.tools.lemma_search import Judged, random_strata


def sharp(rho: float, eps: float = 0.5) -> Strata:
    """T7s by hand: g = (1, 0), e = eps v with |e| = rho and <e, g + e> = 0."""
    e = np.array([-rho * rho, rho * math.sqrt(1 - rho * rho)])
    g, v = np.array([1.0, 0.0]), e / eps
    return Strata(np.ones(2), np.array([1 + eps, 1 - eps]), np.stack([g + v, g - v]), np.zeros((2, 2)))


def by_mpmath(case: Strata) -> dict[str, Any]:
    """T7's quantities at 60 digits, in loops."""
    p = [mpmath.mpf(x) for x in case.p]
    p = [x / mpmath.fsum(p) for x in p]
    a, (K, D) = [mpmath.mpf(x) for x in case.a], case.g.shape
    g = [[mpmath.mpf(x) for x in row] for row in case.g]
    c = [[mpmath.mpf(x) for x in row] for row in case.clipped]
    mean = mpmath.fsum(x * y for x, y in zip(p, a, strict=True))
    total, cut = ([mpmath.fsum(p[k] * m[k][d] for k in range(K)) for d in range(D)] for m in (g, c))

    def norm(x):
        return mpmath.sqrt(mpmath.fsum(y * y for y in x))

    r = [x / mean - 1 for x in a]
    spread = [norm([x - y for x, y in zip(row, total, strict=True)]) for row in g]
    inner = [norm([c[k][d] / a[k] - g[k][d] for d in range(D)]) if a[k] else 0 for k in range(K)]
    cosine = mpmath.fsum(x * y for x, y in zip(total, cut, strict=True)) / norm(total) / norm(cut)
    return {
        "lre_inf": max(abs(x) for x in r),
        "lre_2": mpmath.sqrt(mpmath.fsum(p[k] * r[k] ** 2 for k in range(K))),
        "kappa": mpmath.fsum(p[k] * norm(g[k]) for k in range(K)) / norm(total),
        "kappa_c": mpmath.fsum(p[k] * spread[k] for k in range(K)) / norm(total),
        "kappa_c2": mpmath.sqrt(mpmath.fsum(p[k] * spread[k] ** 2 for k in range(K))) / norm(total),
        "eta": mpmath.fsum(p[k] * a[k] / mean * inner[k] for k in range(K)) / norm(total),
        "sine": mpmath.sqrt(max(1 - cosine**2, 0)),
    }


@pytest.mark.parametrize("seed", range(6))
def test_the_judge_has_the_values_of_plain_loops(seed):
    case = random_strata(np.random.default_rng(seed))
    case = Strata(case.p[:12], case.a[:12], case.g[:12], case.delta[:12])
    if case.a.max() == 0:
        case.a[0] = 1.0
    found = exact_terms(case)
    with mpmath.workdps(60):
        for name, exact in by_mpmath(case).items():
            assert abs(mpmath.mpf(str(getattr(found, name))) - exact) <= mpmath.mpf("1e-25") * (1 + exact), name
    floats = case.terms()
    for name in ("lre_inf", "lre_2", "kappa", "kappa_c2", "eta", "sine"):
        assert float(getattr(floats, name)) == pytest.approx(float(getattr(found, name)), rel=1e-6, abs=1e-9)


def test_complex_step_is_the_gradient():
    rng = np.random.default_rng(0)
    unpack, n = attacks._free(3, 2, with_delta=True, even=False)
    x, h = 0.5 * rng.standard_normal(n) + 0.2, 1e-6
    steps = STATED.floats(float_terms(*unpack(x + 1e-30j * np.eye(n)))).imag * 1e30
    up, down = (STATED.floats(float_terms(*unpack(x + s * h * np.eye(n)))) for s in (1, -1))
    np.testing.assert_allclose(steps, (up - down) / (2 * h), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("rho", [1e-4, 0.3, 0.999])
def test_the_sharp_case_has_no_slack(rho):
    found = judge_exactly(sharp(rho))
    assert found.suite == ""
    assert found.slack is not None
    # the inputs are rounded to float64, so the case is sharp to about that
    assert 0 <= found.slack + 1e-11 < 2e-11
    assert judge_exactly(sharp(rho), shrunk(STATED, 0.99), suite=False).slack < -0.01


def test_a_case_by_hand_in_fractions():
    # p = 1/2, 1/2; a = 3/2, 1/2; g = (1, 1), (1, -1): r = +-1/2, e = (0, 1/2), sine of (1, 1/2) is 1/sqrt 5
    case = Strata(np.array([0.5, 0.5]), np.array([1.5, 0.5]), np.array([[1.0, 1.0], [1.0, -1.0]]), np.zeros((2, 2)))
    terms = exact_terms(case)
    for value, square in ((terms.lre_inf, Fraction(1, 4)), (terms.kappa_c, Fraction(1)), (terms.kappa, Fraction(2)),
                          (terms.sine, Fraction(1, 5))):  # fmt: skip
        assert abs(float(value * value) - float(square)) < 1e-15
    # rho = min(1/2 sqrt 2, 1/2, 1/2) = 1/2
    assert judge_exactly(case).slack == pytest.approx(1 - 2 / math.sqrt(5), rel=1e-14)


def test_no_guarantee_and_backward_updates():
    backward = Strata(np.ones(2), np.array([1.0, 0.0]), np.array([[-1.0], [3.0]]), np.zeros((2, 1)))
    assert judge_exactly(backward).slack is None  # rho >= 1: nothing is promised
    assert judge_exactly(backward, shrunk(STATED, 1e-3), suite=False).slack == -1.0
    alone = Strata(np.ones(1), np.ones(1), np.array([[1.0, 2.0]]), np.zeros((1, 2)))
    assert judge_exactly(alone).slack is None  # nothing lost, nothing to compare
    assert Judged(STATED).outcome(1).margin != 0  # and no cases at all are undecided
    assert judge(Judged(STATED).outcome(1)) is Verdict.UNDECIDED


def test_the_same_generator_gives_the_same_search(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notes = [hypothesis_search(np.random.default_rng(6), shrunk(STATED, 0.8)).note for _ in range(2)]
    assert notes[0] == notes[1]
    assert list(tmp_path.iterdir()) == []  # nothing is kept


@pytest.mark.parametrize("wrong", [0.999, 1.001])
def test_a_wrong_rho_in_the_code_is_found(monkeypatch, wrong):
    from dataclasses import replace

    original = theory.cosine_lemma
    monkeypatch.setattr(theory, "cosine_lemma", lambda *x: replace(lemma := original(*x), rho=lemma.rho * wrong))
    outcome = random_search(np.random.default_rng(8), cases=100)
    assert outcome.margin < 0
    assert "theory gives" in outcome.note


def test_a_missing_bound_in_the_code_is_found(monkeypatch):
    from dataclasses import replace

    original = theory.cosine_lemma
    monkeypatch.setattr(theory, "cosine_lemma", lambda *x: replace(original(*x), bound=None))
    assert "no bound" in random_search(np.random.default_rng(8), cases=100).note


def test_maximise_climbs():
    rng = np.random.default_rng(9)
    unpack, n = attacks._free(2, 2, with_delta=False, even=True)
    x0 = rng.standard_normal(n) * 0.3 + 0.5
    start = Strata(*unpack(x0))
    before, after = (judge_exactly(case).slack for case in (start, maximise(STATED, unpack, x0, 200)))
    assert after is not None
    assert after < 1e-9
    assert before is None or before > 1e-3
