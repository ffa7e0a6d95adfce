"""Tasks from reasoning-gym: any dataset of that package, scored by the package's ``score_answer``."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from typing import Any

import numpy as np
from tqdm import tqdm

from fspo.base.errors import UserError, unknown_name
from fspo.tasks.base import Example, Rewards, Split, check_batch, check_split
from fspo.tasks.verifier_pool import VerifierPool
from fspo.tasks.verify import make_extractor

ANSWER_TAG = "regex:<answer>\\s?(.*?)\\s?</answer>"
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
    graded : bool
        Use the package's score as the reward; otherwise a score of 1 (full marks) gives 1 and any other one 0.
    instruction : str
        Text before the question: a key of the package's ``SYSTEM_PROMPTS``, or ``"none"``.
    extract : str
        Part of the response that is scored, as in `fspo.tasks.verify.VerifierConfig`; ``"answer-tag"`` is the text
        between the last ``<answer>`` and ``</answer>``.
    require_finished : bool
        Give reward 0 to a response that was cut at the length limit, without judging it.
    timeout_s, workers
        See `fspo.tasks.verifier_pool.VerifierPool`. The time limit matters: some scorers evaluate an
        expression that the model wrote.
    """

    seed: int = 0
    size: int = 10_000
    eval_size: int = 256
    graded: bool = False
    instruction: str = "simple"
    extract: str = "answer-tag"
    require_finished: bool = False
    timeout_s: float = 5.0
    workers: int = 2

    def __post_init__(self) -> None:
        """Raise UserError if the seed or a number of examples is too small."""
        if self.seed < 0:
            raise UserError(f"seed={self.seed}: use a seed of at least 0")
        if self.size < 1 or self.eval_size < 0:
            raise UserError(f"size={self.size}, eval_size={self.eval_size}: use size >= 1 and eval_size >= 0")


def _import_gym() -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        raise UserError('gym tasks need reasoning-gym: pip install "fspo[gym]"') from error
    return reasoning_gym


def make_gym_task(dataset: str, options: Mapping[str, Any], task: type[GymTask]) -> GymTask:
    """Build a task of the class ``task`` from one mapping of options: those of `GymConfig` and those of the dataset.

    Raises
    ------
    UserError
        If the package is missing, or for an unknown dataset or option (the message suggests the nearest known name).
    """
    from fspo.tasks import build_config

    _import_gym()
    from reasoning_gym.factory import DATASETS

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


def _build_dataset(name: str, options: Mapping[str, Any], seed: int, size: int) -> Any:
    reasoning_gym = _import_gym()
    options = dict(options)
    if name == "composite" and isinstance(options.get("datasets"), list):
        from reasoning_gym.composite import DatasetSpec

        options["datasets"] = [DatasetSpec(**d) if isinstance(d, dict) else d for d in options["datasets"]]
    return reasoning_gym.create_dataset(name, seed=seed, size=size, **options)


def score_factory(name: str, options: Mapping[str, Any], seed: int, size: int, extract: str) -> Callable[..., float]:
    """Build the scorer in a worker process: ``score_answer`` applied to the text extracted from the response."""
    dataset = _build_dataset(name, options, seed, size)
    return partial(_score_entry, dataset, make_extractor(ANSWER_TAG if extract == "answer-tag" else extract))


def _score_entry(dataset: Any, extractor: Callable[[str], str | None], response: str, entry: dict[str, Any]) -> float:
    found = extractor(response)
    return float(dataset.score_answer(None if found is None else found.strip(), entry))


class GymTask:
    """The task of one reasoning-gym dataset; build it with `make_gym_task`.

    The first ``eval_size`` positions of one seeded dataset are held out; the next ``size`` positions are for
    training. A training position is replaced by another one if its question is held out or the package fails to
    generate it. Which position replaces it depends on the index of the replaced one alone.
    """

    def __init__(self, dataset: str, config: GymConfig, options: Mapping[str, Any]) -> None:
        self.name = f"gym:{dataset}"
        self.config = config
        self.options = dict(options)
        if config.extract != "answer-tag":
            make_extractor(config.extract)
        from reasoning_gym.utils import SYSTEM_PROMPTS

        if config.instruction not in SYSTEM_PROMPTS and config.instruction != "none":
            raise unknown_name("instruction", config.instruction, [*SYSTEM_PROMPTS, "none"])
        self._instruction = SYSTEM_PROMPTS.get(config.instruction, "")
        # Hash the run's seed. The package seeds example i with seed + i, so unhashed seeds 0 and 1 would share nearly
        # all examples.
        base = np.random.SeedSequence([config.seed, zlib.crc32(dataset.encode())])
        seed = int(base.generate_state(1)[0])
        total = config.eval_size + config.size
        try:
            self.dataset = _build_dataset(dataset, options, seed, total)
        except (AssertionError, ValueError, TypeError, AttributeError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"reasoning-gym refuses the options of {self.name}: {text}") from error
        self._pool = VerifierPool(
            score_factory,
            (dataset, dict(options), seed, total, config.extract),
            workers=config.workers,
            timeout_s=config.timeout_s,
        )
        self._entry = lru_cache(maxsize=CACHED_ENTRIES)(self._make_entry)
        self._held_out: frozenset[str] | None = None

    def close(self) -> None:
        """Stop the worker processes that score."""
        self._pool.close()

    def size(self, split: Split) -> int:
        """Return the number of examples in a split."""
        check_split(split)
        return self.config.size if split == "train" else self.config.eval_size

    def _make_entry(self, split: Split, index: int) -> dict[str, Any]:
        size = self.size(split)
        if not 0 <= index < size:
            raise UserError(f"{self.name} has {size} {split} examples: index {index} does not exist")
        start = 0 if split == "eval" else self.config.eval_size
        forbidden = frozenset() if split == "eval" else self._held_out_questions()
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

    def _held_out_questions(self) -> frozenset[str]:
        if self._held_out is None:
            indices = tqdm(range(self.config.eval_size), desc=f"{self.name} held-out", delay=2, leave=False)
            self._held_out = frozenset(self._entry("eval", i)["question"] for i in indices)
        return self._held_out

    def example(self, split: Split, index: int) -> Example:
        """Return the example at ``index``, a pure function of the options, the split and the index."""
        entry = self._entry(split, int(index))
        question = entry["question"]
        metadata = entry.get("metadata") or {}
        # A question with many right answers (such as graph colouring) has no "answer" entry; ``score_answer`` judges
        # responses to it without one.
        answer = entry.get("answer")
        return Example(
            prompt_id=f"{split}-{index}",
            prompt=f"{self._instruction.strip()}\n\n{question}" if self._instruction else question,
            answer="" if answer is None else str(answer),
            info={
                key: value
                for key, value in metadata.items()
                if isinstance(value, int | float | str) and not isinstance(value, bool)
            },
        )

    def score(self, examples: Sequence[Example], responses: Sequence[str], finished: Sequence[bool]) -> Rewards:
        """Return the rewards of ``responses[i]`` to ``examples[i]``, which must come from this task."""
        check_batch(examples, responses, finished)
        judged = [i for i in range(len(responses)) if finished[i] or not self.config.require_finished]
        calls = []
        for i in judged:
            split, _, index = examples[i].prompt_id.partition("-")
            calls.append({"response": responses[i], "entry": self._entry(split, int(index))})  # type: ignore[arg-type]
        rewards = self._pool.score(calls)
        marks = rewards.values if self.config.graded else (rewards.values >= 1.0).astype(np.float64)
        values = np.zeros(len(responses))
        status = ["ok"] * len(responses)
        for place, i in enumerate(judged):
            values[i], status[i] = marks[place], rewards.status[place]
        return Rewards(values, status, rewards.messages)
