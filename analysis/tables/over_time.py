"""The tables over_time (share out of the band by rollout and length bin) and training (the run's metrics)."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numpy as np

from analysis.log.loading import Run
from analysis.log.notes import Notes
from analysis.log.rows import Rows
from analysis.rules.evaluate import CaseEffect
from analysis.tables.acceptance import Clusters, Count, Means, Reason
from analysis.tables.typed_rows import BinKey, Interval, RunKey
from fspo.gradlog.metrics_file import MetricsFile
from fspo.stats.bins import Bins
from fspo.stats.clusters import MIN_CLUSTERS, TOO_FEW, dense, ratios, totals
from fspo.stats.intervals import proportion_interval


class OverTimeRow(NamedTuple):
    """How often responses lay outside the band of the rule that trained: one row for each rollout and bin, first and
    later epochs together.

    Empty if the log neither names the rule that trained nor says which responses lay in its band. It is explained in
    docs/theory.md, section 2."""

    run: RunKey
    window: Annotated[int, "number of the rollout", "rollout"]
    place: BinKey
    count: Count
    estimate: Annotated[Interval, "share of the rows outside the band", "share"]
    clusters: Clusters
    reason: Reason


class TrainingRow(NamedTuple):
    """The numbers of metrics.jsonl: one row for each value.

    Written where the run folder has metrics.jsonl; else empty."""

    run: RunKey
    rollout: Annotated[float, "number of the rollout; empty where the line has none", "rollout"]
    step: Annotated[float, "optimizer updates done before, over the run; empty where the line has none", "updates"]
    phase: Annotated[str, "phase that wrote the line, for example train or eval", "text"]
    name: Annotated[str, "name of the metric", "text"]
    value: Annotated[float, "its value", "the metric's"]


def over_time_rows(run: Run, bins: Bins, rows: Rows, outcome: CaseEffect | None) -> list[OverTimeRow]:
    """Make the rows of the table over_time, by rollout and bin, from rows in the first epoch and rows of later epochs
    together.

    Parameters
    ----------
    rows : Rows (N,)
        Rows of complete rollouts.
    outcome : CaseEffect, optional
        What the rule that trained did. If it is None, as for a rule on tokens or prefixes, the logged columns are read.
    """
    if outcome is not None:
        if outcome.reason:
            return []
        out_of_band = ~outcome.in_band
    # If ``outcome`` is None, the log's column tells which responses lay outside.
    elif "band_accept" in run.logged:
        out_of_band = ~rows.band_accept
    else:
        return []
    table: list[OverTimeRow] = []
    for rollout in np.unique(rows.rollout):
        at = rows.rollout == rollout
        place, coordinate, cluster = bins.index(rows.coordinate[at]), rows.coordinate[at], dense(rows.cluster[at])
        found = ratios(out_of_band[at], cluster, place, len(bins), binary=True)
        low, high = proportion_interval(found.value, found.variance, found.count, found.clusters)
        with np.errstate(invalid="ignore"):
            sums = totals(place, len(bins), coordinate)
            means = Means(np.append(sums, sums.sum()) / found.count)
        for k in range(len(bins) + 1):
            few = found.clusters[k] < MIN_CLUSTERS
            key = RunKey.of(run), int(rollout), BinKey.of(bins, k, means.mean[k])
            share = Interval(np.nan if few else found.value[k], low[k], high[k])
            reason = TOO_FEW if few else ""
            table.append(OverTimeRow(*key, int(found.count[k]), share, int(found.clusters[k]), reason))
    return table


def training_table(run: Run) -> tuple[list[TrainingRow], Notes]:
    """Return a row of the table training for each number in metrics.jsonl, and notes on each line that cannot be
    read."""
    table: list[TrainingRow] = []
    records, damage = MetricsFile(run.path).read()
    for record in records:
        place = (
            RunKey.of(run),
            _number(record.get("rollout")),
            _number(record.get("step")),
            str(record.get("phase", "")),
        )
        for name, value in record.items():
            if name not in ("rollout", "step", "phase") and not math.isnan(number_ := _number(value)):
                table.append(TrainingRow(*place, name, number_))
    return table, Notes(damage=tuple(damage))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan
