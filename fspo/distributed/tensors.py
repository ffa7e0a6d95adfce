"""Single tensors of a sharded model: the whole tensor, this process's part of it, and the way back.

Under FSDP2 each parameter, gradient and optimizer moment is a DTensor of which a process holds some rows. Every
function here also takes a plain tensor, which is whole already. Those that gather must be called by all processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def is_part(tensor: object) -> bool:
    """Whether this process holds a part of the tensor, not the whole."""
    return isinstance(tensor, DTensor)


def whole(tensor: object) -> torch.Tensor:
    """A tensor's values without its graph, gathered where it is sharded."""
    value = cast(torch.Tensor, tensor).detach()
    return value.full_tensor() if isinstance(value, DTensor) else value


def local(tensor: torch.Tensor) -> Any:
    """This process's rows of the tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def holders(tensor: torch.Tensor) -> int:
    """Number of processes that the tensor is spread over."""
    return tensor.device_mesh.size() if isinstance(tensor, DTensor) else 1


def first_row(tensor: torch.Tensor) -> int:
    """Number of the first row that this process holds."""
    if not isinstance(tensor, DTensor):
        return 0
    return compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)[1][0]


def joined(rows: torch.Tensor, like: torch.Tensor, shape: torch.Size, stride: tuple[int, ...]) -> torch.Tensor:
    """The whole tensor of which each process gives its ``rows``, spread as the sharded tensor ``like`` is."""
    assert isinstance(like, DTensor)
    made = DTensor.from_local(rows, like.device_mesh, like.placements, run_check=False, shape=shape, stride=stride)
    return whole(made)


def shard_like(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A whole tensor on the device of the parameter ``like``, sharded as it is.

    Nothing is sent: every process has read the same file, of which memory mapping loads the rows that it takes.
    """
    if isinstance(like, DTensor):
        return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None).to(like.device)
    return value.to(like.device)


def put(parameter: torch.Tensor, value: torch.Tensor) -> None:
    """Write a whole tensor into a parameter."""
    with torch.no_grad():
        parameter.copy_(shard_like(value, parameter))


def whole_state(tensors: Mapping[str, torch.Tensor], keep: bool) -> dict[str, torch.Tensor]:
    """Whole tensors on the CPU, for a file, one gathered after another.

    Parameters
    ----------
    keep : bool
        Whether this process needs the tensors: those that write no file take part and keep none.
    """
    found = {}
    for name, tensor in tensors.items():
        value = whole(tensor)
        if keep:
            found[name] = value.cpu().contiguous()
    return found
