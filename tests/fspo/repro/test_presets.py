"""What the trained sweep changes: counts, ranges and sizes by hand, and what cannot be trained says why."""

import math
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from analysis.claims.catalogue import DEVELOPMENT_SEEDS
from fspo.config import TrainConfig
from fspo.repro.presets import JUDGING_SEEDS, PRESETS, variants

FIT = {
    "fspo": {"range_lo": 0.02, "range_hi": 0.05},
    "rloo": {"range_lo": 0.36, "range_hi": 0.44},
    "gspo": {"range_lo": 0.01, "range_hi": 0.02},
}


def found(**changes):
    return {(v.rule, v.setting, v.value): v for v in variants(replace(PRESETS["paper"], **changes), FIT)}


@cache
def whole():
    return found()


def test_each_rule_has_its_own_run_and_eleven_variants():
    counts = Counter((rule, setting) for rule, setting, _ in whole())
    one = {"base": 1, "range": 2, "dual": 1, "outside": 2, "aggregation": 2, "group": 2, "minibatches": 2}
    assert counts == {(rule, setting): n for rule in ("fspo", "rloo", "gspo") for setting, n in one.items()}
    names = [v.trained_as for v in whole().values()]
    assert len(set(names)) == len(names) == 36
    assert {"fspo", "fspo-truncate", "fspo-cap", "rloo-outside-cap"} <= set(names)
    refused = {place: v.reason for place, v in whole().items() if v.reason}
    assert list(refused) == [("gspo", "aggregation", "constant")]
    assert "divides by length twice" in refused["gspo", "aggregation", "constant"]
    assert not PRESETS["quick"].sweep


def test_judging_seeds_are_none_of_those_that_were_looked_at():
    assert not set(JUDGING_SEEDS) & set(DEVELOPMENT_SEEDS)
    assert all(set(PRESETS[name].seeds) <= set(JUDGING_SEEDS) for name in ("quick", "paper"))


def test_only_the_smoke_preset_leaves_checks_of_the_theory_out():
    assert [name for name, sizes in PRESETS.items() if sizes.checks or sizes.maps] == ["smoke"]


def test_ranges_are_halved_and_doubled_in_log_space_from_the_calibrated_ones():
    assert whole()["fspo", "range", "half"].options == {"rule.range_lo": 0.01, "rule.range_hi": 0.025}
    rloo = whole()["rloo", "range", "double"].options
    assert rloo == pytest.approx({"rule.range_lo": 1 - 0.64**2, "rule.range_hi": 1.44**2 - 1})
    half = whole()["rloo", "range", "half"].options
    assert half == pytest.approx({"rule.range_lo": 1 - math.sqrt(0.64), "rule.range_hi": math.sqrt(1.44) - 1})


def test_groups_change_at_an_equal_number_of_responses():
    sizes = TrainConfig().batch
    for value, responses in (("half", sizes.responses / 2), ("double", sizes.responses * 2)):
        options = whole()["gspo", "group", value].options
        assert options["batch.responses"] == responses
        assert options["batch.responses"] * options["batch.prompts"] == sizes.responses * sizes.prompts


def test_what_cannot_be_trained_says_why():
    odd = found(swept=("fspo",), options={"batch.prompts": 5, "batch.responses": 3, "batch.minibatches": 3})
    assert odd["fspo", "group", "half"].reason == "not trained: 3 responses a prompt cannot be halved"
    assert odd["fspo", "group", "double"].reason == "not trained: 5 prompts cannot be halved"
    assert odd["fspo", "minibatches", "half"].reason == "not trained: 3 minibatches cannot be halved"
    assert "batch.minibatches=6 exceeds batch.prompts=5" in odd["fspo", "minibatches", "double"].reason
    assert not odd["fspo", "range", "half"].reason
    wide = {"rloo": {"range_lo": 1 - 1e-12, "range_hi": 1e12}}  # 1 - 1e-24 is 1 in float64: no lower range
    sizes = replace(PRESETS["paper"], swept=("rloo",))
    rloo = {v.value: v.reason for v in variants(sizes, wide) if v.setting == "range"}
    assert rloo["half"] == ""
    assert "more than an eps can express" in rloo["double"]


def test_only_trained_rules_are_varied_and_one_value_of_each_on_request():
    assert {rule for rule, *_ in found(rules=("gspo", "grpo"))} == {"gspo"}
    assert found(rules=("grpo",)) == {}
    few = found(every_value=False, swept=("fspo",))
    assert [setting for _, setting, _ in few] == [
        "base", "range", "dual", "outside", "aggregation", "group", "minibatches",
    ]  # fmt: skip
