"""Metrics carried as (numerator, count) and divided once, and the live diagnostics made from them.

Names are TRL's where the meaning is TRL's. ``clip_ratio/{low,high,region}_mean`` count cut rows among rows with a
gradient over every update; ``clip_ratio/out_of_band``, ``length_bin/*``, ``lre_*`` and ``seq_log_ratio/*`` look only
at rows that have seen an update since their rollout, since S = 0 before. ``grad_cosine/*`` compares the update of the
rule that trains with its own unclipped one, own weight included; `python -m analysis` takes a common weight for all.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fspo.advantages import GroupStats
from fspo.base.errors import UserError
from fspo.base.files import writing
from fspo.config import TrainConfig
from fspo.rollouts.batches import RolloutBatch
from fspo.rules import Rule
from fspo.stats.bins import Bins
from fspo.theory import CosineLemma, cosine_lemma, lre
from fspo.train.updates import Records


class Ratios:
    """Named (numerator, count) pairs; ``merge`` adds those of another process or minibatch."""

    def __init__(self) -> None:
        self._pairs: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(self, name: str, numerator: float, count: float = 1.0) -> None:
        """Add to a ratio."""
        pair = self._pairs[name]
        pair[0] += float(numerator)
        pair[1] += float(count)

    def merge(self, other: dict[str, list[float]]) -> None:
        """Add another process's pairs."""
        for name, (numerator, count) in other.items():
            self.add(name, numerator, count)

    def pairs(self) -> dict[str, list[float]]:
        """The raw pairs, to be gathered."""
        return {name: list(pair) for name, pair in self._pairs.items()}

    def get(self, name: str) -> float:
        """One ratio; NaN where the count is 0."""
        numerator, count = self._pairs.get(name, (0.0, 0.0))
        return numerator / count if count else math.nan

    def values(self) -> dict[str, float]:
        """Every ratio with a count."""
        return {name: n / c for name, (n, c) in sorted(self._pairs.items()) if c}


def add_rollout(ratios: Ratios, batch: RolloutBatch, groups: GroupStats) -> None:
    """Add what is known of a rollout before its updates: rewards, lengths, verifier failures.

    ``reward_std`` is the mean over groups of their standard deviation (ddof = 1). TRL 1.16 logs another number under
    this name, the standard deviation of the whole batch's rewards.
    """
    n = len(batch)
    _, group, size = np.unique(batch.prompt_ids, return_inverse=True, return_counts=True)
    squares = np.bincount(group, (batch.rewards - (np.bincount(group, batch.rewards) / size)[group]) ** 2)
    several = size > 1
    ratios.add("reward", batch.rewards.sum(), n)
    ratios.add("reward_std", np.sqrt(squares[several] / (size[several] - 1)).sum(), several.sum())
    ratios.add("frac_reward_zero_std", groups.num_zero_std_groups, groups.num_groups)
    ratios.add("completions/mean_length", batch.lengths.sum(), n)
    ratios.add("completions/clipped_ratio", batch.truncated.sum(), n)
    ratios.add("verifier/timeout", (batch.reward_status == "timeout").sum(), n)
    ratios.add("verifier/error", (batch.reward_status == "error").sum(), n)


def add_drops(
    ratios: Ratios, lengths: np.ndarray, why: np.ndarray, reasons: Sequence[str], edges: tuple[int, ...]
) -> None:
    """Count the responses that were sampled and got no gradient: ``dropped/REASON`` and ``length_bin/i/dropped``.

    Parameters
    ----------
    lengths, why : (N,)
        Of all sampled responses; an empty string for one that was not dropped.
    reasons : sequence of str
        All that can occur; those that did not are 0.
    """
    for reason in reasons:
        ratios.add(f"dropped/{reason}", (why == reason).sum(), len(why))
    for i, mask in enumerate(length_bins(lengths, edges)):
        if mask.any():
            ratios.add(f"length_bin/{i}/dropped", (why[mask] != "").sum(), mask.sum())


def add_update_rows(ratios: Ratios, rows: dict[str, np.ndarray], edges: tuple[int, ...], *, moved: bool) -> None:
    """Add one update's log rows (columns of fspo.gradlog, plus cut_low, cut_high, cut_dual, count) to the ratios.

    Parameters
    ----------
    moved : bool
        Whether the parameters have been updated since the rollout.
    """
    count = rows["count"].sum()
    low, high = rows["cut_low"].sum(), rows["cut_high"].sum()
    ratios.add("clip_ratio/low_mean", low, count)
    ratios.add("clip_ratio/high_mean", high, count)
    ratios.add("clip_ratio/region_mean", low + high + rows["cut_dual"].sum(), count)
    if not moved:
        return
    n, S = len(rows["log_ratio"]), rows["log_ratio"]
    ratios.add("seq_log_ratio/mean", S.sum(), n)
    ratios.add("seq_log_ratio/mean_square", (S**2).sum(), n)
    ratios.add("seq_log_ratio/drift", S.sum(), rows["length"].sum())
    ratios.add("clip_ratio/out_of_band", (~rows["band_accept"]).sum(), n)
    ratios.add("weight_capped", rows["capped"].sum(), n)
    live = rows["advantage"] != 0
    # a_upd: E[M] under drop (T7), the same share whatever happens to a cut row
    kept = 1 - (rows["cut_low"] + rows["cut_high"] + rows["cut_dual"]) / np.maximum(rows["count"], 1)
    for i, mask in enumerate(length_bins(rows["length"], edges)):
        if not mask.any():
            continue
        size, here = mask.sum(), mask & live
        ratios.add(f"length_bin/{i}/out_of_band", (~rows["band_accept"][mask]).sum(), size)
        ratios.add(f"length_bin/{i}/clip_low", rows["cut_low"][here].sum(), rows["count"][here].sum())
        ratios.add(f"length_bin/{i}/clip_high", rows["cut_high"][here].sum(), rows["count"][here].sum())
        ratios.add(f"length_bin/{i}/kept", kept[here].sum(), here.sum())


def add_update(
    ratios: Ratios,
    batch: RolloutBatch,
    records: Records,
    rule: Rule,
    config: TrainConfig,
    *,
    since: int,
    epoch: int,
) -> None:
    """Add one update's rows on this process: what the rule cut, and entropy, KL and drift where they are kept.

    Parameters
    ----------
    since, epoch : int
        Updates since the rollout; passes over it before this one.
    """
    for shard, record in records:
        rows = record | {"advantage": batch.advantages[shard.micro.rows]}
        add_update_rows(ratios, rows, config.log.length_edges, moved=since > 0)
        if epoch == 0 and config.log.entropy:
            ratios.add("entropy", (shard.entropy * record["length"]).sum(), record["length"].sum())
        if config.rule.kl_coef > 0:
            ratios.add("kl", record["kl"].sum(), record["length"].sum())
        if rule.needs_stats and since > 0:
            ratios.add("drift_per_token", record["drift"].sum(), len(record["drift"]))


def length_bins(lengths: np.ndarray, edges: tuple[int, ...]) -> list[np.ndarray]:
    """Masks (N,) of the bins [edge_i, edge_i+1), the last one open."""
    index = Bins((*edges, math.inf)).index(lengths)
    return [index == i for i in range(len(edges))]


def finished(ratios: Ratios, edges: tuple[int, ...]) -> dict[str, float]:
    """Divide, and derive std, counts by bin and LRE over the live bins (docs/theory.md section 3)."""
    pairs, values = ratios.pairs(), ratios.values()
    square = values.pop("seq_log_ratio/mean_square", None)
    if square is not None:
        values["seq_log_ratio/std"] = math.sqrt(max(square - values["seq_log_ratio/mean"] ** 2, 0.0))
    for measure, column in (("lre_band", "out_of_band"), ("lre_update", "kept")):
        named = [pairs.get(f"length_bin/{i}/{column}", [0.0, 0.0]) for i in range(len(edges))]
        found = np.array([pair for pair in named if pair[1]])
        if not len(found):
            continue
        p, share = found[:, 1], found[:, 0] / found[:, 1]
        try:
            error = lre(p, 1 - share if column == "out_of_band" else share)
        except UserError:  # nothing accepted at all: LRE is not defined, and the clip ratios say so
            continue
        values |= {f"{measure}/inf": error.inf, f"{measure}/l1": error.l1, f"{measure}/l2": error.l2}
    for i, lower in enumerate(edges):
        if f"length_bin/{i}/out_of_band" in pairs:
            values[f"length_bin/{i}/count"] = pairs[f"length_bin/{i}/out_of_band"][1]
            values[f"length_bin/{i}/length_lo"] = lower
            if i + 1 < len(edges):
                values[f"length_bin/{i}/length_hi"] = edges[i + 1]
        values.pop(f"length_bin/{i}/kept", None)
    return values


def strata_sums(rows: dict[str, np.ndarray], psi: np.ndarray, edges: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Sums over one scored minibatch's rows with A != 0, by length bin, to be added over processes.

    Parameters
    ----------
    rows : dict of (n,) arrays
        weight, multiplier, clipped_weight, advantage, length of the scored rows.
    psi : (n, D)
        Their scores.
    """
    member = np.stack(length_bins(rows["length"], edges)).astype(np.float64)
    w, clipped = rows["weight"].astype(np.float64), rows["clipped_weight"].astype(np.float64)
    A = rows["advantage"]
    return {
        "count": member.sum(1),
        "multiplier": member @ rows["multiplier"],
        "weight": member @ w,
        "clipped_weight": member @ clipped,
        "g": (member * (w * A)) @ psi,
        "clipped": (member * (clipped * A)) @ psi,
    }


def live_lemma(sums: dict[str, np.ndarray], *, drop: bool) -> tuple[CosineLemma | None, dict[str, float]]:
    """T7 on one minibatch: the lemma (None where it is not defined) and the metrics under grad_cosine."""
    keep = sums["count"] > 0
    if not keep.any():
        return None, {}
    count = sums["count"][keep]
    a = (sums["multiplier"][keep] / count) if drop else sums["clipped_weight"][keep] / sums["weight"][keep]
    g, clipped = sums["g"][keep] / count[:, None], sums["clipped"][keep] / count[:, None]
    try:
        lemma = cosine_lemma(count, a, g, clipped)
    except UserError:
        return None, {}
    values = {"grad_cosine/global": lemma.cosine, "grad_cosine/rho": lemma.rho}
    if lemma.bound is not None:
        values["grad_cosine/bound"] = lemma.bound
    for i, one, other in zip(np.flatnonzero(keep), g, clipped, strict=True):
        if (norm := np.linalg.norm(one) * np.linalg.norm(other)) > 0:
            values[f"length_bin/{i}/grad_cosine"] = float(one @ other / norm)
    return lemma, values


class MetricsFile:
    """``metrics.jsonl``: one JSON object a line, flushed at once; a resumed run cuts what it repeats."""

    def __init__(self, run: Path) -> None:
        self.path = run / "metrics.jsonl"

    def write(self, values: dict[str, Any]) -> None:
        """Append a line."""
        clean = {k: (None if isinstance(v, float) and not math.isfinite(v) else v) for k, v in values.items()}
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(clean) + "\n")

    def keep_before(self, rollout: int) -> None:
        """Drop train lines of rollouts >= ``rollout``, evaluations after it and a torn last line."""
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            # An evaluation after rollout r - 1 is numbered r and precedes the checkpoint; the one before any
            # training has no checkpoint and is repeated.
            if row["rollout"] < rollout or (row["phase"] == "eval" and row["rollout"] == rollout > 0):
                kept.append(line + "\n")
        part = self.path.with_suffix(".part")
        part.write_text("".join(kept), encoding="utf-8")
        part.replace(self.path)
