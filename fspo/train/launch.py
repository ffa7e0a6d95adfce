"""Start of a run: an Accelerator with the processes that were asked for, the policy, and a run folder of its own."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fspo.base.errors import UserError
from fspo.base.options import save, to_dict
from fspo.config import TrainConfig
from fspo.distributed.layout import check_sharding, refuse_deepspeed
from fspo.gradlog.files import log_paths
from fspo.gradlog.run_folder import CONFIG, METRICS
from fspo.models.load import EMBEDDED, check_vocabulary, load_model, load_tokenizer
from fspo.models.warmup import warm_up
from fspo.train import checkpoint

_group: Any = None
"""The last run's process group. Were DDP's reducer its last owner, its end would join gloo's threads while it holds the
GIL, which they may want to drop a tensor: the process hangs. A Python owner releases the GIL first (torch 2.13)."""


def make_accelerator(config: TrainConfig) -> Accelerator:
    """An Accelerator with the number of processes that was asked for.

    Raises
    ------
    UserError
        If accelerate would silently run independent copies (see the launch commands in README.md) or leave the model
        whole where FSDP was asked for, for DeepSpeed, or for a tracker that it does not know or cannot load.
    """
    refuse_deepspeed()
    for name in config.tracker_names():
        if find_spec(name) is None:
            raise UserError(
                f"tracker {name!r} is not installed: pip install {name}, or leave it out of trackers (metrics.jsonl is "
                "always written)"
            )
    try:
        accelerator = Accelerator(
            cpu=config.cpu or not torch.cuda.is_available(),
            log_with=list(config.tracker_names()) or None,
            project_dir=config.output,
            # Rotary tables never change: broadcasting them in each forward would need one collective a microbatch.
            kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],
        )
    except (ValueError, ImportError) as error:
        raise UserError(f"cannot start accelerate: {' '.join(str(error).split())}") from error
    accelerator.wait_for_everyone()  # each has joined before one that refuses leaves: all say the same line
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
    """Start accelerate's trackers; a resumed TensorBoard run drops what it repeats."""
    names = config.tracker_names()
    if names:
        options = {"tensorboard": {"purge_step": step}} if "tensorboard" in names else {}
        accelerator.init_trackers("fspo", init_kwargs=options)


def model_source(config: TrainConfig, accelerator: Accelerator) -> str | Path:
    """Folder or name of the model; the embedded one is warmed up first (once, the others find it in the cache)."""
    if config.model.name_or_path != EMBEDDED:
        return config.model.name_or_path
    if config.task.name != "chain-add":
        raise UserError(
            "the embedded model knows task 'chain-add' alone: name a pretrained model with --model.name_or_path"
        )
    found: Path | None = None
    if accelerator.is_main_process:
        found = warm_up(config.warmup, config.task.options)
    accelerator.wait_for_everyone()
    return found or warm_up(config.warmup, config.task.options)


def load_policy(
    accelerator: Accelerator,
    config: TrainConfig,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and tokenizer to train, those that are given or else the configuration's.

    Raises
    ------
    UserError
        If they cannot be loaded or do not belong together.
    """
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
    model.train()  # dropout is off; gradient checkpointing works in train mode only
    return model, tokenizer


def check_passes(sharded: bool, config: TrainConfig) -> None:
    """Refuse score passes that differ from process to process where the model is sharded."""
    log = config.log
    if sharded and (log.coverage_every or log.scores.mode == "exact"):
        raise UserError(
            "with sharded weights every process must run the same passes over whole microbatches: set "
            "log.coverage_every to 0 and log.scores.mode to sketch"
        )


def claim_folder(accelerator: Accelerator, config: TrainConfig) -> None:
    """Make the run folder, or take up the run that it holds. Nothing in it is changed yet but half-written files.

    Raises
    ------
    UserError
        If it holds another run, holds this one and ``resume`` is off, or cannot be written.
    """
    run = Path(config.output)
    saved = run / CONFIG
    traces = [
        saved,
        run / METRICS,
        *log_paths(run),
        *checkpoint.list_checkpoints(run),
    ]
    found = next((trace for trace in traces if trace.exists()), None)
    if found and not config.resume:
        raise UserError(
            f"{run} holds a run already ({found.name}): add --resume true to go on, or choose another --output"
        )
    if found and not saved.exists():
        raise UserError(f"{run} holds {found.name} but no {CONFIG}, so no run to resume: choose another --output")
    if found:
        _check_same_run(config, saved)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        try:
            run.mkdir(parents=True, exist_ok=True)
            (run / ".part-probe").touch()
            checkpoint.clean(run)
        except OSError as error:
            raise UserError(f"cannot write to {run}: {error.strerror}; choose another --output") from error
    accelerator.wait_for_everyone()


def save_config(accelerator: Accelerator, config: TrainConfig) -> None:
    """Save the resolved configuration with the run, once everything that it names has been loaded."""
    if accelerator.is_main_process:
        save(config, Path(config.output) / CONFIG)
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


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def _check_same_run(config: TrainConfig, saved: Path) -> None:
    """Refuse to resume under settings that would change what the run is."""
    try:
        before = _flat(yaml.safe_load(saved.read_text(encoding="utf-8")))
    except (yaml.YAMLError, AttributeError, UnicodeDecodeError) as error:
        raise UserError(f"{saved} is damaged: restore it, or choose another --output") from error
    now = _flat(to_dict(config))
    for key in sorted(before.keys() | now.keys()):
        if key.split(".")[0] not in _MAY_CHANGE and before.get(key) != now.get(key):
            raise UserError(
                f"{saved} was written with {key}={before.get(key)}, not {now.get(key)}: resume with the saved settings "
                f"(--config {saved} --resume true) or choose another --output"
            )
