"""The table noise_floor: how far numerics alone move S, by length bin and source of noise.

``fspo train --noise-floor`` measures the noise floor: S with unchanged weights, which would be 0 in exact arithmetic.
A run's share of clipped responses, its variance of S and its mean of S say something about the policy only if they are
above the same numbers of the noise floor."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from analysis.log.loading import Run
from analysis.log.notes import Notes
from analysis.log.partition import coordinates
from analysis.tables.acceptance import Clusters, Count, Reason
from analysis.tables.typed_rows import UNKNOWN, BinKey, Interval, RunKey, mean_at
from fspo.base.errors import UserError
from fspo.gradlog import GradLog, read_log
from fspo.gradlog.run_folder import GRADLOG, NOISE
from fspo.stats.bins import Bins
from fspo.stats.clusters import MIN_CLUSTERS, TOO_FEW, dense, ratios
from fspo.stats.intervals import proportion_interval

SOURCE = "user.source"


class NoiseRow(NamedTuple):
    """What numerics alone do to S, with the same weights: one row for each source of noise and bin.

    Written where ``fspo train --noise-floor`` measured it (RUN/noise); else empty."""

    run: RunKey
    source: Annotated[str, "source of the noise, as the measurement names it", "text"]
    meaning: Annotated[str, "what that source is", "text"]
    place: BinKey
    count: Count
    clusters: Clusters
    out_of_band: Annotated[Interval, "share of responses outside the band of the rule that trained", "share"]
    mean_square_per_token: Annotated[Interval, "sum of S^2 over sum of L", "nats squared per token"]
    reason: Reason


def read_noise(run: Run) -> tuple[GradLog | None, Notes]:
    """Read the log of the noise floor in the run folder, with notes about damaged files.

    The log is None if the folder has none or it cannot be read. It is None too if the analysed log-ratio is not the
    update's S, because the noise floor is measured for S only."""
    columns = [
        *("rollout", "prompt_id", "response_id", "length", "log_ratio", "band_accept"),
        *(run.partition.column, SOURCE),
    ]
    if run.ratio.on != "update" or not (run.path / NOISE / GRADLOG).is_dir():
        return None, Notes()
    try:
        log = read_log(run.path / NOISE, columns=columns, phases=("noise",))
    except UserError as error:
        return None, Notes(damage=(f"noise floor: {error}",))
    return log, Notes(damage=tuple(f"noise floor: {line}" for line in log.damage))


def noise_table(run: Run, bins: Bins) -> tuple[list[NoiseRow], Notes]:
    """Return a row for each source of noise and bin, and notes on damaged files; no rows if the run has no measured
    noise floor."""
    log, notes = read_noise(run)
    if log is None or any(name not in log for name in (SOURCE, run.partition.column)):
        return [], notes
    meanings = log.metadata.get("sources")
    meanings = meanings if isinstance(meanings, dict) else {}
    cluster = np.unique(log.column("prompt_id"), return_inverse=True)[1].reshape(-1).astype(np.int64)
    coordinate = coordinates(log, run.partition)
    S, L = log.column("log_ratio"), log.column("length").astype(np.float64)
    source = log.column(SOURCE)
    out: list[NoiseRow] = []
    for name in dict.fromkeys(source.tolist()):
        at = np.flatnonzero((source == name) & np.isfinite(S) & np.isfinite(coordinate))
        group, place, number = dense(cluster[at]), bins.index(coordinate[at]), len(bins)
        cut = ratios(~log.column("band_accept")[at], group, place, number, binary=True)
        low, high = proportion_interval(cut.value, cut.variance, cut.count, cut.clusters)
        spread = ratios(S[at] ** 2, group, place, number, L[at])
        for k in [number, *range(number)]:
            inside = place == k if k < number else np.ones(len(at), bool)
            few = cut.clusters[k] < MIN_CLUSTERS
            mean = float(coordinate[at][inside].mean()) if inside.any() else np.nan
            key = RunKey.of(run), name, meanings.get(name, name), BinKey.of(bins, k, mean)
            counts = int(cut.count[k]), int(cut.clusters[k])
            numbers = UNKNOWN, UNKNOWN
            if not few:
                numbers = Interval(cut.value[k], low[k], high[k]), mean_at(spread, k)
            out.append(NoiseRow(*key, *counts, *numbers, TOO_FEW if few else ""))
    return out, notes + Notes(warnings=_warnings(run, out))


def _warnings(run: Run, table: list[NoiseRow]) -> tuple[str, ...]:
    """Return a warning for each source of noise with sum S^2 / sum L of at least a tenth of that of the first epoch."""
    rows = run.rows.use("first")
    if not len(rows) or not table:
        return ()
    measured = float(np.sum(rows.S**2) / np.sum(rows.length))
    found = []
    for row in table:
        share = row.mean_square_per_token.value / measured if measured > 0 else np.inf
        if row.place.bin == -1 and share >= 0.1:
            found.append(
                f"noise floor: {row.meaning} alone makes {share:.0%} of the run's mean square S per token "
                f"and puts {row.out_of_band.value:.2%} of responses out of the band"
            )
    return tuple(found)
