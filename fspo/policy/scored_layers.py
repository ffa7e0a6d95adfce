"""The modules from which a score can be read, and the building blocks of `fspo.policy.score_hooks`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float, Int64, Shaped
from torch import nn
from transformers.pytorch_utils import Conv1D

from fspo.policy.sketch import Sketcher

CHECKED_TOKENS = 8
"""Number of tokens of a batch's first response on which a layer's assumed formula is compared with its output."""


class Tap(torch.autograd.Function):
    """The identity function of a tensor; its backward pass calls a function ``receive`` with the gradient and with a
    tensor saved before. That tensor is saved by ``save_for_backward``, so that gradient checkpointing can drop it and
    compute it again."""

    @staticmethod
    def forward(
        ctx: Any, output: Float[torch.Tensor, "*shape"], saved: Shaped[torch.Tensor, " ..."], receive: Callable
    ) -> Float[torch.Tensor, "*shape"]:
        """Return ``output`` unchanged (as a view).

        Keep the tensor ``saved`` and the function ``receive``: the backward pass calls it with the gradient and the
        tensor."""
        ctx.save_for_backward(saved)
        ctx.receive = receive
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, delta: Float[torch.Tensor, " ..."]) -> tuple[Float[torch.Tensor, " ..."], None, None]:  # type: ignore[override]
        """Call ``receive`` with ``delta``, the gradient with respect to the output of `forward`, and return that
        gradient unchanged, because `forward` is the identity."""
        ctx.receive(delta, *ctx.saved_tensors)
        return delta, None, None


class HeadListener:
    """Collects an output layer's part of the scores of B responses, tile by tile, from the gradient of S in the logits.

    A backward pass calls `begin`, then `tile` for each tile, then `finish`. Of the gradient (N, V), N tokens by V
    vocabulary entries, only its product with the random projection ``key`` of ``sketcher`` is kept, (N, k); without a
    projection it is kept whole, so the model must be small. ``labels`` (N,) is each token's response, 0 to B - 1;
    ``batch`` is B; ``bias`` is V if the layer's bias is scored, else 0. `finish` calls ``receive`` with the kept (N, k)
    and the bias's gradient: each response's sum over its tokens, not projected, (B, V), or None if ``bias`` is 0.
    ``alone()`` returns whether this backward pass computes scores only, so that no parameter's gradient is wanted."""

    def __init__(
        self,
        sketcher: Sketcher,
        key: str,
        labels: Int64[torch.Tensor, " N"],
        batch: int,
        bias: int,
        receive: Callable[[Float[torch.Tensor, "N k"], Float[torch.Tensor, "B V"] | None], None],
        alone: Callable[[], bool],
    ) -> None:
        self.sketcher, self.key, self.labels = sketcher, key, labels
        self.receive, self.alone = receive, alone
        self._shape = (batch, bias)
        self._left: torch.Tensor | None = None
        self._bias: torch.Tensor | None = None

    def begin(self, vocabulary: int, dtype: torch.dtype) -> bool:
        """Begin a backward pass of a layer with V = ``vocabulary`` outputs: set what is collected to 0, type ``dtype``.
        Return True if the caller need not compute the gradients of the layer's weight and bias, because the pass is for
        scores only (``alone``); autograd does not tell the caller so."""
        self._matrix = self.sketcher.matrix(self.key, vocabulary, dtype)
        width = vocabulary if self._matrix is None else self._matrix.shape[1]
        left = torch.zeros(len(self.labels), width, dtype=dtype, device=self.labels.device)
        self._left, self._bias = left, left.new_zeros(self._shape) if self._shape[1] else None
        return self.alone()

    def tile(self, delta: Float[torch.Tensor, "rows columns"], rows: slice, columns: slice) -> None:
        """Take in ``delta``, the gradient of S in the logits at tokens ``rows`` and vocabulary entries ``columns``: add
        ``delta`` times the projection to the collected (N, k), and its sums over each response's tokens to the bias's
        gradient (B, V). ``delta`` is not kept, because the caller writes the next tile into its memory."""
        assert self._left is not None
        if self._matrix is None:
            self._left[rows, columns] = delta
        else:
            self._left[rows].addmm_(delta, self._matrix[columns])
        if self._bias is not None:
            self._bias[:, columns].index_add_(0, self.labels[rows], delta)

    def finish(self) -> None:
        """End a backward pass: call ``receive`` with each token's projected gradient of the logits, (N, k), and each
        response's gradient of the bias, (B, V) or None, and keep neither here."""
        left, bias, self._left, self._bias = self._left, self._bias, None, None
        assert left is not None
        self.receive(left, bias)


@dataclass(frozen=True)
class Site:
    """A module whose score is read by hooks: its kind, its name, the names of its trainable weight and bias (None if
    frozen or absent), and the keys for `Sketcher.project` of the rows and of the columns of its weight's gradient."""

    kind: str  # kind of the module's layer: "linear", "conv1d", "embedding" or "scale"
    name: str
    weight: str | None
    bias: str | None
    row_key: str
    col_key: str


def _kind(module: nn.Module) -> str | None:
    """Return how a module's parameters are scored ("linear", "conv1d", "embedding", "scale"); None if not at all."""
    # Compare ``forward``, not the class: a subclass of Linear with its own ``forward`` may compute another formula.
    forward = type(module).forward
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
    """Return the modules whose parameters can be scored: module -> its `Site`.

    ``names`` maps ``id(parameter)`` to the name of each trainable parameter."""
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
            # Layers of one block that read the same input (q, k, v; gate, up) share the random projection of their
            # input, so that it is projected only once. The projections of the layers' outputs are independent.
            col = f"{path.rpartition('.')[0]}/input"
        sites[module] = Site(kind, path, weight, bias, row, col)
    return sites


@lru_cache(maxsize=1)
def shared_sketcher(shapes: tuple[tuple[str, tuple[int, ...]], ...], *draw: Any) -> Sketcher:
    """Return a `Sketcher` for gradient parts of the shapes ``shapes``; ``draw`` holds its width, projection, seed,
    rollout and device, as `Sketcher` takes them.

    The last sketcher made is cached, so that all passes of a rollout share its projections."""
    return Sketcher(dict(shapes), *draw)


def thinned(x: Shaped[torch.Tensor, "*rows F"]) -> Shaped[torch.Tensor, " ..."]:
    """Return a part of an activation for a cheap test: of ``x`` (tokens, F) 8 to 15 evenly spaced tokens, of ``x``
    (B, tokens, ...) as many of the first response, (1, 8 to 15, ...); all tokens if there are fewer."""
    step = max(1, x.shape[x.dim() > 2] // CHECKED_TOKENS)
    return x[:1, ::step] if x.dim() > 2 else x[::step]


def output_with_weight(
    module: nn.Module, x: Float[torch.Tensor, "*shape"], value: float
) -> Float[torch.Tensor, "*shape"]:
    """Return the output of a module for the input ``x`` with every weight set to ``value`` and no bias, without running
    its hooks."""
    # Copy the module without copy.copy, which would run the constructor of a module that FSDP2 has wrapped.
    twin = object.__new__(type(module))
    own = {n: torch.zeros(p.shape, dtype=p.dtype, device=p.device) for n, p in module.named_parameters()}
    own["weight"] += value
    twin.__dict__.update(module.__dict__, _parameters=own)
    with torch.no_grad():
        return type(module).forward(twin, x)


def close(a: Shaped[torch.Tensor, "*#shape"], b: Shaped[torch.Tensor, "*#shape"]) -> bool:
    """Return whether two tensors are equal up to rounding in float32, or in their own type if that is coarser.

    The least tolerance is float32's, because normalisation layers compute in float32. NaN equals NaN, so that a
    response whose numbers are not finite does not count as a difference."""
    eps = max(torch.finfo(t.dtype).eps for t in (a, b, torch.empty(0)))
    return torch.allclose(a.double(), b.double(), rtol=8 * eps, atol=8 * eps * float(b.abs().max()), equal_nan=True)
