"""The curves' tables: exact values by hand or by other methods, intervals that cover, files that explain themselves."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import mpmath as mp
import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from fspo.base.errors import UserError
from proofs_check.maps import curves
from proofs_check.maps.__main__ import main
from proofs_check.maps.tables import MAP_COLUMNS


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    out = tmp_path_factory.mktemp("curves")
    files = curves.write(out, seed=3, draws=1_000, progress=False)
    assert [file.name for file in files] == [f"{name}.csv" for name in curves.TABLES]
    return {name: pd.read_csv(out / f"{name}.csv") for name in curves.TABLES}


def phi(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def test_every_column_is_explained_and_every_file_is_whole(tables):
    for name, table in tables.items():
        assert list(table) == list(MAP_COLUMNS[name])
        assert len(table) > 10


def test_acceptance_laws_are_matched_and_follow_the_closed_forms(tables):
    table = tables["acceptance_laws"]
    laws = table[table["kind"] == "law"]
    for _, own in laws.groupby(["panel", "rule"]):
        assert own["acceptance"].mean() == pytest.approx(0.85, abs=1e-9)
    still, moving = (laws[laws["panel"] == panel] for panel in ("no drift error", "drift -sigma^2/2"))
    np.testing.assert_allclose(still[still["rule"] == "fspo"]["acceptance"], 0.85, rtol=1e-9)  # T1
    np.testing.assert_allclose(moving[moving["rule"] == "fspo-kl"]["acceptance"], 0.85, rtol=1e-9)
    own = moving[moving["rule"] == "fspo"].set_index("length")["acceptance"]
    # u from the shortest length's acceptance by bisection, then section 4's formula elsewhere
    low, high = 0.0, 40.0
    for _ in range(200):
        u = (low + high) / 2
        value = phi(u + 0.015) - phi(-u + 0.015)
        low, high = (u, high) if value < own[1.0] else (low, u)
    for length in (1_000.0, 100_000.0):
        x = 0.015 * math.sqrt(length)
        assert own[length] == pytest.approx(phi(u + x) - phi(-u + x), rel=1e-6)


def test_simulated_points_agree_with_the_laws(tables):
    table = tables["acceptance_laws"]
    points, inside = table[table["kind"] == "simulated"], 0
    for row in points.itertuples():
        rule, _ = curves.matched_rule(str(row.rule), row.mu, row.sigma, row.target)
        half = rule.half_widths(np.array([row.length]))
        centre = row.length * row.mu if row.rule == "fspo-kl" else 0.0
        scale = row.sigma * math.sqrt(row.length)
        edges = (centre - half[0][0] - row.mu * row.length, centre + half[1][0] - row.mu * row.length)
        exact = phi(edges[1] / scale) - phi(edges[0] / scale)
        inside += row.ci_low - 1e-12 <= exact <= row.ci_high + 1e-12
        assert row.ci_low <= row.acceptance <= row.ci_high
    assert len(points) == 90
    assert inside >= 78  # 95 % of 90 is 85.5; fewer than 78 has a probability below 1e-3


def test_matching_refuses_what_no_range_gives():
    with pytest.raises(UserError, match="reaches no mean acceptance"):
        curves.matched_rule("fspo", 0.0, 0.03, 1.5)


def test_drift_lre_by_hand(tables):
    table = tables["drift_lre"]
    for row in table[table["x"] > 0].itertuples():
        a = [phi(row.u_hi + y) - phi(-row.u_lo + y) for y in np.linspace(-row.x if row.mixed_signs else 0, row.x, 4001)]
        assert row.lre == pytest.approx(max(a) / min(a) - 1, rel=2e-6)
        assert row.low * (1 - 1e-12) <= row.lre * (1 + 1e-12)
        assert row.lre * (1 - 1e-12) <= row.high * (1 + 1e-12)
        assert row.near_low <= row.low <= row.high <= row.near_high
        slope = abs(math.exp(-(row.u_hi**2) / 2) - math.exp(-(row.u_lo**2) / 2)) / math.sqrt(2 * math.pi)
        bound = slope * row.x + math.exp(-0.5) / math.sqrt(2 * math.pi) * row.x**2
        a_0 = phi(row.u_hi) - phi(-row.u_lo)
        if bound < a_0:
            assert row.one_sided == pytest.approx(bound / (a_0 - bound), rel=1e-9)
            assert row.two_sided == pytest.approx(2 * bound / (a_0 - bound), rel=1e-9)
            assert row.high <= (row.two_sided if row.mixed_signs else row.one_sided)
        else:
            assert math.isnan(row.one_sided)
    mixed = table[table["mixed_signs"] & (table["x"] > 0)]
    assert (mixed["low"] > mixed["one_sided"]).any()  # T3: there the one-sided form is false
    corner = curves.lre_enclosure((0.9, 1.1), (0.9, 1.1), 0.0, 0.5)
    for u_lo, u_hi in product((0.9, 1.0, 1.1), repeat=2):
        a = [phi(u_hi + y) - phi(-u_lo + y) for y in np.linspace(0, 0.5, 501)]
        assert corner[0] <= max(a) / min(a) - 1 <= corner[1]


def test_tightness_never_breaks_the_bound_and_reaches_it(tables):
    table = tables["tightness"]
    assert set(table["source"]) == {"random", "optimised", "policy", "T7s"}
    some = table[(table["rho"] < 1) & (table["rho"] > 1e-6)]
    assert (some["sine"] <= some["rho"] * (1 + 1e-8)).all()
    assert (some["cosine"] > 0).all()
    np.testing.assert_allclose(some["cosine"] ** 2 + some["sine"] ** 2, 1, atol=1e-12)
    assert (table["guaranteed"] == (table["rho"] < 1)).all()
    sharp = table[table["source"] == "T7s"]
    np.testing.assert_allclose(sharp["sine"], sharp["rho"], rtol=1e-9)
    found = table[table["source"] == "optimised"]
    assert (found["sine"] / found["rho"]).median() > 0.999
    np.testing.assert_allclose(found["rho"], np.linspace(0.05, 0.95, len(found)), rtol=0.2)


def test_optimised_strata_refute_a_smaller_bound():
    found = [curves.optimised_strata(np.random.default_rng(i), 0.5) for i in range(4)]
    assert all(case.sine()[0] > 0.99 * case.lemma().rho for case in found)


def signs_by_enumeration(length: int) -> tuple[float, float]:
    """Worst band and u = 1 for sums of ``length`` signs, by listing all outcomes."""
    sums = [sum(s) for s in product((-1, 1), repeat=length)]
    share = Fraction(1, 2**length)
    values = sorted(set(sums))
    root = math.sqrt(length)
    worst = 0.0
    # closed bands with edges at atoms or just beside them
    edges = [(v, shift) for v in values for shift in (-1, 0, 1)]
    for low, a in edges:
        for high, b in edges:
            if (low, a) > (0, 0) or (high, b) < (0, 0):
                continue
            inside = float(share * sum((low, a) <= (s, 0) <= (high, b) for s in sums))
            worst = max(worst, abs(inside - (phi(high / root) - phi(low / root))))
    unit = float(share * sum(s * s <= length for s in sums))
    return worst, abs(unit - (phi(1) - phi(-1)))


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8])
def test_signs_by_enumeration(length):
    worst, unit = signs_by_enumeration(length)
    assert curves.worst_band(*curves.edge_errors("signs", length)) == pytest.approx(worst, rel=1e-9)
    assert abs(curves.unit_band("signs", length) - (phi(1) - phi(-1))) == pytest.approx(unit, rel=1e-9)


def test_one_and_two_exponential_tokens_by_hand():
    assert curves.unit_band("exponential", 1) == pytest.approx(1 - math.exp(-2), rel=1e-12)
    with mp.workdps(30):
        edge = 2 + mp.sqrt(2)
        two = 1 - (1 + edge) * mp.exp(-edge) - (1 - (3 - mp.sqrt(2)) * mp.exp(-(2 - mp.sqrt(2))))
    assert curves.unit_band("exponential", 2) == pytest.approx(float(two), rel=1e-12)
    z, error = curves.edge_errors("exponential", 1)
    at = np.argmin(np.abs(z - 0.5))
    assert error[at] == pytest.approx(1 - math.exp(-1 - z[at]) - phi(z[at]), rel=1e-9)


def test_one_student_token_by_its_law():
    scale = math.sqrt(5 / 3)
    assert curves.unit_band("student", 1) == pytest.approx(t.cdf(scale, 5) - t.cdf(-scale, 5), abs=1e-9)
    z, error = curves.edge_errors("student", 1)
    np.testing.assert_allclose(error, t.cdf(z * scale, 5) - [phi(v) for v in z], atol=1e-9)


def test_berry_esseen_holds_and_the_signs_come_near(tables):
    table = tables["berry_esseen"]
    exact = table[table["kind"] == "exact"]
    assert (exact["difference"] <= exact["envelope"]).all()
    worst, unit = (
        exact[exact["band"] == band].set_index(["law", "length"])["difference"] for band in ("worst", "unit")
    )
    assert (unit <= worst * (1 + 1e-9)).all()
    signs = exact[(exact["law"] == "signs") & (exact["band"] == "worst") & (exact["length"] == 1024)].iloc[0]
    assert signs["difference"] * 32 == pytest.approx(math.sqrt(2 / math.pi), rel=1e-3)  # the 0.798 of T5
    assert set(exact["rho3"].round(4)) == {1.0, 2.2053, 2.4146}
    assert (exact["envelope"] * np.sqrt(exact["length"])).round(9).equals((2 * 0.4748 * exact["rho3"]).round(9))
    points = table[table["kind"] == "simulated"]
    near = [row.ci_low - 1e-12 <= unit[row.law, row.length] <= row.ci_high + 1e-12 for row in points.itertuples()]
    assert len(near) == 21
    assert sum(near) >= 17  # 20 expected


def test_the_same_seed_gives_the_same_tables_and_another_does_not(tmp_path, tables):
    curves.write(tmp_path / "a", seed=3, draws=1_000, progress=False)
    curves.write(tmp_path / "b", seed=4, draws=1_000, progress=False)
    for name, table in tables.items():
        pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "a" / f"{name}.csv"), table)
        if name != "drift_lre":
            assert not pd.read_csv(tmp_path / "b" / f"{name}.csv").equals(table)


def test_the_command_writes_curves_alone_and_without_draws(tmp_path, capsys):
    assert main(["--only", "curves", "--draws", "0", "--no-progress", "--out", str(tmp_path)]) == 0
    assert {p.name for p in tmp_path.iterdir()} == {f"{name}.csv" for name in curves.TABLES}
    assert "acceptance_laws.csv" in capsys.readouterr().out
    laws = pd.read_csv(tmp_path / "acceptance_laws.csv")
    assert set(laws["kind"]) == {"law"}
    assert list(laws) == list(MAP_COLUMNS["acceptance_laws"])


def test_bad_input(tmp_path):
    with pytest.raises(UserError, match="draws=-1 must be >= 0"):
        curves.write(tmp_path, draws=-1)
    with pytest.raises(UserError, match="seed=-1 must be >= 0"):
        curves.write(tmp_path, seed=-1)
    with pytest.raises(UserError, match="did you mean 'curves'"):
        main(["--only", "curve", "--out", str(tmp_path)])
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        curves.write(tmp_path / "file" / "x", draws=0, progress=False)
