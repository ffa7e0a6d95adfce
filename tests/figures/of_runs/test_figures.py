"""What is drawn is what the tables say; nothing is cut off, overlaps or is too small; empty input is skipped."""

import json
import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PolyCollection

from analysis.log.partition import find_partition
from analysis.tables.files import folder_name
from figures import draw_all, find_module, marks
from figures.__main__ import main
from figures.of_runs import FIGURES
from figures.of_runs.acceptance_by_length import plot_acceptance
from figures.of_runs.acceptance_series import theory_curve
from figures.style import LOOKS, Style
from figures.tables import NothingToDraw, Tables, load
from fspo.base.errors import UserError
from tests.figures.conftest import write_run
from tests.figures.looking import assert_legible, bars, in_row, marked, titled

CASES = ("usual", "one", "near-one", "spoiled")


def ends(rows: pd.DataFrame, scale: float = 1.0, name: str = "ci") -> set[tuple[float, float]]:
    pairs = rows[[f"{name}_low", f"{name}_high"]].dropna().to_numpy() * scale
    return {(round(float(a), 9), round(float(b), 9)) for a, b in pairs}


def test_acceptance_draws_the_tables_numbers(case_tables):
    tables = case_tables("usual")
    fig = find_module("acceptance_by_length").figure(tables, Style())
    bands = tables["acceptance"].query("measure == 'band' and subset == 'all' and bin >= 0")
    for target, title in ((0.95, "5 % clipped"), (0.85, "15 % clipped")):
        rows = bands.query(f"run == 'none-s0' and source == 'matched' and target == {target}")
        ax = titled(fig, title)
        for rule, color in (("rloo", "#D55E00"), ("gspo", "#009E73"), ("fspo", "#0072B2"), ("fspo-kl", "#56B4E9")):
            own = rows[rows["rule"] == rule].sort_values("bin")
            points = marked(ax, color=color)
            np.testing.assert_array_equal(points[:, 1], own["estimate"])
            np.testing.assert_allclose(points[:, 0] / own["bin_mean"], points[0, 0] / own["bin_mean"].iloc[0])
        assert ends(rows) <= bars(ax, 1)
    trained = bands.query("source == 'trained' and trained_rule == 'gspo'")
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

    overall = sum(p * law(length, 0.07) for p, length in zip(shares, lengths, strict=True))
    found = theory_curve("rloo", lengths, shares, overall, at)
    np.testing.assert_allclose(found, [law(x, 0.07) for x in at], rtol=1e-9)
    np.testing.assert_allclose(theory_curve("fspo-kl", lengths, shares, 0.9, at), 0.9, rtol=1e-9)
    for rule, overall in (("grpo", 0.9), ("none", 0.9), ("my-own", 0.9), ("rloo", 1.0), ("rloo", 0.0)):
        assert theory_curve(rule, lengths, shares, overall, at).size == 0


def test_lre_draws_the_tables_numbers(case_tables):
    tables = case_tables("usual")
    fig = find_module("lre_by_rule").figure(tables, Style())
    rows = tables["lre"].query("run == 'none-s0' and source == 'matched' and outside == 'drop'")
    labels = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    panels = product(("l2", "inf"), (("band", "all"), ("update", "nonzero"), ("weight", "nonzero")))
    for ax, (norm, (measure, subset)) in zip(fig.axes, panels, strict=False):
        part = rows.query(f"norm == '{norm}' and measure == '{measure}' and subset == '{subset}'")
        for target, fill in ((0.95, "full"), (0.85, "none")):
            got = {labels[round(y)]: x for x, y in marked(ax, marker="o", fillstyle=fill)}
            assert got == part[part["target"] == target].set_index("rule")["estimate"].to_dict()
        assert ends(part) <= bars(ax, 0)
        assert ax.get_xlim()[1] > max(high for _, high in bars(ax, 0))


def test_cosines_draw_the_tables_numbers_and_the_control(case_tables):
    tables = case_tables("usual")
    fig = find_module("cosine_by_rule").figure(tables, Style())
    rows = tables["cosine"].query("run == 'none-s0' and source == 'matched' and bin == -1 and target == 0.85")
    random, ours = rows[rows["rule"] == "random"], rows[rows["rule"] != "random"]
    columns = (("estimate", "ci"), ("worst_bin", "worst_ci"))
    for ax, (column, interval) in zip(in_row(fig, "15 % clipped"), columns, strict=True):
        for outside, marker in (("drop", "o"), ("truncate", "s"), ("cap", "D")):
            assert sorted(marked(ax, marker=marker)[:, 0]) == sorted(ours.loc[ours["outside"] == outside, column])
        assert ends(ours, name=interval) <= bars(ax, 0)
        control = [line for line in ax.get_lines() if line.get_linestyle() == "--"]
        assert [line.get_xdata()[0] for line in control] == [random[column].iloc[0]]


def test_bound_and_guarantee(case_tables):
    tables = case_tables("usual")
    fig = find_module("cosine_bound").figure(tables, Style())
    rows = tables["lemma"].query("run == 'none-s0' and source == 'matched' and target == 0.85 and outside == 'drop'")
    ax = titled(fig, "15 % clipped")
    for rule, marker in (("rloo", "s"), ("gspo", "^"), ("fspo", "o"), ("fspo-kl", "D")):
        own = rows[rows["rule"] == rule]
        np.testing.assert_array_equal(marked(ax, marker=marker), own[["rho", "cosine"]])
    assert f"no guarantee: {(~rows['guaranteed']).sum()} of {len(rows)}" in ax.get_title(loc="left")
    curve = next(line for line in ax.get_lines() if line.get_color() == "black")
    rho, bound = np.asarray(curve.get_data(), float)
    np.testing.assert_allclose(bound, np.sqrt(np.maximum(1 - rho**2, 0)), atol=1e-7)
    assert [patch.get_x() for patch in ax.patches] == [1.0]  # shaded
    assert rows["rho"].max() < ax.get_xlim()[1]


def test_split_draws_every_update(case_tables):
    tables = case_tables("usual")
    fig = find_module("error_split").figure(tables, Style())
    rows = tables["lemma"].query("run == 'none-s0' and source == 'matched' and target == 0.95")
    ax = titled(fig, "5 % clipped")
    labels = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    assert labels[:4] == ["rloo", "gspo", "fspo", "fspo-kl"]
    own, place = rows.query("rule == 'fspo' and outside == 'truncate'"), labels.index("fspo, truncate")
    for part, marker in (("e_len", "^"), ("e_in", "o")):
        points = marked(ax, marker=marker)
        assert sorted(points[:, 0]) == sorted(rows[part])
        assert sorted(x for x, y in points if round(y) == place) == sorted(own[part])


@pytest.mark.parametrize("case", ["one", "usual"])
def test_clip_rate_lines_and_shades(case_tables, case):
    tables = case_tables(case)
    fig = find_module("clip_over_training").figure(tables, Style())
    rows = tables["over_time"].query("trained_rule == 'fspo' and bin in [0, 2, 4]")
    ax = titled(fig, "fspo")
    want = {tuple(part.sort_values("window")["estimate"]) for _, part in rows.groupby(["run", "bin"])}
    assert {tuple(line.get_ydata()) for line in ax.get_lines()} == want
    shades = [c for c in ax.collections if isinstance(c, PolyCollection)]
    assert len(shades) == (3 if case == "one" else 0)  # one run: intervals; several seeds: lines
    names = [text.get_text() for text in fig.legends[0].get_texts()]
    assert set(names) == {f"{low}–{high - 1} tokens" for low, high in zip(rows["bin_lo"], rows["bin_hi"], strict=True)}
    for shade, number in zip(shades, (0, 2, 4), strict=False):
        edge = {(x, y) for x, y in shade.get_paths()[0].vertices.round(9)}
        own = rows[rows["bin"] == number]
        for column in ("ci_low", "ci_high"):
            assert set(zip(own["window"], own[column].round(9), strict=True)) <= edge
    assert not any(a.get_title(loc="left") == "none" for a in fig.axes)


def test_variances_and_exponents(case_tables):
    tables = case_tables("one")
    fig = find_module("variance_scaling").figure(tables, Style())
    rows = tables["moments"].query("subset == 'all' and bin >= 0").sort_values("bin")
    left, right = fig.axes
    np.testing.assert_array_equal(marked(left, color="#0072B2"), rows[["bin_mean", "var_S"]])
    assert ends(rows, name="var_S_ci") == bars(left, 1)
    fit = tables["scaling"].query("subset == 'all' and sign == 'all'").iloc[0]
    lines = {
        x.get_color(): np.log(np.asarray(x.get_data(), float)) for x in left.get_lines() if x.get_marker() == "None"
    }
    reference, fitted = lines["#9a9a9a"], lines["#0072B2"]
    np.testing.assert_allclose(fitted[1], fit["intercept"] + fit["slope_2H"] * fitted[0])
    assert np.diff(reference[1]) / np.diff(reference[0]) == pytest.approx(1.0)
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


@pytest.mark.parametrize(
    ("name", "title", "column", "interval", "subset", "scale"),
    [
        ("drift_by_sign", "", "drift_per_token", "drift_ci", "all", 1e3),
        ("fair_exponent", "5 % clipped", "fair_95", "fair_95_ci", "nonzero", 1.0),
        ("fair_exponent", "15 % clipped", "fair_85", "fair_85_ci", "nonzero", 1.0),
    ],
)
def test_what_is_found_by_sign_is_drawn(case_tables, name, title, column, interval, subset, scale):
    tables = case_tables("usual")
    fig = find_module(name).figure(tables, Style())
    rows, ax = tables["scaling"].query(f"subset == '{subset}'"), titled(fig, title)
    for sign, marker in (("all", "o"), ("positive", "^"), ("negative", "v")):
        drawn = marked(ax, marker=marker)[:, 0]
        np.testing.assert_allclose(sorted(drawn), sorted(scale * rows.loc[rows["sign"] == sign, column]))
    assert ends(rows, scale, interval) == bars(ax, 0)
    assert fig.axes[0].get_xlim() == fig.axes[-1].get_xlim()


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
    if (name, case) == ("clip_over_training", "near-one"):
        return  # that case has an unclipped run alone: see test_a_skipped_figure_is_listed_with_its_reason
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
    if (name, case) == ("clip_over_training", "near-one"):
        return
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
    frames, missing = {}, {"estimate", "ci_low", "ci_high", "worst_bin"}
    for key, frame in case_tables("one").frames.items():
        hollow = dict.fromkeys(missing & set(frame), np.nan)
        frames[key] = frame.assign(reason="fewer than 20 clusters", **hollow)
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


def test_the_noise_floor_beside_the_points(case_tables):
    tables = case_tables("one")
    ax = titled(find_module("acceptance_by_length").figure(tables, Style()), "as trained")
    floor = tables["noise_floor"].query("bin >= 0")
    grey = [np.asarray(x.get_ydata(), float) for x in ax.get_lines() if x.get_marker() == "_"]
    assert [list(y) for y in grey] == [
        [1.0] * 5,  # both quiet sources as one
        list(1 - floor[floor["source"] == "bfloat16"]["out_of_band"]),
    ]
    spans = [(round(p.get_y(), 9), round(p.get_y() + p.get_height(), 9)) for p in ax.patches]
    whole = tables["noise_floor"].query("bin < 0 and source != 'padding'")
    assert spans == [(round(1 - x.out_of_band_ci_high, 9), 1 - x.out_of_band_ci_low) for x in whole.itertuples()]
    text = find_module("acceptance_by_length").caption(tables)
    assert "fspo, other sources; fspo, bfloat16" in text


@pytest.fixture(scope="module")
def by_entropy(case_tables, tmp_path_factory):
    """Two runs whose tables are binned by entropy, under the analysis' own names."""
    runs = []
    for rule in ("fspo", "rloo"):
        frames = {}
        for name in ("acceptance", "lre", "cosine", "lemma", "over_time", "noise_floor"):
            own = case_tables("usual").frames[name].query(f"run == '{rule}-s0'")
            if "bin" in own:
                own = own.assign(bin_mean=own["bin_mean"] / 200, bin_lo=own["bin"] / 5, bin_hi=(own["bin"] + 1) / 5)
            frames[name] = own
        run = tmp_path_factory.mktemp("by") / rule
        runs.append(write_run(run, frames, folder_name(find_partition("entropy"))))
    return runs


@pytest.mark.usefixtures("no_pixels")
def test_other_partitions_have_names_of_their_own(by_entropy, tmp_path, capsys):
    assert main([*map(str, by_entropy), "--by", "entropy", "--output", str(tmp_path)]) == 0
    captions = json.loads((tmp_path / "captions-by-entropy.json").read_text())
    drawn = {c["name"]: c for c in captions if not c["skipped"]}
    names = ("acceptance", "clip_over_training", "lre_by_rule", "cosine_by_rule", "cosine_bound", "error_split")
    assert set(drawn) == {f"{name}-by-entropy" for name in names}
    assert all((tmp_path / f"{name}.pdf").is_file() for name in drawn)
    label = find_partition("entropy").label
    assert label in drawn["acceptance-by-entropy"]["caption"]
    assert f"(bins: {label})" in drawn["lre_by_rule-by-entropy"]["title"]
    assert "length" not in drawn["acceptance-by-entropy"]["title"].lower()
    numbers = pd.read_csv(tmp_path / "acceptance-by-entropy.csv")
    assert {"bin_mean", "bin_lo"} <= set(numbers)
    left_out = " ".join(c["skipped"] for c in captions)
    assert "without --by" in left_out  # what is about length alone says so


@pytest.mark.parametrize("name", ["acceptance_by_length", "clip_over_training"])
def test_figures_of_another_partition_are_legible(by_entropy, monkeypatch, name):
    style = Style("acl-column")
    with style.context():
        assert_legible(find_module(name).figure(load(by_entropy, "entropy"), style), style, monkeypatch)


@pytest.fixture
def table() -> pd.DataFrame:
    """Two rules in three bins; the last estimate has no interval, another row no estimate."""
    rows = [
        {"run": "a", "rule": rule, "bin_mean": 8.0 * 4**i, "estimate": 0.9 - 0.1 * i, "ci_low": 0.85 - 0.1 * i}
        | {"ci_high": 0.95 - 0.1 * i}
        for rule in ("mine", "fspo")
        for i in range(3)
    ]
    found = pd.DataFrame(rows)
    found.loc[5, ["ci_low", "ci_high"]] = np.nan
    found.loc[0, "estimate"] = np.nan
    return found


def test_acceptance_of_a_table_of_ones_own_on_new_axes(table):
    ax = plot_acceptance(table)
    points = marked(ax, color=LOOKS["fspo"].color, marker="o")
    np.testing.assert_array_equal(points[:, 1], table["estimate"][3:])
    np.testing.assert_allclose(points[:, 0] / table["bin_mean"][3:], 2**-0.035)  # fspo stands left of the other rule
    assert len(marked(ax)) == 5
    assert bars(ax, 1) == {(0.75, 0.85), (0.65, 0.75), (0.85, 0.95)}


def test_rows_and_what_stands_below_each_other_in_them(table):
    table["outside"] = ["drop", "cap", "cap"] * 2
    ax = marks.outside_dots(table, ["fspo", "mine"])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["fspo", "mine"]
    np.testing.assert_allclose(marked(ax, marker="o"), [[0.9, -0.12]])
    # two estimates share a place: they are spread around it
    np.testing.assert_allclose(marked(ax, marker="D"), [[0.8, 1.09], [0.7, 1.15], [0.8, 0.09], [0.7, 0.15]])
    assert bars(ax, 0) == {(0.75, 0.85), (0.65, 0.75), (0.85, 0.95)}
    assert len(marked(marks.dots(table, rows=["mine"], row="rule"), color="#1F77B4", marker="o")) == 2
