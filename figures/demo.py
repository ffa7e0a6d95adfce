"""The command ``fspo demo``: simulate one healthy training run and one with a defect, analyse their logs, and write a
report with the doctor's diagnosis.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fspo.base.command_line import CommandParser
from fspo.base.errors import run_cli

SICK = "old_recomputed"
"""Defect of the sick run, a key of `analysis.doctor.planted.DEFECTS`: its trainer computes the old log-probabilities
again at each update.
"""
ROLLOUTS, SEED = 6, 0
MARK = "demo.json"
"""File that marks a folder as written by ``fspo demo``, which may then replace the folder's runs."""
FIGURES = ("acceptance_by_length", "variance_scaling")


def build_parser() -> CommandParser:
    """Return the parser of ``fspo demo``."""
    parser = CommandParser(
        prog="fspo demo",
        description="Simulate two runs, one healthy and one sick; analyse them, ask the doctor and write a report.",
        examples="examples:\n  fspo demo\n  fspo demo --output out/demo --open\n",
    )
    parser.add_argument("--output", type=str, default="out/demo", help="folder of the runs and of report.html")
    parser.add_argument("--open", action="store_true", help="open the report in a browser")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate a healthy run and one with a defect, analyse both, let the doctor examine them, write the report and
    print its path.
    """
    args = build_parser().parse_args(arguments)
    # Use one thread, because on small arrays more threads would wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import json
    import shutil

    from analysis.doctor.planted import DEFECTS, Plan, write_run
    from analysis.options import Options
    from analysis.run import analyse_runs
    from figures.page.command import show, write
    from fspo.base.files import refuse_foreign, write_text
    from fspo.rules import COMPARED

    folder = Path(args.output)
    refuse_foreign(folder, {MARK: '"defect"'}, "fspo demo", "--output")
    write_text(folder / MARK, json.dumps({"seed": SEED, "defect": SICK}) + "\n")
    runs = [folder / "healthy", folder / "sick"]
    for run, plan in zip(runs, (Plan(), DEFECTS[SICK]), strict=True):
        shutil.rmtree(run, ignore_errors=True)
        write_run(run, replace(plan, rollouts=ROLLOUTS), SEED)
    analyse_runs(runs, Options(rules=COMPARED, targets=(0.85, 0.95), draws=2))
    page = folder / "report.html"
    print(*write(runs, page, FIGURES), f"report: {page}", sep="\n")
    print(f"next: fspo doctor {runs[1]} (evidence and cure); fspo import --help (a log of your own)")
    if args.open:
        show(page)
    return 0


if __name__ == "__main__":
    run_cli(main)
