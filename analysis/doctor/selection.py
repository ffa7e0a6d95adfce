"""Find out whether groups were selected by their outcome: whether groups with equal rewards are missing from the log.

DAPO's dynamic sampling drops groups with equal rewards. Then a response that is logged only because of its own reward
is not a fair draw from the policy. A response whose mates (the other responses of its group) already differ in their
rewards would have been kept with any reward. The equalities that `analysis.doctor.laws` tests hold for such a response,
whether groups were selected or not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from analysis.doctor.findings import Answer, Evidence, Severity, clear, found, not_checked
from analysis.doctor.patient import Floats, Mask, Rows
from fspo.stats.clusters import totals

MISSED = 10
"""A selection is reported only if the groups with unequal rewards show that at least this many groups with equal
rewards must have been sampled.
"""
RARE = 0.01
"""Groups with equal rewards count as missing if they are at most this share of all groups."""
LEAST_GROUPS = 30


@dataclass
class Selection:
    """Counts of groups by their rewards. Pass complete rollouts to ``add``, in order.

    Attributes
    ----------
    groups, equal : int
        Number of groups of two or more responses with known rewards, and number of these groups with all rewards equal.
    values : set of float
        Different rewards that were seen; none are added once there are three.
    solved : Counter of (int, int)
        Where there are two different rewards: number of groups of two responses or more, by size and by number of
        responses with the larger reward.
    """

    groups: int = 0
    equal: int = 0
    values: set[float] = field(default_factory=set)
    solved: Counter[tuple[int, int]] = field(default_factory=Counter)

    def add(self, rows: Rows) -> Mask:
        """Add the rows (N,) of complete rollouts, and return which of them (N,) would be logged whatever their reward.

        A response would be logged whatever its reward if the rewards of its mates (the other responses of its group)
        differ. Responses without a reward, or with fewer than two mates, are also returned as True, because the log
        cannot show why they were logged.
        """
        reward = rows["reward"]
        first = rows.first & np.isfinite(reward)
        if not first.any():
            return np.ones(len(rows), bool)
        group = rows.cluster
        r, g = reward[first], group[first]
        number = int(group.max()) + 1
        n, total, square = (totals(g, number, x) for x in (np.ones_like(r), r, r * r))
        equal = _equal(n, total, square)
        judged = n >= 2
        self.groups += int(judged.sum())
        self.equal += int((judged & equal).sum())
        if len(self.values) < 3:
            self.values |= set(np.unique(r)[:3].tolist())
        if len(self.values) == 2:
            low, high = sorted(self.values)
            k = np.rint((total - n * low) / (high - low))[judged]
            pairs, counts = np.unique(np.stack([n[judged], k]), axis=1, return_counts=True)
            self.solved.update({(int(a), int(b)): int(c) for a, b, c in zip(*pairs, counts, strict=True)})
        mates = _equal(n[group] - 1, total[group] - reward, square[group] - reward**2)
        # A row without a reward (NaN) gets True too, because a comparison with NaN is False.
        return ~(mates & (n >= 3)[group])

    def missing(self) -> tuple[float, int]:
        """Return how many groups with equal rewards must have been sampled at least, and how many the log has.

        Let P(k) be the share of groups of n responses of which k have the larger of two rewards, and p the chance of
        the larger reward, which differs between prompts. E[p^k (1-p)^(n-k)] is log-convex in k, so P(0) is at least
        P(1)^2 / P(2) (n-1) / (2n), and likewise for P(n). Only groups of the most frequent size n count.
        """
        if len(self.values) != 2 or not self.solved:
            return 0.0, 0
        sizes: Counter[int] = Counter()
        for (n, _), count in self.solved.items():
            sizes[n] += count
        n = sizes.most_common(1)[0][0]
        if n < 4:
            return 0.0, 0
        P = [self.solved[n, k] for k in range(n + 1)]
        least = sum(a * a / max(b, 1) * (n - 1) / (2 * n) for a, b in ((P[1], P[2]), (P[-2], P[-3])))
        return least, P[0] + P[-1]

    def answer(self) -> Answer:
        """Say whether groups with equal rewards are missing from the log, that is, groups were selected."""
        name = "selection"
        least, seen = self.missing()
        if self.groups < LEAST_GROUPS:
            return not_checked(name, f"{self.groups} groups with rewards, {LEAST_GROUPS} are wanted")
        evidence = (
            Evidence("groups whose rewards are all equal", self.equal / self.groups, unit="share"),
            Evidence("groups with equal rewards: at least expected from the other groups", least),
        )
        if least < MISSED or seen > RARE * self.groups:
            return clear(name, "no groups were selected by their rewards", *evidence)
        return found(
            name,
            Severity.INFO,
            "groups whose rewards are all equal are not in the log: groups were selected by their outcome (DAPO's "
            "dynamic sampling); the laws are tested on responses whose mates differ in their rewards",
            "nothing, if the selection is wanted; trends and acceptances are those of the selected groups",
            *evidence,
        )


def _equal(n: Floats, total: Floats, square: Floats) -> Mask:
    """Return for each group whether its ``n`` rewards, with sum ``total`` and sum of squares ``square``, are equal."""
    with np.errstate(invalid="ignore", over="ignore"):
        return n * square - total**2 <= 1e-9 * (1 + n * square)
