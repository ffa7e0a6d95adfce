"""Laws of S given the length, for the fairness map: the probability that S lies in a band, and draws of S to test it.

Every law gives, for K lengths at once, the probability that lo <= S <= hi, and the mean of e^S 1(lo <= S <= hi)
(docs/theory.md sections 1 and 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.special import gammaln, kve, ndtr, stdtr

from fspo.theory import Floats, interval_probability

Sampler = Callable[[np.random.Generator, int], Floats]


class Law(Protocol):
    """The law of S given the length, for K lengths at once: the protocol that Normal, Student and Switching follow."""

    def probability(self, lo: Floats, hi: Floats) -> Floats:
        """Return the probability that S lies in [lo, hi] at each of the K lengths, (K,)."""
        ...

    def weighted(self, lo: Floats, hi: Floats) -> Floats | None:
        """Return, at each of the K lengths, the mean over responses of e^S, which counts as 0 where S is outside [lo,
        hi], (K,); None if the mean of e^S over all responses is infinite.
        """
        ...

    def sample(self, rng: np.random.Generator, draws: int) -> Floats:
        """Draw S for each of the K lengths, (draws, K). Rows are independent. The entries of one row may depend on each
        other, because they may be the sums over the first L tokens of one sequence, for each length L.
        """
        ...


@dataclass(frozen=True)
class Normal:
    """S given the k-th length is N(mean[k], scale[k]^2). If ``sampler`` is given, it draws S in place of that law, for
    example token by token.
    """

    mean: Floats
    scale: Floats
    sampler: Sampler | None = None

    def probability(self, lo: Floats, hi: Floats) -> Floats:
        """Return the probability that S lies in [lo, hi] at each of the K lengths, (K,)."""
        return interval_probability((lo - self.mean) / self.scale, (hi - self.mean) / self.scale)

    def weighted(self, lo: Floats, hi: Floats) -> Floats:
        """Return the mean of e^S 1(lo <= S <= hi) at each length, (K,).

        Weighting by e^S moves the mean of a normal law by its variance (T13).
        """
        mass = np.exp(self.mean + self.scale**2 / 2)
        return mass * Normal(self.mean + self.scale**2, self.scale).probability(lo, hi)

    def sample(self, rng: np.random.Generator, draws: int) -> Floats:
        """Draw log-ratios S, (draws, K), by the sampler if one was given, else from the normal law."""
        if self.sampler:
            return self.sampler(rng, draws)
        return self.mean + self.scale * rng.standard_normal((draws, self.mean.size))


@dataclass(frozen=True)
class Student:
    """S given the length L is ``mean`` plus a sum of L independent Student-t tokens. The distribution function of S
    follows from its characteristic function by Gil-Pelaez inversion.

    The tokens' scale is chosen so that S less its mean has, at the length ``at``, the quartiles of a normal law of
    variance sigma^2 times ``at``. So laws with 2 or fewer degrees of freedom ``df``, which have no variance, can be
    compared with the others. The mean of e^S is infinite.
    """

    mean: Floats
    lengths: Floats
    sigma: float
    df: float
    at: float
    token_scale: float = field(init=False)
    _splines: tuple[CubicSpline, ...] = field(init=False, repr=False)
    _units: Floats = field(init=False, repr=False)

    # The distribution function of S less its mean is tabulated up to this many times the scale of S. Beyond that point
    # its tail is taken as one token's tail times the constant that makes both equal at that point.
    _EDGE = 60.0

    def __post_init__(self) -> None:
        # The scale of a sum of L tokens grows like L^(1/2), or like L^(1/df) below 2 degrees of freedom (a stable law).
        exponent = max(0.5, 1 / self.df)
        x = np.concatenate([[0.0], np.geomspace(1e-3, self._EDGE, 600)])
        u, weight = _panels(60.0)
        kernel = np.sin(np.outer(x, u)) * (weight / u)
        quartile = 0.6744897501960817

        def cdf(units: Floats, lengths: Floats) -> Floats:
            log_phi = lengths[:, None] * _log_student_cf(self.df, u / units[:, None])
            return 0.5 + np.exp(log_phi) @ kernel.T / math.pi

        middle = np.array([self.at])
        # Distribution function of the sum of ``at`` Student-t token log-ratios of scale 1, divided by the scale of the
        # sum, ``at`` to the power ``exponent``.
        first = CubicSpline(x, cdf(middle**exponent, middle)[0])
        found = float(first.solve(0.75, extrapolate=False)[0]) * self.at**exponent
        object.__setattr__(self, "token_scale", quartile * self.sigma * math.sqrt(self.at) / found)
        units = self.lengths**exponent  # scale of the sum of L token log-ratios, over the scale of one of them
        object.__setattr__(self, "_units", units * self.token_scale)
        object.__setattr__(self, "_splines", tuple(CubicSpline(x, row) for row in cdf(units, self.lengths)))

    def probability(self, lo: Floats, hi: Floats) -> Floats:
        """Return the probability that lo <= S <= hi at each length, (K,)."""
        return self._cdf(hi) - self._cdf(lo)

    def weighted(self, lo: Floats, hi: Floats) -> None:
        """Return None: the mean of e^S is infinite for Student-t tokens."""
        return

    def sample(self, rng: np.random.Generator, draws: int) -> Floats:
        """Draw ``draws`` sequences of token log-ratios, and return the S of each at each of the K lengths, (draws, K).

        S at length L is the sum of the first L token log-ratios of a sequence.
        """
        return self.mean + partial_sums(lambda n, t: self.token_scale * rng.standard_t(self.df, (n, t)), draws, self)

    def _cdf(self, s: Floats) -> Floats:
        z = (np.broadcast_to(s, self.mean.shape) - self.mean) / self._units
        inside = np.minimum(np.abs(z), self._EDGE)
        upper = 1 - np.array([spline(v) for spline, v in zip(self._splines, inside, strict=True)])
        to_tokens = self._units / self.token_scale
        far = stdtr(self.df, -np.abs(z) * to_tokens) / stdtr(self.df, -inside * to_tokens)
        upper = np.clip(upper * far, 0.0, 0.5)
        return np.where(z > 0, 1 - upper, upper)


def _panels(end: float, panels: int = 300, nodes: int = 20) -> tuple[Floats, Floats]:
    """Return nodes and weights of a Gauss-Legendre quadrature on (0, end), with more nodes near 0."""
    edges = end * np.linspace(0, 1, panels + 1) ** 2
    t, w = np.polynomial.legendre.leggauss(nodes)
    mid, half = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
    return (mid[:, None] + half[:, None] * t).ravel(), (half[:, None] * w).ravel()


def _log_student_cf(df: float, u: Floats) -> Floats:
    """Return the log of the characteristic function of the standard Student t law at u > 0 (Hurst 1995)."""
    x = np.sqrt(df) * u
    v = df / 2
    return np.log(kve(v, x)) - x + v * np.log(x) - gammaln(v) - (v - 1) * math.log(2)


@dataclass(frozen=True)
class Switching:
    """Token log-ratios s are N(-v/2, v), and the variance v follows a stationary two-state Markov chain.

    Given the number of tokens in the second state, S is N(-V/2, V) with V the sum of the token variances. So S is a
    mixture of normals; the probabilities of that number, found by a recursion over the tokens, are their shares. Each
    token has E[e^s | past] = 1, as under a policy at first use (T9), and so E[e^S | L] = 1.

    Parameters
    ----------
    lengths : array (K,)
        Whole numbers.
    low, high : float
        Token variances of the two states, nats squared, low < high.
    persistence : float
        Second eigenvalue of the chain, in [0, 1): 0 gives independent states. Both states have share 1/2.
    """

    lengths: Floats
    low: float
    high: float
    persistence: float
    _tables: tuple[tuple[CubicSpline, CubicSpline, float], ...] = field(init=False, repr=False)

    _EDGE = 9.0

    def __post_init__(self) -> None:
        grid = np.linspace(-self._EDGE, self._EDGE, 361)
        tables = []
        for length, law in zip(self.lengths, self._counts(), strict=True):
            kept = np.flatnonzero(law > 1e-14)
            share = law[kept] / law[kept].sum()
            total = kept * self.high + (length - kept) * self.low
            unit = math.sqrt(length * self.high)
            scale = np.sqrt(total)
            plain = ndtr((grid[:, None] * unit + total / 2) / scale) @ share
            moved = ndtr((grid[:, None] * unit - total / 2) / scale) @ share
            tables.append((CubicSpline(grid, plain), CubicSpline(grid, moved), unit))
        object.__setattr__(self, "_tables", tuple(tables))

    def _counts(self) -> list[Floats]:
        """Return, for each length, the probabilities that 0, 1, 2, ... of the response's tokens are in the second state
        of the Markov chain that sets the tokens' variances.
        """
        longest = int(self.lengths.max())
        stay, move = (1 + self.persistence) / 2, (1 - self.persistence) / 2
        # ``first[k]``: probability that k of the tokens so far are in the Markov chain's second state and the last
        # token is in its first state. ``second[k]``: the same with the last token in the second state.
        first, second = np.zeros(longest + 1), np.zeros(longest + 1)
        first[0], second[1] = 0.5, 0.5
        found = {}
        for t in range(1, longest + 1):
            if t > 1:
                into_second = move * first + stay * second
                first, second = stay * first + move * second, np.concatenate([[0.0], into_second[:-1]])
            if t in self.lengths:
                found[t] = first + second
        return [found[int(length)] for length in self.lengths]

    def probability(self, lo: Floats, hi: Floats) -> Floats:
        """Return the probability that S lies in [lo, hi] at each of the K lengths, (K,)."""
        return self._between(0, lo, hi)

    def weighted(self, lo: Floats, hi: Floats) -> Floats:
        """Return the mean of e^S 1(lo <= S <= hi) at each length, (K,).

        Weighting by e^S turns N(-V/2, V) into N(+V/2, V) and keeps the mixture's shares.
        """
        return self._between(1, lo, hi)

    def sample(self, rng: np.random.Generator, draws: int) -> Floats:
        """Draw ``draws`` sequences of token log-ratios, and return the S of each at each of the K lengths, (draws, K).

        S at length L is the sum of the first L token log-ratios of a sequence.
        """

        def tokens(n: int, t: int) -> Floats:
            start = rng.integers(0, 2, (n, 1))
            flips = rng.random((n, t - 1)) < (1 - self.persistence) / 2
            state = (start + np.concatenate([np.zeros((n, 1), int), np.cumsum(flips, axis=1)], axis=1)) % 2
            v = np.where(state == 1, self.high, self.low)
            return -v / 2 + np.sqrt(v) * rng.standard_normal((n, t))

        return partial_sums(tokens, draws, self)

    def _between(self, which: int, lo: Floats, hi: Floats) -> Floats:
        lo, hi = np.broadcast_to(lo, self.lengths.shape), np.broadcast_to(hi, self.lengths.shape)
        out = []
        for row, a, b in zip(self._tables, lo, hi, strict=True):
            edges = np.clip(np.array([a, b]) / row[2], -self._EDGE, self._EDGE)
            below, above = (row[1] if which else row[0])(edges)
            out.append(above - below)
        return np.clip(np.array(out), 0.0, 1.0)


class _HasLengths(Protocol):
    @property
    def lengths(self) -> Floats: ...


def partial_sums(tokens: Callable[[int, int], Floats], draws: int, law: _HasLengths, chunk: int = 1000) -> Floats:
    """Draw sequences of token log-ratios. Return the sums of the first L of each sequence, for each of the K lengths L
    that ``law`` knows: (draws, K)."""
    index = law.lengths.astype(int) - 1
    out = np.empty((draws, index.size))
    for start in range(0, draws, chunk):
        n = min(chunk, draws - start)
        out[start : start + n] = np.cumsum(tokens(n, int(index.max()) + 1), axis=1)[:, index]
    return out
