"""Memory that a run needs on each GPU, or in each process on a CPU, by phase of a rollout."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil

import torch
from transformers import PretrainedConfig

from fspo.config import Dtype, LoraOptions, TrainConfig
from fspo.config.machine import MachineConfig
from fspo.models.load import DTYPES
from fspo.models.shapes import shape_of
from fspo.plan.machine import longest_microbatch, token_counts
from fspo.plan.measure import DEEP, SHALLOW, forward_pass, padded_rows, update_pass
from fspo.plan.models import HashedConfig, Sizes, meta_model, sizes
from fspo.plan.sampling import rollout
from fspo.plan.settings import refuse
from fspo.policy.linear_logprobs import TILE, TILE_ELSEWHERE
from fspo.policy.logprobs import BIG_VOCABULARY
from fspo.policy.scores import ScoreHooks

RESERVE = 0.08
"""Share of the memory that a plan leaves free: on a GPU for the CUDA context, NCCL and fragmentation, on a CPU for the
operating system. The share is an estimate, not measured.
"""
PROGRAM = int(0.75 * 2**30)
"""Bytes that a process on a CPU takes before it loads a model: Python, torch and transformers (measured)."""
FREED_BLOCKS = 0.8
"""Freed memory that glibc keeps in a backward pass with gradient checkpointing, divided by N P. N is the number of
decoder layers, and P the part of the pass's peak that does not grow with N: about what one decoder layer allocates. The
ratio was measured at Qwen3-0.6B's widths with 28 layers and at Qwen3-8B's widths with 4 and 12 (docs/scale.md).
"""
WRITTEN = 3
"""Copies of a process's shards that exist while torch.distributed.checkpoint writes them, beside the shards in use. One
copy is on the CPU without padding, one is the bytes of safetensors, one the bytes object of Python. The number was read
from the libraries' code, and measured (docs/scale.md)."""


@dataclass(frozen=True)
class MemoryPlan:
    """Memory and token counts of a planned training run.

    Attributes
    ----------
    model : Sizes
    phases : dict of str to dict of str to int
        For each phase of training (sampling, update, ...), the bytes on one GPU of weights, optimizer, activations, ...
    tokens : dict of str to float
        Counts of tokens, responses and so on of one rollout and of one update, by name.
    capacity : int
        Bytes of a GPU's memory, less the share `RESERVE`.
    """

    model: Sizes
    phases: dict[str, dict[str, int]]
    tokens: dict[str, float] = field(default_factory=dict)
    capacity: int = 0

    @property
    def totals(self) -> dict[str, int]:
        """Bytes needed on one GPU in each phase: weights, optimizer, activations and all other parts together."""
        return {name: sum(parts.values()) for name, parts in self.phases.items()}

    @property
    def peak(self) -> int:
        """Bytes needed on one GPU in the phase that needs most."""
        return max(self.totals.values())

    @property
    def fits(self) -> bool:
        """Whether every phase fits into a GPU's capacity."""
        return self.peak <= self.capacity


@lru_cache(maxsize=256)
def _activations(
    shape: HashedConfig,
    microbatch: tuple[int, int, int],
    dtype: Dtype,
    temperature: float,
    logits: int | None,
    checkpointing: bool,
    lora: str | None,
) -> tuple[int, int, int]:
    """Return the peak bytes of an update's forward and backward pass, in three parts.

    The third part is what the full vocabulary adds: the logits and their gradients. The other two parts add up to the
    peak with a vocabulary of 8 tokens. The first of them is what all layers keep for the backward pass; the second is
    the rest, which does not grow with the number of layers.
    """
    layers = shape.config.num_hidden_layers
    batch = padded_rows(*microbatch)

    def run(depth: int, config: PretrainedConfig) -> int:
        return update_pass(
            config,
            batch,
            layers=depth,
            dtype=dtype,
            gradient_checkpointing=checkpointing,
            lora=_LORA.get(lora),
            temperature=temperature,
            logits=logits,
        )

    shallow, deep = (run(depth, shape.config) for depth in (SHALLOW, DEEP))
    bare = min(shallow, run(SHALLOW, _few_tokens(shape.config)))
    slope = (deep - shallow) // (DEEP - SHALLOW)
    return slope * layers, bare - slope * SHALLOW, shallow - bare


@lru_cache(maxsize=256)
def _forward(
    shape: HashedConfig,
    microbatch: tuple[int, int, int],
    dtype: Dtype,
    temperature: float,
    logits: int | None,
    entropy: bool,
) -> tuple[int, int]:
    """Return the peak bytes of the pass that computes old log-probs, in two parts.

    The first part is the peak with a vocabulary of 8 tokens; the second is what the full vocabulary adds.
    """
    whole, bare = (
        forward_pass(
            config, padded_rows(*microbatch), dtype=dtype, temperature=temperature, entropy=entropy, logits=logits
        )
        for config in (shape.config, _few_tokens(shape.config))
    )
    return min(whole, bare), max(0, whole - bare)


_LORA: dict[str | None, LoraOptions] = {}


def plan(config: TrainConfig, machine: MachineConfig, shape: PretrainedConfig | None = None) -> MemoryPlan:
    """Compute the memory and the token counts of a run.

    Parameters
    ----------
    config : TrainConfig
    machine : MachineConfig
    shape : PretrainedConfig, optional
        The model's configuration; by default the configuration of `config.model.name_or_path`.

    Raises
    ------
    UserError
        If the model's configuration cannot be found, if it is no decoder-only transformer, or if the run would refuse
        the settings.
    """
    shape = shape or shape_of(config.model.name_or_path)
    found = meta_model(shape, config.model.dtype, lora=config.model.lora)
    model = sizes(found)
    refuse(config, machine, model)
    split = machine.shards
    own, compute = _dtypes(config, machine)
    rows, prompt, response = longest_microbatch(config)
    tokens = rows * (prompt + response)
    static = _static(config, machine, model, own)
    gradients = model.trainable * own.itemsize // split
    gathered = _gathered(machine, model, compute, DTYPES[config.model.dtype])
    dtype: Dtype = "bfloat16" if compute == torch.bfloat16 else "float32"
    logits = config.batch.logits or tile(shape, machine)
    lora = str(config.model.lora) if config.model.lora else None
    if config.model.lora is not None:
        _LORA[lora] = config.model.lora
    same = (HashedConfig.of(shape), (rows, prompt, response), dtype, config.sampling.temperature, logits)
    kept, one_layer, of_logits = _activations(*same, config.model.gradient_checkpointing, lora)
    update = _named((kept + one_layer, of_logits))
    if machine.device == "cpu" and config.model.gradient_checkpointing:
        update["freed blocks"] = int(FREED_BLOCKS * shape.num_hidden_layers * one_layer)
    old = _named(_forward(*same, config.log.entropy))
    hooks = _hooks(config, found, tokens, compute) if config.log.score_every else {}
    capacity = int(machine.gib * 2**30 * (1 - RESERVE))
    writing = WRITTEN * static["optimizer"] if split > 1 and machine.device == "cpu" else 0
    phases = {
        "rollout": static | rollout(config, machine, shape, model, compute),
        "old log-probs": static | gathered | old,
        "score pass": (static | gathered | update | hooks) if hooks else {},
        "update": static | gathered | {"gradients": gradients + _buckets(machine, model, own, compute)} | update,
        "optimizer step": static | {"gradients": gradients},
        "checkpoint": (static | {"copies": writing}) if writing else {},
    }
    counts = token_counts(config, machine, model, rows) | host_and_disk(config, machine, model, own)
    return MemoryPlan(model, phases, counts, capacity)


def _named(parts: tuple[int, int]) -> dict[str, int]:
    return {"activations": parts[0], "logits": parts[1]}


def tile(shape: PretrainedConfig, machine: MachineConfig) -> int | None:
    """Return the largest number of logits held in memory at a time on the planned machine; None for a small vocabulary.

    In training this number follows from the device of the tensors. The plan's fake tensors are always on the CPU, so
    the plan must pass the planned machine's number explicitly.
    """
    return TILE.get(machine.device, TILE_ELSEWHERE) if shape.vocab_size >= BIG_VOCABULARY else None


def _few_tokens(shape: PretrainedConfig) -> PretrainedConfig:
    small = type(shape).from_dict(shape.to_dict())
    small.vocab_size = 8
    return small


def _dtypes(config: TrainConfig, machine: MachineConfig) -> tuple[torch.dtype, torch.dtype]:
    """Return the type in which trained weights are kept, and the type in which forward and backward passes compute."""
    dtype = DTYPES[config.model.dtype]
    own = dtype if config.model.lora is None else torch.float32  # peft keeps the weights of adapters in float32
    if machine.precision == "no":
        return own, dtype
    # With mixed precision under FSDP2, accelerate keeps the trained weights in float32.
    return (torch.float32 if machine.shards > 1 else own), torch.bfloat16


def _local(shape: tuple[int, ...], split: int) -> int:
    """Return how many entries of a parameter the first of ``split`` processes holds; FSDP2 divides the first axis."""
    if not shape:
        return 1
    return ceil(shape[0] / split) * int(torch.Size(shape[1:]).numel())


def _static(config: TrainConfig, machine: MachineConfig, model: Sizes, own: torch.dtype) -> dict[str, int]:
    """Return, by name, the bytes that every phase needs on one GPU.

    They are for the weights, the optimizer's moments, the reference model and, on a CPU, the program itself.
    """
    split = machine.shards
    dtype = DTYPES[config.model.dtype]
    frozen = model.total - model.trainable
    weights = (model.trainable * own.itemsize + frozen * dtype.itemsize) // split
    parts = {
        "weights": weights,
        "optimizer": 2 * sum(_local(s, split) for s in model.shapes) * own.itemsize,
    }
    if machine.device == "cpu":
        parts["program"] = PROGRAM
    if config.rule.kl_coef > 0:
        parts["reference"] = model.total * dtype.itemsize // split
    return parts


def _gathered(machine: MachineConfig, model: Sizes, compute: torch.dtype, kept: torch.dtype) -> dict[str, int]:
    """Return the bytes of the copies of weights that a forward or backward pass makes on one GPU.

    With sharded weights a pass gathers whole copies of two decoder layers (the one in use and the next) and of the
    output layer, which stays gathered. Without sharding, mixed precision casts a copy of all weights to the dtype of
    the computation, unless the weights have that dtype already.
    """
    if machine.shards == 1:
        casts = machine.precision == "bf16" and kept != compute
        return {"gathered": model.total * compute.itemsize} if casts else {}
    return {"gathered": (2 * model.layer + model.head) * compute.itemsize}


def _buckets(machine: MachineConfig, model: Sizes, own: torch.dtype, compute: torch.dtype) -> int:
    """Return the most bytes that copies of gradients take at one moment, while they are averaged over processes."""
    if machine.gpus == 1:
        return 0
    if machine.sharding == "ddp":  # DDP keeps a copy of all gradients in its buckets
        return model.trainable * own.itemsize
    # On CPUs gloo averages the gradients, and makes a copy of its input to do so (measured; docs/scale.md).
    copies = 2 if machine.device == "cpu" else 1
    share = model.trainable / model.total
    return int(share * (2 * model.layer + copies * model.head) * compute.itemsize)


def _hooks(config: TrainConfig, model: torch.nn.Module, tokens: int, compute: torch.dtype) -> dict[str, int]:
    """Return the bytes that a score pass adds to an update's pass.

    They are for the random signs, the sketches and each layer's projected inputs; with exact scores, for the gradients.
    """
    scores = config.log.scores
    if scores.mode == "exact":
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        return {"sketches": trained * 4 * 2}
    hooks = ScoreHooks(model, width=scores.width, projection=scores.projection)
    sketcher, sides, inputs = hooks.sketcher, {}, {}
    for site in hooks._sites.values():
        shape = sketcher.shapes.get(site.weight or "", ())
        if len(shape) == 2:
            sides |= {site.row_key: shape[0], site.col_key: shape[1]}
        if site.kind in ("linear", "conv1d"):
            inputs[site.col_key] = sketcher.side(shape[-1])
    tables = sum(n * sketcher.side(n) * compute.itemsize for n in sides.values() if sketcher.side(n) < n)
    entries = sum(
        torch.Size([sketcher.side(n) for n in s] if len(s) == 2 else s).numel() for s in sketcher.shapes.values()
    )
    kept = 0 if config.model.gradient_checkpointing else tokens * sum(inputs.values()) * compute.itemsize
    rows = longest_microbatch(config)[0]
    return {"sketches": tables + entries * 12 + kept + rows * sketcher.width * 4}


def host_and_disk(config: TrainConfig, machine: MachineConfig, model: Sizes, own: torch.dtype) -> dict[str, float]:
    """Return, by name, the host memory and disk that a run needs, GiB.

    At the start each process reads all weights. At a checkpoint weights and optimizer moments are written one after the
    other, so the host memory counts the moments alone. With sharded weights a process then holds `WRITTEN` further
    copies of its part of the moments; without sharding the first process holds one copy of all moments. ``own`` is the
    type of the trained weights.
    """
    dtype = DTYPES[config.model.dtype]
    copies = 2 if config.rule.kl_coef > 0 else 1
    moments = 2 * model.trainable * own.itemsize
    held = WRITTEN * moments / machine.shards if machine.shards > 1 else moments
    return {
        "host memory of a process at the start, GiB": copies * model.total * dtype.itemsize / 2**30,
        "host memory of a process at a checkpoint, GiB": held / 2**30,
        "disk of a checkpoint, GiB": (model.trainable * own.itemsize + moments) / 2**30,
    }
