"""Find the responses that would be logged whatever their reward.

DAPO's dynamic sampling drops groups with equal rewards. Then a response that is logged only because of its own reward
is not a fair draw from the policy. A response whose mates (the other responses of its group) already differ in their
rewards would have been kept with any reward. The equalities that `analysis.doctor.first_epoch` tests hold for such a
response, whether groups were selected or not.
"""

from __future__ import annotations

import numpy as np

from analysis.doctor.patient import Floats, Mask, Rows
from fspo.stats.clusters import totals

RARE, LEAST_GROUPS = 0.01, 30
"""Groups were selected if, of at least ``LEAST_GROUPS`` groups with rewards of two values, at most the share ``RARE``
has equal rewards.
"""


def by_rewards(rows: Rows) -> tuple[Mask, bool]:
    """Return which of a run's rows (N,) would be logged whatever their reward, and whether groups were selected.

    A response would be logged whatever its reward if the rewards of its mates (the other responses of its group)
    differ. Responses without a reward, or with fewer than two mates, are also returned as True, because the log
    cannot show why they were logged.
    """
    reward = rows["reward"]
    first = rows.first & np.isfinite(reward)
    if not first.any():
        return np.ones(len(rows), bool), False
    group = rows.cluster
    r, g = reward[first], group[first]
    n, total, square = (totals(g, rows.clusters, x) for x in (np.ones_like(r), r, r * r))
    several = n >= 2
    equal = _equal(n, total, square)[several].sum() <= RARE * several.sum()
    selected = bool(equal and several.sum() >= LEAST_GROUPS and len(np.unique(r)) == 2)
    mates = _equal(n[group] - 1, total[group] - reward, square[group] - reward**2)
    # A row without a reward (NaN) gets True too, because a comparison with NaN is False.
    return ~(mates & (n >= 3)[group]), selected


def _equal(n: Floats, total: Floats, square: Floats) -> Mask:
    """Return for each group whether its ``n`` rewards, with sum ``total`` and sum of squares ``square``, are equal."""
    with np.errstate(invalid="ignore", over="ignore"):
        return n * square - total**2 <= 1e-9 * (1 + n * square)
