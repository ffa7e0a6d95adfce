"""The table of the rules side by side, from tables with known numbers, and what is concluded from it."""

import math

import pandas as pd
import pytest
from scipy import stats as sps

from studies import rule_table
from studies.rule_table import PUBLISHED
from tests.analysis.claims.made import NAN, on, own, tables, training

LOGS = ("fspo-11", "rloo-12", "none-13")
SEEDS = (11, 12, 13)
TREND = {"fspo": (-0.05, -0.03, -0.01), "gspo": (0.02, 0.01, -0.06)}
TREND_NONZERO = {"fspo": (-0.04, -0.02, 0.0), "gspo": (0.03, 0.03, 0.09)}
LRE = {"fspo": (0.1, 0.2, 0.6), "gspo": (0.2, 0.2, 0.5)}
LRE_NONZERO = {"fspo": (0.3, 0.3, 0.6), "gspo": (0.1, 0.2, 0.3)}
MSE = {"fspo": (1.0, 2.0, 4.0), "gspo": (0.5, 4.0, 4.0)}
WINDOWS = ((0.1, 0.2), (0.3,), (1.0,))
"""Upper range of fspo's band in the windows of each log."""
OWN = {"acceptance": (0.5, 0.5, 0.5), "trend": (0.1, 0.2, 0.3), "lre": (0.4, 0.6, 0.8)}
OWN_NONZERO = {"acceptance": (0.3, 0.4, 0.5), "trend": (-0.1, -0.2, -0.6), "lre": (0.7, 0.8, 0.9)}
BAND = {"measure": "band", "subset": "all", "use": "first"}
UPDATE = {"measure": "update", "subset": "nonzero", "use": "first"}
COLUMN = {"acceptance": "estimate", "trend": "slope", "lre": "estimate"}
NO = 9.0
"""A number in rows that must not count."""
COLUMN_NAMES = ("acceptance", "trend", "LRE_2")


def matched(values, column, **more):
    """One row of each rule on each log, at 85 %."""
    return [on(log, rule) | {column: of[i], **more} for rule, of in values.items() for i, log in enumerate(LOGS)]


def as_published(values, name, **more):
    """One row of gspo's own runs for each seed."""
    return [own("gspo", seed) | {COLUMN[name]: values[name][i], **more} for i, seed in enumerate(SEEDS)]


def others(rows, column, *changes):
    """The same rows with a number that must not count, and with each of the changes."""
    return [row | {column: NO, **change} for row in rows for change in changes]


def band_and_update(name, of_band, of_update, **more):
    """Rows for all responses and for those with A != 0, and between them rows that mix the two."""
    column = COLUMN[name]
    rows = [row | {**BAND, **more} for row in of_band] + [row | {**UPDATE, **more} for row in of_update]
    mixed = ({"measure": "band", "subset": "nonzero"}, {"measure": "weight", "subset": "nonzero"}, {"use": "reused"})
    return rows + others(rows, column, *mixed)


@pytest.fixture
def rules(monkeypatch):
    norm, not_drop = {"norm": "l2"}, {"outside": "cap"}
    trend = band_and_update("trend", matched(TREND, "slope"), matched(TREND_NONZERO, "slope"))
    trend += others(trend, "slope", not_drop)
    trend += [row | {"target": 0.95, "slope": NO} for row in trend if row["rule"] == "fspo"]
    own_trend = band_and_update("trend", as_published(OWN, "trend"), as_published(OWN_NONZERO, "trend"))
    own_trend += others(own_trend, "slope", {"source": "given"})
    lre = band_and_update("lre", matched(LRE, "estimate"), matched(LRE_NONZERO, "estimate"), **norm)
    own_lre = band_and_update("lre", as_published(OWN, "lre"), as_published(OWN_NONZERO, "lre"), **norm)
    own_lre += others(own_lre, "estimate", {"source": "given"})
    lre += own_lre
    lre += others(lre, "estimate", {"norm": "inf"}, {"norm": "l1"}, {"norm": "l2_squared"})
    acceptance = band_and_update(
        "acceptance", as_published(OWN, "acceptance"), as_published(OWN_NONZERO, "acceptance"), bin=-1
    )
    acceptance += others(acceptance, "estimate", {"bin": 0}, {"source": "given"})
    ranges = [
        on(log, "fspo") | {"rate": "band", "window": 5 * i, "range_lo": NO, "range_hi": upper}
        for log, of_log in zip(LOGS, WINDOWS, strict=True)
        for i, upper in enumerate(of_log)
    ]
    ranges += others(ranges, "range_hi", {"rate": "update"}, {"use": "reused"}, {"target": 0.95})
    errors = {"subset": "nonzero", "reference": "population", "quantity": "mse", "bin": -1}
    error = matched(MSE, "estimate", **errors)
    error += others(error, "estimate", {"reference": "capped"}, {"quantity": "bias2"}, {"bin": 0})
    finals = {"gspo": (0.9, 0.8, 0.7), "none": (0.85, 0.85, 0.7), "fspo": (0.95, 0.85, 0.9)}
    found = tables(
        trend=trend + own_trend,
        lre=lre,
        acceptance=acceptance,
        ranges=ranges,
        population=error,
        training=[
            row
            for rule, of_seeds in finals.items()
            for seed, final in zip(SEEDS, of_seeds, strict=True)
            for row in training(rule, seed, final, fall=0.1 if rule == "gspo" else 0.0)
        ]
        # an evaluation of a longer run without a clip, after the last rollout of the rules' runs: it must not count
        + [row | {"rollout": 9, "value": 0.1} for row in training("none", 11, 0.1) if row["phase"] == "eval"],
    )
    monkeypatch.setattr(rule_table, "read_tables", lambda runs: found)
    return rule_table.rule_rows([])


def row(rules, rule, at, quantity):
    (found,) = rule_table.select(rules, rule=rule, at=at, quantity=quantity).itertuples(index=False)
    return found[3:]


def half(sd):
    """Half-width of Student's interval of a mean over three seeds with this standard deviation."""
    return sps.t.ppf(0.975, 2) * sd / 3**0.5


def test_on_common_logs_means_and_ranges_over_the_logs(rules):
    assert row(rules, "gspo", "0.85", "trend") == pytest.approx((-0.01, -0.06, 0.02, 3))
    assert row(rules, "fspo", "0.85", "trend") == pytest.approx((-0.03, -0.05, -0.01, 3))
    assert row(rules, "fspo", "0.95", "trend") == pytest.approx((9, 9, 9, 3))
    assert row(rules, "gspo", "0.85", "LRE_2") == pytest.approx((0.3, 0.2, 0.5, 3))
    assert row(rules, "fspo", "0.85", "LRE_2") == pytest.approx((0.3, 0.1, 0.6, 3))


def test_on_common_logs_of_the_responses_with_a_gradient(rules):
    """Of their own acceptance, at ranges that are matched to it."""
    assert row(rules, "gspo", "0.85", "trend of A != 0") == pytest.approx((0.05, 0.03, 0.09, 3))
    assert row(rules, "fspo", "0.85", "trend of A != 0") == pytest.approx((-0.02, -0.04, 0.0, 3))
    assert row(rules, "gspo", "0.85", "LRE_2 of A != 0") == pytest.approx((0.2, 0.1, 0.3, 3))
    assert row(rules, "fspo", "0.85", "LRE_2 of A != 0") == pytest.approx((0.4, 0.3, 0.6, 3))


def test_the_size_of_a_trend_is_compared_with_that_of_fspo_on_the_same_log(rules):
    """.02 - .05, .01 - .03, .06 - .01."""
    assert row(rules, "gspo", "0.85", rule_table.SIZE) == pytest.approx((0, -0.03, 0.05, 3))
    assert row(rules, "fspo", "0.85", rule_table.SIZE) == pytest.approx((0, 0, 0, 3))


def test_a_range_is_the_median_upper_range_over_the_windows_of_all_logs(rules):
    """Of .1, .2, .3 and 1: four windows of three logs, and their mean is .4."""
    assert row(rules, "fspo", "0.85", "range") == pytest.approx((0.25, 0.1, 1.0, 4))


def test_the_error_is_divided_by_that_of_fspo_on_the_same_log(rules):
    assert row(rules, "gspo", "0.85", "MSE") == pytest.approx((1.0, 0.5, 2.0, 3))  # .5/1, 4/2, 4/4: the median is 1


def test_as_published_a_number_is_the_mean_over_the_rule_s_own_seeds(rules):
    assert row(rules, "gspo", PUBLISHED, "held-out reward") == pytest.approx((0.8, 0.8 - half(0.1), 0.8 + half(0.1), 3))
    value, low, high, number = row(rules, "gspo", PUBLISHED, "acceptance")
    assert (value, number) == (0.5, 3)
    assert math.isnan(low)  # equal in every seed: no interval
    assert math.isnan(high)
    assert row(rules, "gspo", PUBLISHED, "trend") == pytest.approx((0.2, 0.2 - half(0.1), 0.2 + half(0.1), 3))
    assert row(rules, "gspo", PUBLISHED, "LRE_2") == pytest.approx((0.6, 0.6 - half(0.2), 0.6 + half(0.2), 3))
    assert row(rules, "gspo", PUBLISHED, "fall")[0] == pytest.approx(0.1)
    assert row(rules, "rloo", PUBLISHED, "fall")[3] == 0


def test_as_published_the_responses_with_a_gradient_have_numbers_of_their_own(rules):
    sd = (0.2**2 + 0.1**2 + 0.3**2) ** 0.5 / 2**0.5  # -.1, -.2, -.6
    expected = {"acceptance": (0.4, half(0.1)), "trend": (-0.3, half(sd)), "LRE_2": (0.8, half(0.1))}
    for name, (value, width) in expected.items():
        found = row(rules, "gspo", PUBLISHED, f"{name} of A != 0")
        assert found == pytest.approx((value, value - width, value + width, 3)), name


def test_the_second_pass_is_that_of_reused_responses_with_a_gradient(rules):
    assert [row(rules, "gspo", PUBLISHED, f"{name} of A != 0, second pass")[0] for name in COLUMN_NAMES] == [NO] * 3


def test_a_rule_s_reward_is_compared_with_the_unclipped_run_and_with_fspo_of_its_seed(rules):
    assert row(rules, "gspo", PUBLISHED, rule_table.GAIN) == pytest.approx(
        (0, -half(0.05), half(0.05), 3)
    )  # .05, -.05, 0
    assert row(rules, "none", PUBLISHED, "held-out reward")[0] == pytest.approx(0.8)
    sd = (0.05**2 + 0.05**2 + 0.1**2) ** 0.5 / 2**0.5  # -.05, -.05, -.2: mean -.1
    assert row(rules, "gspo", PUBLISHED, rule_table.LAG) == pytest.approx((-0.1, -0.1 - half(sd), -0.1 + half(sd), 3))
    assert row(rules, "fspo", PUBLISHED, rule_table.LAG)[0] == 0
    assert rule_table.select(rules, rule="none", at="0.85").empty


def test_a_seed_without_its_run_or_with_two_leaves_no_interval(monkeypatch):
    """Of four seeds, the runs of one rule lack one: three values, which alone would have an interval."""
    seeds = (11, 12, 13, 14)
    rows = {rule: [training(rule, seed, 0.8 + seed / 100) for seed in seeds] for rule in ("fspo", "rloo", "gspo")}
    rows["rloo"].pop()
    rows["gspo"].append([line | {"run": "gspo-11-again"} for line in training("gspo", 11, 0.1)])
    found = tables(training=[line for of_rule in rows.values() for run in of_rule for line in run])
    monkeypatch.setattr(rule_table, "read_tables", lambda runs: found)
    rules = rule_table.rule_rows([])
    assert (
        row(rules, "fspo", PUBLISHED, "held-out reward")[1]
        < 0.925
        < row(rules, "fspo", PUBLISHED, "held-out reward")[2]
    )
    for rule, mean in (("rloo", 0.92), ("gspo", 0.93)):
        value, low, high, number = row(rules, rule, PUBLISHED, "held-out reward")
        assert (value, number) == (pytest.approx(mean), 3)
        assert math.isnan(low)
        assert math.isnan(high)
    few = tables(training=[line for seed in seeds[:2] for line in training("fspo", seed, 0.8 + seed / 100)])
    monkeypatch.setattr(rule_table, "read_tables", lambda runs: few)
    value, low, high, number = row(rule_table.rule_rows([]), "fspo", PUBLISHED, "held-out reward")
    assert (value, number) == (pytest.approx(0.915), 2)
    assert math.isnan(low)
    assert math.isnan(high)


def test_the_page_shows_the_numbers(rules):
    text = rule_table.section(rules, "products")
    parts = text.split("\n\n")
    assert [part.strip() for part in parts[::2]] == [
        "On common logs of products:",
        "On common logs of products, responses with A != 0:",
        "As published, runs of products:",
        "As published, runs of products, responses with A != 0:",
        "As published, runs of products, responses with A != 0 in the second pass:",
    ]
    on_logs, of_update, in_runs, own_update, second_pass = ([*part.strip().splitlines()] for part in parts[1::2])
    assert on_logs[0] == "| rule | trend at 85 % | LRE_2 at 85 % | trend at 95 % | LRE_2 at 95 % |"
    gspo = next(line for line in on_logs if line.startswith("| gspo |"))
    assert gspo == "| gspo | -0.010 (-0.060 to 0.020) | 0.300 (0.200 to 0.500) | unknown | unknown |"
    gspo = next(line for line in of_update if line.startswith("| gspo |"))
    assert gspo.startswith(
        "| gspo | 0.050 (0.030 to 0.090) | 0.200 (0.100 to 0.300) | 1.000 (0.500 to 2.000) | unknown |"
    )
    gspo = next(line for line in in_runs if line.startswith("| gspo |"))
    assert f"| 0.800 [{0.8 - 0.248:.3f}, {0.8 + 0.248:.3f}] | 0.000 [-0.124, 0.124] | -0.100 [-0.315, 0.115] |" in gspo
    assert own_update[0] == "| rule | acceptance of A != 0 | trend of A != 0 | LRE_2 of A != 0 |"
    assert second_pass[0] == "| rule | acceptance of A != 0 | trend of A != 0 | LRE_2 of A != 0 |"
    assert text.count("| none |") == 3
    assert max(line.count("|") - 1 for line in text.splitlines()) == 8


def frame(*rows):
    """A table of `rule_rows` with these rows: rule, at, quantity, value, low, high."""
    return pd.DataFrame(rows, columns=["rule", "at", "quantity", "value", "low", "high"])


def line(rules, name):
    (found,) = (line for line in rule_table.advice(rules, "a task") if line.startswith(f"**{name}** on a task: "))
    return found


def test_the_advice_on_a_rule_names_the_least_lre_and_its_reward():
    rows = [
        ("gspo", PUBLISHED, "LRE_2", 0.1, 0.05, 0.15),
        ("rloo", PUBLISHED, "LRE_2", NAN, NAN, NAN),
        ("fspo", PUBLISHED, "LRE_2", 0.2, NAN, NAN),
        ("none", PUBLISHED, "LRE_2", 0.0, NAN, NAN),
        ("fspo", PUBLISHED, "held-out reward", 0.9, 0.8, 1.0),
        ("rloo", PUBLISHED, "LRE_2 of A != 0", 0.4, 0.3, 0.5),
        ("fspo", PUBLISHED, "LRE_2 of A != 0", 0.6, NAN, NAN),
    ]
    said = line(frame(*rows), "Rule")
    assert "of all responses `gspo` has the least estimate of LRE_2: `gspo` 0.100 [0.050, 0.150], `fspo` 0.200." in said
    nonzero = "as published, of the responses with A != 0 `rloo` has the least estimate of LRE_2: `rloo` 0.400 [0.300,"
    assert nonzero in said
    assert said.endswith("Held-out reward: `fspo` 0.900 [0.800, 1.000], `rloo` unknown, `gspo` unknown.")
    said = line(frame(*rows[1:5]), "Rule")
    assert said.endswith(
        "`fspo` has the least estimate of LRE_2: `fspo` 0.200. Held-out reward: `fspo` 0.900 [0.800, 1.000]."
    )
    said = line(frame(rows[1], rows[3], rows[4]), "Rule")
    assert said.endswith(
        "of all responses the LRE_2 of every rule is unknown. Held-out reward: `fspo` 0.900 [0.800, 1.000]."
    )


def test_the_advice_warns_of_a_rule_whose_reward_is_clearly_below_that_of_fspo():
    lag = rule_table.LAG
    rows = [
        ("gspo", PUBLISHED, lag, -0.2, -0.3, -0.1),
        ("rloo", PUBLISHED, lag, -0.2, -0.5, 0.1),
        ("fspo-kl", PUBLISHED, lag, -0.3, NAN, NAN),
        ("none", PUBLISHED, lag, -0.3, -0.4, -0.2),
        ("fspo", PUBLISHED, lag, 0.0, NAN, NAN),
    ]
    said = line(frame(*rows), "Reward")
    assert "beware: of 2 rules these have a held-out reward clearly below" in said
    assert said.endswith(": `gspo` -0.200 [-0.300, -0.100].")
    assert "none of 1 rules has a held-out reward clearly below" in line(frame(*rows[1:]), "Reward")
    assert line(frame(*rows[2:]), "Reward").endswith("no rule's held-out reward less that of `fspo` has an interval.")
    hardly = frame(("gspo", PUBLISHED, lag, -0.1, -0.2, -0.0004))  # the page would show [-0.200, 0.000]
    assert "none of 1 rules" in line(hardly, "Reward")


@pytest.mark.parametrize(("highest", "said"), [(0.099, True), (0.1, False), (0.0996, False), (NAN, False)])
def test_less_on_every_log_needs_a_smaller_lre_on_every_log(highest, said):
    name = "LRE_2 of A != 0"
    rows = [("fspo", "0.85", name, 0.2, 0.1, 0.3), ("fspo", "0.95", name, 0.05, 0.01, highest)]
    assert ("on every log less where it cuts less." in line(frame(*rows), "Cut")) == said
    assert "LRE_2 0.200 (0.100 to 0.300) where it leaves 85 % alone and 0.050" in line(frame(*rows), "Cut")


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ((0.95, 1.05), True),
        ((0.949, 1.0), False),
        ((1.0, 1.051), False),
        ((1.0, NAN), True),
    ],
)
def test_the_error_does_not_choose_only_if_all_errors_are_alike(errors, said):
    rows = [(rule, "0.95", "MSE", value, value, value) for rule, value in zip(("rloo", "gspo"), errors, strict=True)]
    found = line(frame(*rows, ("fspo", "0.95", "MSE", 1.0, 1.0, 1.0)), "Cut")
    assert ("all within 5 %, so the error does not choose between them." in found) == said
    least, most = (sorted(value for value in errors if value == value)[i] for i in (0, -1))
    assert f"{least:.3f} (`" in found
    assert f"to {most:.3f} (`" in found


def test_advice_without_numbers_concludes_nothing():
    said = rule_table.advice(frame(("fspo", "0.95", "MSE", 1.0, 1.0, 1.0)))
    assert all("nan" not in line for line in said)
    assert "`fspo` keeps 85 % at an unknown range and 95 % at an unknown range" in said[2]
    assert "has LRE_2 unknown where it leaves 85 % alone and unknown where it leaves 95 % alone. Where all" in said[3]
    assert said[3].endswith("the other rules' MSE is unknown.")
    assert "where both keep 85 %, is unknown and that of `fspo` unknown, the size of the former" in said[4]
    assert "every log" not in " ".join(said)


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((-0.03, -0.01), ": smaller on every log"),
        ((0.01, 0.03), ": larger on every log"),
        ((-0.01, 0.01), ""),
        ((-0.03, -0.0004), ""),  # the page would show 0.000
        ((0.0, 0.0), ""),
        ((NAN, NAN), ""),
    ],
)
def test_the_band_around_the_drift_is_compared_on_the_same_logs(ends, said):
    low, high = ends
    rows = [
        ("fspo", "0.85", "trend", -0.05, -0.06, -0.04),
        ("fspo-kl", "0.85", "trend", -0.03, -0.04, -0.02),
        ("fspo-kl", "0.85", rule_table.SIZE, (low + high) / 2, low, high),
    ]
    found = line(frame(*rows), "Drift")
    assert "is -0.030 (-0.040 to -0.020) and that of `fspo` -0.050 (-0.060 to -0.040)" in found
    size = "unknown" if low != low else f"{(low + high) / 2:z.3f} ({low:z.3f} to {high:z.3f})"
    assert f"the size of the former less that of the latter {size}{said}; where both keep 95 %" in found


def test_a_gain_without_runs_is_unknown():
    known = frame(("fspo", PUBLISHED, rule_table.GAIN, 0.1, 0.0, 0.2))
    lonely = frame(("fspo", PUBLISHED, rule_table.GAIN, 0.1, NAN, NAN))
    missing = frame(("fspo", PUBLISHED, rule_table.GAIN, NAN, NAN, NAN))
    none = frame(("gspo", PUBLISHED, "LRE_2", NAN, NAN, NAN), ("gspo", PUBLISHED, "LRE_2 of A != 0", 0.2, NAN, NAN))
    said = rule_table.gain_line({"a": known, "b": lonely, "c": missing, "d": none})
    assert said.endswith("is 0.100 [0.000, 0.200] (a), 0.100, no interval (b), unknown (c), unknown (d).")
    of_both = "is of the responses with A != 0 gspo (d); of all responses unknown (d)."
    assert rule_table.fairest_line({"d": none}).endswith(of_both)
    said = rule_table.readme_line({"d": none})
    assert "LRE_2 of the responses with A != 0 is: gspo 0.200; and of all responses is: gspo unknown. The held" in said
    assert said.endswith("The held-out reward is: gspo unknown.")
