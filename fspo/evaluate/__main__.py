"""Evaluation of finished models on benchmarks.

``fspo evaluate RUN --benchmarks math500,aime24`` samples k responses to each prompt and writes a table: the mean
accuracy (avg@k) and the probability that one of k responses is correct (pass@k), with intervals over prompts."""

from __future__ import annotations

from dataclasses import fields

from fspo.base.command_line import CommandParser
from fspo.base.errors import UserError, run_cli
from fspo.base.processes import end_with_launcher
from fspo.config import SamplingConfig
from fspo.config.evaluation import AnswerConfig
from fspo.tasks.known_sets import BENCHMARKS

EXAMPLES = """examples:
  fspo evaluate out/fspo --benchmarks aime24,aime25 --samples 32 --max-new-tokens 8192
  fspo evaluate Qwen/Qwen3-1.7B-Base out/fspo out/rloo --benchmarks math500
  fspo evaluate out/fspo --benchmarks saved/aime25.jsonl
  fspo evaluate out/fspo --benchmarks mine.jsonl --temperature 0 --samples 1
      where each line of mine.jsonl is such as {"prompt": "What is 2 + 3?", "answer": "5"}
  torchrun --nproc_per_node 8 -m fspo.evaluate out/fspo --benchmarks math500
The same command again goes on where it stopped.
"""


def build_parser() -> CommandParser:
    """Build the parser of ``fspo evaluate``."""
    p = CommandParser(
        prog="fspo evaluate",
        description="Sample k responses to each prompt of benchmarks, judge them by math-verify, and write a table of "
        "avg@k and pass@k with intervals (a prompt is a cluster). The sampler draws from the model's own distribution "
        "at the temperature, without top-p or top-k.",
        examples=EXAMPLES,
    )
    p.add_argument(
        "--benchmarks",
        type=str,
        required=True,
        help=f"names ({', '.join(BENCHMARKS)}) or jsonl/parquet files with columns prompt and answer, with commas",
    )
    p.add_argument("models", type=str, nargs="+", metavar="RUN", help="run folder, model folder or hub name")
    p.add_argument("--output", type=str, default="out/evaluation", help="answers and table")
    p.add_class_arguments(AnswerConfig, None)
    p.add_argument("--batch-size", type=int, default=64, help="responses sampled at once by a process")
    return p


def main(arguments: list[str] | None = None) -> int:
    """Evaluate models on benchmarks: sample the responses that the files of earlier responses lack, and write the
    table."""
    args = build_parser().parse_args(arguments)
    names = [name.strip() for name in args.benchmarks.split(",") if name.strip()]
    if not names:
        raise UserError(f"--benchmarks is empty: name some of {', '.join(BENCHMARKS)}, or a file")
    settings = AnswerConfig(**{f.name: getattr(args, f.name) for f in fields(AnswerConfig)})
    sampling = SamplingConfig(args.temperature, args.max_new_tokens, batch_size=args.batch_size)
    if not args.output.strip() or not all(model.strip() for model in args.models):
        raise UserError("--output or a model is empty: give a folder")
    from fspo.evaluate.run import evaluate

    evaluate(args, names, settings, sampling)
    return 0


if __name__ == "__main__":
    end_with_launcher()
    run_cli(main)
