"""Log-probabilities of chosen tokens from hidden states and the output layer's weight, tile by tile.

Only one tile of the logits (tokens x vocabulary) exists at a time, in float32, in the forward and the backward pass, so
memory is linear in the number of tokens. The backward pass computes the logits of each tile again.
`torch.nn.functional.linear_cross_entropy` (from torch 2.13 on) has no temperature and no entropy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from math import isqrt
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from fspo.policy.scored_layers import HeadListener

TILE = {"cpu": 2**20}
"""Number of logits in one tile, by device type: 4 MiB of float32, which a CPU's caches hold. Other devices use
`TILE_ELSEWHERE`."""
TILE_ELSEWHERE = 2**24
CONVERTED_WEIGHTS = 2**23
"""Largest number of the output layer's weights that are converted to another type at a time: 32 MiB of float32."""


def tile_shape(tokens: int, vocabulary: int, device: torch.device, logits: int | None = None) -> tuple[int, int]:
    """Return how many of the ``tokens`` and of the ``vocabulary`` entries a tile of at most ``logits`` logits spans.

    None (or 0) for ``logits`` means 2^20 on a CPU ``device``, 2^24 on others. A tile is square where it can be: if the
    tokens are fewer it has all of them and more entries; if the entries are fewer it has all of them."""
    budget = logits or TILE.get(device.type, TILE_ELSEWHERE)
    rows = max(1, min(tokens, isqrt(budget)))
    return rows, max(1, min(vocabulary, budget // rows))


def linear_log_probs(
    hidden: Float[Tensor, "N H"],
    weight: Float[Tensor, "V H"],
    bias: Float[Tensor, " V"] | None,
    targets: Int64[Tensor, " N"],
    temperature: float = 1.0,
    *,
    entropy: bool = False,
    tile: tuple[int, int] | None = None,
    listener: HeadListener | None = None,
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"] | None]:
    """Return the log-probability, nats, of each of N target tokens under softmax((hidden weight^T + bias) /
    temperature), from hidden states (N, H) and an output layer's weight (V, H).

    Products of bfloat16 operands are summed in float32, and sums over the vocabulary are carried in float64. For given
    logits the error stays below 1e-6 nats. The logits themselves, made from hidden states, have the rounding error of
    float32: about 1e-7 times the largest logit, divided by the temperature. Under autocast the operands are rounded to
    autocast's type, as in a Linear layer.

    Parameters
    ----------
    entropy : bool
        Whether to return the entropy of each softmax too.
    tile : (int, int), optional
        Numbers of tokens and of vocabulary entries of a tile; `tile_shape` chooses by default.
    listener : HeadListener, optional
        Receives, in the backward pass, each tile of the gradient in the logits (before the temperature), for scores.

    Returns
    -------
    log_probs : Tensor (N,), float32 (float64 for float64 hidden states)
    entropies : Tensor (N,) or None
        Nats, without gradient.
    """
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
    tile = tile or tile_shape(len(targets), len(weight), hidden.device)
    values, entropies = _LinearLogProbs.apply(  # type: ignore[misc]
        hidden, weight, bias, targets, float(temperature), dtype, tile, entropy, listener
    )
    return values, entropies if entropy else None


def _plain(device: torch.device) -> AbstractContextManager:
    """Return a context without autocast, in which matrix products keep the types of their operands."""
    return torch.autocast(device.type, enabled=False)


class _Logits:
    """Computes the logits of one tile (some tokens and vocabulary entries) after the other, in float32 or float64.

    The hidden states and the output layer's weights are first rounded to one type, ``dtype``."""

    def __init__(
        self,
        hidden: Float[Tensor, "N H"],
        weight: Float[Tensor, "V H"],
        bias: Float[Tensor, " V"] | None,
        temperature: float,
        dtype: torch.dtype,
        tile: tuple,
    ) -> None:
        self.dtype = dtype
        self.wide = torch.promote_types(dtype, torch.float32)
        # On CUDA, cuBLAS multiplies 16-bit operands and adds the products up in 32 bits. On other devices the operands
        # are converted to float32 first. Both ways compute each product exactly.
        self.mixed = hidden.is_cuda and torch.version.hip is None and dtype != self.wide
        factor = dtype if self.mixed else self.wide  # the type in which matrices are multiplied
        self.hidden, self.weight, self.bias, self.temperature = hidden.to(dtype).to(factor), weight, bias, temperature
        self.rows, self.columns = tile
        self._converted = None
        if not weight.dtype == dtype == factor:
            self.columns = min(self.columns, max(1, CONVERTED_WEIGHTS // weight.shape[1]))
            self._converted = weight.new_empty(self.columns, weight.shape[1], dtype=factor)
        self._buffer = hidden.new_empty(self.rows * self.columns, dtype=self.wide)

    def blocks(self) -> Iterator[tuple[slice, Float[Tensor, "columns H"]]]:
        """Yield the vocabulary in blocks of successive entries (slices), each with the output layer's weights for it.

        Weights that must be converted to another type share one buffer: the next block overwrites the one before."""
        for start in range(0, len(self.weight), self.columns):
            block = slice(start, min(start + self.columns, len(self.weight)))
            part = self.weight[block]
            yield block, part if self._converted is None else self._converted[: len(part)].copy_(part.to(self.dtype))

    def tiles(
        self, block: slice, weight: Float[Tensor, "columns H"]
    ) -> Iterator[tuple[slice, Float[Tensor, "rows columns"]]]:
        """Yield the logits of one ``block`` of vocabulary entries in tiles: a slice of tokens, and their logits, not
        yet divided by the temperature. ``weight`` is the output layer's weight for the block, from `blocks`. All tiles
        share one buffer, so the next tile overwrites the one before."""
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

    def relative(self, x: Float[Tensor, "rows columns"], top: Float[Tensor, " rows"]) -> Float[Tensor, "rows columns"]:
        """Turn logits ``x`` in place into ``(x - top) / temperature`` and return them.

        ``top`` is each token's largest logit so far. Subtracting it before dividing keeps digits of large logits."""
        x -= top[:, None]
        if self.temperature != 1.0:
            x /= self.temperature
        return x

    def add_product(self, total: Float[Tensor, "i k"], a: Float[Tensor, "i j"], b: Float[Tensor, "j k"]) -> None:
        """Add ``a @ b`` to ``total`` in place; ``total`` has the type of the logits, float32 or float64."""
        if self.mixed:
            # torch.addmm_ with 16-bit factors and a float32 total exists only from torch 2.10 on
            total += torch.mm(a.to(self.dtype), b, out_dtype=self.wide)
        else:
            total.addmm_(a, b)


def _places(targets: Int64[Tensor, " N"], block: slice) -> tuple[Bool[Tensor, "N 1"], Int64[Tensor, "N 1"]]:
    """Return whether each of N target tokens (ids) lies in a block of the vocabulary, and its column in the block,
    counted from 0, both (N, 1). The column is 0 for a target outside the block too."""
    inside = (targets >= block.start) & (targets < block.stop)
    return inside[:, None], torch.where(inside, targets - block.start, 0)[:, None]


class _LinearLogProbs(torch.autograd.Function):
    """The autograd function behind `linear_log_probs`; both of its passes go through the logits tile by tile."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Float[Tensor, "N H"],
        weight: Float[Tensor, "V H"],
        bias: Float[Tensor, " V"] | None,
        targets: Int64[Tensor, " N"],
        temperature: float,
        dtype: torch.dtype,
        tile: tuple[int, int],
        entropy: bool,
        listener: HeadListener | None,
    ) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        with _plain(hidden.device):
            logits = _Logits(hidden, weight, bias, temperature, dtype, tile)
            count, finfo = len(targets), torch.finfo(logits.wide)
            # For each token, over the vocabulary entries read so far: top = largest logit x, total = sum exp(z) and
            # moment = sum z exp(z), with z = (x - top) / temperature.
            top = hidden.new_full((count,), finfo.min, dtype=logits.wide)
            total, moment, picked = (hidden.new_zeros(count, dtype=torch.float64) for _ in range(3))
            for block, part in logits.blocks():
                for rows, x in logits.tiles(block, part):
                    inside, column = _places(targets[rows], block)
                    picked[rows] += torch.where(inside, x.gather(1, column), 0.0)[:, 0]
                    new = torch.maximum(top[rows], x.amax(1))
                    # The sums so far are relative to the old largest logit: rescale them to the new one. Before the
                    # first block the shift may be -infinity; a finite limit avoids 0 * infinity = NaN.
                    shift = ((top[rows].double() - new) / temperature).clamp_(min=-1e300)
                    scale = shift.exp()
                    logits.relative(x, new)
                    if entropy:
                        # x holds z, the logits less the largest one, over the temperature. Where z is -infinity,
                        # z exp(z) would be NaN; with a finite z it is 0.
                        x.clamp_(min=finfo.min)
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
    def backward(ctx: Any, gradient: Float[Tensor, " N"], _: Float[Tensor, " N"]) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden, weight, bias, targets, top, total = ctx.saved_tensors
        temperature, dtype, tile = ctx.settings
        listener: HeadListener | None = ctx.listener
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
            sums = torch.empty_like(weight[: logits.columns], dtype=wide) if to_weight else None
            for block, part in logits.blocks():
                # Sum the weight's gradient over tokens in float32, and round it to the weight's type only once.
                own = None if sums is None else sums[: len(part)].zero_()
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
