# pyright: reportMissingImports=false
"""The clip rules as a policy loss of verl: ``actor_rollout_ref.actor.policy_loss.loss_mode=fspo``.

verl finds this module by its entry point (group ``verl.plugins``) in every process where both packages are installed,
workers included. Parts of the preset are changed through `FSPOLossConfig`:

    actor_rollout_ref.actor.policy_loss._target_=fspo.integrations.verl.FSPOLossConfig
    +actor_rollout_ref.actor.policy_loss.range_hi=0.05

Written against verl 0.9. verl adds KL and entropy terms itself. Its loss functions see one microbatch, so a rule with a
drift takes the drift of the previous update (``drift_source=lagged``). The option ``observe`` names a run folder for
the gradient log. `ObservedLossConfig` makes a run whose loss is verl's own write the log.

The mismatch between sampler and trainer is corrected beside the clip rule, by our presets (`fspo.rules.CORRECTIONS`),

    +actor_rollout_ref.actor.policy_loss.correction.preset=tis

or by verl's ``algorithm.rollout_correction``, which makes the same factors with these values (YAML
reads 0.5_5 without quotes as 0.55):

    tis: {rollout_is: token, rollout_is_threshold: 2}
    icepop: {rollout_is: token, rollout_is_threshold: "0.5_5"}
    mis: {rollout_is: sequence, rollout_is_threshold: "0.3333333333_3"}
    geo-mask: {rollout_rs: seq_mean_k1, rollout_rs_threshold: "0.9990009990_1.0010010010"}

verl has no option that makes our preset engine-sqrt. The band of engine-sqrt grows as sqrt(L) and is centred at -KL,
which is estimated from all responses of a rollout.

verl keeps no log-probs of the weights that sampled, so E is known only for responses that the present weights sampled.
In a run with stale responses set ``+actor_rollout_ref.actor.policy_loss.correction.on=behaviour`` to correct D + E.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_policy_loss
from verl.workers.config import ActorConfig

from fspo.base.errors import UserError
from fspo.config import ObjectiveConfig
from fspo.integrations.memory import UpdateMemory, remembers
from fspo.integrations.verl_batch import one_each
from fspo.integrations.verl_observe import ObservedLossConfig, watch_actors
from fspo.objective import objective
from fspo.rules import Rule, correction, preset

__all__ = ["FSPOLossConfig", "ObservedLossConfig", "fspo_loss"]

NAME = "fspo"
_PARTS = (
    *("range_lo", "range_hi", "gamma", "drift", "drift_source", "outside", "dual"),
    *("adapt", "target", "target_rate"),
)
FAIR_MODE = "seq-mean-token-mean"
"""Name of verl's loss aggregation in which each response counts once, whatever its length."""
_REPLACED = {
    "clip_ratio": "range_lo and range_hi",
    "clip_ratio_low": "range_lo",
    "clip_ratio_high": "range_hi",
    "clip_ratio_c": "dual",
}


@dataclass
class FSPOLossConfig(ObservedLossConfig):
    """verl's `PolicyLossConfig` with the parts of a rule; without this class ``loss_mode=fspo`` uses preset "fspo".

    Parameters
    ----------
    loss_mode : str
        Must be "fspo".
    rule : str
        Preset (`fspo.rules.PRESETS`).
    range_lo, range_hi, gamma, drift, drift_source, outside, dual, adapt, target, target_rate : optional
        Parts to change in the preset (`fspo.rules.Rule`). A rule with a drift needs ``drift_source=lagged``.
    correction : mapping, optional
        ``preset``, one of `fspo.rules.CORRECTIONS`, and parts to change in it, as ``range_hi``. A correction needs
        ``actor_rollout_ref.rollout.calculate_log_probs``. If it has a drift, the centre of its band is estimated from
        the rollout's responses on all processes. None: no correction of ours.
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
    range_lo: float | None = None
    range_hi: float | None = None
    gamma: float | None = None
    drift: str | None = None
    drift_source: str | None = None
    outside: str | None = None
    dual: float | None = None
    adapt: str | None = None
    target: float | None = None
    target_rate: str | None = None
    correction: Any = None

    _mutable_fields = {"memory"}  # noqa: RUF012  (verl's own way to name them)
    memory = None

    def __post_init__(self) -> None:
        if self.loss_mode != NAME:
            raise UserError(
                f"policy_loss.loss_mode is {self.loss_mode!r}, under which FSPOLossConfig does nothing: set it to "
                f"{NAME!r}"
            )
        rule = self.clip_rule()
        _check_correction(self.rollout_correction, rule)
        hooked = self.correction_rule() is not None or remembers(rule)
        super().__post_init__()
        if hooked and self.observe is None:
            watch_actors(None)

    def clip_rule(self) -> Rule:
        """Return the clip rule that the options name: the preset ``rule`` with the parts that the user set."""
        parts = {name: getattr(self, name) for name in _PARTS}
        rule = preset(self.rule, **{name: value for name, value in parts.items() if value is not None}).rule
        if rule.needs_stats and rule.drift_source != "lagged":
            raise UserError(
                f"rule {rule.label!r} centres its band on the whole minibatch, of which verl shows a loss one "
                "microbatch: set policy_loss.drift_source=lagged"
            )
        return rule

    def correction_rule(self) -> Rule | None:
        """Return the correction that ``correction`` asks for: its preset with the parts that were changed."""
        parts = dict(self.correction or {"preset": "none"})
        if "preset" not in parts:
            raise UserError("policy_loss.correction has no preset: set policy_loss.correction.preset")
        found = correction(parts.pop("preset"), **parts)
        if found is not None and found.adapt != "none":
            raise UserError(f"correction {found.label!r}: adapt is for clip rules; set adapt=none")
        return found


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
        Name of verl's aggregation, whose denominators count all processes. A sequence rule takes "seq-mean-token-mean"
        alone.
    config : ActorConfig
    rollout_is_weights : Tensor, optional
        Factor for each token from verl's correction or from ours; it multiplies the value and gradient of the token.

    Returns
    -------
    loss : Tensor ()
    metrics : dict
        Metrics under verl's names. A clip share is a share of the responses with A != 0, or, under a rule on tokens, of
        the tokens of these responses.

    Raises
    ------
    UserError
        For settings that would change what the rule does; each message says what to set instead.
    """
    assert config is not None
    chosen = config.policy_loss
    rule = chosen.clip_rule() if isinstance(chosen, FSPOLossConfig) else preset(NAME).rule
    _check(rule, config, loss_agg_mode, rollout_is_weights)
    mask = response_mask.to(torch.bool)
    A = one_each(advantages, mask, "set algorithm.adv_estimator to grpo, rloo or another that gives one")
    memory: UpdateMemory | None = getattr(chosen, "memory", None)
    if memory is not None:
        rule = memory.online.rule
    aggregation, denominator = _aggregation(mask, loss_agg_mode, config.global_batch_info)
    loss, records = objective(
        log_prob,
        old_log_prob,
        mask,
        A,
        rule,
        ObjectiveConfig(aggregation),
        m=None if memory is None else memory.centre(A),
        denominator=denominator,
        factor=rollout_is_weights,
    )
    if memory is not None:
        memory.add(memory.response_id, records, A.cpu().numpy())
    count = records.count.sum().clamp(min=1)
    return loss, {
        "actor/pg_clipfrac": ((records.cut_low + records.cut_high).sum() / count).item(),
        "actor/pg_clipfrac_lower": (records.cut_dual.sum() / count).item(),
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


def _check(rule: Rule, config: ActorConfig, mode: str, weights: Tensor | None) -> None:
    if rule.level == "sequence" and mode != FAIR_MODE:
        raise UserError(
            f"actor.loss_agg_mode={mode!r} weighs whole responses by their length, which undoes rule {rule.label!r}: "
            f"set it to {FAIR_MODE!r}"
        )
    chosen = config.policy_loss
    late = "has not reached the loss, because verl's actor was made before this configuration was read, or of another "
    if isinstance(chosen, FSPOLossConfig) and weights is None and chosen.correction_rule():
        raise UserError(f"policy_loss.correction {late}class: use algorithm.rollout_correction.rollout_is")
    if isinstance(chosen, FSPOLossConfig) and chosen.memory is None and remembers(rule):
        raise UserError(f"policy_loss.rule {rule.label!r} {late}class: use a rule without drift and with a fixed range")
    for name, ours in _REPLACED.items():
        if getattr(config, name) != ActorConfig.__dataclass_fields__[name].default:
            raise UserError(
                f"actor.{name}={getattr(config, name)} belongs to verl's own losses, and {NAME!r} does not read it: "
                f"leave it out and set policy_loss.{ours}"
            )


def _aggregation(mask: Tensor, mode: str, info: dict[str, Any]) -> tuple[Any, float]:
    """Return our aggregation and the denominator that together average as verl's ``agg_loss`` does in ``mode``."""
    per_process = info.get("dp_size") or 1  # number of processes over which verl averages gradients

    def whole(name: str, local: Tensor) -> float:
        if info.get(name) is None and per_process > 1:
            raise UserError(f"verl gave no {name} for {per_process} processes: the loss cannot be averaged over them")
        return float(local) if info.get(name) is None else float(info[name])

    if mode == "token-mean":
        return "token", whole("batch_num_tokens", mask.sum()) / per_process
    if mode == "token-sum":
        return "response", 1 / per_process
    responses = whole("global_batch_size", mask.any(1).sum()) / per_process
    if mode == FAIR_MODE:
        return "sequence", responses
    if mode == "seq-mean-token-sum":
        return "response", responses
    if mode == "seq-mean-token-sum-norm":
        return "response", responses * (info.get("loss_scale_factor") or mask.shape[1])
    raise UserError(f"actor.loss_agg_mode={mode!r} is unknown here: use {FAIR_MODE!r}")
