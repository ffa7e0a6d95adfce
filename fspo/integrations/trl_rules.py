"""TRL's own clip, and its corrections of vLLM's mismatch, as rules of this project."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from fspo.base.errors import UserError
from fspo.rules import CORRECTIONS, Outside, Rule

PPO_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
"""TRL's losses that clip as PPO does; they differ only in the number by which the summed terms are divided."""
CORRECTION_MODES: dict[str, tuple[str, Outside]] = {
    "token_truncate": ("tis", "cap"),
    "token_mask": ("icepop", "mask"),
    "sequence_truncate": ("mis", "cap"),
    "sequence_mask": ("mis", "mask"),
}
"""For each value of TRL's vllm_importance_sampling_mode: our correction preset with the same shape of the band, and the
value of ``outside`` that does to ratios outside the band what TRL does."""
FURTHER_CUTS = {"top_entropy_quantile": 1.0, "off_policy_mask_threshold": None}
"""Options of TRL that drop tokens or responses in addition to the clip, each with the value at which it drops none."""


def clip_of(args: Any) -> Rule | None:
    """Return the clip of a TRL run as a rule on S or on tokens; None if no rule of this project does the same.

    ``args`` is a trl.GRPOConfig, of which ``loss_type``, ``importance_sampling_level``, ``epsilon``, ``epsilon_high``
    and ``delta`` are read, or an RLOOConfig, of which ``epsilon`` and ``epsilon_high`` are read."""
    high = args.epsilon if args.epsilon_high is None else args.epsilon_high
    if not hasattr(args, "loss_type"):  # RLOOConfig
        return Rule("fixed", range_lo=min(args.epsilon, 1.0), range_hi=high, name="trl-rloo")
    loss, token = args.loss_type, args.importance_sampling_level == "token"
    parts: dict[str, Any] = {"range_lo": 1.0, "name": f"trl-{loss}"}
    if loss == "cispo":
        parts |= {"range_hi": high - 1, "outside": "cap"}
    elif loss in PPO_LOSSES:
        parts |= {"range_lo": min(args.epsilon, 1.0), "range_hi": high}
    else:
        return None
    try:
        rule = Rule("token", **parts) if token else Rule("linear", weight="geometric", **parts)
        return rule if loss == "cispo" or args.delta is None else rule.with_dual_at(args.delta)
    except UserError:  # TRL allows a band that does not hold the ratio 1, our rules do not
        return None


def correction_of(args: Any) -> Rule | None:
    """Return TRL's correction of vLLM's mismatch as a correction of ours; None if none of ours does the same.

    Of ``args`` (trl.GRPOConfig) the fields ``vllm_importance_sampling_mode``, ``vllm_importance_sampling_clip_min`` and
    ``vllm_importance_sampling_clip_max`` (the ends of the band, as ratios; None: no end) are read."""
    mode = args.vllm_importance_sampling_mode
    low, high = args.vllm_importance_sampling_clip_min, args.vllm_importance_sampling_clip_max
    if mode not in CORRECTION_MODES or (mode.endswith("_truncate") and low is not None):
        return None  # TRL raises weights below clip_min to clip_min, which no rule of ours does
    preset, outside = CORRECTION_MODES[mode]
    below, above = 1.0 if low is None else 1 - low, math.inf if high is None else high - 1
    try:
        return replace(CORRECTIONS[preset], range_lo=below, range_hi=above, outside=outside, name=f"trl-{mode}")
    except UserError:  # TRL takes a band without the ratio 1; a rule of this project must have 1 in its band
        return None
