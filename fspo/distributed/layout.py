"""The interface to a model whose parameters may be sharded over processes, and the choice of its layout.

A layout says how the parameters are spread: `Fsdp2` over all processes, `Plain` as a whole copy in each process."""

from __future__ import annotations

import os

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule

from fspo.base.errors import UserError
from fspo.distributed.fsdp2 import Fsdp2
from fspo.distributed.plain import Plain


def layout_of(model: torch.nn.Module) -> Plain:
    """Return the layout of a model: `Fsdp2` if FSDP2 has sharded the model, else `Plain` (also for a model in DDP)."""
    return Fsdp2(model) if isinstance(model, FSDPModule) else Plain()


def asked_for(name: str) -> bool:
    """Return whether accelerate's configuration asks for ``name``, which is ``FSDP`` or ``DEEPSPEED``."""
    return os.environ.get(f"ACCELERATE_USE_{name}", "false").lower() == "true"


def refuse_deepspeed() -> None:
    """Raise UserError if accelerate's configuration asks for DeepSpeed; call it before an Accelerator is made."""
    if asked_for("DEEPSPEED"):
        raise UserError(
            "the accelerate configuration asks for DeepSpeed, which is not supported: shard with FSDP2, as "
            "fspo/presets/accelerate/fsdp2.yaml does"
        )


def check_sharding(accelerator: Accelerator) -> None:
    """Raise UserError if several processes run, accelerate's configuration asks for FSDP, and it is either FSDP 1 or
    accelerate runs plain data parallelism instead (as on a CPU)."""
    # A process that runs alone holds all weights, even if the configuration asks to shard them: nothing to check.
    if not asked_for("FSDP") or accelerator.num_processes == 1:
        return
    if accelerator.distributed_type != DistributedType.FSDP:
        raise UserError(
            f"FSDP was asked for and accelerate would run {accelerator.distributed_type.value} instead, with the whole "
            "model in every process: it shards on accelerators alone; leave use_fsdp out on a CPU"
        )
    if not accelerator.is_fsdp2:
        raise UserError("FSDP 1 is not supported: set fsdp_version to 2 in the accelerate configuration")
