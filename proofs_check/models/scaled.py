"""Models in which S is, at every length, a shifted and scaled copy of one standard variable Z.

S = mu L + scale(L) Z. The models differ in the distribution of Z and in how scale(L) grows. The sqrt band around mu L
accepts all lengths equally often only if scale(L) is proportional to sqrt(L) (T1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import signal, special

from fspo import theory
from fspo.theory import Floats
from proofs_check.models.base import WithMoments, numbers_of


@dataclass(frozen=True)
class ScaleFamily(WithMoments):
    """S = mu L + sd(L) Z with Z standard normal and sd(L) = sigma sqrt(L); subclasses have another Z or another sd."""

    def _draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """Return draws of Z, the standard variable in S = mu L + scale(L) Z."""
        return rng.standard_normal(shape)

    def _standard_cdf(self, z: Floats) -> Floats:
        return special.ndtr(z)

    def cdf(self, s: ArrayLike, lengths: ArrayLike) -> Floats:
        """Return P(S <= s) at the given lengths by a formula; ``s`` (nats) and ``lengths`` broadcast."""
        n = numbers_of(lengths)
        shape = np.broadcast_shapes(np.shape(s), np.shape(lengths))
        z = (np.asarray(s, np.float64) - self.mu * n) / np.sqrt(self._variance(n))
        return np.broadcast_to(self._standard_cdf(z), shape)

    def sample(self, rng: np.random.Generator, lengths: ArrayLike) -> Floats:
        """Draw one log-ratio S, nats, for each of ``lengths``."""
        n = numbers_of(lengths)
        return self.mu * n + np.sqrt(self._variance(n)) * self._draw(rng, np.shape(lengths))


@dataclass(frozen=True)
class GaussianTokens(ScaleFamily):
    """Independent token log-ratios with the distribution N(mu, sigma^2). S is drawn directly, not summed."""

    def paths(self, rng: np.random.Generator, draws: int, length: int) -> Floats:
        """Draw the token log-ratios of responses, (draws, length)."""
        return self.mu + self.sigma * rng.standard_normal((draws, length))


@dataclass(frozen=True)
class AutoregressiveTokens(ScaleFamily):
    """Token log-ratios that are a stationary Gaussian AR(1) process with the coefficient ``ar``, |ar| < 1 (T4). S is
    Gaussian and drawn without tokens. ``sigma`` is the long-run scale; the variance of one token is sigma^2 (1 - ar)/(1
    + ar)."""

    ar: float

    def _variance(self, n: Floats) -> Floats:
        return self.sigma**2 * n * theory.ar1_variance_ratio(self.ar, n)

    def paths(self, rng: np.random.Generator, draws: int, length: int) -> Floats:
        """Draw the token log-ratios of responses, (draws, length), by the AR(1) recursion; the first is stationary."""
        shocks = rng.standard_normal((draws, length))
        token_scale = self.sigma * math.sqrt((1 - self.ar) / (1 + self.ar))
        shocks[:, 1:] *= math.sqrt(1 - self.ar**2)
        return self.mu + token_scale * np.asarray(signal.lfilter([1.0], [1.0, -self.ar], shocks, axis=1))


@dataclass(frozen=True)
class ScaledGamma(ScaleFamily):
    """S = mu L + sigma sqrt(L) Z, where Z at every L has one gamma distribution with the parameter ``shape``, brought
    to mean 0 and variance 1: its skew is 2/sqrt(shape), or minus that if ``sign`` is -1. The distribution of (S - mu
    L)/sqrt(L) does not depend on L, which is T1's only hypothesis. It is far from Gaussian."""

    shape: float = 1.0
    sign: int = -1

    def _draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return (rng.standard_gamma(self.shape, shape) - self.shape) * (self.sign / math.sqrt(self.shape))

    def _standard_cdf(self, z: Floats) -> Floats:
        total = np.maximum(self.sign * z * math.sqrt(self.shape) + self.shape, 0.0)
        dist = special.gammainc if self.sign > 0 else special.gammaincc
        return dist(self.shape, total)


@dataclass(frozen=True)
class ScaledStudent(ScaleFamily):
    """S = mu L + sigma sqrt(L) Z with Z a Student t variable of ``df`` > 2 degrees of freedom and variance 1. The tails
    are heavy and do not depend on L, so the sqrt band is fair (T1). `StudentTokens` sums heavy-tailed tokens."""

    df: float = 5.0

    def _draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return rng.standard_t(self.df, shape) * math.sqrt((self.df - 2) / self.df)

    def _standard_cdf(self, z: Floats) -> Floats:
        return special.stdtr(self.df, z * math.sqrt(self.df / (self.df - 2)))


@dataclass(frozen=True)
class Heteroscedastic(ScaleFamily):
    """S of length l is N(mu l, sigma_l^2 l): the scale sigma_l = sigma (l/l0)^beta changes with the length (T3)."""

    beta: float = 0.1
    l0: float = 100.0

    def _variance(self, n: Floats) -> Floats:
        return self.sigma**2 * n * (n / self.l0) ** (2 * self.beta)


@dataclass(frozen=True)
class FractionalNoise(ScaleFamily):
    """Token log-ratios are mu plus fractional Gaussian noise of Hurst exponent H: S is N(mu L, sigma^2 L^(2H)).
    ``sigma`` is the standard deviation of one token, nats; Var(S)/L has no finite limit above 0 unless H = 1/2. Tokens
    are positively correlated at any distance (H > 1/2) or negatively (H < 1/2). The sqrt band is fair at H = 1/2 alone.
    """

    hurst: float = 0.6

    def _variance(self, n: Floats) -> Floats:
        return self.sigma**2 * n ** (2 * self.hurst)

    def autocovariance(self, lags: ArrayLike) -> Floats:
        """Return the covariance of token log-ratios ``lags`` tokens apart, nats^2 (Mandelbrot and Van Ness 1968)."""
        k, power = np.abs(np.asarray(lags, np.float64)), 2 * self.hurst
        return self.sigma**2 / 2 * ((k + 1) ** power - 2 * k**power + np.abs(k - 1) ** power)

    def paths(self, rng: np.random.Generator, draws: int, length: int) -> Floats:
        """Draw the token log-ratios of responses, (draws, length), by circulant embedding (Davies and Harte 1987)."""
        row = self.autocovariance(np.arange(length + 1))
        circle = np.concatenate([row, row[-2:0:-1]])
        # The eigenvalues of the circulant covariance matrix are >= 0; rounding may make them slightly negative.
        spectrum = np.maximum(np.real(np.fft.fft(circle)), 0.0)
        noise = rng.standard_normal((draws, circle.size)) + 1j * rng.standard_normal((draws, circle.size))
        waves = np.real(np.fft.fft(np.sqrt(spectrum / circle.size) * noise, axis=1))
        return self.mu + waves[:, :length]
