"""Checks of a planned run's settings: find, before the run starts, settings that it would refuse or warn about."""

from __future__ import annotations

from transformers import PretrainedConfig

from fspo.config import TrainConfig
from fspo.config.machine import MachineConfig
from fspo.plan.models import Sizes
from fspo.sampling.vllm import check_alone
from fspo.train.launch import check_passes


def refuse(config: TrainConfig, machine: MachineConfig, model: Sizes) -> None:
    """Raise the error with which the run would refuse these settings on this machine, if there is one.

    Raises
    ------
    UserError
        The same error as the run would raise.
    """
    if config.sampling.engine == "vllm":
        check_alone(machine.gpus, config.model.lora is not None)
    if machine.shards == 1:
        return
    check_passes(True, config)


def positions_warning(config: TrainConfig, shape: PretrainedConfig) -> list[str]:
    """Return a warning if the longest prompt and response together exceed the model's context, else an empty list."""
    limit = getattr(shape, "max_position_embeddings", None)
    prompt, response = config.task.max_prompt_tokens, config.sampling.max_new_tokens
    if limit is None or prompt + response <= limit:
        return []
    return [
        f"prompts of {prompt} tokens and responses of {response} exceed the model's {limit} positions, and the run "
        f"stops at the first prompt beyond {limit - response}: lower task.max_prompt_tokens or sampling.max_new_tokens"
    ]
