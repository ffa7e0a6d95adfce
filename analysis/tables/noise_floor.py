"""Table noise_floor: what numerics alone do to S, by length bin and source (``python -m fspo.train --noise-floor``).

With the same weights S is 0. A clip rate, a Var(S)/L or a drift that does not stand above this floor says nothing
about the policy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis.log.loading import Run
from analysis.log.partition import coordinates
from fspo.base.errors import UserError
from fspo.gradlog import GradLog, read_log
from fspo.stats.bins import Bins
from fspo.stats.clusters import MIN_CLUSTERS, TOO_FEW, dense, ratios
from fspo.stats.intervals import mean_interval, proportion_interval

FOLDER = "noise"
SOURCE = "user.source"


def read_noise(run: Run) -> GradLog | None:
    """The measurement in the run folder; None if there is none."""
    columns = [
        "rollout",
        "prompt_id",
        "response_id",
        "length",
        "log_ratio",
        "band_accept",
        run.partition.column,
        SOURCE,
    ]
    if not (run.path / FOLDER / "gradlog").is_dir():
        return None
    try:
        log = read_log(run.path / FOLDER, columns=columns, phases=("noise",))
    except UserError as error:
        run.damage.append(f"noise floor: {error}")
        return None
    run.damage.extend(f"noise floor: {line}" for line in log.damage)
    return log


def noise_table(run: Run, bins: Bins) -> list[dict[str, Any]]:
    """One row a source and bin; empty without a measurement."""
    log = read_noise(run)
    if log is None or SOURCE not in log or run.partition.column not in log:
        return []
    meanings = log.metadata.get("sources")
    meanings = meanings if isinstance(meanings, dict) else {}
    cluster = np.unique(log.column("prompt_id"), return_inverse=True)[1].reshape(-1).astype(np.int64)
    coordinate, _ = coordinates(log, run.partition, cluster)
    S, L = log.column("log_ratio"), log.column("length").astype(np.float64)
    source = log.column(SOURCE)
    out: list[dict[str, Any]] = []
    for name in dict.fromkeys(source.tolist()):
        at = np.flatnonzero((source == name) & np.isfinite(S) & np.isfinite(coordinate))
        group, place, number = dense(cluster[at]), bins.index(coordinate[at]), len(bins)
        cut = ratios(~log.column("band_accept")[at], group, place, number, binary=True)
        low, high = proportion_interval(cut.value, cut.variance, cut.count, cut.clusters)
        spread = ratios(S[at] ** 2, group, place, number, L[at])
        drift = ratios(S[at], group, place, number, L[at])
        for k in [number, *range(number)]:
            inside = place == k if k < number else np.ones(len(at), bool)
            few = cut.clusters[k] < MIN_CLUSTERS
            mean = float(coordinate[at][inside].mean()) if inside.any() else np.nan
            row = {**run.key, "source": name, "meaning": meanings.get(name, name), "length_mean": mean}
            row |= bins.columns(-1 if k == number else k)
            row |= {"count": int(cut.count[k]), "clusters": int(cut.clusters[k]), "reason": TOO_FEW if few else ""}
            row |= {"out_of_band": np.nan if few else cut.value[k]}
            row |= {"out_of_band_ci_low": low[k], "out_of_band_ci_high": high[k]}
            for column, found in (("mean_square_per_token", spread), ("drift_per_token", drift)):
                ends = mean_interval(found.value[k], found.variance[k], found.clusters[k])
                row |= {column: np.nan if few else found.value[k]}
                row |= {f"{column}_ci_low": float(ends[0]), f"{column}_ci_high": float(ends[1])}
            out.append(row)
    return out


def noise_warnings(run: Run, table: list[dict[str, Any]]) -> list[str]:
    """One line for each source whose noise is a tenth of the run's own mean square S per token or more."""
    rows = run.rows.use("first")
    if not len(rows) or not table:
        return []
    measured = float(np.sum(rows.S**2) / np.sum(rows.length))
    found = []
    for row in table:
        share = row["mean_square_per_token"] / measured if measured > 0 else np.inf
        if row["bin"] == -1 and share >= 0.1:
            found.append(
                f"noise floor: {row['meaning']} alone makes {share:.0%} of the run's mean square S per token "
                f"and puts {row['out_of_band']:.2%} of responses out of the band"
            )
    return found
