"""Figures of the referee's questions: sweep, theory gap, squared error, references, noise floor, sketches, bins."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PolyCollection

from analysis.log.partition import find_partition
from analysis.tables.files import TABLES, folder_name, write_tables
from analysis.tables.theory_gap import INGREDIENTS
from figures import draw_all, find_module
from figures.__main__ import main
from figures.of_runs import STUDIES
from figures.of_runs.sensitivity_range import range_factor
from figures.style import Style
from figures.tables import NothingToDraw, Tables, load
from fspo.base.errors import UserError
from tests.figures.looking import assert_legible, bars, marked, titled

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"


def module(name: str):
    return find_module(name)


def ends(rows: pd.DataFrame) -> set[tuple[float, float]]:
    return {(round(float(a), 9), round(float(b), 9)) for a, b in rows[["ci_low", "ci_high"]].dropna().to_numpy()}


def test_gap_and_its_parts(case_tables):
    tables = case_tables("usual")
    fig = module("theory_gap").figure(tables, Style())
    t = tables["theory_gap"]
    assert [ax.get_title(loc="left") for ax in fig.axes] == [
        "measured − theory", "asymmetry", "drift", "H (spread)", "tails", "dependence on A", "rest",
    ]  # fmt: skip
    for part, title in (("gap", "measured"), ("tails", "tails"), ("rest", "rest")):
        rows = t[(t["part"] == part) & (t["bin"] >= 0)]
        own = rows[rows["trained_rule"] == "gspo"]
        assert sorted(marked(titled(fig, title), color=GREEN)[:, 1]) == sorted(own["estimate"])
        assert bars(titled(fig, title), 1) == ends(rows)
    drawn = [sum(marked(ax, color=GREEN)[0, 1] for ax in fig.axes[1:]), marked(fig.axes[0], color=GREEN)[0, 1]]
    assert drawn[0] == pytest.approx(drawn[1])  # the parts add up to the gap
    assert len(fig.axes) == 2 + len(INGREDIENTS)


def test_a_part_of_the_gap_that_is_small_everywhere_is_a_sentence(case_tables):
    table = case_tables("usual")["theory_gap"]
    small = table.assign(estimate=table["estimate"].where(table["part"] != "drift", 0.004))
    tables = Tables({"theory_gap": small})
    assert "drift" not in [ax.get_title(loc="left") for ax in module("theory_gap").figure(tables, Style()).axes]
    assert " Below 0.5 % everywhere: drift." in module("theory_gap").caption(tables)
    assert "everywhere" not in module("theory_gap").caption(case_tables("usual"))


def test_squared_errors(case_tables):
    tables = case_tables("usual")
    fig = module("update_error").figure(tables, Style())
    t = tables["population"]
    rows = t[(t["run"] == "none-s0") & (t["source"] == "matched") & (t["reference"] == "population")]
    names = ("bias2", "variance", "mse", "mse_direction")
    for i, target in enumerate((0.95, 0.85)):
        for j, quantity in enumerate(names):
            ax = fig.axes[4 * i + j]
            own = rows[(rows["target"] == target) & (rows["quantity"] == quantity)]
            for outside, marker in (("drop", "o"), ("truncate", "s"), ("cap", "D")):
                want = own[own["outside"] == outside].set_index("rule")["estimate"].to_dict()
                labels = [label.get_text() for label in fig.axes[4 * i].get_yticklabels()]
                assert {labels[round(y)]: x for x, y in marked(ax, marker=marker)} == want
            assert bars(ax, 0) >= ends(own)
            line = [x for x in ax.get_lines() if x.get_color() == "#9a9a9a"]
            assert [x.get_xdata()[0] for x in line] == [0.0 if quantity == "bias2" else 1.0]
    trained = fig.axes[8]
    assert trained.get_ylabel() == "as trained"
    assert [label.get_text() for label in trained.get_yticklabels()] == ["rloo", "gspo", "fspo", "fspo-kl"]


def test_references_side_by_side(case_tables):
    tables = case_tables("usual")
    fig = module("cosine_references").figure(tables, Style())
    assert [ax.get_title(loc="left") for ax in fig.axes[:4]] == ["same batch", "population", "capped", "fresh"]
    t = tables["population"]
    rows = t[(t["run"] == "none-s0") & (t["target"] == 0.85) & (t["quantity"] == "cosine")]
    for ax, reference in zip(fig.axes[5:8], ("population", "capped", "fresh"), strict=True):
        own = rows[rows["reference"] == reference]
        drawn = np.concatenate([marked(ax, marker=m)[:, 0] for m in "osD"])
        assert sorted(drawn) == sorted(own["estimate"])
        assert bars(ax, 0) == ends(own)


def test_references_without_an_estimate_are_left_out_and_named(case_tables):
    tables = case_tables("spoiled")
    fig = module("cosine_references").figure(tables, Style())
    titles = [ax.get_title(loc="left") for ax in fig.axes]
    assert "population" in titles
    assert "fresh" not in titles
    words = "No panels: fresh (too little data: 2.5 times the responses needed)."
    assert words in module("cosine_references").caption(tables)
    hollow = tables["population"].assign(estimate=np.nan, reason="about 2.5 times the responses are needed")
    with pytest.raises(NothingToDraw, match=r"only the same batch .*population: too little data: 2\.5 times"):
        module("cosine_references").figure(Tables({**tables.frames, "population": hollow}), Style())


def test_ranges_on_the_axis_are_multiples_of_the_default(case_tables):
    assert range_factor("fspo", "0.015 0.015") == 0.5
    assert range_factor("rloo", "0.36 0.44") == 2.0  # 1.44 = 1.2²
    assert range_factor("gspo", "0.0012 0.0016") == 4.0
    tables = case_tables("usual")
    fig = module("sensitivity_range").figure(tables, Style())
    t = tables["sweep"]
    rows = t[(t["run"] == "none-s0") & (t["setting"] == "range")]
    assert set(rows["trained_rule"]) == {"none"}  # from summary.json
    for title, quantity in (("in the band", "band"), ("LRE", "lre_band_l2"), ("cosine", "cosine"), ("MSE", "mse")):
        own, ax = rows[rows["quantity"] == quantity], titled(fig, title)
        points = marked(ax, color=BLUE)
        np.testing.assert_array_equal(points[:, 1], own[own["rule"] == "fspo"]["estimate"])
        np.testing.assert_allclose(points[:, 0] / points[0, 0], [1, 2, 4, 8, 16])
        assert len(marked(ax, color=ORANGE)) == (own["rule"] == "rloo").sum()
        assert bars(ax, 1) == ends(own)


def test_the_ranges_of_corrections_are_drawn_too(case_tables):
    assert range_factor("engine-sqrt", "0.05 0.05") == 0.5
    assert range_factor("mis", "0.889 8") == 2.0  # 9 = 3²
    tables = case_tables("usual")
    rows = tables["sweep"].query("rule == 'fspo'").assign(rule="engine-sqrt")
    fig = module("sensitivity_range").figure(Tables({**tables.frames, "sweep": rows}, on="engine"), Style())
    own = rows.query("run == 'none-s0' and setting == 'range' and quantity == 'band'")
    assert bars(titled(fig, "in the band"), 1) == ends(own)


def test_settings_mark_what_is_fspos_own(case_tables):
    tables = case_tables("usual")
    fig = module("sensitivity_settings").figure(tables, Style())
    rows = tables["sweep"].query("run == 'none-s0' and setting != 'range'")
    labels = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    assert labels[:3] == ["dual clip: none", "1.5", "3"]
    for ax, quantity in zip(fig.axes, ("update", "lre_update_l2", "cosine", "mse"), strict=True):
        own = rows[rows["quantity"] == quantity]
        filled, hollow = (marked(ax, marker="o", fillstyle=f) for f in ("full", "none"))
        assert [labels[int(y)] for y in filled[:, 1]] == [
            "dual clip: none", "outside: drop", "drift: none", "0.5", "weight by: response",
        ]  # fmt: skip
        assert sorted([*filled[:, 0], *hollow[:, 0]]) == sorted(own["estimate"])
        assert bars(ax, 0) == ends(own)
    spoiled = module("sensitivity_settings").figure(case_tables("spoiled"), Style())
    words = [text.get_text() for text in spoiled.axes[2].texts]
    assert words == ["too little data"] * 6  # three group sizes, three updates


def test_smooth_bands_and_the_noise_floor_beside_the_points(case_tables):
    tables = case_tables("one")
    fig = module("acceptance_by_length").figure(tables, Style())
    ax = titled(fig, "as trained")
    t = tables["smooth"]
    rows = t[(t["source"] == "trained") & (t["subset"] == "all")].sort_values("coordinate")
    low, high = ax.get_ylim()
    told = (rows["ci_high"] - rows["ci_low"]) <= 0.5 * (high - low)
    assert 0 < told.sum() < len(rows)
    thin = next(x for x in ax.get_lines() if x.get_color() == BLUE and x.get_linewidth() == 0.5)
    drawn = np.asarray(thin.get_ydata(), float)
    np.testing.assert_array_equal(drawn[told], rows.loc[told, "estimate"])
    assert np.isnan(drawn[~told]).all()
    (band,) = [c for c in ax.collections if isinstance(c, PolyCollection)]
    edge = {(round(float(x), 6), round(float(y), 6)) for path in band.get_paths() for x, y in path.vertices}
    for column in ("ci_low", "ci_high"):
        pairs = rows.loc[told, ["coordinate", column]].to_numpy()
        assert {(round(float(x), 6), round(float(y), 6)) for x, y in pairs} <= edge
    floor = tables["noise_floor"].query("bin >= 0")
    grey = [np.asarray(x.get_ydata(), float) for x in ax.get_lines() if x.get_marker() == "_"]
    assert [list(y) for y in grey] == [
        [1.0] * 5,  # both quiet sources as one
        list(1 - floor[floor["source"] == "bfloat16"]["out_of_band"]),
    ]
    spans = [(round(float(p.get_y()), 9), round(float(p.get_y() + p.get_height()), 9)) for p in ax.patches]
    whole = tables["noise_floor"].query("bin < 0 and source != 'padding'")
    assert spans == [(round(1 - x.out_of_band_ci_high, 9), 1 - x.out_of_band_ci_low) for x in whole.itertuples()]
    text = module("acceptance_by_length").caption(tables)
    assert "fspo, other sources; fspo, bfloat16" in text
    assert "Thin, shaded (fspo)" in text


@pytest.fixture(scope="module")
def sketches() -> Tables:
    rows = [
        {"projection": k, "width": w, "cosine": c, "rmse": r, "ci_low": 0.8 * r, "ci_high": 1.3 * r}
        | {"hashing": 0.9 / np.sqrt(w), "redraws": 4, "responses": 8, "cosines": 28, "parameters": 12345}
        for k in (0, 8, 32)
        for w in (64, 256, 1024)
        for c in ("pair", "drop")
        if (r := float(np.hypot(0.9 / np.sqrt(w), 0.01 * k / 8 * (k > 0))))
    ]
    return Tables({"sketch_error": pd.DataFrame(rows)})


def test_sketch_errors_against_the_line(sketches):
    fig = module("sketch_error").figure(sketches, Style())
    left = titled(fig, "two responses")
    rows = sketches["sketch_error"].query("cosine == 'pair'")
    for k, color in ((0, "#000000"), (8, ORANGE), (32, BLUE)):
        own = rows[rows["projection"] == k]
        np.testing.assert_array_equal(marked(left, color=color)[:, 1], own["rmse"])
    assert bars(left, 1) == ends(rows)
    line = next(x for x in left.get_lines() if x.get_color() == "#b5b5b5")
    x, y = np.asarray(line.get_data(), float)
    np.testing.assert_allclose(y * np.sqrt(x), 0.9)
    assert "12,345 parameters, 8 responses" in module("sketch_error").caption(sketches)


def test_sketch_errors_are_drawn_although_they_are_of_no_rule(sketches, tmp_path):
    (drawn,) = draw_all(sketches, tmp_path, modules=STUDIES)
    assert drawn.numbers is not None
    assert len(pd.read_csv(drawn.numbers)) == len(sketches["sketch_error"])


@pytest.mark.parametrize("width", ["acl-column", "neurips"])
def test_sketch_errors_are_legible(sketches, monkeypatch, width):
    style = Style(width)
    with style.context():
        assert_legible(module("sketch_error").figure(sketches, style), style, monkeypatch)


@pytest.fixture(scope="module")
def by_entropy(case_tables, tmp_path_factory):
    """Two runs whose tables are binned by entropy, under the analysis' own names."""
    partition = find_partition("entropy")
    runs = []
    for rule in ("fspo", "rloo"):
        run = tmp_path_factory.mktemp("by") / rule
        frames = {}
        for name in TABLES:
            frame = case_tables("usual").frames.get(name)
            if frame is not None and name in ("acceptance", "lre", "cosine", "lemma", "over_time", "noise_floor"):
                own = frame[frame["run"] == f"{rule}-s0"].drop(columns=["bin_lo", "bin_hi"], errors="ignore")
                if "bin_mean" in own:
                    own = own.assign(bin_mean=own["bin_mean"] / 200)
                if "bin" in own:
                    own = own.assign(bin_lo=own["bin"] / 5, bin_hi=(own["bin"] + 1) / 5)
                frames[name] = own
        write_tables(run / folder_name(partition), frames, {"rule": rule, "seed": 0})
        runs.append(run)
    return runs


def test_other_partitions_have_names_of_their_own(by_entropy, tmp_path, capsys):
    assert main([*map(str, by_entropy), "--by", "entropy", "--output", str(tmp_path)]) == 0
    captions = json.loads((tmp_path / "captions-by-entropy.json").read_text())
    drawn = {c["name"]: c for c in captions if not c["skipped"]}
    assert set(drawn) == {
        "acceptance-by-entropy", "clip_over_training-by-entropy", "lre_by_rule-by-entropy",
        "cosine_by_rule-by-entropy", "cosine_bound-by-entropy", "error_split-by-entropy",
    }  # fmt: skip
    assert all((tmp_path / f"{name}.pdf").is_file() for name in drawn)
    label = find_partition("entropy").label
    assert label in drawn["acceptance-by-entropy"]["caption"]
    assert f"(bins: {label})" in drawn["lre_by_rule-by-entropy"]["title"]
    assert "length" not in drawn["acceptance-by-entropy"]["title"].lower()
    numbers = pd.read_csv(tmp_path / "acceptance-by-entropy.csv")
    assert {"bin_mean", "bin_lo"} <= set(numbers)
    left_out = " ".join(c["skipped"] for c in captions)
    assert "without --by" in left_out  # what is about length alone says so


@pytest.mark.parametrize("name", ["acceptance_by_length", "clip_over_training", "cosine_by_rule"])
def test_figures_of_another_partition_are_legible(by_entropy, monkeypatch, name):
    style = Style("acl-column")
    with style.context():
        assert_legible(module(name).figure(load(by_entropy, "entropy"), style), style, monkeypatch)


def test_a_partition_that_was_not_analysed_names_the_command(case_runs, tmp_path):
    run = str(case_runs("one")[0])
    with pytest.raises(UserError, match=r"fspo analyse .* --by entropy first"):
        main([run, "--by", "entropy", "--output", str(tmp_path)])
    with pytest.raises(UserError, match="did you mean 'entropy'"):
        main([run, "--by", "entropi", "--output", str(tmp_path)])
