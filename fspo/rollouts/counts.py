"""Counts of a run's metrics: pairs of a numerator and a count, divided once; and those of a rollout before its updates.

Names are TRL's where the meaning is TRL's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from fspo.advantages import GroupStats
from fspo.rollouts.batches import RolloutBatch
from fspo.stats.bins import Bins


class Counts:
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


def length_bins(lengths: np.ndarray, edges: tuple[int, ...]) -> list[np.ndarray]:
    """Masks (N,) of the bins [edge_i, edge_i+1), the last one open."""
    index = Bins((*edges, math.inf)).index(lengths)
    return [index == i for i in range(len(edges))]


def add_rollout(counts: Counts, batch: RolloutBatch, groups: GroupStats) -> None:
    """Add what is known of a rollout before its updates: rewards, lengths, verifier failures.

    ``reward_std`` is the mean over groups of their standard deviation (ddof = 1). TRL 1.16 logs another number under
    this name, the standard deviation of the whole batch's rewards.
    """
    n = len(batch)
    _, group, size = np.unique(batch.prompt_ids, return_inverse=True, return_counts=True)
    squares = np.bincount(group, (batch.rewards - (np.bincount(group, batch.rewards) / size)[group]) ** 2)
    several = size > 1
    counts.add("reward", batch.rewards.sum(), n)
    counts.add("reward_std", np.sqrt(squares[several] / (size[several] - 1)).sum(), several.sum())
    counts.add("frac_reward_zero_std", groups.num_zero_std_groups, groups.num_groups)
    counts.add("completions/mean_length", batch.lengths.sum(), n)
    counts.add("completions/clipped_ratio", batch.truncated.sum(), n)
    counts.add("verifier/timeout", (batch.reward_status == "timeout").sum(), n)
    counts.add("verifier/error", (batch.reward_status == "error").sum(), n)


def add_drops(
    counts: Counts, lengths: np.ndarray, why: np.ndarray, reasons: Sequence[str], edges: tuple[int, ...]
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
        counts.add(f"dropped/{reason}", (why == reason).sum(), len(why))
    for i, mask in enumerate(length_bins(lengths, edges)):
        if mask.any():
            counts.add(f"length_bin/{i}/dropped", (why[mask] != "").sum(), mask.sum())
