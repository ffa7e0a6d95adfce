"""The registry of tasks, and the order in which training visits their examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeVar, cast, get_type_hints

import numpy as np
from jsonargparse import ArgumentError, ArgumentParser

from fspo.base.errors import UserError, unknown_name
from fspo.tasks.base import Example, Rewards, Task, TeachingTask, encode_prompt
from fspo.tasks.known_sets import TRAINING_SETS, known_options

ConfigT = TypeVar("ConfigT")


def make_task(name: str, options: Mapping[str, Any] | None = None) -> Task:
    """Build a task by name.

    Parameters
    ----------
    name : str
        "chain-add", "even-tokens", "gym:DATASET", "dataset" or a known training set (`fspo.config.TaskConfig`). The
        option ``path`` of a known training set (`fspo.tasks.known_sets`) names a local copy of it.
    options : mapping, optional
        Fields of the task's configuration class.

    Raises
    ------
    UserError
        Unknown task or option (the message suggests the nearest known name), or an impossible value.
    """
    options = dict(options or {})
    kind, _, rest = name.partition(":")
    if kind == "gym" and rest:
        from fspo.tasks.gym import GymTask, make_gym_task
        from fspo.tasks.products import ProductsTask

        return make_gym_task(rest, options, ProductsTask if rest == "products" else GymTask)
    known = TRAINING_SETS.get(name)
    if known is None and name not in _TASKS:
        raise unknown_name("task", name, TASK_NAMES)
    module, task, config = _TASKS[name if known is None else "dataset"]
    found = import_module(f"fspo.tasks.{module}")
    options = options if known is None else known_options(known, options)
    return getattr(found, task)(build_config(getattr(found, config), options, f"option of task {name}"), name)


def teaching_task(name: str, options: Mapping[str, Any] | None = None) -> TeachingTask:
    """Build a task, as `make_task` does, that has worked solutions to warm up the embedded model on.

    The embedded model is a small one that needs no files.

    Raise UserError for an unknown task or option, or if the task with these options has no worked solutions."""
    task = make_task(name, options)
    if not isinstance(task, TeachingTask):
        raise UserError(
            f"task {name!r} has no worked solutions to warm up the embedded model on: choose a task that has "
            "(docs/train.md, Tasks), or name a pretrained model with --model.name-or-path"
        )
    return task


_TASKS = {
    "chain-add": ("chain_add", "ChainAdd", "ChainAddConfig"),
    "even-tokens": ("even_tokens", "EvenTokens", "EvenTokensConfig"),
    "dataset": ("dataset", "DatasetTask", "DatasetConfig"),
}
"""Name of a task -> its module in fspo/tasks, the task's class and that of its options."""
TASK_NAMES: tuple[str, ...] = (*_TASKS, *TRAINING_SETS, "gym:<reasoning-gym dataset>")


def build_config(cls: type[ConfigT], options: Mapping[str, Any], kind: str) -> ConfigT:
    """Build a configuration dataclass from named options; ``kind`` is what a message calls them ("option of task X").

    Raise UserError for an unknown name (the message suggests the nearest known one), a missing option, or a value of
    the wrong type."""
    _check_names(cls, options, kind)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(cls, "config")
    try:
        return parser.instantiate_classes(parser.parse_object({"config": dict(options)}))["config"]
    except UserError:
        raise
    except (ArgumentError, ValueError, TypeError) as error:
        text = " ".join(str(error).split()).replace("config.", "").removeprefix("Parser key ")
        raise UserError(f"bad {kind}: {text}") from error


def _check_names(cls: type, options: Mapping[str, Any], kind: str) -> None:
    hints = get_type_hints(cls)
    for key, value in options.items():
        if key not in hints:
            raise unknown_name(kind, str(key), list(hints))
        if is_dataclass(hints[key]) and isinstance(value, Mapping):
            _check_names(cast(type, hints[key]), value, f"{key} {kind}")


@lru_cache(maxsize=4)
def _epoch_permutation(size: int, seed: int, epoch: int) -> np.ndarray:
    # Permute by sorting raw random words of the generator Philox. They are the same in every version of NumPy, which
    # Generator.permutation need not be.
    words = np.random.Philox(seed=np.random.SeedSequence([seed, epoch])).random_raw(size)
    order = np.argsort(words, kind="stable")
    order.flags.writeable = False
    return order


def prompt_order(size: int | None, seed: int, start: int, count: int) -> np.ndarray:
    """Return the example indices at positions ``start .. start + count - 1`` of the training stream.

    The stream is a sequence of epochs. Each epoch is a permutation of all examples that depends on (seed, epoch)
    alone, so a resumed run continues from its position, a single number.

    ``size`` is the number of examples; with None (an endless task) the example at position i is example i. The result
    is int64 (count,)."""
    positions = np.arange(start, start + count, dtype=np.int64)
    if size is None:
        return positions
    if size < 1:
        raise UserError("the task has no training example: give a non-empty training set")
    out = np.empty(count, dtype=np.int64)
    epochs, places = np.divmod(positions, size)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        out[here] = _epoch_permutation(size, seed, int(epoch))[places[here]]
    return out
