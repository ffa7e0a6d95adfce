"""A run folder belongs to one run and has one writer: folders of others are refused, and so is a second live process.

``run.json`` marks the folder as a run of this trainer and names the process that writes in it. ``run.lock`` is locked
while that process lives, so that a process that was killed is told from one that still trains.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from filelock import FileLock, Timeout

from fspo import __version__
from fspo.base.errors import UserError
from fspo.base.files import remove_parts, write_text
from fspo.base.options import save, to_dict
from fspo.config import TrainConfig
from fspo.gradlog.files import log_paths
from fspo.gradlog.run_folder import CHECKPOINTS, CONFIG, GRADLOG, LOCK, MARK, METRICS, MODEL

if TYPE_CHECKING:
    from accelerate import Accelerator

_OF_EVERY_RUN = {"output", "rollouts", "seed", "model", "task", "rule", "batch", "optim"}
"""Options that stand in each config.yaml that the trainer wrote, whatever its version."""
_MAY_CHANGE = {
    "resume",
    "rollouts",
    "threads",
    "cpu",
    "processes",
    "output",
    "checkpoint_every",
    "keep_checkpoints",
    "trackers",
    "sampling.vllm_url",
    "sampling.vllm_weights",
    "sampling.vllm_timeout",
}
_held: dict[Path, FileLock] = {}
"""Locks of this process, which may make several trainers on one folder after each other."""


def claim_folder(accelerator: Accelerator, config: TrainConfig) -> None:
    """Make the run folder, or take up the run that it holds, as its only writer.

    Nothing in it is changed yet but half-written files. Every process calls it; the main process looks and writes.

    Raises
    ------
    UserError
        On every process, if the folder is not the trainer's, holds another run, holds this one and ``resume`` is off,
        is being written, or cannot be written.
    """
    refused: list[str | None] = [None]
    if accelerator.is_main_process:
        try:
            _claim(Path(config.output), config)
        except UserError as error:
            refused[0] = str(error)
    if accelerator.num_processes > 1:
        from accelerate.utils import broadcast_object_list

        broadcast_object_list(refused)
    if refused[0] is not None:
        raise UserError(refused[0])


def _claim(run: Path, config: TrainConfig) -> None:
    try:
        _refuse_foreign(run)
        trace = next(_traces(run), None)
        if trace and not config.resume:
            raise UserError(
                f"{run} holds a run already ({trace.name}): add --resume true to go on, or choose another --output"
            )
        if trace and not (run / CONFIG).exists():
            raise UserError(f"{run} holds {trace.name} but no {CONFIG}, so no run to resume: choose another --output")
        if trace:
            _check_same_run(config, run / CONFIG)
        run.mkdir(parents=True, exist_ok=True)
        _lock(run)
        clean(run)
    except OSError as error:
        raise UserError(f"cannot write to {run}: {error.strerror or error}; choose another --output") from error


def clean(run: Path) -> None:
    """Remove half-written files, checkpoints and models."""
    remove_parts(run / CHECKPOINTS)
    remove_parts(run)


def _traces(run: Path) -> Iterator[Path]:
    """What a run leaves behind, the first thing first."""
    files = [run / CONFIG, run / METRICS]
    files += [*log_paths(run), *(run / CHECKPOINTS).glob("step-*"), run / MODEL]
    return (file for file in files if file.exists())


def _refuse_foreign(run: Path) -> None:
    """Refuse a folder with anything in it that is not a run of this trainer.

    Such a run has the mark, or, if it is from before there was one, a config.yaml that holds a run's options.
    """
    if run.exists() and not run.is_dir():
        raise UserError(f"{run} is a file, so it cannot be written to as a run folder: choose another --output")
    if not run.exists() or (run / MARK).is_file():
        return
    others = sorted(p.name for p in run.iterdir() if not p.name.startswith(".part-") and p.name != LOCK)
    if not others:
        return
    with suppress(OSError, UnicodeDecodeError, yaml.YAMLError):
        options = yaml.safe_load((run / CONFIG).read_text(encoding="utf-8"))
        if isinstance(options, dict) and options.keys() >= _OF_EVERY_RUN:
            return
    raise UserError(
        f"{run} holds {others[0]!r} and no run of this trainer (no {MARK}, no {CONFIG} of a run): choose another "
        "--output; nothing was touched"
    )


def _lock(run: Path) -> None:
    """Become the only writer of a folder until this process ends or lets go.

    Raises
    ------
    UserError
        If a live process writes there, or one of another host did and never let go.
    """
    key = run.resolve()
    if key in _held:
        return
    lock = FileLock(run / LOCK, timeout=0)
    writer = _writer(run)
    by = f"process {writer.get('pid')} on {writer.get('host')} since {writer.get('since')}"
    try:
        lock.acquire()
    except Timeout:
        raise UserError(
            f"{run} is being written by {by}: wait until it ends, end it (kill {writer.get('pid')}), or choose another "
            "--output"
        ) from None
    if writer and writer.get("host") != socket.gethostname():
        lock.release()
        raise UserError(
            f"{run} was being written by {by}, which this host cannot see: make sure that it has ended, then remove "
            f"{run / MARK} and run the same command again"
        )
    _held[key] = lock
    now = datetime.now(UTC).isoformat(timespec="seconds")
    mark(run, {"pid": os.getpid(), "host": socket.gethostname(), "since": now})


def _writer(run: Path) -> dict[str, Any]:
    """The process that writes in a folder, or did when it was killed; empty if there is none."""
    with suppress(OSError, ValueError):
        found = json.loads((run / MARK).read_text(encoding="utf-8"))
        if isinstance(found, dict) and isinstance(found.get("writer"), dict):
            return found["writer"]
    return {}


def mark(run: Path, writer: dict[str, Any] | None = None) -> None:
    """Mark a folder as a run of this trainer, with the process that writes in it."""
    write_text(run / MARK, json.dumps({"fspo": __version__, "writer": writer}) + "\n")


def release_folder(run: Path) -> None:
    """Let another process write in a folder that this one holds; nothing happens where it holds none."""
    lock = _held.pop(run.resolve(), None)
    if lock is not None:
        with suppress(UserError):  # the disk may be full by now
            if run.is_dir():
                mark(run)
        lock.release()


def _release_all() -> None:
    for run in list(_held):
        release_folder(run)


atexit.register(_release_all)


def save_config(accelerator: Accelerator, config: TrainConfig) -> None:
    """Save the resolved configuration with the run, once everything that it names has been loaded."""
    if accelerator.is_main_process:
        save(config, Path(config.output) / CONFIG)
    accelerator.wait_for_everyone()


def check_log(run: Path, rollouts: int) -> None:
    """Refuse to go on from a checkpoint whose log is gone: metrics and gradient log must hold each rollout before it.

    Raises
    ------
    UserError
        Naming the first rollout that is missing.
    """
    logged: set[int] = set()
    with suppress(OSError):
        for line in (run / METRICS).read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, KeyError, TypeError):
                values = json.loads(line)
                if values["phase"] == "train":
                    logged.add(values["rollout"])
    for rollout in range(rollouts):
        rows = next((run / GRADLOG).glob(f"rollout-{rollout:08d}-rank-*.parquet"), None)
        gone = METRICS if rollout not in logged else GRADLOG if rows is None else None
        if gone:
            raise UserError(
                f"{run} has a checkpoint after rollout {rollouts - 1}, but rollout {rollout} is missing in its {gone}: "
                "restore it to go on, or choose another --output"
            )


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def _check_same_run(config: TrainConfig, saved: Path) -> None:
    """Refuse to resume under settings that would change what the run is."""
    try:
        before = _flat(yaml.safe_load(saved.read_text(encoding="utf-8")))
    except (yaml.YAMLError, AttributeError, UnicodeDecodeError) as error:
        raise UserError(f"{saved} is damaged: restore it, or choose another --output") from error
    now = _flat(to_dict(config))
    for key in sorted(before.keys() | now.keys()):
        if not {key, key.split(".")[0]} & _MAY_CHANGE and before.get(key) != now.get(key):
            raise UserError(
                f"{saved} was written with {key}={before.get(key)}, not {now.get(key)}: resume with the saved settings "
                f"(--config {saved} --resume true) or choose another --output"
            )
