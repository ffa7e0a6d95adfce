"""(prompt, answer) rows from jsonl, parquet or a Hugging Face dataset as a task with a verifier."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fspo.errors import UserError, unknown_name
from fspo.rewards import Verifier, VerifierConfig, make_extractor
from fspo.tasks.base import Example, Prompt, Rewards, Split, check_prompt, check_split

log = logging.getLogger("fspo.tasks")

JSONL_SUFFIXES = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class DatasetConfig:
    """Where the rows come from and how responses are judged.

    Attributes
    ----------
    path : str
        A ``.jsonl`` or ``.parquet`` file, a local folder or a name for Hugging Face ``datasets``.
    subset, split : str
        Of a Hugging Face dataset.
    eval_path, eval_split : str, optional
        Held-out rows from another file, or from another split of ``path``. Without either, a share of the rows
        is held out.
    eval_share : float
        That share of the *distinct* prompts, at least one, chosen by ``seed``; no held-out prompt trains. 0 holds
        out none.
    prompt_column, answer_column : str
        A prompt is text or a list of ``{"role", "content"}`` messages; an answer is text or a number.
    system, suffix : str
        Put before a prompt (a system message where the prompt is a chat) and after it, for example
        ``"\\nPut the final answer in \\boxed{}."``.
    answer_extract : str
        What of the answer column is the answer, as ``extract`` in `fspo.rewards.VerifierConfig`:
        ``"regex:####\\s*(.+)"`` for GSM8K.
    bad_rows : str
        ``"error"`` stops at a row that cannot be used; ``"skip"`` counts and leaves it out.
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
    prompt_column: str = "prompt"
    answer_column: str = "answer"
    system: str = ""
    suffix: str = ""
    answer_extract: str = "none"
    bad_rows: Literal["error", "skip"] = "error"
    judge: VerifierConfig = field(default_factory=VerifierConfig)

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        if not 0 <= self.eval_share < 1:
            raise UserError(f"eval_share={self.eval_share}: use a share of at least 0 and below 1")
        if self.seed < 0:
            raise UserError(f"seed={self.seed}: use a seed of at least 0")
        if self.eval_path and self.eval_split:
            raise UserError("eval_path and eval_split both say where held-out rows are: give one of them")
        make_extractor(self.answer_extract)


Row = tuple[str, Any]
"""Where a row stands ("line 3"), and the row: a dict, or the message of what is wrong with it."""


def _read_jsonl(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                row = f"no valid JSON ({error.msg} at column {error.colno})"
            yield f"line {number}", row


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as parquet:
            number = 0
            for batch in parquet.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", row
    except pa.ArrowInvalid as error:
        raise UserError(f"{path}: no readable parquet file ({error}): write it again") from error


def _read_hub(path: str, subset: str | None, split: str) -> Iterator[Row]:
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f'{path!r} is no .jsonl or .parquet file; Hugging Face datasets need: pip install "fspo[data]"'
        ) from error
    try:
        folder = Path(path)
        if (folder / "state.json").exists() or (folder / "dataset_dict.json").exists():
            data = datasets.load_from_disk(path)
            if isinstance(data, datasets.DatasetDict):
                if split not in data:
                    raise unknown_name(f"split of {path}", split, [str(known) for known in data])
                data = data[split]
        else:
            data = datasets.load_dataset(path, subset, split=split)
    except UserError:
        raise
    except Exception as error:  # the library raises many kinds, some of them bare
        text = " ".join(str(error).split())[:300]
        raise UserError(
            f"cannot load dataset {path!r} (subset {subset}, split {split}): {text}: check path, subset and split"
        ) from error
    for number, row in enumerate(data, start=1):
        yield f"row {number}", row


def _rows(path: str, subset: str | None, split: str) -> Iterable[Row]:
    file = Path(path)
    suffix = file.suffix.lower()
    if suffix in (*JSONL_SUFFIXES, ".parquet"):
        if not file.is_file():
            raise UserError(f"no file {path}: correct the path")
        return _read_jsonl(file) if suffix in JSONL_SUFFIXES else _read_parquet(file)
    if file.is_file():
        raise UserError(f"{path}: unknown file type {suffix!r}: convert it to .jsonl or .parquet")
    return _read_hub(path, subset, split)


def _as_answer(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    return None


class _Reader:
    """Turns rows into examples, one by one."""

    def __init__(self, config: DatasetConfig) -> None:
        self.config = config
        self.extract_answer = make_extractor(config.answer_extract)

    def example(self, row: Any, prompt_id: str) -> Example | str:
        """Return the example in a row, or what is wrong with the row and how to mend it."""
        config = self.config
        if isinstance(row, str):
            return f"{row}: correct the row"
        if not isinstance(row, dict):
            return f"the row is {type(row).__name__}, not an object with columns: correct the row"
        for option in ("prompt_column", "answer_column"):
            column = getattr(config, option)
            if column not in row:
                return f"no column {column!r}: set {option} to one of {', '.join(map(str, row))}"
        prompt = row[config.prompt_column]
        problem = check_prompt(prompt)
        if problem:
            return f"{problem} (column {config.prompt_column!r}): correct or remove the row"
        raw = _as_answer(row[config.answer_column])
        where = f"(column {config.answer_column!r}): correct or remove the row"
        if raw is None:
            return f"the answer is {type(row[config.answer_column]).__name__}, not text or a number {where}"
        answer = self.extract_answer(raw)
        if answer is None:
            return (
                f"answer_extract {config.answer_extract!r} finds nothing in the answer {raw[:60]!r}: correct the "
                "row or answer_extract"
            )
        if not answer.strip():
            return f"the answer is empty {where}"
        if config.judge.verifier == "exact" and config.judge.extract == "last-number" and not _is_number(answer):
            return f"the answer {answer[:60]!r} is no number, which extract last-number compares with {where}"
        return Example(prompt_id=prompt_id, prompt=self.dress(prompt), answer=answer.strip())

    def dress(self, prompt: Prompt) -> Prompt:
        """Add the system text and the suffix."""
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
    """Rows of a data set with a verifier; ``skipped`` counts the rows left out under ``bad_rows="skip"``.

    Raises
    ------
    UserError
        A source that cannot be read; an unusable row (file, place and cure are named); no usable row.
    """

    def __init__(self, config: DatasetConfig) -> None:
        self.name = "dataset"
        self.config = config
        self.skipped = 0
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
        bad: list[str] = []
        try:
            for place, row in _rows(path, self.config.subset, split):
                example = reader.example(row, f"{prefix}-{place.split()[-1]}")
                if isinstance(example, Example):
                    examples.append(example)
                else:
                    bad.append(f"{path}, {place}: {example}")
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
        self.skipped += len(bad)
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
        """Stop the verifier's workers."""
        self._verifier.close()

    def size(self, split: Split) -> int:
        """Number of examples in a split."""
        check_split(split)
        return len(self._examples[split])

    def example(self, split: Split, index: int) -> Example:
        """Example at ``index`` in the order of the source."""
        size = self.size(split)
        if not 0 <= index < size:
            raise UserError(f"the data set has {size} {split} examples: index {index} does not exist")
        return self._examples[split][index]

    def score(self, examples: Sequence[Example], responses: Sequence[str], finished: Sequence[bool]) -> Rewards:
        """Rewards of ``responses[i]`` to ``examples[i]``."""
        return self._verifier.score(examples, responses, finished)
