"""Memory of each GPU by phase of a rollout."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil

import torch
from transformers import PretrainedConfig

from fspo.config import TrainConfig
from fspo.engines.fast import CacheLayer
from fspo.engines.picking import PICK_ELEMENTS
from fspo.models import DTYPES, Dtype, LoraOptions
from fspo.optimizers import moment_bytes
from fspo.plan.machine import MachineConfig, longest_microbatch, sampled_rows, token_counts
from fspo.plan.measure import DEEP, SHALLOW, forward_pass, padded_rows, prompt_pass, update_pass
from fspo.plan.models import Sizes, meta_model, shape_of, sizes
from fspo.scores import ScoreHooks

RESERVE = 0.08
"""Share of a GPU's memory left to the CUDA context, NCCL and fragmentation. An estimate, not measured here."""
ZERO3_GATHERED, ZERO3_BUCKET = 1_000_000_000, 500_000_000
"""DeepSpeed's defaults, in parameters: stage3_max_live_parameters and reduce_bucket_size."""


@dataclass(frozen=True)
class Plan:
    """What a step takes.

    Attributes
    ----------
    model : Sizes
    phases : dict of str to dict of str to int
        Bytes of each part of a GPU's memory in each phase.
    tokens : dict of str to float
        Counts of one rollout and update.
    capacity : int
        Bytes that a GPU offers, less the reserve.
    """

    model: Sizes
    phases: dict[str, dict[str, int]]
    tokens: dict[str, float] = field(default_factory=dict)
    capacity: int = 0

    @property
    def totals(self) -> dict[str, int]:
        """Bytes of each phase."""
        return {name: sum(parts.values()) for name, parts in self.phases.items()}

    @property
    def peak(self) -> int:
        """Bytes of the largest phase."""
        return max(self.totals.values())

    @property
    def fits(self) -> bool:
        """Whether every phase fits."""
        return self.peak <= self.capacity


@dataclass(frozen=True)
class _Shape:
    """A model's shape, hashable by its JSON."""

    json: str
    config: PretrainedConfig = field(compare=False, hash=False)


def _shape(config: PretrainedConfig) -> _Shape:
    return _Shape(config.to_json_string(use_diff=False), config)


@lru_cache(maxsize=256)
def _activations(
    shape: _Shape,
    microbatch: tuple[int, int, int],
    dtype: Dtype,
    temperature: float,
    logits: int | None,
    checkpointing: bool,
    lora: str | None,
) -> tuple[int, int]:
    """Bytes of an update pass: without a vocabulary, and what the vocabulary adds (logits, its gradients)."""
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
    return bare + slope * (layers - SHALLOW), shallow - bare


@lru_cache(maxsize=256)
def _forward(
    shape: _Shape,
    microbatch: tuple[int, int, int],
    dtype: Dtype,
    temperature: float,
    logits: int | None,
    entropy: bool,
) -> tuple[int, int]:
    """Bytes of old log-probs, divided as in `_activations`."""
    whole, bare = (
        forward_pass(
            config, padded_rows(*microbatch), dtype=dtype, temperature=temperature, entropy=entropy, logits=logits
        )
        for config in (shape.config, _few_tokens(shape.config))
    )
    return min(whole, bare), max(0, whole - bare)


@lru_cache(maxsize=256)
def _prompts(shape: _Shape, rows: int, columns: int, dtype: Dtype) -> int:
    return prompt_pass(shape.config, rows, columns, dtype)


_LORA: dict[str | None, LoraOptions] = {}


def plan(config: TrainConfig, machine: MachineConfig, shape: PretrainedConfig | None = None) -> Plan:
    """Memory and token counts of a run.

    Parameters
    ----------
    config : TrainConfig
    machine : MachineConfig
    shape : PretrainedConfig, optional
        The model's configuration; by default that of `config.model.name_or_path`.

    Raises
    ------
    UserError
        For a model whose shape is not known or not understood.
    """
    shape = shape or shape_of(config.model.name_or_path)
    found = meta_model(shape, config.model.dtype, lora=config.model.lora)
    model = sizes(found)
    split = machine.gpus if machine.sharding != "ddp" else 1
    own, compute = _dtypes(config, machine)
    rows, prompt, response = longest_microbatch(config)
    tokens = rows * (prompt + response)
    static = _static(config, machine, model, own)
    gradients = model.trainable * own.itemsize // split
    gathered = _gathered(machine, model, compute, own)
    dtype: Dtype = "bfloat16" if compute == torch.bfloat16 else "float32"
    lora = str(config.model.lora) if config.model.lora else None
    if config.model.lora is not None:
        _LORA[lora] = config.model.lora
    same = (_shape(shape), (rows, prompt, response), dtype, config.sampling.temperature, config.batch.logits)
    update = _named(_activations(*same, config.model.gradient_checkpointing, lora))
    old = _named(_forward(*same, config.log.entropy))
    hooks = _hooks(config, found, tokens, compute) if config.log.score_every else {}
    step = _step_temporary(config, model, split)
    phases = {
        "rollout": static | _rollout(config, machine, shape, model, compute),
        "old log-probs": static | gathered | old,
        "score pass": (static | gathered | update | hooks) if hooks else {},
        "update": static | gathered | {"gradients": gradients + _buckets(machine, model, own, compute)} | update,
        "optimizer step": static | {"gradients": gradients, "temporary": step},
    }
    capacity = int(machine.memory * 2**30 * (1 - RESERVE))
    return Plan(model, phases, token_counts(config, machine, model, rows), capacity)


def _named(parts: tuple[int, int]) -> dict[str, int]:
    return {"activations": parts[0], "logits": parts[1]}


def _few_tokens(shape: PretrainedConfig) -> PretrainedConfig:
    small = type(shape).from_dict(shape.to_dict())
    small.vocab_size = 8
    return small


def _dtypes(config: TrainConfig, machine: MachineConfig) -> tuple[torch.dtype, torch.dtype]:
    """Types that trained weights are kept in and that passes compute in."""
    dtype = DTYPES[config.model.dtype]
    if machine.mixed_precision == "no":
        return dtype, dtype
    # accelerate keeps trained weights in float32 under FSDP2; DeepSpeed keeps a float32 copy of bfloat16 ones.
    return (torch.float32 if machine.sharding != "ddp" else dtype), torch.bfloat16


def _local(shape: tuple[int, ...], split: int) -> int:
    """Numbers of a parameter that the first of ``split`` processes holds: FSDP2 cuts the first axis."""
    if not shape:
        return 1
    return ceil(shape[0] / split) * int(torch.Size(shape[1:]).numel())


def _static(config: TrainConfig, machine: MachineConfig, model: Sizes, own: torch.dtype) -> dict[str, int]:
    """Weights, moments and the reference model."""
    split = machine.gpus if machine.sharding != "ddp" else 1
    dtype = DTYPES[config.model.dtype]
    frozen = model.total - model.trainable
    weights = (model.trainable * own.itemsize + frozen * dtype.itemsize) // split
    if machine.sharding == "zero3" and machine.mixed_precision == "bf16":
        weights += model.trainable * 2 // split  # the bfloat16 weights beside their float32 copy
    parts = {
        "weights": weights,
        "optimizer": sum(moment_bytes(_local(s, split), own, config.optim.name) for s in model.shapes),
    }
    if config.rule.kl_coef > 0:
        parts["reference"] = model.total * dtype.itemsize // split
    return parts


def _gathered(machine: MachineConfig, model: Sizes, compute: torch.dtype, own: torch.dtype) -> dict[str, int]:
    """Weights that a pass gathers: the layer in use and the next one, and the output layer, which stays."""
    if machine.sharding == "ddp" or machine.gpus == 1:
        casts = machine.mixed_precision == "bf16" and own != compute
        return {"gathered": model.total * compute.itemsize} if casts else {}
    if machine.sharding == "zero3":
        return {"gathered": min(ZERO3_GATHERED, model.total) * compute.itemsize}
    return {"gathered": (2 * model.layer + model.head) * compute.itemsize}


def _buckets(machine: MachineConfig, model: Sizes, own: torch.dtype, compute: torch.dtype) -> int:
    """Gradients on their way between processes, before they are reduced."""
    if machine.gpus == 1:
        return 0
    if machine.sharding == "ddp":  # its buckets are a second copy
        return model.trainable * own.itemsize
    share = model.trainable / model.total
    if machine.sharding == "zero3":
        return int(min(ZERO3_BUCKET, model.trainable) * compute.itemsize)
    return int(share * (2 * model.layer + model.head) * compute.itemsize)


def _step_temporary(config: TrainConfig, model: Sizes, split: int) -> int:
    """The fused AdamW needs nothing; torchao's compiled one a float32 copy of a parameter or two."""
    if config.optim.name == "adamw":
        return 0
    return 2 * 4 * max(_local(s, split) for s in model.shapes)


def _hooks(config: TrainConfig, model: torch.nn.Module, tokens: int, compute: torch.dtype) -> dict[str, int]:
    """Projections of the score sketch: tables of signs, the sketch, and each layer's projected inputs."""
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


def _rollout(
    config: TrainConfig, machine: MachineConfig, shape: PretrainedConfig, model: Sizes, compute: torch.dtype
) -> dict[str, int]:
    """Sampling: gathered weights, the key-value cache, the prompts' activations, the next token's logits."""
    columns = config.task.max_prompt_tokens + config.sampling.max_new_tokens
    rows = sampled_rows(config, machine)
    distinct = ceil(rows / config.batch.responses)
    sharded = machine.sharding != "ddp" and machine.gpus > 1
    casts = compute.itemsize < DTYPES[config.model.dtype].itemsize or sharded
    vocabulary = shape.vocab_size
    chosen = min(rows, max(1, PICK_ELEMENTS // vocabulary))
    dtype: Dtype = "bfloat16" if compute == torch.bfloat16 else "float32"
    parts = {
        "KV cache": rows * columns * cache_bytes(shape, compute),
        "activations": _prompts(_shape(shape), distinct, config.task.max_prompt_tokens, dtype),
        "logits": rows * vocabulary * (compute.itemsize + 4) + chosen * vocabulary * (2 * 4 + 2 * 8),
    }
    return ({"gathered": model.total * compute.itemsize} if casts else {}) | parts


def cache_bytes(shape: PretrainedConfig, dtype: torch.dtype) -> int:
    """Bytes of keys and values of one token in all layers, as `fspo.engines.fast.CacheLayer` keeps them."""
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    size = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    layer = CacheLayer(1, 1)
    states = torch.empty(1, heads, 1, size, dtype=dtype, device="meta")
    layer.lazy_initialization(states, states)
    return shape.num_hidden_layers * (layer.keys.nbytes + layer.values.nbytes)
