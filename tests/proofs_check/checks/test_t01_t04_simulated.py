"""The checks over the further models: their helpers by hand, and each breaks when a model, rule or formula is broken.

That every check passes as stated and its controls fail is tested with the whole catalogue.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fspo import theory
from fspo.rules import Rule
from proofs_check.checks import t01_t04_simulated as model_checks
from proofs_check.checks import t05_t09_simulated as joint_checks
from proofs_check.frame import ALPHA, Check, judge
from proofs_check.models import (
    AdvantageDrift,
    FractionalNoise,
    Heteroscedastic,
    MarkovTokens,
    ScaledStudent,
    ShiftedLengths,
    StudentTokens,
)
from proofs_check.tools.compare import within

CHECKS = (*model_checks.CHECKS, *joint_checks.CHECKS)


def find(part: str) -> Check:
    (found,) = [check for check in CHECKS if part in check.name]
    return found


def fails(part: str) -> bool:
    """Whether the claim is called false with a family of a hundred checks, or raises no pass."""
    outcome = find(part).run(np.random.default_rng(3))
    return judge(outcome, None if outcome.p_value is None else 100 * outcome.p_value) == "fail"


def test_within_is_the_exact_binomial_test_of_both_sides():
    inside = within([500, 300], 1000, [0.45, 0.2], [0.55, 0.4], wanted=0.1)
    assert inside.p_value == 1
    assert judge(inside) == "pass"
    below = within([500, 300], 1000, [0.45, 0.4], [0.55, 0.6], wanted=0.1)
    assert below.p_value == pytest.approx(4 * stats.binom.cdf(300, 1000, 0.4))
    above = within([500, 300], 1000, [0.3, 0.2], [0.4, 0.4], wanted=0.1)
    assert above.p_value == pytest.approx(4 * stats.binom.sf(499, 1000, 0.4))
    assert below.p_value < ALPHA
    assert above.p_value < ALPHA
    coarse = within([5], 10, [0.1], [0.9], wanted=0.1)
    assert judge(coarse) == "undecided"
    assert coarse.resolution == pytest.approx(4 * np.sqrt(0.25 / 10))


def double(method):
    return lambda self, *args: 1.1 * method(self, *args)


@pytest.mark.parametrize(
    ("part", "owner", "name", "broken"),
    [
        ("unfair under fractional", FractionalNoise, "_variance", double(FractionalNoise._variance)),
        ("power of l", Heteroscedastic, "_variance", double(Heteroscedastic._variance)),
        ("heavy tails", ScaledStudent, "_variance", lambda self, n: self.sigma**2 * n**1.05),
        ("c l^H is fair", FractionalNoise, "_variance", lambda self, n: self.sigma**2 * n**1.2),
        ("inverted transform", StudentTokens, "cdf", lambda self, s, n: stats.norm.cdf(s, self.mu * n, 0.03 * n**0.5)),
        ("Berry-Esseen envelope", StudentTokens, "cdf", lambda self, s, n: 0.1 * (np.asarray(s) > 0)),
        ("exact mixture", MarkovTokens, "sample_occupation", lambda self, rng, n: rng.binomial(n.astype(int), 0.2)),
        ("exact mixture", MarkovTokens, "_given", lambda self, k, n: (self.mu * n, self.sigma * n**0.5)),
        ("to the long-run law", MarkovTokens, "within", property(lambda self: 0.4 * self.sigma**2)),
        ("to the long-run law", MarkovTokens, "between", property(lambda self: self.mean_part * self.sigma**2)),
        ("by recursion", MarkovTokens, "_variance", lambda self, n: self.sigma**2 * n),
        ("by recursion", MarkovTokens, "occupation_law", lambda self, n: np.full(n + 1, 1 / (n + 1))),
        ("p_new/p_old", ShiftedLengths, "_stopping", property(lambda self: 0.0)),
        ("E_old[exp S] = 1", ShiftedLengths, "_going_on", property(lambda self: 0.0)),
        ("breaks fairness", AdvantageDrift, "positive_share", lambda self, n: np.full(np.shape(n), 0.3)),
        ("a_0 +- B_l", theory, "drift_error_bound", lambda *u: 0.8 * u[2] ** 2 * theory.PHI_1),
        ("in a_0 +- 2 phi(1) tau", theory, "scale_error_bound", lambda tau: 1.7 * theory.PHI_1 * tau),
    ],
)
def test_a_broken_model_or_formula_is_found(monkeypatch, part, owner, name, broken):
    assert not fails(part)
    monkeypatch.setattr(owner, name, broken)
    assert fails(part)


def off_centre(self, n, m=None):
    below, above = self.half_widths(n)
    centre = self.sum_centre(n, m)
    return centre - below, centre + 1.05 * above * n**0.01


# T4 take their exact laws on the rule's own band, and T5 has no band
ON_THE_BAND = [c for c in CHECKS if c.method == "simulated" and c.statement not in ("T4", "T5")]


@pytest.mark.parametrize("check", ON_THE_BAND, ids=lambda check: check.key)
def test_a_broken_rule_is_found(monkeypatch, check):
    monkeypatch.setattr(Rule, "band", off_centre)
    outcome = check.run(np.random.default_rng(3))
    assert judge(outcome, 100 * outcome.p_value) == "fail"
