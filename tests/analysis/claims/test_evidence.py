"""Numbers, p-values and verdicts: by hand, and their level by simulation on the boundary of what an atom says."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats as sps

from analysis.claims.catalogue import Headline
from analysis.claims.evidence import ALPHA, Measured, Number, lead_in_size, number, over_seeds, select, verdict_of
from analysis.claims.judge import _sees, composed, judge
from analysis.claims.quantities import final_reward
from tests.analysis.claims.made import ATOM

NAN = float("nan")


def verdict(found):
    return verdict_of(found.p_for, found.p_against)


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
def test_a_verdict_is_read_from_the_interval(relation, margin, value, found):
    one = number("mean", Measured(value, 1.0), relation, margin)
    assert verdict(one) == found
    assert (one.low, one.high) == pytest.approx((value - 1.96, value + 1.96), abs=1e-3)


def test_p_values_are_student_s():
    one = number("mean", Measured(0.3, 0.1, 4), "above", 0.1)
    assert one.p_for == pytest.approx(sps.t.sf(2, 4))
    assert one.p_against == pytest.approx(sps.t.cdf(2, 4))
    assert one.low == pytest.approx(0.3 - sps.t.ppf(0.975, 4) * 0.1)
    exact = number("count", Measured(0.0, 0.0), "below", 0.5)
    assert (exact.p_for, exact.p_against) == (0, 1)
    for bad in (Measured(NAN, 0.1), Measured(0.1, NAN), "no row in the table"):
        assert verdict(number("mean", bad, "below", 0.0)) == "inconclusive"


def test_a_mean_over_seeds_wants_every_seed():
    found = over_seeds({11: 0.0, 12: 0.01, 13: 0.02})
    assert found.value == pytest.approx(0.01)
    assert found.se == pytest.approx(0.01 / np.sqrt(3))
    assert found.df == 2
    assert "seed 12" in over_seeds({11: 0.0, 12: NAN, 13: 0.02, 14: 0.1})
    assert "at least 3" in over_seeds({11: 0.0, 12: 0.01})
    assert "0.5 for every seed" in over_seeds({11: 0.5, 12: 0.5, 13: 0.5})


@pytest.mark.parametrize(
    ("gap", "total", "p_for", "p_against"),
    [(0.8, 1.2, -1.6, 1.0), (-0.8, -1.2, -1.6, 1.0), (-0.8, 1.2, 1.0, -1.6), (0.8, -1.2, 1.0, -1.6)],
)
def test_the_lead_in_size_has_the_p_values_of_its_definition(gap, total, p_for, p_against):
    """Twice the larger p-value of the two signs that must agree. Errors of the gap .5, of the total .4."""
    found = lead_in_size("mean", Measured(gap, 0.5), Measured(total, 0.4))
    by_hand = [1.0 if z == 1 else 2 * sps.norm.cdf(z) for z in (p_for, p_against)]
    assert (found.p_for, found.p_against) == pytest.approx(by_hand, rel=1e-9)
    assert found.value == pytest.approx(0.8 if p_for < 0 else -0.8)


@pytest.mark.parametrize("truth", [(1.0, 1.0), (1.0, -1.0), (0.0, 0.0), (9.0, -9.0)])
@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.9])
def test_the_level_of_a_comparison_of_sizes_is_kept(truth, correlation):
    """Equal sizes: neither verdict in more than 2.5 % of cases, whatever the signs and the dependence."""
    rng, found = np.random.default_rng(1), []
    gap, total = (Measured(0.0, np.sqrt(2 + sign * 2 * correlation)) for sign in (-1, 1))
    for one, two in rng.multivariate_normal(truth, [[1, correlation], [correlation, 1]], 2000):
        found.append(verdict(lead_in_size("", gap._replace(value=one - two), total._replace(value=one + two))))
    most = ALPHA + 3 * np.sqrt(ALPHA / 2000)
    assert found.count("supported") / 2000 < most
    assert found.count("refuted") / 2000 < most


def test_the_level_of_a_headline_is_kept():
    """Four atoms, all true by nothing: each at 2.5 % would refute the headline in 10 % of cases."""
    rng, headline, refuted = np.random.default_rng(2), Headline("H", "", tuple("abcd")), 0
    for values in rng.normal(size=(1000, 4)):
        numbers = (number("", Measured(x, 1.0), "above", 0.0) for x in values)
        atoms = {name: judge(ATOM, found) for name, found in zip("abcd", numbers, strict=True)}
        refuted += composed(headline, atoms).verdict == "refuted"
    assert refuted / 1000 < ALPHA + 3 * np.sqrt(ALPHA / 1000)
    assert refuted


def test_select_matches_floats_and_tells_missing_columns():
    table = pd.DataFrame({"target": [0.95, 0.85, NAN], "x": [1, 2, 3]})
    assert select(table, target=0.85)["x"].tolist() == [2]
    assert len(select(table, nowhere=1)) == 0


def test_the_distance_seen_is_that_of_the_longer_side():
    """A normal estimate whose interval reaches 1 to one side and 3 to the other: (1.96 + .84) / 1.96 half-widths."""
    seen = _sees(Number("mean", 0.5, 0.5 - 1, 0.5 + 3))
    assert seen == pytest.approx(3 * (1 + sps.norm.ppf(0.8) / sps.norm.ppf(0.975)), rel=1e-3)
    assert _sees(Number("mean", 0.5, 0.5 - 3, 0.5 + 1)) == pytest.approx(seen)


def test_the_final_reward_is_the_mean_of_the_last_fifth():
    lines = pd.DataFrame({"rollout": range(10), "step": range(10), "value": [0.0] * 8 + [0.5, 1.0]})
    assert final_reward(lines) == 0.75  # two of ten
    assert final_reward(lines.iloc[:9]) == 0.5  # one of nine
    assert final_reward(lines.iloc[:1]) == 0.0
