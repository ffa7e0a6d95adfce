"""Models in which S is a sum of skewed, heavy-tailed or Markov-modulated token log-ratios, so that the shape of its
distribution changes with L."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from fspo.theory import Floats
from proofs_check.models.base import BLOCK, SummedTokens, TokenModel, WithMoments, numbers_of

_PANEL_NODES, _PANEL_WEIGHTS = np.polynomial.legendre.leggauss(16)


@dataclass(frozen=True)
class ExponentialTokens(WithMoments):
    """Independent token log-ratios s = mu + sigma (E - 1), with E standard exponential, so that they are skewed (T4).
    The sum of L exponentials is a gamma variable, from which S is drawn. E|E - 1|^3 = 12/e - 2, the rho3 of T4."""

    RHO3 = 12 / np.e - 2

    def sample(self, rng: np.random.Generator, lengths: ArrayLike) -> Floats:
        """Draw one log-ratio S for each length, from the gamma distribution of a sum of exponentials."""
        n = numbers_of(lengths)
        total = rng.standard_gamma(np.broadcast_to(n, np.shape(lengths)))
        return self.mu * n + self.sigma * (total - n)

    def cdf(self, s: ArrayLike, lengths: ArrayLike) -> Floats:
        """Return P(S <= s) at the given lengths, from the regularised incomplete gamma function; ``s`` in nats."""
        n = numbers_of(lengths)
        total = (np.asarray(s, np.float64) - self.mu * n) / self.sigma + n
        shape = np.broadcast_shapes(np.shape(s), np.shape(lengths))
        return np.broadcast_to(special.gammainc(n, np.maximum(total, 0.0)), shape)


@dataclass(frozen=True)
class TokenByToken(SummedTokens):
    """The model ``tokens``, but with S drawn as the sum over a path of tokens: slow, but it needs no formula."""

    tokens: TokenModel

    @property
    def mu(self) -> float:
        """Drift of the tokens, nats per token."""
        return self.tokens.mu

    @property
    def sigma(self) -> float:
        """Scale sigma of the tokens, nats per root token: S has standard deviation sigma sqrt(L)."""
        return self.tokens.sigma

    def paths(self, rng: np.random.Generator, draws: int, length: int) -> Floats:
        """Draw the token log-ratios of responses, (draws, length)."""
        return self.tokens.paths(rng, draws, length)


@dataclass(frozen=True)
class StudentTokens(SummedTokens, WithMoments):
    """Independent token log-ratios mu + sigma T, T a Student t variable scaled to variance 1; ``df`` > 2 (T4). S is
    summed token by token; ``cdf`` inverts the characteristic function."""

    df: float = 5.0

    @property
    def rho3(self) -> float:
        """The third moment E|s - mu|^3 / sigma^3 (rho3 of T4) of a Student-t token log-ratio s; infinite if df <= 3."""
        if self.df <= 3:
            return math.inf
        log_moment = special.gammaln((self.df - 3) / 2) - special.gammaln(self.df / 2)
        return (self.df - 2) ** 1.5 * math.exp(log_moment) / math.sqrt(math.pi)

    def paths(self, rng: np.random.Generator, draws: int, length: int) -> Floats:
        """Draw the token log-ratios of responses, (draws, length)."""
        scale = self.sigma * math.sqrt((self.df - 2) / self.df)
        return self.mu + scale * rng.standard_t(self.df, (draws, length))

    def cdf(self, s: ArrayLike, lengths: ArrayLike) -> Floats:
        """Return P(S <= s | L) by Gil-Pelaez inversion of the tokens' characteristic function, to about 1e-12."""
        n = numbers_of(lengths)
        z = (np.asarray(s, np.float64) - self.mu * n) / (self.sigma * np.sqrt(n))
        z, n = np.broadcast_arrays(z, n)
        # ``found`` is P(Z <= z), Z the sum S less its mean, over its standard deviation. Set it here for infinite z;
        # the loop sets it for finite z.
        found = np.where(z > 0, 1.0, 0.0)
        for length in np.unique(n):
            at = np.isfinite(z) & (n == length)
            found[at] = self._standard_cdf(z[at], float(length))
        return found

    def _standard_cdf(self, z: Floats, length: float) -> Floats:
        """Return P(Z <= z) for z (N,), with Z the sum of ``length`` tokens less its mean, over its standard deviation,
        by Gil-Pelaez inversion."""
        if z.size == 0:
            return z
        end = 45.0  # where the inversion's integral ends: beyond, the characteristic function of Z is below e^-42
        while length * self._log_characteristic(np.array([end / math.sqrt(length)]))[0] > -42:
            end *= 1.5
        # The inversion integrates sin(tz) over t in panels (intervals of t). There are so many panels that each holds
        # at most two thirds of a period of sin(tz).
        panels = int(8 + end * (1 + np.max(np.abs(z))) / 4)
        # Near t = 0 the characteristic function of Student's t has a term |t|^df, for which the quadrature over t
        # converges slowly. So the first panel, which begins at 0, is halved many times.
        edges = np.concatenate([[0.0], end / panels * 0.5 ** np.arange(24, 0, -1), np.linspace(0, end, panels + 1)[1:]])
        half = np.diff(edges)[:, None] / 2
        t = (edges[:-1, None] + half * (1 + _PANEL_NODES)).ravel()
        density = (half * _PANEL_WEIGHTS).ravel() * np.exp(length * self._log_characteristic(t / math.sqrt(length))) / t
        rows = max(1, BLOCK // t.size)
        parts = [np.sin(np.outer(z[i : i + rows], t)) @ density for i in range(0, z.size, rows)]
        return 0.5 + np.concatenate(parts) / math.pi

    def _log_characteristic(self, t: Floats) -> Floats:
        """Return the logarithm of the characteristic function, at t > 0, of one token log-ratio. It follows Student's t
        distribution scaled to variance 1."""
        v, x = self.df / 2, t * math.sqrt(self.df - 2)
        return np.log(special.kve(v, x)) - x + v * np.log(x) - special.gammaln(v) - (v - 1) * math.log(2)


@dataclass(frozen=True)
class MarkovTokens(SummedTokens, WithMoments):
    """Gaussian token log-ratios, of mean and variance that depend on the state, 0 or 1, of a stationary Markov chain.

    ``sigma`` is the long-run scale.

    Parameters
    ----------
    persistence : float in (-1, 1)
        Second eigenvalue of the chain: the correlation of its state from one token to the next.
    share : float in (0, 1)
        Stationary probability of state 1.
    mean_part : float in [0, 1)
        Part of the long-run variance that comes from the states' different means; state 1 has the higher mean.
    noise_ratio : float > 0
        Variance of a token in state 1 over that in state 0."""

    persistence: float = 0.8
    share: float = 0.3
    mean_part: float = 0.5
    noise_ratio: float = 1.0

    @property
    def between(self) -> float:
        """Part of the variance of a token's log-ratio that comes from the two states' different means, nats squared."""
        return self.mean_part * self.sigma**2 * (1 - self.persistence) / (1 + self.persistence)

    @property
    def within(self) -> float:
        """Variance of a token's log-ratio given the Markov chain's state, mean over the two states, nats squared."""
        return (1 - self.mean_part) * self.sigma**2

    @property
    def states(self) -> tuple[Floats, Floats]:
        """Mean and variance of a token's log-ratio in each of the two states, (2,) both, nats and nats squared."""
        gap = math.sqrt(self.between / (self.share * (1 - self.share)))
        ratio = np.array([1.0, self.noise_ratio])
        variances = self.within / (1 - self.share + self.share * self.noise_ratio) * ratio
        return self.mu + gap * np.array([-self.share, 1 - self.share]), variances

    def _variance(self, n: Floats) -> Floats:
        """Return Var[S | L] in closed form: the sum of the autocovariances of all pairs of tokens."""
        k = self.persistence
        double_sum = n * (1 + k) / (1 - k) - 2 * k * (1 - k**n) / (1 - k) ** 2
        return self.within * n + self.between * double_sum

    def paths(self, rng: np.random.Generator, draws: int, length: int) -> Floats:
        """Draw the token log-ratios of responses, (draws, length)."""
        state, s = (rng.random(draws) < self.share).astype(int), np.empty((draws, length))
        means, variances = self.states
        leaving = np.minimum(1.0, (1 - self.persistence) * np.array([self.share, 1 - self.share]))  # the present state
        for t in range(length):
            s[:, t] = means[state] + np.sqrt(variances[state]) * rng.standard_normal(draws)
            state ^= rng.random(draws) < leaving[state]
        return s
