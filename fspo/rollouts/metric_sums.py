"""Metrics of a run as pairs of a numerator and a count, and the metrics of a rollout that are known before its updates.

The pairs of all processes and minibatches are added up, and the sums are divided once. Metrics that mean the same
in TRL have TRL's names."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from fspo.advantages import GroupStats
from fspo.gradlog import metric_names as metric
from fspo.rollouts.batches import RolloutBatch
from fspo.stats.bins import Bins


class Counts:
    """Metrics as named pairs of a numerator and a count. The pairs are added up first and divided at the end."""

    def __init__(self) -> None:
        self._pairs: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(self, name: str, numerator: float, count: float = 1.0) -> None:
        """Add ``numerator`` and ``count`` to those of the metric ``name``."""
        pair = self._pairs[name]
        pair[0] += float(numerator)
        pair[1] += float(count)

    def merge(self, other: dict[str, list[float]]) -> None:
        """Add the numerators and counts of metrics (``other``, by name) that another process or minibatch collected."""
        for name, (numerator, count) in other.items():
            self.add(name, numerator, count)

    def pairs(self) -> dict[str, list[float]]:
        """Return [numerator, count] of every metric by name, to be added to those of other processes before the
        division."""
        return {name: list(pair) for name, pair in self._pairs.items()}

    def values(self) -> dict[str, float]:
        """Return numerator / count of every metric whose count is not 0."""
        return {name: n / c for name, (n, c) in sorted(self._pairs.items()) if c}


def length_bins(lengths: np.ndarray, edges: tuple[int, ...]) -> list[np.ndarray]:
    """Return for each bin of lengths [edge_i, edge_i+1), tokens, a mask (N,) of the responses in it; the last bin has
    no upper edge."""
    index = Bins((*edges, math.inf)).index(lengths)
    return [index == i for i in range(len(edges))]


def add_rollout(counts: Counts, batch: RolloutBatch, groups: GroupStats) -> None:
    """Add to ``counts`` the metrics of a rollout that are known before its updates: rewards, groups with equal rewards,
    lengths, truncated responses, verifier failures.

    ``reward_std`` is the mean over groups of the standard deviation of a group's rewards (ddof = 1). TRL 1.16 logs
    another number under this name, the standard deviation of all rewards of the batch."""
    n = len(batch)
    _, group, size = np.unique(batch.prompt_ids, return_inverse=True, return_counts=True)
    squares = np.bincount(group, (batch.rewards - (np.bincount(group, batch.rewards) / size)[group]) ** 2)
    several = size > 1
    counts.add(metric.REWARD, batch.rewards.sum(), n)
    counts.add(metric.REWARD_STD, np.sqrt(squares[several] / (size[several] - 1)).sum(), several.sum())
    counts.add(metric.EQUAL_REWARDS, groups.num_zero_std_groups, groups.num_groups)
    counts.add(metric.MEAN_LENGTH, batch.lengths.sum(), n)
    counts.add(metric.TRUNCATED, batch.truncated.sum(), n)
    counts.add(metric.VERIFIER_TIMEOUT, (batch.reward_status == "timeout").sum(), n)
    counts.add(metric.VERIFIER_ERROR, (batch.reward_status == "error").sum(), n)


def add_drops(counts: Counts, batch: RolloutBatch, edges: tuple[int, ...]) -> None:
    """Add to ``counts`` the shares of responses that get no gradient because they are truncated, in all and by length
    bin (``edges``, tokens)."""
    counts.add(metric.DROPPED_TRUNCATED, batch.truncated.sum(), len(batch))
    for i, mask in enumerate(length_bins(batch.lengths, edges)):
        if mask.any():
            counts.add(metric.in_bin(i, metric.BIN_DROPPED), batch.truncated[mask].sum(), mask.sum())
