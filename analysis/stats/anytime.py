"""Tests of a mean that allow for any number of looks: a log that grows may be examined after each rollout.

A bet b on terms x whose mean, given the terms before, is at most 0 multiplies its stake by 1 + b x at each term. While
no term lies below -1/b the stake is a supermartingale that stays at or above 0. By Ville's inequality it ever exceeds
1/alpha with probability at most alpha, for any number of terms and whatever the tail above (Waudby-Smith and Ramdas
2024, arXiv:2010.09686). The evidence is the mean stake of several bets. A bet that a term has brought to 0 is lost for
good. A test that needs a bound which the terms do not have is not made: it would have no level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fspo.stats.intervals import CONFIDENCE

Floats = NDArray[np.float64]
BETS: Floats = np.power(4.0, -np.arange(8.0))
"""Sizes of the bets against a mean, as multiples of the largest bet that the bound of the terms allows."""
TOGETHER = 8
"""Number of terms whose factors 1 + b x are multiplied before a logarithm is taken."""


@dataclass
class AnytimeMean:
    """Sums of terms x, added rollout by rollout, and the bets that their mean is above 0, or below 0.

    Attributes
    ----------
    level : float
        Probability with which evidence against a true mean 0 is ever found, in either direction.
    lowest : float
        The terms are at or above -lowest; 1 for weights less 1.
    highest : float, optional
        The terms are at or below it. Without such a bound (None) nothing is ever said of a mean below 0, because rare
        large terms that have not come yet may carry the mean.
    bets : float array (K,)
        Multiples of 1/lowest, or of 1/highest, that are bet.
    above, below : int, optional
        The rollout after which there was first enough evidence that the mean is above, or below, 0.
    """

    level: float
    lowest: float = 1.0
    highest: float | None = None
    bets: Floats = field(default_factory=lambda: BETS)
    count: int = 0
    total: float = 0.0
    square: float = 0.0
    rho: float = 0.0
    above: int | None = None
    below: int | None = None
    rising: Floats = field(default_factory=lambda: np.zeros(1))  # logarithm of each bet's stake
    falling: Floats = field(default_factory=lambda: np.zeros(1))

    def add(self, x: Floats, rollout: NDArray[np.int64]) -> None:
        """Add terms (N,) of complete rollouts (N,), earlier rollouts first. Terms that are not finite are left out."""
        good = np.isfinite(x)
        if not good.all():
            x, rollout = x[good], rollout[good]
        if not len(x):
            return
        needed = math.log((1 if self.highest is None else 2) / self.level)
        if np.any(rollout[1:] < rollout[:-1]):
            order = np.argsort(rollout, kind="stable")
            x, rollout = x[order], rollout[order]
        starts = np.flatnonzero(np.diff(rollout, prepend=rollout[:1] - 1))
        for number, here in zip(rollout[starts].tolist(), np.split(x, starts[1:]), strict=True):
            self.count += len(here)
            self.total += float(here.sum())
            self.square += float(here @ here)
            self.rho = self.rho or self.square
            self.rising = self.rising + stakes(here, self.bets / self.lowest)
            if self.above is None and mixed(self.rising) > needed:
                self.above = number
            if self.highest is not None:
                self.falling = self.falling + stakes(-here, self.bets / self.highest)
                if self.below is None and mixed(self.falling) > needed:
                    self.below = number

    @property
    def mean(self) -> float:
        """Mean of the terms; NaN without any."""
        return self.total / self.count if self.count else math.nan

    def interval(self, level: float = CONFIDENCE) -> tuple[float, float, float]:
        """Return the mean and the ends of an interval that covers the true mean at every look.

        The interval is of Robbins' normal mixture (Howard, Ramdas, McAuliffe and Sekhon 2021, arXiv:1810.08240): it
        holds for many terms with a variance, and not for heavy tails. No verdict depends on it.
        """
        if not self.count or not self.rho > 0:
            return self.mean, math.nan, math.nan
        both = self.square + self.rho
        half = math.sqrt(both * (2 * math.log(1 / (1 - level)) + math.log(both) - math.log(self.rho))) / self.count
        return self.mean, self.mean - half, self.mean + half


def stakes(x: Floats, bets: Floats) -> Floats:
    """Return the logarithm of the product of max(1 + b x, 0) over terms (N,), for each bet b (K,)."""
    x = np.append(x, np.zeros(-len(x) % TOGETHER)).reshape(TOGETHER, -1)
    with np.errstate(divide="ignore"):
        return np.array([np.log(np.multiply.reduce(np.maximum(1 + b * x, 0))).sum() for b in bets])


def mixed(stake: Floats) -> float:
    """Return the logarithm of the mean of stakes whose logarithms (K,) are given."""
    largest = float(stake.max())
    return largest + math.log(float(np.exp(stake - largest).mean())) if math.isfinite(largest) else -math.inf
