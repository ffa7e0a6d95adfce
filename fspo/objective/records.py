"""`Records`: what the clip rule and the correction did to each response; the source of the log and the metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int8, Int64, Shaped
from torch import Tensor

from fspo.gradlog.schema import RATIO_COLUMNS
from fspo.objective.ratios import Mismatch, ratio_tokens
from fspo.rules import Applied, DriftStats, Ratio, token_k3, token_sums


@dataclass(frozen=True)
class Records:
    """For each of the B responses of a microbatch: its log-ratios, its band, whether it was clipped, and its weights.
    The log's rows and the metrics are made of these tensors, which carry no gradient.

    Log-ratios, edges and sums of k3 over a response's tokens are in nats, sums of squares in nats squared. ``lo`` and
    ``hi`` are the edges of the band and ``drift`` its centre per token; ``side`` is -1 if the response was clipped
    below, 0 if not at all, 1 above, 2 at the dual clip. ``clipped_low``, ``clipped_high`` and ``clipped_dual`` count
    clips, 0 or 1 or a number of tokens, and ``count`` is how many there could have been.

    The names of fields about the mismatch begin with the ratio: ``engine`` (E), ``staleness`` (D), ``behaviour`` (D +
    E), ``total`` (S + D + E); ``k2_max`` and ``k3_max`` are the largest k2 = x^2/2 and k3 of a token log-ratio x, and
    ``missing`` counts tokens without a log-probability of the sampler. They are None where no log-probs of the sampler
    are known, and those of E and D also where only D + E is. Without a correction ``correction_*`` are None.

    A rule by token clips each token by itself. For such a rule ``multiplier``, ``weight`` and ``clipped_weight`` are
    means over the response's tokens, ``side`` is 0, and ``lo`` and ``hi`` are NaN. ``band_accept`` is true if every
    token is in its band, and ``capped`` if the exponent of at least one token's weight was held at 20. The fields of a
    correction by token are made in the same way."""

    length: Int64[Tensor, " B"]  # number of unmasked tokens
    log_ratio: Float64[Tensor, " B"]  # S in nats
    sum_sq_log_ratio: Float64[Tensor, " B"]  # sum over the tokens of the squared token log-ratio s_t
    k3_sum: Float64[Tensor, " B"]  # sum over the tokens of k3 = exp(s_t) - 1 - s_t
    side: Int8[Tensor, " B"]  # clipped below (-1), not at all (0), above (1), at the dual clip (2)
    multiplier: Float64[Tensor, " B"]  # multiplier M of the gradient
    weight: Float64[Tensor, " B"]  # importance weight w
    clipped_weight: Float64[Tensor, " B"]  # M w, computed without M, so exact also where log M is held within +-80
    lo: Float64[Tensor, " B"]  # lower edge of the band on S, nats
    hi: Float64[Tensor, " B"]  # upper edge of the band on S, nats
    drift: Float64[Tensor, " B"]  # drift m: centre of the band, nats per token; 0 for a rule without a drift
    band_accept: Bool[Tensor, " B"]  # S lies in the band; under a rule on tokens, every token does
    capped: Bool[Tensor, " B"]  # whether the exponent of the importance weight was held at MAX_EXPONENT
    # How often the rule clipped the response below the band: 0 or 1 for a sequence rule, a number of tokens for a token
    # rule.
    clipped_low: Int64[Tensor, " B"]
    clipped_high: Int64[Tensor, " B"]  # clips above the band: 0 or 1; for a rule by token, a number of tokens
    clipped_dual: Int64[Tensor, " B"]  # clips at the dual clip: 0 or 1; for a rule by token, a number of tokens
    # Largest possible number of clips: 0 if A = 0, else 1 or the number of tokens. A clip share is the sum of the clips
    # of many responses over the sum of their ``count``.
    count: Int64[Tensor, " B"]
    kl: Float64[Tensor, " B"]  # k3 estimate of KL(new||reference) summed over tokens, nats; 0 without a reference
    engine_log_ratio: Float64[Tensor, " B"] | None = None  # E, nats; None if only the sum D + E is known
    engine_sum_sq: Float64[Tensor, " B"] | None = None
    engine_k3_sum: Float64[Tensor, " B"] | None = None
    staleness_log_ratio: Float64[Tensor, " B"] | None = None  # log-ratio D of the policy lag, nats
    behaviour_log_ratio: Float64[Tensor, " B"] | None = None  # rollout-policy log-ratio D + E, nats
    behaviour_sum_sq: Float64[Tensor, " B"] | None = None
    behaviour_k3_sum: Float64[Tensor, " B"] | None = None
    behaviour_k2_max: Float64[Tensor, " B"] | None = None  # largest k2 = (d_t + e_t)^2 / 2 of a token
    behaviour_k3_max: Float64[Tensor, " B"] | None = None
    total_sum_sq: Float64[Tensor, " B"] | None = None  # sum over the tokens of (s_t + d_t + e_t)^2
    total_k3_sum: Float64[Tensor, " B"] | None = None
    missing: Int64[Tensor, " B"] | None = None  # number of tokens for which the sampler gave no log-probability
    correction_lo: Float64[Tensor, " B"] | None = None  # lower edge of the correction's band on E or D + E, nats
    correction_hi: Float64[Tensor, " B"] | None = None
    correction_drift: Float64[Tensor, " B"] | None = None  # centre of the correction's band, nats per token
    correction_side: Int8[Tensor, " B"] | None = None  # where the correction clipped: -1 below, 0 not at all, 1 above
    correction_weight: Float64[Tensor, " B"] | None = None  # factor by which the correction multiplies the gradient
    # whether the exponent of the correction's weight was held at MAX_EXPONENT
    correction_capped: Bool[Tensor, " B"] | None = None
    # how often the correction clipped the response: 0 or 1, for a correction on tokens a number of tokens
    correction_cut: Int64[Tensor, " B"] | None = None
    # Largest possible value of correction_cut: 0 if A = 0, else 1 or, for a correction by token, the number of tokens.
    correction_count: Int64[Tensor, " B"] | None = None

    def to_numpy(self) -> dict[str, Shaped[np.ndarray, " B"]]:
        """Return each field that is not None as a numpy array (B,), by the field's name."""
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: column.cpu().numpy() for name, column in known.items() if column is not None}


def ratio_stats(columns: Mapping[str, Any], on: Ratio = "update") -> DriftStats:
    """Return the drift statistics of a batch for a rule on the ratio ``on`` ("update", "engine" or "behaviour"): sums
    over its tokens of k3 and of squared token log-ratios, and the number of tokens. ``columns`` are the fields of
    `Records` by name, arrays or tensors (B,)."""
    names = RATIO_COLUMNS[on]
    return DriftStats.of(columns[names.k3_sum], columns[names.sum_sq], columns["length"])


def clip_columns(
    applied: Applied,
    mask: Bool[Tensor, "B T"],
    advantages: Float[Tensor, " B"],
    m: Float[Tensor, " B"] | float | None,
) -> dict[str, Shaped[Tensor, " B"]]:
    """Return what a rule did to each response, as fields (B,) of `Records` by name: side, multiplier, weights, edges,
    drift, band_accept, capped, numbers of clips (0 where A = 0). ``applied`` is the rule's result for each response
    (B,), or each token (B, T), and ``m`` the drift of the band, nats per token; None counts as 0."""
    per_token = applied.side.ndim == 2
    active = (advantages != 0) & mask.any(-1)
    active = active[:, None] & mask if per_token else active

    def total(events: Tensor) -> Tensor:
        events = (events & active).to(torch.int64)
        return events.sum(-1) if per_token else events

    def mean(values: Tensor) -> Tensor:
        return token_mean(values, mask) if per_token else values

    zero = torch.zeros(len(mask), dtype=torch.float64, device=mask.device)
    nan = torch.full_like(zero, math.nan)
    return {
        "side": zero.to(torch.int8) if per_token else applied.side,
        "multiplier": mean(applied.multiplier),
        "weight": mean(applied.weight),
        "clipped_weight": mean(applied.clipped_weight),
        "lo": nan if per_token else applied.lo,
        "hi": nan if per_token else applied.hi,
        "drift": zero + (0.0 if m is None else m),
        "band_accept": (applied.in_band | ~mask).all(-1) if per_token else applied.in_band,
        "capped": (applied.capped & mask).any(-1) if per_token else applied.capped,
        "clipped_low": total(applied.side == -1),
        "clipped_high": total(applied.side == 1),
        "clipped_dual": total(applied.side == 2),
        "count": total(torch.ones_like(active)),
    }


def mismatch_columns(
    s: Float64[Tensor, "B T"], mask: Bool[Tensor, "B T"], mismatch: Mismatch | None
) -> dict[str, Shaped[Tensor, " B"]]:
    """Return the fields of `Records`, by name, that describe the mismatch between sampler and trainer; no field if
    ``mismatch`` is None. ``s`` are the token log-ratios of the update, nats.

    For x_t, the token log-ratios of the engine ratio E, if known, and of the rollout-policy ratio D + E: the sums over
    tokens of x_t, x_t^2 and k3(x_t); for D + E also the largest k2 = x_t^2 / 2 and k3. For S + D + E the sums of its
    squares and of k3; the sum D, if E is known; and the field ``missing``."""
    if mismatch is None:
        return {}
    columns = {"missing": mismatch.missing}
    known: tuple[Ratio, ...] = ("behaviour",) if mismatch.engine is None else ("engine", "behaviour")
    for on in known:
        names, tokens = RATIO_COLUMNS[on], ratio_tokens(on, s, mismatch)
        columns[names.k3_sum], columns[names.sum_sq], _ = token_sums(tokens, mask)
        columns[names.log_ratio] = tokens.sum(-1)
    columns["behaviour_k2_max"] = (mismatch.behaviour**2).amax(-1) / 2
    columns["behaviour_k3_max"] = token_k3(mismatch.behaviour).amax(-1)
    columns["total_k3_sum"], columns["total_sum_sq"], _ = token_sums(s + mismatch.behaviour, mask)
    if mismatch.engine is not None:
        columns["staleness_log_ratio"] = (mismatch.behaviour - mismatch.engine).sum(-1)
    return columns


def token_mean(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, " B"]:
    """Return the mean (B,) of values (B, T) over each response's tokens; 0 for a response without a token."""
    return torch.where(mask, values, 0.0).sum(-1) / mask.sum(-1).clamp(min=1)
