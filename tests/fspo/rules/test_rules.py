"""The rules against hand-worked edges and weights, mpmath, and properties."""

import math
from dataclasses import replace
from typing import get_args

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_run import RULES, STATS

from fspo.base.errors import UserError
from fspo.rules import (
    MAX_EXPONENT,
    DriftStats,
    Outside,
    Rule,
    calibrate,
    check_ratios,
    correction,
    drift_stats,
    excess_quantiles,
    preset,
    scaled,
    standardized_excess,
    token_sums,
)

BOUNDED_RULES = [name for name, rule in RULES.items() if rule.level == "sequence" and name != "none"]

# name, n, lo, hi: worked by hand from docs/theory.md section 2
EDGES = [
    ("none", 4, -math.inf, math.inf),
    ("rloo", 400, -0.2231435513, 0.1823215568),  # log .8, log 1.2
    ("gspo", 1000, -0.3000450090, 0.3999200213),  # 1000 log .9997, 1000 log 1.0004
    ("fspo", 400, -0.6, 0.6),  # .03 * 20
    ("fspo-kl", 4, -0.10, 0.02),  # -4 * .01 -+ .06
    ("gaussian", 4, -0.14, -0.02),  # -4 * .04 / 2 -+ .06
    ("tilted", 4, 0.02, 0.14),  # +4 * .04 / 2 -+ .06
    ("fspo-adaptive", 100, -0.3, 0.3),  # where it starts
    ("power", 16, -0.24, 0.24),  # .03 * 16^.75 = .03 * 8
    ("grpo", 1, -0.2231435513, 0.1823215568),
]


@pytest.mark.parametrize(("name", "n", "lo", "hi"), EDGES)
def test_edges_of_every_preset(name, n, lo, hi):
    rule = RULES[name]
    found = rule.band(np.array([float(n)]), rule.centre(STATS))
    np.testing.assert_allclose(np.concatenate(found), [lo, hi], rtol=1e-9, atol=1e-10)


def test_asymmetric_edges():
    lo, hi = Rule("power", 0.01, 0.02, gamma=2.0).band(np.array([10.0]))
    assert (lo[0], hi[0]) == pytest.approx((-1.0, 2.0))
    lo, hi = Rule("linear", 0.5, 1.0).band(np.array([3.0]))
    assert (lo[0], hi[0]) == pytest.approx((-3 * math.log(2), 3 * math.log(2)))


# outside, dual, S, A -> side, multiplier, clipped weight, edge weight; the band is [-.06, .06] (sqrt, .03, n = 4)
CASES = [
    ("drop", None, 0.10, 1.0, 1, 0.0, 0.0, math.exp(0.06)),
    ("drop", None, -0.10, -1.0, -1, 0.0, 0.0, math.exp(-0.06)),
    ("drop", 3.0, 0.19, -1.0, 2, 0.0, 0.0, math.exp(0.18)),  # dual edge 3 * .06
    ("drop", 3.0, 0.17, -1.0, 0, 1.0, math.exp(0.17), math.exp(0.17)),
    ("truncate", None, 0.10, 1.0, 1, math.exp(-0.04), math.exp(0.06), math.exp(0.06)),
    ("truncate", None, -0.10, -1.0, -1, math.exp(0.04), math.exp(-0.06), math.exp(-0.06)),  # M > 1
    ("truncate", 3.0, 0.20, -1.0, 2, math.exp(-0.02), math.exp(0.18), math.exp(0.18)),
    ("cap", None, 0.10, -1.0, 1, math.exp(-0.04), math.exp(0.06), math.exp(0.06)),
    ("cap", None, -0.10, -1.0, 0, 1.0, math.exp(-0.10), math.exp(-0.10)),
]


@pytest.mark.parametrize(("outside", "dual", "S", "A", "side", "m", "clipped", "edge"), CASES)
def test_apply_by_hand(outside, dual, S, A, side, m, clipped, edge):
    applied = Rule("sqrt", 0.03, 0.03, outside=outside, dual=dual).apply(
        np.array([S], float), np.array([4]), np.array([A])
    )
    assert applied.side[0] == side
    np.testing.assert_allclose(
        [applied.multiplier[0], applied.clipped_weight[0], applied.edge_weight[0], applied.weight[0]],
        [m, clipped, edge, math.exp(S)],
        rtol=1e-12,
    )
    assert applied.in_band[0] == (abs(S) <= 0.06)


def test_what_each_way_outside_the_band_cuts():
    """A response with A = 0 or without a log-ratio is never cut."""
    S, A = np.array([-9.0, -9.0, 9.0, 9.0, -9.0, 9.0, np.nan]), np.array([1.0, -1.0, 1.0, -1.0, 0.0, 0.0, 1.0])
    applied = {way: Rule("sqrt", 0.1, 0.1, outside=way).apply(S, np.full(7, 4.0), A) for way in get_args(Outside)}
    sides = {"drop": [0, -1, 1, 0], "truncate": [0, -1, 1, 0], "cap": [0, 0, 1, 1], "mask": [-1, -1, 1, 1]}
    assert {way: found.side.tolist() for way, found in applied.items()} == {k: [*v, 0, 0, 0] for k, v in sides.items()}
    for found in applied.values():
        assert found.multiplier[4:].tolist() == [1, 1, 1]
        assert np.isnan(found.weight[6])
        assert not found.in_band[6]


def test_dual_edge_is_measured_from_the_drift():
    # gaussian drift: centre -.08, hi -.02, so the dual edge at d=3 is -.08 + 3 * .06 = .10
    rule = Rule("sqrt", 0.03, 0.03, drift="gaussian", dual=3.0)
    applied = rule.apply(np.array([0.09, 0.11]), np.array([4, 4]), np.array([-1.0, -1.0]), rule.centre(STATS))
    assert applied.side.tolist() == [0, 2]
    assert applied.edge_weight[1] == pytest.approx(math.exp(0.10))


def test_exponent_cap_and_extremes():
    S, n, A = np.array([25.0, 1e4, -1e4, 19.0]), np.full(4, 131_072.0), np.array([1.0, 1.0, -1.0, 1.0])
    applied = Rule("none").apply(S, n, A)
    assert applied.capped.tolist() == [True, True, False, False]
    np.testing.assert_allclose(applied.weight, np.exp([MAX_EXPONENT, MAX_EXPONENT, -1e4, 19.0]))
    # truncate, A < 0, S far below lo: M = exp(lo - S) overflows and is held, the clipped weight is exact
    applied = RULES["truncate"].apply(np.array([-1e4]), np.array([4]), np.array([-1.0]))
    assert applied.clipped_weight[0] == pytest.approx(math.exp(-0.06))
    assert applied.multiplier[0] == pytest.approx(math.exp(80))
    # a response is capped by its own S, not by the edge that holds it: an edge of .06, then one of 30
    assert RULES["truncate"].apply(np.array([25.0]), np.array([4]), np.array([1.0])).capped.all()
    far = Rule("fixed", 0.2, math.exp(30) - 1).apply(np.array([19.0, 35.0]), np.array([4, 4]), np.array([1.0, 1.0]))
    assert far.capped.tolist() == [False, True]
    # S above the cap and held at an edge below it: M w is the edge's weight, so M = exp(.06 - 20)
    applied = RULES["truncate"].apply(np.array([60.0]), np.array([4]), np.array([1.0]))
    assert applied.multiplier[0] == pytest.approx(math.exp(0.06 - 20))
    assert applied.multiplier[0] * applied.weight[0] == pytest.approx(applied.clipped_weight[0])


@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(RULES)),
    rows=st.lists(
        st.tuples(st.floats(-30, 30), st.integers(1, 10_000), st.sampled_from([-1.5, 0.0, 0.7])), min_size=1, max_size=8
    ),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_numpy_and_torch_agree(name, rows, dtype):
    S, n, A = (np.array(x, dtype=dtype) for x in zip(*rows, strict=True))
    rule = RULES[name]
    ours = rule.apply(S, n, A, rule.centre(STATS))
    S, n, A = (torch.as_tensor(x) for x in (S, n, A))
    theirs = rule.apply(S, n, A, rule.centre(STATS))
    for field in ours._fields:
        x, y = getattr(ours, field), getattr(theirs, field).numpy()
        if x.dtype.kind == "f":
            np.testing.assert_allclose(x, y, rtol=1e-5 if dtype == "float32" else 1e-13, err_msg=field)
        else:
            np.testing.assert_array_equal(x, y, err_msg=field)


rules_with_a_band = st.builds(
    lambda name, outside, dual, hi: replace(
        RULES[name],
        outside=outside,
        dual=None if outside == "cap" else dual,
        **({"range_hi": hi} if RULES[name].shape in ("sqrt", "power") else {}),
    ),
    st.sampled_from(BOUNDED_RULES),
    st.sampled_from(["drop", "truncate", "cap"]),
    st.sampled_from([None, 2.0]),
    st.floats(0.01, 0.1),
)


def _rows(seed, size=200):
    rng = np.random.default_rng(seed)
    n = rng.integers(1, 500, size).astype(float)
    return rng.normal(0, 0.05, size) * np.sqrt(n), n, rng.choice([-1.0, 0.0, 1.0], size, p=[0.4, 0.2, 0.4])


STATS_SMALL = DriftStats(k3_sum=1.25e-3, sum_sq=2.5e-3, num_tokens=1.0)


@settings(max_examples=60)
@given(rule=rules_with_a_band, seed=st.integers(0, 10**6), factor=st.floats(0.2, 3))
def test_excess_is_the_factor_at_which_a_row_is_just_accepted(rule, seed, factor):
    S, n, A = _rows(seed, 50)
    m = rule.centre(STATS_SMALL)
    applied = scaled(rule, factor).apply(S, n, A, m)
    for rate, accepted in (("band", applied.in_band), ("update", (applied.side == 0)[A != 0])):
        excess = standardized_excess(rule, S, n, A, m, rate)
        clear = np.abs(excess - factor) > 1e-9
        np.testing.assert_array_equal((excess <= factor)[clear], accepted[clear])


def test_calibrate_by_hand():
    # fspo, n = 100 (root 10): |S|/(.03*10) = 1, 2, 2, 4; 75 % asks for a factor between 2 and 4, midway 3
    S, n = np.array([0.3, -0.6, 0.6, -1.2]), np.full(4, 100.0)
    assert calibrate(preset("fspo").rule, S, n, np.ones(4), 0.75).range_hi == pytest.approx(0.03 * 3)
    # half of four responses is two; the third has the excess of the second, so the factor is just above it
    factor = calibrate(preset("fspo").rule, S, n, np.ones(4), 0.5).range_hi / 0.03
    assert 2 < factor < 2 * (1 + 1e-8)


def test_token_sums_against_mpmath():
    s = np.array([[1e-3, -2.0, math.nan], [0.5, 0.25, -1e-6]])
    mask = np.array([[True, True, False], [True, False, True]])
    k3, sq, count = token_sums(s, mask)
    with mpmath.workdps(50):
        expected = [sum(mpmath.expm1(x) - mpmath.mpf(x) for x in row) for row in ([1e-3, -2.0], [0.5, -1e-6])]
    np.testing.assert_allclose(k3, [float(x) for x in expected], rtol=1e-12)
    np.testing.assert_allclose(sq, [4.000001, 0.25 + 1e-12])
    assert count.tolist() == [2, 2]
    stats = drift_stats(torch.as_tensor(s[:1]), torch.as_tensor(mask[:1])) + drift_stats(s[1:], mask[1:])
    assert stats.num_tokens == 4.0
    assert stats.k3 == pytest.approx(float(sum(expected)) / 4)
    assert stats.sigma2 == pytest.approx((4.000001 + 0.25 + 1e-12) / 4)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"shape": "sqr"}, "'sqrt'"),
        ({"shape": "sqrt"}, "range_lo"),
        ({"shape": "sqrt", "range_lo": math.nan, "range_hi": 0.1}, "range_lo"),
        ({"shape": "fixed", "range_lo": 1.1, "range_hi": 0.2}, "at most 1"),
        ({"shape": "fixed", "range_lo": 0.1, "range_hi": 0.1, "dual": 2.0, "outside": "mask"}, "'mask' already"),
        ({"shape": "fixed", "range_lo": 0.1, "range_hi": 0.1, "weight": "none", "outside": "cap"}, "'mask'"),
        ({"shape": "sqrt", "range_lo": 0.1, "range_hi": 0.1, "on": "sampler"}, "engine"),
        ({"shape": "none", "outside": "dropp"}, "'drop'"),
        ({"shape": "none", "drift": "kl"}, "drift"),
        ({"shape": "power", "range_lo": 0.1, "range_hi": 0.1}, "gamma"),
        ({"shape": "sqrt", "range_lo": 0.1, "range_hi": 0.1, "gamma": 0.5}, "gamma"),
        ({"shape": "power", "range_lo": 0.1, "range_hi": 0.1, "gamma": -0.5}, "gamma"),
        ({"shape": "fixed", "range_lo": 0.1, "range_hi": 0.1, "dual": 1.0}, "dual"),
        ({"shape": "fixed", "range_lo": 0.1, "range_hi": 0.1, "dual": 2.0, "outside": "cap"}, "cap"),
        ({"shape": "token", "range_lo": 0.1, "range_hi": 0.1, "weight": "geometric"}, "geometric"),
        ({"shape": "token", "range_lo": 0.1, "range_hi": 0.1, "drift": "kl"}, "drift"),
    ],
)
def test_impossible_rules_are_refused(fields, word):
    with pytest.raises(UserError, match=word):
        Rule(**fields)


def test_an_eps_cannot_express_any_width() -> None:
    rule = preset("rloo").rule
    rng = np.random.default_rng(0)
    S = 1e4 * rng.standard_normal(200)
    with pytest.raises(UserError, match="more than an eps can express"):
        calibrate(rule, S, np.ones(200), np.ones(200), 0.9)
    assert calibrate(preset("fspo").rule, S, np.ones(200), np.ones(200), 0.9).range_hi > 1e4  # a sqrt band can


def test_a_range_without_a_lower_edge_stays_so_when_scaled():
    rule = Rule("fixed", 1.0, 1.0, outside="mask")
    assert rule.half_widths(np.ones(1))[0] == math.inf
    assert scaled(rule, 2.0).range_lo == 1.0
    assert scaled(rule, 2.0).range_hi == pytest.approx(3.0)


def on(ratio):
    return Rule("sqrt", 0.1, 0.1, on=ratio)


ROWS = np.array([[0.1, 0.2], [4.0, 9.0], [1.0, -1.0]])  # S, n, A
LOOSE = on("update")
REFUSED = [
    (lambda: correction("engine-sqrt", on="update"), "is bounded by the clip rule"),
    (lambda: check_ratios(on("engine"), None), "does not change with the updates"),
    (lambda: check_ratios(LOOSE, on("update")), "is bounded by the clip rule"),
    (lambda: LOOSE.acceptance(*ROWS, rate="bands"), "did you mean 'band'"),
    (lambda: LOOSE.acceptance([0.1], [4.0], [0.0], rate="update"), "none with A != 0"),
    (lambda: calibrate(LOOSE, ROWS[0], ROWS[1], np.zeros(2), 0.5, rate="update"), "no rows"),
    (lambda: standardized_excess(LOOSE, *ROWS, m=math.nan), "centre m is not finite"),
    (lambda: excess_quantiles(np.array([math.inf]), [0.5], "fspo"), "no rows to calibrate on"),
    (lambda: preset("fspo-cap"), "preset 'fspo-cap' is gone: use preset fspo with outside cap"),
    (lambda: Rule("prefix", 0.1, 0.1), "rule shape 'prefix' is gone: use sqrt or token"),
]


@pytest.mark.parametrize(("call", "says"), REFUSED)
def test_what_is_refused_says_why(call, says):
    with pytest.raises(UserError, match=says):
        call()


def test_ratios_that_go_together_are_not_refused():
    for rule, beside in [(LOOSE, None), (LOOSE, on("engine")), (LOOSE, on("behaviour"))]:
        check_ratios(rule, beside)
    assert correction("mis", range_lo=0.5).range_lo == 0.5  # a mask acts at the lower edge


def test_acceptance_counts_the_rows_of_its_rate():
    """|S| <= .2 and .3: rows 0 and 2 lie inside; A = 0 is out of the update's count, A > 0 is cut above alone."""
    S, n, A = np.array([[0.1, 0.25, -0.2, -0.4], [4.0, 4.0, 9.0, 9.0], [1.0, 0.0, 1.0, 1.0]])
    assert LOOSE.acceptance(S, n, A) == 0.5
    assert LOOSE.acceptance(S, n, A, rate="update") == 1.0
    assert LOOSE.acceptance(S, n, np.array([1.0, 1.0, -1.0, -1.0]), rate="update") == 0.5
