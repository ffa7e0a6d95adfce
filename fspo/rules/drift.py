"""The statistics of a minibatch from which a rule's drift follows (docs/theory.md section 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from array_api_compat import array_namespace

from fspo.base.errors import UserError

Array = Any  # a numpy array or a torch tensor
DriftSource = Literal["two_pass", "lagged"]

MAX_EXPONENT = 20.0
"""S is capped here before ``exp`` (docs/theory.md section 2); the gradient is kept, the event counted."""


@dataclass(frozen=True)
class DriftStats:
    """Sums over the tokens of one global minibatch from which a rule's drift follows.

    Attributes
    ----------
    k3_sum : float
        Sum over tokens of ``exp(s_t) - 1 - s_t`` (nats), the k3 estimate of KL(old||new).
    sum_sq : float
        Sum over tokens of ``s_t**2`` (nats squared).
    num_tokens : float
        Number of tokens. With 0 tokens the drift is 0 (a lagged drift before the first minibatch).
    source : {"two_pass", "lagged"}
        Whether the sums come from the same minibatch or from the previous one.
    positive_sum, positive_tokens, negative_sum, negative_tokens : float
        Sum of ``s_t`` (nats) and number of tokens over responses with A > 0 and with A < 0.
    """

    k3_sum: float = 0.0
    sum_sq: float = 0.0
    num_tokens: float = 0.0
    source: DriftSource = "two_pass"
    positive_sum: float = 0.0
    positive_tokens: float = 0.0
    negative_sum: float = 0.0
    negative_tokens: float = 0.0

    @property
    def k3(self) -> float:
        """Mean k3 per token, nats."""
        return self.k3_sum / self.num_tokens if self.num_tokens else 0.0

    @property
    def sigma2(self) -> float:
        """Mean squared log-ratio per token, nats squared."""
        return self.sum_sq / self.num_tokens if self.num_tokens else 0.0

    def signed(self, A: Array) -> Array:
        """Mean log-ratio per token over the responses whose advantage has the sign of A, nats; 0 where A is 0."""
        xp = array_namespace(A)
        up = self.positive_sum / self.positive_tokens if self.positive_tokens else 0.0
        down = self.negative_sum / self.negative_tokens if self.negative_tokens else 0.0
        zero = xp.zeros_like(A)
        return xp.where(A > 0, zero + up, xp.where(A < 0, zero + down, zero))


def drift_stats(
    log_ratios: Array, mask: Array, source: DriftSource = "two_pass", advantages: Array | None = None
) -> DriftStats:
    """Sums over the unmasked tokens of ``log_ratios`` (B, T), as Python floats (not reduced over processes).

    Parameters
    ----------
    advantages : array (B,), optional
        Gives the sums by sign too, which drift ``signed`` needs.

    Raises
    ------
    UserError
        If an unmasked log-ratio is not finite, or the shapes differ.
    """
    if tuple(log_ratios.shape) != tuple(mask.shape):
        raise UserError(f"log_ratios {tuple(log_ratios.shape)} and mask {tuple(mask.shape)} must have one shape")
    k3, sq, count = token_sums(log_ratios, mask)
    sums = float(k3.sum()), float(sq.sum()), float(count.sum())
    if not all(math.isfinite(x) for x in sums):
        raise UserError("a token's log-ratio is not finite: mask it, or look for log-probabilities that are broken")
    xp = array_namespace(log_ratios)
    S = xp.sum(xp.where(mask, log_ratios, xp.zeros_like(log_ratios)), axis=-1)
    by_sign = () if advantages is None else sign_sums(S, count, advantages)
    return DriftStats(*sums, source, *by_sign)


def sign_sums(S: Array, n: Array, A: Array) -> tuple[float, float, float, float]:
    """Sum of S and of n over rows with A > 0, then over those with A < 0 (the order of DriftStats).

    Raises
    ------
    UserError
        If the shapes differ, or an advantage or the S of a row with A != 0 is not finite.
    """
    if not tuple(S.shape) == tuple(n.shape) == tuple(A.shape):
        raise UserError(f"S {tuple(S.shape)}, n {tuple(n.shape)} and A {tuple(A.shape)} must have one shape")
    found = tuple(float(x[rows].sum()) for rows in (A > 0, A < 0) for x in (S, n))
    if not all(math.isfinite(x) for x in (*found, float(A.sum()))):
        raise UserError("S or A is not finite: mask such tokens, or look for rewards or log-probabilities that are NaN")
    return found[0], found[1], found[2], found[3]


def token_sums(log_ratios: Array, mask: Array) -> tuple[Array, Array, Array]:
    """Per response (B,): sum of k3 = exp(s)-1-s (exponent capped), sum of s**2, number of tokens."""
    xp = array_namespace(log_ratios)
    s = xp.where(mask, log_ratios, xp.zeros_like(log_ratios))
    k3 = xp.expm1(capped(xp, s)) - s
    return xp.sum(k3, axis=-1), xp.sum(s * s, axis=-1), xp.sum(xp.astype(mask, s.dtype), axis=-1)


def capped(xp: Any, exponent: Array) -> Array:
    """The exponent, at most MAX_EXPONENT."""
    return xp.where(exponent > MAX_EXPONENT, xp.full_like(exponent, MAX_EXPONENT), exponent)
