"""One configuration for a training run: typed dataclasses, filled from a YAML file and the command line.

jsonargparse parses, checks types and prints the help; what it cannot know (values that contradict each other)
is checked in ``__post_init__``. The command line wins over the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, Literal

from fspo.errors import UserError
from fspo.models import LoraOptions
from fspo.objective import ObjectiveConfig
from fspo.rollout import SamplingConfig
from fspo.rules import Adapt, Aggregation, Drift, DriftSource, Estimator, Outside, Rate, Rule, preset
from fspo.scores import ScoreConfig
from fspo.warmup import WarmupConfig


def _check(config: Any, group: str, **least: float) -> None:
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
        _check(self, "task", max_prompt_tokens=1)


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
        _check(self, "optim", learning_rate=0, warmup_updates=0, weight_decay=0, max_skipped_updates=0)
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
        _check(self, "batch", prompts=1, responses=1, minibatches=1, epochs=1, tokens=1, redraws=0)
        if self.logits is not None:
            _check(self, "batch", logits=1)
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
        _check(self, "log", score_every=0, audit_every=0, coverage_every=0, samples=0)
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
        _check(self, "eval", every=0, prompts=1, temperature=0)


@dataclass(frozen=True)
class TrainConfig:
    """A training run.

    Parameters
    ----------
    output : str
        The run folder.
    rollouts : int
        Rollouts to train for.
    seed : int
        Seed of everything; sampling noise is keyed by it.
    threads : int
        Torch threads of each process on the CPU; 0 leaves torch's choice.
    checkpoint_every : int
        Rollouts between checkpoints; 0 keeps only the last.
    keep_checkpoints : int
        Older ones are removed.
    trackers : tuple of str, optional
        accelerate's trackers, for example tensorboard or wandb; by default tensorboard where it is installed.
    resume : bool
        Go on from the newest checkpoint in the run folder; start a run where there is none.
    cpu : bool
        Train on the CPU even where there is an accelerator.
    processes : int, optional
        Refuse to start with another number of processes than this.
    """

    output: str = "out/run"
    rollouts: int = 30
    seed: int = 0
    threads: int = 2
    checkpoint_every: int = 5
    keep_checkpoints: int = 2
    trackers: tuple[str, ...] | None = None
    resume: bool = False
    cpu: bool = False
    processes: int | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    rule: RuleConfig = field(default_factory=RuleConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    log: LogConfig = field(default_factory=LogConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    warmup: WarmupConfig = field(default_factory=WarmupConfig)

    def __post_init__(self) -> None:
        rule = self.rule.rule()
        self.rule.objective()
        if self.sampling.temperature <= 0:
            raise UserError("sampling.temperature must be > 0 for training: greedy responses have no log-ratios")
        if self.rule.advantage_estimator() == "rloo" and self.batch.responses < 2:
            raise UserError("advantage 'rloo' leaves one response out: set batch.responses to 2 or more")
        if rule.weight == "geometric" and self.rule.objective().aggregation == "constant":
            raise UserError("aggregation 'constant' with a geometric weight divides by length twice; use 'response'")
        _check(self, "", rollouts=1, seed=0, threads=0, checkpoint_every=0, keep_checkpoints=1)
        if self.processes is not None:
            _check(self, "", processes=1)
        updates, first = self.batch.minibatches * self.batch.epochs, -self.batch.minibatches
        wrong = [m for m in self.log.score_minibatches if not first <= m < updates]
        if wrong:
            raise UserError(
                f"log.score_minibatches names update {wrong[0]}, but a rollout has the updates 0 to {updates - 1} "
                f"(or {first} to -1, counted from the end of the first pass)"
            )
        if self.log.audit_every and min(self.scored_updates()) >= self.batch.minibatches:
            raise UserError("log.audit_every needs a scored update in the first pass: add -1 to log.score_minibatches")

    def scored_updates(self) -> set[int]:
        """Updates of a rollout whose responses are scored, counted from 0."""
        return {m + self.batch.minibatches if m < 0 else m for m in self.log.score_minibatches}

    def tracker_names(self) -> tuple[str, ...]:
        """accelerate's trackers that this run uses."""
        if self.trackers is None:
            return ("tensorboard",) if find_spec("tensorboard") else ()
        return self.trackers

    def warnings(self) -> list[str]:
        """Settings that are legal and probably not meant, each with its cure."""
        found = []
        if self.batch.minibatches * self.batch.epochs == 1:
            found.append(
                "one update a rollout makes S identically 0, so no rule ever clips: set batch.minibatches or "
                "batch.epochs above 1"
            )
        elif self.batch.minibatches == 1:
            found.append("one minibatch leaves no first-use rows with S != 0: set batch.minibatches to 2 or more")
        if self.model.dtype == "bfloat16" and self.optim.name == "adamw" and self.model.lora is None:
            found.append(
                "bfloat16 weights lose AdamW's updates below 1/512 of their size: set optim.name to adamw8bit, or "
                "train float32 weights with mixed precision (fspo/presets/accelerate/fsdp2.yaml)"
            )
        if self.batch.responses == 1:
            found.append("one response a prompt gives advantage 0 everywhere: set batch.responses to 2 or more")
        return found
