"""The gap between theory and data: each ingredient broken alone is found, at its closed form."""

import numpy as np
import pytest
from scipy import stats as sps

from analysis.log.loading import load_run
from analysis.tables.columns import frame
from analysis.tables.theory_gap import INGREDIENTS, GapRow, gap_table, parts
from fspo.stats.bins import make_bins

N = 120_000
PHI = sps.norm.cdf


def split(S, lo=-1.5, hi=1.5, bins=None, sign=None):
    zeros = np.zeros(len(S), int)
    return parts(
        S, np.full(len(S), lo), np.full(len(S), hi), zeros if bins is None else bins, zeros if sign is None else sign, 2
    )


def test_the_model_has_no_gap():
    found = split(np.random.default_rng(0).standard_normal(N))
    assert found["theory"][0] == pytest.approx(2 * PHI(1.5) - 1, abs=0.003)
    assert all(abs(found[name][0]) < 0.004 for name in (*INGREDIENTS, "rest", "gap"))


def test_asymmetry_alone():
    found = split(np.random.default_rng(1).standard_normal(N), -1.0, 2.0)
    assert found["asymmetry"][0] == pytest.approx(PHI(2) - PHI(-1) - (2 * PHI(1.5) - 1), abs=0.003)
    assert all(abs(found[name][0]) < 0.003 for name in INGREDIENTS if name != "asymmetry")


def test_drift_alone():
    found = split(np.random.default_rng(2).standard_normal(N) + 0.8)
    assert found["drift"][0] == pytest.approx(PHI(0.7) - PHI(-2.3) - (2 * PHI(1.5) - 1), abs=0.003)
    assert all(abs(found[name][0]) < 0.003 for name in INGREDIENTS if name != "drift")


def test_spread_by_length_alone():
    rng = np.random.default_rng(3)
    bins = np.arange(N) % 2
    found = split(rng.standard_normal(N) * np.where(bins, 1.3, 0.7), bins=bins)
    pooled = np.sqrt((1.3**2 + 0.7**2) / 2)
    # tails differ as well: the law of all bins together is a mixture until each has its own spread
    for k, size in enumerate((0.7, 1.3)):
        assert found["gap"][k] == pytest.approx(2 * PHI(1.5 / size) - 2 * PHI(1.5 / pooled), abs=0.006)
        assert found["H"][k] == pytest.approx(found["gap"][k], abs=0.006)


def test_tails_alone():
    S = np.random.default_rng(4).laplace(scale=1 / np.sqrt(2), size=N)
    found = split(S)
    assert found["tails"][0] == pytest.approx(1 - np.exp(-1.5 * np.sqrt(2)) - (2 * PHI(1.5) - 1), abs=0.003)


def test_dependence_on_the_advantage_alone():
    rng = np.random.default_rng(5)
    sign = rng.integers(0, 2, N) * 2
    S = 0.6 * rng.standard_normal(N) + 0.8 * (sign - 1)
    found = split(S, sign=sign)
    exact = PHI((1.5 - 0.8) / 0.6) - PHI((-1.5 - 0.8) / 0.6)
    assert found["gap"][0] == pytest.approx(exact - (2 * PHI(1.5) - 1), abs=0.003)
    # the mixture's law can be had by its strata or by its tails: the two share the gap evenly
    assert found["dependence on A"][0] + found["tails"][0] == pytest.approx(found["gap"][0], abs=0.003)
    assert found["dependence on A"][0] == pytest.approx(found["gap"][0] / 2, abs=0.002)
    assert found["gap"][0] > 0.01


def test_parts_sum_to_the_gap_on_a_log(fspo_run):
    run = load_run(fspo_run)
    table = frame(GapRow, gap_table(run, make_bins(run.rows.length, 4), 5))
    assert len(table) == 5 * (3 + len(INGREDIENTS) + 1)
    for _, rows in table.groupby("bin"):
        value = rows.set_index("part")["estimate"]
        assert value[[*INGREDIENTS, "rest"]].sum() == pytest.approx(value["gap"], abs=1e-12)
        assert value["measured"] - value["theory"] == pytest.approx(value["gap"], abs=1e-12)
    overall = table[table["bin"] == -1].set_index("part")
    first = run.rows.used == 0
    assert overall.loc["measured", "estimate"] == pytest.approx(run.rows.band_accept[first].mean())
    assert np.all(overall["ci_low"] <= overall["ci_high"])
    tails = overall.loc["tails"]  # S was drawn normal
    assert tails["ci_low"] < 0.01
    assert tails["ci_high"] > -0.01


def of_log(run, **changes):
    run = load_run(run)
    rows = run.rows.__class__(**(run.rows.__dict__ | {name: make(run.rows) for name, make in changes.items()}))
    run = run.__class__(**(run.__dict__ | {"rows": rows}))
    return run, frame(GapRow, gap_table(run, make_bins(run.rows.length, 4), 5))


def test_updates_in_which_nothing_moved_are_no_gap(fspo_run):
    """Without a sigma the model would be given one of 1 nat a token, and a gap of nearly 1."""
    _, still = of_log(fspo_run, S=lambda r: np.zeros(len(r.S)))
    assert still.empty
    run, some = of_log(fspo_run, S=lambda r: np.where(r.rollout < 3, 0.0, r.S))
    first = (run.rows.used == 0) & (run.rows.rollout >= 3)
    assert some[some["bin"] == -1]["count"].unique() == [np.count_nonzero(first)]


def test_a_share_of_1_is_not_certain(fspo_run):
    run, table = of_log(fspo_run, S=lambda r: 0.01 * r.S)
    measured = table[(table["bin"] == 0) & (table["part"] == "measured")].iloc[0]
    assert measured["estimate"] == 1
    met = len(np.unique(run.rows.cluster[(run.rows.used == 0) & (run.rows.length <= measured["bin_hi"])]))
    share = 2 / (met + 4)
    assert measured["ci_high"] - 1 == pytest.approx(sps.t.ppf(0.975, 19) * np.sqrt(share * (1 - share) / met), rel=0.05)


def test_too_few_clusters_are_said(simulate):
    run = load_run(simulate(rollouts=1, width=0))
    rows = run.rows.take(np.flatnonzero(run.rows.cluster == run.rows.cluster[0]))
    run = run.__class__(**(run.__dict__ | {"rows": rows}))
    table = frame(GapRow, gap_table(run, make_bins(rows.length, 1), 5))
    assert table["estimate"].isna().all()
    assert table["reason"].str.contains("clusters").all()
