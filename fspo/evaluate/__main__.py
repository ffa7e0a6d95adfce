"""Evaluation of finished models on benchmarks.

``python -m fspo.evaluate --benchmarks math500,aime24 --models A B`` samples k responses a prompt and writes one table
for all models: avg@k and pass@k with intervals over prompts, truncation, accuracy by length.
"""

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

from fspo.base.command_line import CommandParser
from fspo.base.errors import UserError
from fspo.base.files import whole_file, write_text
from fspo.evaluate.accuracy import Answers, markdown, results, results_by_length
from fspo.evaluate.benchmarks import AnswerFile, Settings, answer, answers, header, load_benchmark
from fspo.gradlog.run_folder import CONFIG, MODEL
from fspo.models.load import check_vocabulary, load_model, load_tokenizer
from fspo.rollouts.collect import Collector
from fspo.sampling.sample import ENGINES, SamplingConfig
from fspo.stats.intervals import PERCENT
from fspo.tasks.dataset import DatasetTask
from fspo.tasks.sets import BENCHMARKS

EXAMPLES = """examples:
  python -m fspo.evaluate --benchmarks math500,aime24,aime25 --models Qwen/Qwen3-1.7B-Base out/fspo out/rloo
  python -m fspo.evaluate --benchmarks math500@4,aime24@32 --models out/fspo --max_new_tokens 8192
  python -m fspo.evaluate --benchmarks aime25 --models out/fspo --data-dir benchmarks_on_disk
  python -m fspo.evaluate --benchmarks mine.jsonl --models out/fspo --temperature 0 --samples 1
  torchrun --nproc_per_node 8 -m fspo.evaluate --benchmarks math500 --models out/fspo
The same command again goes on where it stopped, and adds models and benchmarks to the answers in --output.
"""


def build_parser() -> CommandParser:
    """The command line."""
    p = CommandParser(
        prog="python -m fspo.evaluate",
        description="Sample k responses to each prompt of benchmarks, judge them by math-verify, and write one table "
        f"for all models: avg@k and pass@k with {PERCENT} intervals (a prompt is a cluster), the paired difference "
        "from the first model, truncation, accuracy by length. The sampler draws from the model's own distribution "
        "at the "
        "temperature, without top-p or top-k.",
        examples=EXAMPLES,
    )
    p.add_argument(
        "--benchmarks",
        type=str,
        required=True,
        help=f"names ({', '.join(BENCHMARKS)}) or jsonl/parquet files, with commas; NAME@K asks for K responses",
    )
    p.add_argument("--models", type=str, nargs="+", required=True, help="run folders, model folders or hub names")
    p.add_argument("--data-dir", type=str | None, default=None, help="folder with NAME.jsonl, NAME.parquet or NAME/")
    p.add_argument("--output", type=str, default="out/evaluation", help="answers and tables")
    p.add_argument("--samples", type=int, default=8, help="responses a prompt")
    p.add_argument("--temperature", type=float, default=1.0, help="0 is greedy")
    p.add_argument("--max_new_tokens", type=int, default=4096, help="longest response")
    p.add_argument("--max_prompt_tokens", type=int, default=2048, help="longer prompts are counted, and count as wrong")
    p.add_argument("--batch_size", type=int, default=64, help="responses sampled at once by a process")
    p.add_argument("--engine", type=str, default="auto", help=f"sampling engine: {', '.join(ENGINES)}")
    p.add_argument("--dtype", type=str | None, default=None, help="float32 or bfloat16 (the default on a GPU)")
    p.add_argument("--attn_implementation", type=str | None, default=None, help="as in transformers")
    p.add_argument("--chat_template", type=bool | None, default=None, help="force the chat template on or off")
    p.add_argument("--suffix", type=str | None, default=None, help="put after each prompt, instead of the benchmark's")
    p.add_argument("--seed", type=int, default=0, help="of the noise; every model sees the same")
    p.add_argument("--texts", type=bool, default=True, help="keep the responses' text")
    p.add_argument("--cpu", type=bool, default=False, help="use the CPU even where there is an accelerator")
    return p


def main(arguments: list[str] | None = None) -> int:
    """Answer what is missing, then write and print the tables."""
    args = build_parser().parse_args(arguments)
    state = PartialState(cpu=args.cpu or not torch.cuda.is_available())
    output = Path(args.output)
    wanted = _wanted(args)
    labels = {model: _label(model) for model in dict.fromkeys(args.models)}
    if len(set(labels.values())) < len(labels):
        raise UserError("two of --models have the same name: give their folders different names")
    tasks = _tasks(args, [name for name, _ in wanted])
    try:
        found: dict[tuple[str, str], Answers] = {}
        for model, label in labels.items():
            loaded: list[Any] = []
            for (_, settings), task in zip(wanted, tasks, strict=True):
                path = output / "answers" / re.sub(r"[^\w.-]+", "_", label) / f"{task.name}.jsonl"
                lines = _answered(args, state, path, model, loaded, task, settings, f"{label} {task.name}")
                found[task.name, label] = answers(lines, settings.samples)
    finally:
        for task in tasks:
            task.close()
    if state.is_main_process:
        _write(
            output, {key: found[key] for key in sorted(found, key=lambda key: [t.name for t in tasks].index(key[0]))}
        )
    return 0


def _wanted(args: Any) -> list[tuple[str, Settings]]:
    """Benchmarks in the order asked for, with how each is answered."""
    wanted = []
    for entry in filter(None, (entry.strip() for entry in args.benchmarks.split(","))):
        name, _, count = entry.partition("@")
        if count and not count.isdigit():
            raise UserError(f"--benchmarks {entry}: write NAME@K with a whole number K")
        settings = Settings(
            samples=int(count) if count else args.samples,
            temperature=args.temperature,
            max_new_tokens=args.max_new_tokens,
            max_prompt_tokens=args.max_prompt_tokens,
            seed=args.seed,
            chat_template=args.chat_template,
        )
        for option, least in (("samples", 1), ("max_prompt_tokens", 1), ("seed", 0)):
            if getattr(settings, option) < least:
                raise UserError(f"{option} is {getattr(settings, option)}: use {least} or more")
        wanted.append((name, settings))
    if not wanted:
        raise UserError(f"--benchmarks is empty: name some of {', '.join(BENCHMARKS)}, or a file")
    return wanted


def _tasks(args: Any, names: list[str]) -> list[DatasetTask]:
    options = {} if args.suffix is None else {"suffix": args.suffix}
    tasks = [load_benchmark(name, Path(args.data_dir) if args.data_dir else None, options) for name in names]
    for task in tasks:
        task.name = Path(task.name).stem
    if len({task.name for task in tasks}) < len(tasks):
        raise UserError("two of --benchmarks have the same name: give their files different names")
    return tasks


def _label(model: str) -> str:
    """Name of a model in the table: a run folder stands for the model that it exported."""
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
    settings: Settings,
    title: str,
) -> list[dict[str, Any]]:
    """Lines of one answer file, after answering what it lacked; the model is loaded when the first is missing."""
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
    sampling = SamplingConfig(settings.temperature, settings.max_new_tokens, args.engine, args.batch_size)
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
    """A list whose content, set by the main process in the block, every process has afterwards; errors too."""
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


if __name__ == "__main__":
    from fspo.base.errors import run_cli

    run_cli(main)
