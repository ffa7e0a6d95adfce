"""The fair exponent and the parts of a sqrt band's trend, on laws whose answers docs/theory.md T17 states."""

import numpy as np
import pytest

from analysis.stats.fair_exponent import distance, fair_exponent, interval, trend_parts

DRAW = np.random.default_rng(4)
L = np.repeat([32.0, 512.0], 40_000)
SPIKE = np.sqrt(DRAW.binomial(L.astype(int), 0.05)) * DRAW.standard_normal(len(L))
"""Each token is 0, or with probability .05 standard normal: the variance is exactly proportional to L."""


@pytest.mark.parametrize(("share", "exponent"), [(0.3, 0.795), (0.5, 0.600), (0.85, 0.505), (0.99, 0.444)])
def test_a_law_with_a_spike_has_another_fair_exponent_at_each_share(share, exponent):
    assert fair_exponent(np.abs(SPIKE), L, share) == pytest.approx(exponent, abs=0.015)


@pytest.mark.parametrize(("power", "sign"), [(0.5, 0), (0.7, 0), (0.5, 1), (0.3, -1)])
def test_one_law_has_one_fair_exponent(power, sign):
    S = L**power * DRAW.standard_normal(len(L))
    for share in (0.75, 0.85, 0.95):
        assert fair_exponent(distance(S, sign), L, share) == pytest.approx(power, abs=0.02)


def test_no_exponent_where_the_edge_would_lie_on_the_wrong_side():
    """Half the responses have S <= 0, so no upper edge above 0 accepts fewer."""
    assert np.isnan(fair_exponent(distance(SPIKE, 1), L, 0.4))


@pytest.mark.parametrize(
    ("S", "part"),
    [
        (np.sqrt(L) * DRAW.standard_normal(len(L)) - 0.05 * L, "drift"),
        (L**0.65 * DRAW.standard_normal(len(L)), "scale"),
        (SPIKE, "shape"),
    ],
)
def test_each_part_of_the_trend_is_found_where_it_alone_is(S, part):
    found = trend_parts(S, L, 0.5)._asdict()
    assert found["trend"] == pytest.approx(found["drift"] + found["scale"] + found["shape"], abs=1e-12)
    assert abs(found[part]) > 0.015
    others = [abs(found[name]) for name in ("drift", "scale", "shape") if name != part]
    assert max(others) < 0.003


def test_the_parts_do_not_depend_on_the_unit_of_S():
    S = L**0.6 * DRAW.standard_normal(len(L)) - 0.02 * L
    assert trend_parts(1e-3 * S, L, 0.85) == pytest.approx(trend_parts(S, L, 0.85))


def test_the_interval_follows_clusters():
    """Rows repeated in their cluster bring nothing new: the interval is that of one row each, not narrower."""
    values = DRAW.standard_normal(400)
    (one,) = interval(lambda rows: np.array([values[rows].mean()]), np.arange(400))
    four = np.repeat(values, 4)
    (same,) = interval(lambda rows: np.array([four[rows].mean()]), np.repeat(np.arange(400), 4))
    assert same == pytest.approx(one)
    assert one.high - one.low == pytest.approx(2 * 1.96 / 20, rel=0.2)
