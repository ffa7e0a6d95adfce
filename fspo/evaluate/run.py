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
from fspo.evaluate.answers import CONFIGS, AnswerFile, header
from fspo.gradlog.run_folder import CONFIG, MODEL
from fspo.models.load import check_vocabulary, load_model, load_tokenizer
from fspo.rollouts.collect import Collector
from fspo.tasks import build_config
from fspo.tasks.dataset import DatasetConfig, DatasetTask
from fspo.tasks.known_sets import BENCHMARKS, known_options
from fspo.tasks.rows import FILE_SUFFIXES


def load_benchmark(name: str) -> DatasetTask:
    """Load the benchmark ``name``: one of `known_sets.BENCHMARKS` from the Hugging Face hub, or any from a file. A file
    NAME.jsonl has the options of the known benchmark NAME.

    Raises UserError if there is no such benchmark, or neither a file nor the hub has it."""
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

    ``args`` is the parsed command line of ``fspo evaluate``, ``names`` are the benchmarks, ``settings`` say how answers
    are sampled (number, temperature, lengths, seed), ``sampling`` by which program."""
    state = PartialState(cpu=not torch.cuda.is_available())
    output, rows = Path(args.output), []
    models = dict(_named(model) for model in dict.fromkeys(args.models))
    if len(models) < len(set(args.models)) or len({Path(name).stem for name in names}) < len(names):
        raise UserError("two models or two of --benchmarks have the same name: give their folders or files other names")
    with ExitStack() as stack:
        tasks = [stack.enter_context(closing(load_benchmark(name))) for name in names]
        for task in tasks:
            for label, model in models.items():
                path = output / "answers" / re.sub(r"[^\w.-]+", "_", label) / f"{task.name}.jsonl"
                lines = _answered(state, path, model, task, settings, sampling)
                rows += [{"benchmark": task.name, "model": label} | row for row in table(lines, settings.samples)]
    if state.is_main_process:
        found = pd.DataFrame(rows)
        with whole_file(output / "results.csv") as part:
            found.to_csv(part, index=False)
        print(found.to_string(index=False, float_format="{:.3f}".format))
        print(f"table: {output}/results.csv; answers: {output}/answers", file=sys.stderr)


def table(lines: Sequence[dict[str, Any]], samples: int) -> list[dict[str, Any]]:
    """Return a row for each measure (avg@n, pass@k) of a model's answers to a benchmark, each with the same counts:
    prompts, too long ones, mean length (tokens), truncated share, failed verifications. ``lines`` are the file's,
    ``samples`` the number of responses to each prompt. A prompt that was too long to be asked counts as wrong."""
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


def _named(model: str) -> tuple[str, str]:
    """Return a model's name in the table, and the folder or hub name that it is loaded from.

    A run folder stands for the model that the run has exported to it, and that model is named after the run folder."""
    path = Path(model)
    run = path.parent if path.name == MODEL and (path.parent / CONFIG).is_file() else path
    whole = any((run / MODEL / name).is_file() for name in CONFIGS)
    return str(run).strip("/") if run.name else run.resolve().name, str(run / MODEL) if whole else model


@lru_cache(maxsize=1)
def _load(model: str, device: torch.device) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    net = load_model(model, "float32" if device.type == "cpu" else "bfloat16").to(device)  # type: ignore[arg-type]
    tokenizer = load_tokenizer(model)
    check_vocabulary(net, tokenizer)
    return net, tokenizer


def _answered(
    state: PartialState, path: Path, model: str, task: DatasetTask, settings: AnswerConfig, sampling: SamplingConfig
) -> list[dict[str, Any]]:
    """Sample and judge answers to the prompts that the answer file ``path`` lacks, and return all lines of the file, in
    the order of the prompts; the main process also appends the new ones to it.
    Each process samples at most ``sampling.batch_size`` responses at a time and receives those of all processes."""
    file = AnswerFile(path, header(model, task, settings)) if state.is_main_process else None
    (lines,) = broadcast_object_list([file.lines if file else {}])
    missing = np.array([i for i in range(task.size("train")) if i not in lines])
    if not len(missing):
        return [lines[i] for i in sorted(lines)]
    net, tokenizer = _load(model, state.device)
    world = settings.seed, state.process_index, state.num_processes
    collector = Collector(
        task, tokenizer, sampling, *world, settings.chat_template, max_prompt_tokens=settings.max_prompt_tokens
    )
    at_once = max(1, sampling.batch_size // settings.samples) * collector.world
    with tqdm(desc=task.name, unit="prompt", total=len(missing), disable=file is None) as bar:
        for start in range(0, len(missing), at_once):
            numbers = missing[start : start + at_once]
            prompts = collector.prompts("train", numbers, numbers, none_fits=True)
            rows = {int(n): {"prompt": int(n), "too_long": n not in prompts.ids} for n in numbers}
            if len(prompts.ids):
                batch = collector.collect(net, prompts, settings.samples, stream="eval", rollout=0, step=0)
                for n in prompts.ids:
                    at = np.flatnonzero(batch.prompt_ids == n)
                    tokens = [batch.responses[i].tolist() for i in at]
                    rows[int(n)] |= {
                        "lengths": batch.lengths[at].tolist(),
                        "truncated": batch.truncated[at].tolist(),
                        "rewards": batch.rewards[at].tolist(),
                        "status": batch.reward_status[at].tolist(),
                        "responses": tokenizer.batch_decode(tokens, skip_special_tokens=True),
                    }
            if file is not None:
                file.append(list(rows.values()))
            lines |= rows
            bar.update(len(rows))
    return [lines[i] for i in sorted(lines)]
