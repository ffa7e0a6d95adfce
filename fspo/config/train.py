"""All options of a training run together, and checks of options that belong to different groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec

from fspo.base.errors import UserError
from fspo.config.batch import BatchConfig
from fspo.config.log import LogConfig
from fspo.config.model import ModelConfig, WarmupConfig
from fspo.config.optimizer import OptimConfig
from fspo.config.option_ranges import SEEDS, check_ranges, number
from fspo.config.rule import CorrectionConfig, RuleConfig
from fspo.config.sampling import SamplingConfig
from fspo.config.task import EvalConfig, TaskConfig
from fspo.rules import check_ratios
from fspo.rules.gone import GONE_PARTS


@dataclass(frozen=True)
class TrainConfig:
    """Options of a training run: those below, and those in groups, each with a class of its own.

    The groups are ``model``, ``task``, ``rule``, ``correction``, ``batch``, ``sampling``, ``optim``, ``log``, ``eval``
    and ``warmup``.

    Parameters
    ----------
    output : str
        The run folder, into which the run is written.
    rollouts : int
        Number of rollouts to train for.
    seed : int
        Seed of the run; the sampling noise depends on it too.
    threads : int, optional
        Torch threads of each process on the CPU; 0 leaves torch's choice. By default 1 for the embedded model, whose
        operations are too small to share, and else torch's choice.
    checkpoint_every : int
        Number of rollouts from one checkpoint to the next; 0 keeps only the last.
    keep_checkpoints : int
        Number of newest checkpoints to keep; older ones are removed.
    trackers : tuple of str, optional
        accelerate's trackers, for example tensorboard or wandb; by default tensorboard if it is installed.
    resume : bool
        Go on from the newest checkpoint in the run folder; if there is none, start the run.
    cpu : bool
        Train on the CPU even where there is an accelerator.
    processes : int, optional
        Number of processes that must run; with another number the run refuses to start.
    """

    GONE = {
        "optim.name": "leave it out, every run has AdamW",
        "log.audit_every": "leave it out, no fresh responses are sampled to an update's prompts",
        "log.coverage_every": "leave it out, sketches are compared with full gradients in tests alone",
        "log.tokens": "leave it out, the log has the sums over a response's tokens",
        "batch.padding_side": "leave it out, sequences are padded on the right",
        "batch.rounded_logits": "leave it out, logits have the precision of float32",
        "log.scores.mode": "leave it out, and set width and projection to null for whole scores",
        "log.scores.redraw": "leave it out, every rollout has projections of its own",
        "batch.redraws": "leave it out, groups with equal rewards stay",
        "batch.drop=failed": "leave it out, a response that could not be judged has reward 0",
        "rule.on": "leave it out, correction.preset corrects the sampler's mismatch",
    } | {f"rule.{part}={name}": f"use {new}" for part, names in GONE_PARTS.items() for name, new in names.items()}
    """Options, and values of options, of earlier releases -> what to do."""

    output: str = "out/run"
    rollouts: int = number(30, 1)
    seed: int = number(0, 0, SEEDS)
    threads: int | None = number(None, 0, 1024)
    checkpoint_every: int = number(5, 0)
    keep_checkpoints: int = number(2, 1)
    trackers: tuple[str, ...] | None = None
    resume: bool = False
    cpu: bool = False
    processes: int | None = number(None, 1)
    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    rule: RuleConfig = field(default_factory=RuleConfig)
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    log: LogConfig = field(default_factory=LogConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    warmup: WarmupConfig = field(default_factory=WarmupConfig)

    def __post_init__(self) -> None:
        check_ranges(self, "")
        if not self.output.strip() or "\0" in self.output:
            raise UserError(f"output is {self.output!r}: give the path of the run folder")
        rule = self.rule.rule()
        check_ratios(rule, self.correction.rule())
        if self.sampling.temperature <= 0:
            raise UserError("sampling.temperature must be > 0 for training: greedy responses have no log-ratios")
        if self.sampling.precision == self.model.dtype:
            raise UserError(f"model.dtype is {self.model.dtype} already: set sampling.precision to same")
        if self.rule.advantage_estimator() == "rloo" and self.batch.responses < 2:
            raise UserError("advantage 'rloo' leaves one response out: set batch.responses to 2 or more")
        if rule.weight == "geometric" and self.rule.objective().aggregation == "constant":
            raise UserError("aggregation 'constant' with a geometric weight divides by length twice; use 'response'")
        updates, first = self.batch.updates, -self.batch.minibatches
        wrong = [m for m in self.log.score_minibatches if not first <= m < updates]
        if wrong:
            raise UserError(
                f"log.score_minibatches names update {wrong[0]}, but a rollout has the updates 0 to {updates - 1} "
                f"(or {first} to -1, counted from the end of the first pass)"
            )

    @property
    def torch_threads(self) -> int:
        """The number of torch's threads, as the option ``threads`` says; 0 leaves torch's choice."""
        return int(self.model.name_or_path == ModelConfig.name_or_path) if self.threads is None else self.threads

    def scored_updates(self) -> set[int]:
        """Return the numbers (from 0) of a rollout's updates whose responses are scored."""
        return {m + self.batch.minibatches if m < 0 else m for m in self.log.score_minibatches}

    def tracker_names(self) -> tuple[str, ...]:
        """Return the names of accelerate's trackers that this run uses: the option ``trackers``, or its default. Raise
        UserError if one is not installed."""
        if self.trackers is None:
            return ("tensorboard",) if find_spec("tensorboard") else ()
        for name in self.trackers:
            if find_spec(name) is None:
                raise UserError(f"tracker {name!r} is not installed: pip install {name}, or leave it out of trackers")
        return self.trackers

    def warnings(self) -> list[str]:
        """Return a warning for each setting that is allowed but probably not meant; each says what to change."""
        found = []
        if self.batch.updates == 1:
            found.append(
                "one update a rollout makes S identically 0, so no rule ever clips: set batch.minibatches or "
                "batch.epochs above 1"
            )
        elif self.batch.minibatches == 1:
            found.append("one minibatch leaves no first-epoch rows with S != 0: set batch.minibatches to 2 or more")
        if self.model.dtype == "bfloat16" and self.model.lora is None:
            found.append(
                "bfloat16 weights lose AdamW's updates below 1/512 of their size: train float32 weights with mixed "
                "precision (fspo/presets/accelerate/fsdp2.yaml)"
            )
        if self.batch.responses == 1:
            found.append("one response a prompt gives advantage 0 everywhere: set batch.responses to 2 or more")
        return found
