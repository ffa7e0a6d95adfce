"""One configuration for a training run: typed dataclasses, filled from a YAML file and the command line.

jsonargparse parses, checks types and prints the help; what it cannot know (values that contradict each other)
is checked in ``__post_init__``. The command line wins over the file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

from fspo.errors import UserError, unknown_name
from fspo.models import LoraOptions
from fspo.objective import ObjectiveConfig
from fspo.rollout import SamplingConfig
from fspo.rules import Drift, DriftSource, Outside, Rule, preset
from fspo.scores import ScoreConfig
from fspo.warmup import WarmupConfig

ConfigT = TypeVar("ConfigT")


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
        "chain-add" (embedded), "gym:<reasoning-gym task>" or "dataset".
    options : dict
        The task's own options, for example {"path": "train.jsonl", "verifier": "math"}.
    chat_template : bool, optional
        Force the tokenizer's chat template on or off; by default it is used where there is one.
    max_prompt_tokens : int
        Longer prompts are left out and counted.
    """

    name: str = "chain-add"
    options: dict[str, Any] = field(default_factory=dict)
    chat_template: bool | None = None
    max_prompt_tokens: int = 2048


@dataclass(frozen=True)
class RuleConfig:
    """The clip rule: a preset, with any of its parts changed (docs/theory.md section 2).

    Parameters
    ----------
    preset : str
        none, rloo, gspo, fspo, fspo-kl, fspo-gaussian, fspo-tilted, fspo-truncate, fspo-cap, power, grpo, ctpo.
    range_lo, range_hi : float, optional
        Lower and upper range: eps for rloo, gspo, grpo; c (nats per root token) for fspo.
    gamma : float, optional
        Exponent of preset "power".
    drift, drift_source, outside, dual : optional
        As in `fspo.rules.Rule`.
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
    advantage: Literal["rloo", "grpo", "dr_grpo"] | None = None
    aggregation: Literal["response", "token", "sequence", "constant"] | None = None
    constant_length: int | None = None
    kl_coef: float = 0.0

    def rule(self) -> Rule:
        """The clip rule."""
        names = ("range_lo", "range_hi", "gamma", "drift", "drift_source", "outside", "dual")
        return preset(self.preset, **{n: getattr(self, n) for n in names if getattr(self, n) is not None}).rule

    def advantage_estimator(self) -> Literal["rloo", "grpo", "dr_grpo"]:
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
    """AdamW.

    Parameters
    ----------
    learning_rate : float
        After the warm-up; constant.
    warmup_updates : int
        Updates over which the learning rate grows linearly; without them the first updates of a small model blow up.
    beta1, beta2, weight_decay : float
        As in torch.optim.AdamW.
    max_grad_norm : float
        The gradient's norm is clipped here.
    max_skipped_updates : int
        An update with a non-finite gradient is skipped on all processes and counted; more than this many stop the run.
    """

    learning_rate: float = 2e-4
    warmup_updates: int = 24
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    max_skipped_updates: int = 10


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
        Padded tokens of one microbatch.
    padding_side : {"right", "left"}
        Side of the padding in the training forward.
    """

    prompts: int = 64
    responses: int = 8
    minibatches: int = 4
    epochs: int = 2
    tokens: int = 8192
    padding_side: Literal["right", "left"] = "right"

    def __post_init__(self) -> None:
        for name in ("prompts", "responses", "minibatches", "epochs", "tokens"):
            if getattr(self, name) < 1:
                raise UserError(f"batch.{name} is {getattr(self, name)}: use 1 or more")
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
    """

    scores: ScoreConfig = field(default_factory=ScoreConfig)
    score_every: int = 1
    score_minibatches: tuple[int, ...] = (-1,)
    audit_every: int = 0
    coverage_every: int = 0
    entropy: bool = True
    length_edges: tuple[int, ...] = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


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
    trackers : tuple of str
        accelerate's trackers, for example tensorboard or wandb.
    resume : bool
        Go on from the newest checkpoint in the run folder.
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
    trackers: tuple[str, ...] = ()
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
        if self.rollouts < 1:
            raise UserError(f"rollouts is {self.rollouts}: use 1 or more")

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
        if self.batch.responses == 1:
            found.append("one response a prompt gives advantage 0 everywhere: set batch.responses to 2 or more")
        return found


def parse(
    cls: type[ConfigT], args: Sequence[str] | None, *, prog: str, description: str, positional: str | None = None
) -> ConfigT:
    """Build a configuration dataclass from a command line with an optional ``--config FILE``.

    Raises
    ------
    UserError
        Unknown keys (with the nearest right name), wrong types, impossible values.
    """
    from jsonargparse import ArgumentError, ArgumentParser

    parser = ArgumentParser(prog=prog, description=description, exit_on_error=False)
    parser.add_argument("--config", action="config", help="YAML file; the command line wins over it")
    parser.add_class_arguments(cls, None)
    try:
        namespace = parser.parse_args(args)
        namespace.pop("config", None)
        return cls(**_values(cls, parser.instantiate(namespace)))
    except UserError:
        raise
    except (ArgumentError, ValueError, TypeError) as error:
        raise UserError(_explain(" ".join(str(error).split()), cls)) from error


def _values(cls: type, namespace: Any) -> dict[str, Any]:
    return {f.name: getattr(namespace, f.name) for f in fields(cls)}


def option_names(cls: type, prefix: str = "") -> list[str]:
    """Dotted names of every option of a configuration dataclass."""
    names = []
    for name, hint in get_type_hints(cls).items():
        names.append(prefix + name)
        if is_dataclass(hint):
            names += option_names(hint, f"{prefix}{name}.")  # type: ignore[arg-type]
    return names


def _explain(message: str, cls: type) -> str:
    names = option_names(cls)
    if match := re.search(r"unrecognized arguments?: --([\w.\-]+)", message, re.IGNORECASE):
        return str(unknown_option(match[1], names))
    if match := re.search(r"Group '([\w.]+)' does not accept option '([\w.\-]+)'", message):
        return str(unknown_option(f"{match[1]}.{match[2]}", names))
    if match := re.search(r"(?:Key|option) '([\w.\-]+)' is not (?:expected|accepted)", message):
        return str(unknown_option(match[1], names))
    return message


def unknown_option(name: str, names: Sequence[str]) -> UserError:
    """The error for an option that does not exist; siblings are tried before all names."""
    group = name.rpartition(".")[0]
    siblings = [n for n in names if n.rpartition(".")[0] == group]
    error = unknown_name("option", name, siblings or list(names))
    if "did you mean" in str(error) or not siblings:
        return error
    wide = str(unknown_name("option", name, list(names)))
    return UserError(wide.split("choose from")[0].rstrip() + f" options here: {', '.join(siblings)}")


def to_dict(config: Any) -> dict[str, Any]:
    """Plain values of a configuration, for config.yaml (tuples become lists)."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, list | tuple) else value

    return plain(asdict(config))


def save(config: Any, path: Path) -> None:
    """Write the resolved configuration as YAML, whole or not at all."""
    import yaml

    part = path.with_suffix(".part")
    part.write_text(yaml.safe_dump(to_dict(config), sort_keys=False), encoding="utf-8")
    part.replace(path)
