"""Table reuse: what further epochs on the same responses do, by times used and by updates since the rollout.

Expectations under the old policy hold for responses at first use alone (docs/theory.md section 1): from the second
epoch on the mean of exp S leaves 1, and the rows below describe, they do not test.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis.log.loading import Run
from analysis.log.rows import Floats
from analysis.rules.evaluate import evaluate, trained_case
from fspo.rules import MAX_EXPONENT
from fspo.stats.clusters import MIN_CLUSTERS, TOO_FEW, dense, ratios
from fspo.stats.intervals import mean_interval, proportion_interval

QUANTITIES = ("mean_weight", "mean_square_per_token", "drift_per_token", "ess_share")
"""E[exp S], sum S^2 / sum L, sum S / sum L (nats per token), effective over actual number of responses."""


def reuse_table(run: Run) -> list[dict[str, Any]]:
    """One row for each number of earlier uses and each number of updates since the rollout; ``all`` over updates."""
    rows = run.rows
    case = trained_case(run)
    outcome = None if case is None else evaluate(case, rows, np.zeros(len(rows), np.int64), "update")
    out_of_band: Floats | None = None
    if outcome is not None and not outcome.reason:
        out_of_band = (~outcome.in_band).astype(np.float64)
    elif "band_accept" in run.logged:
        out_of_band = (~rows.band_accept).astype(np.float64)
    table: list[dict[str, Any]] = []
    for used in np.unique(rows.used).tolist():
        for updates in [-1, *np.unique(rows.updates[rows.used == used]).tolist()]:
            at = (rows.used == used) & ((rows.updates == updates) | (updates < 0))
            table.append(_row(run, at, out_of_band) | {"times_used": used, "updates_since_rollout": updates})
    return table


def _row(run: Run, at: np.ndarray, out_of_band: Floats | None) -> dict[str, Any]:
    rows = run.rows.take(at)
    cluster, one = dense(rows.cluster), np.zeros(len(rows), np.int64)
    weight = np.exp(np.minimum(rows.S, MAX_EXPONENT))
    parts = {
        "mean_weight": ratios(weight, cluster, one, 1),
        "mean_square_per_token": ratios(rows.S**2, cluster, one, 1, rows.length),
        "drift_per_token": ratios(rows.S, cluster, one, 1, rows.length),
    }
    clusters = int(parts["mean_weight"].clusters[-1])
    few = clusters < MIN_CLUSTERS
    row: dict[str, Any] = {**run.key, "count": len(rows), "clusters": clusters, "reason": TOO_FEW if few else ""}
    for name, found in parts.items():
        low, high = mean_interval(found.value[-1], found.variance[-1], clusters)
        row |= {name: np.nan if few else found.value[-1], f"{name}_ci_low": float(low), f"{name}_ci_high": float(high)}
    square = float(np.sum(weight**2))
    row["ess_share"] = float(weight.sum()) ** 2 / (len(weight) * square) if square > 0 else np.nan
    row |= dict.fromkeys(("out_of_band", "out_of_band_ci_low", "out_of_band_ci_high"), np.nan)
    if out_of_band is not None and not few:
        found = ratios(out_of_band[at], cluster, one, 1, binary=True)
        low, high = proportion_interval(found.value, found.variance, found.count, found.clusters)
        row |= {"out_of_band": found.value[-1], "out_of_band_ci_low": low[-1], "out_of_band_ci_high": high[-1]}
    return row
