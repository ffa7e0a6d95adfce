"""What is drawn is what the tables say; nothing is cut off, overlaps or is too small; empty input is skipped."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PolyCollection

from figures import draw_all, find_module
from figures.of_runs import FIGURES
from figures.of_runs.acceptance_series import theory_curve
from figures.style import Style
from figures.tables import NothingToDraw, Tables
from fspo.base.errors import UserError
from tests.figures.looking import assert_legible, bars, in_row, marked, titled

CASES = ("usual", "one", "near-one", "spoiled")


def ends(
    rows: pd.DataFrame, scale: float = 1.0, low: str = "ci_low", high: str = "ci_high"
) -> set[tuple[float, float]]:
    pairs = rows[[low, high]].dropna().to_numpy() * scale
    return {(round(float(a), 9), round(float(b), 9)) for a, b in pairs}


def test_acceptance_draws_the_tables_numbers(case_tables):
    tables = case_tables("usual")
    fig = find_module("acceptance_by_length").figure(tables, Style())
    t = tables["acceptance"]
    shared = t[(t["run"] == "none-s0") & (t["measure"] == "band") & (t["subset"] == "all") & (t["bin"] >= 0)]
    for target, title in ((0.95, "5 % clipped"), (0.85, "15 % clipped")):
        rows = shared[(shared["source"] == "matched") & (shared["target"] == target)]
        ax = titled(fig, title)
        for rule, color in (("rloo", "#D55E00"), ("gspo", "#009E73"), ("fspo", "#0072B2"), ("fspo-kl", "#56B4E9")):
            own = rows[rows["rule"] == rule].sort_values("bin")
            points = marked(ax, color=color)
            np.testing.assert_array_equal(points[:, 1], own["estimate"])
            np.testing.assert_allclose(points[:, 0] / own["bin_mean"], points[0, 0] / own["bin_mean"].iloc[0])
        assert ends(rows) <= bars(ax, 1)
    trained = t[(t["source"] == "trained") & (t["trained_rule"] == "gspo") & (t["measure"] == "band")]
    trained = trained[(trained["subset"] == "all") & (trained["bin"] >= 0)]
    drawn = marked(titled(fig, "as trained"), color="#009E73")[:, 1]
    assert sorted(drawn) == sorted(trained["estimate"])  # both seeds


def test_a_caller_chooses_the_rules(case_tables, tmp_path):
    (drawn,) = draw_all(case_tables("usual"), tmp_path, only=["acceptance_by_length"], rules=["gspo"])
    assert drawn.numbers is not None
    told = pd.read_csv(drawn.numbers)
    assert set(told["rule"]) == {"gspo"}
    assert set(told["source"]) == {"matched", "trained"}
    with pytest.raises(UserError, match="did you mean 'gspo'"):
        draw_all(case_tables("usual"), tmp_path, rules=["gspoo"])


def test_theory_curve_against_the_closed_form():
    lengths, shares, at = np.array([10.0, 40.0, 160.0]), np.array([0.2, 0.5, 0.3]), np.array([5.0, 20.0, 300.0])

    def law(length: float, sigma: float) -> float:
        root = sigma * math.sqrt(2 * length)
        return 0.5 * (math.erf(math.log(1.2) / root) - math.erf(math.log(0.8) / root))

    low, high = 1e-6, 1e3
    for _ in range(200):
        middle = math.sqrt(low * high)
        mean = sum(p * law(length, middle) for p, length in zip(shares, lengths, strict=True))
        low, high = (middle, high) if mean > 0.9 else (low, middle)
    np.testing.assert_allclose(theory_curve("rloo", lengths, shares, 0.9, at), [law(x, low) for x in at], rtol=1e-9)
    np.testing.assert_allclose(theory_curve("fspo-kl", lengths, shares, 0.9, at), 0.9, rtol=1e-9)
    for rule, overall in (("grpo", 0.9), ("none", 0.9), ("my-own", 0.9), ("rloo", 1.0), ("rloo", 0.0)):
        assert theory_curve(rule, lengths, shares, overall, at).size == 0


def test_lre_draws_the_tables_numbers(case_tables):
    tables = case_tables("usual")
    fig = find_module("lre_by_rule").figure(tables, Style())
    t = tables["lre"]
    rows = t[(t["run"] == "none-s0") & (t["source"] == "matched") & (t["outside"] == "drop")]
    labels = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    for i, norm in enumerate(("l2", "inf")):
        for j, (measure, subset) in enumerate((("band", "all"), ("update", "nonzero"), ("weight", "nonzero"))):
            ax = fig.axes[3 * i + j]
            part = rows[(rows["norm"] == norm) & (rows["measure"] == measure) & (rows["subset"] == subset)]
            for target, fill in ((0.95, "full"), (0.85, "none")):
                want = part[part["target"] == target].set_index("rule")["estimate"]
                points = marked(ax, marker="o", fillstyle=fill)
                got = {labels[round(y)]: x for x, y in points}
                assert got == want.to_dict()
            assert ends(part) <= bars(ax, 0)
            assert ax.get_xlim()[1] > max(high for _, high in bars(ax, 0))


def test_cosines_draw_the_tables_numbers_and_the_control(case_tables):
    tables = case_tables("usual")
    fig = find_module("cosine_by_rule").figure(tables, Style())
    t = tables["cosine"]
    rows = t[(t["run"] == "none-s0") & (t["source"] == "matched") & (t["bin"] == -1) & (t["target"] == 0.85)]
    for ax, column, low, high in (
        (in_row(fig, "15 % clipped")[0], "estimate", "ci_low", "ci_high"),
        (in_row(fig, "15 % clipped")[1], "worst_bin", "worst_ci_low", "worst_ci_high"),
    ):
        for outside, marker in (("drop", "o"), ("truncate", "s"), ("cap", "D")):
            want = rows[(rows["outside"] == outside) & (rows["rule"] != "random")]
            assert sorted(marked(ax, marker=marker)[:, 0]) == sorted(want[column])
        assert ends(rows[rows["rule"] != "random"], 1.0, low, high) <= bars(ax, 0)
        control = [line for line in ax.get_lines() if line.get_linestyle() == "--"]
        assert [line.get_xdata()[0] for line in control] == [rows.loc[rows["rule"] == "random", column].iloc[0]]


def test_bound_and_guarantee(case_tables):
    tables = case_tables("usual")
    fig = find_module("cosine_bound").figure(tables, Style())
    t = tables["lemma"]
    rows = t[(t["run"] == "none-s0") & (t["source"] == "matched") & (t["target"] == 0.85) & (t["outside"] == "drop")]
    ax = titled(fig, "15 % clipped")
    for rule, marker in (("rloo", "s"), ("gspo", "^"), ("fspo", "o"), ("fspo-kl", "D")):
        own = rows[rows["rule"] == rule]
        np.testing.assert_array_equal(marked(ax, marker=marker), own[["rho", "cosine"]])
    assert f"no guarantee: {(~rows['guaranteed']).sum()} of {len(rows)}" in ax.get_title(loc="left")
    curve = next(line for line in ax.get_lines() if line.get_color() == "black")
    rho, bound = np.asarray(curve.get_data(), float)
    np.testing.assert_allclose(bound, np.sqrt(np.maximum(1 - rho**2, 0)), atol=1e-7)
    shaded = [patch for patch in ax.patches if patch.get_x() == 1.0]
    assert len(shaded) == 1
    assert rows["rho"].max() < ax.get_xlim()[1]


def test_split_draws_every_update(case_tables):
    tables = case_tables("usual")
    fig = find_module("error_split").figure(tables, Style())
    t = tables["lemma"]
    rows = t[(t["run"] == "none-s0") & (t["source"] == "matched") & (t["target"] == 0.95)]
    ax = titled(fig, "5 % clipped")
    labels = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    assert labels[:4] == ["rloo", "gspo", "fspo", "fspo-kl"]
    assert "fspo, truncate" in labels
    for part, marker in (("e_len", "^"), ("e_in", "o")):
        points = marked(ax, marker=marker)
        assert sorted(points[:, 0]) == sorted(rows[part])
        own = rows[(rows["rule"] == "fspo") & (rows["outside"] == "truncate")]
        place = labels.index("fspo, truncate")
        assert sorted(x for x, y in points if round(y) == place) == sorted(own[part])


@pytest.mark.parametrize("case", ["one", "usual"])
def test_clip_rate_lines_and_shades(case_tables, case):
    tables = case_tables(case)
    fig = find_module("clip_over_training").figure(tables, Style())
    t = tables["over_time"]
    rows = t[(t["trained_rule"] == "fspo") & t["bin"].isin([0, 2, 4])]
    ax = titled(fig, "fspo")
    want = {tuple(part.sort_values("window")["estimate"]) for _, part in rows.groupby(["run", "bin"])}
    assert {tuple(line.get_ydata()) for line in ax.get_lines()} == want
    shades = [c for c in ax.collections if isinstance(c, PolyCollection)]
    assert len(shades) == (3 if case == "one" else 0)  # one run: intervals; several seeds: lines
    names = [text.get_text() for text in fig.legends[0].get_texts()]
    assert sorted(names) == sorted(f"{a:.0f}–{b - 1:.0f} tokens" for a, b in ends(rows, 1, "bin_lo", "bin_hi"))
    for shade, number in zip(shades, (0, 2, 4), strict=False):
        edge = {(round(float(x), 9), round(float(y), 9)) for x, y in shade.get_paths()[0].vertices}
        own = rows[rows["bin"] == number]
        for column in ("ci_low", "ci_high"):
            assert {(float(w), round(float(v), 9)) for w, v in zip(own["window"], own[column], strict=True)} <= edge
    assert not any(a.get_title(loc="left") == "none" for a in fig.axes)


def test_variances_and_exponents(case_tables):
    tables = case_tables("one")
    fig = find_module("variance_scaling").figure(tables, Style())
    t = tables["moments"]
    rows = t[(t["subset"] == "all") & (t["bin"] >= 0)].sort_values("bin")
    left, right = fig.axes
    np.testing.assert_array_equal(marked(left, color="#0072B2"), rows[["bin_mean", "var_S"]])
    assert ends(rows, 1.0, "var_S_ci_low", "var_S_ci_high") == bars(left, 1)
    fit = tables["scaling"].query("subset == 'all' and sign == 'all'").iloc[0]
    line = next(line for line in left.get_lines() if line.get_color() == "#0072B2" and line.get_marker() == "None")
    x, y = np.asarray(line.get_data(), float)
    np.testing.assert_allclose(np.log(y), fit["intercept"] + fit["slope_2H"] * np.log(x))
    reference = next(line for line in left.get_lines() if line.get_color() == "#9a9a9a")
    x, y = np.asarray(reference.get_data(), float)
    assert math.log(y[1] / y[0]) / math.log(x[1] / x[0]) == pytest.approx(1.0)
    assert marked(right)[0, 0] == fit["slope_2H"]
    assert bars(right, 0) == ends(pd.DataFrame([fit]))


def test_training_curves_show_every_run(case_tables):
    tables = case_tables("usual")
    fig = find_module("training_curves").figure(tables, Style())
    t = tables["training"]
    want = {tuple(part["value"]) for _, part in t[t["name"] == "completions/mean_length"].groupby("run")}
    assert {tuple(line.get_ydata()) for line in titled(fig, "mean length").get_lines()} == want
    held_out = t[t["name"] == "eval/reward"]["value"]
    assert {(round(v - 0.03, 9), round(v + 0.03, 9)) for v in held_out} == bars(titled(fig, "reward (held out)"), 1)


def test_drift_draws_the_tables_numbers(case_tables):
    tables = case_tables("usual")
    fig = find_module("drift_by_sign").figure(tables, Style())
    rows = tables["scaling"].query("subset == 'all'")
    for sign, marker in (("all", "o"), ("positive", "^"), ("negative", "v")):
        drawn = marked(fig.axes[0], marker=marker)[:, 0]
        np.testing.assert_allclose(sorted(drawn), sorted(1e3 * rows.loc[rows["sign"] == sign, "drift_per_token"]))
    assert ends(rows, 1e3, "drift_ci_low", "drift_ci_high") == bars(fig.axes[0], 0)


def test_fair_exponents_are_the_tables_numbers(case_tables):
    tables = case_tables("usual")
    fig = find_module("fair_exponent").figure(tables, Style())
    t = tables["scaling"].query("subset == 'nonzero' and use == 'first'")
    for kept, title in ((95, "5 % clipped"), (85, "15 % clipped")):
        ax = titled(fig, title)
        for sign, marker in (("all", "o"), ("positive", "^"), ("negative", "v")):
            own = t.loc[t["sign"] == sign, f"fair_{kept}"]
            drawn = marked(ax, marker=marker)[:, 0]
            np.testing.assert_allclose(sorted(drawn), sorted(own[np.isfinite(own)]))
            assert len(drawn)
        assert ends(t, 1.0, f"fair_{kept}_ci_low", f"fair_{kept}_ci_high") == bars(ax, 0)
    assert fig.axes[0].get_xlim() == fig.axes[1].get_xlim()


def skip_if_unclipped(name: str, case: str) -> None:
    if (name, case) == ("clip_over_training", "near-one"):
        pytest.skip("that case has an unclipped run alone: see test_a_skipped_figure_is_listed_with_its_reason")


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize(
    ("case", "width"),
    [
        *((c, "acl-column") for c in ("usual", "spoiled")),
        ("usual", "neurips"),
        *(pytest.param(c, "acl-column", marks=pytest.mark.slow) for c in ("one", "near-one")),
    ],
)
def test_figures_are_legible_and_their_legend_names_each_thing_once(case_tables, monkeypatch, name, case, width):
    """Nothing is cut off, overlaps or is too small."""
    skip_if_unclipped(name, case)
    style = Style(width)
    with style.context():
        fig = find_module(name).figure(case_tables(case), style)
        assert_legible(fig, style, monkeypatch)
    if case == "usual":
        labels = [text.get_text() for legend in fig.legends for text in legend.get_texts()]
        assert len(labels) == len(set(labels))
        if name in ("acceptance_by_length", "training_curves"):
            rules = ["rloo", "gspo", "fspo", "fspo-kl", "fspo-adaptive"]
            assert labels == ([*rules, "numerics alone"] if name == "acceptance_by_length" else ["none", *rules])


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("case", CASES)
def test_captions_are_filled_in_and_cite_the_theory(case_tables, name, case):
    skip_if_unclipped(name, case)
    text = find_module(name).caption(case_tables(case))
    assert len(text.partition("\n\n")[0]) <= 440  # four lines
    assert not set("{}$\\") & set(text)
    assert "docs/theory.md" in text
    assert "nan" not in text.split()


@pytest.mark.parametrize("name", FIGURES)
def test_missing_input_is_skipped_with_the_reason(name, tmp_path):
    (result,) = draw_all(Tables({}), tmp_path, only=[name])
    assert "is missing or empty" in result.skipped
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["acceptance_by_length", "lre_by_rule", "cosine_by_rule"])
def test_values_that_are_all_missing_are_skipped_with_the_tables_reason(case_tables, name):
    frames = {}
    for key, frame in case_tables("one").frames.items():
        hollow = frame.copy()
        for column in {"estimate", "ci_low", "ci_high", "worst_bin"} & set(frame):
            hollow[column] = np.nan
        frames[key] = hollow.assign(reason="fewer than 20 clusters")
    with pytest.raises(NothingToDraw, match="fewer than 20 clusters"):
        find_module(name).figure(Tables(frames), Style())


def test_a_run_without_counterfactuals_is_drawn_as_trained(case_tables):
    tables = case_tables("usual")
    frames = {k: f[f["source"] == "trained"] if "source" in f else f for k, f in tables.frames.items()}
    for name in ("acceptance_by_length", "lre_by_rule", "cosine_by_rule", "cosine_bound", "error_split"):
        fig = find_module(name).figure(Tables(frames), Style("icml-column"))
        text = "".join(ax.get_title(loc="left") + ax.get_ylabel() for ax in fig.axes)
        text += "".join(t.get_text() for legend in fig.legends for t in legend.get_texts())
        assert "as trained" in text
