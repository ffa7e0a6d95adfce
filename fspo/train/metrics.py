"""Metrics of the updates of a rollout. Each is kept as a sum and a count, which are divided at the end of the rollout.

A metric that TRL has with the same meaning has TRL's name. ``clip_ratio/{low,high,region}_mean`` are shares of the
responses with A != 0 (token rules: of their tokens), over all updates. ``clip_ratio/out_of_band``, ``weight_capped``,
``length_bin/*``, ``lre_*`` and ``seq_log_ratio/*`` leave out the first update of a rollout, because S = 0 there."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fspo.base.errors import UserError
from fspo.config import TrainConfig
from fspo.gradlog import metric_names as metric
from fspo.rollouts.metric_sums import Counts, length_bins
from fspo.rules import Rule
from fspo.theory import lre
from fspo.train.updates import Record

# Name of the mean of S^2, from which a rollout's standard deviation of S is computed. The mean of S^2 itself is not
# written to metrics.jsonl.
_MEAN_SQUARE = "seq_log_ratio/mean_square"


def add_update_rows(counts: Counts, rows: dict[str, np.ndarray], edges: tuple[int, ...], *, moved: bool) -> None:
    """Add to ``counts`` the metrics of one update's n responses: shares clipped, and, if it is not the rollout's first
    update (``moved``), the means of S and S^2, S per token, the shares of responses out of the band and of those whose
    weight's exponent was capped, and, by length bin (``edges``: least lengths, tokens), the shares of responses out of
    the band, clipped below, clipped above and not clipped; shares (not) clipped are of responses with A != 0.
    ``rows`` holds arrays (n,) by name: the fields of `fspo.objective.Records`, and ``advantage``."""
    count = rows["count"].sum()
    low, high = rows["clipped_low"].sum(), rows["clipped_high"].sum()
    counts.add(metric.CLIPPED_LOW, low, count)
    counts.add(metric.CLIPPED_HIGH, high, count)
    counts.add(metric.CLIPPED, low + high + rows["clipped_dual"].sum(), count)
    if not moved:
        return
    n, S = len(rows["log_ratio"]), rows["log_ratio"]
    counts.add(metric.LOG_RATIO_MEAN, S.sum(), n)
    counts.add(_MEAN_SQUARE, (S**2).sum(), n)
    counts.add(metric.LOG_RATIO_DRIFT, S.sum(), rows["length"].sum())
    counts.add(metric.OUT_OF_BAND, (~rows["band_accept"]).sum(), n)
    counts.add(metric.CAPPED, rows["capped"].sum(), n)
    live = rows["advantage"] != 0
    # ``kept`` is 1 for a response that is not clipped and 0 for a clipped one; for token rules it is the share of the
    # response's tokens that are not clipped. The mean of ``kept`` is the update acceptance. It equals the mean of the
    # multiplier M if the rule drops what it clips.
    kept = 1 - (rows["clipped_low"] + rows["clipped_high"] + rows["clipped_dual"]) / np.maximum(rows["count"], 1)
    for i, mask in enumerate(length_bins(rows["length"], edges)):
        if not mask.any():
            continue
        size, here = mask.sum(), mask & live
        counts.add(metric.in_bin(i, metric.BIN_OUT_OF_BAND), (~rows["band_accept"][mask]).sum(), size)
        counts.add(metric.in_bin(i, metric.BIN_CLIPPED_LOW), rows["clipped_low"][here].sum(), rows["count"][here].sum())
        counts.add(
            metric.in_bin(i, metric.BIN_CLIPPED_HIGH), rows["clipped_high"][here].sum(), rows["count"][here].sum()
        )
        counts.add(metric.in_bin(i, metric.BIN_KEPT), kept[here].sum(), here.sum())


def add_update(
    counts: Counts, records: Sequence[Record], rule: Rule, config: TrainConfig, *, since: int, epoch: int
) -> None:
    """Add the metrics of this process's responses to one update to ``counts``: what the rule and the correction clip,
    mismatch, entropy, KL, drift.

    ``since`` and ``epoch`` count the updates since the rollout, and the passes over it, before this update."""
    for record in records:
        rows = record.rows | {"advantage": record.advantages}
        add_update_rows(counts, rows, config.log.length_edges, moved=since > 0)
        if epoch == 0:  # updates do not change the mismatch (E, D), so only the first pass over the rollout counts it
            mismatch, tokens = record.shard.mismatch, (rows["length"] - rows["missing"]).sum()
            counts.add(metric.BEHAVIOUR_DIFFERENCE, float(mismatch.behaviour.abs().sum()), tokens)
            if mismatch.engine is not None:
                counts.add(metric.ENGINE_DIFFERENCE, float(mismatch.engine.abs().sum()), tokens)
            counts.add(metric.MISSING, rows["missing"].sum(), rows["length"].sum())
            if config.log.entropy:
                counts.add(metric.ENTROPY, (record.shard.entropy * rows["length"]).sum(), rows["length"].sum())
        if "correction_weight" in rows:
            live = rows["advantage"] != 0
            counts.add(metric.CORRECTION_CUT, rows["correction_cut"].sum(), rows["correction_count"].sum())
            counts.add(metric.CORRECTION_WEIGHT, rows["correction_weight"][live].sum(), live.sum())
        if config.rule.kl_coef > 0:
            counts.add(metric.KL, rows["kl"].sum(), rows["length"].sum())
        if rule.needs_stats and since > 0:
            counts.add(metric.DRIFT, rows["drift"].sum(), len(rows["drift"]))


def finished(counts: Counts, edges: tuple[int, ...]) -> dict[str, float]:
    """Divide each sum in ``counts`` by its count and return the metrics of a rollout by name; ``edges`` are the least
    lengths of the length bins, tokens. The mean of S^2 and the bins' shares of unclipped responses are not returned.
    They give, with the other sums, further metrics: the standard deviation of S, and the LRE of the band acceptance and
    of the update acceptance over the bins that hold responses (docs/theory.md section 3). Each bin also gets its number
    of responses and its ends."""
    pairs, values = counts.pairs(), counts.values()
    square = values.pop(_MEAN_SQUARE, None)
    if square is not None:
        values[metric.LOG_RATIO_STD] = math.sqrt(max(square - values[metric.LOG_RATIO_MEAN] ** 2, 0.0))
    for measure, column in ((metric.LRE_BAND, metric.BIN_OUT_OF_BAND), (metric.LRE_UPDATE, metric.BIN_KEPT)):
        named = [pairs.get(metric.in_bin(i, column), [0.0, 0.0]) for i in range(len(edges))]
        found = np.array([pair for pair in named if pair[1]])
        if not len(found):
            continue
        p, share = found[:, 1], found[:, 0] / found[:, 1]
        try:
            error = lre(p, 1 - share if column == metric.BIN_OUT_OF_BAND else share)
        except UserError:  # no response was accepted, so there is no LRE
            continue
        values |= {measure + norm: value for norm, value in (("inf", error.inf), ("l1", error.l1), ("l2", error.l2))}
    for i, lower in enumerate(edges):
        if metric.in_bin(i, metric.BIN_OUT_OF_BAND) in pairs:
            values[metric.in_bin(i, metric.BIN_COUNT)] = pairs[metric.in_bin(i, metric.BIN_OUT_OF_BAND)][1]
            values[metric.in_bin(i, metric.BIN_LENGTH_LO)] = lower
            if i + 1 < len(edges):
                values[metric.in_bin(i, metric.BIN_LENGTH_HI)] = edges[i + 1]
        values.pop(metric.in_bin(i, metric.BIN_KEPT), None)
    return values
