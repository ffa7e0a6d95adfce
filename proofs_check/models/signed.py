"""A model that draws advantages on which the drift of S depends (T9)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from fspo.theory import Floats
from proofs_check.models.base import numbers_of


@dataclass(frozen=True)
class AdvantageDrift:
    """S given L and A is N((mu + sign(A) pull) L, sigma^2 L). With pull > 0 the update raises the log-probability of
    responses with positive A and lowers that of responses with negative A (T9).

    ``sample`` gives S alone, ``sample_pair`` S with A = +1 or -1.

    Parameters
    ----------
    pull : float
        Drift that is added for A > 0 and subtracted for A < 0, nats per token; 0 makes S independent of A.
    positive : float in (0, 1)
        Share of A > 0 at the length ``l0``, 100 tokens by default.
    trend : float
        Slope on log L of the logit of the share of A > 0.
    """

    mu: float
    sigma: float
    pull: float = 0.0
    positive: float = 0.5
    trend: float = 0.0
    l0: float = 100.0

    def positive_share(self, lengths: ArrayLike) -> Floats:
        """Return P(A > 0 | L) in the shape of ``lengths``."""
        n = numbers_of(lengths)
        share = special.expit(special.logit(self.positive) + self.trend * np.log(n / self.l0))
        return np.broadcast_to(share, np.shape(lengths))

    def mean(self, lengths: ArrayLike) -> Floats:
        """Return E[S | L], nats, by a formula."""
        n = np.asarray(lengths, np.float64)
        return (self.mu + self.pull * (2 * self.positive_share(lengths) - 1)) * n

    def variance(self, lengths: ArrayLike) -> Floats:
        """Return Var[S | L], nats squared: the variance of S given A, plus the variance of its mean given A, which
        depends on the sign of A.
        """
        share, n = self.positive_share(lengths), np.asarray(lengths, np.float64)
        return self.sigma**2 * n + 4 * share * (1 - share) * (self.pull * n) ** 2

    def sample_pair(self, rng: np.random.Generator, lengths: ArrayLike) -> tuple[Floats, Floats]:
        """Draw one pair (S, A) for each length."""
        n = numbers_of(lengths)
        A = np.where(rng.random(np.shape(lengths)) < self.positive_share(lengths), 1.0, -1.0)
        S = rng.standard_normal(np.shape(lengths)) * (self.sigma * np.sqrt(n))
        return S + (self.mu + self.pull * A) * n, A

    def sample(self, rng: np.random.Generator, lengths: ArrayLike) -> Floats:
        """Draw one log-ratio S for each length, without the advantage."""
        return self.sample_pair(rng, lengths)[0]
