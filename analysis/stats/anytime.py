"""Tests of a mean that allow for any number of looks: a log that grows may be examined after each rollout.

For independent terms x with mean 0 the mixture over normal slopes, ``sqrt(rho / (V + rho)) exp(T^2 / (2 (V + rho)))``
with T the sum of x and V the sum of x^2, is to second order a supermartingale. By Ville's inequality it ever exceeds
1/alpha with probability at most alpha (Robbins 1970; Howard, Ramdas, McAuliffe and Sekhon 2021, arXiv:1810.08240).
The level is exact for symmetric terms, asymptotic for others with a variance, and does not hold for heavy tails.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fspo.stats.intervals import CONFIDENCE

Floats = NDArray[np.float64]
SPREAD_OUT = 50.0
"""How many times the largest x^2 the sum of squares must be before a mean below 0 is believed.

A skewed law with rare large values looks as if its mean were lower until such a value has come."""
LEAST_TERMS = 30


@dataclass
class AnytimeMean:
    """Sums of terms x, added rollout by rollout. The level is asymptotic: exact for symmetric x, not for heavy tails.

    Attributes
    ----------
    level : float
        Probability with which evidence against a true mean 0 may ever be found, as far as the level holds.
    above, below : int, optional
        The rollout after which there was first enough evidence that the mean is above, or below, 0.
    """

    level: float
    count: int = 0
    total: float = 0.0
    square: float = 0.0
    largest: float = 0.0
    rho: float = 0.0
    above: int | None = None
    below: int | None = None

    def add(self, x: Floats, rollout: NDArray[np.int64]) -> None:
        """Add terms (N,) of complete rollouts (N,), earlier rollouts first. Terms that are not finite are left out."""
        good = np.isfinite(x)
        x, rollout = x[good], rollout[good]
        for number in np.unique(rollout):
            here = x[rollout == number]
            self.count += len(here)
            self.total += float(here.sum())
            self.square += float(here @ here)
            self.largest = max(self.largest, float(np.max(here * here)))
            self.rho = self.rho or self.square
            if self.count >= LEAST_TERMS and self.log_evidence() > -math.log(self.level):
                if self.total > 0 and self.above is None:
                    self.above = int(number)
                if self.total < 0 and self.below is None and self.square > SPREAD_OUT * self.largest:
                    self.below = int(number)

    def log_evidence(self) -> float:
        """Return the logarithm of the evidence against mean 0; it exceeds log(1/alpha) with probability alpha."""
        if not self.rho > 0:
            return 0.0
        both = self.square + self.rho
        return 0.5 * (math.log(self.rho) - math.log(both)) + self.total**2 / (2 * both)

    @property
    def mean(self) -> float:
        """Mean of the terms; NaN without any."""
        return self.total / self.count if self.count else math.nan

    def interval(self, level: float = CONFIDENCE) -> tuple[float, float, float]:
        """Return the mean and the ends of an interval that covers the true mean at every look."""
        if not self.count or not self.rho > 0:
            return self.mean, math.nan, math.nan
        both = self.square + self.rho
        half = math.sqrt(both * (2 * math.log(1 / (1 - level)) + math.log(both) - math.log(self.rho))) / self.count
        return self.mean, self.mean - half, self.mean + half
