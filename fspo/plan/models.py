"""Models on torch's meta device, which have shapes but no weights, and the numbers of their parameters."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from fspo.base.errors import UserError
from fspo.config import Dtype, LoraOptions
from fspo.models.load import DTYPES, ready_for_training


@dataclass(frozen=True)
class HashedConfig:
    """A model's configuration, compared and hashed by its JSON text, so that a result for it can be cached."""

    json: str
    config: PretrainedConfig = field(compare=False, hash=False)

    @classmethod
    def of(cls, config: PretrainedConfig) -> HashedConfig:
        """Wrap a model's configuration with its JSON text, by which it is compared and hashed."""
        return cls(config.to_json_string(use_diff=False), config)


def meta_model(
    config: PretrainedConfig,
    dtype: Dtype = "float32",
    *,
    gradient_checkpointing: bool = False,
    lora: LoraOptions | None = None,
) -> PreTrainedModel:
    """Make the model on torch's meta device, where tensors have shapes but take no memory."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype])
        return ready_for_training(model, "the model", gradient_checkpointing=gradient_checkpointing, lora=lora)


@dataclass(frozen=True)
class Sizes:
    """Numbers of parameters in a model and in its parts.

    Attributes
    ----------
    total, trainable : int
        Entries of all parameters, and of the trainable ones; tied parameters count once.
    layer, embedding, head : int
        Entries of the parameters of the largest decoder layer, of the input embedding, and of the final norm with the
        output layer (and the embedding, if it is tied to the output layer). FSDP2 gathers each such part as one.
    layers : int
        Number of decoder layers.
    largest : int
        Entries of the largest trainable parameter.
    shapes : tuple of shapes
        Shapes of the trainable parameters.
    """

    total: int
    trainable: int
    layer: int
    embedding: int
    head: int
    layers: int
    largest: int
    shapes: tuple[tuple[int, ...], ...]


def sizes(model: PreTrainedModel) -> Sizes:
    """Count the entries of a model's parameters, in all and by part.

    Raises
    ------
    UserError
        If the model has no list of decoder layers.
    """
    stacks = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) > 0]
    if not stacks:
        raise UserError("the model has no list of decoder layers: the plan knows decoder-only transformers alone")
    layers = max(stacks, key=lambda stack: sum(p.numel() for p in stack.parameters()))
    parameters, trained = list(model.parameters()), [p for p in model.parameters() if p.requires_grad]
    counts = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    embedding = sum(p.numel() for p in model.get_input_embeddings().parameters())
    total = sum(p.numel() for p in parameters)
    tied = bool(model.config.tie_word_embeddings)
    return Sizes(
        total=total,
        trainable=sum(p.numel() for p in trained),
        layer=max(counts),
        embedding=embedding,
        head=total - sum(counts) - (0 if tied else embedding),
        layers=len(layers),
        largest=max(p.numel() for p in trained),
        shapes=tuple(tuple(p.shape) for p in trained),
    )
