"""The command ``fspo check``: run the checks of the theory, print their table and write the report."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fspo.base.command_line import CommandParser, next_step
from fspo.base.errors import run_cli

if TYPE_CHECKING:  # imported only for type checkers: loading the checks would delay --help
    from proofs_check.frame import Check, Row

EXAMPLES = """methods:
  closed form     against mpmath at 50 digits, or an exact formula of another origin
  simulated       draws through the rule, judged by p-values
  attacked        an optimiser or a random search looks for a counterexample
  enumerated      sums over all responses of a small policy
  machine-proved  Coq's kernel accepts a proof

examples:
  fspo check                                     every check; about a minute
  fspo check --only T3,T7 --method simulated     some of them
  fspo check --only T1 --method "closed form"    a name of two words, in quotes
"""


def run_suite(
    out: Path, checks: Sequence[Check], seed: int = 0, jobs: int = 1, strict: bool = False, progress: bool = True
) -> tuple[list[Row], int]:
    """Run checks, write the report to the folder ``out``, and return the report's rows and the exit status. ``seed`` is
    the root of every random stream, ``jobs`` the number of processes; with ``strict`` a check that could not be run
    counts as a failure; ``progress`` shows a progress bar.

    Raise UserError if ``jobs < 1``, if ``out`` is not a folder, or if it holds a file that has the name of an output of
    ``fspo check`` but was not written by it."""
    from tqdm import tqdm

    from fspo.base.files import writing
    from proofs_check.frame import exit_status
    from proofs_check.report import check_output, write_report
    from proofs_check.run import check_jobs, run_checks

    check_jobs(jobs)
    check_output(out)
    with writing(out):  # before the checks, which take minutes
        out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with tqdm(total=len(checks), unit="check", disable=not progress, file=sys.stderr) as bar:

        def done(check: Check) -> None:
            bar.set_postfix_str(f"{check.statement} {check.method}", refresh=False)
            bar.update()

        rows = run_checks(checks, seed=seed, jobs=jobs, done=done)
    status = exit_status(rows, strict)
    write_report(rows, out, seed=seed, strict=strict, exit_status=status, seconds=time.perf_counter() - start)
    return rows, status


def build_parser() -> CommandParser:
    """Return the parser of ``fspo check``."""
    parser = CommandParser(
        prog="fspo check",
        description="Check the statements of docs/theory.md, and that false neighbours of them (near misses) fail.\n"
        "Exit status 0: all pass and every near miss fails; 1: not so; 2: bad input.",
        examples=EXAMPLES,
    )
    parser.add_argument("--only", type=str, default="all", help="statements, such as T3,T7")
    parser.add_argument("--method", type=str, default="all", help="one of the methods below")
    parser.add_argument("--list", action="store_true", help="print what each check compares, and run none")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; by default one for each core")
    parser.add_argument("--seed", type=int, default=0, help="root of every random stream")
    parser.add_argument("--strict", action="store_true", help="a check that cannot run (no Coq) counts as a failure")
    parser.add_argument("--output", "--out", type=str, default="out/proofs_check", help="folder of proofs_check.json")
    parser.add_argument("--no-progress", action="store_true", help="show no progress bar")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run the checks, print the table and return the exit status."""
    options = build_parser().parse_args(arguments)
    from fspo.base.number_checks import checked_seed
    from proofs_check.catalogue import CHECKS, TITLES
    from proofs_check.frame import select
    from proofs_check.report import format_list, format_table

    only = [name.strip() for name in options.only.split(",") if name.strip() not in ("", "all")]
    chosen = select(CHECKS, only, None if options.method in ("", "all") else options.method)
    if options.list:
        print(format_list(chosen, TITLES))
        return 0
    checked_seed("--seed", options.seed)
    out, progress = Path(options.output), not options.no_progress
    rows, status = run_suite(out, chosen, options.seed, options.jobs, options.strict, progress)
    print(format_table(rows))
    print(f"report: {out}/proofs_check.json")
    print(next_step("figures --theory", []))
    return status


if __name__ == "__main__":
    run_cli(main)
