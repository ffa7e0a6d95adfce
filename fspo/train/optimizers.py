"""Optimizers: AdamW, and AdamW whose two moments take 8 bits each (torchao).

torchao is the 8-bit optimizer that knows FSDP2's shards; its stochastic rounding lets bfloat16 weights follow
updates that are far smaller than the gap between two bfloat16 numbers.
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
from fspo.distributed.tensors import first_row, holders, is_part, joined, local, shard_like

BLOCK = 256
"""Numbers that share a float32 scale in an 8-bit moment."""
SMALLEST = 4096
"""Tensors with fewer numbers keep moments in their own type (torchao follows bitsandbytes)."""


def make_optimizer(parameters: Iterable[nn.Parameter], config: OptimConfig, *, accelerated: bool = False) -> Optimizer:
    """Build the optimizer that a configuration names.

    Parameters
    ----------
    parameters : iterable of Parameter
        Those that need no gradient are left out.
    config : OptimConfig
    accelerated : bool
        The parameters will live on an accelerator: AdamW then runs as one fused kernel without temporary tensors.

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
        return torch.optim.AdamW(trained, fused=True if accelerated else None, **common)
    try:
        from torchao.optim import AdamW8bit  # type: ignore[import-not-found]
    except ImportError as error:
        raise UserError("optim.name adamw8bit needs torchao: pip install 'fspo[8bit]'") from error
    return AdamW8bit(trained, block_size=BLOCK, bf16_stochastic_round=True, **common)


def moment_bytes(numbers: int, dtype: torch.dtype, name: str) -> int:
    """Bytes of both moments of a tensor (of one process's part of it, where it is sharded)."""
    if name == "adamw8bit" and numbers >= SMALLEST and numbers % BLOCK == 0:
        return 2 * (numbers + numbers // BLOCK * 4)
    return 2 * numbers * dtype.itemsize


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate of all groups; torchao keeps it in a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def optimizer_step(optimizer: Optimizer, name: str, seed: int, update: int) -> None:
    """One optimizer step; the noise of stochastic rounding is a function of (seed, update) alone.

    All processes draw the same noise, so that replicas stay equal, and a resumed run repeats it.
    """
    if name == "adamw":
        optimizer.step()
        return
    parameter = optimizer.param_groups[0]["params"][0]
    if not optimizer.state:
        _check_shards(optimizer)
    on_cpu = parameter.device.type == "cpu"
    # On a CPU compiling takes minutes and saves nothing.
    eager = torch.compiler.set_stance("force_eager") if on_cpu else nullcontext()
    with torch.random.fork_rng(devices=[] if on_cpu else [parameter.device]), eager:
        torch.manual_seed((seed * 0x9E3779B1 + update) % 2**63)
        optimizer.step()


def _check_shards(optimizer: Optimizer) -> None:
    """Refuse shards of different sizes: one process would keep moments in 8 bits and another would not."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if is_part(p):
                check_rows(p.shape[0], holders(p))


def check_rows(rows: int, processes: int) -> None:
    """Raise UserError where 8-bit moments of so many rows have no equal shards."""
    if rows % processes:
        raise UserError(
            f"optim.name adamw8bit needs equal shards, and {processes} processes cannot share {rows} rows: use a "
            "number of processes that divides them, or optim.name adamw"
        )


CODES, SCALE = "#codes", "#scale"
"""What a checkpoint adds to the name of an 8-bit moment's two parts."""


def moment_parts(value: Tensor) -> dict[str, Tensor]:
    """Plain whole tensors that a moment is made of, by what is added to its name; every process must call it."""
    own = local(value)
    if not hasattr(own, "codes"):
        return {"": value}
    if not is_part(value):
        return {CODES: own.codes, SCALE: own.scale}
    # One after the other: gathered together they would be results that are still on their way.
    codes = joined(own.codes, value, value.shape, value.stride()).cpu()
    return {CODES: codes, SCALE: joined(own.scale, value, torch.Size([value.numel() // BLOCK]), (1,)).cpu()}


def low_moment(optimizer: Any, parameter: Tensor, kind: str, codes: Tensor, scale: Tensor) -> Tensor:
    """An 8-bit moment from its whole parts, in the shards that the parameter has now.

    Blocks of a shard that begins inside a block of the checkpoint, as another number of processes may make them, are
    quantized again.
    """
    made = getattr(optimizer, "optimizer", optimizer)._new_buffer(parameter, kind == "exp_avg")
    own = local(made)
    first = first_row(parameter) * codes[0].numel()
    if hasattr(own, "codes") and first % BLOCK == 0:
        own.codes.copy_(local(shard_like(codes, parameter)))
        own.scale.copy_(scale[first // BLOCK :][: len(own.scale)])
        return made
    from torchao.optim.subclass_8bit import OptimState8bit  # type: ignore[import-not-found]

    qmap = OptimState8bit.zeros(codes.shape, kind == "exp_avg", BLOCK).qmap
    own.copy_(local(shard_like(OptimState8bit(codes, scale, qmap, kind == "exp_avg").dequantize(), parameter)))
    return made
