"""Memory that a run needs on each GPU, or in each process on a CPU, while it samples and while it updates.

The other phases of a rollout take less than an update: the pass for old log-probs has no gradients, a score pass has
sketches in their place, and the optimizer's step makes no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch
from transformers import PretrainedConfig

from fspo.base.errors import UserError
from fspo.config import Dtype, LoraOptions, TrainConfig
from fspo.config.machine import MachineConfig
from fspo.models.load import DTYPES
from fspo.models.shapes import shape_of
from fspo.plan.measure import changed, meta_model, update_pass
from fspo.policy.linear_logprobs import TILE, TILE_ELSEWHERE
from fspo.policy.logprobs import BIG_VOCABULARY
from fspo.sampling.picking import PICK_ELEMENTS
from fspo.sampling.sample import FAST_PARAMETERS

RESERVE = 0.08
"""Share of the memory that a plan leaves free: on a GPU for the CUDA context, NCCL and fragmentation, on a CPU for the
operating system. The share is an estimate, not measured."""
PROGRAM = int(0.75 * 2**30)
"""Bytes that a process on a CPU takes before it loads a model: Python, torch and transformers (measured)."""
FREED_BLOCKS = 0.8
"""Freed memory that glibc keeps in a backward pass with gradient checkpointing, divided by N P. N is the number of
decoder layers, and P the part of the pass's peak that does not grow with N: about what one decoder layer allocates. The
ratio was measured at Qwen3-0.6B's widths with 28 layers and at Qwen3-8B's widths with 4 and 12."""


@dataclass(frozen=True)
class MemoryPlan:
    """Memory of a planned training run, bytes on each GPU, or in each process on a CPU.

    Attributes
    ----------
    parameters, trainable : int
        Entries of all parameters, and of the trainable ones; tied parameters count once.
    phases : dict of str to dict of str to int
        Bytes by phase (sampling, update) and by what takes them (weights, optimizer, activations, ...).
    capacity : int
        Memory of a GPU (or process), less 8 % that stay free.
    """

    parameters: int
    trainable: int
    phases: dict[str, dict[str, int]]
    capacity: int

    @property
    def totals(self) -> dict[str, int]:
        """Bytes needed in each phase, by the phase's name."""
        return {name: sum(parts.values()) for name, parts in self.phases.items()}

    @property
    def peak(self) -> int:
        """Bytes needed in the phase that needs most."""
        return max(self.totals.values())

    @property
    def fits(self) -> bool:
        """Whether the peak of all phases is at most ``capacity``."""
        return self.peak <= self.capacity


def sizes(shape: PretrainedConfig, lora: LoraOptions | None = None) -> tuple[int, int, int, int]:
    """Return numbers of parameter entries of a model with the configuration ``shape``, with adapters if ``lora`` is
    given: all, the trainable ones, those of the largest decoder layer, and those of the final norm and output layer;
    each of the last two is a part that FSDP2 gathers at once. Tied parameters count once.

    Raises UserError if the model has no list of decoder layers."""
    model = meta_model(shape, "float32", False, lora)
    stacks = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) > 0]
    if not stacks:
        raise UserError("the model has no list of decoder layers: the plan knows decoder-only transformers alone")
    layers = max(([sum(p.numel() for p in layer.parameters()) for layer in stack] for stack in stacks), key=sum)
    embedding = 0 if shape.tie_word_embeddings else sum(p.numel() for p in model.get_input_embeddings().parameters())
    total = sum(p.numel() for p in model.parameters())
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return total, trainable, max(layers), total - sum(layers) - embedding


def plan(config: TrainConfig, machine: MachineConfig, shape: PretrainedConfig | None = None) -> MemoryPlan:
    """Compute the memory that the training run ``config`` needs on ``machine``; ``shape`` is the model's configuration,
    by default that of the model that the run names.

    Raises UserError if the model's configuration cannot be found, or if it is no decoder-only transformer."""
    shape = shape or shape_of(config.model.name_or_path)
    total, trainable, layer, head = sizes(shape, config.model.lora)
    cpu, split, kept = machine.device == "cpu", machine.gpus, DTYPES[config.model.dtype]
    mixed = machine.precision == "bf16"
    compute = torch.bfloat16 if mixed else kept
    # peft keeps the weights of adapters in float32, and accelerate all trained weights under FSDP2 in mixed precision.
    own = torch.float32 if config.model.lora is not None or (mixed and split > 1) else kept
    static = {
        "weights": (trainable * own.itemsize + (total - trainable) * kept.itemsize) // split,
        "optimizer": 2 * trainable * own.itemsize // split,
        "reference": total * kept.itemsize // split if config.rule.kl_coef > 0 else 0,
        "program": PROGRAM if cpu else 0,
    }
    gathered, gradients = 0, trainable * own.itemsize // split
    if split > 1:
        # A pass gathers whole copies of two decoder layers (the one in use and the next) and of the output layer, which
        # stays gathered, and averages the gradients of the same parts. On CPUs gloo copies its input (measured).
        gathered = (2 * layer + head) * compute.itemsize
        gradients += int(trainable / total * (2 * layer + (2 if cpu else 1) * head) * compute.itemsize)
    elif kept != compute:
        gathered = total * compute.itemsize  # mixed precision casts a copy of all weights
    update = static | {"gathered": gathered, "gradients": gradients} | _activations(config, cpu, shape, compute)
    # Sampling uses a whole copy of the weights: gathered from the shards, or cast to a smaller type.
    whole = total * compute.itemsize if split > 1 or kept != compute else 0
    sampling = static | {"gathered": whole}
    if config.sampling.engine != "vllm":  # a vLLM server samples on another GPU
        sampling |= _generate(config, machine, shape, total, compute)
    phases = {"sampling": sampling, "update": update}
    used = {name: {part: size for part, size in parts.items() if size} for name, parts in phases.items()}
    return MemoryPlan(total, trainable, used, int(machine.gib * 2**30 * (1 - RESERVE)))


def _activations(config: TrainConfig, cpu: bool, shape: PretrainedConfig, compute: torch.dtype) -> dict[str, int]:
    """Return the bytes of an update's forward and backward pass by name: activations, logits, and freed blocks, which
    the heap keeps. ``cpu`` says whether the run trains on CPUs, ``compute`` is the type in which the model computes.
    `update_pass` measures 1 and 2 decoder layers; more are extrapolated linearly, because all have the same shapes.
    The logits' bytes are the peak less that with a vocabulary of 8. How many logits are held at a time follows in
    training from the tensors' device; here it is passed on, because the fake tensors are always on the CPU."""
    tile = TILE.get("cpu" if cpu else "gpu", TILE_ELSEWHERE) if shape.vocab_size >= BIG_VOCABULARY else None
    dtype: Dtype = "bfloat16" if compute == torch.bfloat16 else "float32"
    given = dtype, config.model, config.sampling.temperature, config.batch.logits or tile
    prompt, response = config.task.max_prompt_tokens, config.sampling.max_new_tokens
    batch = (
        max(1, config.batch.tokens // (prompt + response)),
        prompt,
        response,
    )  # as many of the greatest lengths as fit
    one, two, bare = (update_pass(changed(shape, *form), batch, *given) for form in ((1,), (2,), (1, 8)))
    passing, layers = min(one, bare) - (two - one), shape.num_hidden_layers
    freed = int(FREED_BLOCKS * layers * passing) if cpu and config.model.gradient_checkpointing else 0
    kept = (two - one) * layers + passing
    return {"activations": kept, "logits": one - min(one, bare), "freed blocks": freed}


def _generate(
    config: TrainConfig, machine: MachineConfig, shape: PretrainedConfig, total: int, compute: torch.dtype
) -> dict[str, int]:
    """Return the bytes by name that sampling with engine "generate" or "fast" needs beside the weights: a copy of the
    ``total`` weights in the sampling precision, the key-value cache, the pass over the prompts, and the next token's
    logits. ``compute`` is the type in which the model computes. ``generate`` reads a prompt once for each of its
    responses, ``fast`` once in all. The pass over the prompts is taken to hold 3 (hidden size + MLP's hidden size)
    numbers a token (measured: within .03 for Qwen3's shapes)."""
    parts = {}
    if config.sampling.precision != "same":
        compute = torch.bfloat16 if config.sampling.precision == "bfloat16" else compute
        parts["copy"] = total * compute.itemsize
    prompt, vocabulary = config.task.max_prompt_tokens, shape.vocab_size
    rows = min(config.sampling.batch_size, ceil(config.batch.prompts * config.batch.responses / machine.gpus))
    small = machine.device == "cpu" or total < FAST_PARAMETERS
    fast = config.sampling.engine == "fast" or (config.sampling.engine == "auto" and small)
    read = ceil(rows / config.batch.responses) if fast else rows
    entries = 3 * (shape.hidden_size + getattr(shape, "intermediate_size", 4 * shape.hidden_size))
    cache = rows * (prompt + config.sampling.max_new_tokens) * cache_bytes(shape, compute)
    parts["KV cache"] = cache + cache // shape.num_hidden_layers // 2  # one layer's keys twice while the cache grows
    parts["activations"] = read * prompt * entries * compute.itemsize
    picked = min(rows, max(1, PICK_ELEMENTS // vocabulary))
    parts["logits"] = rows * vocabulary * (compute.itemsize + 2 * 4) + picked * vocabulary * (2 * 4 + 2 * 8)
    return parts


def cache_bytes(shape: PretrainedConfig, dtype: torch.dtype) -> int:
    """Return the bytes that one token's keys and values take in the caches of all layers, for a model's configuration
    ``shape``."""
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    size = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    return shape.num_hidden_layers * 2 * heads * size * dtype.itemsize
