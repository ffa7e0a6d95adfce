"""Hooks that sketch the score psi = grad S of every response in one backward pass, which stops at the embeddings.

For a layer y_t = W x_t (t a token) the gradient of response i's S in W is G_i = sum_t delta_t x_t^T, with
delta_t = dS_i/dy_t (docs/theory.md section 1 for psi and S). The hooks get x in the forward pass and delta in the
backward pass, and immediately project each from its full width to k numbers per token, by random matrices P_in and
P_out. The product of the projections, P_out^T G_i P_in, is hashed into the sketch. Gradients of weights are never
formed: `backward` asks autograd for the gradient at the embeddings' output alone."""

from __future__ import annotations

from typing import Any

import torch
from accelerate.utils import extract_model_from_parallel
from jaxtyping import Float, Int64, Integer
from torch import nn

from fspo.base.errors import UserError
from fspo.config import ScoreConfig
from fspo.distributed.tensors import whole
from fspo.policy.scored_layers import (
    HeadListener,
    Site,
    Tap,
    close,
    find_sites,
    output_with_weight,
    shared_sketcher,
    thinned,
)


class ScoreHooks:
    """Sketch every response's score around a forward pass of any Hugging Face causal LM.

    Only trainable parameters are covered (with LoRA: the adapters). The gradients of weights of Linear, Conv1D and
    embedding layers are projected on both sides. If several layers share a weight, their gradients get the same
    projections and are added. Gradients of biases and of the weights of normalisation layers are kept entry by entry; a
    normalisation layer is any module that is affine in an element-wise weight, which is tested on the data. All other
    parameters are not covered and are named in `uncovered`. Each row of the batch is one response; several sequences
    packed into one row are not told apart.

    Parameters
    ----------
    model : nn.Module
        The model, wrapped or not. Its parameters and their `.grad` stay unchanged.
    width, projection : int or None
        Number of entries of a sketch, and number of rows and columns to which a weight matrix's gradient is projected;
        None for no hashing, and no projection (`fspo.policy.sketch.Sketcher`).
    seed, rollout : int
        The projections depend on seed, rollout and the parameters' names.

    Raises
    ------
    UserError
        If the model has no trainable parameter or no input embedding.

    Examples
    --------
    >>> with ScoreHooks(model, seed=0, rollout=3) as hooks:  # doctest: +SKIP
    ...     log_prob = token_log_probs(model, batch, 1.0, scores=hooks)[0].sum(1)
    ...     sketch = hooks.backward(log_prob)  # (B, width)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        width: int | None = ScoreConfig.width,
        projection: int | None = ScoreConfig.projection,
        seed: int = 0,
        rollout: int = 0,
    ):
        self.model: nn.Module = extract_model_from_parallel(model)  # out of DDP, torch.compile and the like
        names = {id(p): name for name, p in self.model.named_parameters() if p.requires_grad}
        if not names:
            raise UserError("the model has no trainable parameter to score: set requires_grad or add adapters")
        self.trainable = {n: tuple(p.shape) for n, p in self.model.named_parameters() if p.requires_grad}
        self._embedding = self.model.get_input_embeddings()  # type: ignore[operator]
        self._sites = find_sites(self.model, names)
        covered = {n for site in self._sites.values() for n in (site.weight, site.bias) if n}
        shapes = {n: s for n, s in self.trainable.items() if n in covered}
        device = next(self.model.parameters()).device
        self.sketcher = shared_sketcher(tuple(shapes.items()), width, projection, seed, rollout, device)
        self._handles: list[Any] = []
        self._rejected: dict[str, str] = {}
        self._heard: set[str] = set()
        self._offsets: dict[nn.Module, bool] = {}
        self._rules = {"linear": self._linear, "conv1d": self._linear, "scale": self._scale, "embedding": self._lookup}
        self._listening: nn.Module | None = None
        self._backward = False  # True in the backward pass, in which gradient checkpointing calls forward again
        self._reset(0, 0)

    @property
    def uncovered(self) -> dict[str, str]:
        """Trainable parameters that are missing from the sketch, with the reason; complete only after `backward`."""
        missing = {n: "no rule for this parameter" for n in self.trainable if n not in self.sketcher.shapes}
        silent = [n for n in self.sketcher.shapes if self._total is not None and n not in self._heard]
        return missing | dict.fromkeys(silent, "its module was not called, or S does not depend on it") | self._rejected

    def _reset(self, batch: int, length: int) -> None:
        self._batch, self._length = batch, length
        self._roots: list[tuple[torch.Tensor, torch.Tensor | None, Site | None, float]] = []
        self._input: tuple[torch.Tensor, int, str, torch.Tensor] | None = None
        self._total: torch.Tensor | None = None

    def __enter__(self) -> ScoreHooks:
        for module, site in self._sites.items():
            self._handles.append(module.register_forward_hook(self._rules[site.kind]))
        if self._embedding not in self._sites:
            self._handles.append(self._embedding.register_forward_hook(self._lookup))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._reset(0, 0)

    def _reject(self, site: Site, reason: str) -> None:
        self._rejected |= dict.fromkeys([n for n in (site.weight, site.bias) if n], reason)

    def _by_response(self, x: Float[torch.Tensor, "*_ F"]) -> Float[torch.Tensor, "B _ F"] | None:
        """Return activations, (B, ..., F) or (B T, F), as (B, tokens, F); None if their shape does not tell which
        response each token belongs to."""
        if x.dim() >= 3 and x.shape[0] == self._batch:
            return x.reshape(self._batch, -1, x.shape[-1])
        if x.dim() >= 2 and x.shape[:-1].numel() == self._batch * self._length:
            return x.reshape(self._batch, self._length, x.shape[-1])
        return None

    def _lookup(self, module: nn.Module, args: tuple, output: torch.Tensor) -> torch.Tensor | None:
        """Forward hook of an embedding: detach its output from the graph, so that the backward pass ends there, and
        keep the output for `backward`."""
        if not torch.is_grad_enabled():
            return None
        # Gradient checkpointing runs the embedding again in the backward pass; its output was kept in the forward pass.
        if self._backward:
            return output.detach().requires_grad_()
        ids = args[0]
        if module is self._embedding:
            self._reset(ids.shape[0], ids.shape[1])
        site, scale = self._sites.get(module), float(getattr(module, "embed_scale", 1.0))
        root = output.detach()
        # A model embeds positions once for all responses. Repeat the output, so that each response gets a gradient.
        if root.shape[0] == 1 < self._batch:
            root, ids = root.expand(self._batch, *root.shape[1:]), ids.expand(self._batch, -1)
        if site is not None:
            plain = nn.functional.embedding(thinned(ids[:1].unsqueeze(-1))[..., 0], whole(module.weight)) * scale
            few = thinned(root)
            if plain.shape != few.shape or len(root) != self._batch or not close(plain, few):
                self._reject(site, "an embedding with an unknown forward pass")
        root.requires_grad_()
        self._roots.append((root, ids, site, scale))
        return root

    def _linear(self, module: nn.Module, args: tuple, output: torch.Tensor) -> torch.Tensor | None:
        """Forward hook of a Linear or Conv1D: project the input now, and the output's gradient in the backward pass."""
        if not torch.is_grad_enabled() or not output.requires_grad or output is args[0]:
            return None
        # The `HeadListener` made by `listener` scores this output layer already, so the hook must not score it again.
        if module is self._listening:
            self._listening = None
            return None
        site, x = self._sites[module], args[0]
        rows = self._by_response(x.detach())
        if rows is None or output.shape[:-1] != x.shape[:-1]:
            self._reject(site, "the rows of the batch are mixed in its input")
            return None
        stored_in_out = site.kind == "conv1d"
        in_key, out_key = (site.row_key, site.col_key) if stored_in_out else (site.col_key, site.row_key)
        last = self._input
        if last is None or last[0] is not x or last[1:3] != (x._version, in_key):
            with torch.no_grad():
                last = self._input = (x, x._version, in_key, self.sketcher.project(rows, in_key))

        def receive(delta: torch.Tensor, projected: torch.Tensor) -> None:
            dtype = self._dtype(delta)
            delta = delta.reshape(*projected.shape[:-1], -1)
            if site.bias:
                self._add(site.bias, delta.sum(1, dtype=dtype))
            if site.weight:
                left, right = self.sketcher.project(delta, out_key).to(dtype), projected.to(dtype)
                if stored_in_out:
                    left, right = right, left
                self._add(site.weight, left.transpose(1, 2) @ right)

        return Tap.apply(output, last[3], receive)  # type: ignore[return-value]

    def owns(self, hook: object) -> bool:
        """Return whether the forward hook ``hook``, found on a module, was set by this `ScoreHooks`."""
        return hook in self._rules.values()

    def listener(
        self, head: nn.Module, hidden: Float[torch.Tensor, "N H"], rows: Int64[torch.Tensor, " N"]
    ) -> HeadListener | None:
        """Return a listener that adds ``head``'s part to the scores; ``head`` is an output layer that computes the
        log-probs of N tokens tile by tile. ``hidden`` (N, H) is its input at the positions that predict these tokens,
        ``rows`` (N,) each token's response, 0 to B - 1. Lest ``head`` be scored twice, its own forward hook does
        nothing at its next call. Return None if ``head`` has nothing trainable or gradients are switched off."""
        site = self._sites.get(head)
        if site is None or not torch.is_grad_enabled():
            return None
        self._listening = head
        with torch.no_grad():
            projected = self.sketcher.project(hidden.detach(), site.col_key)

        def receive(left: torch.Tensor, bias: torch.Tensor | None) -> None:
            if site.bias and bias is not None:
                self._add(site.bias, bias)
            if site.weight:
                self._add(site.weight, self._sum_rows(left, rows, projected.to(left.dtype)))

        bias = head.get_parameter("bias").shape[0] if site.bias else 0
        return HeadListener(self.sketcher, site.row_key, rows, self._batch, bias, receive, lambda: self._backward)

    def _sum_rows(
        self,
        left: Float[torch.Tensor, "N i"],
        labels: Int64[torch.Tensor, " N"],
        right: Float[torch.Tensor, "N j"],
    ) -> Float[torch.Tensor, "B i j"]:
        """Return (B, i, j): for each response the sum over its tokens n of the outer product of ``left[n]`` and
        ``right[n]``; 0 for a response without a token. ``labels`` (N,) is each token's response, 0 to B - 1."""
        total = left.new_zeros(self._batch, left.shape[1], right.shape[1])
        for row in labels.unique().tolist():  # a short loop: a turn for each response with a token in `labels`
            own = labels == row
            total[row] = left[own].T @ right[own]
        return total

    def _scale(self, module: nn.Module, args: tuple, output: torch.Tensor) -> torch.Tensor | None:
        """Forward hook of a normalisation layer: score its weight and bias entry by entry.

        The layer must be affine in its weight: output = f(x; 0) + weight * (f(x; 1) - f(x; 0)) + bias, where f(x; v) is
        the layer's output for input x with every weight set to v and no bias."""
        if not torch.is_grad_enabled() or not output.requires_grad:
            return None
        site = self._sites[module]
        # Copy the weight, because FSDP2 frees gathered weights after the forward pass.
        weight, x = whole(module.weight).clone(), args[0].detach()
        if len(args) != 1 or x.shape != output.shape or x.shape[-weight.dim() :] != weight.shape:
            self._reject(site, "not an element-wise weight of its only input")
            return None
        if x.dim() < 2 or (x.shape[0] != self._batch and x.shape[0] != self._batch * self._length):
            self._reject(site, "the rows of the batch are mixed in its input")
            return None
        # At the layer's first forward pass, compare its output with the formula that this hook assumes: affine in the
        # weight.
        if module not in self._offsets:
            few, bias = thinned(x), getattr(module, "bias", None)
            zero, one = (output_with_weight(module, few, value) for value in (0.0, 1.0))
            affine = zero + weight * (one - zero) + (0.0 if bias is None else whole(bias))
            if not close(affine, thinned(output.detach())):
                self._reject(site, "not affine in its weight")
                return None
            self._offsets[module] = bool(zero.any())
        # If the output is weight * (normalised input), the weight's gradient is the sum over tokens of (gradient of the
        # output) * output / weight, so the normalised input need not be computed again.
        plain = getattr(module, "bias", None) is None and not self._offsets[module]
        divide = plain and float(weight.abs().min()) > 1e-3

        def receive(delta: torch.Tensor, saved: torch.Tensor) -> None:
            dtype, axes = self._dtype(delta), (self._batch, -1, weight.numel())
            if site.bias:
                self._add(site.bias, delta.reshape(axes).sum(1, dtype=dtype))
            if site.weight:
                unit = saved if divide else output_with_weight(module, saved, 1.0)
                if self._offsets[module]:
                    unit = unit - output_with_weight(module, saved, 0.0)
                part = (delta.to(dtype) * unit).reshape(axes).sum(1)
                self._add(site.weight, part / weight.flatten() if divide else part)

        return Tap.apply(output, output.detach() if divide else x, receive)  # type: ignore[return-value]

    @staticmethod
    def _dtype(x: torch.Tensor) -> torch.dtype:
        return torch.float64 if x.dtype == torch.float64 else torch.float32

    def _add(self, name: str, part: Float[torch.Tensor, " B *part"]) -> None:
        if name in self._rejected:
            return
        if self._total is None:
            self._total = self.sketcher.zeros(self._batch, part.dtype)
        self._heard.add(name)
        self.sketcher.add(self._total, name, part)

    def backward(self, log_prob: Float[torch.Tensor, " B"]) -> Float[torch.Tensor, "B D"]:
        """Run the backward pass of S and return the sketches.

        Parameters
        ----------
        log_prob : Tensor, shape (B,)
            S up to a constant: the summed log-probability of each response's tokens, in nats, from a
            forward pass inside this context. Row i must depend on row i of the batch alone.

        Returns
        -------
        Tensor, shape (B, width), float32 (float64 for a float64 model)
            The sketch of psi. A response whose gradient is not finite has non-finite entries.

        Raises
        ------
        UserError
            If no forward pass went through the input embedding, or gradient checkpointing is re-entrant.
        """
        if not self._roots:
            raise UserError("no forward pass was seen: call the model with input_ids inside the ScoreHooks context")
        if log_prob.shape != (self._batch,):
            raise UserError(
                f"log_prob must have shape ({self._batch},), one sum a response, not {tuple(log_prob.shape)}"
            )
        self._backward = True
        try:
            grads = torch.autograd.grad(log_prob.sum(), [root for root, *_ in self._roots], allow_unused=True)
        except RuntimeError as error:
            if "use_reentrant" in str(error):
                raise UserError("scores need gradient checkpointing with use_reentrant=False") from error
            raise
        finally:
            self._backward = False
        for (_, ids, site, scale), grad in zip(self._roots, grads, strict=True):
            if site is not None and site.weight and grad is not None and site.weight not in self._rejected:
                self._add(site.weight, self._embedding_part(site, ids, grad * scale))
        self._roots, self._input = [], None
        if self._total is None:
            self._total = self.sketcher.zeros(self._batch, self._dtype(log_prob))
        return self._total

    def _embedding_part(
        self, site: Site, ids: Integer[torch.Tensor, "B T"] | None, grad: Float[torch.Tensor, "B T H"]
    ) -> Float[torch.Tensor, "B i j"]:
        """Return the projected gradient of an embedding's weight, P_row^T G P_col, (B, kept rows, kept columns).

        P_row and P_col are the random matrices that project the rows (token ids) and the columns (features) of the
        gradient G = sum over tokens t of onehot(id_t) grad_t^T, with grad_t the gradient of the embedding's output."""
        assert ids is not None
        entries, dtype = self.trainable[str(site.weight)][0], self._dtype(grad)
        right = self.sketcher.project(grad, site.col_key).to(dtype)
        padding = getattr(self.model.get_submodule(site.name), "padding_idx", None)
        if padding is not None:  # torch gives the embedding of the padding id no gradient
            right = right * (ids != padding).unsqueeze(-1)
        matrix = self.sketcher.matrix(site.row_key, entries, dtype)
        if matrix is None:
            out = torch.zeros(ids.shape[0], entries, right.shape[-1], dtype=dtype, device=grad.device)
            return out.scatter_add_(1, ids.unsqueeze(-1).expand_as(right), right)
        return matrix[ids].transpose(1, 2) @ right
