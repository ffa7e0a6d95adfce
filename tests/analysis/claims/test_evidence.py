"""Numbers, p-values and verdicts: by hand, and their level by simulation on the boundary of what an atom says."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats as sps

from analysis.claims.catalogue import Headline
from analysis.claims.evidence import (
    ALPHA,
    Measured,
    Number,
    absolute,
    deciding,
    lead_in_size,
    number,
    over_seeds,
    p_values,
    select,
    verdict_of,
    worst_by_run,
)
from analysis.claims.judge import _sees, composed, judge
from analysis.claims.quantities import final_reward
from tests.analysis.claims.made import ATOM

NAN = float("nan")


def verdict(numbers):
    return verdict_of(*p_values(numbers))


@pytest.mark.parametrize(
    ("relation", "margin", "value", "found"),
    [
        ("above", 0.0, 2.0, "supported"),
        ("above", 0.0, 1.9, "inconclusive"),
        ("above", 0.0, -2.0, "refuted"),
        ("below", 1.0, -1.0, "supported"),
        ("below", 1.0, 3.0, "refuted"),
        ("within", 2.5, 0.5, "supported"),
        ("within", 2.5, 0.6, "inconclusive"),
        ("within", 2.5, 4.8, "refuted"),  # 2.3 beyond: z(.9875) = 2.24
        ("within", 2.5, 4.6, "inconclusive"),
        ("within", 2.5, -4.8, "refuted"),
    ],
)
def test_one_log_is_read_from_its_interval(relation, margin, value, found):
    one = number("log", Measured(value, 1.0, 1.0), relation, margin)
    assert verdict([one]) == found
    assert (one.low, one.high) == pytest.approx((value - 1.96, value + 1.96), abs=1e-3)


def test_p_values_are_student_s_on_each_side_alone():
    one = number("log", Measured(0.3, 0.1, 0.2, 4), "above", 0.1)
    assert one.p_for == pytest.approx(sps.t.sf(2, 4))
    assert one.p_against == pytest.approx(sps.t.cdf(1, 4))
    assert one.low == pytest.approx(0.3 - sps.t.ppf(0.975, 4) * 0.1)
    exact = number("count", Measured(0.0, 0.0, 0.0), "below", 0.5)
    assert (exact.p_for, exact.p_against) == (0, 1)


def test_a_log_without_a_number_leaves_no_support_and_still_counts_in_the_correction():
    """One of six estimable: the five others may all be unlike it."""
    clear = number("a", Measured(-0.05, 0.005, 0.005), "below", 0.0)
    missing = [Number(str(k), reason="no row") for k in range(5)]
    assert verdict([clear]) == "supported"
    assert verdict([clear, *missing]) == "inconclusive"
    assert deciding([clear, *missing]).reason == "no row"
    assert Measured(NAN, 0.1, 0.1).above(0.0) == Measured(0.1, NAN, 0.1).above(0.0) == 1.0
    for bad in (Measured(NAN, 0.1, 0.1), Measured(0.1, NAN, 0.1), "no row in the table"):
        assert verdict([clear, number("b", bad, "below", 0.0)]) == "inconclusive"
    against = number("a", Measured(0.02, 0.01, 0.01), "below", 0.0)  # p = .023
    assert verdict([against]) == "refuted"
    assert verdict([against, *missing]) == "inconclusive"


def test_one_log_behind_is_not_hidden_by_the_others():
    ahead = [number(str(k), Measured(0.1, 0.01, 0.01), "above", 0.0) for k in range(5)]
    behind = number("behind", Measured(-0.04, 0.01, 0.01), "above", 0.0)
    assert verdict(ahead) == "supported"
    assert verdict([*ahead, behind]) == "refuted"  # their mean is .077
    assert deciding([*ahead, behind]).name == "behind"


def test_a_mean_over_seeds_wants_every_seed():
    found = over_seeds({11: 0.0, 12: 0.01, 13: 0.02})
    assert found.value == pytest.approx(0.01)
    assert found.se_low == pytest.approx(0.01 / np.sqrt(3))
    assert found.df == 2
    assert "seed 12" in over_seeds({11: 0.0, 12: NAN, 13: 0.02, 14: 0.1})
    assert "at least 3" in over_seeds({11: 0.0, 12: 0.01})
    assert "0.5 for every seed" in over_seeds({11: 0.5, 12: 0.5, 13: 0.5})


def test_sizes_of_two_trends_are_compared_with_their_covariance():
    rival, own = Measured(-0.08, 0.003, 0.003), Measured(-0.045, 0.004, 0.004)
    gap = rival.plus(-own, -4e-6)
    assert gap.se_low == pytest.approx(np.sqrt(9e-6 + 16e-6 - 8e-6))
    assert rival.plus(-own).se_low == pytest.approx(0.007)  # unknown: never too little
    found = lead_in_size("log", gap, rival.plus(own, 4e-6))
    assert found.value == pytest.approx(0.035)
    half = sps.norm.ppf(1 - ALPHA / 2) * gap.se_low
    assert (found.low, found.high) == pytest.approx((0.035 - half, 0.035 + half))
    assert verdict([found]) == "supported"
    assert verdict([lead_in_size("log", own.plus(-rival, -4e-6), rival.plus(own, 4e-6))]) == "refuted"
    other = Measured(0.007, 0.003, 0.003)  # smaller, and of the other sign
    assert verdict([lead_in_size("log", other.plus(-own), other.plus(own))]) == "refuted"


RUNS = 4000


def shares(truths, judged, seed=0):
    """Shares of "supported" and "refuted" in simulated sets of logs with unit errors, one log for each truth."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(RUNS):
        found.append(verdict([judged(x) for x in truths + rng.normal(size=len(truths))]))
    return found.count("supported") / RUNS, found.count("refuted") / RUNS


@pytest.mark.parametrize(("relation", "boundary"), [("above", 0.3), ("within", 5.0)])
def test_the_level_of_an_atom_is_kept(relation, boundary):
    """False in one of four logs by nothing: supported in at most 2.5 % of cases. True in all by nothing: refuted so."""
    most = ALPHA + 3 * np.sqrt(ALPHA / RUNS)

    def judged(x):
        return number("log", Measured(x, 1.0, 1.0), relation, boundary)

    far = 9.0 if relation == "above" else 0.0
    boundary_alone = np.array([boundary, far, far, far])
    supported, _ = shares(boundary_alone, judged)
    assert 0.5 * ALPHA < supported < most
    _, refuted = shares(np.full(4, boundary), judged)
    assert 0.25 * ALPHA < refuted < most  # within: half of it, for want of an estimate beyond both margins


@pytest.mark.parametrize("truth", [(1.0, 1.0), (1.0, -1.0), (0.0, 0.0), (9.0, -9.0)])
@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.9])
def test_the_level_of_a_comparison_of_sizes_is_kept(truth, correlation):
    """Equal sizes: neither verdict in more than 2.5 % of cases, whatever the signs and the dependence."""
    rng, found = np.random.default_rng(1), []
    for one, two in rng.multivariate_normal(truth, [[1, correlation], [correlation, 1]], 2000):
        rival, own = Measured(one, 1.0, 1.0), Measured(two, 1.0, 1.0)
        found.append(verdict([lead_in_size("", rival.plus(-own, -correlation), rival.plus(own, correlation))]))
    most = ALPHA + 3 * np.sqrt(ALPHA / 2000)
    assert found.count("supported") / 2000 < most
    assert found.count("refuted") / 2000 < most


def test_the_level_of_a_headline_is_kept():
    """Four atoms of three logs, all true by nothing: each part at 2.5 % would refute the headline in 26 % of cases."""
    rng, headline, refuted = np.random.default_rng(2), Headline("H", "", tuple("abcd")), 0
    for _ in range(1000):
        logs = rng.normal(size=(4, 3))
        atoms = {
            name: judge(ATOM, [number("", Measured(x, 1.0, 1.0), "above", 0.0) for x in row])
            for name, row in zip("abcd", logs, strict=True)
        }
        refuted += composed(headline, atoms).verdict == "refuted"
    assert refuted / 1000 < ALPHA + 3 * np.sqrt(ALPHA / 1000)
    assert refuted


def test_the_largest_of_many_noisy_magnitudes_is_covered():
    """Eight bins of two units, each estimated with unit noise; the largest truth must lie in the interval."""
    rng = np.random.default_rng(3)
    truth, missed = 2.0, 0
    for _ in range(200):
        x = truth + rng.normal(size=8)
        rows = pd.DataFrame({"run": "r", "seed": 0, "value": x, "low": x - 1.96, "high": x + 1.96})
        missed += worst_by_run(absolute(rows)).loc[0, "low"] > truth
    assert missed / 200 < 0.05


def test_a_run_without_a_seed_has_its_worst_bin_too():
    """An imported run has no seed. With two bins each low end is that of an interval at 97.5 %."""
    rows = pd.DataFrame({"run": "r", "seed": NAN, "value": [1.0, 2.0], "low": [0.9, 1.5], "high": [1.2, 2.4]})
    worst = worst_by_run(rows)
    wider = sps.norm.ppf(1 - 0.05 / 4) / sps.norm.ppf(1 - 0.05 / 2)
    assert worst[["value", "high"]].to_numpy().tolist() == [[2.0, 2.4]]
    assert worst["low"].tolist() == [pytest.approx(2.0 - 0.5 * wider)]
    alone = worst_by_run(rows.iloc[1:])  # with one bin the interval stays
    assert alone[["value", "low", "high"]].to_numpy().tolist() == [[2.0, 1.5, 2.4]]


@pytest.mark.parametrize(
    ("gap", "total", "p_for", "p_against"),
    [(0.8, 1.2, -1.6, 1.0), (-0.8, -1.2, -2.0, 1.0), (-0.8, 1.2, 1.0, -3.0), (0.8, -1.2, 1.0, -1.6)],
)
def test_the_lead_in_size_has_the_p_values_of_its_definition(gap, total, p_for, p_against):
    """Twice the larger p-value of the two signs that must agree. Errors below and above: gap .5, .25; total .4, .6."""
    found = lead_in_size("log", Measured(gap, 0.5, 0.25), Measured(total, 0.4, 0.6))
    by_hand = [1.0 if z == 1 else 2 * sps.norm.cdf(z) for z in (p_for, p_against)]
    assert (found.p_for, found.p_against) == pytest.approx(by_hand, rel=1e-9)


def test_select_matches_floats_and_tells_missing_columns():
    table = pd.DataFrame({"target": [0.95, 0.85, NAN], "x": [1, 2, 3]})
    assert select(table, target=0.85)["x"].tolist() == [2]
    assert len(select(table, nowhere=1)) == 0


def test_the_distance_seen_is_that_of_the_longer_side():
    """A normal estimate whose interval reaches 1 to one side and 3 to the other: (1.96 + .84) / 1.96 half-widths."""
    seen = _sees(Number("a log", 0.5, 0.5 - 1, 0.5 + 3))
    assert seen == pytest.approx(3 * (1 + sps.norm.ppf(0.8) / sps.norm.ppf(0.975)), rel=1e-3)
    assert _sees(Number("a log", 0.5, 0.5 - 3, 0.5 + 1)) == pytest.approx(seen)


def test_the_final_reward_is_the_mean_of_the_last_fifth():
    lines = pd.DataFrame({"rollout": range(10), "step": range(10), "value": [0.0] * 8 + [0.5, 1.0]})
    assert final_reward(lines) == 0.75  # two of ten
    assert final_reward(lines.iloc[:9]) == 0.5  # one of nine
    assert final_reward(lines.iloc[:1]) == 0.0
