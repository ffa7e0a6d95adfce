"""The command ``fspo maps``: write the fairness map, the price map, the table of bands that follow a target, and the
curves of the figures of the theory.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fspo.base.command_line import CommandParser, next_step
from fspo.base.errors import run_cli, unknown_name
from proofs_check.maps import PARTS

MOST_DRAWS = 10_000_000
"""Most responses of each length that the command simulates; more would not fit into memory."""
CURVES, ONLINE = "curves", "online"
"""Names on the command line of two parts of the output: the curves of the figures of the theory, and the table of bands
that follow a target.
"""
EXAMPLES = """examples:
  fspo maps
      every table, in out/proofs_check
  fspo maps --only price --jobs 2
  fspo maps --only curves
      acceptance laws, LRE against drift error, tightness of T7, Berry-Esseen
  fspo maps --only online
      bands that follow a target, under every log-ratio model: adaptive_models.csv, the table in docs/theory.md
  fspo maps --only fairness --draws 100000
      tighter simulated intervals
"""


def build_parser() -> CommandParser:
    """Return the parser of ``fspo maps``."""
    parser = CommandParser(
        prog="fspo maps",
        description="Map where each rule is fair and what its clipping costs; write tidy CSV tables.",
        examples=EXAMPLES,
    )
    parser.add_argument("--output", "--out", type=Path, default=Path("out/proofs_check"), help="folder for the tables")
    parser.add_argument(
        "--only",
        default="",
        help=f"parts, separated by commas, of {', '.join((*PARTS, CURVES, ONLINE))}; empty for all",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; all cores unless given")
    parser.add_argument("--seed", type=int, default=0, help="root of every random stream")
    parser.add_argument("--draws", type=int, default=20_000, help="responses of each length in simulated rows; 0: none")
    parser.add_argument("--no-progress", action="store_true", help="show no progress bar")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``fspo maps``: build the chosen tables of the theory, write them, print their paths and return the exit
    status.
    """
    options = build_parser().parse_args(arguments)
    # Imported here, so that --help needs neither pandas nor scipy.
    from fspo.base.arguments import checked_count, checked_seed
    from proofs_check.maps import curves, online
    from proofs_check.maps.build import build_tables
    from proofs_check.maps.output import check_output
    from proofs_check.maps.tables import write_table
    from proofs_check.run import MOST_JOBS

    check_output(options.output)
    checked_seed("--seed", options.seed)
    checked_count("--jobs", options.jobs, 1, MOST_JOBS, "the number of processes")
    if options.draws:
        checked_count("--draws", options.draws, 2, MOST_DRAWS, "or 0 for closed forms alone")
    known = (*PARTS, CURVES, ONLINE)
    only = [name.strip() for name in options.only.split(",") if name.strip()] or known
    for name in only:
        if name not in known:
            raise unknown_name("part", name, known)
    parts = [name for name in only if name in PARTS]
    tables = build_tables(parts, options.seed, options.draws, options.jobs, not options.no_progress) if parts else {}
    files = [write_table(options.output, name, frame) for name, frame in tables.items()]
    if CURVES in only:
        files += curves.write(options.output, options.seed, options.draws, not options.no_progress)
    if ONLINE in only:
        found = online.write(options.output, options.seed, options.draws, not options.no_progress)
        files += [] if found is None else [found]
    print(f"tables: {options.output}/ {', '.join(file.name for file in files)} (docs/tables.md explains the columns)")
    print(next_step("figures --theory", [options.output]))
    return 0


if __name__ == "__main__":
    run_cli(main)
