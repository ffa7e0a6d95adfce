"""Supervised warm-up of the embedded model. It takes one to two minutes; later runs read the model from the cache."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from filelock import FileLock

from fspo.base.errors import UserError
from fspo.base.files import cache_folder, digest, digest_of, remove_parts, whole_folder
from fspo.config import WarmupConfig
from fspo.models.warmup_training import RECIPE, measure, train, untrained
from fspo.tasks import TeachingTask
from fspo.tasks.chain_add import ChainAdd

log = logging.getLogger(__name__)

SUMMARY = "warmup.json"


def warm_up(config: WarmupConfig | None = None, task: TeachingTask | None = None) -> Path:
    """Return the folder of the warmed-up embedded model; train the model first if the cache does not hold it.

    Parameters
    ----------
    config : WarmupConfig, optional
        Options of the warm-up; by default those of its class.
    task : TeachingTask, optional
        The task on which the model is trained; chain-add by default.

    Returns
    -------
    Path
        Folder with the model (safetensors) and the tokenizer as ``save_pretrained`` writes them, and ``warmup.json``.
        The folder gets its name only when it is complete. Processes that call this function at the same time wait for
        the process that trains.

    Raises
    ------
    UserError
        If no attempt reached ``config.min_accuracy``, the cache cannot be written, or with the task's options the
        verifier does not give full reward to the task's own worked solutions.
    """
    config, task = config or WarmupConfig(), task or ChainAdd()
    root = cache_folder(config.cache_dir)
    depends = dependencies(config, task)
    target = root / f"warmup-{digest_of(depends)}"
    if (target / SUMMARY).is_file():
        return target
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{target.name}.lock"):
            if (target / SUMMARY).is_file():  # another process trained the model while this one waited
                return target
            # Remove the unfinished folders of killed processes. This process has the lock, so no other is writing.
            remove_parts(root, target.name)
            print(f"warm-up of the embedded model: it takes minutes, once; later runs read {target}", file=sys.stderr)
            with whole_folder(target) as part:
                _fill(part, config, task, depends)
    except OSError as error:
        raise UserError(
            f"cannot keep the warm-up in {root} ({error.strerror or error}): set warmup.cache_dir to a folder that "
            "can be written"
        ) from error
    return target


def dependencies(config: WarmupConfig, task: TeachingTask) -> dict[str, Any]:
    """Return everything that the warmed-up weights depend on, plain values by name; a hash of it names the model's
    folder in the cache.

    Data, tokenizer and initial weights enter as hashes of their values. So if a change of code changes these values, it
    changes the folder's name too, and the model is trained again."""
    options = {k: v for k, v in asdict(config).items() if k != "cache_dir"}
    weights = hashlib.sha256()
    for name, value in sorted(untrained(task, config.seed).state_dict().items()):
        weights.update(name.encode() + value.numpy().tobytes())
    return {
        "recipe": RECIPE,
        "config": options,
        "task": task.data_options(),
        "data": digest_of([task.warmup_text(config.seed, i) for i in range(64)]),
        "tokenizer": digest(task.build_tokenizer().backend_tokenizer.to_str()),
        "initial_weights": weights.hexdigest()[:16],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }


def _fill(folder: Path, config: WarmupConfig, task: TeachingTask, depends: dict[str, Any]) -> None:
    """Train the embedded model on worked solutions, with one seed after another, until a model reaches the accuracy
    ``config.min_accuracy``; write it to ``folder``, with ``depends`` (from `dependencies`) in its summary."""
    best = 0.0
    for attempt in range(config.attempts):
        trial = replace(config, seed=config.seed + attempt)
        started = time.perf_counter()
        with _threads(config.threads):
            model = train(trial, task)
            measured = measure(model, task, config.eval_examples, seed=trial.seed)
        if measured["accuracy"] >= config.min_accuracy:
            model.save_pretrained(folder)
            task.build_tokenizer().save_pretrained(folder)
            seconds = time.perf_counter() - started
            summary = {"seed": trial.seed, "seconds": seconds, **measured, "depends": depends}
            (folder / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
            return
        best = max(best, measured["accuracy"])
        if attempt + 1 < config.attempts:
            log.warning(
                "warm-up with seed %d reached accuracy %.3f, below warmup.min_accuracy %.3f: trying seed %d",
                *(trial.seed, measured["accuracy"], config.min_accuracy, trial.seed + 1),
            )
    raise UserError(
        f"the warm-up's best accuracy in {config.attempts} attempts is {best:.3f}, below warmup.min_accuracy "
        f"{config.min_accuracy:g}: raise warmup.steps, or lower the task's slip or warmup.min_accuracy"
    )


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
