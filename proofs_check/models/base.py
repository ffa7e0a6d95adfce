"""The interface of log-ratio models (docs/theory.md section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from fspo.rules import TokenMeans
from fspo.theory import Floats

BLOCK = 1 << 20
"""Most numbers that are in memory at once where S is summed token by token."""


class LogRatioModel(Protocol):
    """A distribution of S given L, with a drift ``mu`` (nats per token) and a long-run scale ``sigma`` (nats per root
    token). Unless the model says otherwise, S has the mean ``mu * L`` and a variance that, over L, tends to
    ``sigma**2``."""

    @property
    def mu(self) -> float:
        """Drift, nats per token."""
        ...

    @property
    def sigma(self) -> float:
        """Scale, nats per root token."""
        ...

    def sample(self, rng: np.random.Generator, lengths: ArrayLike) -> Floats:
        """Draw one S for each entry of ``lengths`` (>= 1); the result has the shape of ``lengths``."""
        ...


class TokenModel(LogRatioModel, Protocol):
    """A log-ratio model that can draw each token log-ratio."""

    def paths(self, rng: np.random.Generator, draws: int, length: int) -> Floats:
        """Draw the token log-ratios s_t of ``draws`` responses of ``length`` tokens, (draws, length)."""
        ...


@dataclass(frozen=True)
class WithMoments:
    """Base of models whose S has the mean mu L and the variance sigma^2 L, unless a subclass replaces ``_variance``."""

    mu: float
    sigma: float

    def _variance(self, n: Floats) -> Floats:
        return self.sigma**2 * n

    def mean(self, lengths: ArrayLike) -> Floats:
        """Return the mean of S at each of the given lengths, nats, by a formula."""
        return np.broadcast_to(self.mu * numbers_of(lengths), np.shape(lengths))

    def variance(self, lengths: ArrayLike) -> Floats:
        """Return the variance of S at each of the given lengths, nats squared, by a formula."""
        return np.broadcast_to(self._variance(numbers_of(lengths)), np.shape(lengths))


class SummedTokens:
    """Base of models that draw S as the sum of the token log-ratios that their method ``paths`` draws."""

    def paths(self, rng: np.random.Generator, draws: int, length: int) -> Floats:
        """Draw the token log-ratios of responses, (draws, length)."""
        raise NotImplementedError

    def sample(self, rng: np.random.Generator, lengths: ArrayLike) -> Floats:
        """Draw one log-ratio S for each length, token by token."""
        n = np.broadcast_to(numbers_of(lengths), np.shape(lengths))
        S = np.empty(n.shape)
        for length in np.unique(n):
            at = np.nonzero(np.ravel(n == length))[0]
            rows = max(1, int(BLOCK // length))
            for start in range(0, at.size, rows):
                chunk = at[start : start + rows]
                S.flat[chunk] = self.paths(rng, chunk.size, int(length)).sum(axis=1)
        return S


def matching_means(model: LogRatioModel) -> TokenMeans:
    """Return -mu of a model as its mean k3 per token and sigma^2 as its mean s^2 per token: the two means from which a
    rule's drift is computed. So the band of a rule with drift ``kl`` is centred at the model's own drift, mu <= 0."""
    assert model.mu <= 0, "drift 'kl' is -k3 <= 0: it can match only a model with mu <= 0"
    return TokenMeans(-model.mu, model.sigma**2)


def numbers_of(lengths: ArrayLike) -> Floats:
    """Return lengths as float64, of a shape that broadcasts to the given one: an axis along which np.broadcast_to
    repeats the same entries has one entry, so that formulas are computed once."""
    given = np.asarray(lengths)
    once = tuple(slice(None) if stride else slice(0, 1) for stride in given.strides)
    return given[once].astype(np.float64, copy=False)
