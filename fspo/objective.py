"""The training objective: ratio, band, surrogate, aggregation, as pure functions on torch tensors.

``j`` is what is maximised and ``loss = -sum(j) / denominator``. The clip rule decides on detached numbers in
float64; the gradient is then ``M w A grad S`` exactly as docs/theory.md section 1 defines the clipped update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fspo.base.errors import UserError
from fspo.config import ObjectiveConfig
from fspo.rules import Applied, DriftStats, Rule, capped, token_sums


@dataclass(frozen=True)
class Records:
    """One entry for each response (B,), detached: the gradient log and the metrics are made of these columns.

    For token and prefix rules ``multiplier`` and the weights are means over the response's tokens, ``side`` is 0,
    ``lo`` and ``hi`` are NaN, ``band_accept`` says that every token is in its band, and ``capped`` that the exponent
    of at least one token was held at MAX_EXPONENT.
    """

    length: Tensor  # int64, number of unmasked tokens
    log_ratio: Tensor  # float64, S in nats
    sum_sq_log_ratio: Tensor  # float64, sum of s_t^2 over the tokens
    k3_sum: Tensor  # float64, sum of exp(s_t) - 1 - s_t over the tokens
    side: Tensor  # int8: clipped below (-1), not at all (0), above (1), at the dual clip (2)
    multiplier: Tensor  # float64, multiplier M of the gradient
    weight: Tensor  # float64, importance weight w
    clipped_weight: Tensor  # float64, M w; stays exact where the logged M is held at a limit (fspo.rules.Applied)
    lo: Tensor  # float64, lower edge of the band on S, nats
    hi: Tensor  # float64, upper edge of the band on S, nats
    drift: Tensor  # float64, m, centre of the band, nats per token; 0 where the rule has no drift
    band_accept: Tensor  # bool: S lies in the band
    capped: Tensor  # bool: the exponent was held at MAX_EXPONENT
    cut_low: Tensor  # int64, number clipped below the band: 0 or 1 (sequence rules), or the number of tokens
    cut_high: Tensor  # int64, number clipped above the band, counted as in cut_low
    cut_dual: Tensor  # int64, number clipped at the dual clip, counted as in cut_low
    count: Tensor  # int64, denominator of the clip shares: responses or tokens with A != 0
    kl: Tensor  # float64, k3 estimate of KL(new||reference) summed over tokens, nats; 0 without a reference

    def to_numpy(self) -> dict[str, np.ndarray]:
        """Return every field as a numpy array (B,)."""
        return {field.name: getattr(self, field.name).cpu().numpy() for field in fields(self)}

    def drift_stats(self, advantages: Tensor | None = None) -> DriftStats:
        """Return the sums over this batch from which a rule's drift is estimated (not reduced over processes).

        With ``advantages`` (B,) the sums over the responses of each sign of the advantage are given too.
        """
        return DriftStats.of(self.k3_sum, self.sum_sq_log_ratio, self.length, self.log_ratio, advantages)


class ObjectiveOutput(NamedTuple):
    """The scalar loss to minimise and the records of each response."""

    loss: Tensor
    records: Records


def log_ratios(new: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """Return the token log-ratios ``s_t = new - old`` in float32 or better, exactly 0 outside the mask.

    Parameters
    ----------
    new, old : Tensor (B, T)
        Log-probabilities of the tokens, nats. ``old`` is detached. Entries outside the mask, NaN and infinities
        included, reach neither the value nor the gradient.
    mask : Tensor (B, T), bool
        True on response tokens; holes are allowed.

    Returns
    -------
    Tensor (B, T)
        float32, or float64 if one of the inputs is float64.
    """
    dtype = torch.promote_types(torch.promote_types(new.dtype, old.dtype), torch.float32)
    return torch.where(mask, new.to(dtype), 0.0) - torch.where(mask, old.detach().to(dtype), 0.0)


def straight_through(value: Tensor, coefficient: Tensor, log_ratio: Tensor) -> Tensor:
    """Return a tensor that has the value of ``value`` and the gradient ``coefficient * grad(log_ratio)``.

    ``log_ratio - log_ratio.detach()`` is exactly 0 and only carries the gradient, so a large S, a factor 1/L or a low
    precision cannot disturb the value.
    """
    value, coefficient = value.detach().to(log_ratio.dtype), coefficient.detach().to(log_ratio.dtype)
    return value + coefficient * (log_ratio - log_ratio.detach())


def response_log_ratio(s: Tensor) -> Tensor:
    """Sum the masked token log-ratios s_t (B, T) of each response to its log-ratio S (B,), nats."""
    return s.sum(-1)


def surrogate(
    s: Tensor, mask: Tensor, advantages: Tensor, rule: Rule, m: Tensor | float | None = None
) -> tuple[Tensor, Applied]:
    """Return the clipped surrogate terms and the record of what the rule did (docs/theory.md section 2).

    Parameters
    ----------
    s : Tensor (B, T)
        Token log-ratios from `log_ratios`, nats.
    mask : Tensor (B, T), bool
    advantages : Tensor (B,)
    m : float or Tensor (B,), optional
        Centre of the band, nats per token (`Rule.centre`); needed if the rule has a drift.

    Returns
    -------
    terms : Tensor, (B,) for sequence rules, (B, T) for token and prefix rules
        The value is ``w_edge A``, where ``w_edge`` is the weight w inside the band and the weight of the edge where
        the response is clipped. The gradient is ``M w A grad(S)``, S the log-ratio of the response; it is divided by
        L if the weight is geometric. Token rules: ``M_t w_t A grad(s_t)``, w_t = exp(s_t). Prefix rules:
        ``M_t w_t A grad(s_t)``, w_t = exp(S_t): the per-decision importance sampling theorem (Precup, Sutton and
        Singh 2000) weights the score of token t, and of no other token, by the ratio of the tokens up to t.
    applied : Applied
        float64 tensors of the same shape.
    """
    log_ratio, counts = s.detach().to(torch.float64), mask.to(torch.float64)
    A = torch.where(mask.any(-1), advantages.detach().to(torch.float64), 0.0)  # a row without tokens gets no gradient
    if rule.level == "sequence":
        moved = response_log_ratio(s)  # the log-ratio that keeps its gradient
        n = counts.sum(-1).clamp(min=1)
        S = response_log_ratio(log_ratio)
    else:
        moved, A = s, A[:, None]
        n = torch.ones_like(log_ratio) if rule.level == "token" else counts.cumsum(-1).clamp(min=1)
        S = log_ratio if rule.level == "token" else log_ratio.cumsum(-1)
    applied = rule.apply(S, n, A, m)
    if rule.weight == "geometric":
        moved = moved / n.to(moved.dtype)
    return straight_through(applied.edge_weight * A, applied.clipped_weight * A, moved), applied


def kl_terms(new: Tensor, ref: Tensor, mask: Tensor) -> Tensor:
    """Return the k3 estimate of KL(new||reference) for each token (B, T), nats; 0 outside the mask.

    The exponent is held at MAX_EXPONENT, and its gradient is kept there.
    """
    x = -log_ratios(new, ref, mask)
    x_capped = x + (capped(x.detach()) - x.detach())
    return torch.expm1(x_capped) - x


def aggregate(terms: Tensor, mask: Tensor, config: ObjectiveConfig, denominator: float | None = None) -> Tensor:
    """Sum the terms of a batch and divide by the denominator; return the objective as a 0-d tensor.

    ========== ============================= =================================================================
    name       formula                       length
    ========== ============================= =================================================================
    response   mean_i J_i                    fair for sequence rules: each response counts once. Token terms
                                             are summed, ``J_i = sum_t j_it``: long responses move more.
    sequence   mean_i (1/L_i) sum_t j_it     each response counts once; a token of a long response counts less
    token      sum_it j_it / sum_i L_i       a response counts in proportion to its length
    constant   sum_it j_it / (B C)           the weights of "token", with a denominator that no length can change
    ========== ============================= =================================================================

    A sequence rule has one term J_i for each response, and each of its tokens gets that term (j_it = J_i). Then
    "sequence" equals "response", while "token" and "constant" weight responses by their length, which undoes a band
    that is fair in length.

    Parameters
    ----------
    terms : Tensor (B,) or (B, T)
    mask : Tensor (B, T), bool
        Rows without a token count in no sum, so padding rows change nothing.
    denominator : float, optional
        Sum of `denominator_for` over all microbatches and processes of the update. By default that of this batch.
    """
    lengths = mask.sum(-1)
    by_token = config.aggregation in ("token", "constant")
    if terms.ndim == 1:
        total = torch.where(lengths > 0, terms * lengths if by_token else terms, 0.0).sum()
    else:
        rows = torch.where(mask, terms, 0.0).sum(-1)
        total = (rows / lengths.clamp(min=1) if config.aggregation == "sequence" else rows).sum()
    if denominator is None:
        denominator = denominator_for(config, mask)
    return total / (denominator or 1.0)  # an empty batch has total 0


def denominator_for(config: ObjectiveConfig, mask: Tensor) -> float:
    """Return what this batch adds to the denominator of its update; sum it over microbatches and processes."""
    if config.aggregation == "token":
        return float(mask.sum())
    return float(mask.any(-1).sum()) * (config.constant_length or 1)


def objective(
    new: Tensor,
    old: Tensor,
    mask: Tensor,
    advantages: Tensor,
    rule: Rule,
    config: ObjectiveConfig | None = None,
    *,
    m: Tensor | float | None = None,
    denominator: float | None = None,
    ref: Tensor | None = None,
) -> ObjectiveOutput:
    """Return the loss of one microbatch and the records of its responses.

    Parameters
    ----------
    new, old : Tensor (B, T)
        Log-probabilities under the current and the behaviour parameters, nats, from the same code path.
    mask : Tensor (B, T), bool
        True on response tokens; holes allowed.
    advantages : Tensor (B,)
    rule : Rule
    config : ObjectiveConfig, optional
    m : float or Tensor (B,), optional
        Centre of the band, nats per token; needed if the rule has a drift. It is ``rule.centre(stats, advantages)``,
        where ``stats`` are the sums over the minibatch of all processes: `Records.drift_stats` of a first pass, added
        up with ``+`` over microbatches and processes.
    denominator : float, optional
        See `aggregate`. If data parallelism averages gradients, multiply the loss by the number of processes.
    ref : Tensor (B, T), optional
        Log-probabilities under the reference model, nats; needed if ``config.kl_coef > 0``. Every rule has one KL
        term for each token, aggregated by the same formula: "response" sums it over the response's tokens.

    Returns
    -------
    ObjectiveOutput

    Raises
    ------
    UserError
        For shapes that do not fit, a missing reference, or a missing centre.
    """
    config = config or ObjectiveConfig()
    _check(new, old, mask, advantages, ref, config)
    mask = mask.to(torch.bool)
    s = log_ratios(new, old, mask)
    terms, applied = surrogate(s, mask, advantages, rule, m)
    loss = -aggregate(terms, mask, config, denominator)
    kl = None
    if ref is not None:
        kl = kl_terms(new, ref, mask)
        if config.kl_coef > 0:
            loss = loss + config.kl_coef * aggregate(kl, mask, config, denominator)
    return ObjectiveOutput(loss, _records(s.detach().to(torch.float64), mask, advantages.detach(), applied, m, kl))


def _records(
    s: Tensor, mask: Tensor, advantages: Tensor, applied: Applied, m: Tensor | float | None, kl: Tensor | None
) -> Records:
    k3_sum, sum_sq, _ = token_sums(s, mask)
    length = mask.sum(-1)
    active = (advantages != 0) & (length > 0)
    per_token = applied.side.ndim == 2
    active = active[:, None] & mask if per_token else active

    def total(events: Tensor) -> Tensor:
        events = (events & active).to(torch.int64)
        return events.sum(-1) if per_token else events

    def mean(values: Tensor) -> Tensor:
        return torch.where(mask, values, 0.0).sum(-1) / length.clamp(min=1) if per_token else values

    side, nan = applied.side, torch.full_like(k3_sum, math.nan)
    return Records(
        length=length,
        log_ratio=response_log_ratio(s),
        sum_sq_log_ratio=sum_sq,
        k3_sum=k3_sum,
        side=torch.zeros_like(length, dtype=torch.int8) if per_token else side,
        multiplier=mean(applied.multiplier),
        weight=mean(applied.weight),
        clipped_weight=mean(applied.clipped_weight),
        lo=nan if per_token else applied.lo,
        hi=nan if per_token else applied.hi,
        drift=torch.zeros_like(k3_sum) + (0.0 if m is None else m),
        band_accept=(applied.in_band | ~mask).all(-1) if per_token else applied.in_band,
        capped=(applied.capped & mask).any(-1) if per_token else applied.capped,
        cut_low=total(side == -1),
        cut_high=total(side == 1),
        cut_dual=total(side == 2),
        count=total(torch.ones_like(active)),
        kl=torch.zeros_like(k3_sum) if kl is None else kl.detach().to(torch.float64).sum(-1),
    )


def _check(
    new: Tensor, old: Tensor, mask: Tensor, advantages: Tensor, ref: Tensor | None, config: ObjectiveConfig
) -> None:
    shape = tuple(new.shape)
    named = {"old": old, "mask": mask} | ({} if ref is None else {"ref": ref})
    wrong = {name: tuple(x.shape) for name, x in named.items() if tuple(x.shape) != shape}
    if len(shape) != 2 or wrong or tuple(advantages.shape) != shape[:1]:
        raise UserError(
            f"objective: new is {shape}, advantages {tuple(advantages.shape)}, others {wrong}; pass new, old, mask "
            "(and ref) as (responses, tokens) and advantages as (responses,)"
        )
    if config.kl_coef > 0 and ref is None:
        raise UserError("kl_coef > 0 needs ref, the reference model's log-probs (B, T); pass it or set kl_coef=0")
