"""Memory of one microbatch, measured by running the training code on tensors without storage.

`fspo.policy.logprobs.token_log_probs` and its backward pass run under PyTorch's FakeTensorMode, and the bytes of all
tensors that exist after each operation are added up. Nothing is computed and no weights exist, so the measurement of
Qwen3-8B takes seconds on any machine. The model is run with 1 and with 2 decoder layers. The memory with more layers is
extrapolated on a straight line, because all decoder layers have the same shapes. (torch's MemTracker is not used,
because it allows no frozen weights.)
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary
from transformers import PretrainedConfig, PreTrainedModel

from fspo.config import Dtype, LoraOptions
from fspo.plan.models import meta_model
from fspo.policy.logprobs import make_batch, token_log_probs

SHALLOW, DEEP = 1, 2
"""The two numbers of decoder layers with which memory is measured, to extrapolate it to all layers of a model."""


class _LiveBytes(TorchDispatchMode):
    """Adds up the bytes of the fake tensors (tensors without storage) that exist after each operation.

    Operations whose inputs are all masks or token ids are computed with real values, because the shapes of other
    tensors may depend on these values.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        real = tensors and not any(isinstance(x, FakeTensor) or x.is_floating_point() for x in tensors)
        if real:
            with torch._C._DisableTorchDispatch():
                return func(*args, **kwargs)
        # token_log_probs tests whether a model changes the output layer's result (by a softcap, say): it appends known
        # numbers to that result and compares them with the model's output. Fake tensors have no values to compare, and
        # no planned model changes the result, so here every comparison says "equal".
        if func is torch.ops.aten.equal.default:
            return True
        # A fake tensor cannot be indexed by a mask, because the shape of the result depends on the mask's values. So a
        # mask, which is a real tensor, is replaced by the indices of the entries that it picks.
        if func is torch.ops.aten.index.Tensor:
            args = (args[0], [i for x in args[1] for i in _positions(x)], *args[2:])
        made = func(*args, **kwargs)
        for x in tree_leaves(made):
            if isinstance(x, FakeTensor):
                self.add(x)
        self.peak = max(self.peak, self.live)
        return made

    def add(self, x: torch.Tensor) -> None:
        """Count the bytes of a tensor's storage as live from now until the storage is freed."""
        storage = x.untyped_storage()
        if storage not in self._seen:
            size = storage.nbytes()
            self.live += size
            self._seen[storage] = weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.live -= size


def _positions(index: Any) -> list[Any]:
    if isinstance(index, torch.Tensor) and index.dtype == torch.bool and not isinstance(index, FakeTensor):
        with torch._C._DisableTorchDispatch():
            return list(index.nonzero().unbind(1))
    return [index]


def shallow(config: PretrainedConfig, layers: int) -> PretrainedConfig:
    """Return a copy of a model's configuration with ``layers`` decoder layers instead of the model's own number."""
    found = copy.deepcopy(config)
    found.num_hidden_layers = layers
    if getattr(found, "layer_types", None):
        found.layer_types = (found.layer_types * layers)[:layers]
    return found


def fake_model(
    config: PretrainedConfig, dtype: Dtype, gradient_checkpointing: bool = False, lora: LoraOptions | None = None
) -> PreTrainedModel:
    """Make a model in train mode from fake tensors (tensors without storage) on the CPU; call this under
    FakeTensorMode."""
    with unset_fake_temporarily():
        model = meta_model(config, dtype, gradient_checkpointing=gradient_checkpointing, lora=lora)
    return model.to_empty(device="cpu").train()


def padded_rows(rows: int, prompt: int, response: int, pad: int = 0) -> dict[str, torch.Tensor]:
    """Make a microbatch of ``rows`` prompts of ``prompt`` tokens with responses of ``response`` tokens.

    One response is a token shorter, so that the microbatch is padded (with token ``pad``) as a real microbatch is.
    """
    lengths = [response] * (rows - 1) + [max(1, response - (rows > 1))]
    return make_batch([[1] * prompt] * rows, [[1] * n for n in lengths], pad)


def update_pass(
    config: PretrainedConfig,
    batch: Mapping[str, torch.Tensor],
    *,
    layers: int,
    dtype: Dtype = "float32",
    gradient_checkpointing: bool = False,
    lora: LoraOptions | None = None,
    temperature: float = 1.0,
    logits: int | None = None,
) -> int:
    """Return the peak bytes of a forward and backward pass over one microbatch, beside the weights and gradients.

    The gradients of the weights exist before the pass and are not counted. In training they exist before every
    microbatch but an update's first.

    Parameters
    ----------
    config : PretrainedConfig
        Configuration of a causal language model whose decoder layers have equal shapes.
    batch : mapping
        Real tensors, from `fspo.policy.logprobs.make_batch`.
    layers : int
        Number of decoder layers of the model that runs.
    dtype : {"float32", "bfloat16"}
        The dtype in which the pass computes.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = fake_model(shallow(config, layers), dtype, gradient_checkpointing, lora)
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if p.requires_grad else None

        def run() -> None:
            token_log_probs(model, batch, temperature, logits=logits)[0].sum().backward()

        return _peak(model, run)


def forward_pass(
    config: PretrainedConfig,
    batch: Mapping[str, torch.Tensor],
    *,
    dtype: Dtype = "float32",
    temperature: float = 1.0,
    entropy: bool = False,
    logits: int | None = None,
) -> int:
    """Return the peak bytes, beside the weights, of a pass without gradients over one microbatch.

    The pass that computes old log-probs is such a pass. One decoder layer is run, because without gradients the peak
    does not depend on the number of layers.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = fake_model(shallow(config, SHALLOW), dtype)

        def run() -> None:
            with torch.no_grad():
                token_log_probs(model, batch, temperature, entropy=entropy, logits=logits)

        return _peak(model, run)


def prompt_pass(config: PretrainedConfig, rows: int, columns: int, dtype: Dtype) -> int:
    """Return the peak bytes of a pass without gradients and without a KV cache over ``rows`` prompts."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = fake_model(shallow(config, SHALLOW), dtype)

        def run() -> None:
            with torch.no_grad():
                model(input_ids=torch.zeros(rows, columns, dtype=torch.int64), use_cache=False, logits_to_keep=1)

        return _peak(model, run)


def _peak(model: torch.nn.Module, run: Callable[[], None]) -> int:
    """Return the most bytes that tensors take during ``run``, beside the model's weights, buffers and gradients."""
    watch = _LiveBytes()
    for p in (*model.parameters(), *model.buffers()):
        watch.add(p)
        if p.grad is not None:
            watch.add(p.grad)
    before = watch.live
    with watch:
        run()
    return watch.peak - before
