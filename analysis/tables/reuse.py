"""The table reuse: what happens to S when responses are used again, by times used and by updates since the rollout.

Statements about expectations under the old policy hold only for responses at first use (docs/theory.md section 1). In
reused rows the mean of exp(S) need not be 1 (T9), so this table describes a run and tests no statement.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from analysis.log.loading import Run
from analysis.log.rows import Floats
from analysis.rules.evaluate import evaluate, trained_case
from analysis.tables.acceptance import Clusters, Count, Reason
from analysis.tables.columns import UNKNOWN, Interval, RunKey, mean_at
from fspo.rules import importance_weight
from fspo.stats.clusters import MIN_CLUSTERS, TOO_FEW, dense, ratios
from fspo.stats.intervals import proportion_interval


class ReuseRow(NamedTuple):
    """What using responses again does: one row for each number of earlier uses and of updates since the rollout.

    Written for every run. docs/theory.md section 1 ("First use").
    """

    run: RunKey
    times_used: Annotated[int, "updates that used the response before; 0: first use", "uses"]
    updates_since_rollout: Annotated[int, "optimizer updates since the rollout; -1: all of them together", "updates"]
    count: Count
    clusters: Clusters
    out_of_band: Annotated[Interval, "share of responses outside the band of the rule that trained", "share"]
    mean_weight: Annotated[Interval, "mean of exp(S)", "number"]
    reason: Reason
    mean_square_per_token: Annotated[Interval, "sum of S^2 over sum of L", "nats squared per token"]
    drift_per_token: Annotated[Interval, "sum of S over sum of L", "nats per token"]
    ess_share: Annotated[float, "effective over actual number of responses: (sum of w)^2 / (n sum of w^2)", "share"]


def reuse_table(run: Run) -> list[ReuseRow]:
    """Make the rows of the table reuse: one for each number of earlier uses of a response, and each number of updates
    since its rollout (-1: any number)."""
    rows = run.rows
    case = trained_case(run)
    outcome = None if case is None else evaluate(case, rows, np.zeros(len(rows), np.int64), "update")
    out_of_band: Floats | None = None
    if outcome is not None and not outcome.reason:
        out_of_band = (~outcome.in_band).astype(np.float64)
    elif "band_accept" in run.logged:
        out_of_band = (~rows.band_accept).astype(np.float64)
    table: list[ReuseRow] = []
    for used in np.unique(rows.used).tolist():
        for updates in [-1, *np.unique(rows.updates[rows.used == used]).tolist()]:
            at = (rows.used == used) & ((rows.updates == updates) | (updates < 0))
            table.append(_row(run, used, updates, at, out_of_band))
    return table


def _row(run: Run, used: int, updates: int, at: np.ndarray, out_of_band: Floats | None) -> ReuseRow:
    rows = run.rows.take(at)
    cluster, one = dense(rows.cluster), np.zeros(len(rows), np.int64)
    weight = importance_weight(rows.S)
    clusters = int(cluster.max()) + 1
    few = clusters < MIN_CLUSTERS
    square = float(np.sum(weight**2))
    share = mean_weight = mean_square = drift = UNKNOWN
    if not few:
        mean_weight = mean_at(ratios(weight, cluster, one, 1), -1)
        mean_square = mean_at(ratios(rows.S**2, cluster, one, 1, rows.length), -1)
        drift = mean_at(ratios(rows.S, cluster, one, 1, rows.length), -1)
    if out_of_band is not None and not few:
        found = ratios(out_of_band[at], cluster, one, 1, binary=True)
        low, high = proportion_interval(found.value, found.variance, found.count, found.clusters)
        share = Interval(found.value[-1], low[-1], high[-1])
    ess_share = float(weight.sum()) ** 2 / (len(weight) * square) if square > 0 else np.nan
    key = RunKey.of(run), used, updates, len(rows), clusters
    return ReuseRow(*key, share, mean_weight, TOO_FEW if few else "", mean_square, drift, ess_share)
