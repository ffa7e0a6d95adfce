"""Checkpoints: safetensors and JSON, no pickle, written whole and renamed.

``checkpoints/step-00000010/{model.safetensors, optimizer.safetensors, state.json}``. Everything else that a run
depends on (noise, data order, learning rate) is a function of the configuration and of the numbers in state.json.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fspo.base.errors import UserError
from fspo.base.files import remove_folder, whole_folder
from fspo.distributed.tensors import put, shard_like, whole_state
from fspo.gradlog.run_folder import CHECKPOINTS, MODEL
from fspo.sampling.saving import save_model
from fspo.train.optimizers import CODES, SCALE, low_moment, moment_parts


@dataclass
class TrainState:
    """Numbers of a run at the end of a rollout.

    Attributes
    ----------
    rollout : int
        The next rollout.
    step : int
        Optimizer updates done.
    skipped : int
        Updates skipped for a non-finite gradient.
    num_tokens : int
        Tokens of prompts and responses trained on.
    prompts : int, optional
        Number of the stream's next prompt; None: as many as rollouts times ``batch.prompts``.
    lagged : dict
        Drift statistics of the last minibatch (fspo.rules.DriftStats).
    online : dict
        State of a band that follows its target (fspo.rules.online.OnlineState).
    """

    rollout: int = 0
    step: int = 0
    skipped: int = 0
    num_tokens: int = 0
    prompts: int | None = None
    lagged: dict[str, Any] | None = None
    online: dict[str, Any] | None = None


def trainable(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters that train, by name; tied ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def save(
    run: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    state: TrainState,
    keep: int,
    *,
    writes: bool = True,
) -> Path:
    """Write a checkpoint, then remove all but the newest ``keep``.

    Every process calls it, since sharded tensors are gathered; the one that ``writes`` writes.
    """
    target = run / CHECKPOINTS / f"step-{state.step:08d}"
    parameters = trainable(model)
    weights = whole_state(parameters, writes)
    moments = whole_state(
        {
            f"{key}{piece}.{name}": tensor
            for name, p in parameters.items()
            for key, value in optimizer.state.get(p, {}).items()
            for piece, tensor in moment_parts(value).items()
        },
        writes,
    )
    if not writes:
        return target
    _refuse_non_finite(weights | moments, target)
    with whole_folder(target, SafetensorError) as made:
        save_file(weights, made / "model.safetensors")
        save_file(moments, made / "optimizer.safetensors")
        (made / "state.json").write_text(json.dumps(asdict(state)), encoding="utf-8")
    for old in list_checkpoints(run)[:-keep] if keep > 0 else []:
        remove_folder(old)
    return target


def _refuse_non_finite(tensors: dict[str, torch.Tensor], target: Path) -> None:
    """Raise UserError if a weight or moment is infinite or NaN: such a model is no result."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise UserError(
                f"training has diverged: {name} has values that are not finite, so {target} is not written; the "
                "checkpoints before are kept. Lower optim.learning_rate or raise optim.warmup_updates"
            )


def export(run: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, writes: bool = True) -> Path:
    """Save the trained model and its tokenizer as a Hugging Face folder (adapters alone with LoRA).

    Every process calls it, as `save`.
    """
    target = run / MODEL
    tensors: dict[str, torch.Tensor] = trainable(model)
    if not hasattr(model, "peft_config"):
        once = dict(model.named_parameters()) | dict(model.named_buffers())  # tied ones
        tensors = {name: once[name] for name in model.state_dict() if name in once}
    tensors = whole_state(tensors, writes)
    if not writes:
        return target
    _refuse_non_finite(tensors, target)
    with whole_folder(target, SafetensorError) as part:
        save_model(model, part, state_dict=tensors)
        tokenizer.save_pretrained(part)
    return target


def list_checkpoints(run: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    return sorted(p for p in (run / CHECKPOINTS).glob("step-*") if (p / "state.json").is_file())


def load(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> TrainState:
    """Put a checkpoint's weights and moments in place.

    Raises
    ------
    UserError
        If the checkpoint belongs to another model.
    """
    try:
        weights, moments = load_file(path / "model.safetensors"), load_file(path / "optimizer.safetensors")
        state = TrainState(**json.loads((path / "state.json").read_text(encoding="utf-8")))
        if state.lagged is not None:
            state.lagged.pop("source", None)  # version 0.1 kept it there too; the rule names it
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}): remove it to go on from the checkpoint before it") from error
    parameters = trainable(model)
    wrong = set(weights) ^ set(parameters)
    wrong |= {n for n in set(weights) & set(parameters) if weights[n].shape != parameters[n].shape}
    if wrong:
        raise UserError(f"{path} is a checkpoint of another model ({sorted(wrong)[0]} differs): use its own config")
    for name, p in parameters.items():
        put(p, weights[name])
    for key, value in moments.items():
        kind, _, name = key.partition(".")
        p = parameters[name]
        if kind.endswith(SCALE):
            continue
        if kind.endswith(CODES):
            kind = kind.removesuffix(CODES)
            optimizer.state[p][kind] = low_moment(optimizer, p, kind, value, moments[f"{kind}{SCALE}.{name}"])
            continue
        # Adam keeps its step count on the CPU
        optimizer.state[p][kind] = value if value.ndim == 0 else shard_like(value, p)
    return state
