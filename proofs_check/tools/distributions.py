"""Distributions of a log-ratio R given the length L, for which checks know the acceptance of a band.

With drift m and an exponent H, (R - m L)/L^H has one distribution at all lengths L: a distribution function (normal
ones also at 50 digits), or a few values with whole weights, which give exact counts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import mpmath as mp
import numpy as np
from scipy import special

from fspo.rules import Rule
from fspo.theory import Floats
from proofs_check.models.base import LogRatioModel, matching_means
from proofs_check.tools.settings import DIGITS

Cdf = Callable[[Floats], Floats]
"""A distribution function: P(Z <= z) at each of the values z (K,), where Z = (R - m L)/L^H of a log-ratio R."""
normal: Cdf = special.ndtr
logistic: Cdf = special.expit
student: Cdf = partial(special.stdtr, 3.0)  # of 3 degrees of freedom


def normal_share(lo: float, hi: float) -> float:
    """Return P(lo <= Z <= hi) for a standard normal Z, at 50 digits by the complementary error function."""
    with mp.workdps(DIGITS):
        a, b = (mp.mpf(edge) / mp.sqrt(2) for edge in ((-hi, -lo) if lo > 0 else (lo, hi)))
        return float((mp.erfc(-b) - mp.erfc(-a)) / 2)


def skewed(z: Floats) -> Floats:
    """Return P(1 - G <= z) for a gamma variable G of shape 2, a skewed distribution."""
    return special.gammaincc(2.0, np.maximum(1 - z, 0.0))


def accepted(rule: Rule, lengths: Floats, dist: Cdf, H: float, m: float) -> Floats:
    """Return the share of responses that a rule's band accepts at each of ``lengths`` l (K,). The log-ratio R less m l,
    over l^H, has the distribution function ``dist`` at every length; m l nats is also the band's centre."""
    lo, hi = rule.band(lengths, m)
    return dist((hi - m * lengths) / lengths**H) - dist((lo - m * lengths) / lengths**H)


def band_counts(
    rng: np.random.Generator, rule: Rule, model: LogRatioModel, lengths: np.ndarray, draws: int
) -> np.ndarray:
    """Draw S ``draws`` times from ``model`` for K lengths; return how many the band of ``rule`` holds, (K,)."""
    n = np.broadcast_to(lengths, (draws, lengths.size))
    m = rule.centre(matching_means(model)) if rule.needs_stats else 0.0
    applied = rule.apply(model.sample(rng, n), n, np.ones_like(n), m)
    return applied.in_band.sum(axis=0)


def mask(c_lo: float, c_hi: float, gamma: float) -> Rule:
    """Return the rule that masks responses whose engine log-ratio E lies outside m L + L^gamma [-c_lo, c_hi], nats, at
    the length L; m is minus the mean k3 per token (drift ``kl``)."""
    return Rule("power", c_lo, c_hi, gamma=gamma, drift="kl", outside="mask", on="engine")


class Discrete(NamedTuple):
    """A distribution of a few values, multiples of 1/8, with whole numbers as weights, so that float64 is exact."""

    values: np.ndarray
    weights: np.ndarray

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Discrete:
        """Draw a distribution of up to 5 values in [-3, 3], multiples of 1/8, with weights from 1 to 9."""
        values = rng.choice(np.arange(-24, 25), int(rng.integers(1, 6)), replace=False) / 8
        return cls(values, rng.integers(1, 10, values.size))

    def same_as(self, other: Discrete) -> bool:
        """Return whether two distributions have the same values with the same probabilities."""
        own, theirs = ({v: w / x.weights.sum() for v, w in zip(*x, strict=True)} for x in (self, other))
        return own == theirs
