"""Tests of a mean that allow for any number of looks: a log that grows may be examined after each rollout.

The test is whether terms x, such as exp(S) - 1 of each response, have a mean above 0. A bet of size b starts with a
stake of 1 and multiplies it by 1 + b x at each term. If the mean of each term, given the earlier terms, is at most 0
and no term lies below -1/b, the stake ever exceeds 1/alpha with probability at most alpha (Ville's inequality), for any
number of terms and any upper tail (Waudby-Smith and Ramdas 2024, arXiv:2010.09686). The evidence is the mean stake of
bets of several sizes. A bet whose stake reaches 0 is lost for good. If the terms have no lower bound, no test is made,
because the probability of a wrong rejection would not be known."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from fspo.stats.clusters import Floats, Ints
from fspo.stats.intervals import CONFIDENCE

BETS: Floats = np.power(4.0, -np.arange(8.0))
"""Sizes b of the bets on one side of 0, as multiples of the largest size that the bound of the terms allows."""
TOGETHER = 8
"""Number of factors 1 + b x whose product is formed before a logarithm is taken, because logarithms are slow."""


@dataclass
class AnytimeMean:
    """Tests after each rollout whether the terms x that were added so far have a mean above, or below, 0.

    Attributes
    ----------
    level : float
        Largest probability that, if the true mean is 0, the tests ever find enough evidence for a mean above or below.
    lowest : float
        Bound of the terms: all are at or above -lowest. It is 1 for terms exp(S) - 1.
    highest : float, optional
        Bound of the terms from above. Without it (None) a mean below 0 is not tested, because rare large terms that
        have not been seen yet may raise the mean.
    bets : float array (K,)
        Sizes of the bets, as multiples of 1/lowest for a mean above 0 and of 1/highest for one below.
    count, total, square, rho
        Number, sum and sum of squares of the terms so far; the first value of ``square`` above 0 (for `interval`).
    above, below : int, optional
        The rollout after which there was first enough evidence that the mean is above, or below, 0; None as long as
        there is not enough.
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
    # Evidence of the test by betting: the logarithm of each bet's present stake. ``rising`` holds the bets that the
    # terms' mean is above 0, ``falling`` the bets that it is below 0.
    rising: Floats = field(default_factory=lambda: np.zeros(1))
    falling: Floats = field(default_factory=lambda: np.zeros(1))

    def add(self, x: Floats, rollout: Ints) -> None:
        """Add the terms ``x`` (N,) of complete rollouts to the tests of their mean, earlier rollouts first. ``rollout``
        (N,) holds each term's rollout. Terms that are not finite are left out."""
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

    @staticmethod
    def of(
        x: Floats,
        rollout: Ints,
        level: float,
        lowest: float = 1.0,
        highest: float | None = None,
        bets: Floats = BETS,
    ) -> AnytimeMean:
        """Return an `AnytimeMean` to which the terms ``x`` (N,), each from -``lowest`` to ``highest``, of the rollouts
        ``rollout`` (N,) were added; the other parameters are those of the class."""
        made = AnytimeMean(level, lowest, highest, bets)
        made.add(x, rollout)
        return made

    @property
    def mean(self) -> float:
        """Mean of the terms added so far; NaN without any term."""
        return self.total / self.count if self.count else math.nan

    def interval(self, level: float = CONFIDENCE) -> tuple[float, float, float]:
        """Return the mean of the terms so far and the ends of its interval; the ends are NaN if all terms are 0.

        With probability ``level``, the intervals after all rollouts together hold the true mean. They are Robbins'
        normal-mixture intervals (Howard, Ramdas, McAuliffe and Sekhon 2021, arXiv:1810.08240), right for many terms of
        finite variance and not for heavy tails. The tests do not use them."""
        if not self.count or not self.rho > 0:
            return self.mean, math.nan, math.nan
        both = self.square + self.rho
        half = math.sqrt(both * (2 * math.log(1 / (1 - level)) + math.log(both) - math.log(self.rho))) / self.count
        return self.mean, self.mean - half, self.mean + half


def stakes(x: Floats, bets: Floats) -> Floats:
    """Return, for each bet b (K,), the logarithm of the factor by which the terms x (N,) multiply its stake: the
    product over the terms of max(1 + b x, 0)."""
    x = np.append(x, np.zeros(-len(x) % TOGETHER)).reshape(TOGETHER, -1)
    with np.errstate(divide="ignore"):
        return np.array([np.log(np.multiply.reduce(np.maximum(1 + b * x, 0))).sum() for b in bets])


def mixed(stake: Floats) -> float:
    """Return log(mean of exp(stake)), the log of the mean stake of K bets; ``stake`` (K,) holds each bet's log."""
    largest = float(stake.max())
    return largest + math.log(float(np.exp(stake - largest).mean())) if math.isfinite(largest) else -math.inf
