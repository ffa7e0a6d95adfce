"""Evaluation of finished models on benchmarks.

``fspo evaluate A B --benchmarks math500,aime24`` samples k responses to each prompt and writes one
table for all models: the mean accuracy (avg@k) and the probability that one of k responses is correct (pass@k), with
intervals over prompts; the share of truncated responses; and a second table of accuracy by length.
"""

from __future__ import annotations

from typing import Any, get_args

from fspo.base.command_line import CommandParser
from fspo.base.errors import UserError, unknown_name
from fspo.config import ENGINES, Dtype, SamplingConfig
from fspo.config.evaluation import AnswerConfig
from fspo.tasks.sets import BENCHMARKS

EXAMPLES = """examples:
  fspo evaluate Qwen/Qwen3-1.7B-Base out/fspo out/rloo --benchmarks math500,aime24,aime25
  fspo evaluate out/fspo --benchmarks math500@4,aime24@32 --max-new-tokens 8192
  fspo evaluate out/fspo --benchmarks aime25 --data-dir benchmarks_on_disk
  fspo evaluate out/fspo --benchmarks mine.jsonl --temperature 0 --samples 1
      where each line of mine.jsonl is such as {"prompt": "What is 2 + 3?", "answer": "5"}
  torchrun --nproc_per_node 8 -m fspo.evaluate out/fspo --benchmarks math500
The same command again goes on where it stopped, and adds models and benchmarks to the answers in --output.
"""


def build_parser() -> CommandParser:
    """Build the parser of ``fspo evaluate``."""
    p = CommandParser(
        prog="fspo evaluate",
        description="Sample k responses to each prompt of benchmarks, judge them by math-verify, and write one table "
        "for all models: avg@k and pass@k with intervals (a prompt is a cluster), the paired difference from the first "
        "model, truncation, accuracy by length. The sampler draws from the model's own distribution at the "
        "temperature, without top-p or top-k.",
        examples=EXAMPLES,
    )
    p.add_argument(
        "--benchmarks",
        type=str,
        required=True,
        help=f"names ({', '.join(BENCHMARKS)}) or jsonl/parquet files with columns prompt and answer, "
        "with commas; NAME@K asks for K responses",
    )
    p.add_argument("models", type=str, nargs="+", metavar="MODEL", help="run folder, model folder or hub name")
    p.add_argument("--data-dir", type=str | None, default=None, help="folder with NAME.jsonl, NAME.parquet or NAME/")
    p.add_argument("--output", type=str, default="out/evaluation", help="answers and tables")
    p.add_argument("--samples", type=int, default=AnswerConfig.samples, help="responses a prompt")
    p.add_argument("--temperature", type=float, default=AnswerConfig.temperature, help="0 is greedy")
    p.add_argument("--max-new-tokens", type=int, default=AnswerConfig.max_new_tokens, help="longest response")
    p.add_argument(
        "--max-prompt-tokens",
        type=int,
        default=AnswerConfig.max_prompt_tokens,
        help="longer prompts are counted, and count as wrong",
    )
    p.add_argument("--batch-size", type=int, default=64, help="responses sampled at once by a process")
    p.add_argument("--engine", type=str, default="auto", help=f"sampling engine: {', '.join(ENGINES)}")
    p.add_argument("--dtype", type=str | None, default=None, help="float32 or bfloat16 (the default on a GPU)")
    p.add_argument("--attn-implementation", type=str | None, default=None, help="as in transformers")
    p.add_argument("--chat-template", type=bool | None, default=None, help="force the chat template on or off")
    p.add_argument("--suffix", type=str | None, default=None, help="put after each prompt, instead of the benchmark's")
    p.add_argument("--seed", type=int, default=AnswerConfig.seed, help="of the noise; every model sees the same")
    p.add_argument("--texts", type=bool, default=True, help="keep the responses' text")
    p.add_argument("--cpu", type=bool, default=False, help="use the CPU even where there is an accelerator")
    return p


def main(arguments: list[str] | None = None) -> int:
    """Evaluate models on benchmarks: check the command line, sample the responses that the files of earlier responses
    lack, and write the tables of scores."""
    args = build_parser().parse_args(arguments)
    wanted = _wanted(args)
    sampling = SamplingConfig(args.temperature, args.max_new_tokens, args.engine, args.batch_size)
    if args.dtype not in (None, *get_args(Dtype)):
        raise unknown_name("dtype", args.dtype, get_args(Dtype))
    if not args.output.strip() or not all(model.strip() for model in args.models):
        raise UserError("--output or a model is empty: give a folder")
    from fspo.evaluate.run import evaluate

    evaluate(args, wanted, sampling)
    return 0


def _wanted(args: Any) -> list[tuple[str, AnswerConfig]]:
    """Return the benchmarks that the command line names, in its order, each with its sampling settings."""
    wanted = []
    for entry in filter(None, (entry.strip() for entry in args.benchmarks.split(","))):
        name, _, count = entry.partition("@")
        if count and not (count.isdecimal() and len(count) < 10):
            raise UserError(f"--benchmarks {entry}: write NAME@K with a whole number K")
        settings = AnswerConfig(
            samples=int(count) if count else args.samples,
            temperature=args.temperature,
            max_new_tokens=args.max_new_tokens,
            max_prompt_tokens=args.max_prompt_tokens,
            seed=args.seed,
            chat_template=args.chat_template,
        )
        wanted.append((name, settings))
    if not wanted:
        raise UserError(f"--benchmarks is empty: name some of {', '.join(BENCHMARKS)}, or a file")
    return wanted


if __name__ == "__main__":
    from fspo.base.errors import run_cli
    from fspo.base.processes import end_with_launcher

    end_with_launcher()
    run_cli(main)
