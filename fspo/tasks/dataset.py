"""The task made of a data set: rows (prompt, answer) from jsonl, parquet or Hugging Face, judged by a verifier."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fspo.base.errors import UserError
from fspo.config.option_ranges import SEEDS, check_ranges, number
from fspo.tasks.base import Example, Rewards, Split, check_prompt
from fspo.tasks.known_sets import COLUMNS, MARK
from fspo.tasks.rows import read_rows
from fspo.tasks.verify import Verifier, VerifierConfig

log = logging.getLogger("fspo.tasks")


@dataclass(frozen=True)
class DatasetConfig:
    """Where the rows come from and how responses are judged.

    Attributes
    ----------
    path : str
        A ``.jsonl`` or ``.parquet`` file, a local folder or a name for Hugging Face ``datasets``.
    subset, split : str
        Subset and split of a Hugging Face dataset.
    eval_path, eval_split : str, optional
        Held-out rows from another file, or from another split of ``path``. Without either, a share of the rows is held
        out.
    eval_share : float
        Share of the prompts to hold out, at least one prompt, chosen by ``seed``. 0 holds out none.
    prompt_column, answer_column : str, optional
        Names of the columns. A prompt is text or a list of ``{"role", "content"}`` messages; an answer is a number or
        text, of which only what follows ``####``, if it occurs, is used. A dot leads into a nested column. By default
        the first pair in `fspo.tasks.known_sets.COLUMNS` that the first row has.
    suffix : str
        Text put after a prompt, for example ``"\\nPut the final answer in \\boxed{}."``.
    judge : VerifierConfig
        The verifier and its limits.
    """

    path: str
    subset: str | None = None
    split: str = "train"
    eval_path: str | None = None
    eval_split: str | None = None
    eval_share: float = number(0.05, 0, 1, below=True)
    seed: int = number(0, 0, SEEDS)
    prompt_column: str | None = None
    answer_column: str | None = None
    suffix: str = ""
    judge: VerifierConfig = field(default_factory=VerifierConfig)

    def __post_init__(self) -> None:
        check_ranges(self, "dataset")
        if self.eval_path and self.eval_split:
            raise UserError("eval_path and eval_split both say where held-out rows are: give one of them")


def _cell(row: Mapping[str, Any], column: str) -> Any:
    """Return the value of a column (dots lead into nested columns); None if the row lacks it."""
    value: Any = row
    for part in [column] if column in row else column.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _columns(config: DatasetConfig, row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the names of the columns of prompt and answer: the user's, else the first known pair that ``row`` has."""
    pairs = [(config.prompt_column or prompt, config.answer_column or answer) for prompt, answer in COLUMNS]
    whole = (pair for pair in pairs if all(_cell(row, column) is not None for column in pair))
    return next(whole, (config.prompt_column or "prompt", config.answer_column or "answer"))


def _answer(value: Any) -> str:
    """Return an answer as text, "" if nothing is in it; raise ValueError if it is neither text nor a number."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"the answer is {type(value).__name__}, not text or a number")
    return (value.partition(MARK)[2] or value).strip()


def _example(config: DatasetConfig, columns: tuple[str, str], row: Any, prompt_id: str) -> Example:
    """Return a row's example, from its ``columns`` of prompt and answer; raise ValueError, with a fix, if unusable."""
    prompt, given = (_cell(row, column) for column in columns)
    for value, option, column in ((prompt, "prompt_column", columns[0]), (given, "answer_column", columns[1])):
        if value is None:
            names = ", ".join(map(str, row))
            raise ValueError(f"column {column!r} is missing or null: set {option} to one of {names}")
    answer = _answer(given)
    problem = check_prompt(prompt) or ("" if answer else "the answer is empty")
    if problem:
        raise ValueError(f"{problem} (columns {', '.join(columns)}): correct or remove the row")
    if isinstance(prompt, str):
        return Example(prompt_id, prompt + config.suffix, answer)
    messages = [{"role": m["role"], "content": m["content"]} for m in prompt]
    messages[-1]["content"] += config.suffix
    return Example(prompt_id, messages, answer)


class DatasetTask:
    """The task whose examples are the rows of a data set; of rows that share a prompt it has the first.

    Raises UserError if the source cannot be read, a row cannot be used (the message names file, place and fix), or no
    row is left."""

    def __init__(self, config: DatasetConfig, name: str = "dataset") -> None:
        self.name = name
        self.config = config
        self._verifier = Verifier(config.judge)
        train = self._load(config.path, config.split, "row")
        if config.eval_path or config.eval_split:
            held_out = self._load(config.eval_path or config.path, config.eval_split or config.split, "eval-row")
            leaked = train.keys() & held_out.keys()
            if leaked:
                log.warning("%d training rows repeat a held-out prompt: left out", len(leaked))
        else:
            words = np.random.Philox(seed=np.random.SeedSequence(config.seed)).random_raw(len(train))
            chosen = set(np.argsort(words, kind="stable")[: math.ceil(config.eval_share * len(train))].tolist())
            held_out = {key: train[key] for i, key in enumerate(train) if i in chosen}
        kept = [example for key, example in train.items() if key not in held_out]
        if not kept:
            raise UserError(f"{config.path}: no row is left to train on: add rows or hold out fewer")
        self._examples: dict[str, list[Example]] = {"train": kept, "eval": list(held_out.values())}

    def _load(self, path: str, split: str, prefix: str) -> dict[str, Example]:
        """Return prompt (as JSON) -> example of the first row with it, in order; prompt ids start with ``prefix``."""
        columns: tuple[str, str] | None = None
        examples: dict[str, Example] = {}
        repeated = conflicts = 0
        for place, row in read_rows(path, self.config.subset, split):
            if isinstance(row, str):
                raise UserError(f"{path}, {place}: {row}: correct the row")
            columns = columns or _columns(self.config, row)
            try:
                example = _example(self.config, columns, row, f"{prefix}-{place.split()[-1]}")
            except ValueError as error:
                raise UserError(f"{path}, {place}: {error}") from error
            first = examples.setdefault(json.dumps(example.prompt, sort_keys=True), example)
            repeated, conflicts = repeated + (first is not example), conflicts + (first.answer != example.answer)
        if not examples:
            raise UserError(f"{path}: no rows: give a file with at least one prompt and answer")
        if repeated:
            log.warning(
                "%s: %d of %d rows repeat a prompt and are left out (%d of them with another answer than the first)",
                *(path, repeated, repeated + len(examples), conflicts),
            )
        return examples

    def close(self) -> None:
        """Stop the worker processes of the verifier."""
        self._verifier.close()

    def size(self, split: Split) -> int:
        """Return the number of examples in a split, "train" or "eval"."""
        return len(self._examples[split])

    def example(self, split: Split, index: int) -> Example:
        """Return the example made of the row at ``index`` of a split ("train" or "eval")."""
        size = self.size(split)
        if not 0 <= index < size:
            raise UserError(f"the data set has {size} {split} examples: index {index} does not exist")
        return self._examples[split][index]

    def score(self, examples: Sequence[Example], responses: Sequence[str], finished: Sequence[bool]) -> Rewards:
        """Return the verifier's reward of each ``responses[i]`` to ``examples[i]``; a truncated response is judged like
        any other."""
        return self._verifier.score(examples, responses, finished)
