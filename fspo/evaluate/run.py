"""Evaluation of models on benchmarks: sample and judge the answers that the answer files lack, then write a table."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fspo.base.errors import UserError, unknown_name
from fspo.base.files import whole_file
from fspo.config import SamplingConfig
from fspo.config.evaluation import AnswerConfig
from fspo.evaluate.accuracy import measures
from fspo.evaluate.answers import AnswerFile, answer, header
from fspo.gradlog.run_folder import CONFIG, MODEL
from fspo.models.load import check_vocabulary, load_model, load_tokenizer
from fspo.rollouts.collect import Collector
from fspo.tasks import build_config
from fspo.tasks.dataset import DatasetConfig, DatasetTask
from fspo.tasks.known_sets import BENCHMARKS, known_options
from fspo.tasks.rows import FILE_SUFFIXES


def load_benchmark(name: str) -> DatasetTask:
    """Load a benchmark of `known_sets.BENCHMARKS` from the hub, or any from a file; NAME.jsonl has NAME's options.

    Raises UserError if there is no such benchmark, or neither a file nor the hub has it.
    """
    short, from_file = Path(name).stem, name.endswith(FILE_SUFFIXES)
    if not from_file and name not in BENCHMARKS:
        raise unknown_name("benchmark", name, [*BENCHMARKS, "<file>.jsonl"])
    given = {"eval_share": 0.0} | ({"path": name} if from_file else {})
    options = known_options(BENCHMARKS.get(short, {"judge": {"verifier": "math"}}), given)
    try:
        return DatasetTask(build_config(DatasetConfig, options, f"option of benchmark {name}"), short)
    except UserError as error:
        if from_file:
            raise
        fix = f"save it as {name}.jsonl or .parquet and name that file"
        raise UserError(f"benchmark {name}: the hub cannot give it: {fix} ({error})") from error


def evaluate(args: Any, names: Sequence[str], settings: AnswerConfig, sampling: SamplingConfig) -> None:
    """Sample the answers that the answer files lack, then write and print the table.

    ``args`` is the parsed command line of ``fspo evaluate``, ``names`` are the benchmarks, and ``settings`` are those
    that the answer files record.
    """
    state = PartialState(cpu=not torch.cuda.is_available())
    output, rows = Path(args.output), []
    labels = {model: _label(model) for model in dict.fromkeys(args.models)}
    if len(set(labels.values())) < len(labels) or len({Path(name).stem for name in names}) < len(names):
        raise UserError("two models or two of --benchmarks have the same name: give their folders or files other names")
    with ExitStack() as stack:
        tasks = [stack.enter_context(closing(load_benchmark(name))) for name in names]
        for task in tasks:
            for model, label in labels.items():
                path = output / "answers" / re.sub(r"[^\w.-]+", "_", label) / f"{task.name}.jsonl"
                lines = _answered(state, path, _source(model), task, settings, sampling)
                rows += [{"benchmark": task.name, "model": label} | row for row in table(lines, settings.samples)]
    if state.is_main_process:
        found = pd.DataFrame(rows)
        with whole_file(output / "results.csv") as part:
            found.to_csv(part, index=False)
        print(found.to_string(index=False, float_format="{:.3f}".format))
        print(f"table: {output}/results.csv; answers: {output}/answers", file=sys.stderr)


def table(lines: Sequence[dict[str, Any]], samples: int) -> list[dict[str, Any]]:
    """Return a row for each measure of a model's answers to a benchmark, with the counts that the measures share.

    A prompt that was too long to be asked counts as wrong.
    """
    asked = [line for line in lines if not line["too_long"]]
    correct = [np.asarray(line.get("rewards", [0.0] * samples)) >= 1 for line in lines]
    shared = {
        "prompts": len(lines),
        "too_long": len(lines) - len(asked),
        "mean_length": float(np.mean([line["lengths"] for line in asked])) if asked else np.nan,
        "truncated": float(np.mean([line["truncated"] for line in asked])) if asked else np.nan,
        "failed": sum(status != "ok" for line in asked for status in line["status"]),
    }
    return [row | shared for row in measures(correct)]


def _label(model: str) -> str:
    """Return the name of a model in the table; a model that a run has exported is named after the run folder."""
    path = Path(model)
    if path.name == MODEL and (path.parent / CONFIG).is_file():
        path = path.parent
    return str(path).strip("/") if path.name else path.resolve().name


def _source(model: str) -> str:
    exported = Path(model) / MODEL
    whole = any((exported / name).is_file() for name in ("config.json", "adapter_config.json"))
    return str(exported) if whole else model


@lru_cache(maxsize=1)
def _load(model: str, device: torch.device) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    net = load_model(model, "float32" if device.type == "cpu" else "bfloat16").to(device)  # type: ignore[arg-type]
    tokenizer = load_tokenizer(model)
    check_vocabulary(net, tokenizer)
    return net, tokenizer


def _answered(
    state: PartialState,
    path: Path,
    model: str,
    task: DatasetTask,
    settings: AnswerConfig,
    sampling: SamplingConfig,
) -> list[dict[str, Any]]:
    """Sample and judge answers to the prompts that an answer file lacks, and return all its lines."""
    shared: list[Any] = [None, None]  # the lines and an error of the first process, for all processes
    if state.is_main_process:
        try:
            file = AnswerFile(path, header(model, task, settings))
            shared[0] = file.lines
        except UserError as error:
            shared[1] = str(error)
    if state.num_processes > 1:
        broadcast_object_list(shared)
    if shared[1] is not None:
        raise UserError(shared[1])
    lines: dict[int, dict[str, Any]] = shared[0]
    missing = [i for i in range(task.size("train")) if i not in lines]
    if missing:
        net, tokenizer = _load(model, state.device)
        world = settings.seed, state.process_index, state.num_processes
        collector = Collector(
            task, tokenizer, sampling, *world, settings.chat_template, max_prompt_tokens=settings.max_prompt_tokens
        )
        with tqdm(desc=task.name, unit="prompt", total=len(missing), disable=not state.is_main_process) as bar:
            for rows in answer(net, collector, missing, settings.samples, sampling.batch_size):
                if state.is_main_process:
                    file.append(rows)
                lines.update({row["prompt"]: row for row in rows})
                bar.update(len(rows))
    return [lines[i] for i in sorted(lines)]
