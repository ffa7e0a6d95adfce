"""The groups of options: task, optimizer, batch, held-out evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from fspo.base.errors import UserError
from fspo.config.ranges import check_ranges, number


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
    max_prompt_tokens: int = number(2048, 1)

    def __post_init__(self) -> None:
        check_ranges(self, "task")


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
    beta1 : float
        Decay of AdamW's mean of gradients.
    beta2 : float
        Decay of AdamW's mean of squared gradients.
    weight_decay : float
        Decoupled, as in torch.optim.AdamW.
    max_grad_norm : float
        The gradient's norm is clipped here; .inf clips nothing.
    max_skipped_updates : int
        An update with a loss or gradient that is not finite, or an importance weight beyond e^20 that is not clipped,
        is skipped on all processes and counted; more than this many stop the run.
    """

    name: Literal["adamw", "adamw8bit"] = "adamw"
    learning_rate: float = number(2e-4, 0, 1)
    warmup_updates: int = number(24, 0)
    beta1: float = number(0.9, 0, 1, below=True)
    beta2: float = number(0.95, 0, 1, below=True)
    weight_decay: float = number(0.0, 0, 10)
    max_grad_norm: float = number(1.0, 0, 1e9, above=True, also=(inf,))
    max_skipped_updates: int = number(10, 0)

    def __post_init__(self) -> None:
        check_ranges(self, "optim")


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

    prompts: int = number(64, 1)
    responses: int = number(8, 1)
    minibatches: int = number(4, 1)
    epochs: int = number(2, 1)
    tokens: int = number(2048, 1)
    padding_side: Literal["right", "left"] = "right"
    logits: int | None = number(None, 1, 2**40)
    redraws: int = number(0, 0)
    drop: tuple[Literal["truncated", "failed"], ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self, "batch")
        if self.prompts < self.minibatches:
            raise UserError(
                f"batch.minibatches={self.minibatches} exceeds batch.prompts={self.prompts}: each needs a group"
            )


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

    every: int = number(5, 0)
    prompts: int = number(256, 1)
    temperature: float = number(1.0, 1e-3, 1e3, also=(0,))

    def __post_init__(self) -> None:
        check_ranges(self, "eval")
