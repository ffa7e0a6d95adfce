"""The command ``fspo import SOURCE``: turn another trainer's log into a run folder."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import get_args

from fspo.base.command_line import CommandParser
from fspo.rules import PRESETS, Aggregation

EXAMPLES = """examples:
  fspo import trl-output                        # trainer_state.json, completions/
  fspo import rollouts.parquet --rule gspo --updates-per-rollout 8
  fspo import log.csv --columns log_ratio=my_S,reward=accuracy --output out/theirs
  fspo import RUN/token_exports --output out/prime # prime-rl; then: fspo analyse out/prime --on behaviour
"""


def build_parser() -> CommandParser:
    """Return the parser of ``fspo import``."""
    p = CommandParser(
        prog="fspo import",
        description="Make a run folder (a gradient log without sketches, and metrics.jsonl) from another trainer's\n"
        "logs: TRL's, verl's, NeMo-RL's, slime's and others', or any table (Parquet, CSV, JSON lines) with one row a\n"
        "response. Log-probabilities, one a token or summed, make S, new less old, and D + E, old less\n"
        "sampler. The site that make docs builds lists the names of columns that it knows (page Import).",
        examples=EXAMPLES,
    )
    p.add_argument("source", type=str, metavar="SOURCE", help="a trainer's output folder, or one file")
    p.add_argument("--output", "--out", type=str | None, default=None, help="run folder (here, SOURCE-imported)")
    p.add_argument("--columns", type=dict[str, str], default={}, help="our column names to the table's")
    p.add_argument("--rule", type=str | None, default=None, help=f"the rule that trained: {', '.join(PRESETS)}")
    p.add_argument("--range-lo", type=float | None, default=None, help="its lower range, if not the preset's")
    p.add_argument("--range-hi", type=float | None, default=None, help="its upper range, if not the preset's")
    means = f"how the loss was averaged: {', '.join(get_args(Aggregation))}"
    p.add_argument("--aggregation", type=str | None, default=None, help=means)
    p.add_argument("--updates-per-rollout", type=int, default=1, help="optimizer updates between two rollouts")
    p.add_argument("--group-size", type=int | None, default=None, help="successive responses of one prompt")
    return p


def main(arguments: list[str]) -> int:
    """Import the log that the command line ``arguments`` names, print what was used and what is missing; return 0."""
    args = build_parser().parse_args(arguments)
    from analysis.importing.run import ImportOptions, import_run  # here, so that --help does not wait for pyarrow

    source = Path(args.source)
    stem = source.resolve().name if source.is_dir() else source.name.split(".")[0]
    options = ImportOptions(**{one.name: getattr(args, one.name) for one in fields(ImportOptions)})
    report = import_run(source, f"{stem}-imported" if args.output is None else args.output, options)
    print("\n".join(report.lines()))
    return 0
