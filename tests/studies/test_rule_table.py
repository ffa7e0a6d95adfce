"""The table of the rules side by side, from tables with known numbers."""

import pytest
from scipy import stats as sps

from studies import rule_table
from tests.analysis.claims.made import on, own, tables, training

LOGS = ("fspo-11", "rloo-12", "none-13")
TREND = {"fspo": (-0.05, -0.03, -0.01), "gspo": (0.02, 0.01, -0.06)}
MSE = {"fspo": (1.0, 2.0, 4.0), "gspo": (0.5, 4.0, 4.0)}
BAND = {"measure": "band", "subset": "all", "use": "first"}


@pytest.fixture
def rules(monkeypatch):
    matched = [(log, rule, i) for i, log in enumerate(LOGS) for rule in TREND]
    errors = {"subset": "nonzero", "reference": "population", "quantity": "mse", "bin": -1}
    rewards = {11: 0.9, 12: 0.8, 13: 0.7}
    unclipped = {11: 0.85, 12: 0.85, 13: 0.7}
    found = tables(
        trend=[on(log, rule) | BAND | {"slope": TREND[rule][i]} for log, rule, i in matched]
        # other rows of the same log and rule that must not count
        + [on(log, rule, target=0.95) | BAND | {"slope": 9.0} for log, rule, _ in matched if rule == "fspo"]
        + [on(log, rule) | BAND | {"outside": "cap", "slope": 9.0} for log, rule, _ in matched]
        + [on(log, rule) | BAND | {"measure": "update", "slope": 9.0} for log, rule, _ in matched],
        population=[on(log, rule) | errors | {"estimate": MSE[rule][i]} for log, rule, i in matched]
        + [on(log, rule) | errors | {"reference": "capped", "estimate": 9.0} for log, rule, _ in matched],
        acceptance=[own("gspo", seed) | {"bin": -1, "estimate": 0.5} for seed in rewards]
        + [own("gspo", seed) | {"bin": 0, "estimate": 0.1} for seed in rewards],
        training=[row for seed, final in rewards.items() for row in training("gspo", seed, final, fall=0.1)]
        + [row for seed, final in unclipped.items() for row in training("none", seed, final)]
        # an evaluation of a longer run without a clip, after the last rollout of the rules' runs: it must not count
        + [row | {"rollout": 9, "value": 0.1} for row in training("none", 11, 0.1) if row["phase"] == "eval"],
    )
    monkeypatch.setattr(rule_table, "read_tables", lambda runs: found)
    return rule_table.rule_rows([])


def row(rules, rule, at, quantity):
    (found,) = rule_table.select(rules, rule=rule, at=at, quantity=quantity).itertuples(index=False)
    return found[3:]


def test_on_common_logs_means_and_ranges_over_the_logs(rules):
    assert row(rules, "gspo", "0.85", "trend") == pytest.approx((-0.01, -0.06, 0.02, 3))
    assert row(rules, "fspo", "0.85", "trend") == pytest.approx((-0.03, -0.05, -0.01, 3))
    assert row(rules, "fspo", "0.95", "trend") == pytest.approx((9, 9, 9, 3))


def test_the_error_is_divided_by_that_of_fspo_on_the_same_log(rules):
    assert row(rules, "gspo", "0.85", "MSE") == pytest.approx((1.0, 0.5, 2.0, 3))  # .5/1, 4/2, 4/4: the median is 1


def test_as_published_a_number_is_the_mean_over_the_rule_s_own_seeds(rules):
    half = sps.t.ppf(0.975, 2) * 0.1 / 3**0.5
    assert row(rules, "gspo", "as published", "held-out reward") == pytest.approx((0.8, 0.8 - half, 0.8 + half, 3))
    value, low, high, number = row(rules, "gspo", "as published", "acceptance")
    assert (value, number) == (0.5, 3)
    assert low != low  # equal in every seed: no interval
    assert high != high
    assert row(rules, "gspo", "as published", "fall")[0] == pytest.approx(0.1)
    assert row(rules, "rloo", "as published", "fall")[3] == 0


def test_a_rule_s_reward_is_compared_with_the_unclipped_run_of_its_seed(rules):
    half = sps.t.ppf(0.975, 2) * 0.05 / 3**0.5  # .05, -.05, 0
    assert row(rules, "gspo", "as published", rule_table.GAIN) == pytest.approx((0, -half, half, 3))
    assert row(rules, "none", "as published", "held-out reward")[0] == pytest.approx(0.8)
    assert rule_table.select(rules, rule="none", at="0.85").empty


def test_the_page_shows_the_numbers(rules):
    text = rule_table.section(rules, "products")
    assert "On common logs of products:" in text
    gspo = next(line for line in text.splitlines() if line.startswith("| gspo |"))
    assert "| -0.010 (-0.060 to 0.020) | unknown | 1.000 (0.500 to 2.000) |" in gspo
    assert f"| 0.800 [{0.8 - 0.248:.3f}, {0.8 + 0.248:.3f}] | 0.000 [-0.124, 0.124] |" in text
    assert text.count("| none |") == 1
