"""Policies for which the mean and the second moment of the update can be computed exactly under any rule.

`LocationPolicy` is the main one. A response has L tokens x_t in R^D and a header h: a number, 1 unless stated, that
precedes the tokens and whose law is the same under both policies. x_t ~ N(h theta, I) under the old policy and
N(h (theta + Delta), I) under the new one. With Z = sum (x_t - h theta)/sqrt(L), z the component of Z along Delta,
sigma = |Delta| and tau = sigma h sqrt(L),

    S = tau z - tau^2/2,     psi = h sqrt(L) Z - h^2 L Delta,     E[e^S | L, h] = 1 .

The reward is 1 where <v, Z> exceeds a threshold, v a unit vector with <v, Delta> = overlap |Delta|, and A is the reward
less its mean. Then E[w A psi] is the exact gradient of the new policy's mean reward. Given z, the expectation over all
other components of Z has a formula (moments of a normal variable on a half-line). So only an integral over z is left to
a quadrature, which is split at the edges of the band.

The weight w of the true update is e^S with no cap on S. The clipped weight comes from ``rule.apply``, which caps the
exponent at MAX_EXPONENT. With long steps (models ``far`` and ``heavy``) that cap limits the variance of the update even
under the rule ``none``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import ndtr, ndtri

from fspo.base.errors import UserError
from fspo.rules import Rule, scaled, standardized_excess
from fspo.theory import Floats, interval_probability
from proofs_check.maps.matching import matched
from proofs_check.maps.settings import SIGMA
from proofs_check.tools.policy import Bandit

NOISE_DIMS = 64


@dataclass(frozen=True)
class Moments:
    """Exact moments of the clipped gradient M w A psi of one response, and of weights by length.

    Attributes
    ----------
    g, g_clip : arrays
        True and clipped update, E[w A psi] and E[M w A psi], in the same basis.
    second : float
        Mean squared norm of the clipped gradient, E |M w A psi|^2.
    lengths, p : arrays (K,)
        The lengths, and their shares among all responses.
    band, kept, weight, clipped, clipped_square : arrays (K,)
        Five quantities at each length. ``band``: band acceptance, over all responses. The others are over responses
        whose A is not 0: ``kept``, the share not clipped; ``weight``, E[w]; ``clipped``, E[M w]; ``clipped_square``,
        E[(M w)^2].
    p_update : array (K,)
        Shares of the lengths among responses with A != 0.
    """

    g: Floats
    g_clip: Floats
    second: float
    lengths: Floats
    p: Floats
    p_update: Floats
    band: Floats
    kept: Floats
    weight: Floats
    clipped: Floats
    clipped_square: Floats


class Policy(Protocol):
    """A model of the price map: an old policy, the step from it to the new one, and a reward."""

    @property
    def name(self) -> str:
        """Name of the model in the tables."""
        ...

    @property
    def kl(self) -> float:
        """KL(old||new) per token, nats: minus the mean of S, divided by the mean length."""
        ...

    def calibrated(self, rule: Rule, m: float, target: float) -> Rule | None:
        """Return the rule with its range scaled so that its band, which is centred at m nats per token, accepts the
        share ``target`` of responses; None if no range does.
        """
        ...

    def moments(self, rule: Rule, m: float) -> Moments:
        """Return the exact moments of the update under the rule, whose band is centred at m times the length."""
        ...


@dataclass(frozen=True)
class LocationPolicy:
    """A policy whose tokens are normal vectors: N(h theta, I), and N(h (theta + Delta), I) after a step Delta.

    The header h of a response is a number by which the policy multiplies the means of all its tokens, so it scales the
    response's log-ratios. A stratum is a pair of length and header. The reward is 1 if the response lies far enough in
    the direction v. The module's docstring gives the formulas.

    Attributes
    ----------
    lengths, headers, p, positive : arrays (J,)
        Length L, header h, share of responses, and P(reward = 1) under the old policy, of each of J strata.
    sigma : float
        Length |Delta| of the step, nats per root token at h = 1.
    overlap : float
        Cosine of v, the reward's direction, and the step Delta, in (-1, 1).
    blind : bool
        Take the gradient only along directions that the step did not move: with overlap 0, A psi is then
        independent of S given L, T13's hypothesis.
    dims : int
        Number D >= 2 of a token's entries. Scores have only noise in the D - 2 directions that are orthogonal to Delta
        and v.
    """

    name: str
    lengths: Floats
    headers: Floats
    p: Floats
    positive: Floats
    sigma: float = SIGMA
    overlap: float = 0.0
    blind: bool = False
    dims: int = NOISE_DIMS

    def __post_init__(self) -> None:
        if not (self.sigma > 0 and -1 < self.overlap < 1 and self.dims >= 2):
            raise UserError("a location policy needs sigma > 0, overlap in (-1, 1) and at least 2 dimensions")
        if not np.all((self.positive > 0) & (self.positive < 1)):
            raise UserError("shares of positive rewards must lie in (0, 1), or the threshold is infinite")

    @property
    def tau(self) -> Floats:
        """Return the standard deviation of S, nats, for each of the J pairs of a length and a header."""
        return self.sigma * self.headers * np.sqrt(self.lengths)

    @property
    def kl(self) -> float:
        """Return KL(old||new) per token, nats, from the mean of S, which is minus half of S's variance tau^2."""
        return float(self.p @ self.tau**2) / 2 / float(self.p @ self.lengths)

    def band_acceptance(self, rule: Rule, m: float) -> Floats:
        """Return the share of responses in the rule's band, centred at m times the length, for each of the J pairs of a
        length and a header (a number that scales a response's log-ratios).
        """
        lo, hi = rule.band(self.lengths, m)
        return interval_probability(lo / self.tau + self.tau / 2, hi / self.tau + self.tau / 2)

    def calibrated(self, rule: Rule, m: float, target: float) -> Rule | None:
        """Return the rule with its range scaled so that its band, which is centred at m nats per token, keeps the share
        ``target`` of responses; None if no range does.
        """
        return matched(rule, lambda r: float(self.p @ self.band_acceptance(r, m)), target)

    def moments(self, rule: Rule, m: float) -> Moments:
        """Return the exact moments of the update under the rule, whose band is centred at m times the length, by
        quadrature over z, the standardised S (see the module's docstring).
        """
        tau, n = self.tau[:, None], self.lengths[:, None]
        lo, hi = rule.band(self.lengths, m)
        z, density = _nodes(self.tau, (lo / self.tau + self.tau / 2, hi / self.tau + self.tau / 2))
        S = tau * z - tau**2 / 2
        w = np.exp(S)
        across = math.sqrt(1 - self.overlap**2)
        # The reward is 1 where <v, Z> exceeds a threshold (see the module's docstring). Given z, Z's component along
        # Delta, that is so where Z's component along the part of v orthogonal to Delta exceeds t.
        t = (ndtri(1 - self.positive)[:, None] - self.overlap * z) / across
        phi, below, above = np.exp(-(t**2) / 2) / math.sqrt(2 * math.pi), ndtr(t), ndtr(-t)
        mean_reward = float(self.p @ self.positive)
        size = self.headers[:, None] * np.sqrt(n)
        along = (0.0 if self.blind else 1.0) * size * (z - tau)
        J = self.lengths.size
        g, g_clip, second = np.zeros(2), np.zeros(2), 0.0
        kept, weight, clipped, square = np.zeros((4, J))
        # Let y be the component of Z, the tokens' standardised sum, in the plane of v (the reward's direction) and of
        # Delta (the policy's step), orthogonal to Delta. The reward is 1 for y > t, else 0. For each of the two
        # rewards: the advantage, and the moments of order 0, 1 and 2 of y over the half line that gives this reward.
        for A, m0, m1, m2 in (
            (1 - mean_reward, above, phi, above + t * phi),
            (-mean_reward, below, -phi, below - t * phi),
        ):
            applied = rule.apply(S, n, np.full_like(S, A), m)
            f = applied.clipped_weight
            for into, factor in ((g, w), (g_clip, f)):
                weighted = density * factor * A
                into += (self.p @ (weighted * m0 * along).sum(1), self.p @ (weighted * size * m1).sum(1))
            spread = m0 * along**2 + size**2 * (m2 + (self.dims - 2) * m0)
            second += float(self.p @ (density * (f * A) ** 2 * spread).sum(1))
            for total, value in ((kept, applied.side == 0), (weight, w), (clipped, f), (square, f**2)):
                total += (density * m0 * value).sum(1)
        lengths, which = np.unique(self.lengths, return_inverse=True)
        p = _bins(which, self.p)

        def given_length(values: Floats) -> Floats:
            return _bins(which, self.p * values) / p

        band = self.band_acceptance(rule, m)
        rates = [given_length(v) for v in (band, kept, weight, clipped, square)]
        return Moments(g, g_clip, second, lengths, p, p, *rates)

    def sample(self, rng: np.random.Generator, draws: int) -> tuple[Floats, Floats, Floats, Floats]:
        """Draw responses; return their log-ratios, lengths and advantages, (N,) each, and their scores psi (N, D).

        The first column of psi is its component along Delta, the step from the old to the new policy's mean. The second
        is along the part of v that is orthogonal to Delta, where v is the direction that the reward depends on. The
        other columns are noise.
        """
        j = rng.choice(self.lengths.size, draws, p=self.p)
        n, h = self.lengths[j], self.headers[j]
        Z = rng.standard_normal((draws, self.dims))
        across = math.sqrt(1 - self.overlap**2)
        reward = self.overlap * Z[:, 0] + across * Z[:, 1] > ndtri(1 - self.positive[j])
        tau = self.tau[j]
        psi = (h * np.sqrt(n))[:, None] * Z
        psi[:, 0] = 0.0 if self.blind else psi[:, 0] - h**2 * n * self.sigma
        return tau * Z[:, 0] - tau**2 / 2, n, reward - float(self.p @ self.positive), psi


def _nodes(tau: Floats, cuts: tuple[Floats, Floats], panels: int = 16, order: int = 10) -> tuple[Floats, Floats]:
    """Return the points and weights of a quadrature for expectations over a standard normal z, for each tau.

    z determines the log-ratio, S = tau z - tau^2/2. The weights include the density of z. The quadrature is
    Gauss-Legendre on panels between -9 and 2 tau + 9, split at the band's edges (``cuts``, values of z). The upper end
    is that high because expectations of w^2 = e^(2S) are taken: w^2 times the density of z is proportional to a normal
    density with mean 2 tau.
    """
    start, end = np.full_like(tau, -9.0), 9.0 + 2 * tau
    regular = start[:, None] + (end - start)[:, None] * np.linspace(0, 1, panels + 1)
    inner = [np.clip(cut, start, end)[:, None] for cut in cuts]
    edges = np.sort(np.concatenate([regular, *inner], axis=1), axis=1)
    x, w = np.polynomial.legendre.leggauss(order)
    mid, half = (edges[:, 1:] + edges[:, :-1]) / 2, np.diff(edges, axis=1) / 2
    z = (mid[..., None] + half[..., None] * x).reshape(tau.size, -1)
    weight = (half[..., None] * w).reshape(tau.size, -1)
    return z, weight * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)


@dataclass(frozen=True)
class SoftmaxPolicy:
    """A tabular softmax policy (`proofs_check.tools.policy`), whose moments are sums over all its N responses.

    Attributes
    ----------
    S, n, A, mass : arrays (N,)
        Log-ratio, length, advantage and probability under the old policy of each response.
    psi : array (N, P)
        Scores under the new policy, with respect to its P parameters.
    kl : float
        KL(old||new) per token, nats.
    """

    name: str
    S: Floats
    n: Floats
    A: Floats
    mass: Floats
    psi: Floats
    kl: float

    @classmethod
    def of(cls, name: str, bandit: Bandit) -> SoftmaxPolicy:
        """Return the policy of a `Bandit` (a small policy before and after a step), with all its responses and their
        probabilities; none is sampled.
        """
        S, n, mass = bandit.log_ratio, bandit.lengths, bandit.p_old
        return cls(name, S, n, bandit.advantages, mass, bandit.psi, -float(mass @ S) / float(mass @ n))

    def calibrated(self, rule: Rule, m: float, target: float) -> Rule:
        """Return the rule whose range is scaled so that the acceptance of its band, centred at m times the length, is
        as near to ``target`` as the finitely many responses allow.
        """
        excess = standardized_excess(rule, self.S, self.n, self.A, m)
        order = np.argsort(excess)
        excess, mass = excess[order], np.cumsum(self.mass[order])
        k = int(np.argmin(np.abs(mass[:-1] - target)))
        return scaled(rule, float(excess[k] + excess[k + 1]) / 2)

    def moments(self, rule: Rule, m: float) -> Moments:
        """Return the exact moments of the update under the rule, whose band is centred at m times the length, as sums
        over all responses.
        """
        applied = rule.apply(self.S, self.n, self.A, m)
        f, w = applied.clipped_weight, np.exp(self.S)
        lengths, which = np.unique(self.n, return_inverse=True)
        live = self.mass * (self.A != 0)
        p, p_update = _bins(which, self.mass), _bins(which, live)
        rates = [_bins(which, live * v) / p_update for v in (applied.side == 0, w, f, f**2)]
        return Moments(
            (self.mass * self.A * w) @ self.psi,
            (self.mass * self.A * f) @ self.psi,
            float((self.mass * (self.A * f) ** 2) @ (self.psi**2).sum(axis=1)),
            lengths,
            p,
            p_update / p_update.sum(),
            _bins(which, self.mass * applied.in_band) / p,
            *rates,
        )


def _bins(which: np.ndarray, values: Floats) -> Floats:
    """Return the sum of ``values`` (N,) over the entries of each of K lengths, (K,). ``which`` (N,) says which length
    each entry has, as an index from 0.
    """
    return np.asarray(np.bincount(which, values), np.float64)
