# pyright: reportMissingImports=false
"""The clip rules as a policy loss of verl: ``actor_rollout_ref.actor.policy_loss.loss_mode=fspo``.

verl finds this module by its entry point (group ``verl.plugins``) in every process where both packages are installed,
workers included. Parts of the preset are changed through `FSPOLossConfig`:

    actor_rollout_ref.actor.policy_loss._target_=fspo.integrations.verl.FSPOLossConfig
    +actor_rollout_ref.actor.policy_loss.range_hi=0.05

Written against verl 0.9. verl adds KL and entropy terms itself. Its loss functions see one microbatch, so a rule with a
drift takes the drift of the previous update (``drift_source=lagged``). The option ``observe`` names a run folder for
the gradient log. `ObservedLossConfig` makes a run whose loss is verl's own write the log.

verl's own ``algorithm.rollout_correction`` corrects the mismatch between sampler and trainer beside the clip rule. With
these values it makes the factors of our presets (`fspo.rules.CORRECTIONS`; YAML reads 0.5_5 without quotes as 0.55):

    tis: {rollout_is: token, rollout_is_threshold: 2}
    icepop: {rollout_is: token, rollout_is_threshold: "0.5_5"}
    mis: {rollout_is: sequence, rollout_is_threshold: "0.3333333333_3"}
    geo-mask: {rollout_rs: seq_mean_k1, rollout_rs_threshold: "0.9990009990_1.0010010010"}"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_policy_loss
from verl.workers.config import ActorConfig

from fspo.base.errors import UserError
from fspo.config import ObjectiveConfig, RuleConfig
from fspo.integrations.shared import RuleParts, UpdateMemory, check_drift, given, remembers
from fspo.integrations.verl_batch import token_mean
from fspo.integrations.verl_observe import ObservedLossConfig, watch_actors
from fspo.objective import objective
from fspo.rules import Rule, preset

__all__ = ["FSPOLossConfig", "ObservedLossConfig", "fspo_loss"]

NAME = "fspo"
FAIR_MODE = "seq-mean-token-mean"
"""Name of verl's loss aggregation in which each response counts once, whatever its length."""
_REPLACED = {
    "clip_ratio": "range_lo and range_hi",
    "clip_ratio_low": "range_lo",
    "clip_ratio_high": "range_hi",
    "clip_ratio_c": "dual",
}


@dataclass
class FSPOLossConfig(RuleParts, ObservedLossConfig):
    """verl's `PolicyLossConfig` with the parts of a rule; without this class ``loss_mode=fspo`` uses preset "fspo".

    Parameters
    ----------
    loss_mode : str
        Must be "fspo".
    rule : str
        Preset (`fspo.rules.PRESETS`).
    range_lo, range_hi, gamma, drift, ... : optional
        Parts to change in the preset, as in `fspo.config.RuleConfig`. A rule with a drift needs
        ``drift_source=lagged``.
    rollout_correction : optional
        Set it to ``${algorithm.rollout_correction}``, so that this class can refuse corrections by verl that change S.
        Without this option a loss function does not see verl's corrections.

    Raises
    ------
    UserError
        For another ``loss_mode``, a rule that does not exist or needs its whole minibatch before the update, or a
        rollout correction that changes S.
    """

    loss_mode: str = NAME
    rule: str = "fspo"
    correction: Any = None  # refused: it had its own presets once

    _mutable_fields = {"memory"}  # noqa: RUF012  (verl's own way to name them)
    memory = None

    def __post_init__(self) -> None:
        if self.loss_mode != NAME:
            raise UserError(
                f"policy_loss.loss_mode is {self.loss_mode!r}, under which FSPOLossConfig does nothing: set it to "
                f"{NAME!r}"
            )
        if self.correction is not None:
            raise UserError("policy_loss.correction is gone: set algorithm.rollout_correction, verl's own")
        rule = self.clip_rule()
        _check_correction(self.rollout_correction, rule)
        super().__post_init__()
        if remembers(rule) and self.observe is None:
            watch_actors(None)

    def clip_rule(self) -> Rule:
        """Return the clip rule that the options name: the preset ``rule`` with the parts that the user set."""
        rule = RuleConfig(self.rule, **given(self)).rule()
        check_drift(rule, "verl", "policy_loss.drift_source=lagged")
        return rule


@register_policy_loss(NAME)  # type: ignore[arg-type]
def fspo_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = FAIR_MODE,
    config: ActorConfig | None = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """Compute verl's policy loss with a clip rule.

    Parameters
    ----------
    old_log_prob, log_prob, advantages, response_mask : Tensor (B, T)
        As verl passes them; an advantage is one number for each response, repeated over its tokens.
    loss_agg_mode : str
        verl's aggregation; only "seq-mean-token-mean" is taken, in which each response counts once.
    config : ActorConfig
        verl's actor options; must be given.
    rollout_is_weights : Tensor (B, T), optional
        Factor from verl's correction; it multiplies the loss of its token, and so the gradient.

    Returns
    -------
    loss : Tensor (), to be minimised
    metrics : dict
        By verl's names. Clip shares are shares of the responses with A != 0 (rules on tokens: of their tokens).

    Raises
    ------
    UserError
        For settings that would change what the rule does; each message says what to set instead.
    """
    assert config is not None
    chosen = config.policy_loss
    rule = chosen.clip_rule() if isinstance(chosen, FSPOLossConfig) else preset(NAME).rule
    _check(rule, config, loss_agg_mode)
    mask = response_mask.to(torch.bool)
    A, differ = token_mean(advantages, mask)
    if bool(differ.any()):
        raise UserError(
            "advantages differ within a response, and a rule on responses needs one for each: set "
            "algorithm.adv_estimator to grpo, rloo or another that gives one"
        )
    memory: UpdateMemory | None = getattr(chosen, "memory", None)
    if memory is not None:
        rule = memory.online.rule
    loss, records = objective(
        log_prob,
        old_log_prob,
        mask,
        A,
        rule,
        ObjectiveConfig("sequence"),
        m=None if memory is None else memory.centre,
        denominator=_responses(mask, config.global_batch_info),
        factor=rollout_is_weights,
    )
    if memory is not None:
        memory.add(memory.response_id, records, A.cpu().numpy())
    count = records.count.sum().clamp(min=1)
    return loss, {
        "actor/pg_clipfrac": ((records.clipped_low + records.clipped_high).sum() / count).item(),
        "actor/pg_clipfrac_lower": (records.clipped_dual.sum() / count).item(),
        "actor/ppo_kl": (-records.log_ratio.sum() / records.length.sum().clamp(min=1)).item(),
        "actor/fspo_band_acceptance": records.band_accept.double().mean().item(),
    }


def _check_correction(options: Any, rule: Rule) -> None:
    """Raise UserError for a correction of verl's that replaces the old log-probs or drops tokens, so that S changes."""
    options = options or {}
    criteria, why = options.get("rollout_rs", None), None
    if options.get("bypass_mode", False):
        why = "bypass_mode=True takes the sampler's log-probs for the old ones, so that its mismatch is part of S"
    elif rule.level != "token" and "token_" in (criteria or ""):
        why = f"rollout_rs={criteria} drops tokens of a response, so that S is a sum of fewer tokens"
    if why is not None:
        raise UserError(f"algorithm.rollout_correction.{why}: leave it out")


def _check(rule: Rule, config: ActorConfig, mode: str) -> None:
    if mode != FAIR_MODE:
        raise UserError(
            f"actor.loss_agg_mode={mode!r} weighs whole responses by their length, which undoes rule {rule.label!r}: "
            f"set it to {FAIR_MODE!r}"
        )
    chosen = config.policy_loss
    if isinstance(chosen, FSPOLossConfig) and chosen.memory is None and remembers(rule):
        raise UserError(
            f"policy_loss.rule {rule.label!r} has not reached the loss, because verl's actor was made before this "
            "configuration was read, or of another class: use a rule without drift and with a fixed range"
        )
    for name, ours in _REPLACED.items():
        if getattr(config, name) != ActorConfig.__dataclass_fields__[name].default:
            raise UserError(
                f"actor.{name}={getattr(config, name)} belongs to verl's own losses, and {NAME!r} does not read it: "
                f"leave it out and set policy_loss.{ours}"
            )


def _responses(mask: Tensor, info: dict[str, Any]) -> float:
    """Return the loss's denominator: an update's responses on all processes (``info``) over the number of processes."""
    processes, responses = info.get("dp_size") or 1, info.get("global_batch_size")
    if responses is None:
        if processes > 1:
            raise UserError(f"verl gave no global_batch_size for {processes} processes: the loss cannot be averaged")
        responses = mask.any(1).sum()
    return float(responses) / processes
