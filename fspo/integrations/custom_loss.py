"""The clip rules as the custom loss of prime-rl and of rLLM. This module imports neither of them.

prime-rl finds `prime_rl_loss` by its path and calls it for one response at a time:

    [trainer.loss]
    type = "custom"
    import_path = "fspo.integrations.custom_loss.prime_rl_loss"
    kwargs = { rule = "fspo", range_lo = 0.03, range_hi = 0.03 }

rLLM calls `rllm_loss` for a microbatch when it runs on verl, and for one response at a time on Tinker and Fireworks. A
module that ``algorithm.loss_plugins`` names must register `rllm_loss` with ``agg_mode``; without ``agg_mode`` the loss
of a sequence rule is scaled by the number of tokens:

    import rllm
    from fspo.integrations.custom_loss import rllm_loss
    rllm.register_loss("fspo", agg_mode="seq-mean-token-mean")(rllm_loss)

    algorithm: {loss_fn: fspo, loss_params: {rule: fspo, range_lo: 0.03, range_hi: 0.03}}

In prime-rl, and in rLLM on Tinker and Fireworks and in bypass mode, the old log-probs are the sampler's: S then holds
the mismatch between sampler and trainer too, and is not 0 at the first update. prime-rl divides the sum of all losses
by one number (by default the number of tokens), which under a sequence rule only scales the learning rate.

Written against commit 559b447 of prime-rl and release 0.3.0.pre of rLLM (both August 2026); no training was run with
either of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fspo.base.errors import UserError
from fspo.integrations.fixed import PARTS, fixed_rule, one_each
from fspo.objective import log_ratios, objective, surrogate
from fspo.rules import Rule

OF_RLLM = ("eps_clip", "eps_clip_high", "kl_beta", "clip_ratio_c")
"""Parameters that rLLM hands to every custom loss; `rllm_loss` ignores them, because the rule has its own range."""


class Outputs(NamedTuple):
    """What a custom loss returns to prime-rl: the loss, and metrics by name."""

    loss: Tensor
    metrics: dict[str, Tensor]


def prime_rl_loss(inputs: Any, **options: Any) -> Outputs:
    """Return the loss of one response under a clip rule: minus the response's term of the objective.

    Parameters
    ----------
    inputs : prime-rl's LossInputs
        Its ``trainer_logprobs``, ``inference_logprobs``, ``advantages``, ``loss_mask`` and ``loss_weights`` are read:
        tensors (T,) of one response.
    options
        ``rule``, a preset (`fspo.rules.PRESETS`), and parts to change in it (`fspo.integrations.fixed.PARTS`).

    Raises
    ------
    UserError
        For a rule that needs more than one response at a time, ``loss_weights`` other than 1, or advantages that differ
        between the tokens of a response.
    """
    rule = _rule(options, "kwargs", "prime-rl shows a loss one response")
    weights = inputs.loss_weights
    if weights is not None and bool((weights[inputs.loss_mask] != 1).any()):
        raise UserError("loss_weights weigh tokens, and a rule on responses has none: leave them out")
    fields = (inputs.trainer_logprobs, inputs.inference_logprobs, inputs.advantages, inputs.loss_mask)
    new, old, advantages, mask = (x[None] for x in fields)
    advantage = one_each(advantages, mask, "use an advantage that is one for each response")
    loss, records = objective(new, old, mask, advantage, rule, denominator=1.0)
    cut = (records.cut_low + records.cut_high + records.cut_dual) / records.count.clamp(min=1)
    found = {"clipped": cut[0], "band_acceptance": records.band_accept[0], "log_ratio": records.log_ratio[0]}
    return Outputs(loss, {f"fspo/{name}": value.float() for name, value in found.items()})


def rllm_loss(context: Any) -> tuple[Tensor, dict[str, float]]:
    """Return rLLM's loss and metrics of a microbatch (B, T), or of one response (T,).

    Parameters
    ----------
    context : rLLM's LossContext
        Its ``logp_curr``, ``logp_old``, ``advantages``, ``action_mask``, ``params`` and ``aggregate`` are read.
        ``params`` holds ``rule``, a preset, and parts to change in it. Under a rule on responses each response counts
        once, whatever rLLM's ``loss_agg_mode`` says.

    Raises
    ------
    UserError
        For a rule that needs more than one microbatch at a time, a KL penalty, or advantages that differ between the
        tokens of a response.
    """
    if context.params.get("kl_beta"):
        raise UserError("kl_beta has no effect on a custom loss: set it to 0")
    options = {name: value for name, value in context.params.items() if name not in OF_RLLM}
    rule = _rule(options, "loss_params", "rLLM shows a loss one microbatch")
    fields = (context.logp_curr, context.logp_old, context.advantages, context.action_mask > 0)
    new, old, advantages, mask = (x if x.ndim == 2 else x[None] for x in fields)
    advantage = one_each(advantages, mask, "set algorithm.adv_estimator to one that gives one")
    terms, applied = surrogate(log_ratios(new, old, mask), mask, advantage, rule)
    mode = None
    if rule.level == "sequence":
        terms, mode = terms[:, None] * torch.ones_like(new), "seq-mean-token-mean"
    loss = context.aggregate(-terms.reshape(context.logp_curr.shape), context.action_mask, mode=mode)
    in_band = applied.in_band[mask if applied.in_band.ndim == 2 else mask.any(1)].double()
    return loss, {"fspo/band_acceptance": float(in_band.mean())} if len(in_band) else {}


def _rule(options: Mapping[str, Any], field: str, shows: str) -> Rule:
    """Return the rule that the options name.

    Error messages use ``field``, the field of the framework's configuration that holds the options, and ``shows``, a
    clause that says what the framework passes to a loss function, for example "rLLM shows a loss one microbatch".
    """
    parts = dict(options)
    name = parts.pop("rule", "fspo")
    if unknown := set(parts) - set(PARTS):
        raise UserError(f"{field} have no {sorted(unknown)[0]!r}: use rule, {', '.join(PARTS)}")
    return fixed_rule(name, parts, shows)
