"""Log-ratio models: laws of S given the length L, sampled in one call (docs/theory.md section 4).

Each model knows its drift ``mu`` and scale ``sigma`` per token, so that a rule's ``DriftStats`` can be made from it:
mean mu L and long-run variance sigma^2 L.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from fspo.errors import UserError
from fspo.rules import DriftStats
from fspo.theory import Floats


class LogRatioModel(Protocol):
    """A law of S given L with mean ``mu * L`` and long-run standard deviation ``sigma * sqrt(L)``."""

    @property
    def mu(self) -> float:
        """Drift, nats per token."""
        ...

    @property
    def sigma(self) -> float:
        """Scale, nats per root token."""
        ...

    def sample(self, rng: np.random.Generator, lengths: ArrayLike) -> Floats:
        """One S for each entry of ``lengths``, in its shape."""
        ...


def matching_stats(model: LogRatioModel) -> DriftStats:
    """Statistics for which drift ``kl`` gives exactly mu (mu <= 0): k3 = -mu; sigma^2 per token beside it."""
    if not model.mu <= 0:
        raise UserError("drift 'kl' is -k3 <= 0: it can match only a model with mu <= 0")
    return DriftStats(-model.mu, model.sigma**2, 1.0)


def _positive(sigma: float) -> None:
    if not sigma > 0:
        raise UserError(f"sigma={sigma} must be > 0 nats per root token")


@dataclass(frozen=True)
class GaussianTokens:
    """Independent N(mu, sigma^2) tokens; S is drawn from its exact law N(mu L, sigma^2 L)."""

    mu: float
    sigma: float

    def __post_init__(self) -> None:
        _positive(self.sigma)

    def sample(self, rng: np.random.Generator, lengths: ArrayLike) -> Floats:
        """See LogRatioModel."""
        lengths = np.asarray(lengths, np.float64)
        return self.mu * lengths + self.sigma * np.sqrt(lengths) * rng.standard_normal(lengths.shape)


@dataclass(frozen=True)
class ScaledGamma:
    """S = mu L + sigma sqrt(L) Z with one standardised gamma law for Z at every L: skew 2/sqrt(shape).

    The law of (S - mu L)/sqrt(L) does not depend on L, which is T1's only hypothesis; it is far from Gaussian.
    A negative ``sign`` gives the left-skewed mirror image.
    """

    mu: float
    sigma: float
    shape: float = 1.0
    sign: int = -1

    def __post_init__(self) -> None:
        _positive(self.sigma)

    def sample(self, rng: np.random.Generator, lengths: ArrayLike) -> Floats:
        """See LogRatioModel."""
        lengths = np.asarray(lengths, np.float64)
        z = self.sign * (rng.standard_gamma(self.shape, lengths.shape) - self.shape) / np.sqrt(self.shape)
        return self.mu * lengths + self.sigma * np.sqrt(lengths) * z


@dataclass(frozen=True)
class ExponentialTokens:
    """Independent tokens s = mu + sigma (E - 1), E standard exponential: skewed tokens, S drawn exactly (T5).

    The sum of L exponentials is a gamma variable. E|E - 1|^3 = 12/e - 2, the rho3 of T5.
    """

    mu: float
    sigma: float

    RHO3 = 12 / np.e - 2

    def __post_init__(self) -> None:
        _positive(self.sigma)

    def sample(self, rng: np.random.Generator, lengths: ArrayLike) -> Floats:
        """See LogRatioModel."""
        lengths = np.asarray(lengths, np.float64)
        return self.mu * lengths + self.sigma * (rng.standard_gamma(lengths) - lengths)

    def cdf(self, s: ArrayLike, lengths: ArrayLike) -> Floats:
        """P(S <= s | L), by the regularised incomplete gamma function."""
        from scipy.special import gammainc

        lengths = np.asarray(lengths, np.float64)
        total = (np.asarray(s, np.float64) - self.mu * lengths) / self.sigma + lengths
        return gammainc(lengths, np.maximum(total, 0.0))


@dataclass(frozen=True)
class AutoregressiveTokens:
    """Stationary Gaussian AR(1) tokens with |ar| < 1, simulated token by token (T6).

    ``sigma`` is the long-run scale: the tokens' own variance is sigma^2 (1 - ar)/(1 + ar).
    """

    mu: float
    sigma: float
    ar: float

    def __post_init__(self) -> None:
        _positive(self.sigma)
        if not abs(self.ar) < 1:
            raise UserError(f"ar={self.ar} must lie in (-1, 1) for stationary tokens")

    def sample(self, rng: np.random.Generator, lengths: ArrayLike) -> Floats:
        """See LogRatioModel. Costs max(lengths) passes over the array."""
        lengths = np.asarray(lengths, np.float64)
        token_scale = self.sigma * np.sqrt((1 - self.ar) / (1 + self.ar))
        innovation = token_scale * np.sqrt(1 - self.ar**2)
        x = token_scale * rng.standard_normal(lengths.shape)
        total = np.zeros(lengths.shape)
        for t in range(int(lengths.max())):
            total += np.where(t < lengths, x, 0.0)
            x = self.ar * x + innovation * rng.standard_normal(lengths.shape)
        return self.mu * lengths + total
