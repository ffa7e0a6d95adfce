"""Drift statistics: sums over a minibatch's tokens that give the drift of a rule's band (docs/theory.md section 2)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any, Literal, NamedTuple

from array_api_compat import array_namespace
from jaxtyping import Bool, Float, Real

from fspo.base.errors import UserError
from fspo.rules.clip import Array, token_k3

Drift = Literal["none", "kl", "gaussian", "tilted"]
DriftSource = Literal["two_pass", "lagged"]


class TokenMeans(NamedTuple):
    """Means over a minibatch's tokens of k3 = exp(s_t) - 1 - s_t (nats) and of s_t^2 (``sigma2``, nats squared), s_t
    the token log-ratio; from them `Rule.centre` makes the drift of a band.

    Each mean is one number, or an array (N,) with one number for each response. This class is used where the means are
    known without any tokens, for example from the distribution of a log-ratio model. Where there are tokens,
    `DriftStats` computes the means from sums over them."""

    k3: Float[Array, " ..."] | float  # mean over tokens of k3 = exp(s_t) - 1 - s_t, nats
    sigma2: Float[Array, " ..."] | float  # mean over tokens of s_t^2, nats squared


@dataclass(frozen=True)
class DriftStats:
    """Drift statistics: sums over all tokens of a minibatch. Those of two parts of it are added with ``+``.

    Before the first minibatch there are 0 tokens: every mean, and so the drift, is then 0.

    Attributes
    ----------
    k3_sum : float
        Sum over tokens of ``exp(s_t) - 1 - s_t`` (nats), the k3 estimate of KL(old||new).
    sum_sq : float
        Sum over tokens of ``s_t**2`` (nats squared).
    num_tokens : float
        Number of tokens.
    """

    k3_sum: float = 0.0
    sum_sq: float = 0.0
    num_tokens: float = 0.0

    @staticmethod
    def of(k3_sum: Real[Array, " B"], sum_sq: Real[Array, " B"], n: Real[Array, " B"]) -> DriftStats:
        """Return the sums over B responses of ``k3_sum`` and ``sum_sq``, each response's sums over its tokens of k3 and
        of ``s_t**2``, and of its number of tokens ``n``; all three are (B,)."""
        return DriftStats(*(float(x.sum()) for x in (k3_sum, sum_sq, n)))

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


def _mean(total: float, count: float) -> float:
    return total / count if count else 0.0


DRIFTS: dict[Drift, Callable[[DriftStats | TokenMeans], Any]] = {
    "none": lambda means: 0.0,
    "kl": lambda means: -means.k3,
    "gaussian": lambda means: -means.sigma2 / 2,
    "tilted": lambda means: means.sigma2 / 2,
}
"""The centre of a band per token, nats, by the name of the drift, from means over a minibatch's tokens."""


def drift_stats(log_ratios: Float[Array, "B T"], mask: Bool[Array, "B T"]) -> DriftStats:
    """Compute the drift statistics of token log-ratios (B, T), over the tokens where ``mask`` (B, T) is true.

    Raises UserError if an unmasked log-ratio is not finite, or the shapes differ."""
    if tuple(log_ratios.shape) != tuple(mask.shape):
        raise UserError(f"log_ratios {tuple(log_ratios.shape)} and mask {tuple(mask.shape)} must have one shape")
    k3, sq, count = token_sums(log_ratios, mask)
    if not all(math.isfinite(float(x.sum())) for x in (k3, sq)):
        raise UserError("a token's log-ratio is not finite: mask it, or look for log-probabilities that are broken")
    return DriftStats.of(k3, sq, count)


def token_sums(
    log_ratios: Float[Array, "B T"], mask: Bool[Array, "B T"]
) -> tuple[Float[Array, " B"], Float[Array, " B"], Float[Array, " B"]]:
    """Return for each response, (B,), the sum over its tokens of k3 (`token_k3`), the sum of the squared token
    log-ratios, and the number of tokens, from token log-ratios (B, T), nats."""
    xp = array_namespace(log_ratios)
    s = xp.where(mask, log_ratios, xp.zeros_like(log_ratios))
    return xp.sum(token_k3(s), axis=-1), xp.sum(s * s, axis=-1), xp.sum(xp.astype(mask, s.dtype), axis=-1)
