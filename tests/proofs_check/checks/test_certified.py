"""Ball arithmetic: enclosures against mpmath and grids, subdivision, and certified checks against broken code.

That every check passes as stated and its controls fail is tested with the whole catalogue.
"""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from flint import arb
from hypothesis import given, settings
from hypothesis import strategies as st

from fspo import theory
from fspo.base.errors import UserError
from proofs_check.checks import t01_t02_certified as certified_fairness
from proofs_check.checks import t03_certified_lengths as certified_lengths
from proofs_check.checks import t03_t04_certified as certified
from proofs_check.checks import t05_t13_certified as certified_laws
from proofs_check.frame import Verdict, judge
from proofs_check.tools import balls
from proofs_check.tools.balls import certify, decide, inside, lre_enclosure, with_precision

MODULES = (certified, certified_fairness, certified_laws, certified_lengths)
CHECKS = [check for module in MODULES for check in module.CHECKS]


def exact_lre(u_lo: float, u_hi: float, x_max: float, points: int = 200) -> float:
    """Largest a over least a minus 1 on a grid of drift errors in [0, x_max], at 40 digits."""
    with mp.workdps(40):
        grid = [mp.mpf(x_max) * k / points for k in range(points + 1)]
        a = [mp.ncdf(u_hi + x) - mp.ncdf(x - u_lo) for x in grid]
        return float(max(a) / min(a) - 1)


@given(st.floats(0.05, 4), st.floats(0.05, 4), st.floats(0.0, 3))
@settings(max_examples=25)
def test_lre_enclosure_holds_the_value_and_is_tight(u_lo, u_hi, x_max):
    low, high = lre_enclosure(u_lo, u_hi, 0.0, x_max)
    grid = exact_lre(u_lo, u_hi, x_max)
    # a grid can only miss the peak, by a term of second order in its step
    assert grid <= high * (1 + 1e-12) + 1e-15
    assert low <= grid + max(1e-12, 0.5 * (x_max / 200) ** 2 * (1 + grid) / min(u_lo, u_hi, 1.0))
    assert high - low <= 1e-13 * (1 + high)


def test_lre_enclosure_over_ranges_holds_the_values_inside():
    low, high = lre_enclosure((0.9, 1.1), (0.95, 1.3), 0.0, 0.8)
    rng = np.random.default_rng(0)
    values = [exact_lre(float(rng.uniform(0.9, 1.1)), float(rng.uniform(0.95, 1.3)), 0.8) for _ in range(15)]
    corners = [exact_lre(a, b, 0.8) for a in (0.9, 1.1) for b in (0.95, 1.3)]
    assert low <= min(values + corners)
    assert max(values + corners) <= high
    # not much wider than what the corners span: the enclosure is of use
    assert high - low < 1.3 * (max(corners) - min(corners))


def test_enclosure_is_zero_at_no_drift_and_follows_the_sign():
    low, high = lre_enclosure(1.0, 1.5, 0.0, 0.0)
    assert low == 0.0
    assert high < 1e-15
    low, high = lre_enclosure(1.0, 1.5, 0.0, 1.0)
    assert low <= exact_lre(1.0, 1.5, 1.0) <= high * (1 + 1e-12)
    # a negative drift error is a positive one with the ranges exchanged
    low, high = lre_enclosure(1.0, 1.5, -1.0, 0.0)
    assert low <= exact_lre(1.5, 1.0, 1.0) <= high * (1 + 1e-6)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((0.0, 1.0, 0.0, 1.0), "u_lo"),
        ((1.0, (2.0, 1.0), 0.0, 1.0), "u_hi"),
        ((1.0, math.nan, 0.0, 1.0), "u_hi"),
        ((1.0, 1.0, 1.0, 0.0), "drift errors"),
        ((1.0, 1.0, 0.0, math.inf), "drift errors"),
    ],
)
def test_bad_ranges_are_refused(arguments, word):
    with pytest.raises(UserError, match=word):
        lre_enclosure(*arguments)


def test_subdivision_proves_refutes_and_gives_up():
    def above(t, floor):
        return (t.ball - 1) ** 2 - arb(floor)

    assert certify(lambda t: above(t, -0.01), [((-2.0, 3.0),)]).margin >= 0
    found = certify(lambda t: above(t, 0.01), [((-2.0, 3.0),)])
    assert found.margin < 0
    assert abs(found.witness[0] - 1) < 0.1
    # touches 0 at 1: neither proved nor refuted by subdivision
    stuck = certify(lambda t: (t.ball - 1) * (t.ball - 1), [((-2.0, 3.1),)], cap=300)
    assert math.isnan(stuck.margin)
    assert judge(stuck.outcome("")) is Verdict.UNDECIDED
    assert math.isnan(certify(lambda t: arb("nan"), [((0.0, 1.0),)], cap=50).margin)


def test_a_straddling_enclosure_decides_nothing():
    assert decide([arb(1), arb(0.5, 0.1)], "").margin == pytest.approx(0.4)
    assert decide([arb(1), arb(-0.5, 0.1)], "").margin == pytest.approx(-0.4)
    assert math.isnan(decide([arb(1), arb(0, 1)], "").margin)
    assert math.isnan(decide([arb("nan")], "").margin)
    assert math.isnan(decide([], "").margin)
    assert math.isnan(inside([1.0], [arb(0, 1)], 1e-3).margin)
    assert inside([1.0 + 1e-4], [arb(1)], 1e-3).margin == pytest.approx(1, abs=1e-3)


@given(st.floats(-40, 40), st.floats(1e-6, 5))
@settings(max_examples=60)
def test_probability_encloses_mpmath(lo, width):
    hi = lo + width
    with mp.workdps(60):
        a, b = (mp.mpf(lo), mp.mpf(hi)) if lo <= 0 else (-mp.mpf(hi), -mp.mpf(lo))
        value = (mp.erfc(-b / mp.sqrt(2)) - mp.erfc(-a / mp.sqrt(2))) / 2
        ball = with_precision(320)(lambda: balls.normal_probability(arb(lo), arb(hi)))()
        assert abs(value / mp.mpf(ball.mid().str(50, radius=False)) - 1) < 1e-30


def test_sums_over_lengths_equal_plain_sums():
    u_lo, u_hi, step, length = 1.2, 0.9, 0.01, 3_000
    l = np.arange(1.0, length + 1)
    a = theory.interval_probability(step * np.sqrt(l) - u_lo, u_hi + step * np.sqrt(l))
    for power in (0, 1):
        p = l**-power / np.sum(l**-power)
        mean = float(p @ a)
        r = a / mean - 1
        expected = (mean, np.abs(r).max(), math.sqrt(p @ r**2))
        found = with_precision(128)(certified_lengths.sums_over_lengths)(arb(u_lo), arb(u_hi), arb(step), length, power)
        for ball, value in zip(found, expected, strict=True):
            low, high = balls.outward(ball)
            assert low - 1e-12 <= value <= high + 1e-12
            assert high - low < 1e-6 * high


def scaled(name: str, factor: float):
    original = getattr(theory, name)
    return lambda *args, **kwargs: original(*args, **kwargs) * factor


BROKEN = [
    ("T2", "gspo's numbers", "band_acceptance", scaled("band_acceptance", 1 + 1e-9)),
    ("T3", "supremum", "PHI_1", theory.PHI_1 * (1 + 1e-12)),
    ("T3", "B_l for all", "drift_error_bound", scaled("drift_error_bound", 1 + 1e-9)),
    ("T3", "float64", "interval_probability", scaled("interval_probability", 1 + 1e-9)),
    ("T3", "float64", "band_acceptance", scaled("band_acceptance", 1 + 1e-7)),
    ("T3", "1..1e6", "band_acceptance", scaled("band_acceptance", 1 + 1e-5)),
    ("T4", "all ranges", "scale_error_bound", scaled("scale_error_bound", 1 + 1e-9)),
    ("T5", "binomial", "berry_esseen_bound", scaled("berry_esseen_bound", 1 + 1e-9)),
    ("T6", "fractions", "ar1_variance_ratio", scaled("ar1_variance_ratio", 1 + 1e-9)),
    ("T10", "upper edge", "upper_edge_supremum", scaled("upper_edge_supremum", 1 + 1e-9)),
    ("T13", "quadrature", "weight_acceptance", scaled("weight_acceptance", 1 + 1e-8)),
]


@pytest.mark.parametrize(("statement", "part", "name", "broken"), BROKEN, ids=lambda x: x if isinstance(x, str) else "")
def test_a_broken_formula_is_found(monkeypatch, statement, part, name, broken):
    (check,) = [check for check in CHECKS if check.statement == statement and part in check.name]
    monkeypatch.setattr(theory, name, broken)
    outcome = check.run(np.random.default_rng(3))
    assert judge(outcome) is Verdict.FAIL, outcome
