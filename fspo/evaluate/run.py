"""Evaluation of models on benchmarks: sample and judge the answers that the answer files lack, then write tables."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from tqdm.auto import tqdm

from fspo.base.command_line import next_step
from fspo.base.errors import UserError
from fspo.base.files import whole_file, write_text
from fspo.config import SamplingConfig
from fspo.config.evaluation import AnswerConfig
from fspo.evaluate.accuracy import Answers, markdown, results, results_by_length
from fspo.evaluate.benchmarks import AnswerFile, answer, answers, header, load_benchmark
from fspo.gradlog.run_folder import CONFIG, MODEL
from fspo.models.load import check_vocabulary, load_model, load_tokenizer
from fspo.rollouts.collect import Collector
from fspo.tasks.dataset import DatasetTask


def evaluate(args: Any, wanted: list[tuple[str, AnswerConfig]], sampling: SamplingConfig) -> None:
    """Sample the answers that the answer files lack, then write and print the tables.

    Parameters
    ----------
    args : namespace
        Parsed command line of ``fspo evaluate``.
    wanted : list of (benchmark, AnswerConfig)
        Benchmarks, each with the settings that its answer file records.
    sampling : SamplingConfig
        Settings of the sampler, the same for all benchmarks (temperature, length limit, engine, batch size).
    """
    state = PartialState(cpu=args.cpu or not torch.cuda.is_available())
    output = Path(args.output)
    labels = {model: _label(model) for model in dict.fromkeys(args.models)}
    if len(set(labels.values())) < len(labels):
        raise UserError("two models have the same name: give their folders different names")
    tasks = _tasks(args, [name for name, _ in wanted])
    try:
        found: dict[tuple[str, str], Answers] = {}
        for model, label in labels.items():
            loaded: list[Any] = []
            for (_, settings), task in zip(wanted, tasks, strict=True):
                path = output / "answers" / re.sub(r"[^\w.-]+", "_", label) / f"{task.name}.jsonl"
                lines = _answered(args, state, path, model, loaded, task, settings, sampling, f"{label} {task.name}")
                found[task.name, label] = answers(lines, settings.samples)
    finally:
        for task in tasks:
            task.close()
    if state.is_main_process:
        _write(
            output, {key: found[key] for key in sorted(found, key=lambda key: [t.name for t in tasks].index(key[0]))}
        )


def _tasks(args: Any, names: list[str]) -> list[DatasetTask]:
    options = {} if args.suffix is None else {"suffix": args.suffix}
    tasks = [load_benchmark(name, Path(args.data_dir) if args.data_dir else None, options) for name in names]
    for task in tasks:
        task.name = Path(task.name).stem
    if len({task.name for task in tasks}) < len(tasks):
        raise UserError("two of --benchmarks have the same name: give their files different names")
    return tasks


def _label(model: str) -> str:
    """Return the name of a model in the tables; a model that a run has exported is named after the run folder."""
    path = Path(model)
    if path.name == MODEL and (path.parent / CONFIG).is_file():
        path = path.parent
    return str(path).strip("/") if path.name else path.resolve().name


def _source(model: str) -> str:
    exported = Path(model) / MODEL
    whole = any((exported / name).is_file() for name in ("config.json", "adapter_config.json"))
    return str(exported) if whole else model


def _answered(
    args: Any,
    state: PartialState,
    path: Path,
    model: str,
    loaded: list[Any],
    task: DatasetTask,
    settings: AnswerConfig,
    sampling: SamplingConfig,
    title: str,
) -> list[dict[str, Any]]:
    """Sample and judge answers to the prompts that an answer file lacks, and return all its lines.

    The model is loaded only if an answer is missing, and kept in ``loaded`` for the next benchmark.
    """
    with _first_process(state) as shared:
        if state.is_main_process:
            file = AnswerFile(path, header(_source(model), task, settings))
            shared[0] = file.lines
    lines: dict[int, dict[str, Any]] = shared[0]
    missing = [i for i in range(task.size("train")) if i not in lines]
    if not missing:
        return [lines[i] for i in sorted(lines)]
    if not loaded:
        dtype = args.dtype or ("float32" if str(state.device) == "cpu" else "bfloat16")
        net = load_model(_source(model), dtype, attn_implementation=args.attn_implementation).to(state.device)  # type: ignore[arg-type]
        tokenizer = load_tokenizer(_source(model))
        check_vocabulary(net, tokenizer)
        loaded += [net, tokenizer]
    net, tokenizer = loaded
    collector = Collector(
        task,
        tokenizer,
        sampling,
        settings.seed,
        rank=state.process_index,
        world=state.num_processes,
        chat_template=settings.chat_template,
        max_prompt_tokens=settings.max_prompt_tokens,
    )
    total = task.size("train")
    with tqdm(total=total, initial=len(lines), desc=title, unit="prompt", disable=not state.is_main_process) as bar:

        def keep(rows: list[dict[str, Any]]) -> None:
            if state.is_main_process:
                file.append(rows)
            lines.update({row["prompt"]: row for row in rows})
            bar.update(len(rows))

        answer(net, collector, missing, settings, args.batch_size, keep, texts=args.texts)
    return [lines[i] for i in sorted(lines)]


@contextmanager
def _first_process(state: PartialState) -> Iterator[list[Any]]:
    """Run a ``with`` block, then send what the main process put into the yielded list to every process.

    A UserError that the block raises in the main process is raised on every process.
    """
    shared: list[Any] = [None, None]
    try:
        yield shared
    except UserError as error:
        shared[1] = str(error)
    if state.num_processes > 1:
        broadcast_object_list(shared)
    if shared[1] is not None:
        raise UserError(shared[1])


def _write(output: Path, found: dict[tuple[str, str], Answers]) -> None:
    rows = results(found)
    for name, table in (("results", rows), ("length_bins", results_by_length(found))):
        with whole_file(output / f"{name}.csv") as part:
            pd.DataFrame(table).to_csv(part, index=False)
    text = markdown(rows)
    write_text(output / "results.md", text)
    print(text, end="")
    print(f"tables: {output}/results.csv, results.md, length_bins.csv; answers: {output}/answers", file=sys.stderr)
    print(next_step("evaluate", ["MODEL"], " --benchmarks NAMES adds models and benchmarks to them"), file=sys.stderr)
