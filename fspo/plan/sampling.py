"""Memory that sampling needs on a GPU, for each sampling engine."""

from __future__ import annotations

from functools import lru_cache
from math import ceil

import torch
from transformers import PretrainedConfig

from fspo.config import Dtype, TrainConfig
from fspo.config.machine import MachineConfig
from fspo.models.load import DTYPES
from fspo.plan.machine import sampled_rows
from fspo.plan.measure import prompt_pass
from fspo.plan.models import HashedConfig, Sizes
from fspo.sampling.fast import CacheLayer
from fspo.sampling.picking import PICK_ELEMENTS
from fspo.sampling.sample import FAST_PARAMETERS


def engine_of(config: TrainConfig, machine: MachineConfig, model: Sizes) -> str:
    """Return the run's sampling engine.

    The setting "auto" gives the fast engine for a small model or on a CPU, else "generate". In training it also gives
    "generate" for a model with other layers than plain attention; the plan assumes that there are none.
    """
    wanted = config.sampling.engine
    if wanted != "auto":
        return wanted
    return "fast" if machine.device == "cpu" or model.total < FAST_PARAMETERS else "generate"


def rollout(
    config: TrainConfig,
    machine: MachineConfig,
    shape: PretrainedConfig,
    model: Sizes,
    compute: torch.dtype,
) -> dict[str, int]:
    """Return the bytes that sampling needs on one GPU beside the model's weights.

    The parts are a copy of all weights for the computation (gathered from the shards, or cast to a smaller type), a
    copy of the weights in the sampling precision, the key-value cache, the activations of the pass over the prompts,
    and the next token's logits. A part that the run does not need is not counted.
    """
    engine = engine_of(config, machine, model)
    prompt, columns = config.task.max_prompt_tokens, config.task.max_prompt_tokens + config.sampling.max_new_tokens
    rows = sampled_rows(config, machine)
    sharded = machine.shards > 1
    casts = compute.itemsize < DTYPES[config.model.dtype].itemsize or sharded
    parts = {"gathered": model.total * compute.itemsize} if casts else {}
    if engine == "vllm":  # a vLLM server samples on another GPU, so this GPU needs no memory for it
        return parts
    if config.sampling.precision != "same":
        compute = torch.bfloat16 if config.sampling.precision == "bfloat16" else compute
        parts["copy"] = model.total * compute.itemsize
    vocabulary = shape.vocab_size
    chosen = min(rows, max(1, PICK_ELEMENTS // vocabulary))
    logits = rows * vocabulary * (compute.itemsize + 4) + chosen * vocabulary * (2 * 4 + 2 * 8)
    cache = rows * columns * cache_bytes(shape, compute)
    # The fast engine reads each prompt once for all its responses; "generate" reads it again for every response.
    read = ceil(rows / config.batch.responses)
    if engine == "generate":
        # While generate() enlarges its cache, a second copy of one layer's keys exists. To mask tokens, generate() also
        # makes a copy of the logits.
        cache += cache // shape.num_hidden_layers // 2
        logits, read = logits + rows * vocabulary * 4, rows
    dtype: Dtype = "bfloat16" if compute == torch.bfloat16 else "float32"
    return parts | {
        "KV cache": cache,
        "activations": _prompts(HashedConfig.of(shape), read, prompt, dtype),
        "logits": logits,
    }


@lru_cache(maxsize=256)
def _prompts(shape: HashedConfig, rows: int, columns: int, dtype: Dtype) -> int:
    return prompt_pass(shape.config, rows, columns, dtype)


def cache_bytes(shape: PretrainedConfig, dtype: torch.dtype) -> int:
    """Return the bytes that one token's keys and values take in the caches of all layers (`CacheLayer`)."""
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    size = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    layer = CacheLayer(1, 1)
    states = torch.empty(1, heads, 1, size, dtype=dtype, device="meta")
    layer.lazy_initialization(states, states)
    return shape.num_hidden_layers * (layer.keys.nbytes + layer.values.nbytes)
