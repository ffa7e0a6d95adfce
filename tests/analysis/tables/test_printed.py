"""The lines that ``fspo analyse`` prints of the tables, from tables made by hand."""

import math
from typing import Any

import pandas as pd

from analysis.log.partition import LENGTH, Partition
from analysis.tables.printed import DASH, compared, direction, fair_exponents, who_is_clipped

NAN = math.nan
FIRST = {"use": "first", "outside": "drop"}
KINDS = ("acceptance", "trend", "training")
SPANS = [(1, 10), (10, 100), (100, 200)]


def kept(rule: str, source: str, target: float, *shares: float, **others: object) -> list[dict[str, object]]:
    """Rows of table acceptance in the three bins, which are not in order, and one of all bins."""
    key = FIRST | {"measure": "update", "subset": "nonzero", "reason": ""}
    key |= {"rule": rule, "source": source, "target": target, **others}
    each = enumerate(zip(SPANS, shares, strict=True))
    rows = [key | {"bin": i, "bin_lo": low, "bin_hi": high, "estimate": share} for i, ((low, high), share) in each]
    return [*reversed(rows), key | {"bin": -1, "bin_lo": 1, "bin_hi": 200, "estimate": 0.5}]


def slope(rule: str, source: str, target: float, *values: float, **others: object) -> dict[str, object]:
    key = FIRST | {"measure": "update", "subset": "nonzero", "rule": rule, "source": source, "target": target} | others
    return key | dict(zip(("slope", "ci_low", "ci_high"), values, strict=True))


def tables(acceptance: list[dict[str, object]], trend: list[dict[str, object]], *rewards: float) -> dict[str, Any]:
    training = [{"name": "reward", "phase": "train", "value": reward} for reward in rewards]
    training += [{"name": "reward", "phase": "eval", "value": 9.0}, {"name": "clip", "phase": "train", "value": 9.0}]
    return {name: pd.DataFrame(x) for name, x in zip(KINDS, (acceptance, trend, training), strict=True)}


DECOYS = [
    *kept("rloo", "matched", 0.95, 0.1, 0.2, 0.3, use="reused"),
    *kept("rloo", "matched", 0.95, 0.1, 0.2, 0.3, measure="band", subset="all"),
    *kept("fspo", "matched", 0.95, 0.1, 0.2, 0.3, outside="truncate"),
    *kept("fspo-kl", "matched", 0.95, 0.1, 0.2, 0.3),
    *kept("gspo", "given", NAN, 0.1, 0.2, 0.3),
]
"""Rows of other epochs, acceptances, ways outside, rules and ranges, which are not printed."""


def test_clip_rates_of_the_own_rule_and_of_three_at_equal_clip_rates():
    acceptance = [*DECOYS, *kept("mine", "trained", NAN, 0.9, 0.8, 0.6), *kept("rloo", "matched", 0.85, 1.0, 0.9, 0.5)]
    acceptance += [*kept("rloo", "matched", 0.95, 0.99, 0.9, 0.75), *kept("fspo", "matched", 0.95, 0.84, 0.9, 0.92)]
    acceptance += kept("mine", "trained", NAN, 0.7, 0.8, 0.4, use="reused")
    trend = [
        slope("mine", "trained", NAN, -0.1234, -0.15, -0.1),
        slope("rloo", "matched", 0.85, -0.5, -0.6, -0.4),
        slope("rloo", "matched", 0.95, 0.5, 0.5, 0.5, use="reused"),
        slope("rloo", "matched", 0.95, -0.02, -0.03, 0.01),
        slope("fspo", "matched", 0.95, 0.002, NAN, NAN),
    ]
    head, *lines, dash = who_is_clipped(tables(acceptance, trend), LENGTH, "update")
    assert head.startswith("who is clipped, A != 0, first epoch")
    for words in ("all", "1 to 9 tokens", "100 to 199 tokens", "long/short", "points each doubling [95 %]"):
        assert words in head
    assert [" ".join(line.split()) for line in lines] == [
        "mine, as trained 50.0 % 10.0 % 40.0 % 4 +12.3 [+10.0, +15.0]",
        "mine, later epochs 50.0 % 30.0 % 60.0 % 2 -",
        "rloo, 5 % clipped 50.0 % 1.0 % 25.0 % 25 +2.0 [-1.0, +3.0]",
        "fspo, 5 % clipped 50.0 % 16.0 % 8.0 % 0.5 -",
        "rloo, 15 % clipped 50.0 % 0.0 % 50.0 % - +50.0 [+40.0, +60.0]",
    ]
    assert len({len(line) for line in (head, *lines)}) == 1
    assert dash == DASH
    acceptance = [row | {"estimate": 1} for row in kept("mine", "trained", NAN, 1, 1, 1)]
    assert who_is_clipped(tables(acceptance, trend), LENGTH, "update")[-1].startswith("  mine clipped nothing: raise")
    assert "nothing" not in " ".join(who_is_clipped(tables(acceptance, trend), LENGTH, "engine"))


def test_rates_are_of_later_epochs_where_no_first_epoch_follows_an_update():
    acceptance = kept("mine", "trained", NAN, 0.9, 0.8, 0.6, use="reused")
    trend = [slope("mine", "trained", NAN, -0.1, -0.2, 0.0, use="reused")]
    head, line = who_is_clipped(tables(acceptance, trend), LENGTH, "update")
    assert head.startswith("who is clipped, A != 0, later epochs")
    assert " ".join(line.split()) == "mine, as trained 50.0 % 10.0 % 40.0 % 4 +10.0 [-0.0, +20.0]"


def test_several_runs_are_told_by_their_own_rules_in_bins_that_all_of_them_know():
    def run(rule: str, *shares: float) -> dict[str, Any]:
        acceptance = kept(rule, "trained", NAN, *shares) + kept("rloo", "matched", 0.95, 0.5, 0.5, 0.5)
        rewards = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 1.0) if rule == "fspo" else ()
        return tables(acceptance, [slope(rule, "trained", NAN, -0.1, -0.2, 0.0)], *rewards)

    head, *lines = compared({"a": run("fspo", 0.9, 0.8, 0.6), "b": run("gspo", NAN, 0.9, 0.97)}, LENGTH, "update")
    assert "10 to 99 tokens  100 to 199 tokens" in head  # the shortest are not known of b
    assert [" ".join(line.split()) for line in lines] == [
        "a 50.0 % 20.0 % 40.0 % 2 +10.0 [-0.0, +20.0]",
        "b 50.0 % 10.0 % 3.0 % 0.3 +10.0 [-0.0, +20.0]",
        "mean reward in the last quarter of the rollouts (one seed each): a 0.85",
    ]
    none = tables(kept("none", "trained", NAN, 1, 1, 1), [slope("x", "trained", NAN, 0, 0, 0)])
    unknown = tables(kept("rloo", "matched", 0.95, 0.5, 0.5, 0.5), [slope("rloo", "matched", 0.95, 0, 0, 0)])
    _, _, *lines = compared({"a": run("fspo", 0.9, 0.8, 0.6), "c": none, "d": unknown}, LENGTH, "update")
    assert lines[0].split() == ["c", "50.0", "%", "0.0", "%", "0.0", "%", "-", "-"]
    assert lines[1].split() == ["d", *"-----"]  # no rule is named, so nobody knows what it clipped
    *_, told, _ = compared({"a": run("fspo", 0.9, 0.8, 0.6), "b": run("gspo", 0.9, 0.8, NAN)}, LENGTH, "update")
    assert told == "  above 10 to 99 tokens: too few prompts in b"
    (line,) = compared({"a": run("fspo", 0.9, NAN, NAN), "b": run("gspo", NAN, 0.9, 0.97)}, LENGTH, "update")
    assert "fewer than two bins" in line


def test_without_advantages_all_responses_are_told_by_the_band():
    acceptance = kept("fspo", "matched", 0.95, 0.96, 0.95, 0.94, measure="band", subset="all")
    trend = [slope("fspo", "matched", 0.95, -0.01, -0.02, 0.0, measure="band", subset="all")]
    head, line = who_is_clipped(tables(acceptance, trend), Partition("entropy", "H"), "update")
    assert head.split("  ")[0] == "who is clipped, first epoch"
    assert "1 to 10 entropy" in head
    assert "each standard deviation" in head
    assert " ".join(line.split()) == "fspo, 5 % clipped 50.0 % 4.0 % 6.0 % 1.5 +1.0 [-0.0, +2.0]"


def test_corrections_are_told_at_their_default_range_too_and_those_on_tokens_by_their_factor():
    mask = {"outside": "mask"}
    acceptance = [*kept("none", "given", NAN, 1, 1, 1), *kept("mis", "given", NAN, 1.0, 1.0, 0.98, **mask)]
    acceptance += kept("geo-mask", "matched", 0.95, 0.9, 0.95, 1.0, **mask)
    acceptance += kept("tis", "trained", NAN, 0.5, 0.7, 0.75, measure="factor", subset="all", outside="cap")
    acceptance += kept("engine-sqrt", "given", NAN, NAN, NAN, NAN, reason="no k3_sum", **mask)[:-1]
    _, *lines, _, lost = who_is_clipped(tables(acceptance, [slope("x", "given", NAN, 1, 1, 1)]), LENGTH, "engine")
    assert [" ".join(line.split()) for line in lines] == [
        "mis, default range 50.0 % 0.0 % 2.0 % - -",
        "geo-mask, 5 % masked 50.0 % 10.0 % 0.0 % 0 -",
        "tis, as trained: mean factor - 0.500 0.750 1.5 -",
    ]
    assert lost == "  engine-sqrt: not known, no k3_sum"


def test_no_rate_is_told_in_one_line():
    for share, reason, told in (
        (NAN, "fewer than 5 clusters", "not known, too few prompts in each bin; more rollouts will tell"),
        (NAN, "multiplier not logged", "not known (multiplier not logged)"),
        (0.9, "", "not known, only one bin (10 to 99 tokens) has enough responses; more rollouts will tell"),
    ):
        acceptance = kept("fspo", "matched", 0.95, NAN, share, NAN, reason=reason)
        trend = [slope("fspo", "matched", 0.95, NAN, NAN, NAN)]
        assert who_is_clipped(tables(acceptance, trend), LENGTH, "update") == [f"who is clipped: {told}"]


def cosine(rule: str, value: float, **others: object) -> dict[str, object]:
    row = FIRST | {"rule": rule, "source": "matched", "target": 0.95, "bin": -1, "estimate": value}
    return row | {"ci_low": value - 0.01, "ci_high": value + 0.01} | others


def test_the_direction_is_the_cosine_over_all_lengths_at_the_lower_clip_rate():
    rows = [cosine("rloo", 0.9), cosine("fspo", 0.95), cosine("random", 0.5), cosine("fspo-kl", 0.5)]
    rows += [cosine("rloo", 0.1, target=0.85), cosine("rloo", 0.2, bin=3), cosine("fspo", 0.3, use="reused")]
    rows += [cosine("fspo", 0.4, outside="cap"), cosine("fspo", 0.5, source="trained")]
    told = "cosine with the unclipped gradient at 5 % clipped: rloo 0.90 [0.89, 0.91], fspo 0.95 [0.94, 0.96]"
    assert direction(pd.DataFrame(rows)) == told
    told = "not known (damaged scores)"
    assert direction(pd.DataFrame([cosine("rloo", NAN, reason="damaged scores")])) == told
    assert "no scores" in direction(pd.DataFrame())


def test_fair_exponents_are_those_by_sign_where_the_log_has_advantages():
    def row(subset: str, sign: str, value: float, low: float = NAN, use: str = "first") -> dict[str, object]:
        ends: dict[str, object] = {"fair_95": value, "fair_95_ci_low": low, "fair_95_ci_high": value + 0.1}
        return {"use": use, "subset": subset, "sign": sign} | ends

    rows = [row("all", "all", 0.9, 0.8), row("nonzero", "all", 0.5, 0.4), row("nonzero", "positive", 0.7, 0.6)]
    rows += [row("nonzero", "negative", 0.3), row("nonzero", "all", 0.1, 0.1, "reused")]  # the one has no interval
    (line,) = fair_exponents(pd.DataFrame(rows))
    assert line == "fair exponent at 5 % clipped: all 0.50 [0.40, 0.60], A > 0 0.70 [0.60, 0.80], A < 0 not known"
    assert fair_exponents(pd.DataFrame(rows[:1])) == ["fair exponent at 5 % clipped: all 0.90 [0.80, 1.00]"]
    assert fair_exponents(pd.DataFrame([row("all", "all", NAN)])) == []
