"""``fspo plan --config FILE``: print the memory that a run needs on each GPU, and whether it fits."""

from __future__ import annotations

from fspo.base.command_line import CommandParser, next_step
from fspo.base.errors import run_cli
from fspo.base.options import make_parser, parse
from fspo.config.machine import PlanConfig

EXAMPLES = """Plan a run: memory of each GPU while it samples and while it updates, and what to change if it does not
fit. No weights are loaded and nothing is computed: the training code runs on tensors without storage. Exits with 1 if
the run does not fit.

examples:
  fspo plan --config fspo/presets/qwen3-8b.yaml
  fspo plan --config fspo/presets/qwen3-8b.yaml --machine.gpus 4 --machine.memory 40
  fspo plan --model.name-or-path FOLDER --batch.tokens 32768 --machine.device cpu --machine.gpus 1
"""


def build_parser() -> CommandParser:
    """Return the parser of ``fspo plan``."""
    return make_parser(PlanConfig, "fspo plan", EXAMPLES)


def main(args: list[str] | None = None) -> int:
    """Print the memory of a planned run; return 0 if the run fits the machine, else 1."""
    wanted = parse(PlanConfig, args, build_parser())
    from fspo.plan.report import report

    text, fits = report(wanted.training(), wanted.machine)
    print(text)
    if fits:
        print(next_step("train", [], " with the same options, but for --machine.*"))
    return 0 if fits else 1


if __name__ == "__main__":
    run_cli(main)
