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
    """Adds up an output layer's part of the scores from the tiles of the logits' gradient, in the backward pass.

    The gradient of each token's logits is projected from the V vocabulary entries to k numbers, and only these are
    kept, (N, k). Without a projection the gradient itself is kept, (N, V), which needs a small model. ``key`` names the
    projection, ``labels`` (N,) are the numbers of the tokens' responses, ``batch`` is the number of responses B, and
    ``bias`` is V if the layer's bias is scored, else 0. After the last tile ``receive`` gets the projected gradients
    and their sums over each response (B, V), None without a bias. ``alone`` says whether no parameter needs a gradient.
    """

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
        """For a layer with ``vocabulary`` outputs, set the sums over the logits' gradient to 0 for a new backward pass;
        return whether no parameter needs a gradient in this pass. Autograd does not tell the pass whether the output
        layer's gradients are needed."""
        self._matrix = self.sketcher.matrix(self.key, vocabulary, dtype)
        width = vocabulary if self._matrix is None else self._matrix.shape[1]
        left = torch.zeros(len(self.labels), width, dtype=dtype, device=self.labels.device)
        self._left, self._bias = left, left.new_zeros(self._shape) if self._shape[1] else None
        return self.alone()

    def tile(self, delta: Float[torch.Tensor, "rows columns"], rows: slice, columns: slice) -> None:
        """Add one tile ``delta`` of the logits' gradient (some tokens, some vocabulary entries) to the sums over tiles.

        The memory of ``delta`` is used again for the next tile."""
        assert self._left is not None
        if self._matrix is None:
            self._left[rows, columns] = delta
        else:
            self._left[rows].addmm_(delta, self._matrix[columns])
        if self._bias is not None:
            self._bias[:, columns].index_add_(0, self.labels[rows], delta)

    def finish(self) -> None:
        """Pass the sums over all tiles to the function ``receive`` at the end of a backward pass: each token's
        projected gradient of the logits, and each response's gradient of the bias."""
        left, bias, self._left, self._bias = self._left, self._bias, None, None
        assert left is not None
        self.receive(left, bias)


@dataclass(frozen=True)
class Site:
    """A module whose score is read by hooks: its kind, its name, the names of its trainable weight and bias (None if
    frozen or absent), and the keys of the two random projections of its weight's gradient (rows and columns)."""

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
    """Return an activation ``x`` (rows, ...) at about 8 evenly spaced rows, one for each token; of an activation (B,
    tokens, ...) only the first response's tokens are taken."""
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
