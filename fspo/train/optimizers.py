"""Optimizers: AdamW, and torchao's AdamW whose two moments take 8 bits per number.

torchao's 8-bit optimizer works with FSDP2's shards. Its stochastic rounding lets bfloat16 weights follow updates that
are far smaller than the gap between two bfloat16 numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fspo.base.errors import UserError
from fspo.config import OptimConfig
from fspo.distributed.tensors import holders, is_part, local, part_like

BLOCK = 256
"""Number of consecutive entries of an 8-bit moment that share one float32 scale."""
SMALLEST = 4096
"""Number of entries of a tensor below which torchao keeps its moments in the tensor's own type, not in 8 bits."""
COMPILED_FROM = 2**22
"""On a CPU torchao's step is compiled if the largest trained parameter has at least this many entries. A compiled step
takes an eighth of the time, and 2 instead of 14 float32 copies of the parameter. But the first compiled step takes some
10 s for each shape of a parameter (docs/scale.md)."""


def make_optimizer(parameters: Iterable[nn.Parameter], config: OptimConfig) -> Optimizer:
    """Build the optimizer that a configuration names.

    Parameters
    ----------
    parameters : iterable of Parameter
        Parameters that need no gradient are left out.
    config : OptimConfig

    Raises
    ------
    UserError
        If the optimizer's library is not installed.
    """
    trained = [p for p in parameters if p.requires_grad]
    common = {
        "lr": config.learning_rate,
        "betas": (config.beta1, config.beta2),
        "weight_decay": config.weight_decay,
    }
    if config.name == "adamw":
        # PyTorch's fused AdamW makes no temporary tensors, which would be as large as the largest parameter.
        return torch.optim.AdamW(trained, fused=True, **common)
    try:
        from torchao.optim import AdamW8bit  # type: ignore[import-not-found]
    except ImportError as error:
        raise UserError("optim.name adamw8bit needs torchao: pip install 'fspo[8bit]'") from error
    return AdamW8bit(trained, block_size=BLOCK, bf16_stochastic_round=True, **common)


def moment_bytes(numbers: int, dtype: torch.dtype, name: str) -> int:
    """Return how many bytes both Adam moments of a parameter with ``numbers`` entries take.

    For a sharded tensor, ``numbers`` counts the part that one process holds.
    """
    if name == "adamw8bit" and numbers >= SMALLEST and numbers % BLOCK == 0:
        return 2 * (numbers + numbers // BLOCK * 4)
    return 2 * numbers * dtype.itemsize


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate of all parameter groups. torchao keeps the rate in a tensor, AdamW in a number."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def optimizer_step(optimizer: Optimizer, name: str, seed: int, update: int) -> None:
    """Update the weights by one step of the optimizer, with noise from a seeded generator where rounding needs it.

    The noise of stochastic rounding is a function of (seed, update) alone. So all processes draw the same noise, their
    copies of the weights stay equal, and a resumed run repeats the noise.
    """
    if name == "adamw":
        optimizer.step()
        return
    parameter = optimizer.param_groups[0]["params"][0]
    if not optimizer.state:
        _check_shards(optimizer)
    on_cpu = parameter.device.type == "cpu"
    largest = max(local(p).numel() for group in optimizer.param_groups for p in group["params"])
    eager = torch.compiler.set_stance("force_eager") if on_cpu and largest < COMPILED_FROM else nullcontext()
    with torch.random.fork_rng(devices=[] if on_cpu else [parameter.device]), eager:
        torch.manual_seed((seed * 0x9E3779B1 + update) % 2**63)
        optimizer.step()


def _check_shards(optimizer: Optimizer) -> None:
    """Raise UserError if a sharded parameter has shards of different sizes.

    One process could keep the moments of such a parameter in 8 bits, while another, whose shard is smaller, keeps them
    in the parameter's type.
    """
    for group in optimizer.param_groups:
        for p in group["params"]:
            if is_part(p):
                check_rows(p.shape[0], holders(p))


def check_rows(rows: int, processes: int) -> None:
    """Raise UserError if a parameter's ``rows`` rows cannot be divided evenly over ``processes`` processes."""
    if rows % processes:
        raise UserError(
            f"optim.name adamw8bit needs equal shards, and {processes} processes cannot share {rows} rows: use a "
            "number of processes that divides them, or optim.name adamw"
        )


CODES, SCALE = "#codes", "#scale"
"""What a checkpoint appends to the name of an 8-bit moment to name its two tensors: the codes, and the scales of the
blocks of codes."""


def moment_parts(value: Tensor) -> dict[str, Tensor]:
    """Split an optimizer's moment into the tensors that a checkpoint holds.

    The keys of the result are appended to the moment's name. An 8-bit moment gives two tensors, its codes (`CODES`) and
    scales (`SCALE`). They share the moment's memory and are sharded like it. Any other moment is returned unchanged
    under the key "".
    """
    own = local(value)
    if not hasattr(own, "codes"):
        return {"": value}
    blocks = torch.Size([value.numel() // BLOCK])
    return {
        CODES: part_like(value, own.codes, value.shape, value.stride()),
        SCALE: part_like(value, own.scale, blocks, (1,)),
    }


def empty_moment(optimizer: Any, parameter: Tensor, kind: str) -> Tensor:
    """Make a moment of zeros, to be filled from a checkpoint, as torchao's 8-bit optimizer makes one at its first step.

    Raises
    ------
    UserError
        If the parameter's shards have different sizes.
    """
    check_rows(parameter.shape[0], holders(parameter))
    return getattr(optimizer, "optimizer", optimizer)._new_buffer(parameter, kind == "exp_avg")


def dequantized(codes: Tensor, scale: Tensor, kind: str) -> Tensor:
    """Return the values of an 8-bit moment from its full codes and scales, float32.

    These values fill a shard that cannot take codes and scales themselves. If another number of processes wrote the
    checkpoint, a shard may be too small for 8 bits, or end inside a block of entries that share a scale.
    """
    from torchao.optim.subclass_8bit import OptimState8bit  # type: ignore[import-not-found]

    qmap = OptimState8bit.zeros(codes.shape, kind == "exp_avg", BLOCK).qmap
    return OptimState8bit(codes, scale, qmap, kind == "exp_avg").dequantize()
