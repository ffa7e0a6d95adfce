"""Log-softmax of chosen tokens straight from hidden states and the output layer's weight, tile by tile.

Logits (tokens x vocabulary) exist one tile at a time, in float32, forward and backward: memory is linear in tokens.
The backward pass computes each tile's logits again. `torch.nn.functional.linear_cross_entropy` (no temperature, no
entropy, torch 2.13 on), TRL's and Liger's kernels were measured beside it: `benchmarks/logprobs.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from math import isqrt
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE = {"cpu": 2**20}
"""Logits of one tile by device: 4 MiB, which a CPU's caches hold; elsewhere `TILE_ELSEWHERE`."""
TILE_ELSEWHERE = 2**24


class Listener(Protocol):
    """Hears the gradient of the logits during the backward pass, tile by tile."""

    def begin(self, vocabulary: int, dtype: torch.dtype) -> bool:
        """A backward pass begins; True where it asks for no parameter's gradient, as autograd does not tell."""
        ...

    def tile(self, delta: Tensor, rows: slice, columns: slice) -> None:
        """Take d(loss)/d(output of the layer) of some tokens and vocabulary entries; the buffer is used again."""

    def finish(self) -> None:
        """All tiles were heard."""


def tile_shape(tokens: int, vocabulary: int, device: torch.device, logits: int | None = None) -> tuple[int, int]:
    """Tokens and vocabulary entries of one tile of at most ``logits`` logits: a square, or all tokens where few."""
    budget = logits or TILE.get(device.type, TILE_ELSEWHERE)
    rows = max(1, min(tokens, isqrt(budget)))
    return rows, max(1, min(vocabulary, budget // rows))


def linear_log_probs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float = 1.0,
    *,
    entropy: bool = False,
    tile: tuple[int, int] | None = None,
    listener: Listener | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each target under softmax((hidden weight^T + bias) / temperature).

    Products have float32 results (bfloat16 operands are never rounded in between), sums over the vocabulary run on
    in float64: for given logits the error stays below 1e-6 nats; from hidden states it is that of a float32 logit,
    some 1e-7 of the largest logit over the temperature. Under autocast the operands are rounded to its type, as in a
    Linear layer.

    Parameters
    ----------
    hidden : Tensor (N, H)
    weight, bias : Tensors (V, H) and (V,)
    targets : Tensor (N,), int64
    entropy : bool
        Also return entropies.
    tile : (int, int), optional
        Tokens and vocabulary entries of a tile; `tile_shape` chooses by default.
    listener : Listener, optional
        Hears the logits' gradient.

    Returns
    -------
    log_probs : Tensor (N,), float32 (float64 for float64 hidden states)
    entropies : Tensor (N,) or None
        Nats, detached.
    """
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
    tile = tile or tile_shape(len(targets), len(weight), hidden.device)
    values, entropies = _LinearLogProbs.apply(  # type: ignore[misc]
        hidden, weight, bias, targets, float(temperature), dtype, tile, entropy, listener
    )
    return values, entropies if entropy else None


def _plain(device: torch.device) -> AbstractContextManager:
    """The products below have the types that they are given."""
    return torch.autocast(device.type, enabled=False)


class _Logits:
    """Makes tiles of logits from operands of one type, with results in float32 or float64."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, dtype: torch.dtype, tile: tuple
    ) -> None:
        self.dtype = dtype
        self.wide = torch.promote_types(dtype, torch.float32)
        # cuBLAS multiplies 16-bit numbers into 32-bit sums; elsewhere the operands are widened, which is exact.
        self.mixed = hidden.is_cuda and torch.version.hip is None and dtype != self.wide
        self.hidden, self.weight, self.bias, self.temperature = self.operand(hidden), weight, bias, temperature
        self.rows, self.columns = tile
        self._buffer = hidden.new_empty(self.rows * self.columns, dtype=self.wide)

    def operand(self, x: Tensor) -> Tensor:
        """A factor of a product."""
        return x.to(self.dtype) if self.mixed else x.to(self.dtype).to(self.wide)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Blocks of the vocabulary, with their weights."""
        for start in range(0, len(self.weight), self.columns):
            block = slice(start, min(start + self.columns, len(self.weight)))
            yield block, self.operand(self.weight[block])

    def tiles(self, block: slice, weight: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """The block's logits, not yet over the temperature, for some tokens at a time, in one buffer."""
        for start in range(0, len(self.hidden), self.rows):
            rows = slice(start, min(start + self.rows, len(self.hidden)))
            count, width = rows.stop - rows.start, len(weight)
            x = self._buffer[: count * width].view(count, width)
            if self.mixed:
                torch.mm(self.hidden[rows], weight.t(), out_dtype=self.wide, out=x)
            else:
                torch.mm(self.hidden[rows], weight.t(), out=x)
            if self.bias is not None:
                x += self.bias[block].to(self.dtype)
            yield rows, x

    def relative(self, x: Tensor, top: Tensor) -> Tensor:
        """``(x - top) / temperature`` in place: dividing first would round big logits."""
        x -= top[:, None]
        if self.temperature != 1.0:
            x /= self.temperature
        return x

    def add_product(self, total: Tensor, a: Tensor, b: Tensor) -> None:
        """``total += a @ b`` for a wide ``total``."""
        if self.mixed:
            total += torch.mm(a.to(self.dtype), b, out_dtype=self.wide)  # addmm takes a wide total from torch 2.10 on
        else:
            total.addmm_(a, b)


def _places(targets: Tensor, block: slice) -> tuple[Tensor, Tensor]:
    """Whether a target lies in the block, and its column there (0 where it does not), both (n, 1)."""
    inside = (targets >= block.start) & (targets < block.stop)
    return inside[:, None], torch.where(inside, targets - block.start, 0)[:, None]


class _LinearLogProbs(torch.autograd.Function):
    """See `linear_log_probs`."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        dtype: torch.dtype,
        tile: tuple[int, int],
        entropy: bool,
        listener: Listener | None,
    ) -> tuple[Tensor, Tensor]:
        with _plain(hidden.device):
            logits = _Logits(hidden, weight, bias, temperature, dtype, tile)
            count, finfo = len(targets), torch.finfo(logits.wide)
            # Of exp(z), z = (x - top) / temperature, over the columns so far: the sum, and the sum with weights z.
            top = hidden.new_full((count,), finfo.min, dtype=logits.wide)
            total, moment, picked = (hidden.new_zeros(count, dtype=torch.float64) for _ in range(3))
            for block, part in logits.blocks():
                for rows, x in logits.tiles(block, part):
                    inside, column = _places(targets[rows], block)
                    picked[rows] += torch.where(inside, x.gather(1, column), 0.0)[:, 0]
                    new = torch.maximum(top[rows], x.amax(1))
                    shift = ((top[rows].double() - new) / temperature).clamp_(min=-1e300)  # times 0, not 0 * inf
                    scale = shift.exp()
                    logits.relative(x, new)
                    if entropy:
                        x.clamp_(min=finfo.min)  # 0 * -inf is 0
                        e = x.exp()
                        here = torch.linalg.vecdot(x, e)
                        moment[rows] = scale * (moment[rows] + shift * total[rows]) + here
                    else:
                        e = x.exp_()
                    total[rows] = scale * total[rows] + e.sum(1)
                    top[rows] = new
            log_total = total.log()
            values = ((picked - top) / temperature - log_total).to(logits.wide)
            entropies = (log_total - moment / total).to(logits.wide)
        ctx.save_for_backward(hidden, weight, bias, targets, top, total)
        ctx.settings = (temperature, dtype, tile)
        ctx.listener = listener
        ctx.mark_non_differentiable(entropies)
        return values, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden, weight, bias, targets, top, total = ctx.saved_tensors
        temperature, dtype, tile = ctx.settings
        listener: Listener | None = ctx.listener
        to_hidden, to_weight, to_bias = ctx.needs_input_grad[:3]
        with _plain(hidden.device):
            logits = _Logits(hidden, weight, bias, temperature, dtype, tile)
            wide = logits.wide
            if listener is not None and listener.begin(len(weight), wide):
                to_weight = to_bias = False
            slope = gradient / temperature
            minus = (-slope / total).to(wide)
            of_hidden = hidden.new_zeros(hidden.shape, dtype=wide) if to_hidden else None
            of_weight = torch.empty_like(weight) if to_weight else None
            of_bias = weight.new_zeros(len(weight), dtype=wide) if to_bias else None
            for block, part in logits.blocks():
                # Summed over tokens in float32, rounded to the weight's type once.
                own = weight.new_zeros(part.shape, dtype=wide) if to_weight else None
                for rows, x in logits.tiles(block, part):
                    inside, column = _places(targets[rows], block)
                    logits.relative(x, top[rows]).exp_().mul_(minus[rows, None])
                    x.scatter_add_(1, column, torch.where(inside, slope[rows, None], 0.0))
                    if of_hidden is not None:
                        logits.add_product(of_hidden[rows], x, part)
                    if own is not None:
                        logits.add_product(own, x.t(), logits.hidden[rows])
                    if of_bias is not None:
                        of_bias[block] += x.sum(0)
                    if listener is not None:
                        listener.tile(x, rows, block)
                if own is not None and of_weight is not None:
                    of_weight[block] = own
            if listener is not None:
                listener.finish()
        return (
            None if of_hidden is None else of_hidden.to(hidden.dtype),
            of_weight,
            None if of_bias is None or bias is None else of_bias.to(bias.dtype),
            *(None,) * 6,
        )
