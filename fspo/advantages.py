"""Advantages of responses from the rewards of their groups (all responses to one prompt); needs NumPy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np
from jaxtyping import Float64, Real, Shaped

from fspo.base.errors import UserError, unknown_name
from fspo.rules import Estimator

ESTIMATORS: tuple[str, ...] = get_args(Estimator)

GRPO_EPS = 1e-4
"""Number that TRL 1.16's GRPOTrainer adds to the standard deviation of a group's rewards."""

ROUNDING = 64 * np.finfo(np.float64).eps
"""Rewards of a group count as equal if they differ by at most this share of the largest absolute reward.

Without this tolerance rounding would make equal rewards differ: 0.1 + 0.2 is not exactly 0.3."""

LARGEST = 1e100
"""Largest absolute reward: squares of rewards, and their sums, must stay finite in float64."""


@dataclass(frozen=True)
class GroupStats:
    """Counts of the groups of a rollout, for the metrics.

    Attributes
    ----------
    num_groups : int
        Number of groups.
    num_zero_std_groups : int
        Groups whose rewards are all equal up to rounding: every advantage of such a group is exactly 0.
    """

    num_groups: int
    num_zero_std_groups: int


def advantages(
    rewards: Real[np.ndarray, " N"], group_ids: Shaped[np.ndarray, " N"], estimator: Estimator = "rloo"
) -> tuple[Float64[np.ndarray, " N"], GroupStats]:
    """Return the advantage of each response relative to its group.

    With r_i the reward, m and s the mean and the standard deviation of its group, and G the group's size:

    - ``rloo``: r_i minus the mean of the *other* rewards of the group, = (r_i - m) G / (G - 1) (leave-one-out baseline;
      Kool et al. 2019, Ahmadian et al. 2024, arXiv:2402.14740);
    - ``grpo``: (r_i - m) / (s + 1e-4), s with Bessel's correction (ddof = 1): the default of TRL 1.16's GRPOTrainer,
      ``scale_rewards="group"`` (Shao et al. 2024, arXiv:2402.03300);
    - ``dr_grpo``: r_i - m (Liu et al. 2025, arXiv:2503.20783).

    Parameters
    ----------
    rewards : numpy.ndarray
        Finite, shape (N,).
    group_ids : numpy.ndarray
        Shape (N,), integers or strings: responses with the same id form a group. Sizes may differ and the rows may come
        in any order.
    estimator : str
        ``"rloo"``, ``"grpo"`` or ``"dr_grpo"``.

    Returns
    -------
    advantages : numpy.ndarray
        Float64 (N,). A group with equal rewards, up to rounding, gives exactly 0.
    stats : GroupStats
        How many groups there are, and how many of them have equal rewards.

    Raises
    ------
    UserError
        Unknown estimator, wrong shapes, a reward that is NaN or above 1e100 in size, or under ``rloo`` a group of one
        response, which has no other response to compare with.
    """
    if estimator not in ESTIMATORS:
        raise unknown_name("advantage estimator", str(estimator), ESTIMATORS)
    rewards = np.asarray(rewards, dtype=np.float64)
    group_ids = np.asarray(group_ids)
    if rewards.ndim != 1 or group_ids.shape != rewards.shape:
        raise UserError(
            f"rewards have shape {rewards.shape} and group_ids {group_ids.shape}: give two vectors of one length"
        )
    if not (np.abs(rewards) <= LARGEST).all():
        bad = int(np.flatnonzero(~(np.abs(rewards) <= LARGEST))[0])
        raise UserError(
            f"reward {bad} is {rewards[bad]}: make the reward function return finite numbers up to {LARGEST:g}"
        )
    if rewards.size == 0:
        return np.zeros(0), GroupStats(0, 0)

    _, first, group, size = np.unique(group_ids, return_index=True, return_inverse=True, return_counts=True)
    if estimator == "rloo" and size.min() == 1:
        lonely = group_ids[int(np.flatnonzero(size[group] == 1)[0])]
        raise UserError(
            f"group {lonely} has one response, so rloo has nothing to leave out: sample at least 2 responses per "
            "prompt or choose dr_grpo"
        )
    low, high = np.full(size.shape, np.inf), np.full(size.shape, -np.inf)
    np.minimum.at(low, group, rewards)
    np.maximum.at(high, group, rewards)
    different = high - low > ROUNDING * np.maximum(np.abs(low), np.abs(high))
    # From all rewards of a group subtract its first one, because rewards with a large common offset would lose digits.
    relative = np.where(different[group], rewards - rewards[first][group], 0.0)
    centred = relative - (np.bincount(group, relative) / size)[group]
    if estimator == "rloo":
        out = centred * (size / np.maximum(size - 1, 1))[group]
    elif estimator == "grpo":
        variance = np.bincount(group, centred**2) / np.maximum(size - 1, 1)
        out = centred / (np.sqrt(variance) + GRPO_EPS)[group]
    else:
        out = centred
    return out, GroupStats(num_groups=int(size.size), num_zero_std_groups=int((~different).sum()))
