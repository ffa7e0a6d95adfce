"""The fair exponent and the parts of a sqrt band's trend, on laws whose answers docs/theory.md T10 states."""

from types import SimpleNamespace

import numpy as np
import pytest

from analysis.stats.fair_exponent import (
    distance,
    fair_exponent,
    fair_exponents,
    interval,
    members_of,
    trend_parts,
)

DRAW = np.random.default_rng(4)
L = np.repeat([32.0, 512.0], 40_000)
SPIKE = np.sqrt(DRAW.binomial(L.astype(int), 0.05)) * DRAW.standard_normal(len(L))
"""Each token is 0, or with probability .05 standard normal: the variance is exactly proportional to L."""
ONE = np.zeros(len(L), int)
"""All responses in one window."""


class Some(SimpleNamespace):
    """Rows of a log, with the columns that the fair exponent needs."""

    def take(self, which):
        return Some(**{name: x[which] for name, x in vars(self).items()})


@pytest.mark.parametrize(("share", "exponent"), [(0.3, 0.795), (0.5, 0.600), (0.85, 0.505), (0.99, 0.444)])
def test_a_law_with_a_spike_has_another_fair_exponent_at_each_share(share, exponent):
    assert fair_exponent(np.abs(SPIKE), L, share, ONE) == pytest.approx(exponent, abs=0.015)


@pytest.mark.parametrize(("power", "responses"), [(0.5, "all"), (0.7, "all"), (0.5, "A > 0"), (0.3, "A != 0")])
def test_one_law_has_one_fair_exponent(power, responses):
    S, A = L**power * DRAW.standard_normal(len(L)), np.where(DRAW.random(len(L)) < 0.5, 1.0, -2.0)
    for share in (0.75, 0.85, 0.95):
        assert fair_exponent(distance(S, A, responses), L, share, ONE) == pytest.approx(power, abs=0.02)


def test_the_distance_is_to_the_edge_that_can_cut():
    S, A = np.array([1.0, -2.0, 3.0, -4.0]), np.array([0.5, 0.5, -3.0, -3.0])
    assert list(distance(S, A, "all")) == [1, 2, 3, 4]
    assert list(distance(S, A, "A != 0")) == [1, -2, -3, 4]
    assert list(members_of(np.array([0.0, 1.0, -1.0]), "A != 0")) == [False, True, True]


def test_no_exponent_where_the_edge_would_lie_on_the_wrong_side():
    """Half the responses have S <= 0, so no upper edge above 0 accepts fewer."""
    assert np.isnan(fair_exponent(SPIKE, L, 0.4, ONE))


@pytest.mark.parametrize(
    ("S", "part"),
    [
        (np.sqrt(L) * DRAW.standard_normal(len(L)) - 0.05 * L, "drift"),
        (L**0.65 * DRAW.standard_normal(len(L)), "scale"),
        (SPIKE, "shape"),
    ],
)
def test_each_part_of_the_trend_is_found_where_it_alone_is(S, part):
    found = trend_parts(S, L, 0.5, ONE)._asdict()
    assert found["trend"] == pytest.approx(found["drift"] + found["scale"] + found["shape"], abs=1e-12)
    assert abs(found[part]) > 0.015
    others = [abs(found[name]) for name in ("drift", "scale", "shape") if name != part]
    assert max(others) < 0.003


def test_parts_of_one_edge_are_those_of_the_side_that_it_cuts():
    """S below 0 grows as L, which no upper edge sees; above 0 it grows as sqrt(L)."""
    x = DRAW.standard_normal(len(L))
    S = np.where(x > 0, np.sqrt(L) * x, L * x)
    assert abs(trend_parts(S, L, 0.85, ONE, one_edge=True).trend) < 0.003
    assert trend_parts(S, L, 0.85, ONE).trend < -0.02
    assert trend_parts(-S, L, 0.85, ONE, one_edge=True).trend < -0.02


def test_the_parts_do_not_depend_on_the_unit_of_S():
    S = L**0.6 * DRAW.standard_normal(len(L)) - 0.02 * L
    assert trend_parts(1e-3 * S, L, 0.85, ONE) == pytest.approx(trend_parts(S, L, 0.85, ONE))


def test_a_law_that_changes_between_windows_is_no_dependence_on_the_length():
    """S ~ sqrt(L) in both windows; in the second S is 10 times as large, about another drift, and most responses are
    long."""
    L = np.repeat([32.0, 512.0], 10_000)
    late = DRAW.random(len(L)) < np.where(L > 100, 0.8, 0.2)
    window, one = late.astype(int), np.zeros(len(L), int)
    S = np.where(late, 10.0, 1.0) * np.sqrt(L) * DRAW.standard_normal(len(L))
    for share in (0.75, 0.95):
        assert fair_exponent(np.abs(S), L, share, window) == pytest.approx(0.5, abs=0.03)
        assert fair_exponent(np.abs(S), L, share, one) > 0.65
        assert max(map(abs, trend_parts(S + late * L, L, share, window)[2:])) < 0.006
    assert trend_parts(S, L, 0.75, window).trend == pytest.approx(0, abs=0.006)
    assert trend_parts(S, L, 0.75, one).trend < -0.03


def test_the_exponents_of_a_log_are_over_windows_of_its_rollouts():
    """Rollouts 5 to 9 have the same law of S / L^.7 as 0 to 4, times 10, and other lengths."""
    rollout = np.arange(2000) % 10
    length = np.where(DRAW.random(2000) < np.where(rollout < 5, 0.8, 0.2), 32.0, 512.0)
    S = np.where(rollout < 5, 1.0, 10.0) * length**0.7 * DRAW.standard_normal(2000)
    rows = SimpleNamespace(S=S, A=np.zeros(2000), length=length, rollout=rollout, cluster=np.arange(2000) // 4)
    ((value, low, high),) = fair_exponents(rows, (0.85,))
    assert low < 0.7 < high
    assert high - low < 0.2
    assert value == pytest.approx(0.7, abs=0.08)
    assert fair_exponents(rows, (0.85,), size=10)[0].low > 0.8


def test_the_exponent_of_one_edge_is_that_of_the_responses_that_it_cuts():
    """S grows as L^.8 where A > 0 and as L^.3 where A < 0; where A is 0 it does not grow."""
    number = 6000
    length, A = DRAW.choice([32.0, 512.0], number), np.arange(number) % 3 - 1.0
    S = length ** np.array([0.3, 0.0, 0.8])[A.astype(int) + 1] * DRAW.standard_normal(number)
    rows = Some(S=S, A=A, length=length, rollout=np.zeros(number, int), cluster=np.arange(number) // 4)
    for responses, exponent in (("A > 0", 0.8), ("A < 0", 0.3)):
        (found,) = fair_exponents(rows, (0.85,), responses)
        assert found.low < exponent < found.high
        assert found.value == pytest.approx(exponent, abs=0.1)


def test_an_exponent_beyond_all_that_are_tried_is_infinite():
    for power in (-4.0, 4.0):
        assert fair_exponent(L**power * np.exp(DRAW.standard_normal(len(L))), L, 0.85, ONE) == np.copysign(
            np.inf, power
        )
    value, low, high = interval(lambda rows: np.array([np.where(rows[0] < 20, np.inf, 0.5)]), np.arange(400))[0]
    assert (value, low, high) == (np.inf, 0.5, np.inf)


def test_no_exponent_where_the_band_would_have_no_width():
    """In the first of two windows nine of ten responses have S = 0."""
    row = np.arange(len(L))
    S = np.where((row % 2 == 0) & (row % 20 > 0), 0.0, SPIKE)
    assert np.isnan(fair_exponent(np.abs(S), L, 0.85, row % 2))


def test_no_exponent_where_a_window_has_no_edge_above_0():
    assert np.isnan(fair_exponent(np.abs(SPIKE), L, 0.85, (L > 100).astype(int)))  # one length in each window
    S = np.where(np.arange(len(L)) % 2 == 0, -1.0, np.abs(SPIKE))
    window = np.arange(len(L)) % 2
    assert np.isnan(fair_exponent(S, L, 0.85, window))
    assert np.isfinite(fair_exponent(S, L, 0.85, ONE))


def test_the_interval_follows_clusters():
    """Rows repeated in their cluster bring nothing new: the interval is that of one row each, not narrower."""
    values = np.random.default_rng(5).standard_normal(400)
    (one,) = interval(lambda rows: np.array([values[rows].mean()]), np.arange(400))
    four = np.repeat(values, 4)
    (same,) = interval(lambda rows: np.array([four[rows].mean()]), np.repeat(np.arange(400), 4))
    assert same == pytest.approx(one)
    assert one.high - one.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.15)
