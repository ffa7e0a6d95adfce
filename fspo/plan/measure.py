"""Memory of one pass, measured by running the training code on tensors without storage.

`fspo.policy.logprobs.token_log_probs` and its backward pass run under PyTorch's FakeTensorMode, and the bytes of all
tensors that exist after each operation are added up. Nothing is computed and no weights exist. (torch's MemTracker is
not used, because it allows no frozen weights.)"""

from __future__ import annotations

import copy
import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from fspo.config import Dtype, LoraOptions, ModelConfig
from fspo.models.load import DTYPES, ready_for_training
from fspo.policy.logprobs import make_batch, token_log_probs


class _LiveBytes(TorchDispatchMode):
    """Adds up the bytes of the fake tensors (tensors without storage) that exist after each operation.

    Operations whose inputs are all masks or token ids are computed with real values, because the shapes of other
    tensors may depend on these values."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if tensors and not any(isinstance(x, FakeTensor) or x.is_floating_point() for x in tensors):
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


def changed(shape: PretrainedConfig, layers: int, vocabulary: int | None = None) -> PretrainedConfig:
    """Return a copy of a model's configuration with ``layers`` decoder layers and ``vocabulary`` tokens (None: as many
    as before)."""
    found = copy.deepcopy(shape)
    found.num_hidden_layers = layers
    if getattr(found, "layer_types", None):
        found.layer_types = (found.layer_types * layers)[:layers]
    found.vocab_size = vocabulary or shape.vocab_size
    return found


def meta_model(
    shape: PretrainedConfig, dtype: Dtype = "float32", checkpointing: bool = False, lora: LoraOptions | None = None
) -> PreTrainedModel:
    """Return a model of the configuration ``shape``, ready for training, with gradient ``checkpointing`` and adapters
    if asked, on torch's meta device, where tensors have shapes but take no memory."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape, dtype=DTYPES[dtype])
        return ready_for_training(model, "the model", gradient_checkpointing=checkpointing, lora=lora)


def update_pass(
    shape: PretrainedConfig,
    microbatch: tuple[int, int, int],
    dtype: Dtype,
    model: ModelConfig,
    temperature: float,
    logits: int | None,
) -> int:
    """Return the peak bytes of a forward and backward pass over a microbatch of (responses, tokens of each prompt,
    tokens of each response), not counting weights and gradients. The gradients exist before the pass, as before every
    microbatch but an update's first. ``shape`` is the model's configuration, ``dtype`` the type of its weights,
    ``model`` tells gradient checkpointing and LoRA, ``logits`` is the largest number of logits held at a time."""
    rows, prompt, response = microbatch
    # One response is a token shorter, so that the microbatch is padded as a real microbatch is.
    lengths = [response] * (rows - 1) + [max(1, response - (rows > 1))]
    batch = make_batch([[1] * prompt] * rows, [[1] * n for n in lengths], 0)

    with FakeTensorMode(allow_non_fake_inputs=True):
        with unset_fake_temporarily():
            made = meta_model(shape, dtype, model.gradient_checkpointing, model.lora)
        net, watch = made.to_empty(device="cpu").train(), _LiveBytes()
        for p in (*net.parameters(), *net.buffers()):
            watch.add(p)
            if p.requires_grad:
                p.grad = torch.zeros_like(p)
                watch.add(p.grad)
        before = watch.live
        with watch:
            token_log_probs(net, batch, temperature, logits=logits)[0].sum().backward()
        return watch.peak - before
