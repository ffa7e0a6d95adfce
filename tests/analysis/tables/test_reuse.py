"""The effect of reuse, by hand on simulated logs."""

import numpy as np
import pytest

from analysis.log.loading import load_run
from analysis.tables.reuse import ReuseRow, reuse_table
from tests.analysis.rows import records


def test_rows_are_means_over_the_named_uses(fspo_run):
    run = load_run(fspo_run)
    rows = run.rows
    table = {(r["times_used"], r["updates_since_rollout"]): r for r in records(ReuseRow, reuse_table(run))}
    assert {used for used, _ in table} == {0, 1}
    for (used, updates), row in table.items():
        at = (rows.used == used) & ((rows.updates == updates) | (updates == -1))
        S, L = rows.S[at], rows.length[at]
        assert row["count"] == at.sum()
        assert row["mean_weight"] == pytest.approx(np.exp(S).mean())
        assert row["mean_square_per_token"] == pytest.approx(np.sum(S**2) / np.sum(L))
        assert row["drift_per_token"] == pytest.approx(np.sum(S) / np.sum(L))
        assert row["ess_share"] == pytest.approx(np.exp(S).sum() ** 2 / (at.sum() * np.exp(2 * S).sum()))
        assert row["out_of_band"] == pytest.approx(np.mean(np.abs(S) > 0.03 * np.sqrt(L)))
        for name in ("mean_weight", "mean_square_per_token", "drift_per_token"):
            assert row[f"{name}_ci_low"] <= row[name] <= row[f"{name}_ci_high"]


def test_the_simulated_walk_spreads_with_every_update(fspo_run):
    """The log's S walks one step an update: S^2 per token grows in proportion to the updates since the rollout."""
    table = [r for r in records(ReuseRow, reuse_table(load_run(fspo_run))) if r["updates_since_rollout"] > 0]
    per_update = [r["mean_square_per_token"] / r["updates_since_rollout"] for r in table]
    assert max(per_update) < 1.5 * min(per_update)
