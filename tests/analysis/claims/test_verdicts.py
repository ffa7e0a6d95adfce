"""Verdicts by hand, and their tests against scipy and statsmodels."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from analysis.claims.catalogue import CLAIMS, EVEN_SIGNS, Claim, Hypothesis
from analysis.claims.estimands import Estimate
from analysis.claims.verdicts import above, holm, judge, part, smaller

VALUES = np.array([0.3, 0.5, 0.4, 0.6])


def test_a_mean_against_a_margin_is_students_test():
    for margin in (0.2, 0.45, 0.9):
        greater, less = (stats.ttest_1samp(VALUES, margin, alternative=side).pvalue for side in ("greater", "less"))
        assert above(VALUES, margin) == pytest.approx((greater, less))
    assert above(VALUES[:1], 0.0) == (1.0, 1.0)
    assert above(np.ones(3), 0.5) == (0.0, 1.0)
    assert above(np.ones(3), 1.0) == (1.0, 1.0)


def test_smaller_in_size():
    small, large = np.array([0.1, -0.1, 0.05, -0.05]), VALUES
    for others in (large, -large):
        p_for, p_against = smaller(small, others)
        s = np.sign(others[0])
        by_hand = max(stats.ttest_1samp(s * others + sign * small, 0, alternative="greater").pvalue for sign in (1, -1))
        assert p_for == pytest.approx(2 * by_hand)
        assert p_for < 0.05 < p_against
        assert smaller(others, small) == (p_against, p_for)
    assert min(smaller(large, large[::-1])) > 0.5


def test_holm_is_that_of_statsmodels():
    p = np.random.default_rng(0).random(9) ** 3
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1])
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])  # by hand: 3 x .01, 2 x .03, 1 x .04 raised


def table(values, task="chain-add", runs="unclipped", estimand="slope", rate=0.05):
    found = ((rule, seed, value) for rule, of_rule in values.items() for seed, value in enumerate(of_rule))
    return pd.DataFrame([Estimate(task, runs, seed, estimand, rule, rate, value) for rule, seed, value in found])


RISES = Hypothesis("slope", "unclipped", "rloo", "above", clip_rate=0.05)
FLAT = Hypothesis("slope", "unclipped", "fspo", "within", 0.1, clip_rate=0.05)
SMALL = np.array([0.01, -0.01, 0.02, -0.02, 0.0])


def verdict(values, *hypotheses, **of):
    (judged,), parts = judge(table(values, **of), [Claim("x", "words", hypotheses, ("chain-add",))])
    return judged, parts


@pytest.mark.parametrize(
    ("shift", "expected"), [(0.0, "supported"), (0.3, "refuted"), (-0.3, "refuted"), (0.1, "open"), (-0.1, "open")]
)
def test_within(shift, expected):
    assert verdict({"fspo": SMALL + shift}, FLAT)[0].verdict == expected


def test_all_hypotheses_must_hold_and_one_opposite_refutes():
    rloo = SMALL + 0.3
    assert verdict({"fspo": SMALL, "rloo": rloo}, RISES, FLAT)[0].verdict == "supported"
    found, _ = verdict({"fspo": SMALL, "rloo": -rloo}, RISES, FLAT)
    assert (found.verdict, found.decides) == ("refuted", "chain-add: slope of rloo at 5% clipped: above 0")
    assert verdict({"fspo": SMALL, "rloo": SMALL}, RISES, FLAT)[0].verdict == "open"


def test_below_and_differences_by_seed():
    falls = Hypothesis("slope", "unclipped", "gspo", "above", clip_rate=0.05, sign=-1)
    assert verdict({"gspo": SMALL - 0.2}, falls)[0].verdict == "supported"
    less = Hypothesis("mean reward", "equal", "fspo", "above", -0.02, rival="rloo")
    rewards = {"fspo": [0.5, 0.7, 0.9, 0.3], "rloo": [0.5, 0.7, 0.91, 0.3, 0.0]}
    found, (numbers,) = verdict(rewards, less, runs="equal", estimand="mean reward", rate=np.nan)
    assert found.verdict == "supported"
    assert (numbers.seeds, numbers.mean) == (4, pytest.approx(-0.0025))


def test_numbers_of_a_part_by_hand():
    """Mean .45, sd .129, error .0645; t at 3 degrees of freedom 3.182."""
    found = part(CLAIMS[0], RISES, "chain-add", table({"rloo": VALUES}))
    sd = np.sqrt(0.05 / 3)
    assert (found.seeds, found.mean, found.sd) == (4, pytest.approx(0.45), pytest.approx(sd))
    assert (found.ci_low, found.ci_high) == pytest.approx((0.45 - 3.18245 * sd / 2, 0.45 + 3.18245 * sd / 2), abs=1e-5)
    reach = 3.18245 * sd * np.sqrt(1.25)
    assert (found.new_low, found.new_high) == pytest.approx((0.45 - reach, 0.45 + reach), abs=1e-5)


def test_a_claim_is_open_until_all_planned_seeds_are_there():
    """Five of six seeds give no verdict; five of five do. A planned claim without numbers counts in Holm's family."""
    values, claim = table({"fspo": SMALL}), Claim("x", "words", (FLAT,), ("chain-add",))
    for wanted, expected, says in ((5, "supported", FLAT.words), (6, "open", "5 of 6 seeds")):
        (judged,), _ = judge(values, [claim], planned={("unclipped", "chain-add"): wanted})
        assert (judged.verdict, judged.decides) == (expected, f"chain-add: {says}")
    rewards = Claim("y", "words", (Hypothesis("mean reward", "equal", "fspo", "above"),), ("chain-add",))
    alone, _ = judge(values, [claim, rewards], planned={("unclipped", "chain-add"): 5})
    both, _ = judge(values, [claim, rewards], planned={("unclipped", "chain-add"): 5, ("equal", "chain-add"): 2})
    assert [c.claim for c in alone] == ["x"]
    assert [(c.claim, c.verdict) for c in both] == [("x", "supported"), ("y", "open")]
    assert both[0].p_for == pytest.approx(2 * alone[0].p_for)


def test_claims_without_any_number_are_left_out():
    judged, parts = judge(table({"rloo": VALUES, "gspo": -VALUES}))
    assert [claim.claim for claim in judged] == ["1"]
    assert judged[0].verdict == "open"  # without a number on two tasks a claim is not supported
    assert len(parts) == 6


def test_the_family_is_frozen():
    """A change of a claim, a margin or a task is a decision that its commit explains."""
    assert [claim.id for claim in CLAIMS] == ["1", "2", "3", "4", "5", "6", "7a", "7b", "8", "9", "10"]
    margins = {(h.estimand, h.relation, h.margin) for claim in CLAIMS for h in claim.hypotheses}
    assert margins == {
        *(("slope", "above", 0.0), ("slope", "smaller in size", 0.0), ("slope", "within", 0.1)),
        *(("mean reward", "above", -0.05), ("mean reward", "above", 0.05)),
        *(("final reward", "above", 0.0), ("final reward", "above", -0.05)),
        *(("sign gap", "above", 0.0), ("log sign ratio", "within", EVEN_SIGNS)),
    }
    assert np.exp(EVEN_SIGNS) == pytest.approx(1.25)
