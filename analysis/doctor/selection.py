"""Find out whether groups were selected by their outcome: whether groups with equal rewards are missing from the log.

DAPO's dynamic sampling drops groups with equal rewards. Then a response that is logged only because of its own reward
is not a fair draw from the policy. A response whose mates (the other responses of its group) already differ in their
rewards would have been kept with any reward. The equalities that `analysis.doctor.first_epoch` tests hold for such a
response, whether groups were selected or not.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from analysis.doctor.issues import Answer, Evidence, Severity, clear, found, not_checked
from analysis.doctor.patient import Floats, Mask, Rows
from fspo.stats.clusters import totals

MISSED = 10
"""A selection is reported only if the groups with unequal rewards show that at least this many groups with equal
rewards must have been sampled.
"""
RARE = 0.01
"""Groups with equal rewards count as missing if they are at most this share of all groups."""
LEAST_GROUPS = 30


class Groups(NamedTuple):
    """The groups of a log by their rewards.

    Attributes
    ----------
    groups, equal : int
        Number of groups of two or more responses with known rewards, and number of these groups with all rewards equal.
    solved : Counter of (int, int)
        If the rewards have two different values: number of groups of two responses or more, by size and by number of
        responses with the larger reward. Else empty.
    """

    groups: int
    equal: int
    solved: Counter[tuple[int, int]]

    def missing(self) -> tuple[float, int]:
        """Return how many groups with equal rewards must have been sampled at least, and how many the log has.

        Let P(k) be the share of groups of n responses of which k have the larger of two rewards, and p the chance of
        the larger reward, which differs between prompts. E[p^k (1-p)^(n-k)] is log-convex in k, so P(0) is at least
        P(1)^2 / P(2) (n-1) / (2n), and likewise for P(n). Only groups of the most frequent size n count.
        """
        sizes: Counter[int] = Counter()
        for (n, _), count in self.solved.items():
            sizes[n] += count
        n = sizes.most_common(1)[0][0] if sizes else 0
        if n < 4:
            return 0.0, 0
        P = [self.solved[n, k] for k in range(n + 1)]
        least = sum(a * a / max(b, 1) * (n - 1) / (2 * n) for a, b in ((P[1], P[2]), (P[-2], P[-3])))
        return least, P[0] + P[-1]

    def answer(self) -> Answer:
        """Say whether groups with equal rewards are missing from the log, that is, groups were selected."""
        least, seen = self.missing()
        if self.groups < LEAST_GROUPS:
            return not_checked(f"{self.groups} groups with rewards, {LEAST_GROUPS} are wanted")
        evidence = (
            Evidence("groups whose rewards are all equal", self.equal / self.groups, unit="share"),
            Evidence("groups with equal rewards: at least expected from the other groups", least),
        )
        if least < MISSED or seen > RARE * self.groups:
            return clear("no groups were selected by their rewards", *evidence)
        return found(
            "groups whose rewards are all equal are not in the log: groups were selected by their outcome (DAPO's "
            "dynamic sampling); the doctor's equalities are tested on responses whose mates differ in their rewards",
            "nothing, if the selection is wanted; slopes and acceptances are those of the selected groups",
            *evidence,
            severity=Severity.INFO,
        )


def by_rewards(rows: Rows) -> tuple[Mask, Groups]:
    """Return which of a run's rows (N,) would be logged whatever their reward, and the groups by their rewards.

    A response would be logged whatever its reward if the rewards of its mates (the other responses of its group)
    differ. Responses without a reward, or with fewer than two mates, are also returned as True, because the log
    cannot show why they were logged.
    """
    reward = rows["reward"]
    first = rows.first & np.isfinite(reward)
    if not first.any():
        return np.ones(len(rows), bool), Groups(0, 0, Counter())
    group = rows.cluster
    r, g = reward[first], group[first]
    n, total, square = (totals(g, rows.clusters, x) for x in (np.ones_like(r), r, r * r))
    equal, judged = _equal(n, total, square), n >= 2
    values, solved = np.unique(r), Counter[tuple[int, int]]()
    if len(values) == 2:
        k = np.rint((total - n * values[0]) / (values[1] - values[0]))[judged]
        solved.update(zip(n[judged].astype(int).tolist(), k.astype(int).tolist(), strict=True))
    mates = _equal(n[group] - 1, total[group] - reward, square[group] - reward**2)
    # A row without a reward (NaN) gets True too, because a comparison with NaN is False.
    return ~(mates & (n >= 3)[group]), Groups(int(judged.sum()), int((judged & equal).sum()), solved)


def _equal(n: Floats, total: Floats, square: Floats) -> Mask:
    """Return for each group whether its ``n`` rewards, with sum ``total`` and sum of squares ``square``, are equal."""
    with np.errstate(invalid="ignore", over="ignore"):
        return n * square - total**2 <= 1e-9 * (1 + n * square)
