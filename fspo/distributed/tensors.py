"""Handle single tensors of a sharded model: gather the full tensor, take this process's part, write values back.

Under FSDP2 each parameter, gradient and optimizer moment is a DTensor of which a process holds some rows. The
functions also take a plain tensor, of which each process holds all rows. All processes must call the functions that
gather (`whole`, `whole_state`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

Tensors = dict[str, torch.Tensor]


def whole(tensor: object) -> torch.Tensor:
    """Return the full tensor without its graph; a sharded one is gathered from all processes."""
    value = cast(torch.Tensor, tensor).detach()
    return value.full_tensor() if isinstance(value, DTensor) else value


def local(tensor: torch.Tensor) -> Any:
    """Return the rows of the tensor that this process holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def holders(tensor: torch.Tensor) -> int:
    """Return the number of processes of which each holds only some rows of the tensor; 0 if each holds all rows."""
    return tensor.device_mesh.size() if isinstance(tensor, DTensor) else 0


def put(parameter: torch.Tensor, value: torch.Tensor) -> None:
    """Write a full tensor ``value``, the same in every process, into a parameter, which may be sharded.

    The processes send each other nothing. The trainer maps the full tensor from a file into memory, so that a process
    reads only the rows that it takes."""
    if isinstance(parameter, DTensor):
        value = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
    with torch.no_grad():
        parameter.copy_(value.to(parameter.device))


def whole_state(tensors: Mapping[str, torch.Tensor], keep: bool) -> dict[str, torch.Tensor]:
    """Gather full tensors, by name, to the CPU, one after another, so that a process can write them to a file. A
    process that writes no file only takes part in the gathering, with ``keep`` false: its result is empty."""
    found = {}
    for name, tensor in tensors.items():
        value = whole(tensor)
        if keep:
            found[name] = value.cpu().contiguous()
    return found
