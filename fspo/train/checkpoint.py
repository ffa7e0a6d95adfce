"""Checkpoints: weights and optimizer moments as safetensors, counters as JSON, no pickle.

A checkpoint is a folder ``checkpoints/step-00000010/{model.safetensors, optimizer.safetensors, state.json}``, with a
file ``past-00000002.safetensors`` for each version of the weights that a later rollout samples from. It is written
under another name and renamed when it is complete. Everything else that a run depends on (noise, order of the
data, learning rate) follows from the configuration and from the numbers in state.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fspo.base.errors import UserError
from fspo.base.files import remove_folder, whole_folder
from fspo.distributed.tensors import Tensors, put, shard_like, whole_state
from fspo.gradlog.run_folder import CHECKPOINTS, MODEL
from fspo.sampling.saving import save_model
from fspo.train.optimizers import CODES, SCALE, low_moment, moment_parts


@dataclass
class TrainState:
    """Counters and statistics of a run at the end of a rollout, kept in state.json.

    Attributes
    ----------
    rollout : int
        Number of the next rollout.
    step : int
        Optimizer updates done, skipped ones included.
    skipped : int
        Updates that were skipped (the causes are in fspo/train/guard.py).
    num_tokens : int
        Tokens of all prompts and responses sampled for training.
    prompts : int, optional
        Number of the next prompt in the stream; None stands for ``rollout`` times ``batch.prompts``.
    lagged : dict
        Drift statistics of the last minibatch (fspo.rules.DriftStats).
    online : dict
        State of a band that is adapted to reach a target acceptance (fspo.rules.online.OnlineState).
    past : list of int
        Versions of the weights that the checkpoint keeps beside the present ones, the oldest first.
    """

    rollout: int = 0
    step: int = 0
    skipped: int = 0
    num_tokens: int = 0
    prompts: int | None = None
    lagged: dict[str, Any] | None = None
    online: dict[str, Any] | None = None
    past: list[int] = field(default_factory=list)


Version = tuple[int, Tensors]
"""A past version of the weights: the number of updates made before it, and its trainable parameters by name."""


_PAST = "past-{:08d}.safetensors"


def trainable(model: torch.nn.Module) -> Tensors:
    """Return the trainable parameters by name; tied parameters appear once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def save(
    run: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    state: TrainState,
    keep: int,
    *,
    past: Sequence[Version] = (),
    writes: bool = True,
) -> Path:
    """Write a checkpoint, remove all checkpoints but the newest ``keep``, and return the new one's folder.

    ``past`` are older versions of the weights, stored beside the present ones. Every process must call this, because
    sharded tensors are gathered. Only the process with ``writes`` writes files.
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
        for version, tensors in past:
            save_file(tensors, made / _PAST.format(version))
        state = replace(state, past=[version for version, _ in past])
        (made / "state.json").write_text(json.dumps(asdict(state)), encoding="utf-8")
    for old in list_checkpoints(run)[:-keep] if keep > 0 else []:
        remove_folder(old)
    return target


def _refuse_non_finite(tensors: dict[str, torch.Tensor], target: Path) -> None:
    """Raise UserError if a weight or a moment is infinite or NaN, because training has diverged then."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise UserError(
                f"training has diverged: {name} has values that are not finite, so {target} is not written; the "
                "checkpoints before are kept. Lower optim.learning_rate or raise optim.warmup_updates"
            )


def export(run: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, writes: bool = True) -> Path:
    """Save the trained model and its tokenizer as a Hugging Face folder (with LoRA the adapters alone).

    Every process must call this, because sharded tensors are gathered. Returns the folder.
    """
    target = run / MODEL
    tensors: dict[str, torch.Tensor] = trainable(model)
    if not hasattr(model, "peft_config"):
        # Save tied tensors once: named_parameters and named_buffers list them once, state_dict lists them twice.
        once = dict(model.named_parameters()) | dict(model.named_buffers())
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
    """List the complete checkpoints of a run folder, the oldest first."""
    return sorted(p for p in (run / CHECKPOINTS).glob("step-*") if (p / "state.json").is_file())


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}): remove it to go on from the checkpoint before it") from error


def load_past(path: Path, versions: Sequence[int]) -> list[Version]:
    """Read older versions of the weights from a checkpoint, by their numbers of updates; UserError if damaged."""
    with _reading(path):
        return [(version, load_file(path / _PAST.format(version))) for version in versions]


def load(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> TrainState:
    """Load a checkpoint's weights into the model and its moments into the optimizer; return the counters.

    Raises
    ------
    UserError
        If the checkpoint is damaged or belongs to another model.
    """
    with _reading(path):
        weights, moments = load_file(path / "model.safetensors"), load_file(path / "optimizer.safetensors")
        state = TrainState(**json.loads((path / "state.json").read_text(encoding="utf-8")))
        if state.lagged is not None:
            state.lagged.pop("source", None)  # checkpoints of fspo 0.1 have this entry; nothing uses it
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
        # Adam keeps its step count, a tensor without dimensions, on the CPU; moments go to the parameter's device.
        optimizer.state[p][kind] = value if value.ndim == 0 else shard_like(value, p)
    return state
