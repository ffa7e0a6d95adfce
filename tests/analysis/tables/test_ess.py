"""Effective sample size by length against enumeration, deleted clusters and the normal law."""

import numpy as np
import pandas as pd
import pytest

from analysis.run import Options, analyse_runs
from analysis.tables.ess import effective_share
from analysis.tables.files import read_tables
from fspo.rules import correction
from fspo.stats.intervals import t_quantile
from tests.analysis.conftest import Plan, write_log


def test_shares_means_and_intervals_by_enumeration(tmp_path):
    """Weights e^E of all first-use rows with A != 0, and those that mis keeps."""
    mis = correction("mis", on="engine", range_lo=0.3, range_hi=0.3)
    run = write_log(tmp_path / "run", Plan(engine=0.06, rollouts=2, correction=mis, width=0))
    analyse_runs([run], Options(rules=(), targets=(), edges=(2, 40, 301), on="engine"))
    table = read_tables([run], on="engine")["ess"].set_index(["rule", "bin"])
    log = pd.read_parquet(run / "gradlog").query("times_used == 0 and advantage != 0")
    cluster = log["rollout"] * 1000 + log["prompt_id"]
    bins = (log["length"] >= 40).astype(int)
    for rule, x in (("exact", np.exp(log["engine_log_ratio"])), ("mis", log["correction_weight"].astype(float))):
        for k, at in ((0, bins == 0), (1, bins == 1), (-1, bins >= 0)):
            row, w, c = table.loc[(rule, k)], x[at], cluster[at]
            assert row["estimate"] == pytest.approx(w.sum() ** 2 / (len(w) * (w**2).sum()), rel=1e-6)
            assert row["mean_weight"] == pytest.approx(w.mean(), rel=1e-6)
            assert (row["count"], row["clusters"]) == (len(w), c.nunique())
            left = np.array([np.log(v.sum() ** 2 / (len(v) * (v**2).sum())) for v in (w[c != g] for g in c.unique())])
            half = t_quantile(len(left) - 1) * np.sqrt(len(left) - 1) * left.std()
            assert np.log(row["ci_low"]) == pytest.approx(np.log(row["estimate"]) - half, rel=1e-4)


def test_intervals_cover_the_share_of_the_normal_law():
    """w = e^E with E of N(-v/2, v) has E[w]^2 / E[w^2] = e^-v; 200 logs of 150 clusters with a common part."""
    rng, v = np.random.default_rng(0), 0.1
    inside = 0
    for _ in range(200):
        part = rng.normal(0, np.sqrt(v / 2), (150, 1)) + rng.normal(0, np.sqrt(v / 2), (150, 8)) - v / 2
        w = np.exp(part)
        found, why = effective_share(np.full(150, 8.0), w.sum(1), (w**2).sum(1))
        inside += found.low < np.exp(-v) < found.high
        assert why == ""
    assert 182 <= inside <= 199


def test_a_share_that_one_cluster_decides_has_no_interval_and_no_weight_no_share():
    one = np.array([2.0, 0.0, 0.0])
    found, why = effective_share(np.full(3, 4.0), one, one)
    assert found.value == pytest.approx(4 / (12 * 2))
    assert why == "no interval: one cluster holds all of the weight"
    assert effective_share(np.full(3, 4.0), 0 * one, 0 * one)[1] == "all weights are 0"
