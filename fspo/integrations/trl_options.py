"""Options of `fspo.integrations.trl.FSPOTrainer`; settings that would silently switch the rule off are refused."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import get_args

from trl import GRPOConfig

from fspo.base.errors import UserError
from fspo.config import ObjectiveConfig, RuleConfig
from fspo.integrations.shared import RuleParts, check_drift, given
from fspo.rules import Aggregation, Rule

_AVERAGES = ", ".join(get_args(Aggregation))
_OWN_LOSS = "belongs to TRL's own clipped loss, which the rule replaces: leave it out and set"
_REFUSED = {
    "loss_type": f"{_OWN_LOSS} aggregation",
    "importance_sampling_level": f"{_OWN_LOSS} rule",
    "epsilon": f"{_OWN_LOSS} range_lo and range_hi",
    "epsilon_high": f"{_OWN_LOSS} range_hi",
    "delta": f"{_OWN_LOSS} dual",
    "top_entropy_quantile": "drops tokens, so the weight of a response would not be that of its tokens: leave it out",
    "off_policy_mask_threshold": "drops long responses by a mean KL before the band sees them: leave it out",
    "entropy_coef": "adds an entropy bonus, which FSPOTrainer does not compute: leave it out",
    "use_adaptive_entropy": "adds an entropy bonus, which FSPOTrainer does not compute: leave it out",
}
"""Why options of TRL must have their defaults, and what to do instead."""


@dataclass
class FSPOConfig(RuleParts, GRPOConfig):
    """TRL's `GRPOConfig` with a clip rule; TRL computes the advantages (``scale_rewards``).

    Three defaults differ from TRL's: ``vllm_importance_sampling_correction=False``, so that only the rule weighs
    responses unless TRL's correction of vLLM's mismatch is asked for (its factor then multiplies the gradient of each
    token); ``use_bias_correction_kl=False``, because the KL term is not weighed by TRL's unclipped ratio; and
    ``disable_dropout=True``, because dropout makes S random. ``beta`` weighs the penalty on KL(new||reference): its
    estimate k3 (exp(d) - 1 - d, d the reference's log-probability less the new one) is aggregated like the rule's
    terms: "response" sums it over a response's tokens, where TRL's losses take means.

    Parameters
    ----------
    rule : str
        Preset: fspo, fspo-kl, fspo-adaptive, gspo, rloo, grpo or none (`fspo.rules.PRESETS`).
    range_lo, range_hi, gamma, drift, ... : optional
        Parts of the rule to change in the preset, as in `fspo.config.RuleConfig`. TRL shows one microbatch at a time,
        so a rule with a drift needs ``drift_source="lagged"``.
    aggregation : str, optional
        How terms become one loss: "response", "sequence", "token" or "constant", as in `fspo.config.ObjectiveConfig`;
        by default the preset's.
    constant_length : int, optional
        Divisor of "constant", tokens; ``max_completion_length`` by default.
    score_every : int
        Number of rollouts from one score pass to the next (it takes a sketch of each response's score, for the cosine
        tables); 0 for never. A score pass costs about as much as one update and is made on one update of the rollout.

    Raises
    ------
    UserError
        For options under which the rule would not apply; the message says what to set instead.
    """

    use_bias_correction_kl: bool = field(default=False, metadata={"help": "Must stay False: the KL term is plain k3."})
    vllm_importance_sampling_correction: bool = field(
        default=False, metadata={"help": "TRL's correction of vLLM's mismatch, beside the rule."}
    )
    disable_dropout: bool = field(default=True, metadata={"help": "Disable dropout, which makes S random."})
    rule: str = field(default="fspo", metadata={"help": "Preset of the clip rule."})
    aggregation: str | None = field(default=None, metadata={"help": f"How terms are averaged: {_AVERAGES}."})
    constant_length: int | None = field(default=None, metadata={"help": "Divisor of aggregation 'constant'."})
    score_every: int = field(default=0, metadata={"help": "Rollouts between score passes, 0 for never."})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check()

    def _parts(self) -> RuleConfig:
        parts = given(self)
        if self.aggregation == "constant" and self.constant_length is None:
            parts["constant_length"] = self.max_completion_length
        return RuleConfig(preset=self.rule, kl_coef=self.beta, **parts)

    def clip_rule(self) -> Rule:
        """Return the clip rule: the preset with the parts that were changed."""
        return self._parts().rule()

    def objective(self) -> ObjectiveConfig:
        """Return the options of the objective: the aggregation, and the weight of the penalty on KL(new||reference)."""
        return self._parts().objective()

    def check(self) -> None:
        """Raise UserError for options of TRL that contradict the rule or would keep it from being applied."""
        rule, objective = self.clip_rule(), self.objective()
        defaults = {f.name: f.default for f in fields(GRPOConfig)}
        for name, why in _REFUSED.items():
            if getattr(self, name) != defaults[name]:
                raise UserError(f"{name}={getattr(self, name)!r} {why}")
        if self.beta != 0 and self.use_bias_correction_kl:
            raise UserError(
                "use_bias_correction_kl=True weighs the KL term by TRL's own unclipped ratio: set it to False"
            )
        accumulation = self.gradient_accumulation_steps
        microbatches = int(self.steps_per_generation or accumulation) * self.num_iterations  # of one generation
        if rule.shape != "none" and accumulation % microbatches == 0:
            raise UserError(
                "one update a generation makes S identically 0, so no rule ever clips: set "
                f"steps_per_generation={4 * accumulation} (4 updates a generation, on 4 times the responses) or "
                "num_iterations=2, or rule='none'"
            )
        check_drift(rule, "TRL", "drift_source='lagged'")
        if rule.weight == "geometric" and objective.aggregation == "constant":
            raise UserError("aggregation 'constant' with a geometric weight divides by length twice; use 'response'")
        if self.score_every < 0:
            raise UserError(f"score_every is {self.score_every}: use 0 (never) or more")
        if self.score_every and self.deepspeed is not None:
            raise UserError("the score pass needs hooks that DeepSpeed does not let through: set score_every=0")
