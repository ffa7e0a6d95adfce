"""Options of a rollout's responses, and of how they are divided into updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fspo.base.errors import UserError
from fspo.config.option_ranges import check_ranges, number


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
        Most tokens of a microbatch, padding included. The default suits a CPU and a small model; give a GPU more.
    logits : int, optional
        Largest number of logits (tokens x vocabulary entries, float32) held in memory at a time in training, old
        log-probs and score passes; by default 2^20 on a CPU and 2^24 (64 MiB) on a GPU.
    staleness : int
        Number of rollouts that the sampling weights are behind the trained ones; the first rollouts are sampled with
        the initial weights. The weights in between are kept in the memory of the CPU and in checkpoints.
    drop : tuple of "truncated"
        Kinds of responses that get no gradient: "truncated", those cut off at the length limit. The metrics count them
        by length bin. By default no kind is dropped, and a truncated response is judged like any other. (Any response
        that the verifier could not judge has reward 0.)
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
        """Number of updates on a rollout: ``minibatches`` times ``epochs``."""
        return self.minibatches * self.epochs

    def __post_init__(self) -> None:
        check_ranges(self, "batch")
        if self.prompts < self.minibatches:
            raise UserError(
                f"batch.minibatches={self.minibatches} exceeds batch.prompts={self.prompts}: each needs a group"
            )
