"""The option groups of a training run: model, task, rule, optimizer, batch, log, evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from fspo.base.errors import UserError
from fspo.models.load import LoraOptions
from fspo.objective import ObjectiveConfig
from fspo.policy.scores import ScoreConfig
from fspo.rules import Adapt, Aggregation, Drift, DriftSource, Estimator, Outside, Rate, Rule, preset


def check_least(config: Any, group: str, **least: float) -> None:
    """Refuse values below their least one; NaN too."""
    for name, bound in least.items():
        value = getattr(config, name)
        if not value >= bound:
            raise UserError(f"{group + '.' if group else ''}{name} is {value}: use {bound} or more")


@dataclass(frozen=True)
class ModelConfig:
    """The policy.

    Parameters
    ----------
    name_or_path : str
        "embedded" (a small Qwen3, warmed up on the task first), a folder or a Hugging Face name.
    tokenizer : str, optional
        Tokenizer's folder or name where it is not the model's.
    dtype : {"float32", "bfloat16"}
        Type of the weights.
    attn_implementation : str, optional
        As in transformers: "sdpa", "eager", "flash_attention_2".
    gradient_checkpointing : bool
        Recompute activations in the backward pass.
    lora : LoraOptions, optional
        Train adapters instead of all weights (extra "lora").
    """

    name_or_path: str = "embedded"
    tokenizer: str | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    attn_implementation: str | None = None
    gradient_checkpointing: bool = False
    lora: LoraOptions | None = None


@dataclass(frozen=True)
class TaskConfig:
    """What is trained on.

    Parameters
    ----------
    name : str
        "chain-add" (embedded), "gym:<reasoning-gym task>", "dataset", or a known training set: "dapo-math-17k",
        "deepscaler", "gsm8k".
    options : dict
        The task's own options, for example {"path": "train.jsonl", "judge": {"verifier": "math"}}.
    chat_template : bool, optional
        Force the tokenizer's chat template on or off; by default it is used where there is one.
    max_prompt_tokens : int
        Longer prompts are left out and counted.
    """

    name: str = "chain-add"
    options: dict[str, Any] = field(default_factory=dict)
    chat_template: bool | None = None
    max_prompt_tokens: int = 2048

    def __post_init__(self) -> None:
        check_least(self, "task", max_prompt_tokens=1)


@dataclass(frozen=True)
class RuleConfig:
    """The clip rule: a preset, with any of its parts changed (docs/theory.md section 2).

    Parameters
    ----------
    preset : str
        none, rloo, gspo, fspo, fspo-kl, fspo-gaussian, fspo-tilted, fspo-truncate, fspo-cap, fspo-signed, fspo-auto,
        fspo-adaptive, fspo-conformal, power, grpo, ctpo.
    range_lo, range_hi : float, optional
        Lower and upper range: eps for rloo, gspo, grpo; c (nats per root token) for fspo.
    gamma : float, optional
        Exponent of preset "power".
    drift, drift_source, outside, dual : optional
        As in `fspo.rules.Rule`.
    adapt : {"none", "range", "exponent", "bins"}, optional
        What follows a target acceptance online, so that no pilot run is needed: with any preset on whole sequences.
    target : float, optional
        The acceptance to follow.
    target_rate : {"band", "update"}, optional
        Of all responses, or of those with A != 0 the share that is not cut.
    advantage : {"rloo", "grpo", "dr_grpo"}, optional
        Advantage estimator, by default the preset's.
    aggregation : {"response", "token", "sequence", "constant"}, optional
        How terms become a loss, by default the preset's.
    constant_length : int, optional
        Divisor of the "constant" aggregation, tokens.
    kl_coef : float
        Weight of the KL term against the initial model.
    """

    preset: str = "fspo"
    range_lo: float | None = None
    range_hi: float | None = None
    gamma: float | None = None
    drift: Drift | None = None
    drift_source: DriftSource | None = None
    outside: Outside | None = None
    dual: float | None = None
    adapt: Adapt | None = None
    target: float | None = None
    target_rate: Rate | None = None
    advantage: Estimator | None = None
    aggregation: Aggregation | None = None
    constant_length: int | None = None
    kl_coef: float = 0.0

    def rule(self) -> Rule:
        """The clip rule."""
        names = ("range_lo", "range_hi", "gamma", "drift", "drift_source", "outside", "dual")
        names += ("adapt", "target", "target_rate")
        return preset(self.preset, **{n: getattr(self, n) for n in names if getattr(self, n) is not None}).rule

    def advantage_estimator(self) -> Estimator:
        """The advantage estimator."""
        return self.advantage or preset(self.preset).advantage

    def objective(self) -> ObjectiveConfig:
        """Aggregation and KL term."""
        return ObjectiveConfig(
            aggregation=self.aggregation or preset(self.preset).aggregation,
            constant_length=self.constant_length,
            kl_coef=self.kl_coef,
        )


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer.

    Parameters
    ----------
    name : {"adamw", "adamw8bit"}
        "adamw8bit" keeps both moments in 8 bits and rounds bfloat16 weights stochastically (extra "8bit").
    learning_rate : float
        After the warm-up; constant.
    warmup_updates : int
        Updates over which the learning rate grows linearly; without them the first updates of a small model blow up.
    beta1, beta2, weight_decay : float
        As in torch.optim.AdamW.
    max_grad_norm : float
        The gradient's norm is clipped here.
    max_skipped_updates : int
        An update with a loss or gradient that is not finite, or an importance weight beyond e^20 that is not clipped,
        is skipped on all processes and counted; more than this many stop the run.
    """

    name: Literal["adamw", "adamw8bit"] = "adamw"
    learning_rate: float = 2e-4
    warmup_updates: int = 24
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    max_skipped_updates: int = 10

    def __post_init__(self) -> None:
        check_least(self, "optim", learning_rate=0, warmup_updates=0, weight_decay=0, max_skipped_updates=0)
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"optim.{name} is {getattr(self, name)}: use a number of at least 0 and below 1")
        if not self.max_grad_norm > 0:
            raise UserError(f"optim.max_grad_norm is {self.max_grad_norm}: use a number above 0 (.inf clips nothing)")


@dataclass(frozen=True)
class BatchConfig:
    """Sizes of a rollout and how it is cut into updates.

    Parameters
    ----------
    prompts : int
        Prompts a rollout, over all processes.
    responses : int
        Responses a prompt (the group of the advantage).
    minibatches : int
        Updates a pass over the rollout; whole groups stay together. With minibatches * epochs = 1 every S is 0.
    epochs : int
        Passes over the rollout.
    tokens : int
        Padded tokens of one microbatch. The default suits the caches of a CPU and a small model; give a GPU more.
    padding_side : {"right", "left"}
        Side of the padding in the training forward.
    logits : int, optional
        Most logits (tokens x vocabulary entries, float32) that exist at a time in training, old log-probs and score
        passes; by default 2^20 on a CPU and 2^24 (64 MiB) on a GPU.
    redraws : int
        How often at most a rollout draws further prompts for groups whose rewards are all equal (dynamic sampling);
        what is lacking then is filled up with such groups, whose gradient is 0.
    drop : tuple of {"truncated", "failed"}
        Responses that get no gradient: those cut at the length limit, those that the verifier could not judge. They
        are counted by length bin. By default a truncated response is judged as it stands and a failed one has reward 0.
    """

    prompts: int = 64
    responses: int = 8
    minibatches: int = 4
    epochs: int = 2
    tokens: int = 2048
    padding_side: Literal["right", "left"] = "right"
    logits: int | None = None
    redraws: int = 0
    drop: tuple[Literal["truncated", "failed"], ...] = ()

    def __post_init__(self) -> None:
        check_least(self, "batch", prompts=1, responses=1, minibatches=1, epochs=1, tokens=1, redraws=0)
        if self.logits is not None:
            check_least(self, "batch", logits=1)
        if self.prompts < self.minibatches:
            raise UserError(
                f"batch.minibatches={self.minibatches} exceeds batch.prompts={self.prompts}: each needs a group"
            )


@dataclass(frozen=True)
class LogConfig:
    """The gradient log.

    Parameters
    ----------
    scores : ScoreConfig
        Sketch of each response's score.
    score_every : int
        Rollouts between score passes; 0 for never.
    score_minibatches : tuple of int
        Updates of a rollout whose responses are scored, counted from 0; negative ones count back from the end of the
        first pass. The last of the first pass is at first use after most updates.
    audit_every : int
        Rollouts between audits (fresh responses at the parameters of the scored update); 0 for never.
    coverage_every : int
        Rollouts between measurements of the sketch against full gradients on a few responses; 0 for never.
    entropy : bool
        Log the policy's entropy (costs one pass over the logits).
    length_edges : tuple of int
        Edges of the live length bins, tokens.
    samples : int
        Responses of each rollout that are kept as text under ``rollouts/``.
    """

    scores: ScoreConfig = field(default_factory=ScoreConfig)
    score_every: int = 1
    score_minibatches: tuple[int, ...] = (-1,)
    audit_every: int = 0
    coverage_every: int = 0
    entropy: bool = True
    length_edges: tuple[int, ...] = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
    samples: int = 8

    def __post_init__(self) -> None:
        check_least(self, "log", score_every=0, audit_every=0, coverage_every=0, samples=0)
        edges = self.length_edges
        if not edges or edges[0] not in (0, 1) or any(b <= a for a, b in pairwise(edges)):
            raise UserError(f"log.length_edges is {list(edges)}: start at 1 and let the edges rise")
        if (self.audit_every or self.coverage_every) and not (self.score_every and self.score_minibatches):
            raise UserError("log.audit_every and log.coverage_every need score passes: set log.score_every to 1")


@dataclass(frozen=True)
class EvalConfig:
    """Held-out evaluation.

    Parameters
    ----------
    every : int
        Rollouts between evaluations; 0 for never.
    prompts : int
        Held-out prompts, one sampled response each.
    temperature : float
        0 is greedy.
    """

    every: int = 5
    prompts: int = 256
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_least(self, "eval", every=0, prompts=1, temperature=0)
