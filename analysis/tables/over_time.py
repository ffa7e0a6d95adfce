"""Tables over_time (clip rate by rollout and length bin, as training saw it) and training (metrics in long form)."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from analysis.log.loading import Run
from analysis.log.rows import Floats, Rows
from analysis.rules.evaluate import Outcome
from analysis.tables.acceptance import Means, bin_columns
from fspo.stats.bins import Bins
from fspo.stats.clusters import MIN_CLUSTERS, TOO_FEW, dense, ratios, totals
from fspo.stats.intervals import proportion_interval

Table = list[dict[str, Any]]


def over_time_rows(run: Run, bins: Bins, rows: Rows, outcome: Outcome | None) -> Table:
    """Cut and out-of-band responses of the rule that trained, by rollout and bin; first use and reuse together.

    ``estimate`` is out_of_band / count over all responses; ``cut`` counts responses whose gradient was cut.

    Parameters
    ----------
    rows : Rows (N,)
        Of whole rollouts.
    outcome : Outcome, optional
        Of the rule that trained; of a token or prefix rule the logged columns are read instead.
    """
    if outcome is not None:
        if outcome.reason:
            return []
        out_of_band, cut = ~outcome.in_band, outcome.side != 0
    elif {"band_accept", "multiplier"} <= run.logged:
        out_of_band, cut = ~rows.band_accept, rows.multiplier < 1
    else:
        return []
    table: Table = []
    for rollout in np.unique(rows.rollout):
        at = rows.rollout == rollout
        place, coordinate, cluster = bins.index(rows.coordinate[at]), rows.coordinate[at], dense(rows.cluster[at])
        found = ratios(out_of_band[at], cluster, place, len(bins), binary=True)
        low, high = proportion_interval(found.value, found.variance, found.count, found.clusters)
        cuts, outs = (_and_all(totals(place, len(bins), x[at])) for x in (cut, out_of_band))
        with np.errstate(invalid="ignore"):
            means = Means(_and_all(totals(place, len(bins), coordinate)) / found.count)
        for k in range(len(bins) + 1):
            few = found.clusters[k] < MIN_CLUSTERS
            row = {**run.key, "window": int(rollout), "use": "all", **bin_columns(bins, means, k)}
            row |= {"cut": int(cuts[k]), "out_of_band": int(outs[k])}
            row |= {"count": int(found.count[k]), "clusters": int(found.clusters[k])}
            row |= {"estimate": np.nan if few else found.value[k], "ci_low": low[k], "ci_high": high[k]}
            table.append(row | {"reason": TOO_FEW if few else ""})
    return table


def _and_all(sums: Floats) -> Floats:
    return np.append(sums, sums.sum())


def training_table(run: Run) -> tuple[Table, list[str]]:
    """The numbers of metrics.jsonl, one row a value, and one line for each line that cannot be read."""
    path = run.path / "metrics.jsonl"
    if not path.is_file():
        return [], []
    table: Table = []
    damage: list[str] = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            damage.append(f"metrics.jsonl line {number}: {error.msg}")
            continue
        if not isinstance(record, dict):
            damage.append(f"metrics.jsonl line {number}: no JSON object")
            continue
        place: dict[str, Any] = {name: _number(record.get(name)) for name in ("rollout", "step")}
        place["phase"] = str(record.get("phase", ""))
        for name, value in record.items():
            if name not in place and not math.isnan(number_ := _number(value)):
                table.append({**run.key, **place, "name": name, "value": number_})
    return table, damage


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan
