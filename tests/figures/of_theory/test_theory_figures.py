"""The theory's figures draw the numbers that belong to them, legibly."""

import json
import math
from fractions import Fraction
from functools import partial
from itertools import product

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import t

from figures import find_module
from figures.__main__ import main
from figures.of_theory import FIGURES, numbers
from figures.of_theory.numbers import theory_tables
from figures.style import Style
from tests.figures.looking import assert_legible, bars, marked, titled

RULE_COLORS = {"rloo": "#D55E00", "gspo": "#009E73", "fspo": "#0072B2", "fspo-kl": "#56B4E9"}
KINDS = ("formula", "simulated")


@pytest.fixture(scope="module")
def tables():
    return theory_tables(draws=1_000)


def phi(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def curve(ax, color: str, style: str | None = "-") -> np.ndarray:
    """The points of the one line of this colour and style (None: of any) that has no markers."""
    lines = [line for line in ax.get_lines() if line.get_color() == color and line.get_marker() == "None"]
    (line,) = [line for line in lines if style in (None, line.get_linestyle())]
    return np.column_stack(line.get_data()).astype(float)


def test_acceptance_models_are_matched_and_follow_the_closed_forms(tables):
    table = tables["acceptance_models"]
    formulas = table[table["kind"] == "formula"]
    for _, own in formulas.groupby(["panel", "rule"]):
        assert own["acceptance"].mean() == pytest.approx(0.85, abs=1e-9)
    still, moving = (formulas[formulas["panel"] == panel] for panel in ("no drift error", "drift -sigma^2/2"))
    np.testing.assert_allclose(still[still["rule"] == "fspo"]["acceptance"], 0.85, rtol=1e-9)  # T1
    np.testing.assert_allclose(moving[moving["rule"] == "fspo-kl"]["acceptance"], 0.85, rtol=1e-9)
    own = moving[moving["rule"] == "fspo"].set_index("length")["acceptance"]
    # u from the shortest length's acceptance, then section 4's formula elsewhere
    u = brentq(lambda u: phi(u + 0.015) - phi(-u + 0.015) - own[1.0], 0, 40, xtol=1e-14)
    for length in (1_000.0, 100_000.0):
        x = 0.015 * math.sqrt(length)
        assert own[length] == pytest.approx(phi(u + x) - phi(-u + x), rel=1e-6)


def test_simulated_points_agree_with_the_formulas(tables):
    for _, own in tables["acceptance_models"].groupby(["panel", "rule"]):
        formula, points = (own[own["kind"] == kind] for kind in KINDS)
        exact = np.interp(np.log(points["length"]), np.log(formula["length"]), formula["acceptance"])
        assert points["acceptance"].between(points["ci_low"], points["ci_high"]).all()
        inside = (points["ci_low"] - 1e-12 <= exact) & (exact <= points["ci_high"] + 1e-12)
        assert len(inside) == 10
        assert sum(inside) >= 7  # fewer than 7 in any of the 7 series has a probability below 1e-2


def test_acceptance_models_draw_the_table(tables):
    fig = find_module("acceptance_models").figure(tables, Style())
    table = tables["acceptance_models"]
    for panel, title in (("no drift error", "no drift"), ("drift -sigma^2/2", "drift $")):
        rows, ax = table[table["panel"] == panel], titled(fig, title)
        for rule in rows["rule"].unique():
            own, color = rows[rows["rule"] == rule], RULE_COLORS[rule]
            formula, points = (own.loc[own["kind"] == kind, ["length", "acceptance"]] for kind in KINDS)
            np.testing.assert_array_equal(curve(ax, color, None), formula)
            np.testing.assert_array_equal(marked(ax, color=color), points)
        ends = rows[["ci_low", "ci_high"]].dropna().to_numpy()
        assert bars(ax, 1) == {(round(float(a), 9), round(float(b), 9)) for a, b in ends}
    text = find_module("acceptance_models").caption(tables)
    assert "1,000 simulated responses each" in text
    assert "85 % on average" in text
    least = table[(table["panel"] == "drift -sigma^2/2") & (table["rule"] == "fspo") & (table["kind"] == "formula")]
    assert f"fspo {100 * least['acceptance'].min():.3g} %" in text


def test_drift_and_scale_by_hand(tables):
    table = tables["drift_and_scale"]
    for row in table[table["x"] > 0].itertuples():
        a = [phi(row.u_hi + y) - phi(-row.u_lo + y) for y in np.linspace(-row.x if row.mixed_signs else 0, row.x, 4001)]
        assert row.lre == pytest.approx(max(a) / min(a) - 1, rel=2e-6)
        slope = abs(math.exp(-(row.u_hi**2) / 2) - math.exp(-(row.u_lo**2) / 2)) / math.sqrt(2 * math.pi)
        bound = slope * row.x + math.exp(-0.5) / math.sqrt(2 * math.pi) * row.x**2
        a_0 = phi(row.u_hi) - phi(-row.u_lo)
        if bound < a_0:
            assert row.one_sided == pytest.approx(bound / (a_0 - bound), rel=1e-9)
            assert row.two_sided == pytest.approx(2 * bound / (a_0 - bound), rel=1e-9)
        else:
            assert math.isnan(row.one_sided)
    mixed = table[table["mixed_signs"] & (table["x"] > 0)]
    broken = mixed[mixed["lre"] > mixed["one_sided"]]  # T3: there the one-sided form is false
    assert f"first at x = {broken['x'].min():.2g}" in find_module("drift_and_scale").caption(tables)


def test_drift_and_scale_draws_the_table(tables):
    fig = find_module("drift_and_scale").figure(tables, Style())
    for u_lo, rows in tables["drift_and_scale"].groupby("u_lo"):
        ax = titled(fig, f"$u_-={u_lo:g}$")
        lines = {"lre": ("#0072B2", "-"), "one_sided": ("#D55E00", "--"), "two_sided": ("#117733", "--")}
        for column, (color, style) in lines.items():
            np.testing.assert_array_equal(curve(ax, color, style), rows[["x", column]])
        assert rows["lre"].max() < ax.get_ylim()[1]


def test_cosine_tightness_never_breaks_the_bound_and_reaches_it(tables):
    table = tables["cosine_tightness"]
    assert table["source"].value_counts().to_dict() == {"random": 100, "policy": 96, "T7s": 17}
    some = table[(table["rho"] < 1) & (table["rho"] > 1e-6)]
    assert (some["sine"] <= some["rho"] * (1 + 1e-8)).all()
    assert (some["cosine"] > 0).all()
    np.testing.assert_allclose(some["cosine"] ** 2 + some["sine"] ** 2, 1, atol=1e-12)
    sharp = table[table["source"] == "T7s"]
    np.testing.assert_allclose(sharp["sine"], sharp["rho"], rtol=1e-9)


def test_cosine_tightness_draws_points_that_touch_the_bound(tables):
    left, right = find_module("cosine_tightness").figure(tables, Style()).axes
    table = tables["cosine_tightness"]
    for source, marker in (("random", "."), ("policy", "^"), ("T7s", "o")):
        rows = table[(table["source"] == source) & (table["rho"] >= 1e-4) & (table["rho"] < 1)]
        np.testing.assert_array_equal(marked(left, marker=marker), rows[["rho", "cosine"]])
        np.testing.assert_array_equal(marked(right, marker=marker), rows[["rho", "sine"]])
    rho, bound = curve(left, "black").T
    np.testing.assert_allclose(bound**2 + rho**2, 1, atol=1e-12)
    np.testing.assert_allclose(np.hypot(*marked(left, marker="o").T), 1, atol=1e-9)
    np.testing.assert_array_equal(*curve(right, "black").T)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8])
def test_the_worst_band_of_signs_by_enumeration(length):
    sums = [sum(s) for s in product((-1, 1), repeat=length)]
    share, root, worst = Fraction(1, 2**length), math.sqrt(length), 0.0
    # closed bands with edges at atoms or just beside them
    edges = [(v, shift) for v in sorted(set(sums)) for shift in (-1, 0, 1)]
    for low, high in product(edges, edges):
        if low <= (0, 0) <= high:
            inside = float(share * sum(low <= (s, 0) <= high for s in sums))
            worst = max(worst, abs(inside - (phi(high[0] / root) - phi(low[0] / root))))
    assert numbers.worst_band(*numbers.edge_errors("signs", length)) == pytest.approx(worst, rel=1e-9)


def test_one_token_by_its_law():
    z, error = numbers.edge_errors("exponential", 1)
    at = np.argmin(np.abs(z - 0.5))
    assert error[at] == pytest.approx(1 - math.exp(-1 - z[at]) - phi(z[at]), rel=1e-9)
    z, error = numbers.edge_errors("student", 1)
    np.testing.assert_allclose(error, t.cdf(z * math.sqrt(5 / 3), 5) - [phi(v) for v in z], atol=1e-9)


def test_the_envelope_holds_and_the_signs_come_near(tables):
    table = tables["normal_approximation"]
    assert (table["difference"] <= table["envelope"]).all()
    signs = table[(table["distribution"] == "signs") & (table["length"] == 1024)].iloc[0]
    assert signs["difference"] * 32 == pytest.approx(math.sqrt(2 / math.pi), rel=1e-3)  # the 0.798 of T4
    assert set(table["rho3"].round(4)) == {1.0, 2.2053, 2.4146}
    assert (table["envelope"] * np.sqrt(table["length"])).round(9).equals((2 * 0.4748 * table["rho3"]).round(9))


def test_normal_approximation_draws_the_table(tables):
    fig = find_module("normal_approximation").figure(tables, Style())
    table = tables["normal_approximation"]
    for name, title in (("exponential", "exponential"), ("signs", "$\\pm"), ("student", "Student")):
        rows, ax = table[table["distribution"] == name], titled(fig, title)
        np.testing.assert_allclose(curve(ax, "black"), rows[["length", "envelope"]], rtol=1e-12)
        np.testing.assert_allclose(curve(ax, "#0072B2"), rows[["length", "difference"]], rtol=1e-12)
        assert ax.get_ylim()[0] <= rows["difference"].min()


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("width", ["acl-column", "neurips"])
def test_nothing_is_cut_off_overlaps_or_is_too_small(tables, monkeypatch, name, width):
    style = Style(width)
    with style.context():
        assert_legible(find_module(name).figure(tables, style), style, monkeypatch)


@pytest.mark.usefixtures("no_pixels")
def test_the_command_draws_them_all_with_their_numbers(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(numbers, "theory_tables", partial(theory_tables, draws=1_000))
    assert main(["--theory", "--output", str(tmp_path), "--width", "icml-column"]) == 0
    captions = json.loads((tmp_path / "captions.json").read_text())
    assert [c["name"] for c in captions] == list(FIGURES)
    assert capsys.readouterr().out.splitlines()[-1].startswith("4 figures drawn, 0 skipped: ")
    assert {p.name for p in tmp_path.glob("*.csv")} == {c["numbers"] for c in captions}
    assert {p.suffix for p in tmp_path.iterdir()} == {".pdf", ".png", ".csv", ".json"}
