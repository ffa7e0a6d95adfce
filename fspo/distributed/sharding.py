"""Parameters that are spread over processes: whole ones for sampling, plain tensors for files, and back.

Under FSDP2 accelerate shards the model in place (`torch.distributed.fsdp.fully_shard`), so each parameter is a DTensor
of which a process holds some rows. A forward pass gathers them layer by layer, with all processes at once: sharded code
must run the same number of forward passes everywhere. Checkpoints hold whole tensors, so that any number of processes,
with or without sharding, can go on from them. What DeepSpeed does its own way is in `fspo.distributed.zero3`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, fsdp2_prepare_model
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from fspo.base.errors import UserError
from fspo.distributed import zero3
from fspo.policy.score_sites import whole


def is_sharded(model: torch.nn.Module) -> bool:
    """Whether FSDP2 or ZeRO-3 holds the model's parameters."""
    return isinstance(model, FSDPModule) or any(zero3.holds(p) for p in model.parameters())


def asked_for(*names: str) -> bool:
    """Whether accelerate's configuration asks for one of these: ``FSDP``, ``DEEPSPEED``."""
    return any(os.environ.get(f"ACCELERATE_USE_{name}", "false").lower() == "true" for name in names)


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


def shard_frozen(accelerator: Accelerator, model: torch.nn.Module) -> torch.nn.Module:
    """A model without an optimizer, spread as FSDP2 spreads the policy (on one device otherwise)."""
    if accelerator.distributed_type == DistributedType.DEEPSPEED and accelerator.mixed_precision == "bf16":
        model = model.to(torch.bfloat16)  # the type that the policy's passes compute in
    return fsdp2_prepare_model(accelerator, model) if accelerator.is_fsdp2 else model.to(accelerator.device)


def for_scores(model: torch.nn.Module) -> AbstractContextManager[None]:
    """What score passes need: FSDP2's hooks gather weights for them, those of ZeRO-3 must be out of their way."""
    return zero3.gathered(model) if any(zero3.holds(p) for p in model.parameters()) else nullcontext()


@contextmanager
def whole_model(model: torch.nn.Module) -> Iterator[None]:
    """Gather all parameters once and keep them while the block runs: forward passes in it need no other process.

    Every process must enter. The block is for passes without gradients; it costs the memory of one whole model in the
    type that the forward computes in.
    """
    if not isinstance(model, FSDPModule):
        with for_scores(model):
            yield
        return
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    # Where accelerate keeps weights from the forward to the backward pass: at the root and the output layer.
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore[operator]
    plugin = AcceleratorState().fsdp_plugin
    again = plugin is None or bool(plugin.reshard_after_forward)
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(again and part is not model and part is not head, recurse=False)


def spread(model: torch.nn.Module) -> None:
    """Let go of gathered parameters. Before every optimizer step, which would leave them behind the new ones.

    Passes without gradients end with the output layer still gathered: accelerate expects a backward pass to follow.
    """
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def whole_state(tensors: Mapping[str, torch.Tensor], keep: bool) -> dict[str, torch.Tensor]:
    """Whole tensors on the CPU, one gathered after another; every process must call it, and those that keep do.

    Parameters
    ----------
    keep : bool
        Processes that write no file need no copy.
    """
    found = {}
    for name, value in tensors.items():
        value = zero3.whole(value) if zero3.holds(value) else whole(value)
        if keep:
            found[name] = value.cpu().contiguous()
    return found


def like(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A whole tensor as the parameter is kept: on its device, this process's rows of it alone.

    Nothing is sent: every process has read the same file, of which memory mapping loads the rows that it takes.
    """
    if isinstance(parameter, DTensor):
        mesh = parameter.device_mesh
        local = distribute_tensor(value, mesh, parameter.placements, src_data_rank=None)
        return local.to(parameter.device)
    return value.to(parameter.device)


def put(parameter: Any, value: torch.Tensor) -> None:
    """Write a whole tensor into a parameter."""
    if zero3.holds(parameter):
        zero3.put(parameter, value)
        return
    with torch.no_grad():
        parameter.copy_(like(value, parameter))
