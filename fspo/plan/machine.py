"""Counts of the tokens and responses that one rollout and one update have on the planned machine."""

from __future__ import annotations

from math import ceil

from fspo.config import TrainConfig
from fspo.config.machine import MachineConfig
from fspo.plan.models import Sizes


def longest_microbatch(config: TrainConfig) -> tuple[int, int, int]:
    """Return how many rows of the greatest length fit a microbatch, and the numbers of prompt and response tokens in
    such a row.

    A row is a prompt with its response. The options `task.max_prompt_tokens` and `sampling.max_new_tokens` are their
    greatest lengths.
    """
    prompt, response = config.task.max_prompt_tokens, config.sampling.max_new_tokens
    return max(1, config.batch.tokens // (prompt + response)), prompt, response


def sampled_rows(config: TrainConfig, machine: MachineConfig) -> int:
    """Return the number of responses that one GPU samples at once."""
    return min(config.sampling.batch_size, ceil(config.batch.prompts * config.batch.responses / machine.gpus))


def token_counts(config: TrainConfig, machine: MachineConfig, model: Sizes, rows: int) -> dict[str, float]:
    """Return, by name, the numbers of responses, tokens and updates of one rollout, and the PFLOP of one update.

    Every prompt is taken to have the greatest length that the options allow, and every response to have
    `machine.response_tokens` tokens. ``rows`` is the number of responses of the greatest length that fit a microbatch
    (`longest_microbatch`).
    """
    batch, prompt = config.batch, config.task.max_prompt_tokens
    response = min(machine.response_tokens or config.sampling.max_new_tokens, config.sampling.max_new_tokens)
    responses = batch.prompts * batch.responses
    each = ceil(batch.prompts / batch.minibatches) * batch.responses
    updates = batch.updates
    fitting = max(1, batch.tokens // (prompt + response))
    # ``passes`` is the work of an update as a number of forward passes. A backward pass counts as 2 forward passes, or
    # as 1 with LoRA, where most weights need no gradient. Gradient checkpointing adds a second forward pass.
    passes = 3 if config.model.lora is None else 2
    passes += config.model.gradient_checkpointing
    return {
        "responses of a rollout": responses,
        "tokens sampled": responses * response,
        "responses sampled at once on a GPU": sampled_rows(config, machine),
        "updates of a rollout": updates,
        "responses of an update": each,
        "tokens of an update": each * (prompt + response),
        "responses of a microbatch": min(fitting, each),
        "microbatches of an update on a GPU": ceil(ceil(each / fitting) / machine.gpus),
        "longest responses that fit a microbatch": rows,
        "PFLOP of an update": 2 * passes * model.total * each * (prompt + response) / 1e15,
        "gradient log of a rollout, MB": _log_bytes(config) / 1e6,
    }


def _log_bytes(config: TrainConfig) -> float:
    """Estimate a rollout's bytes in the gradient log before compression: 200 for a row, 2 for a sketch's entry."""
    batch, log = config.batch, config.log
    responses = batch.prompts * batch.responses
    share = len(config.scored_updates()) / batch.minibatches if log.score_every else 0.0
    width = (log.scores.width or 0) if log.scores.mode == "sketch" else 0
    return responses * (batch.epochs * 200.0 + share * width * 2)
