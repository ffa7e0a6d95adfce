"""Drift statistics: sums over a minibatch's tokens that give the centre of a rule's band (docs/theory.md section 2)."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Literal, NamedTuple

from array_api_compat import array_namespace
from jaxtyping import Bool, Float, Real

from fspo.base.errors import UserError
from fspo.rules.clip import Array, token_k3

DriftSource = Literal["two_pass", "lagged"]


class TokenMeans(NamedTuple):
    """Means over a minibatch's tokens, from which `Rule.centre` makes the centre of a band.

    Each mean is one number, or an array (N,) with one number for each response. This class is used where the means are
    known without any tokens, for example from the law of a log-ratio model. Where there are tokens, `DriftStats`
    computes the means from sums over them.
    """

    k3: Float[Array, " ..."] | float  # mean over tokens of k3 = exp(s_t) - 1 - s_t, nats
    sigma2: Float[Array, " ..."] | float  # mean over tokens of s_t^2, nats squared
    positive: Float[Array, " ..."] | float = 0.0  # mean of s_t over the tokens of responses with A > 0
    negative: Float[Array, " ..."] | float = 0.0  # mean of s_t over the tokens of responses with A < 0


@dataclass(frozen=True)
class DriftStats:
    """Sums over all tokens of one minibatch. The sums of two parts of the minibatch are added with ``+``.

    Before the first minibatch there are 0 tokens: every mean, and so the drift, is then 0.

    Attributes
    ----------
    k3_sum : float
        Sum over tokens of ``exp(s_t) - 1 - s_t`` (nats), the k3 estimate of KL(old||new).
    sum_sq : float
        Sum over tokens of ``s_t**2`` (nats squared).
    num_tokens : float
        Number of tokens.
    positive_sum, positive_tokens, negative_sum, negative_tokens : float
        Sum of ``s_t`` (nats) and number of tokens, over responses with A > 0 (positive) and with A < 0 (negative).
    """

    k3_sum: float = 0.0
    sum_sq: float = 0.0
    num_tokens: float = 0.0
    positive_sum: float = 0.0
    positive_tokens: float = 0.0
    negative_sum: float = 0.0
    negative_tokens: float = 0.0

    @staticmethod
    def of(
        k3_sum: Real[Array, " B"],
        sum_sq: Real[Array, " B"],
        n: Real[Array, " B"],
        S: Real[Array, " B"] | None = None,
        A: Real[Array, " B"] | None = None,
    ) -> DriftStats:
        """Add up the sums of the B responses of this process, as Python floats.

        Parameters
        ----------
        k3_sum, sum_sq, n : arrays (B,)
            Each response's sum of k3 and of ``s_t**2`` over its tokens, and its number of tokens.
        S, A : arrays (B,), optional
            Log-ratios and advantages, for the sums over A > 0 and over A < 0, which drift ``signed`` needs.

        Raises
        ------
        UserError
            If the shapes differ, or an advantage or the S of a row with A != 0 is not finite.
        """
        sums = [float(x.sum()) for x in (k3_sum, sum_sq, n)]
        if S is None or A is None:
            return DriftStats(*sums)
        if not tuple(S.shape) == tuple(n.shape) == tuple(A.shape):
            raise UserError(f"S {tuple(S.shape)}, n {tuple(n.shape)} and A {tuple(A.shape)} must have one shape")
        by_sign = [float(x[rows].sum()) for rows in (A > 0, A < 0) for x in (S, n)]
        if not all(math.isfinite(x) for x in (*by_sign, float(A.sum()))):
            raise UserError(
                "S or A is not finite: mask such tokens, or look for rewards or log-probabilities that are NaN"
            )
        return DriftStats(*sums, *by_sign)

    def __add__(self, other: DriftStats) -> DriftStats:
        """Add the drift statistics of two parts of a minibatch, and return those of both parts together."""
        return DriftStats(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def k3(self) -> float:
        """Mean over tokens of k3 = exp(s_t) - 1 - s_t, nats."""
        return _mean(self.k3_sum, self.num_tokens)

    @property
    def sigma2(self) -> float:
        """Mean over tokens of the squared token log-ratio s_t**2, nats squared."""
        return _mean(self.sum_sq, self.num_tokens)

    @property
    def positive(self) -> float:
        """Mean of the token log-ratios s_t over the tokens of responses with A > 0, nats."""
        return _mean(self.positive_sum, self.positive_tokens)

    @property
    def negative(self) -> float:
        """Mean of the token log-ratios s_t over the tokens of responses with A < 0, nats."""
        return _mean(self.negative_sum, self.negative_tokens)


def _mean(total: float, count: float) -> float:
    return total / count if count else 0.0


def drift_stats(
    log_ratios: Float[Array, "B T"], mask: Bool[Array, "B T"], advantages: Real[Array, " B"] | None = None
) -> DriftStats:
    """Compute the drift statistics of token log-ratios (B, T), over the tokens where ``mask`` (B, T) is true.

    Parameters
    ----------
    advantages : array (B,), optional
        Advantages, for the sums over responses with A > 0 and with A < 0, which drift ``signed`` needs.

    Raises
    ------
    UserError
        If an unmasked log-ratio is not finite, or the shapes differ.
    """
    if tuple(log_ratios.shape) != tuple(mask.shape):
        raise UserError(f"log_ratios {tuple(log_ratios.shape)} and mask {tuple(mask.shape)} must have one shape")
    k3, sq, count = token_sums(log_ratios, mask)
    if not all(math.isfinite(float(x.sum())) for x in (k3, sq)):
        raise UserError("a token's log-ratio is not finite: mask it, or look for log-probabilities that are broken")
    xp = array_namespace(log_ratios)
    S = xp.sum(xp.where(mask, log_ratios, xp.zeros_like(log_ratios)), axis=-1)
    return DriftStats.of(k3, sq, count, S, advantages)


def token_sums(
    log_ratios: Float[Array, "B T"], mask: Bool[Array, "B T"]
) -> tuple[Float[Array, " B"], Float[Array, " B"], Float[Array, " B"]]:
    """Return for each response (B,) the sum of k3 (`token_k3`) over its tokens, the sum of s_t**2, and their number."""
    xp = array_namespace(log_ratios)
    s = xp.where(mask, log_ratios, xp.zeros_like(log_ratios))
    return xp.sum(token_k3(s), axis=-1), xp.sum(s * s, axis=-1), xp.sum(xp.astype(mask, s.dtype), axis=-1)
