"""The sentences of the report's first screen, against tables made by hand."""

import re

import numpy as np
import pandas as pd
import pytest

from figures import find_module, numbers_of
from figures.page import story
from figures.page.charts import CHARTS, charts

KEY = {"run": "a", "trained_rule": "fspo", "seed": 0, "outside": "drop", "source": "matched", "subset": "all"}
KEY |= {"use": "first", "measure": "band", "reason": ""}


def acceptance() -> pd.DataFrame:
    """Two targets, two rules, three bins; rloo's middle bin is unknown."""
    kept = {"rloo": (0.9, np.nan, 0.7), "fspo": (0.85, 0.84, 0.8)}
    rows = []
    for target, more in ((0.95, 0.05), (0.85, 0.0)):
        for rule, values in kept.items():
            for at, value in enumerate((0.85, *values), -1):
                end = {"bin": at, "bin_lo": 4 ** (at + 1), "bin_hi": 4 ** (at + 2), "estimate": value + more}
                rows.append(KEY | {"rule": rule, "target": target} | end)
    frame = pd.DataFrame(rows)
    return frame.assign(ci_low=frame["estimate"] - 0.04, ci_high=frame["estimate"] + 0.02, bin_mean=8, count=50)


def test_who_is_cut_at_the_least_share_kept():
    assert story.cut(acceptance()) == (
        "At 85 % of all responses kept (log of a), of responses of 64 to 256 tokens and of those of 4 to 16, "
        "rloo cuts 30 % [28, 34] and 10 % [8, 14] (3.0 times as often); "
        "fspo cuts 20 % [18, 24] and 15 % [13, 19] (1.3 times as often; the intervals overlap)."
    )


def test_where_nothing_is_cut_there_is_no_ratio():
    frame = acceptance()
    frame.loc[frame["bin"] == 0, ["estimate", "ci_low", "ci_high"]] = (1.0, 0.99, 1.0)
    assert "rloo cuts 30 % [28, 34] and 0 % [0, 1]; fspo" in story.cut(frame)


def test_a_sentence_without_data_says_how_much_would_do():
    assert story.cut(pd.DataFrame()) == "These runs do not show how often each length is cut."
    reason = "its norm cannot be told from 0: about 3.5 times the responses are needed"
    frame = acceptance().assign(estimate=np.nan, reason=reason)
    words = "These runs do not show how often each length is cut (3.5 times the responses needed)."
    assert story.cut(frame) == words
    assert story.turned(pd.DataFrame()).endswith("a run with --log.score-every 1 writes them.")
    cosine = frame.assign(subset="nonzero")
    assert "how far clipping turns the update (3.5 times" in story.turned(cosine)
    known = cosine["rule"] == "fspo"
    cosine.loc[known, ["estimate", "ci_low", "ci_high"]] = (0.9876, -0.5, 0.999)
    assert story.turned(cosine) == (
        "At 85 % of responses with A ≠ 0 kept (log of a), the clipped update has with the true one a cosine of "
        "(too little data: 3.5 times the responses needed) under rloo, 0.988 [−0.500, 0.999] under fspo."
    )


def test_the_rules_that_trained_come_before_their_rivals():
    own = acceptance().query("target == 0.85 and rule == 'fspo'").assign(source="trained", target=np.nan)
    other = own.assign(run="b", rule="gspo", estimate=own["estimate"] - 0.5, ci_low=0.1, ci_high=0.5)
    none = own.assign(run="c", rule="none", estimate=1.0)
    frame = pd.concat([acceptance(), none, own, own.assign(run="d"), other])
    lengths = "cuts, of responses of 64 to 256 and of 4 to 16 tokens"
    assert story.as_trained(frame) == (
        f"As trained, fspo (run a) {lengths}, 20 % [18, 24] and 15 % [13, 19] (1.3 times as often; the intervals "
        f"overlap); gspo (run b) {lengths}, 70 % [50, 90] and 65 % [50, 90] (1.1 times as often; the intervals "
        "overlap)."
    )
    assert story.as_trained(acceptance()) == "These runs do not show how often the rule that trained cuts each length."
    tables = {"acceptance": frame, "cosine": pd.DataFrame()}
    asked = [question for question, _ in story.sentences(tables, [])]
    assert asked == [story.HEALTH, story.CUT, story.CUT, story.UPDATE]


def test_what_the_doctor_found():
    found = [{"id": f"f{i}", "severity": "warning", "summary": f"s{i}"} for i in range(4)]
    run = {"run": "out/a", "findings": [], "clear": [1, 2], "not_checked": [3]}
    rest = "2 checks found nothing, 1 could not be made."
    assert story.healthy([run]) == f"The doctor finds no problem: {rest}"
    said = "; ".join(f"in a warning f{i}, s{i}" for i in range(3))
    assert story.healthy([run | {"findings": found}]) == f"The doctor finds: {said}; and 1 more; {rest}"


def test_points_of_a_chart_say_their_row():
    numbers = acceptance().replace({"bin": {-1: "all"}}).assign(panel=acceptance()["target"].map("{:g}".format))
    _, (low, high) = charts("acceptance_by_length", numbers)
    assert (low["title"], high["title"]) == ("0.95", "0.85")
    points = high["spec"]["data"]["values"]
    assert [point["words"] for point in points if point["rule"] == "rloo"] == [
        "rloo (a), 4 to 16 tokens: 90 % [86, 92], 50 responses",
        "rloo (a), 64 to 256 tokens: 70 % [66, 72], 50 responses",
    ]
    assert [(point["low"], point["y"], point["high"]) for point in points][-1] == (76.0, 80.0, 82.0)
    assert charts("error_split", numbers) == charts("acceptance_by_length", numbers.iloc[:0]) == ("", [])
    assert charts("acceptance_by_length", pd.concat([numbers] * 500)) == ("", [])  # more points than a page can hold


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_has_the_points_of_the_figures_numbers(case_tables, name):
    rows = find_module(name).rows(case_tables("one"))
    chart = CHARTS[name]
    told = numbers_of(rows)
    caption, found = charts(name, told)
    shown = [point for one in found for point in one["spec"]["data"]["values"]]
    rule = "rule" if "rule" in rows else "trained_rule"
    own = rows[(rows[rule] == "fspo") & rows[chart.y].notna()]
    if chart.kind != "point" and "bin" in own:
        own = own[own["bin"] >= 0]
    elif "outside" in own:
        own = own[own["outside"] == "drop"]
    for column, value in chart.only.items():
        own = own[own[column] == value]
    assert len(own)
    heights = sorted(point["y"] for point in shown if point["rule"] == "fspo")
    np.testing.assert_allclose(heights, sorted(own[chart.y] * (100 if chart.percent else 1)))
    assert not any("nan" in one["title"] or "$" in one["title"] for one in found)
    # the caption names what charts can show, and nothing that the printed figure alone has
    assert not re.search(
        r"[Cc]urves:|[Gg]rey|[Dd]otted|[Dd]ashed|[Ss]haded|Tick|Thin|Left|Right|panel|nan|[{}$]", caption
    )
    marks = {layer["mark"]["type"] for one in found for layer in one["spec"]["layer"]}
    assert marks == {"line", "rule", "point"} if re.search(r"\bline", caption) else "point" in marks
    assert ("bars" in caption.lower() or "intervals" in caption) == any("low" in point for point in shown)
    for count in re.findall(r"n = ([\d,]+)(?: to ([\d,]+))?", caption):
        words = " ".join(point["words"] for point in shown)
        assert all(f", {number.replace(',', '')} responses" in words for number in count if number)


def test_a_chart_over_training_has_a_panel_for_each_bin(case_tables):
    _, found = charts("clip_over_training", numbers_of(find_module("clip_over_training").rows(case_tables("one"))))
    assert [one["title"] for one in found][:2] == ["4 to 16 tokens", "16 to 32 tokens"]
    assert found[0]["spec"]["data"]["values"][1]["words"].startswith("fspo (fspo), rollout 4: ")
