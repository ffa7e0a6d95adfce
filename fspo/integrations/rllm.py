"""The clip rules as a custom loss of rLLM, which runs it on verl, Tinker and Fireworks; imports nothing of rLLM.

    import rllm
    from fspo.integrations.rllm import fspo_loss
    rllm.register_loss("fspo")(fspo_loss)  # in a module that algorithm.loss_plugins names

    algorithm: {loss_fn: fspo, loss_params: {rule: fspo, range_lo: 0.03, range_hi: 0.03}}

Written after rLLM's documentation of ``LossContext`` (August 2026, not yet in a release); it was never run inside rLLM.
On Tinker and Fireworks, and in bypass mode, ``logp_old`` are the sampler's log-probs: S is then the total ratio.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fspo.base.errors import UserError
from fspo.integrations.fixed import PARTS, fixed_rule, one_each
from fspo.objective import log_ratios, surrogate


def fspo_loss(context: Any) -> tuple[Tensor, dict[str, float]]:
    """Return rLLM's loss and metrics of a microbatch (B, T), or of one response (T,).

    Parameters
    ----------
    context : rLLM's LossContext
        Its ``logp_curr``, ``logp_old``, ``advantages``, ``action_mask``, ``params`` and ``aggregate`` are read.
        ``params`` holds the preset ``rule`` and parts that differ from it (`fspo.integrations.fixed.PARTS`). Under a
        sequence rule each response counts once, whatever rLLM's ``loss_agg_mode``.

    Raises
    ------
    UserError
        For a rule that cannot work here, or advantages that differ within a response.
    """
    parts = dict(context.params)
    name = parts.pop("rule", "fspo")
    if unknown := set(parts) - set(PARTS):
        raise UserError(f"loss_params have no {sorted(unknown)[0]!r}: use rule, {', '.join(PARTS)}")
    rule = fixed_rule(name, parts, "rLLM shows a loss one microbatch")
    fields = (context.logp_curr, context.logp_old, context.advantages, context.action_mask)
    new, old, advantages, mask = (x if x.ndim == 2 else x[None] for x in fields)
    mask = mask > 0
    advantage = one_each(advantages, mask, "set algorithm.adv_estimator to one that gives one")
    terms, applied = surrogate(log_ratios(new, old, mask), mask, advantage, rule)
    if rule.level == "sequence":
        terms, mode = terms[:, None] * torch.ones_like(new), "seq-mean-token-mean"
    else:
        mode = None
    loss = context.aggregate(-terms.reshape(context.logp_curr.shape), context.action_mask, mode=mode)
    return loss, {
        "fspo/in_band": float(applied.in_band[mask if applied.in_band.ndim == 2 else mask.any(1)].double().mean())
    }
