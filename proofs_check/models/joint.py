"""Models that draw more than S: lengths whose law an update shifts (T5), or advantages on which the drift of S depends
(T9).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from fspo.base.errors import UserError
from fspo.theory import Floats
from proofs_check.models.base import check_moments, check_open, checked_lengths


@dataclass(frozen=True)
class ShiftedLengths:
    """A policy of independent tokens before and after an update that changes the policy's probability of stopping (T5).

    At each token the policy stops with a constant probability, else it emits one of V symbols. S is computed from these
    probabilities, so T5 holds exactly: E_old[exp S | L] is p_new(L)/p_old(L), the ratio of the probabilities of the
    length L, and not 1.

    Parameters
    ----------
    stop_old, stop_new : float in (0, 1)
        Probability of ending the response at a token; lengths are geometric.
    old, new : tuples of V floats > 0
        Probabilities of the symbols given that the response goes on; each sums to 1.
    """

    stop_old: float = 0.02
    stop_new: float = 0.022
    old: tuple[float, ...] = (0.5, 0.3, 0.2)
    new: tuple[float, ...] = (0.52, 0.29, 0.19)

    def __post_init__(self) -> None:
        for name in ("stop_old", "stop_new"):
            check_open(name, getattr(self, name), 0, 1, "it is the probability of ending at a token")
        if len(self.old) != len(self.new) or not self.old:
            raise UserError("old and new must give one probability to each of the same symbols")
        for name, law in (("old", self.old), ("new", self.new)):
            if not (min(law) > 0 and abs(sum(law) - 1) < 1e-9):
                raise UserError(f"{name}={law} must be probabilities > 0 that sum to 1")

    @property
    def _symbol_ratios(self) -> Floats:
        return np.log(self.new) - np.log(self.old)

    @property
    def _going_on(self) -> float:
        return math.log1p(-self.stop_new) - math.log1p(-self.stop_old)

    @property
    def _stopping(self) -> float:
        return math.log(self.stop_new / self.stop_old)

    @property
    def mu(self) -> float:
        """Mean log-ratio of every token but the last, nats. The mean of S is mu L plus a constant of the last token."""
        return float(np.array(self.old) @ self._symbol_ratios) + self._going_on

    @property
    def sigma(self) -> float:
        """Standard deviation of the log-ratio of every token but the last, nats. Given L, the last token always ends
        the response, so its log-ratio is not random.
        """
        law, ratios = np.array(self.old), self._symbol_ratios
        return math.sqrt(float(law @ (ratios - law @ ratios) ** 2))

    def mean(self, lengths: ArrayLike) -> Floats:
        """Return E_old[S | L], nats, by a formula."""
        n = checked_lengths(lengths, whole=True)
        return np.broadcast_to(self.mu * (n - 1) + self._stopping, np.shape(lengths))

    def variance(self, lengths: ArrayLike) -> Floats:
        """Return Var_old[S | L], nats squared, by a formula."""
        n = checked_lengths(lengths, whole=True)
        return np.broadcast_to(self.sigma**2 * (n - 1), np.shape(lengths))

    def sample_lengths(self, rng: np.random.Generator, draws: int, *, new: bool = False) -> Floats:
        """Draw the lengths of ``draws`` responses of the old policy, or of the new one if ``new``, (draws,)."""
        return rng.geometric(self.stop_new if new else self.stop_old, draws).astype(np.float64)

    def sample(self, rng: np.random.Generator, lengths: ArrayLike) -> Floats:
        """Draw one log-ratio S for each length under the old policy, by drawing how often each symbol occurs."""
        n = np.broadcast_to(checked_lengths(lengths, whole=True), np.shape(lengths))
        counts = rng.multinomial(n.astype(np.int64) - 1, np.array(self.old) / sum(self.old))
        return counts @ self._symbol_ratios + (n - 1) * self._going_on + self._stopping


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

    def __post_init__(self) -> None:
        check_moments(self.mu, self.sigma)
        check_open("positive", self.positive, 0, 1, "it is the share of A > 0")
        check_open("l0", self.l0, 0, math.inf, "it is the length at which the share is `positive`")
        if not (math.isfinite(self.pull) and math.isfinite(self.trend)):
            raise UserError("pull and trend must be finite; 0 switches them off")

    def positive_share(self, lengths: ArrayLike) -> Floats:
        """Return P(A > 0 | L) in the shape of ``lengths``."""
        n = checked_lengths(lengths)
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
        n = checked_lengths(lengths)
        A = np.where(rng.random(np.shape(lengths)) < self.positive_share(lengths), 1.0, -1.0)
        S = rng.standard_normal(np.shape(lengths)) * (self.sigma * np.sqrt(n))
        return S + (self.mu + self.pull * A) * n, A

    def sample(self, rng: np.random.Generator, lengths: ArrayLike) -> Floats:
        """Draw one log-ratio S for each length, without the advantage."""
        return self.sample_pair(rng, lengths)[0]
