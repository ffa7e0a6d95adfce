"""The training objective: ratio, band, surrogate, aggregation, as pure functions on torch tensors.

``j`` is what is maximised and ``loss = -sum(j) / denominator``. The clip rule decides on detached numbers in
float64; the gradient is then ``M w A grad S`` exactly as docs/theory.md section 1 defines the clipped update. Where
the log-probs of the program that sampled are known, a correction multiplies the gradient of token t by a factor f_t.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int8, Int64, Shaped
from torch import Tensor

from fspo.base.errors import UserError
from fspo.config import ObjectiveConfig
from fspo.gradlog.schema import RATIO_COLUMNS
from fspo.rules import Applied, DriftStats, Ratio, Rule, capped, check_ratios, token_sums


class Mismatch(NamedTuple):
    """How far the law that drew the tokens is from the old policy: token log-ratios (B, T), float64, nats, detached.

    The log-ratios are 0 outside the mask.

    Attributes
    ----------
    behaviour : Tensor (B, T)
        d_t + e_t, old less the sampler's log-probability.
    engine : Tensor (B, T) or None
        e_t, the sampling weights' log-probability by the trainer less the sampler's; None if it is unknown.
    missing : Tensor (B,), int64
        Number of tokens whose log-probability the sampler did not give (NaN or infinite). Their e_t is taken as 0.
    """

    behaviour: Float64[Tensor, "B T"]
    engine: Float64[Tensor, "B T"] | None
    missing: Int64[Tensor, " B"]

    @classmethod
    def of(
        cls,
        old: Float[Tensor, "B T"],
        sampler: Float[Tensor, "B T"],
        mask: Shaped[Tensor, "B T"],
        version: Float[Tensor, "B T"] | None = None,
    ) -> Mismatch:
        """Make the `Mismatch` between the old log-probs ``old`` and those of ``sampler``, both (B, T), nats.

        Parameters
        ----------
        version : Tensor (B, T), optional
            Log-probs that the trainer computes with the weights that sampled: ``old`` if these are the old weights.
            Without them only the sum of staleness and engine log-ratio is known.
        """
        mask = mask.to(torch.bool)
        old, sampler = old.detach().double(), sampler.detach().double()
        same = old if version is None else version.detach().double()
        known = torch.isfinite(sampler)
        sampler = torch.where(known, sampler, same)
        behaviour = torch.where(mask, old - sampler, 0.0)
        engine = None if version is None else torch.where(mask, same - sampler, 0.0)
        return cls(behaviour, engine, (mask & ~known).sum(-1))


def ratio_tokens(on: Ratio, s: Float[Tensor, "B T"], mismatch: Mismatch | None) -> Float64[Tensor, "B T"]:
    """Return the token log-ratios (B, T) of the ratio ``on``, float64, detached.

    ``s`` are the token log-ratios of the update (new less old); the other ratios also need ``mismatch``.

    Raises
    ------
    UserError
        If the ratio needs log-probs that are not known.
    """
    s = s.detach().to(torch.float64)
    if on == "update":
        return s
    if mismatch is None:
        raise UserError(
            f"the ratio {on!r} needs the sampler's log-probs: pass mismatch=Mismatch.of(old, sampler, mask)"
        )
    if on == "engine" and mismatch.engine is None:
        raise UserError(
            "the ratio 'engine' needs the log-probs of the weights that sampled: pass Mismatch.of(..., version=...), "
            "or take on='behaviour'"
        )
    return {"engine": mismatch.engine, "behaviour": mismatch.behaviour, "total": s + mismatch.behaviour}[on]


def token_columns(
    new: Float[Tensor, "B T"],
    old: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    mismatch: Mismatch | None,
) -> dict[str, list[Float[np.ndarray, " ..."]]]:
    """Return the gradient log's columns of token log-ratios, an array float32 (L,) for each of B responses.

    ``new`` and ``old`` are log-probs (B, T), nats. Without ``mismatch`` only s_t is returned.
    """
    ratios = {"token_log_ratio": log_ratios(new.detach(), old, mask)}
    if mismatch is not None:
        ratios["token_behaviour_log_ratio"] = mismatch.behaviour
    return {
        name: [row[kept].float().cpu().numpy() for row, kept in zip(x, mask, strict=True)] for name, x in ratios.items()
    }


def ratio_sum(columns: Mapping[str, Any], on: Ratio) -> Any:
    """Return the log-ratio named ``on`` of each response (B,), nats, from the columns of `Records` (B,)."""
    if on == "total":
        return columns["log_ratio"] + columns["behaviour_log_ratio"]
    return columns[RATIO_COLUMNS[on].log_ratio]


def ratio_stats(columns: Mapping[str, Any], on: Ratio, advantages: Any = None) -> DriftStats:
    """Return sums over a batch's tokens from which a rule on the ratio ``on`` estimates its drift.

    ``columns`` are the columns of `Records`, arrays or tensors (B,). With ``advantages`` (B,) the log-ratios of
    responses with A > 0 and of those with A < 0 are also summed apart, as drift ``signed`` needs.
    """
    k3_sum, sum_sq = columns[RATIO_COLUMNS[on].k3_sum], columns[RATIO_COLUMNS[on].sum_sq]
    return DriftStats.of(k3_sum, sum_sq, columns["length"], ratio_sum(columns, on), advantages)


@dataclass(frozen=True)
class Records:
    """For each of the B responses of a microbatch: its log-ratios, its band, whether it was clipped, and its weights.

    The log's rows and the metrics are made of these tensors, which carry no gradient.

    Columns of the mismatch are None where the sampler's log-probs are unknown. ``correction_*`` are None without a
    correction. For token and prefix rules ``multiplier`` and the weights are means over the response's tokens, ``side``
    is 0, ``lo`` and ``hi`` are NaN, ``band_accept`` says that every token is in its band, and ``capped`` that the
    exponent of at least one token was held at MAX_EXPONENT. The same holds for a correction by token or prefix.
    """

    length: Int64[Tensor, " B"]  # number of unmasked tokens
    log_ratio: Float64[Tensor, " B"]  # S in nats
    sum_sq_log_ratio: Float64[Tensor, " B"]  # sum over the tokens of the squared token log-ratio s_t
    k3_sum: Float64[Tensor, " B"]  # sum over the tokens of k3 = exp(s_t) - 1 - s_t
    side: Int8[Tensor, " B"]  # clipped below (-1), not at all (0), above (1), at the dual clip (2)
    multiplier: Float64[Tensor, " B"]  # multiplier M of the gradient
    weight: Float64[Tensor, " B"]  # importance weight w
    clipped_weight: Float64[Tensor, " B"]  # M w; exact also where the logged M is held at a limit (fspo.rules.Applied)
    lo: Float64[Tensor, " B"]  # lower edge of the band on S, nats
    hi: Float64[Tensor, " B"]  # upper edge of the band on S, nats
    drift: Float64[Tensor, " B"]  # m, centre of the band, nats per token; 0 where the rule has no drift
    band_accept: Bool[Tensor, " B"]  # S lies in the band
    capped: Bool[Tensor, " B"]  # the exponent was held at MAX_EXPONENT
    cut_low: Int64[Tensor, " B"]  # number clipped below the band: 0 or 1 (sequence rules), or the number of tokens
    cut_high: Int64[Tensor, " B"]  # number clipped above the band, counted as in cut_low
    cut_dual: Int64[Tensor, " B"]  # number clipped at the dual clip, counted as in cut_low
    count: Int64[Tensor, " B"]  # number of responses (or tokens) with A != 0, by which the clip shares are divided
    kl: Float64[Tensor, " B"]  # k3 estimate of KL(new||reference) summed over tokens, nats; 0 without a reference
    engine_log_ratio: Float64[Tensor, " B"] | None = None  # engine log-ratio E, nats; None if the staleness is unknown
    engine_sum_sq: Float64[Tensor, " B"] | None = None
    engine_k3_sum: Float64[Tensor, " B"] | None = None
    staleness_log_ratio: Float64[Tensor, " B"] | None = None  # staleness log-ratio D, nats
    behaviour_log_ratio: Float64[Tensor, " B"] | None = None  # behaviour log-ratio D + E, nats
    behaviour_sum_sq: Float64[Tensor, " B"] | None = None
    behaviour_k3_sum: Float64[Tensor, " B"] | None = None
    # sum over tokens of the squares of the total ratio's token log-ratios
    total_sum_sq: Float64[Tensor, " B"] | None = None
    total_k3_sum: Float64[Tensor, " B"] | None = None
    missing: Int64[Tensor, " B"] | None = None  # number of tokens for which the sampler gave no log-probability
    correction_lo: Float64[Tensor, " B"] | None = None  # lower edge of the correction's band on its ratio, nats
    correction_hi: Float64[Tensor, " B"] | None = None
    correction_drift: Float64[Tensor, " B"] | None = None  # centre of the correction's band, nats per token
    correction_side: Int8[Tensor, " B"] | None = None  # where the correction cut the response, coded as ``side``
    correction_weight: Float64[Tensor, " B"] | None = None  # factor by which the correction multiplies the gradient
    # whether the exponent of the correction's weight was held at MAX_EXPONENT
    correction_capped: Bool[Tensor, " B"] | None = None
    correction_cut: Int64[Tensor, " B"] | None = None  # number of cuts by the correction, counted as in cut_low
    correction_count: Int64[Tensor, " B"] | None = None  # number of responses (or tokens) with A != 0

    def to_numpy(self) -> dict[str, Shaped[np.ndarray, " B"]]:
        """Return each field that is not None as a numpy array (B,), by name."""
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: column.cpu().numpy() for name, column in known.items() if column is not None}

    def drift_stats(self, advantages: Float[Tensor, " B"] | None = None, on: Ratio = "update") -> DriftStats:
        """Return sums over this batch's tokens from which a rule on the ratio ``on`` estimates its drift."""
        return ratio_stats(vars(self), on, advantages)


class ObjectiveOutput(NamedTuple):
    """The result of `objective`: the scalar loss to minimise, and the `Records` of the responses."""

    loss: Float[Tensor, ""]
    records: Records


def log_ratios(new: Float[Tensor, "B T"], old: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
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


def straight_through(
    value: Float[Tensor, "*rows"], coefficient: Float[Tensor, "*rows"], log_ratio: Float[Tensor, "*rows"]
) -> Float[Tensor, "*rows"]:
    """Return a tensor that has the value of ``value`` and the gradient ``coefficient * grad(log_ratio)``.

    ``log_ratio - log_ratio.detach()`` is exactly 0 and only carries the gradient, so a large S, a factor 1/L or a low
    precision cannot disturb the value.
    """
    value, coefficient = value.detach().to(log_ratio.dtype), coefficient.detach().to(log_ratio.dtype)
    return value + coefficient * (log_ratio - log_ratio.detach())


def response_log_ratio(s: Float[Tensor, "B T"]) -> Float[Tensor, " B"]:
    """Sum the masked token log-ratios s_t (B, T) of each response to its log-ratio S (B,), nats."""
    return s.sum(-1)


def apply_rule(
    rule: Rule,
    log_ratio: Float64[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    advantages: Float[Tensor, " B"],
    m: Float[Tensor, " B"] | float | None = None,
) -> Applied:
    """Clip responses, tokens or prefixes, whichever the rule's band is on.

    Parameters
    ----------
    log_ratio : Tensor (B, T)
        Token log-ratios of the rule's ratio, float64, nats; 0 outside the mask.
    mask : Tensor (B, T), bool
    advantages : Tensor (B,)
    m : float or Tensor (B,), optional
        Centre of the band, nats per token (`Rule.centre`); needed if the rule has a drift.

    Returns
    -------
    Applied
        float64 tensors, (B,) for sequence rules, (B, T) for token and prefix rules.
    """
    A = _with_tokens(advantages, mask)
    if rule.level == "sequence":
        return rule.apply(response_log_ratio(log_ratio), mask.sum(-1).clamp(min=1), A, m)
    if rule.level == "token":
        return rule.apply(log_ratio, torch.ones_like(log_ratio), A[:, None], m)
    return rule.apply(log_ratio.cumsum(-1), mask.cumsum(-1).clamp(min=1), A[:, None], m)


def surrogate(
    s: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    advantages: Float[Tensor, " B"],
    rule: Rule,
    m: Float[Tensor, " B"] | float | None = None,
    *,
    mismatch: Mismatch | None = None,
    factor: Float[Tensor, " B"] | Float[Tensor, "B T"] | None = None,
) -> tuple[Float[Tensor, " B"] | Float[Tensor, "B T"], Applied]:
    """Return the clipped surrogate terms and the record of what the rule did (docs/theory.md section 2).

    Parameters
    ----------
    s : Tensor (B, T)
        Token log-ratios from `log_ratios`, nats.
    mask : Tensor (B, T), bool
    advantages : Tensor (B,)
    m : float or Tensor (B,), optional
        Centre of the band, nats per token (`Rule.centre`); needed if the rule has a drift.
    mismatch : Mismatch, optional
        Needed by a rule on the total ratio.
    factor : Tensor (B,) or (B, T), optional
        Factor f that a correction leaves each response or each token.

    Returns
    -------
    terms : Tensor, (B,) for sequence rules, (B, T) for token and prefix rules
        The value is ``w_edge A``, where ``w_edge`` is the weight w inside the band and the weight of the edge where
        the response is clipped. The gradient is ``M w A grad(S)``, S the log-ratio of the response; it is divided by
        L if the weight is geometric. Token rules: ``M_t w_t A grad(s_t)``, w_t = exp(s_t). Prefix rules:
        ``M_t w_t A grad(s_t)``, w_t = exp(S_t): the per-decision importance sampling theorem (Precup, Sutton and
        Singh 2000) weights the score of token t, and of no other token, by the ratio of the tokens up to t. A rule on
        the total ratio takes its weights from that ratio. A factor multiplies value and gradient: ``f_t grad(s_t)``
        stands for ``grad(s_t)``, also in ``grad(S) = sum_t grad(s_t)``, whose value gets the mean of f_t over the
        response's tokens.
    applied : Applied
        float64 tensors of the same shape.
    """
    applied = apply_rule(rule, ratio_tokens(rule.on, s, mismatch), mask, advantages, m)
    A, moved, edge_weight = _with_tokens(advantages, mask), s, applied.edge_weight
    if factor is not None:
        of_tokens = factor if factor.ndim == 2 else factor[:, None]
        moved = of_tokens.to(s.dtype) * s
        of_response = _token_mean(factor, mask) if factor.ndim == 2 else factor
        edge_weight = edge_weight * (of_response if rule.level == "sequence" else of_tokens)
    if rule.level == "sequence":
        moved = response_log_ratio(moved)
        if rule.weight == "geometric":
            moved = moved / mask.sum(-1).clamp(min=1).to(moved.dtype)
    else:
        A = A[:, None]
    return straight_through(edge_weight * A, applied.clipped_weight * A, moved), applied


def _with_tokens(advantages: Float[Tensor, " B"], mask: Bool[Tensor, "B T"]) -> Float64[Tensor, " B"]:
    """Return the advantages (B,), float64, set to 0 for responses without a token."""
    return torch.where(mask.any(-1), advantages.detach().to(torch.float64), 0.0)


def _token_mean(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, " B"]:
    """Return the mean (B,) of values (B, T) over each response's tokens."""
    return torch.where(mask, values, 0.0).sum(-1) / mask.sum(-1).clamp(min=1)


def kl_terms(new: Float[Tensor, "B T"], ref: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return the k3 estimate of KL(new||reference) for each token (B, T), nats; 0 outside the mask.

    The exponent is held at MAX_EXPONENT, and its gradient is kept there.
    """
    x = -log_ratios(new, ref, mask)
    x_capped = x + (capped(x.detach()) - x.detach())
    return torch.expm1(x_capped) - x


def aggregate(
    terms: Float[Tensor, " B"] | Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    config: ObjectiveConfig,
    denominator: float | None = None,
) -> Float[Tensor, ""]:
    """Sum the surrogate terms of a batch and divide by the denominator; return the objective as a 0-d tensor.

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
    return total / (denominator or 1.0)  # an empty batch has denominator 0; dividing its total, 0, by 1 gives 0


def denominator_for(config: ObjectiveConfig, mask: Shaped[Tensor, "B T"]) -> float:
    """Return this batch's part of the number by which `aggregate` divides the loss of an update.

    It counts responses, tokens, or responses times a constant length C. Sum it over microbatches and processes.
    """
    if config.aggregation == "token":
        return float(mask.sum())
    return float(mask.any(-1).sum()) * (config.constant_length or 1)


def objective(
    new: Float[Tensor, "B T"],
    old: Float[Tensor, "B T"],
    mask: Shaped[Tensor, "B T"],
    advantages: Float[Tensor, " B"],
    rule: Rule,
    config: ObjectiveConfig | None = None,
    *,
    m: Float[Tensor, " B"] | float | None = None,
    denominator: float | None = None,
    ref: Float[Tensor, "B T"] | None = None,
    mismatch: Mismatch | None = None,
    correction: Rule | None = None,
    correction_m: Float[Tensor, " B"] | float | None = None,
    factor: Float[Tensor, " B"] | Float[Tensor, "B T"] | None = None,
) -> ObjectiveOutput:
    """Return the loss of one microbatch and the records of its responses.

    Parameters
    ----------
    new, old : Tensor (B, T)
        Log-probabilities under the current parameters and under those at the beginning of the rollout's updates, nats,
        from the same code path.
    mask : Tensor (B, T), bool
        True on response tokens; holes allowed.
    advantages : Tensor (B,)
    rule : Rule
        The clip rule, on the ratio of the update, or on the total ratio ("bypass": the sampler's log-probs take the
        place of the old ones in the band and in the weight).
    config : ObjectiveConfig, optional
    m : float or Tensor (B,), optional
        Centre of the band, nats per token; needed if the rule has a drift. It is ``rule.centre(stats, advantages)``,
        where ``stats`` are the sums over the minibatch of all processes: `Records.drift_stats` of a first pass, added
        up with ``+`` over microbatches and processes.
    denominator : float, optional
        See `aggregate`. If data parallelism averages gradients, multiply the loss by the number of processes.
    ref : Tensor (B, T), optional
        Log-probabilities under the reference model, nats; needed if ``config.kl_coef > 0``. Every rule has one KL
        term for each token, aggregated by the same formula: "response" sums it over the response's tokens. No
        correction weighs it.
    mismatch : Mismatch, optional
        How far the sampler's law is from the old policy; needed by a correction and by a rule on the total ratio.
    correction : Rule, optional
        A rule on the engine or the behaviour ratio. The factor M w that it leaves each response, token or prefix
        multiplies value and gradient.
    correction_m : float or Tensor (B,), optional
        Centre of the correction's band, nats per token; needed if the correction has a drift. It is
        ``correction.centre(stats, advantages)`` with the sums of the correction's own ratio.
    factor : Tensor (B,) or (B, T), optional
        Factor of each response or each token, computed elsewhere, in the place of a correction's.

    Returns
    -------
    ObjectiveOutput

    Raises
    ------
    UserError
        For shapes that do not fit, a missing reference, centre or mismatch, or rules that cannot go together.
    """
    config = config or ObjectiveConfig()
    _check(new, old, mask, advantages, ref, config, mismatch, factor)
    check_ratios(rule, correction)
    if factor is not None and correction is not None:
        raise UserError(f"objective: factor and correction {correction.label!r} would both weigh a response: pass one")
    mask = mask.to(torch.bool)
    s, advantages = log_ratios(new, old, mask), advantages.detach()
    corrected = None
    if factor is not None:
        factor = factor.detach().double()
        factor = torch.where(mask, factor, 0.0) if factor.ndim == 2 else factor
    if correction is not None:
        tokens = ratio_tokens(correction.on, s, mismatch)
        corrected = apply_rule(correction, tokens, mask, advantages, correction_m)
        factor = corrected.clipped_weight
    terms, applied = surrogate(s, mask, advantages, rule, m, mismatch=mismatch, factor=factor)
    loss = -aggregate(terms, mask, config, denominator)
    kl = None
    if ref is not None:
        kl = kl_terms(new, ref, mask)
        if config.kl_coef > 0:
            loss = loss + config.kl_coef * aggregate(kl, mask, config, denominator)
    s = s.detach().to(torch.float64)
    columns = _clip_columns(applied, mask, advantages, m) | _mismatch_columns(s, mask, mismatch)
    if corrected is not None:
        found = _clip_columns(corrected, mask, advantages, correction_m)
        columns |= {f"correction_{name}": found[name] for name in ("lo", "hi", "drift", "side", "capped", "count")}
        columns["correction_weight"] = found["clipped_weight"]
        columns["correction_cut"] = found["cut_low"] + found["cut_high"] + found["cut_dual"]
    k3_sum, sum_sq, _ = token_sums(s, mask)
    records = Records(
        length=mask.sum(-1),
        log_ratio=response_log_ratio(s),
        sum_sq_log_ratio=sum_sq,
        k3_sum=k3_sum,
        kl=torch.zeros_like(k3_sum) if kl is None else kl.detach().to(torch.float64).sum(-1),
        **columns,
    )
    return ObjectiveOutput(loss, records)


def _clip_columns(applied: Applied, mask: Tensor, advantages: Tensor, m: Tensor | float | None) -> dict[str, Tensor]:
    """Return what a rule did to each response: side, weights, edges, numbers of cuts, by the columns of `Records`."""
    per_token = applied.side.ndim == 2
    active = (advantages != 0) & mask.any(-1)
    active = active[:, None] & mask if per_token else active

    def total(events: Tensor) -> Tensor:
        events = (events & active).to(torch.int64)
        return events.sum(-1) if per_token else events

    def mean(values: Tensor) -> Tensor:
        return _token_mean(values, mask) if per_token else values

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
        "cut_low": total(applied.side == -1),
        "cut_high": total(applied.side == 1),
        "cut_dual": total(applied.side == 2),
        "count": total(torch.ones_like(active)),
    }


def _mismatch_columns(s: Tensor, mask: Tensor, mismatch: Mismatch | None) -> dict[str, Tensor]:
    """Return the columns of `Records` on the mismatch, for those of its ratios that are known.

    For each response these are the log-ratio and the sums over tokens of k3 and of the squared token log-ratio.
    """
    if mismatch is None:
        return {}
    columns = {"missing": mismatch.missing}
    known: tuple[Ratio, ...] = ("behaviour", "total") if mismatch.engine is None else ("engine", "behaviour", "total")
    for on in known:
        names, tokens = RATIO_COLUMNS[on], ratio_tokens(on, s, mismatch)
        columns[names.k3_sum], columns[names.sum_sq], _ = token_sums(tokens, mask)
        if on != "total":
            columns[names.log_ratio] = response_log_ratio(tokens)
    if mismatch.engine is not None:
        columns["staleness_log_ratio"] = response_log_ratio(mismatch.behaviour - mismatch.engine)
    return columns


def _check(
    new: Tensor,
    old: Tensor,
    mask: Tensor,
    advantages: Tensor,
    ref: Tensor | None,
    config: ObjectiveConfig,
    mismatch: Mismatch | None,
    factor: Tensor | None,
) -> None:
    shape = tuple(new.shape)
    named = {"old": old, "mask": mask} | ({} if ref is None else {"ref": ref})
    named |= {} if mismatch is None else {"mismatch": mismatch.behaviour}
    named |= {} if factor is None or factor.shape == advantages.shape else {"factor": factor}
    wrong = {name: tuple(x.shape) for name, x in named.items() if tuple(x.shape) != shape}
    if len(shape) != 2 or wrong or tuple(advantages.shape) != shape[:1]:
        raise UserError(
            f"objective: new is {shape}, advantages {tuple(advantages.shape)}, others {wrong}; pass new, old, mask "
            "(and ref) as (responses, tokens) and advantages as (responses,)"
        )
    if config.kl_coef > 0 and ref is None:
        raise UserError("kl_coef > 0 needs ref, the reference model's log-probs (B, T); pass it or set kl_coef=0")
