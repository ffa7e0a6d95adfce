"""Tasks from reasoning-gym: any dataset of that package, scored by the package's ``score_answer``."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from tqdm import tqdm

from fspo.base.errors import UserError, unknown_name
from fspo.config.option_ranges import SEEDS, check_ranges, number
from fspo.tasks.base import Example, Rewards, Split
from fspo.tasks.verifier_pool import VerifierPool

_ANSWER = re.compile(r"<answer>\s?(.*?)\s?</answer>", re.DOTALL)
MAX_REDRAWS = 200
REDRAW_STRIDE = 7919  # an example at index i that cannot be used is replaced by the one at i plus this prime
CACHED_ENTRIES = 4096


@dataclass(frozen=True)
class GymConfig:
    """Options of every ``gym:`` task, whose questions come from a dataset of the package reasoning-gym.

    Any other option is passed to the dataset's own configuration.

    Attributes
    ----------
    seed : int
        Seed of the examples; an example depends on the seed and its index.
    size, eval_size : int
        Numbers of training and of held-out examples. No held-out question is a training question.
    instruction : str
        Text before the question: a key of the package's ``SYSTEM_PROMPTS``, or ``"none"``.
    """

    seed: int = number(0, 0, SEEDS)
    size: int = number(10_000, 1)
    eval_size: int = number(256, 0)
    instruction: str = "simple"

    def __post_init__(self) -> None:
        check_ranges(self, "gym")


def make_gym_task(dataset: str, options: Mapping[str, Any], task: type[GymTask]) -> GymTask:
    """Build a task of the class ``task`` from one mapping of options: those of `GymConfig` and those of the dataset.

    Raises UserError for an unknown dataset or option; the message suggests the nearest known name."""
    from reasoning_gym.factory import DATASETS

    from fspo.tasks import build_config

    if dataset not in DATASETS:
        raise unknown_name("reasoning-gym dataset", dataset, sorted(DATASETS))
    own = [f.name for f in fields(GymConfig)]
    theirs = [f.name for f in fields(DATASETS[dataset][1]) if f.name not in own]
    kind = f"option of task gym:{dataset}"
    for key in options:
        if key not in own and key not in theirs:
            raise unknown_name(kind, str(key), own + theirs)
    config = build_config(GymConfig, {k: v for k, v in options.items() if k in own}, kind)
    return task(dataset, config, {k: v for k, v in options.items() if k in theirs})


def last_answer(response: str) -> str | None:
    """Return the text between the last ``<answer>`` and ``</answer>``; None when there is none."""
    found = _ANSWER.findall(response)
    return found[-1].strip() if found else None


def score_factory(name: str, options: Mapping[str, Any], seed: int, size: int) -> Callable[..., float]:
    """Build the function ``(response, entry) -> reward`` by which a worker process scores a response to ``entry``, an
    item of the reasoning-gym dataset ``name``: 1 if the package's ``score_answer`` gives full marks, else 0. The
    dataset is made from ``options``, ``seed`` and ``size``."""
    import reasoning_gym

    dataset: Any = reasoning_gym.create_dataset(name, seed=seed, size=size, **options)
    return lambda response, entry: float(dataset.score_answer(last_answer(response), entry) >= 1.0)


class GymTask:
    """The task of one reasoning-gym dataset, with reward 1 for full marks and else 0; build it with `make_gym_task`.

    The first ``eval_size`` positions of one seeded dataset are held out; the next ``size`` positions are for
    training. A training position is replaced by another one if its question is held out or the package fails to
    generate it. Which position replaces it depends on the index of the replaced one alone."""

    def __init__(self, dataset: str, config: GymConfig, options: Mapping[str, Any]) -> None:
        import reasoning_gym
        from reasoning_gym.utils import SYSTEM_PROMPTS

        self.name = f"gym:{dataset}"
        self.config = config
        self.options = dict(options)
        if config.instruction not in SYSTEM_PROMPTS and config.instruction != "none":
            raise unknown_name("instruction", config.instruction, [*SYSTEM_PROMPTS, "none"])
        self._instruction = SYSTEM_PROMPTS.get(config.instruction, "")
        # Hash the run's seed. The package seeds example i with seed + i, so unhashed seeds 0 and 1 would share nearly
        # all examples.
        base = np.random.SeedSequence([config.seed, zlib.crc32(dataset.encode())])
        seed, total = int(base.generate_state(1)[0]), config.eval_size + config.size
        try:
            self.dataset: Any = reasoning_gym.create_dataset(dataset, seed=seed, size=total, **self.options)
        except (AssertionError, ValueError, TypeError, AttributeError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"reasoning-gym refuses the options of {self.name}: {text}") from error
        # Some scorers evaluate an expression that the model wrote: workers can be killed.
        self._pool = VerifierPool(score_factory, (dataset, self.options, seed, total))
        self._entry = lru_cache(maxsize=CACHED_ENTRIES)(self._make_entry)

    def close(self) -> None:
        """Stop the worker processes that score responses."""
        self._pool.close()

    def size(self, split: Split) -> int:
        """Return the number of examples in a split, "train" or "eval"."""
        return self.config.size if split == "train" else self.config.eval_size

    def _make_entry(self, split: Split, index: int) -> dict[str, Any]:
        size = self.size(split)
        if not 0 <= index < size:
            raise UserError(f"{self.name} has {size} {split} examples: index {index} does not exist")
        start = 0 if split == "eval" else self.config.eval_size
        forbidden = frozenset() if split == "eval" else self._held_out
        problem = "each question tried is held out"
        for attempt in range(min(MAX_REDRAWS, size)):
            try:
                entry = self.dataset[start + (index + attempt * REDRAW_STRIDE) % size]
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if entry["question"] not in forbidden:
                return entry
        raise UserError(
            f"{self.name} gives no {split} example {index} ({problem}): lower eval_size or widen the options"
        )

    @cached_property
    def _held_out(self) -> frozenset[str]:
        indices = tqdm(range(self.config.eval_size), desc=f"{self.name} held-out", delay=2, leave=False)
        return frozenset(self._entry("eval", i)["question"] for i in indices)

    def example(self, split: Split, index: int) -> Example:
        """Return the example at ``index``, a pure function of the options, the split and the index."""
        entry = self._entry(split, int(index))
        question, answer = entry["question"], entry.get("answer")  # a question with many right answers names none
        prompt = f"{self._instruction.strip()}\n\n{question}" if self._instruction else question
        told = {k: v for k, v in (entry.get("metadata") or {}).items() if type(v) in (int, float, str)}
        return Example(f"{split}-{index}", prompt, "" if answer is None else str(answer), told)

    def score(self, examples: Sequence[Example], responses: Sequence[str], finished: Sequence[bool]) -> Rewards:
        """Return the rewards of ``responses[i]`` to ``examples[i]``, which must come from this task; truncated ones are
        judged too."""
        calls = []
        for example, response in zip(examples, responses, strict=True):
            split, _, index = example.prompt_id.partition("-")
            calls.append({"response": response, "entry": self._entry(split, int(index))})  # type: ignore[arg-type]
        return self._pool.score(calls)
