"""Options of the task, the optimizer, the batch and the held-out evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from fspo.base.errors import UserError
from fspo.config.ranges import check_ranges, number


@dataclass(frozen=True)
class TaskConfig:
    """The task: the prompts to train on and how responses are judged.

    Parameters
    ----------
    name : str
        "chain-add" (repeated addition, for the embedded model), "even-tokens" (for models with random weights),
        "gym:<reasoning-gym task>", "dataset" (the user's data), or a known training set: "dapo-math-17k", "deepscaler",
        "gsm8k".
    options : dict
        Options of the task, for example {"path": "train.jsonl", "judge": {"verifier": "math"}}.
    chat_template : bool, optional
        Force the tokenizer's chat template on or off; by default it is used where there is one.
    max_prompt_tokens : int
        Greatest length of a prompt, tokens. Longer prompts are left out and counted.
    """

    name: str = "chain-add"
    options: dict[str, Any] = field(default_factory=dict)
    chat_template: bool | None = None
    max_prompt_tokens: int = number(2048, 1)

    def __post_init__(self) -> None:
        check_ranges(self, "task")


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer and its settings.

    Parameters
    ----------
    learning_rate : float
        Learning rate after the warm-up; it stays constant.
    warmup_updates : int
        Updates over which the learning rate grows linearly from 0. Without a warm-up a small model may diverge at the
        first updates.
    beta1 : float
        Decay of AdamW's mean of gradients.
    beta2 : float
        Decay of AdamW's mean of squared gradients.
    weight_decay : float
        Decoupled weight decay, as in torch.optim.AdamW.
    max_grad_norm : float
        Largest norm of the gradient; a gradient with a larger norm is scaled down to it. .inf clips nothing.
    max_skipped_updates : int
        Number of skipped updates after which the next one stops the run. An update is skipped on all processes if its
        loss or gradient is not finite, or an importance weight beyond e^20 is not clipped.
    """

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
    """How many responses a rollout has, and how they are divided into updates.

    Parameters
    ----------
    prompts : int
        Prompts in each rollout, over all processes.
    responses : int
        Responses to each prompt: the group in which advantages are made.
    minibatches : int
        Updates in each pass over the rollout. All responses to a prompt are in the same minibatch. With
        minibatches * epochs = 1 every S is 0, and a rule on S clips nothing.
    epochs : int
        Passes over the rollout.
    tokens : int
        Padded tokens of one microbatch. The default suits the caches of a CPU and a small model; give a GPU more.
    logits : int, optional
        Largest number of logits (tokens x vocabulary entries, float32) held in memory at a time in training, old
        log-probs and score passes; by default 2^20 on a CPU and 2^24 (64 MiB) on a GPU.
    staleness : int
        Number of rollouts that the sampling weights are behind the trained ones; the first rollouts are sampled with
        the initial weights. The weights in between are kept in the memory of the CPU and in checkpoints.
    drop : tuple of "truncated"
        Kinds of responses that get no gradient: "truncated", those cut off at the length limit. The metrics count them
        by length bin. By default a truncated response is judged like any other. One that the verifier could not judge
        has reward 0.
    """

    prompts: int = number(64, 1)
    responses: int = number(8, 1)
    minibatches: int = number(4, 1)
    epochs: int = number(2, 1)
    tokens: int = number(2048, 1)
    logits: int | None = number(None, 1, 2**40)
    staleness: int = number(0, 0, 1000)
    drop: tuple[Literal["truncated"], ...] = ()

    @property
    def updates(self) -> int:
        """Number of updates of a rollout."""
        return self.minibatches * self.epochs

    def __post_init__(self) -> None:
        check_ranges(self, "batch")
        if self.prompts < self.minibatches:
            raise UserError(
                f"batch.minibatches={self.minibatches} exceeds batch.prompts={self.prompts}: each needs a group"
            )


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation of a training run on held-out prompts.

    Parameters
    ----------
    every : int
        Rollouts between evaluations; 0 for never.
    prompts : int
        Held-out prompts; one response is sampled to each.
    temperature : float
        Sampling temperature; 0 takes the most probable token.
    """

    every: int = number(5, 0)
    prompts: int = number(256, 1)
    temperature: float = number(1.0, 1e-3, 1e3, also=(0,))

    def __post_init__(self) -> None:
        check_ranges(self, "eval")
