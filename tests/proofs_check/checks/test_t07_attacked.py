"""The searches for counterexamples to T7, and the judge with many digits that has the last word."""

from __future__ import annotations

import math
from fractions import Fraction

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
    judge_exactly,
    shrunk,
)
from proofs_check.tools.lemma_search import Judged


def sharp(rho: float, eps: float = 0.5) -> Strata:
    """T7s by hand: g = (1, 0), e = eps v with |e| = rho and <e, g + e> = 0."""
    e = np.array([-rho * rho, rho * math.sqrt(1 - rho * rho)])
    g, v = np.array([1.0, 0.0]), e / eps
    return Strata(np.ones(2), np.array([1 + eps, 1 - eps]), np.stack([g + v, g - v]), np.zeros((2, 2)))


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
