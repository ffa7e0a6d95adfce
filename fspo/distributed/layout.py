"""How a model's parameters lie on the processes: the interface, and which layout a model has."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule

from fspo.base.errors import UserError
from fspo.distributed.fsdp2 import Fsdp2
from fspo.distributed.plain import Plain


class Layout(Protocol):
    """What the trainer asks of a model that may be sharded."""

    in_step: bool
    """Whether every process must run the same number of passes."""

    def gathered(self) -> AbstractContextManager[None]:
        """Hold whole weights while the block runs: forward passes without gradients in it need no other process.

        Every process must enter. It costs the memory of one whole model in the type that the forward computes in.
        """
        ...

    def shard(self, accelerator: Accelerator, model: torch.nn.Module) -> torch.nn.Module:
        """Lay out another model, which has no optimizer, in the same way."""
        ...

    def accumulating(
        self, accelerator: Accelerator, model: torch.nn.Module, *, last: bool
    ) -> AbstractContextManager[None]:
        """Enter for the passes of one microbatch of an update, of which it is the ``last`` with a gradient or not."""
        ...

    def clip_gradient(self, accelerator: Accelerator, model: torch.nn.Module, max_norm: float) -> float:
        """Clip the norm of the gradient over all processes, right before the optimizer's step; the norm before."""
        ...


def layout_of(model: torch.nn.Module) -> Layout:
    """The layout of a model, also inside DDP."""
    return Fsdp2(model) if isinstance(model, FSDPModule) else Plain()


def asked_for(name: str) -> bool:
    """Whether accelerate's configuration asks for ``FSDP`` or ``DEEPSPEED``."""
    return os.environ.get(f"ACCELERATE_USE_{name}", "false").lower() == "true"


def refuse_deepspeed() -> None:
    """Raise UserError where accelerate's configuration asks for DeepSpeed; call it before an Accelerator is made."""
    if asked_for("DEEPSPEED"):
        raise UserError(
            "the accelerate configuration asks for DeepSpeed, which is not supported: shard with FSDP2, as "
            "fspo/presets/accelerate/fsdp2.yaml does"
        )


def check_sharding(accelerator: Accelerator) -> None:
    """Refuse what would silently train otherwise than asked for.

    Raises
    ------
    UserError
        If sharding was asked for and accelerate runs plain data parallelism (it does on a CPU), or for FSDP 1.
    """
    if not asked_for("FSDP") or accelerator.num_processes == 1:  # one process holds everything, sharded or not
        return
    if accelerator.distributed_type != DistributedType.FSDP:
        raise UserError(
            f"FSDP was asked for and accelerate would run {accelerator.distributed_type.value} instead, with the whole "
            "model in every process: it shards on accelerators alone; leave use_fsdp out on a CPU"
        )
    if not accelerator.is_fsdp2:
        raise UserError("FSDP 1 is not supported: set fsdp_version to 2 in the accelerate configuration")
