"""Effective sample size by length against enumeration, deleted clusters and the normal law."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kurtosis

from analysis.options import Options
from analysis.run import analyse_runs
from analysis.tables.columns import Interval
from analysis.tables.ess import effective_share
from analysis.tables.files import read_tables
from fspo.rules import correction
from fspo.stats.intervals import t_quantile
from tests.analysis.conftest import Plan, write_log


def test_shares_means_and_intervals_by_enumeration(tmp_path):
    """Weights e^E of all first-use rows with A != 0, and those that mis keeps."""
    mis = correction("mis", on="engine", range_lo=0.2, range_hi=0.2)
    run = write_log(tmp_path / "run", Plan(engine=0.02, rollouts=2, correction=mis, width=0))
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
            without = [np.log(v.var(ddof=0) / v.mean() ** 2) for v in (w[c != g] for g in c.unique())]
            whole, number = np.log(w.var(ddof=0) / w.mean() ** 2), len(without)
            pseudo = number * whole - (number - 1) * np.array(without)
            freedom = min(number - 1, 2 * number / (kurtosis(pseudo, fisher=False) - 1))
            high = pseudo.mean() + t_quantile(freedom) * pseudo.std(ddof=1) / np.sqrt(number)
            assert np.log(1 / row["ci_low"] - 1) == pytest.approx(high, rel=1e-4)


def lognormal(rng, variance, clusters, logs=200):
    """Weights e^E (logs, clusters, 8), E of N(0, variance), half of it common to a cluster: R = e^-variance."""
    parts = [rng.normal(0, np.sqrt(variance / 2), (logs, clusters, size)) for size in (1, 8)]
    return np.exp(parts[0] + parts[1])


@pytest.mark.parametrize("variance", [0.01, 0.05, 0.1])
def test_intervals_cover_the_share_of_the_normal_law(variance):
    weights = lognormal(np.random.default_rng(0), variance, 150)
    found = [effective_share(np.full(150, 8.0), w.sum(1), (w**2).sum(1)) for w in weights]
    held = [f.low < np.exp(-variance) < f.high for f, why in found if not why]
    assert len(held) >= 160
    assert 0.91 <= np.mean(held) <= 0.99


def test_no_interval_where_few_weights_decide():
    """At a variance of 1 the squared weight of one response in a thousand is 30 times the mean."""
    weights = lognormal(np.random.default_rng(1), 1.0, 60)
    found = [effective_share(np.full(60, 8.0), w.sum(1), (w**2).sum(1)) for w in weights]
    assert np.mean(["few prompts hold most" in why for _, why in found]) > 0.95
    assert all(np.isnan(f.low) for f, why in found if why)


def test_few_responses_in_some_clusters_are_no_reason():
    """Clusters of 1 to 8 responses, weights bounded by a band."""
    rng = np.random.default_rng(2)
    w = np.exp(rng.uniform(-0.2, 0.2, (80, 8))) * (np.arange(8) < rng.integers(1, 9, (80, 1)))
    found, why = effective_share((w > 0).sum(1).astype(float), w.sum(1), (w**2).sum(1))
    assert why == ""
    assert found.low < found.value < found.high


def test_shares_without_an_interval():
    one = np.array([2.0, 0.0, 0.0])
    found, why = effective_share(np.full(3, 4.0), one, one)
    assert found.value == pytest.approx(4 / (12 * 2))
    assert why == "no interval: few prompts hold most of the squared weight"
    assert effective_share(np.full(3, 4.0), 0 * one, 0 * one)[1] == "all weights are 0"
    rejects = np.array([4.0, 4.0, 3.0])
    assert (
        effective_share(np.full(3, 4.0), rejects, rejects)[1] == "no interval: without one prompt all weights are equal"
    )
    assert effective_share(np.full(3, 4.0), np.full(3, 4.0), np.full(3, 4.0)) == (Interval(1.0, 1.0, 1.0), "")
