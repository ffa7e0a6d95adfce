"""Benchmarks: loading their prompts from the hub or from disk, and keeping a model's answers in a file.

The first line of ``OUT/answers/MODEL/BENCHMARK.jsonl`` names the model, the prompts and the sampling settings. Then
follows one line for each prompt with all its responses. The lines of a batch are appended and synced to the disk
together, so a killed run keeps them. The next start drops a last line that was not written completely.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from fspo.base.errors import UserError, unknown_name
from fspo.base.files import digest, digest_of, write_text
from fspo.config.evaluation import AnswerConfig
from fspo.evaluate.accuracy import Answers
from fspo.rollouts.collect import Collector
from fspo.tasks import build_config
from fspo.tasks.dataset import DatasetConfig, DatasetTask
from fspo.tasks.rows import FILE_SUFFIXES
from fspo.tasks.sets import BENCHMARKS, known_options

SOLVED = 1.0
"""Least reward at which a response counts as correct."""


def load_benchmark(name: str, data_dir: Path | None, options: dict[str, Any]) -> DatasetTask:
    """Load a benchmark by its known name (`fspo.tasks.sets.BENCHMARKS`) or from a file.

    Parameters
    ----------
    name : str
        "math500", "aime24", ..., or the path of a jsonl or parquet file.
    data_dir : path, optional
        Folder with benchmarks on disk. If it holds ``NAME.jsonl``, ``NAME.parquet`` or a folder ``NAME``, that file or
        folder is read instead of the hub's copy. NAME need then not be a known name.
    options : dict
        Further options of `fspo.tasks.dataset.DatasetConfig`.

    Raises
    ------
    UserError
        If there is no such benchmark, or neither a file nor the hub has it.
    """
    on_disk = _on_disk(name, data_dir)
    if on_disk is None and name not in BENCHMARKS:
        raise unknown_name("benchmark", name, [*BENCHMARKS, "<file>.jsonl"])
    known = BENCHMARKS.get(name, {"judge": {"verifier": "math"}})
    given = options if on_disk is None else {**options, "path": str(on_disk)}
    merged = known_options(known, {**given, "eval_share": 0.0})
    try:
        return DatasetTask(build_config(DatasetConfig, merged, f"option of benchmark {name}"), name)
    except UserError as error:
        if on_disk is not None:
            raise
        where = data_dir or Path("DIR")
        raise UserError(
            f"benchmark {name}: the hub cannot give it and there is no {where / name}.jsonl or .parquet: save it "
            f"there and name the folder with --data-dir ({error})"
        ) from error


def _on_disk(name: str, data_dir: Path | None) -> Path | None:
    if name.endswith(FILE_SUFFIXES):
        return Path(name)
    if data_dir is None:
        return None
    if not data_dir.is_dir():
        raise UserError(f"no folder {data_dir}: give --data-dir the folder that holds the benchmarks")
    places = [data_dir / f"{name}{suffix}" for suffix in FILE_SUFFIXES] + [data_dir / name]
    return next((place for place in places if place.exists()), None)


def data_key(task: DatasetTask) -> str:
    """Return a hash of a benchmark's prompts and reference answers, so that a changed benchmark is noticed."""
    every = [task.example("train", i) for i in range(task.size("train"))]
    return digest_of([[e.prompt, e.answer] for e in every])


def model_key(model: str) -> str:
    """Return a text that changes when the model changes.

    For a local folder it is a digest of the configuration and of the first and last MiB of each file of weights.
    The configuration of LoRA adapters names their base model, so the digest depends on the base model's name too. A hub
    name is returned unchanged.
    """
    folder = Path(model)
    if not folder.is_dir():
        return model
    parts = []
    configs = ("config.json", "adapter_config.json")
    for file in sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".bin") or p.name in configs):
        with file.open("rb") as stream:
            head = stream.read(1 << 20)
            stream.seek(max(0, file.stat().st_size - (1 << 20)))
            parts.append(f"{file.name} {file.stat().st_size} {digest(head)} {digest(stream.read())}")
    return digest("\n".join(parts))


class AnswerFile:
    """The file with the answers of one model to one benchmark.

    Parameters
    ----------
    path : path
    header : dict
        The model, the prompts and the sampling settings, as the function `header` returns them.

    Raises
    ------
    UserError
        If the file holds answers of another model, to other prompts or with other settings, or if a line before the
        last is damaged.
    """

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path, self.lines = path, dict[int, dict[str, Any]]()
        if not path.exists():
            write_text(path, json.dumps(header) + "\n")
            return
        text = path.read_text(encoding="utf-8", errors="replace")
        kept = text[: text.rfind("\n") + 1]
        try:
            rows = [json.loads(line) for line in kept.splitlines()]
            found = rows[0] if rows else {}
            self.lines = {row["prompt"]: row for row in rows[1:]}
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({error}): remove it to answer this benchmark again") from error
        for key in header:
            if found.get(key) != header[key]:
                raise UserError(
                    f"{path} was made with {key} {found.get(key)}, not {header[key]}: choose another --output, or "
                    "remove the file to answer this benchmark again"
                )
        if kept != text:
            write_text(path, kept)

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append ``rows``, one line for each answered prompt, to the file and sync the file to the disk."""
        try:
            with self.path.open("ab") as stream:
                stream.write("".join(json.dumps(row) + "\n" for row in rows).encode())
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}; make room and run the same again") from error
        self.lines |= {row["prompt"]: row for row in rows}


def header(model: str, task: DatasetTask, settings: AnswerConfig) -> dict[str, Any]:
    """Make the first line of an answer file: the model, the prompts and the sampling settings."""
    return {"model": model_key(model), "benchmark": task.name, "data": data_key(task), **asdict(settings)}


def answer(
    model: PreTrainedModel,
    collector: Collector,
    missing: Sequence[int],
    settings: AnswerConfig,
    batch_size: int,
    keep: Callable[[list[dict[str, Any]]], None],
    *,
    texts: bool = True,
) -> None:
    """Sample and judge answers to the prompts ``missing``, at most ``batch_size`` responses per process at a time.

    Parameters
    ----------
    collector : Collector
        Samples responses to the benchmark's prompts and judges them. Each process samples its share of the responses
        and gets all of them.
    keep : callable
        Called with the lines of the answer file for each finished batch, one line for each prompt.
    texts : bool
        Whether the lines hold the text of the responses.
    """
    prompts_at_once = max(1, batch_size // settings.samples) * collector.world
    for start in range(0, len(missing), prompts_at_once):
        numbers = np.asarray(missing[start : start + prompts_at_once])
        prompts = collector.prompts("train", numbers, numbers, none_fits=True)
        rows = {int(n): {"prompt": int(n), "too_long": n not in prompts.ids} for n in numbers}
        if len(prompts.ids):
            batch = collector.collect(model, prompts, settings.samples, stream="eval", rollout=0, step=0)
            for n in prompts.ids:
                at = np.flatnonzero(batch.prompt_ids == n)
                rows[int(n)] |= {
                    "lengths": batch.lengths[at].tolist(),
                    "truncated": batch.truncated[at].tolist(),
                    "rewards": batch.rewards[at].tolist(),
                    "status": batch.reward_status[at].tolist(),
                }
                if texts:
                    tokens = [batch.responses[i].tolist() for i in at]
                    rows[int(n)]["responses"] = collector.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        keep(list(rows.values()))


def answers(lines: Sequence[dict[str, Any]], samples: int) -> Answers:
    """Turn the lines of an answer file into arrays.

    ``samples`` is the number of responses to each prompt. A prompt that was too long to be asked gets that many wrong
    answers of length 0.
    """
    prompt = np.repeat([row["prompt"] for row in lines], samples).astype(np.int64)

    def column(name: str, missing: Any) -> np.ndarray:
        return np.array([value for row in lines for value in (row.get(name) or [missing] * samples)])

    return Answers(
        prompt=prompt,
        correct=column("rewards", 0.0) >= SOLVED,
        length=column("lengths", 0).astype(np.int64),
        truncated=column("truncated", False).astype(bool),
        failed=column("status", "ok") != "ok",
    )
