"""Find the estimator that made a log's advantages from the rewards of each group.

In a group of G responses with mean reward m, every estimator of fspo/advantages.py gives a response with reward r the
advantage A = k (r - m). The slope k is G/(G-1) for rloo, 1 for dr_grpo, and one over the standard deviation of the
group's rewards for grpo. So the advantages of a group, plotted over its rewards, must lie on a line that is 0 at the
mean reward, and the slope of the line tells the estimator. A group has a defect if its line is not 0 at the mean
reward, or if its advantages lie on no line."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.log.rows import numbered, repeated
from analysis.rules.recompute import Columns
from fspo.advantages import ESTIMATORS, GRPO_EPS, ROUNDING
from fspo.stats.clusters import Floats, Ints, Mask, totals

TOLERANCE = 2e-3
"""An advantage counts as on the line of advantage over reward that is fitted to its group if its distance from the line
is at most this share of the group's largest |A|. Trainers may compute advantages in bfloat16, which has 3 digits."""
BIASED = "grpo with the biased standard deviation"
SLOPES = (*ESTIMATORS, BIASED, "scaled by the standard deviation of all rewards", "scaled by a constant")
NOT_CENTRED = "not centred in the group"
SAME = "the same for all responses of the group although their rewards differ"
BY_LENGTH = "times the length"
OVER_LENGTH = "over the length"
REVERSED = "of the opposite sign"
CONSTANT = "not 0 although all rewards of the group are equal"
ZEROED = "0 for some responses that are not at the group's mean"
NO_LINE = "no line in the reward of the group"
PERMUTED = "that of other responses of the group (sorted, both agree)"
UNRELATED = "no line in the reward, and does not follow it"
WRONG = (SAME, PERMUTED, UNRELATED, NOT_CENTRED, BY_LENGTH, OVER_LENGTH, REVERSED, CONSTANT, ZEROED, NO_LINE)
"""Names of the defects of a group whose advantages no estimator makes from its rewards."""
LEAST_UNRELATED, LEAST_CORRELATION = 200, 0.1
"""Advantages that are no line in the reward do not follow it if, over at least so many responses, the correlation of
both inside groups is smaller. Where the imported reward is a part of the whole, they do follow it."""


class EstimatorFit(NamedTuple):
    """Which estimators explain the advantages of each group: arrays (G,) over the groups that could be judged.

    Attributes
    ----------
    rollout : int array (G,)
        Rollout of the group.
    fits : dict of str -> bool array (G,)
        By name of an estimator (``SLOPES``) or a defect (``WRONG``): whether the estimator gives the group's
        advantages, or whether they have the defect. Several estimators may give the same advantages.
    """

    rollout: Ints
    fits: dict[str, Mask]


def estimator_fit(columns: Columns, size: int = 0) -> EstimatorFit:
    """Judge, for each group, which estimators or defects explain its advantages, from one row of each response.

    A group is left out if one of its rewards or advantages is not finite, if it has fewer than two responses, if it has
    not ``size`` responses (where ``size`` is at least 2), or if all its advantages are 0 and nothing contradicts them:
    its rewards are equal, or all its responses off the mean reward are truncated. A truncated response (cut off at the
    length limit) may have A = 0 in any group, because a trainer can drop it after the advantages were computed."""
    first = np.flatnonzero(~repeated(columns["rollout"], columns["response_id"]))
    rollout, L = columns["rollout"][first], np.maximum(columns["length"][first].astype(np.float64), 1.0)
    r, A = (np.asarray(columns[name][first], np.float64) for name in ("reward", "advantage"))
    group = numbered(rollout, columns["prompt_id"][first])
    _, start, count = np.unique(group, return_index=True, return_counts=True)
    number = len(start)

    def total(x: NDArray[Any]) -> Floats:
        return totals(group, number, x)

    def largest(x: Floats) -> Floats:
        out = np.zeros(number)
        np.maximum.at(out, group, x)
        return out

    finite = total(np.isfinite(r) & np.isfinite(A)) == count
    r, A = (np.where(np.isfinite(v), v, 0.0) for v in (r, A))
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = largest(np.abs(A))
        x = r - (total(r) / count)[group]
        equal = largest(np.abs(x)) <= ROUNDING * np.maximum(largest(np.abs(r)), 1e-300) * 8

        zeroed = (A == 0) & (np.abs(x) > TOLERANCE * largest(np.abs(x))[group])
        kept = np.where(zeroed, 0.0, 1.0)

        def line(y: Floats) -> tuple[Floats, Floats, Mask]:
            """Fit a line through y (N,) against the reward less its group's mean, for each group.

            Return each group's slope and intercept, and whether its y lies on the line. Rows with A = 0 whose reward is
            not the mean are left out: the trainer may have dropped them."""
            size = np.maximum(total(kept), 1)
            from_mean = x - (total(kept * x) / size)[group]
            slope = total(kept * from_mean * y) / total(kept * from_mean**2)
            # If the rows to which a group's line is fitted have equal rewards, their slope is unknown. Then take the
            # line through 0 at the group's mean reward.
            slope = np.where(np.isfinite(slope), slope, total(kept * y) / total(kept * x))
            intercept = total(kept * y) / size - slope * total(kept * x) / size
            off = largest(kept * np.abs(y - slope[group] * x - intercept[group]))
            return slope, intercept, (off <= TOLERANCE * largest(np.abs(y))) & ~equal

        k, a, straight = line(A)
        allowed = zeroed & (columns["truncated"][first] == 1) if "truncated" in columns else np.zeros_like(zeroed)
        missing = (total(zeroed & ~allowed) > 0) & ~equal & (straight | (scale == 0))
        judged = finite & (count >= 2) & ((count == size) | (size < 2)) & ((scale > 0) | missing)
        straight &= ~missing
        centred = np.abs(a) <= TOLERANCE * scale
        sound = straight & centred & (k > 0)
        deviation = np.sqrt(total(x * x) / np.maximum(count - 1, 1))
        everything = np.sqrt(_by_rollout(rollout, r))[start]
        constant = np.median(k[judged & sound]) if np.any(judged & sound) else np.nan
        # For each estimator of SLOPES: the slope k (G,) that it gives each of G groups in A = k (reward - mean reward
        # of the group). An estimator has several such arrays where the small number added to its denominator is
        # unknown.
        values = (
            [count / np.maximum(count - 1, 1)],
            [1 / (deviation + eps) for eps in (0.0, 1e-6, GRPO_EPS)],
            [np.ones(number)],
            [1 / (deviation * np.sqrt((count - 1) / count) + eps) for eps in (0.0, 1e-6, GRPO_EPS)],
            [1 / (everything + eps) for eps in (0.0, GRPO_EPS)],
            [np.full(number, constant)],
        )
        fits = {
            name: sound & np.any([np.abs(k / v - 1) <= 2 * TOLERANCE for v in slopes], axis=0)
            for name, slopes in zip(SLOPES, values, strict=True)
        }
        lines = {BY_LENGTH: A / L, OVER_LENGTH: A * L}
        # Whether the lengths in a group differ: only there can one see that A was multiplied or divided by L.
        mixed = largest(L) > 1.02 * (total(L) / count)
        for name, y in lines.items():
            _, at, on = line(y)
            fits[name] = ~straight & ~equal & mixed & on & ~missing & (np.abs(at) <= TOLERANCE * largest(np.abs(y)))
        fits[SAME] = straight & ~centred & (np.abs(k) * largest(np.abs(x)) <= TOLERANCE * scale)
        fits[NOT_CENTRED] = straight & ~centred & ~fits[SAME]
        fits[REVERSED] = straight & centred & (k <= 0)
        fits[CONSTANT] = equal & (scale > 0)
        fits[ZEROED] = missing
        bent = ~(straight | equal | missing | fits[BY_LENGTH] | fits[OVER_LENGTH])
        ranked, made = (v[np.lexsort((v, group))] for v in (x, A))
        at, spread = np.sort(group), total(x * x)
        rise = np.bincount(at, ranked * made, number) / np.where(spread > 0, spread, 1.0)
        off = np.zeros(number)
        np.maximum.at(off, at, np.abs(made - rise[at] * ranked))
        same = bent & (off <= TOLERANCE * scale)
        fits[PERMUTED] = same & (2 * np.sum(same & judged) > np.sum(bent & judged))  # binary values may agree by chance
        among = (bent & judged & ~fits[PERMUTED])[group]
        follows = np.corrcoef(x[among], A[among])[0, 1] if among.sum() >= LEAST_UNRELATED else 1.0
        fits[UNRELATED] = bent & ~fits[PERMUTED] & (abs(follows) < LEAST_CORRELATION)
        fits[NO_LINE] = bent & ~fits[PERMUTED] & ~fits[UNRELATED]
    return EstimatorFit(rollout[start][judged], {name: which[judged] for name, which in fits.items()})


def _by_rollout(rollout: Ints, r: Floats) -> Floats:
    """Return for each row (N,) the variance of all rewards r in its rollout."""
    code = numbered(rollout)
    count = np.bincount(code)
    mean = np.bincount(code, r) / count
    return (np.bincount(code, (r - mean[code]) ** 2) / np.maximum(count - 1, 1))[code]
