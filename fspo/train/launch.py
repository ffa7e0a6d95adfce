"""The start of a run: make the Accelerator, check the number of processes, and load the policy and its tokenizer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.tracking import TensorBoardTracker
from accelerate.utils import DistributedDataParallelKwargs
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fspo.base.errors import UserError
from fspo.config import TrainConfig
from fspo.distributed.layout import check_sharding, refuse_deepspeed
from fspo.gradlog.run_folder import TENSORBOARD
from fspo.models.load import check_vocabulary, load_model, load_tokenizer
from fspo.models.shapes import EMBEDDED, check_place
from fspo.models.warmup import warm_up
from fspo.tasks import teaching_task

PROJECT = "fspo"
"""Name of the project in which trackers such as wandb collect runs."""
_group: Any = None
"""The last run's torch.distributed process group. Without this reference the process may hang at its end.

If DDP's reducer frees the group last, the group's destructor waits for gloo's threads while it holds the GIL. One of
these threads may need the GIL to free a tensor, which is a deadlock. If a Python variable frees the group last, the GIL
is released first (torch 2.13)."""


def make_accelerator(config: TrainConfig) -> Accelerator:
    """Make an Accelerator and check that as many processes run as were asked for.

    Raises UserError if another number of processes runs than was asked for (accelerate may silently run independent
    copies of the training; see the launch commands in docs/train.md), if the model would not be sharded although FSDP
    was asked for, if DeepSpeed was asked for, or if accelerate does not know or cannot load a tracker."""
    refuse_deepspeed()
    try:
        accelerator = Accelerator(
            cpu=config.cpu or not torch.cuda.is_available(),
            log_with=list(config.tracker_names()) or None,
            project_dir=config.output,
            # DDP would broadcast buffers at each forward pass, one collective operation for each microbatch. The
            # buffers are tables of the rotary position embedding, which never change, so the broadcast is switched off.
            kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],
        )
    except (ValueError, ImportError) as error:
        raise UserError(f"cannot start accelerate: {' '.join(str(error).split())}") from error
    # Wait until all processes have connected. Otherwise one of them could stop with an error first, and the others
    # would print that the connection failed instead of that error.
    accelerator.wait_for_everyone()
    wanted = config.processes or int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != wanted:
        raise UserError(
            f"{wanted} processes were asked for and {accelerator.num_processes} run: on CPU start with "
            f"`torchrun --nproc_per_node {wanted} -m fspo.train ...`"
        )
    if torch.distributed.is_initialized():
        global _group
        _group = torch.distributed.group.WORLD
    check_sharding(accelerator)
    return accelerator


def init_trackers(accelerator: Accelerator, config: TrainConfig, step: int) -> None:
    """Start accelerate's trackers.

    TensorBoard drops its entries from update ``step`` on, because a resumed run writes them again."""
    if not config.tracker_names():
        return
    for i, name in enumerate(accelerator.log_with):
        if str(name) == TensorBoardTracker.name:  # accelerate would name TensorBoard's folder after the project
            accelerator.log_with[i] = TensorBoardTracker(TENSORBOARD, config.output, purge_step=step)
    accelerator.init_trackers(PROJECT)


def model_source(config: TrainConfig, accelerator: Accelerator) -> str | Path:
    """Return the folder or name of the model that training starts from.

    The embedded model, small and built in, is first trained on worked solutions of the task (the warm-up). The main
    process does this, and the other processes then find the result in the cache."""
    check_place(config.model.name_or_path, config.task.name)
    if config.model.name_or_path != EMBEDDED:
        return config.model.name_or_path
    task = teaching_task(config.task.name, config.task.options)
    found: Path | None = None
    if accelerator.is_main_process:
        found = warm_up(config.warmup, task)
    accelerator.wait_for_everyone()
    return found or warm_up(config.warmup, task)


def load_policy(
    accelerator: Accelerator,
    config: TrainConfig,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the model to train and its tokenizer: the given ones, or else those that the configuration names. To a
    given ``model`` a tokenizer must be given too, or named by the option ``model.tokenizer``.
    Raises UserError if the model or the tokenizer cannot be loaded, or if the tokenizer has tokens that the model
    lacks."""
    source = model_source(config, accelerator) if model is None else ""
    tokenizer = tokenizer or load_tokenizer(config.model.tokenizer or source)
    model = model or load_model(
        source,
        config.model.dtype,
        attn_implementation=config.model.attn_implementation,
        gradient_checkpointing=config.model.gradient_checkpointing,
        lora=config.model.lora,
        seed=config.seed,
    )
    check_vocabulary(model, tokenizer)
    # Gradient checkpointing works only in train mode. Dropout is off, so train mode changes nothing else.
    model.train()
    return model, tokenizer
