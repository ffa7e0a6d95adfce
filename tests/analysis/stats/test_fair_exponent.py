"""The fair exponent and its parts by sign of A, on laws whose answers docs/theory.md T10 states."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import optimize, stats

from analysis.stats.fair_exponent import (
    distance,
    fair_by_sign,
    fair_exponent,
    fair_exponents,
    members_of,
    with_interval,
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


def test_the_distance_is_to_the_edge_that_can_cut():
    S, A = np.array([1.0, -2.0, 3.0, -4.0]), np.array([0.5, 0.5, -3.0, -3.0])
    assert list(distance(S, A, "all")) == [1, 2, 3, 4]
    assert list(distance(S, A, "A != 0")) == [1, -2, -3, 4]
    assert list(members_of(np.array([0.0, 1.0, -1.0]), "A != 0")) == [False, True, True]


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
    for power, exponent in ((-4.0, -np.inf), (4.0, np.inf)):
        assert fair_exponent(L**power * np.exp(DRAW.standard_normal(len(L))), L, 0.85, ONE) == exponent


def test_no_exponent_where_a_window_has_no_edge_above_0():
    """Where half of S lie below 0 and fewer are to be kept; where nine of ten S are 0, or all are below 0, in one of
    two windows; and where each window has one length."""
    row = np.arange(len(L))
    assert np.isnan(fair_exponent(SPIKE, L, 0.4, ONE))
    still = np.where((row % 2 == 0) & (row % 20 > 0), 0.0, SPIKE)
    assert np.isnan(fair_exponent(np.abs(still), L, 0.85, row % 2))
    below = np.where(row % 2 == 0, -1.0, np.abs(SPIKE))
    assert np.isnan(fair_exponent(below, L, 0.85, row % 2))
    assert np.isfinite(fair_exponent(below, L, 0.85, ONE))
    assert np.isnan(fair_exponent(np.abs(SPIKE), L, 0.85, (L > 100).astype(int)))


def test_the_interval_follows_clusters():
    """Rows repeated in their cluster bring nothing new. With 1,000 normal rows at each of two lengths the log of the
    quantile 1.44 has the error sqrt(.85 .15 / 1000) / (2 1.44 phi(1.44)), and the exponent's is sqrt 2 / log 16 times
    that."""
    cluster, window = np.arange(2000), np.zeros(2000, int)
    length = L[::40]
    X = np.sqrt(length) * np.abs(DRAW.standard_normal(2000))
    one = with_interval(X, length, 0.85, window, cluster)
    four = np.repeat(np.arange(2000), 4)
    same = with_interval(X[four], length[four], 0.85, window[four], cluster[four])
    assert same == pytest.approx(one, abs=0.01)
    error = np.sqrt(0.85 * 0.15 / 1000) / (2 * 1.44 * stats.norm.pdf(1.44)) * np.sqrt(2) / np.log(16)
    assert one.high - one.low == pytest.approx(2 * 1.96 * error, rel=0.15)


def test_the_interval_holds_the_exponent_as_often_as_it_says():
    """96 logs of 4 dependent responses a prompt, of a law with another spread in each of two windows."""
    held, draw = 0, np.random.default_rng(6)
    for _ in range(96):
        length, cluster, window = draw.choice([32.0, 64.0, 256.0], 2400), np.arange(2400) // 4, np.arange(2400) // 1200
        common = np.repeat(draw.standard_normal(600), 4)
        S = length**0.6 * (common + draw.standard_normal(2400)) * (1 + 3 * window)
        found = with_interval(np.abs(S), length, 0.85, window, cluster)
        held += found.low < 0.6 < found.high
    assert 84 <= held <= 95  # 91 of 96 are 95 %, and 84 or fewer have a probability of 1 in 200


def test_the_exponent_of_both_signs_is_made_of_theirs_as_the_theory_says():
    """S grows as L^.8 where A < 0 and as L^.3 where A > 0, whose share falls with the length: T10's two terms by the
    law's own quantiles and densities."""
    number, share, at = 400_000, 0.85, 96.0
    length = np.exp(DRAW.uniform(np.log(80), np.log(115), number)).round()
    positive = DRAW.random(number) < 0.6 - 0.5 * np.log(length / at)
    power, scale = np.where(positive, 0.3, 0.8), np.where(positive, 1.0, 0.15)
    S = scale * length**power * DRAW.standard_normal(number)
    A = np.where(positive, 1.0, -2.0)
    rows = Some(S=S, A=A, length=length, rollout=np.zeros(number, int), cluster=np.arange(number) // 4)
    found = fair_by_sign(rows, share)
    spread, pi = np.array([at**0.3, 0.15 * at**0.8]), np.array([0.6, 0.4])
    q = optimize.brentq(lambda q: pi @ stats.norm.sf(q / spread) - (1 - share), 1e-3, 50)
    tails, densities = stats.norm.sf(q / spread), stats.norm.pdf(q / spread) / spread
    weights = pi * densities / (pi @ densities)  # by implicit differentiation of pi(l) @ P(X > q(l) | l) = 1 - share
    of_laws, of_shares = weights @ [0.3, 0.8], (tails[1] - tails[0]) / 2 / (q * pi @ densities)
    for name, own, weight, moved, tail in zip(
        ("positive", "negative"), (0.3, 0.8), weights, (-0.5, 0.5), tails, strict=True
    ):
        assert found[name].exponent.value == pytest.approx(own, abs=0.06)
        assert found[name].weight == pytest.approx(weight, abs=0.02)
        assert found[name].of_shares == pytest.approx(moved * tail / (q * pi @ densities), abs=0.03)
    assert found["all"].of_shares == pytest.approx(of_shares, abs=0.03)
    assert found["all"].exponent.value == pytest.approx(of_laws + of_shares, abs=0.05)


def test_no_terms_where_a_sign_is_missing_or_no_exponent_is_found():
    number = 2000
    alone = {"rollout": np.zeros(number, int), "cluster": np.arange(number)}
    rows = Some(S=np.abs(SPIKE[::40]), A=np.ones(number), length=L[::40], **alone)
    found = fair_by_sign(rows, 0.85)
    assert found["positive"].weight == pytest.approx(1)
    assert found["positive"].exponent.value == pytest.approx(found["all"].exponent.value, abs=0.01)
    assert np.isnan(found["negative"].exponent.value)
    rows.S = -rows.S
    assert np.isnan(fair_by_sign(rows, 0.85)["positive"].weight)


def test_a_sign_has_its_exponent_at_its_own_share_kept():
    """No response with A < 0 is cut, so that 70 % of those with A > 0 are kept where 85 % of all are."""
    X, length = np.abs(SPIKE[::8]), L[::8]
    number = len(X)
    alone = {"rollout": np.zeros(2 * number, int), "cluster": np.arange(2 * number)}
    rows = Some(S=np.tile(X, 2), A=np.repeat([1.0, -1.0], number), length=np.tile(length, 2), **alone)
    own = fair_by_sign(rows, 0.85)["positive"].exponent.value
    assert own == pytest.approx(fair_exponent(X, length, 0.7, np.zeros(number, int)), abs=0.01)
    assert abs(own - fair_exponent(X, length, 0.85, np.zeros(number, int))) > 0.02
