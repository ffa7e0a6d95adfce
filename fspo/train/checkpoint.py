"""Checkpoints: weights and optimizer moments as safetensors, counters as JSON, no pickle.

A checkpoint is a folder ``checkpoints/step-00000010/{model.safetensors, optimizer.safetensors, state.json}``, with a
file ``past-00000002.safetensors`` for each version of the weights that a later rollout samples from. With sharded
weights (FSDP2) folders ``model``, ``optimizer`` and ``past-00000002`` stand in place of the files, and each process
writes its shards there. Any number of processes can load a checkpoint of either kind. A checkpoint is written under a
temporary name and renamed when it is complete. Everything else that a run depends on (noise, order of the data,
learning rate) follows from the configuration and from the numbers in state.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from fspo.base.errors import TrainingDiverged, UserError
from fspo.base.files import remove_folder, whole_folder, writing
from fspo.distributed import files
from fspo.distributed.tensors import Tensors, holders, local, whole_state
from fspo.gradlog.run_folder import CHECKPOINTS, MODEL


@dataclass
class TrainState:
    """Counters and statistics of a run at the end of a rollout, kept in state.json.

    Attributes
    ----------
    rollout : int
        Number of the next rollout.
    step : int
        Number of optimizer updates so far, skipped ones included.
    skipped : int
        Number of updates that were skipped (the causes are in fspo/train/skipped_updates.py).
    num_tokens : int
        Number of tokens of all prompts and responses sampled for training.
    prompts : int
        Number of the next prompt in the stream.
    lagged : dict
        Sums over the last minibatch's tokens from which the next drift is estimated (fspo.rules.DriftStats).
    online : dict
        State of a band that is adapted to reach a target acceptance (fspo.rules.online.OnlineState).
    past : list of int
        Versions of the weights that the checkpoint keeps beside the present ones, the oldest first.
    shards : int
        Number of processes that wrote shards of the checkpoint; 0 if its files hold full tensors.
    """

    rollout: int = 0
    step: int = 0
    skipped: int = 0
    num_tokens: int = 0
    prompts: int = 0
    lagged: dict[str, Any] | None = None
    online: dict[str, Any] | None = None
    past: list[int] = field(default_factory=list)
    shards: int = 0


_MODEL, _OPTIMIZER, _PAST = "model", "optimizer", "past-{:08d}"
"""Names of a checkpoint's files, without their ending, or of its folders if the weights are sharded."""


def trainable(model: torch.nn.Module) -> Tensors:
    """Return by name the model's parameters that need a gradient; tied parameters appear once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def save(
    run: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    state: TrainState,
    keep: int,
    *,
    past: Iterable[int] = (),
    writes: bool = True,
) -> Path:
    """Write a checkpoint (weights, the optimizer's moments and the counters ``state``), remove all checkpoints but the
    newest ``keep`` (0 or less: remove none), and return the new one's folder.

    Every process must call this. The process whose ``writes`` is true writes all files but the shards of other
    processes.

    Parameters
    ----------
    past : iterable of int
        Numbers of older versions of the weights. When the iterable yields a number, the model must hold that version's
        weights (`fspo.train.past_weights.Versions.past` puts them there). They are stored beside the present weights.

    Raises
    ------
    UserError
        If the files cannot be written; as its subclass TrainingDiverged, if a weight or a moment is infinite or NaN.
    """
    target = run / CHECKPOINTS / f"step-{state.step:08d}"
    parameters = trainable(model)
    moments = {
        f"{key}.{name}": value for name, p in parameters.items() for key, value in optimizer.state.get(p, {}).items()
    }
    shards = max(map(holders, parameters.values()), default=0)
    _refuse_non_finite(parameters | moments, target)
    with _made(target, shards > 0, writes) as made:
        files.write(made / _MODEL, parameters, writes=writes)
        files.write(made / _OPTIMIZER, moments, writes=writes)
        kept = []
        for version in past:
            files.write(made / _PAST.format(version), parameters, writes=writes)
            kept.append(version)
        if writes:
            state = replace(state, past=kept, shards=shards)
            (made / "state.json").write_text(json.dumps(asdict(state)), encoding="utf-8")
    if writes and keep > 0:
        for old in list_checkpoints(run)[:-keep]:
            remove_folder(old)
    return target


@contextmanager
def _made(target: Path, shared: bool, writes: bool) -> Iterator[Path]:
    """Yield the temporary folder in which the checkpoint ``target`` is made.

    The process whose ``writes`` is true makes the folder and renames it to ``target`` at the end. If ``shared``, the
    other processes write to the folder too, and get its name from that process."""
    folders = [str(target)]
    if not writes:
        with writing(target, SafetensorError):
            yield Path((broadcast_object_list(folders) if shared else folders)[0])
        return
    with whole_folder(target, SafetensorError) as made:
        if shared:
            broadcast_object_list([str(made)])
        yield made


def _refuse_non_finite(tensors: Mapping[str, torch.Tensor], target: Path) -> None:
    """Raise TrainingDiverged if a weight or a moment is infinite or NaN on any process."""
    bad = [n for n, x in tensors.items() if x.is_floating_point() and not torch.isfinite(local(x)).all()]
    if found := gather_object(bad):
        raise TrainingDiverged(
            f"training has diverged: {found[0]} has values that are not finite, so {target} is not written; the "
            "checkpoints before are kept. Lower optim.learning_rate or raise optim.warmup_updates"
        )


def export(run: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, writes: bool = True) -> Path:
    """Save the trained model and its tokenizer as a Hugging Face folder in the run folder ``run`` (with LoRA the
    adapters alone).

    Every process must call this, because sharded tensors are gathered; the one whose ``writes`` is true writes. Returns
    the folder."""
    target = run / MODEL
    tensors: dict[str, torch.Tensor] = trainable(model)
    if not hasattr(model, "peft_config"):
        # Save tied tensors once: named_parameters and named_buffers list them once, state_dict lists them twice.
        once = dict(model.named_parameters()) | dict(model.named_buffers())
        tensors = {name: once[name] for name in model.state_dict() if name in once}
    _refuse_non_finite(tensors, target)
    tensors = whole_state(tensors, writes)
    if not writes:
        return target
    disable_progress_bar()  # transformers' bar of saved files would stand in the trainer's own
    with whole_folder(target, SafetensorError) as part:
        model.save_pretrained(part, state_dict=tensors)
        tokenizer.save_pretrained(part)
    return target


def list_checkpoints(run: Path) -> list[Path]:
    """List the complete checkpoints of a run folder, the oldest first."""
    return sorted(p for p in (run / CHECKPOINTS).glob("step-*") if (p / "state.json").is_file())


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except (OSError, SafetensorError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is damaged ({error}): remove it to go on from the checkpoint before it") from error


def load(
    path: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    at_past: Callable[[int], None] = lambda version: None,
) -> TrainState:
    """Load a checkpoint's weights into the model and its moments into the optimizer; return the counters.

    Every process must call this. Values go straight into the tensors of the model and of the optimizer.

    Parameters
    ----------
    at_past : function of int, optional
        Function that is called once for each older version of the weights in the checkpoint, the oldest first. Its
        argument is the version's number. During the call the model holds that version's weights.

    Raises
    ------
    UserError
        If the checkpoint is damaged or belongs to another model.
    """
    with _reading(path):
        state = TrainState(**json.loads((path / "state.json").read_text(encoding="utf-8")))
        names = (_MODEL, _OPTIMIZER, *(_PAST.format(version) for version in state.past))
        weights, moments, *past = (files.listed(path / name, state.shards) for name in names)
    parameters = trainable(model)
    for found in (weights, *past):
        wrong = found.keys() ^ parameters.keys()
        wrong |= {n for n in found.keys() & parameters.keys() if found[n].shape != parameters[n].shape}
        if wrong:
            raise UserError(f"{path} is a checkpoint of another model ({sorted(wrong)[0]} differs): use its own config")
    with _reading(path):
        for version in state.past:
            files.read(path / _PAST.format(version), parameters, state.shards)
            at_past(version)
        files.read(path / _MODEL, parameters, state.shards)
        _load_moments(path / _OPTIMIZER, moments, parameters, optimizer, state.shards)
    return state


def _load_moments(
    path: Path, listed: Tensors, parameters: Tensors, optimizer: torch.optim.Optimizer, shards: int
) -> None:
    """Make the optimizer's moments of ``parameters`` (by name), and fill them from the files at ``path``, which
    ``shards`` processes wrote (0: one file of full tensors). ``listed`` maps each tensor's name in the files,
    MOMENT.PARAMETER, to a tensor of its shape and type without values."""
    targets = {}
    for key, like in listed.items():
        kind, _, name = key.partition(".")
        p = parameters[name]
        # Fused AdamW wants its step count, a tensor without dimensions, on the parameter's device too.
        value = torch.empty_like(p, dtype=like.dtype) if like.ndim else torch.empty_like(like, device=p.device)
        targets[key] = optimizer.state[p][kind] = value.detach()
    files.read(path, targets, shards)
