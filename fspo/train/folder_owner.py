"""Make sure that a run folder belongs to one run and that one process writes to it.

``run.json`` marks the folder as a run of this trainer and names the process that last wrote to it. ``run.lock`` is
locked while a process writes; the system frees the lock when that process ends, even if it is killed."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from fspo import __version__
from fspo.base.errors import UserError
from fspo.base.files import remove_parts, write_text
from fspo.config import TrainConfig
from fspo.gradlog.files import log_paths
from fspo.gradlog.run_folder import CHECKPOINTS, CONFIG, LOCK, MARK, METRICS, MODEL
from fspo.train.resume import check_same_run

if TYPE_CHECKING:
    from accelerate import Accelerator

_held: dict[Path, FileLock] = {}
"""Locks that this process holds, by run folder. The process may claim a folder again whose lock it holds."""


def claim_folder(accelerator: Accelerator, config: TrainConfig) -> None:
    """Make the run folder, or reopen it to resume its run, and become its only writer.

    Half-written files are removed, run.lock is locked and run.json is written; nothing else in the folder is changed.
    Every process must call this function, but only the main process reads and writes.

    Raises UserError on every process, if the folder was not made by this trainer, if it holds another run, if it holds
    this run and ``resume`` is off, if another process writes to it, or if it cannot be written."""
    refused: list[str | None] = [None]
    if accelerator.is_main_process:
        try:
            run = Path(config.output)
            check_folder(run, config)
            run.mkdir(parents=True, exist_ok=True)
            _lock(run)
            clean(run)
        except UserError as error:
            refused[0] = str(error)
        except OSError as error:
            refused[0] = f"cannot write to {config.output}: {error.strerror or error}; choose another --output"
    if accelerator.num_processes > 1:
        from accelerate.utils import broadcast_object_list

        broadcast_object_list(refused)
    if refused[0] is not None:
        raise UserError(refused[0])


def check_folder(run: Path, config: TrainConfig) -> None:
    """Raise UserError if a run with these options may not write to the folder ``run``; nothing is changed."""
    if run.exists() and not run.is_dir():
        raise UserError(f"--output {run} is a file: name a folder")
    names = [path.name for path in run.iterdir()] if run.exists() else []
    # A process that was killed as it made the folder leaves the lock, or a temporary file.
    if MARK not in names and any(name != LOCK and not name.startswith(".part-") for name in names):
        raise UserError(f"{run} holds files and no {MARK}, so it is no run folder: name a new or an empty --output")
    if trace := next(_traces(run), None):
        if not config.resume:
            raise UserError(
                f"{run} holds a run already ({trace.name}): add --resume true to go on, or choose another --output"
            )
        if not (run / CONFIG).exists():
            raise UserError(f"{run} holds {trace.name} but no {CONFIG}, so no run to resume: choose another --output")
        check_same_run(config, run)


def clean(run: Path) -> None:
    """Remove half-written files, half-written checkpoints and half-written models from a run folder."""
    remove_parts(run / CHECKPOINTS)
    remove_parts(run)


def _traces(run: Path) -> Iterator[Path]:
    """Yield the files and folders of a run that exist in the run folder.

    Their order is: configuration, metrics, gradient log, checkpoints, exported model."""
    files = [run / CONFIG, run / METRICS]
    files += [*log_paths(run), *(run / CHECKPOINTS).glob("step-*"), run / MODEL]
    return (file for file in files if file.exists())


def _lock(run: Path) -> None:
    """Become the only writer of a folder until this process ends or releases it.

    Raises UserError if another process writes to the folder."""
    key = run.resolve()
    if key in _held:
        return
    lock = FileLock(run / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        writer = "another process"
        with suppress(OSError, ValueError, KeyError):
            writer = json.loads((run / MARK).read_text(encoding="utf-8"))["writer"]
        raise UserError(
            f"{run} is being written by {writer}: wait until it ends, end it, or choose another --output"
        ) from None
    _held[key] = lock
    mark(run, f"process {os.getpid()} on {socket.gethostname()}")


def mark(run: Path, writer: str | None = None) -> None:
    """Write run.json, which marks the folder ``run`` as a run of this trainer and names the process ``writer`` that
    writes to it (None: no process)."""
    write_text(run / MARK, json.dumps({"fspo": __version__, "writer": writer}) + "\n")


def release_folder(run: Path) -> None:
    """Release this process's lock on a run folder, if it holds one, so that another process may write to the folder."""
    if lock := _held.pop(run.resolve(), None):
        lock.release()
