"""The gap between theory and data: each ingredient broken alone is found, at its closed form."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats as sps

from analysis.bins import make_bins
from analysis.loading import load_run
from analysis.theory_gap import INGREDIENTS, gap_table, parts

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
    table = pd.DataFrame(gap_table(run, make_bins(run.rows.length, 4), 5))
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
