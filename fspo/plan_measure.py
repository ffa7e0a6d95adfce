"""Memory of one microbatch, from the real training code run on tensors without storage.

`fspo.logprobs.token_log_probs` and its backward pass run under PyTorch's FakeTensorMode; MemTracker adds up what is
alive after every operation. Nothing is computed and no weights exist, so Qwen3-8B takes seconds on any machine.
Two depths are run and the rest is a straight line: decoder layers are alike.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only
from transformers import PretrainedConfig, PreTrainedModel

from fspo.logprobs import make_batch, token_log_probs
from fspo.models import DTYPES, LoraOptions, ready_for_training

DEPTHS = (2, 3)
"""Numbers of layers that are run."""


@dataclass(frozen=True)
class Pass:
    """Bytes that a pass over one microbatch holds at its peak, beside weights and gradients.

    Attributes
    ----------
    layer : float
        For each decoder layer.
    fixed : float
        Independent of the number of layers: the working set of one layer, logits, inputs.
    """

    layer: float
    fixed: float

    def peak(self, layers: int) -> float:
        """Bytes with this number of layers."""
        return self.layer * layers + self.fixed


class _RealMasks(TorchDispatchMode):
    """Under FakeTensorMode, run what depends on masks and ids alone for real: shapes may depend on their values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        if tensors and not any(isinstance(x, FakeTensor) for x in tensors):
            if not any(x.is_floating_point() for x in tensors):
                with torch._C._DisableTorchDispatch():
                    return func(*args, **kwargs)
        if func is torch.ops.aten.index.Tensor:  # a mask picks as many rows as it has ones
            args = (args[0], [i for x in args[1] for i in _positions(x)], *args[2:])
        return func(*args, **kwargs)


def _positions(index: Any) -> list[Any]:
    if isinstance(index, torch.Tensor) and index.dtype == torch.bool and not isinstance(index, FakeTensor):
        with torch._C._DisableTorchDispatch():
            return list(index.nonzero().unbind(1))
    return [index]


def shallow(config: PretrainedConfig, layers: int) -> PretrainedConfig:
    """The same model with another number of layers."""
    found = copy.deepcopy(config)
    found.num_hidden_layers = layers
    if getattr(found, "layer_types", None):
        found.layer_types = found.layer_types[:layers]
    return found


def fake_model(
    config: PretrainedConfig, dtype: str, gradient_checkpointing: bool, lora: LoraOptions | None
) -> PreTrainedModel:
    """The model in train mode; call it under a mode that allocates nothing."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype])
    return ready_for_training(model, "the model", gradient_checkpointing=gradient_checkpointing, lora=lora).train()


def padded_rows(rows: int, prompt: int, response: int, pad: int = 0) -> dict[str, torch.Tensor]:
    """A microbatch of ``rows`` responses of (nearly) full length, one of them a token shorter so that there is padding."""
    lengths = [response] * (rows - 1) + [max(1, response - (rows > 1))]
    return make_batch([[1] * prompt] * rows, [[1] * n for n in lengths], pad)


def update_pass(
    config: PretrainedConfig,
    batch: Mapping[str, torch.Tensor],
    *,
    dtype: str = "float32",
    gradient_checkpointing: bool = False,
    lora: LoraOptions | None = None,
    temperature: float = 1.0,
    train: bool = True,
    entropy: bool = False,
) -> Pass:
    """Memory of a forward (and backward) pass over one microbatch, gradients of earlier ones being there already.

    Parameters
    ----------
    config : PretrainedConfig
        Of a causal language model whose layers are alike.
    batch : mapping
        Real tensors, from `fspo.logprobs.make_batch`.
    dtype : {"float32", "bfloat16"}
        What the pass computes in.
    train : bool
        With a backward pass; without, as old log-probs are taken.
    """
    peaks = []
    for layers in DEPTHS:
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = fake_model(shallow(config, layers), dtype, gradient_checkpointing, lora)
            static = 0
            for p in model.parameters():
                static += p.numel() * p.element_size()
                if train and p.requires_grad:
                    p.grad = torch.zeros_like(p)
                    static += p.numel() * p.element_size()
            tracker = MemTracker()
            tracker.track_external(model)
            with tracker, _RealMasks(), torch.set_grad_enabled(train):
                values, _ = token_log_probs(model, batch, temperature, entropy=entropy)
                if train:
                    values.sum().backward()
            snapshot = tracker.get_tracker_snapshot("peak")
            total = sum(parts["Total"] for parts in snapshot.values())
        peaks.append(total - static)
    layer = (peaks[1] - peaks[0]) / (DEPTHS[1] - DEPTHS[0])
    return Pass(layer, peaks[0] - layer * DEPTHS[0])


def prompt_pass(config: PretrainedConfig, rows: int, columns: int, dtype: str) -> Pass:
    """Memory of a forward pass over prompts without gradients and without the cache that it fills."""
    peaks = []
    for layers in DEPTHS:
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = fake_model(shallow(config, layers), dtype, False, None)
            ids = torch.zeros(rows, columns, dtype=torch.int64)
            tracker = MemTracker()
            tracker.track_external(model)
            with tracker, torch.no_grad():
                model(input_ids=ids, use_cache=False, logits_to_keep=1)
            total = sum(parts["Total"] for parts in tracker.get_tracker_snapshot("peak").values())
        peaks.append(total - sum(p.nbytes for p in model.parameters()))
    layer = (peaks[1] - peaks[0]) / (DEPTHS[1] - DEPTHS[0])
    return Pass(layer, peaks[0] - layer * DEPTHS[0])
