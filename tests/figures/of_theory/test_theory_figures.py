"""The theory's figures draw the tables that ``fspo maps`` writes, legibly, or say why not."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PolyCollection, QuadMesh

from figures import draw_all, find_module
from figures.__main__ import main
from figures.of_theory import FIGURES
from figures.style import Style
from figures.tables import NothingToDraw, Tables, load_theory
from fspo.base.errors import UserError, run_cli
from proofs_check.maps import build, online
from proofs_check.maps.__main__ import main as write_tables
from proofs_check.maps.settings import Point
from proofs_check.maps.tables import file_name
from tests.figures.looking import assert_legible, bars, marked, titled

RULE_COLORS = {"rloo": "#D55E00", "gspo": "#009E73", "fspo": "#0072B2", "fspo-kl": "#56B4E9", "power": "#B8860B"}


def module(name: str):
    return find_module(name)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Real tables: the curves with few draws, a few points of the maps and two of their models."""
    out = tmp_path_factory.mktemp("theory")
    values = {
        "drift_error": (0, 0.68, 2), "drift_factor": (0, 1), "exponent": (0.4, 0.5, 0.7), "tail": (0, 1 / 3, 0.5),
        "ar1": (-0.5, 0, 0.9), "switching": (0, 0.9), "length_ratio": (2, 16, 64), "asymmetry": (0.5, 1, 2),
        "sign_share": (0, 0.4), "sign_drift": (-1, 0, 1),
    }  # fmt: skip
    points = [Point(name, v, simulate=v == 2) for name, found in values.items() for v in found]
    points += [Point("drift_error", v, "exponent", w, ("band",)) for v in (0, 1, 3) for w in (0.3, 0.5, 1)]
    points += [Point("asymmetry", v, "sign_share", w, ("update",)) for v in (0.5, 1, 2, 4) for w in (0, 0.8)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "points", lambda: points)
        patch.setattr(build, "MODELS", {name: build.MODELS[name] for name in ("softmax", "softmax_trained")})
        patch.setattr(online, "MODELS", {name: online.MODELS[name] for name in ("gaussian", "fractional", "ar1")})
        write_tables(["--out", str(out), "--jobs", "1", "--draws", "300", "--no-progress"])
    return out


@pytest.fixture(scope="session")
def tables(folder):
    return load_theory(folder)


def rounded(rows: pd.DataFrame, low: str = "ci_low", high: str = "ci_high") -> set[tuple[float, float]]:
    return {(round(float(a), 9), round(float(b), 9)) for a, b in rows[[low, high]].dropna().to_numpy()}


def curve(ax, color: str, linestyle: str = "-") -> np.ndarray:
    """The points of the one line of this look that has no markers."""
    (line,) = [
        line
        for line in ax.get_lines()
        if line.get_color() == color and line.get_marker() == "None" and line.get_linestyle() == linestyle
    ]
    return np.column_stack(line.get_data()).astype(float)


def test_acceptance_laws_draw_the_table(tables):
    fig = module("acceptance_laws").figure(tables, Style())
    table = tables["acceptance_laws"]
    for panel, title in (("no drift error", "no drift"), ("drift -sigma^2/2", "drift $")):
        rows, ax = table[table["panel"] == panel], titled(fig, title)
        for rule in rows["rule"].unique():
            own, color = rows[rows["rule"] == rule], RULE_COLORS[rule]
            law, points = own[own["kind"] == "law"], own[own["kind"] == "simulated"]
            (line,) = [x for x in ax.get_lines() if x.get_color() == color and x.get_marker() == "None"]
            np.testing.assert_array_equal(np.column_stack(line.get_data()), law[["length", "acceptance"]])
            np.testing.assert_array_equal(marked(ax, color=color), points[["length", "acceptance"]])
        assert bars(ax, 1) == rounded(rows)
    text = module("acceptance_laws").caption(tables)
    assert "300 simulated responses each" in text
    assert "85 % on average" in text
    least = table[(table["panel"] == "drift -sigma^2/2") & (table["rule"] == "fspo") & (table["kind"] == "law")]
    assert f"fspo {100 * least['acceptance'].min():.3g} %" in text


def test_drift_draws_curve_band_and_bounds(tables):
    fig = module("drift_lre").figure(tables, Style())
    table = tables["drift_lre"]
    for case, title in (("equal", "$u_-=1$"), ("unequal", "$u_-=0.5$")):
        rows, ax = table[table["case"] == case], titled(fig, title)
        lines = {"lre": ("#0072B2", "-"), "one_sided": ("#D55E00", "--"), "two_sided": ("#117733", "--")}
        for column, (color, style) in lines.items():
            np.testing.assert_array_equal(curve(ax, color, style), rows[["x", column]])
        edges = {tuple(v) for c in ax.collections if isinstance(c, PolyCollection) for v in c.get_paths()[0].vertices}
        for column in ("near_low", "near_high", "low", "high"):
            assert {tuple(pair) for pair in rows[["x", column]].to_numpy()} <= edges
    unequal = table[table["case"] == "unequal"]
    first = unequal[(unequal["low"] > unequal["one_sided"]) & (unequal["x"] > 0)]["x"].min()
    assert f"first at x = {first:.2g}" in module("drift_lre").caption(tables)


def test_tightness_draws_points_that_touch_the_bound(tables):
    left, right = module("tightness").figure(tables, Style()).axes
    table = tables["tightness"]
    for source, marker in (("random", "."), ("policy", "^"), ("optimised", "s"), ("T7s", "o")):
        rows = table[(table["source"] == source) & (table["rho"] >= 1e-4) & (table["rho"] < 1)]
        np.testing.assert_array_equal(marked(left, marker=marker), rows[["rho", "cosine"]])
        np.testing.assert_array_equal(marked(right, marker=marker), rows[["rho", "sine"]])
    rho, bound = curve(left, "black").T
    np.testing.assert_allclose(bound**2 + rho**2, 1, atol=1e-12)
    touching = marked(left, marker="o")
    np.testing.assert_allclose(np.hypot(*touching.T), 1, atol=1e-9)
    drawn = np.concatenate([marked(left, marker=m) for m in ".^s"])
    assert np.all(np.hypot(*drawn.T) > 1 - 1e-9)  # none below the curve
    np.testing.assert_array_equal(*curve(right, "black").T)


def test_berry_esseen_draws_the_table(tables):
    fig = module("berry_esseen").figure(tables, Style())
    table = tables["berry_esseen"]
    for law, title in (("exponential", "exponential"), ("signs", "$\\pm"), ("student", "Student")):
        rows, ax = table[table["law"] == law], titled(fig, title)
        exact, drawn = rows[rows["kind"] == "exact"], rows[rows["kind"] == "simulated"]
        worst, unit = exact[exact["band"] == "worst"], exact[exact["band"] == "unit"]
        np.testing.assert_allclose(curve(ax, "black"), worst[["length", "envelope"]], rtol=1e-12)
        np.testing.assert_allclose(curve(ax, "#0072B2"), worst[["length", "difference"]], rtol=1e-12)
        np.testing.assert_allclose(curve(ax, "#D55E00", "--"), unit[["length", "difference"]], rtol=1e-12)
        np.testing.assert_allclose(marked(ax, color="#D55E00"), drawn[["length", "difference"]], rtol=1e-12)
        assert {high for _, high in bars(ax, 1)} == {high for _, high in rounded(drawn)}
        assert min(low for low, _ in bars(ax, 1)) >= ax.get_ylim()[0] - 1e-9  # an interval with 0 goes down to the edge


def test_fairness_map_draws_the_table(tables):
    fig = module("fairness_map").figure(tables, Style())
    table = tables["fairness_map"]
    table = table[table["factor_2"].isna() & (table["target"] == 0.85)]
    for factor, title, measure in (("exponent", "exponent", "band"), ("sign_drift", "drift by sign", "update")):
        rows, ax = table[(table["factor"] == factor) & (table["measure"] == measure)], titled(fig, title)
        for rule, color in (("fixed", "#D55E00"), ("fspo", "#0072B2"), ("power-0.75", "#B8860B")):
            own = rows[(rows["rule"] == rule) & (rows["method"] == "closed")]
            (line,) = [x for x in ax.get_lines() if x.get_color() == color and x.get_marker() == "None"]
            np.testing.assert_allclose(np.column_stack(line.get_data()), own[["value", "lre_inf"]], atol=1e-15)
    rows = table[(table["factor"] == "asymmetry") & (table["measure"] == "update") & (table["method"] == "simulated")]
    ax = titled(fig, "$c_{hi}")
    assert len(rows) == 8
    np.testing.assert_allclose(sorted(marked(ax)[:, 1]), sorted(rows["lre_inf"]), rtol=1e-12)
    assert bars(ax, 1) == rounded(rows, "lre_inf_low", "lre_inf_high")
    assert len(fig.axes) == 10
    assert "infinite" in module("fairness_map").caption(tables) or "no finite mean" in module("fairness_map").caption(
        tables
    )


def test_fairness_grid_colours_fspo_and_marks_the_fairest(tables):
    fig = module("fairness_grid").figure(tables, Style())
    table = tables["fairness_map"]
    rows = table[(table["factor_2"] == "exponent") & (table["method"] == "closed") & (table["target"] == 0.85)]
    ax = next(ax for ax in fig.axes if ax.get_ylabel().startswith("exponent"))
    (mesh,) = [c for c in ax.collections if isinstance(c, QuadMesh)]
    own = rows[rows["rule"] == "fspo"].pivot(index="value_2", columns="value", values="lre_inf")
    np.testing.assert_array_equal(np.asarray(mesh.get_array()).reshape(own.shape), own)
    bands = rows[~rows["rule"].isin(["none", "random"])]
    least = bands.groupby(["value", "value_2"])["lre_inf"].min()
    found = {tuple(p): line.get_color() for line in ax.get_lines() for p in np.column_stack(line.get_data())}
    names = {"#0072B2": "fspo", "#009E73": "linear", "#B8860B": "power-0.75", "#D55E00": "fixed", "#56B4E9": "fspo-kl"}
    for j, x in enumerate(own.columns):
        for i, y in enumerate(own.index):
            rule = names.get(found[(j + 0.5, i + 0.5)])
            if rule is not None:
                its = bands[(bands["rule"] == rule) & (bands["value"] == x) & (bands["value_2"] == y)]
                assert float(its["lre_inf"].iloc[0]) <= least[x, y] + 1e-3
    assert found[(0.5, 1.5)] == "#0072B2"  # no drift, H = 1/2: T1
    assert len(found) == own.size


def test_mse_map_draws_the_table_and_its_least_cells(tables):
    fig = module("mse_map").figure(tables, Style())
    table = tables["mse_map"]
    table = table[(table["model"] == "softmax") & (table["n"] == 512)]
    free = float(table.loc[table["outside"] == "none", "mse"].iloc[0])
    for outside, centre, title in (("drop", 0, "drop, centre 0"), ("cap", -1, "cap, centre $-KL$")):
        own = table[(table["outside"] == outside) & (table["centre"] == centre)]
        grid = own.pivot(index="gamma", columns="acceptance", values="mse") / free
        ax = titled(fig, title)
        (mesh,) = [c for c in ax.collections if isinstance(c, QuadMesh)]
        np.testing.assert_allclose(np.asarray(mesh.get_array()).reshape(grid.shape), grid, rtol=1e-12)
        ((x, y),) = marked(ax, marker="*")
        assert grid.to_numpy()[int(y), int(x)] == grid.to_numpy().min()
        assert len(marked(ax, marker="x")) == int((grid > 1).to_numpy().sum())
    least = table[(table["outside"] != "none") & table["centre"].isin([-1, 0, 1])]["mse"].min() / free
    assert f"Least: {least:.3f}" in module("mse_map").caption(tables)


def test_mse_best_draws_the_table(tables):
    fig = module("mse_best").figure(tables, Style())
    table = tables["mse_best"]
    table = table[(table["n"] == 512) & (table["criterion"] == "mse")]
    ax = titled(fig, "update as it is")
    for outside, marker in (("drop", "o"), ("truncate", "s"), ("cap", "D")):
        own = table[table["outside"] == outside]
        for column, fill in (("value", "full"), ("value_gamma_half", "none")):
            drawn = marked(ax, marker=marker, fillstyle=fill)
            np.testing.assert_allclose(drawn[:, 0], own[column] / own["value_unclipped"], rtol=1e-12)


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("width", ["acl-column", "neurips"])
def test_nothing_is_cut_off_overlaps_or_is_too_small(tables, monkeypatch, name, width):
    style = Style(width)
    with style.context():
        assert_legible(module(name).figure(tables, style), style, monkeypatch)


@pytest.mark.parametrize("name", FIGURES)
def test_captions_are_filled_in_and_cite_the_theory(tables, name):
    text = module(name).caption(tables)
    assert len(text.partition("\n\n")[0]) <= 440  # four lines
    assert not set("{}$\\") & set(text)
    assert "docs/theory.md" in text
    assert "nan" not in text.replace("(", " ").split()


def test_adaptive_models_draw_every_rule_under_every_model(tables):
    fig = module("adaptive_models").figure(tables, Style())
    table = tables["adaptive_models"]
    for drift, title in (("kl", "around"), ("none", "without")):
        rows, ax = table[table["drift"] == drift], titled(fig, title)
        words = [label.get_text() for label in ax.get_yticklabels()] or list(dict.fromkeys(rows["words"]))
        assert len(words) == 3
        drawn = {round(float(x), 9) for x in marked(ax)[:, 0]}
        assert drawn >= {round(x, 9) for x in rows["lre_inf"]}
    assert "over 4 independent runs" in module("adaptive_models").caption(tables)


@pytest.mark.parametrize("name", FIGURES)
def test_missing_tables_are_skipped_with_the_reason(name, tmp_path):
    (result,) = draw_all(Tables({}), tmp_path, only=[name], modules=FIGURES)
    assert "is missing or empty" in result.skipped
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", FIGURES)
def test_tables_of_another_version_are_skipped_with_the_reason(tables, name, tmp_path):
    for key, frame in tables.frames.items():
        frame.iloc[:, :1].assign(strange=1).to_csv(tmp_path / file_name(key), index=False)
    (result,) = draw_all(load_theory(tmp_path), tmp_path / "drawn", only=[name], modules=FIGURES)
    assert "has no column" in result.skipped
    assert f"run fspo maps --output {tmp_path}" in result.skipped


def test_maps_without_a_row_to_draw_say_so(tables):
    one = tables["fairness_map"]
    with pytest.raises(NothingToDraw, match="two factors"):
        module("fairness_grid").figure(Tables({"fairness_map": one[one["factor_2"].isna()]}), Style())
    with pytest.raises(NothingToDraw, match="one factor"):
        module("fairness_map").figure(Tables({"fairness_map": one[one["factor_2"].notna()]}), Style())
    price = tables["mse_map"]
    with pytest.raises(NothingToDraw, match="without clipping"):
        module("mse_map").figure(Tables({"mse_map": price[price["outside"] != "none"]}), Style())
    with pytest.raises(NothingToDraw, match="rho < 1"):
        module("tightness").figure(Tables({"tightness": tables["tightness"].assign(rho=2.0)}), Style())


def test_the_command_draws_them_all(folder, tmp_path, capsys):
    assert main(["--theory", str(folder), "--output", str(tmp_path), "--width", "icml-column"]) == 0
    names = [c["name"] for c in json.loads((tmp_path / "captions.json").read_text())]
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("drawn ") for line in lines) == len(names)
    assert lines[-1].startswith(f"{len(names)} figures drawn, 0 skipped: ")
    # the map's eight rules: five in the main figure, three others beside fspo
    assert names == [
        n for name in FIGURES for n in (name, *(["fairness_map-supplement-1"] if name == "fairness_map" else []))
    ]
    assert {p.suffix for p in tmp_path.iterdir()} == {".pdf", ".png", ".json"}


def test_runs_and_theory_together(folder, case_runs, tmp_path):
    arguments = [str(case_runs("one")[0]), "--theory", str(folder), "--output", str(tmp_path)]
    assert main([*arguments, "--only", "[lre_by_rule,berry_esseen]"]) == 0
    captions = json.loads((tmp_path / "captions.json").read_text())
    assert [c["name"] for c in captions] == ["lre_by_rule", "berry_esseen"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name at least one run folder"),
        (["--theory", "{none}"], r"does not exist: run fspo maps --out"),
        (["--theory", "{empty}"], "no tables of the theory"),
        (["--theory", "{damaged}"], r"cannot read .*tightness.*fspo maps"),
        (["--theory", "{folder}", "--only", "[tightnes]"], "did you mean 'tightness'"),
        (["--theory", "{folder}", "--only", "[cosine_bound]"], "unknown figure"),
    ],
)
def test_bad_input_names_the_cure(folder, tmp_path, arguments, message):
    for name in ("empty", "damaged"):
        (tmp_path / name).mkdir()
    (tmp_path / "damaged" / "tightness.csv").write_text('source,rho\n"half')
    places = {"{folder}": folder, **{f"{{{n}}}": tmp_path / n for n in ("none", "empty", "damaged")}}
    with pytest.raises(UserError, match=message):
        main([*(str(places.get(a, a)) for a in arguments), "--output", str(tmp_path / "out")])


def test_an_unknown_folder_is_one_line_and_status_2(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        run_cli(lambda: main(["--theory", str(tmp_path / "no")]))
    assert stopped.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
