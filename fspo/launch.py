"""Start of a run: an Accelerator with the processes that were asked for, and a run folder of its own."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs

from fspo import checkpoint
from fspo.config import TrainConfig, save, to_dict
from fspo.errors import UserError


def make_accelerator(config: TrainConfig) -> Accelerator:
    """An Accelerator with the number of processes that was asked for.

    Raises
    ------
    UserError
        If accelerate would silently run independent copies (see the launch commands in README.md).
    """
    accelerator = Accelerator(
        cpu=config.cpu or not torch.cuda.is_available(),
        log_with=list(config.trackers) or None,
        project_dir=config.output,
        # Rotary tables never change: broadcasting them in each forward would need one collective a microbatch.
        kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],
    )
    wanted = config.processes or int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != wanted:
        raise UserError(
            f"{wanted} processes were asked for and {accelerator.num_processes} run: on CPU start with "
            f"`torchrun --nproc_per_node {wanted} -m fspo.train ...`"
        )
    return accelerator


def claim_folder(accelerator: Accelerator, config: TrainConfig) -> None:
    """Make the run folder, or take up the run that it holds; the resolved configuration is saved in it.

    Raises
    ------
    UserError
        If it holds another run, holds this one and ``resume`` is off, or cannot be written.
    """
    run = Path(config.output)
    saved = run / "config.yaml"
    if saved.exists() and not config.resume:
        raise UserError(f"{run} holds a run already: add --resume true to go on, or choose another --output")
    if saved.exists():
        _check_same_run(config, saved)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        try:
            run.mkdir(parents=True, exist_ok=True)
            save(config, saved)
        except OSError as error:
            raise UserError(f"cannot write to {run}: {error.strerror}; choose another --output") from error
        checkpoint.clean(run)
    accelerator.wait_for_everyone()


_MAY_CHANGE = {
    "resume",
    "rollouts",
    "threads",
    "cpu",
    "processes",
    "output",
    "checkpoint_every",
    "keep_checkpoints",
    "trackers",
}


def _check_same_run(config: TrainConfig, saved: Path) -> None:
    """Refuse to resume under settings that would change what the run is."""
    import yaml

    before, now = yaml.safe_load(saved.read_text(encoding="utf-8")), to_dict(config)
    for key in now.keys() - _MAY_CHANGE:
        if before.get(key) != now[key]:
            raise UserError(
                f"{saved} was written with {key}={before.get(key)}, not {now[key]}: resume with the saved settings "
                f"(--config {saved} --resume true) or choose another --output"
            )
