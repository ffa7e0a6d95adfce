"""The clip rules as a custom loss for prime-rl, which calls it for one response at a time.

Nothing of prime-rl is imported.

    [trainer.loss]
    type = "custom"
    import_path = "fspo.integrations.prime_rl.fspo_loss"
    kwargs = { rule = "fspo", range_lo = 0.03, range_hi = 0.03 }

Written after prime-rl's documentation of its custom loss; it was never run inside prime-rl. prime-rl passes log-probs
of the inference engine as the old ones, so S also holds the mismatch between engine and trainer, which grows with
length. With asynchronous rollouts S is not 0 even at the first update. prime-rl divides the sum of all losses by one
number (by default the number of tokens). So each response counts once under a sequence rule, and that number only
scales the learning rate.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fspo.base.errors import UserError
from fspo.integrations.fixed import PARTS, fixed_rule, one_each
from fspo.objective import objective


class Outputs(NamedTuple):
    """The fields that prime-rl reads of the result of a custom loss."""

    loss: Tensor
    metrics: dict[str, Tensor]


def fspo_loss(inputs: Any, rule: str = "fspo", **parts: Any) -> Outputs:
    """Return the loss of one response under a clip rule: minus the response's term of the objective.

    Parameters
    ----------
    inputs : prime-rl's LossInputs
        Its ``trainer_logprobs``, ``inference_logprobs``, ``advantages``, ``loss_mask`` and ``loss_weights`` are read:
        tensors (T,) of one response.
    rule : str
        Preset (`fspo.rules.PRESETS`).
    parts
        Parts of the rule that differ from the preset's; names as in `fspo.integrations.fixed.PARTS`.

    Raises
    ------
    UserError
        For a rule that cannot work here, token weights, or advantages that differ within the response.
    """
    if unknown := set(parts) - set(PARTS):
        raise UserError(f"kwargs of fspo_loss have no {sorted(unknown)[0]!r}: use rule, {', '.join(PARTS)}")
    chosen = fixed_rule(rule, parts, "prime-rl shows a loss one response")
    weights = getattr(inputs, "loss_weights", None)
    mask = inputs.loss_mask.to(torch.bool)[None]
    if weights is not None and bool((weights[inputs.loss_mask] != 1).any()):
        raise UserError("loss_weights weigh tokens, and a rule on responses has none: leave them out")
    new, old, advantages = (x[None] for x in (inputs.trainer_logprobs, inputs.inference_logprobs, inputs.advantages))
    advantage = one_each(advantages, mask, "use an advantage that is one for each response")
    loss, records = objective(new, old, mask, advantage, chosen, denominator=1.0)
    cut = (records.cut_low + records.cut_high + records.cut_dual) / records.count.clamp(min=1)
    found = {"clipped": cut[0], "band_acceptance": records.band_accept[0], "log_ratio": records.log_ratio[0]}
    return Outputs(loss, {f"fspo/{name}": value.float() for name, value in found.items()})
