"""The command ``fspo doctor RUN``: examine runs and print their issues."""

from __future__ import annotations

import sys
from pathlib import Path

from fspo.base.command_line import CommandParser, next_step

EXAMPLES = """examples:
  fspo doctor out/quick/runs/fspo-seed0
  fspo doctor RUN --fail-on truncation --json issues.json
  fspo doctor RUN --follow --fail-on critical || kill TRAINER
"""


def build_parser() -> CommandParser:
    """Return the parser of ``fspo doctor``."""
    p = CommandParser(
        prog="fspo doctor",
        description="Look for issues in runs, each with its evidence (numbers, intervals) and a fix.\n"
        "Exit status 0: no issue at or above --fail-on; 1: an issue; 2: no run that can be read, or no log-ratio.\n"
        "docs/doctor.md lists the checks, and what each sees; --verbose shows the answer of every check.",
        examples=EXAMPLES,
    )
    p.add_argument("runs", nargs="+", type=str, metavar="RUN", help="run folder, or another trainer's log of scalars")
    p.add_argument("--fail-on", type=str, default="warning", help="info, warning, critical, or a check's name")
    follow = "read one run as it trains, until there is an issue of --fail-on; Ctrl-C ends with what was seen so far"
    p.add_argument("--follow", action="store_true", help=follow)
    p.add_argument("--json", type=str | None, default=None, help="write all answers to this file")
    p.add_argument("--verbose", action="store_true", help="show the answers of all checks")
    return p


def main(arguments: list[str]) -> int:
    """Examine runs, print their issues and return the exit status."""
    args = build_parser().parse_args(arguments)
    from tqdm import tqdm  # imports are here so that --help does not wait for pandas and scipy

    from analysis.doctor.examine import CHECKS, examine
    from analysis.doctor.issues import Severity
    from analysis.tables.files import write_json
    from fspo.base.errors import UserError, unknown_name
    from fspo.base.files import refuse_foreign_file
    from fspo.gradlog.files import log_paths

    known = [*(severity.label for severity in Severity), *CHECKS]
    if args.fail_on not in known:
        raise UserError(f"--fail-on: {unknown_name('issue or severity', args.fail_on, known)}")
    if args.json is not None:
        refuse_foreign_file(Path(args.json), '"not_checked"', "fspo doctor")
    if args.follow:
        from analysis.live.follow import Follower

        if len(args.runs) > 1:
            raise UserError(f"--follow reads one run, and {len(args.runs)} are named: start fspo doctor for each")
        run = Path(args.runs[0])
        if not run.absolute().parent.is_dir():
            raise UserError(f"{run}: neither this run folder nor its parent exists; check the path")
        if not log_paths(run):
            print(f"{run} has no gradient log yet: waiting for its first rollout (Ctrl-C ends)", file=sys.stderr)
        diagnoses = [Follower(run).until(args.fail_on)]
    else:
        runs = tqdm(args.runs, desc="doctor", unit="run", disable=not sys.stderr.isatty())
        diagnoses = [examine(run) for run in runs]
    for diagnosis in diagnoses:
        print("\n".join(diagnosis.lines(verbose=args.verbose)))
    if args.json is not None:
        write_json(Path(args.json), [d.to_dict() for d in diagnoses])
        print(f"all answers: {args.json}")
    for on in dict.fromkeys(diagnosis.on for diagnosis in diagnoses if diagnosis.on):
        runs = [run for run, diagnosis in zip(args.runs, diagnoses, strict=True) if diagnosis.on == on]
        print(next_step("analyse", runs, "" if on == "update" else f" --on {on}"))
    if any(d.fails(args.fail_on) for d in diagnoses):
        return 1
    return 2 if any(d.blind for d in diagnoses) else 0
