"""The task made of a data set: rows (prompt, answer) from jsonl, parquet or Hugging Face, judged by a verifier."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fspo.base.errors import UserError
from fspo.tasks.base import Example, Prompt, Rewards, Split, check_prompt, check_split
from fspo.tasks.columns import DatasetColumns, cell, detect
from fspo.tasks.rows import read_rows
from fspo.tasks.verify import Verifier, VerifierConfig, make_extractor

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
        Held-out rows from another file, or from another split of ``path``. Without either, a share of the rows
        is held out.
    eval_share : float
        Share of the *distinct* prompts to hold out, at least one prompt, chosen by ``seed``; no held-out prompt is
        trained on. 0 holds out none.
    prompt_column, answer_column : str, optional
        Names of the columns. A prompt is text or a list of ``{"role", "content"}`` messages; an answer is text or a
        number. A dot leads into a nested column. By default the columns are found from the names in the first row
        (`fspo.tasks.columns.LAYOUTS`: DAPO-Math-17k, DeepScaleR, MATH-500, AIME, GSM8K, or prompt and answer).
    system, suffix : str
        Text put before a prompt (as a system message if the prompt is a chat) and after it, for example
        ``"\\nPut the final answer in \\boxed{}."``.
    answer_extract : str, optional
        How the answer is extracted from the answer column, as ``extract`` in `fspo.tasks.verify.VerifierConfig`; by
        default the text after ``####`` if the columns and answers are like GSM8K's, else all of the text.
    bad_rows : str
        ``"error"`` stops if a row cannot be used; ``"skip"`` leaves such rows out and counts them.
    repeats : str
        ``"drop"`` keeps the first of the rows that share a prompt and counts the others; ``"keep"`` keeps all.
    judge : VerifierConfig
        The verifier and its limits.
    """

    path: str
    subset: str | None = None
    split: str = "train"
    eval_path: str | None = None
    eval_split: str | None = None
    eval_share: float = 0.05
    seed: int = 0
    prompt_column: str | None = None
    answer_column: str | None = None
    system: str = ""
    suffix: str = ""
    answer_extract: str | None = None
    bad_rows: Literal["error", "skip"] = "error"
    repeats: Literal["keep", "drop"] = "keep"
    judge: VerifierConfig = field(default_factory=VerifierConfig)

    def __post_init__(self) -> None:
        """Raise UserError for values that contradict each other or cannot be used."""
        if not 0 <= self.eval_share < 1:
            raise UserError(f"eval_share={self.eval_share}: use a share of at least 0 and below 1")
        if self.seed < 0:
            raise UserError(f"seed={self.seed}: use a seed of at least 0")
        if self.eval_path and self.eval_split:
            raise UserError("eval_path and eval_split both say where held-out rows are: give one of them")
        make_extractor(self.answer_extract or "none")


def _as_answer(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    return None


class _Reader:
    """Turns rows of a data set into examples; the first row that is a JSON object tells which columns hold what."""

    def __init__(self, config: DatasetConfig) -> None:
        self.config = config
        self.columns: DatasetColumns | None = None

    def example(self, row: Any, prompt_id: str) -> Example | str:
        """Return the example in a row, or a message that says what is wrong with the row and how to mend it."""
        config = self.config
        if isinstance(row, str):
            return f"{row}: correct the row"
        if not isinstance(row, Mapping):
            return f"the row is {type(row).__name__}, not an object with columns: correct the row"
        if self.columns is None:
            self.columns = detect(row, config.prompt_column, config.answer_column, config.answer_extract)
        columns = self.columns
        values = []
        for option, column in (("prompt_column", columns.prompt), ("answer_column", columns.answer)):
            try:
                values.append(cell(row, column))
            except KeyError:
                return f"no column {column!r}: set {option} to one of {', '.join(map(str, row))}"
        prompt, value = values
        problem = check_prompt(prompt)
        if problem:
            return f"{problem} (column {columns.prompt!r}): correct or remove the row"
        raw = _as_answer(value)
        where = f"(column {columns.answer!r}): correct or remove the row"
        if raw is None:
            return f"the answer is {type(value).__name__}, not text or a number {where}"
        answer = make_extractor(columns.extract)(raw)
        if answer is None:
            return (
                f"answer_extract {columns.extract!r} finds nothing in the answer {raw[:60]!r}: correct the "
                "row or answer_extract"
            )
        if not answer.strip():
            return f"the answer is empty {where}"
        if config.judge.verifier == "exact" and config.judge.extract == "last-number" and not _is_number(answer):
            return f"the answer {answer[:60]!r} is no number, which extract last-number compares with {where}"
        return Example(prompt_id=prompt_id, prompt=self.dress(prompt), answer=answer.strip())

    def dress(self, prompt: Prompt) -> Prompt:
        """Return the prompt with the system text before it and the suffix after it, as configured."""
        system, suffix = self.config.system, self.config.suffix
        if isinstance(prompt, str):
            return (f"{system}\n\n" if system else "") + prompt + suffix
        messages = [{"role": m["role"], "content": m["content"]} for m in prompt]
        if suffix:
            messages[-1]["content"] += suffix
        return ([{"role": "system", "content": system}] if system else []) + messages


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text.strip().replace(",", "")))
    except ValueError:
        return False


def _key(prompt: Prompt) -> str:
    return json.dumps(prompt, sort_keys=True)


class DatasetTask:
    """The task whose examples are the rows of a data set.

    ``skipped`` counts the rows left out under ``bad_rows="skip"``, ``repeated`` the rows left out under
    ``repeats="drop"``.

    Raises
    ------
    UserError
        If the source cannot be read, a row cannot be used (the message names file, place and cure), or no row is left.
    """

    def __init__(self, config: DatasetConfig, name: str = "dataset") -> None:
        self.name = name
        self.config = config
        self.skipped = self.repeated = 0
        self._verifier = Verifier(config.judge)
        train = self._load(config.path, config.split, "row")
        if config.eval_path or config.eval_split:
            held_out = self._load(config.eval_path or config.path, config.eval_split or config.split, "eval-row")
            keys = {_key(example.prompt) for example in held_out}
            kept = [example for example in train if _key(example.prompt) not in keys]
            if len(kept) < len(train):
                log.warning("%d training rows repeat a held-out prompt: left out", len(train) - len(kept))
            train = kept
        else:
            train, held_out = self._hold_out(train)
        if not train:
            raise UserError(f"{config.path}: no row is left to train on: add rows or hold out fewer")
        self._examples: dict[str, list[Example]] = {"train": train, "eval": held_out}

    def _load(self, path: str, split: str, prefix: str) -> list[Example]:
        reader = _Reader(self.config)
        examples: list[Example] = []
        answers: dict[str, str] = {}
        repeated = conflicts = 0
        bad: list[str] = []
        try:
            for place, row in read_rows(path, self.config.subset, split):
                example = reader.example(row, f"{prefix}-{place.split()[-1]}")
                if isinstance(example, str):
                    bad.append(f"{path}, {place}: {example}")
                    continue
                if self.config.repeats == "drop":
                    first = answers.setdefault(_key(example.prompt), example.answer)
                    if len(answers) == len(examples):  # an earlier row has the same prompt: leave this row out
                        repeated, conflicts = repeated + 1, conflicts + (first != example.answer)
                        continue
                examples.append(example)
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: not UTF-8 ({error.reason}): save the file as UTF-8") from error
        if bad and (self.config.bad_rows == "error" or not examples):
            more = f" ({len(bad) - 1} more such rows)" if len(bad) > 1 else ""
            cure = ", or set bad_rows to skip" if examples else ""
            raise UserError(f"{bad[0]}{cure}{more}")
        if not examples:
            raise UserError(f"{path}: no rows: give a file with at least one prompt and answer")
        if bad:
            log.warning("%d of %d rows left out; the first: %s", len(bad), len(bad) + len(examples), bad[0])
        if repeated:
            log.warning(
                "%s: %d of %d rows repeat a prompt and are left out (%d of them with another answer than the first)",
                path,
                repeated,
                repeated + len(examples),
                conflicts,
            )
        self.skipped += len(bad)
        self.repeated += repeated
        return examples

    def _hold_out(self, examples: list[Example]) -> tuple[list[Example], list[Example]]:
        keys = [_key(example.prompt) for example in examples]
        distinct = list(dict.fromkeys(keys))
        count = math.ceil(self.config.eval_share * len(distinct))
        words = np.random.Philox(seed=np.random.SeedSequence(self.config.seed)).random_raw(len(distinct))
        chosen = {distinct[i] for i in np.argsort(words, kind="stable")[:count]}
        return (
            [example for example, key in zip(examples, keys, strict=True) if key not in chosen],
            [example for example, key in zip(examples, keys, strict=True) if key in chosen],
        )

    def close(self) -> None:
        """Stop the worker processes of the verifier."""
        self._verifier.close()

    def size(self, split: Split) -> int:
        """Return the number of examples in a split."""
        check_split(split)
        return len(self._examples[split])

    def example(self, split: Split, index: int) -> Example:
        """Return the example of the row at ``index``."""
        size = self.size(split)
        if not 0 <= index < size:
            raise UserError(f"the data set has {size} {split} examples: index {index} does not exist")
        return self._examples[split][index]

    def score(self, examples: Sequence[Example], responses: Sequence[str], finished: Sequence[bool]) -> Rewards:
        """Return the verifier's reward of each ``responses[i]`` to ``examples[i]``."""
        return self._verifier.score(examples, responses, finished)
