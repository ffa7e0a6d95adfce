"""``fspo plan --config FILE``: print the memory that a run needs on each GPU, and its token counts."""

from __future__ import annotations

import json
from pathlib import Path

from jsonargparse import ArgumentParser

from fspo.base.command_line import next_step
from fspo.base.errors import UserError
from fspo.base.files import write_text
from fspo.base.options import make_parser, parse
from fspo.config.machine import PlanConfig

EXAMPLES = """Plan a run: memory of each GPU by phase of a rollout, and how many tokens a step has. No weights are
loaded and nothing is computed: the training code runs on tensors without storage. Exits with 1 if it does not fit.

examples:
  fspo plan --config fspo/presets/qwen3-8b.yaml
  fspo plan --config fspo/presets/qwen3-8b.yaml --machine.gpus 4 --machine.memory 40
  fspo plan --config fspo/presets/qwen3-1.7b.yaml --machine.gpus 1 --json plan.json
  fspo plan --model.name-or-path FOLDER --batch.tokens 32768 --machine.response-tokens 1500
"""


def build_parser() -> ArgumentParser:
    """Return the parser of ``fspo plan``."""
    return make_parser(PlanConfig, "fspo plan", EXAMPLES)


def main(args: list[str] | None = None) -> int:
    """Print the memory and the token counts of a planned run; return 0 if the run fits the machine, else 1."""
    wanted = parse(PlanConfig, args, build_parser())
    if wanted.json and Path(wanted.json).is_dir():
        raise UserError(f"--json {wanted.json} is a folder: name a file in it")
    from fspo.plan.report import report

    text, values, fits = report(wanted.training(), wanted.machine)
    print(text)
    if wanted.json:
        write_text(Path(wanted.json), json.dumps(values, indent=1) + "\n")
    if fits:
        print(next_step("train", [], " with the same options, but for --machine.* and --json"))
    return 0 if fits else 1


if __name__ == "__main__":
    from fspo.base.errors import run_cli

    run_cli(main)
