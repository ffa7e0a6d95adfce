"""verl's own clip and its rollout corrections, as rules of this project (verl 0.9.1, ``rollout_corr_helper.py``)."""

from __future__ import annotations

import math
from typing import Any

from fspo.base.errors import UserError
from fspo.rules import Rule, Shape

_WEIGHED: dict[str, Shape] = {"token": "token", "sequence": "fixed"}
_MASKED: dict[str, Shape] = {"token_k1": "token", "token_k2": "token", "seq_sum_k1": "fixed", "seq_mean_k1": "linear"}
BYPASS = "bypass_mode"
"""verl's loss mode in which the sampler's log-probs take the place of the old ones, so that S is the total."""


def clip_of(config: Any) -> Rule | None:
    """Return the clip of a verl actor as a rule; None if no rule of this project clips in the same way.

    Of ``config`` (verl's ActorConfig) the fields ``policy_loss.loss_mode``, ``clip_ratio_low``, ``clip_ratio_high`` and
    ``clip_ratio_c`` are read."""
    policy_loss: Any = getattr(config, "policy_loss", {})
    mode = policy_loss.get("loss_mode", None)
    if mode == "fspo":
        return policy_loss.clip_rule()
    if mode not in ("vanilla", "gspo"):
        return None
    low, high, bound = config.clip_ratio_low, config.clip_ratio_high, config.clip_ratio_c
    name = f"verl-{mode}"
    try:
        if mode == "gspo":
            return Rule("linear", low, high, weight="geometric", name=name)
        return Rule("token", low, high, name=name).with_dual_at(bound)
    except (UserError, ValueError, ZeroDivisionError):  # verl takes a band without the ratio 1, this project does not
        return None


def correction_of(options: Any) -> Rule | None:
    """Return verl's rollout correction as one correction rule; None if there is none, or no rule of ours does the same.

    verl's importance weights, truncated or masked (option ``rollout_is``), become a rule with a weight. verl's
    rejection (option ``rollout_rs``) becomes a rule whose factor is 1 in its band and 0 outside. It must have a single
    criterion, on verl's k1 or, by token, on verl's k2. With x our log-ratio, verl's k1 is -x, so the upper bound of k1
    gives the lower edge of x; verl's k2 is x^2 / 2. ``options`` are verl's: a mapping or a RolloutCorrectionConfig."""
    if options is None or options.get("bypass_mode", False):
        return None
    weights, masks = options.get("rollout_is", None), options.get("rollout_rs", None)
    if bool(weights) == bool(masks) or (weights and options.get("rollout_is_batch_normalize", False)):
        return None
    spec = str(options.get("rollout_is_threshold" if weights else "rollout_rs_threshold", 2.0))
    try:
        low, high = (float(part) for part in spec.split("_")) if "_" in spec else (None, float(spec))
        if weights:
            outside, below = ("cap", 1.0) if low is None else ("mask", 1 - low)
            name = f"verl-is-{weights}"
            return Rule(_WEIGHED[weights], below, high - 1, outside=outside, on="behaviour", name=name)
        if masks == "token_k2":
            width = math.sqrt(2 * high)
            low, high = math.exp(-width), math.exp(width)
        low = 1 / high if low is None else low
        # With x our log-ratio, verl keeps responses with low <= exp(-x) <= high, so low gives the upper edge of x.
        below, above, name = 1 - 1 / high, 1 / low - 1, f"verl-rs-{masks}"
        return Rule(_MASKED[masks], below, above, outside="mask", weight="none", on="behaviour", name=name)
    except (UserError, KeyError, ValueError, ZeroDivisionError):
        return None
