"""The training objective: ratio, band, surrogate, aggregation, as pure functions on torch tensors.

Each response (or token) has a surrogate term ``j``, which is maximised: ``loss = -sum(j) / denominator``. The clip
rule computes M and w from detached numbers in float64, so the gradient is ``M w A grad S``, exactly as docs/theory.md
section 1 defines the clipped gradient. Where the log-probs of the program that sampled are known, a correction
multiplies the gradient of token t by a factor f_t."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Shaped
from torch import Tensor

from fspo.base.errors import UserError
from fspo.config import ObjectiveConfig
from fspo.objective.ratios import Mismatch, log_ratios, ratio_tokens
from fspo.objective.records import Records, clip_columns, mismatch_columns, token_mean
from fspo.rules import Applied, Rule, capped, check_ratios, token_sums


class ObjectiveOutput(NamedTuple):
    """The result of `objective`: the scalar loss to minimise, and the `Records` of the responses, which carry no
    gradient."""

    loss: Float[Tensor, ""]
    records: Records


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
    """Return the loss of one microbatch of B responses, padded to T tokens, and the records of its responses.

    Parameters
    ----------
    new, old : Tensor (B, T)
        Log-probabilities of the tokens under the current parameters and under those at the beginning of the rollout's
        updates, nats, from the same code path.
    mask : Tensor (B, T), bool
        True on response tokens; holes allowed.
    advantages : Tensor (B,)
        Advantage of each response.
    rule : Rule
        The clip rule, on the ratio of the update.
    config : ObjectiveConfig, optional
        How the responses' terms become one loss; by default the mean over responses without a KL term.
    m : float or Tensor (B,), optional
        Drift of the rule's band, nats per token, so that the band's centre is m L; needed if the rule has a drift. It
        is ``rule.centre(stats)``, where ``stats`` are sums of s^2 and k3 over the tokens of the minibatch, s the token
        log-ratio. A first pass gives them for each microbatch (`ratio_stats`); ``+`` adds them up over microbatches and
        processes.
    denominator : float, optional
        Number by which the sum of the terms is divided, for the whole minibatch: the sum of `denominator_for` over its
        microbatches and processes; by default that of this microbatch alone. If data parallelism averages gradients,
        multiply the loss by the number of processes.
    ref : Tensor (B, T), optional
        Log-probabilities of the tokens under the reference model, nats; needed if ``config.kl_coef > 0``. Under every
        rule there is one KL term for each token, and `aggregate` adds the KL terms up by the same formula as surrogate
        terms: "response" sums them over a response's tokens. A correction does not change the KL terms.
    mismatch : Mismatch, optional
        Log-ratios of the tokens between the old policy and the program that sampled, from `Mismatch.of`; needed by a
        correction.
    correction : Rule, optional
        A rule on the engine or the rollout-policy ratio. The factor M w that it leaves each response or token
        multiplies the value and the gradient of the clip rule's surrogate term (`surrogate`).
    correction_m : float or Tensor (B,), optional
        Drift of the correction's band, nats per token; needed if the correction has a drift. It is
        ``correction.centre(stats)``, where ``stats`` are such sums as for ``m``, with s the token log-ratio of the
        engine or rollout-policy ratio that the correction acts on.
    factor : Tensor (B,) or (B, T), optional
        Factor of each response or token, computed by the caller, in place of that of a correction; pass one or neither.

    Raises
    ------
    UserError
        For shapes that do not fit, a missing reference, drift or mismatch, or a clip rule and a correction that cannot
        be combined (`fspo.rules.presets.check_ratios`).
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
    terms, applied = surrogate(s, mask, advantages, rule, m, factor=factor)
    loss = -aggregate(terms, mask, config, denominator)
    kl = None
    if ref is not None:
        kl = kl_terms(new, ref, mask)
        if config.kl_coef > 0:
            loss = loss + config.kl_coef * aggregate(kl, mask, config, denominator)
    s = s.detach().to(torch.float64)
    columns = clip_columns(applied, mask, advantages, m) | mismatch_columns(s, mask, mismatch)
    if corrected is not None:
        found = clip_columns(corrected, mask, advantages, correction_m)
        columns |= {f"correction_{name}": found[name] for name in ("lo", "hi", "drift", "side", "capped", "count")}
        columns["correction_weight"] = found["clipped_weight"]
        columns["correction_cut"] = found["clipped_low"] + found["clipped_high"] + found["clipped_dual"]
    k3_sum, sum_sq, _ = token_sums(s, mask)
    records = Records(
        length=mask.sum(-1),
        log_ratio=s.sum(-1),
        sum_sq_log_ratio=sum_sq,
        k3_sum=k3_sum,
        kl=torch.zeros_like(k3_sum) if kl is None else kl.detach().to(torch.float64).sum(-1),
        **columns,
    )
    return ObjectiveOutput(loss, records)


def surrogate(
    s: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    advantages: Float[Tensor, " B"],
    rule: Rule,
    m: Float[Tensor, " B"] | float | None = None,
    *,
    factor: Float[Tensor, " B"] | Float[Tensor, "B T"] | None = None,
) -> tuple[Float[Tensor, " B"] | Float[Tensor, "B T"], Applied]:
    """Return the clipped surrogate terms and what the rule did (docs/theory.md section 2).

    Parameters
    ----------
    s : Tensor (B, T)
        Token log-ratios from `log_ratios`, nats.
    mask : Tensor (B, T), bool
        True on response tokens.
    advantages : Tensor (B,)
        Advantage A of each response.
    m : float or Tensor (B,), optional
        Drift of the band, nats per token, from `Rule.centre`: the centre of a response's band is m L. Needed if the
        rule has a drift.
    factor : Tensor (B,) or (B, T), optional
        Factor f that a correction leaves each response or each token.

    Returns
    -------
    terms : Tensor, (B,) for sequence rules, (B, T) for token rules
        The value of a term is ``w_edge A``, where ``w_edge`` is the weight of the edge if the response (token) is
        clipped, and its own weight w if not. The gradient of a sequence rule's term is ``M w A grad(S)``, S the
        log-ratio of the response; it is divided by L if the weight is geometric. The gradient of a token rule's term is
        ``M_t w_t A grad(s_t)`` with w_t = exp(s_t). With a factor f_t (of shape (B,): the same for all tokens of a
        response), each ``grad(s_t)`` is multiplied by f_t, also where ``grad(S)`` sums them. The value is multiplied by
        f_t too, in a sequence rule's term by the mean of f_t over the response's tokens.
    applied : Applied
        Side (int8), multiplier M, weights and edges (float64) for each term, tensors of the shape of ``terms`` without
        gradient.
    """
    applied = apply_rule(rule, s.detach().to(torch.float64), mask, advantages, m)
    A, moved, edge_weight = _with_tokens(advantages, mask), s, applied.edge_weight
    if factor is not None:
        of_tokens = factor if factor.ndim == 2 else factor[:, None]
        moved = of_tokens.to(s.dtype) * s
        of_response = token_mean(factor, mask) if factor.ndim == 2 else factor
        edge_weight = edge_weight * (of_response if rule.level == "sequence" else of_tokens)
    if rule.level == "sequence":
        moved = moved.sum(-1)
        if rule.weight == "geometric":
            moved = moved / mask.sum(-1).clamp(min=1).to(moved.dtype)
    else:
        A = A[:, None]
    return straight_through(edge_weight * A, applied.clipped_weight * A, moved), applied


def apply_rule(
    rule: Rule,
    log_ratio: Float64[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    advantages: Float[Tensor, " B"],
    m: Float[Tensor, " B"] | float | None = None,
) -> Applied:
    """Clip responses, or single tokens under a token rule, and return their sides, multipliers, weights and edges:
    tensors (B,), or (B, T) for tokens. Responses without a token in the mask are treated as A = 0, so not clipped.

    Parameters
    ----------
    log_ratio : Tensor (B, T)
        Token log-ratios of the ratio that the rule is on (`ratio_tokens`), float64, nats; 0 outside the mask.
    m : float or Tensor (B,), optional
        Drift of the band, nats per token, from `Rule.centre`: the centre of a response's band is m L. Needed if the
        rule has a drift.
    """
    A = _with_tokens(advantages, mask)
    if rule.level == "sequence":
        return rule.apply(log_ratio.sum(-1), mask.sum(-1).clamp(min=1), A, m)
    return rule.apply(log_ratio, torch.ones_like(log_ratio), A[:, None], m)


def straight_through(
    value: Float[Tensor, "*rows"], coefficient: Float[Tensor, "*rows"], log_ratio: Float[Tensor, "*rows"]
) -> Float[Tensor, "*rows"]:
    """Return a tensor that has the value of ``value`` and the gradient ``coefficient * grad(log_ratio)``, for arguments
    of one shape.

    ``log_ratio - log_ratio.detach()`` is exactly 0 and only carries the gradient, so a large S, a factor 1/L or a low
    precision cannot disturb the value."""
    value, coefficient = value.detach().to(log_ratio.dtype), coefficient.detach().to(log_ratio.dtype)
    return value + coefficient * (log_ratio - log_ratio.detach())


def kl_terms(new: Float[Tensor, "B T"], ref: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return the k3 estimate of KL(new || reference) for each token (B, T), nats, from the tokens' log-probabilities
    under both models; 0 outside the mask.

    With x the reference's log-probability less the new one, the estimate is exp(x) - 1 - x. The x in exp(x) is held at
    20, and the gradient passes through x even where it is held."""
    x = -log_ratios(new, ref, mask)
    x_capped = x + (capped(x.detach()) - x.detach())
    return torch.expm1(x_capped) - x


def aggregate(
    terms: Float[Tensor, " B"] | Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    config: ObjectiveConfig,
    denominator: float | None = None,
) -> Float[Tensor, ""]:
    """Sum the surrogate terms of a batch, one for each response (B,) or token (B, T), divide by the denominator and
    return the objective, which training maximises, as a 0-d tensor. ``config.aggregation`` names the formula.

    J_i is the term of response i, j_it that of its token t. B responses have lengths L_i; C is
    ``config.constant_length``.

    ========== ============================= =================================================================
    name       formula                       what the length does
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
    mask : Tensor (B, T), bool
        Responses without a token enter no sum and no count, so rows added as padding change nothing.
    denominator : float, optional
        Sum of `denominator_for` over all microbatches and processes of the update. By default it is `denominator_for`
        of this batch alone.
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

    It is the number of responses with a token ("response", "sequence"), of tokens ("token"), or of such responses times
    ``config.constant_length`` ("constant"). The caller adds it up over the update's microbatches and processes."""
    if config.aggregation == "token":
        return float(mask.sum())
    return float(mask.any(-1).sum()) * (config.constant_length or 1)


def _with_tokens(advantages: Float[Tensor, " B"], mask: Bool[Tensor, "B T"]) -> Float64[Tensor, " B"]:
    """Return the advantages (B,), float64, set to 0 for responses without a token."""
    return torch.where(mask.any(-1), advantages.detach().to(torch.float64), 0.0)


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
