"""Which modules a score can be read from, and the pieces that its hooks are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from fspo.policy.sketch import Sketcher

CHECKED_TOKENS = 8
"""Tokens of the first row, spread over it, on which a module's rule is compared with its output."""


class Tap(torch.autograd.Function):
    """The identity; on the way back it hands the gradient and a saved tensor to `receive`.

    The tensor goes through `save_for_backward`, so that gradient checkpointing drops and recomputes it.
    """

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, saved: torch.Tensor, receive: Callable) -> torch.Tensor:
        """A view of the output, of any shape."""
        ctx.save_for_backward(saved)
        ctx.receive = receive
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, delta: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        """The gradient as it came, received on the way."""
        ctx.receive(delta, *ctx.saved_tensors)
        return delta, None, None


class HeadListener:
    """Sums what an output layer's score needs over the tiles of the logits' gradient.

    Only the projection of the gradient is kept, (N, k); without projection it is the gradient itself, (N, V), as
    small models alone allow.

    Parameters
    ----------
    sketcher : Sketcher
    key : str
        Of the projection over the vocabulary.
    labels : Tensor, shape (N,), int64
        The response of each token.
    batch : int
        B, the number of responses.
    bias : int
        V where the layer's bias is scored, else 0.
    receive : function of (Tensor (N, k), Tensor (B, V) or None)
        Called once all tiles were heard.
    alone : function of () -> bool
        Whether the present backward pass asks for no parameter's gradient.
    """

    def __init__(
        self,
        sketcher: Sketcher,
        key: str,
        labels: torch.Tensor,
        batch: int,
        bias: int,
        receive: Callable[[torch.Tensor, torch.Tensor | None], None],
        alone: Callable[[], bool],
    ) -> None:
        self.sketcher, self.key, self.labels = sketcher, key, labels
        self.receive, self.alone = receive, alone
        self._shape = (batch, bias)
        self._left: torch.Tensor | None = None
        self._bias: torch.Tensor | None = None

    def begin(self, vocabulary: int, dtype: torch.dtype) -> bool:
        """A backward pass begins; whether it asks for no parameter's gradient."""
        self._matrix = self.sketcher.matrix(self.key, vocabulary, dtype)
        width = vocabulary if self._matrix is None else self._matrix.shape[1]
        left = torch.zeros(len(self.labels), width, dtype=dtype, device=self.labels.device)
        self._left, self._bias = left, left.new_zeros(self._shape) if self._shape[1] else None
        return self.alone()

    def tile(self, delta: torch.Tensor, rows: slice, columns: slice) -> None:
        """Take the gradient at some tokens and vocabulary entries."""
        assert self._left is not None
        if self._matrix is None:
            self._left[rows, columns] = delta
        else:
            self._left[rows].addmm_(delta, self._matrix[columns])
        if self._bias is not None:
            self._bias[:, columns].index_add_(0, self.labels[rows], delta)

    def finish(self) -> None:
        """Hand the sums over."""
        left, bias, self._left, self._bias = self._left, self._bias, None, None
        assert left is not None
        self.receive(left, bias)


@dataclass(frozen=True)
class Site:
    """One hooked module: its kind and the names of its trainable parameters (None: frozen or absent)."""

    kind: str  # "linear", "conv1d", "embedding", "scale"
    name: str
    weight: str | None
    bias: str | None
    row_key: str
    col_key: str


def _kind(module: nn.Module) -> str | None:
    """Which rule covers a module's own parameters; None where no rule does."""
    forward = type(module).forward  # a subclass that overrides forward is not trusted to be the same map
    if forward is nn.Linear.forward:
        return "linear"
    if forward is Conv1D.forward:
        return "conv1d"
    if isinstance(module, nn.Embedding):
        return "embedding" if not module.max_norm and not module.scale_grad_by_freq else None
    own = dict(module.named_parameters(recurse=False))
    if "weight" in own and set(own) <= {"weight", "bias"} and not any(True for _ in module.children()):
        return "scale"
    return None


def find_sites(model: nn.Module, names: dict[int, str]) -> dict[nn.Module, Site]:
    """The modules that a rule covers.

    Parameters
    ----------
    model : nn.Module
    names : dict of int to str
        Names of the trainable parameters by id().
    """
    uses: dict[str, int] = {}
    found: list[tuple[nn.Module, str, str, str | None, str | None]] = []
    for path, module in model.named_modules():
        kind = _kind(module)
        weight = names.get(id(getattr(module, "weight", None)))
        bias = names.get(id(getattr(module, "bias", None)))
        if kind and (weight or bias):
            found.append((module, path, kind, weight, bias))
            if weight:
                uses[weight] = uses.get(weight, 0) + 1
    sites = {}
    for module, path, kind, weight, bias in found:
        row, col = f"{weight}/row", f"{weight}/col"
        if kind == "linear" and weight and uses[weight] == 1:
            # Layers of one block that read the same input (q, k, v; gate, up) share its projection,
            # so that it is computed once; their other sides are independent.
            col = f"{path.rpartition('.')[0]}/input"
        sites[module] = Site(kind, path, weight, bias, row, col)
    return sites


@lru_cache(maxsize=1)
def shared_sketcher(shapes: tuple[tuple[str, tuple[int, ...]], ...], *draw: Any) -> Sketcher:
    """The passes of one rollout share their tables."""
    return Sketcher(dict(shapes), *draw)


def thinned(x: torch.Tensor) -> torch.Tensor:
    """A few tokens of the first row of (B, tokens, ...), or a few rows of (N, features)."""
    step = max(1, x.shape[x.dim() > 2] // CHECKED_TOKENS)
    return x[:1, ::step] if x.dim() > 2 else x[::step]


def output_with_weight(module: nn.Module, x: torch.Tensor, value: float) -> torch.Tensor:
    """A module's output with every weight set to `value` and no bias; no hook of the module runs."""
    twin = object.__new__(type(module))  # copy.copy would run the constructor of a module that FSDP2 has wrapped
    own = {n: torch.zeros(p.shape, dtype=p.dtype, device=p.device) for n, p in module.named_parameters()}
    own["weight"] += value
    twin.__dict__.update(module.__dict__, _parameters=own)
    with torch.no_grad():
        return type(module).forward(twin, x)


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal up to rounding in float32 (norm layers compute in it) or coarser; a failed row's NaN equals NaN."""
    eps = max(torch.finfo(t.dtype).eps for t in (a, b, torch.empty(0)))
    return torch.allclose(a.double(), b.double(), rtol=8 * eps, atol=8 * eps * float(b.abs().max()), equal_nan=True)
