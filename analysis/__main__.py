"""The command ``fspo analyse RUN [RUN ...]``.

``python -m analysis`` does the same, and also runs calibrate, doctor, import or sweep if its first argument names one.
"""

from __future__ import annotations

import sys
from importlib import import_module

from analysis.log.loading import IN_MEMORY
from analysis.log.partition import find_partition
from analysis.log.ratio import WORDS, known_ratio
from analysis.options import Options
from analysis.rules.evaluate import BANDS, TARGETS, candidates
from fspo.base.command_line import CommandParser, next_step
from fspo.base.errors import run_cli
from fspo.stats.bins import DEFAULT_BINS

COMMANDS = {
    "calibrate": "analysis.rules.calibrate",
    "doctor": "analysis.doctor.command",
    "import": "analysis.importing.command",
    "sweep": "analysis.sweeps.command",
}
"""Other commands of this package, each with its module. The first argument of ``python -m analysis`` names a command
or a run folder; a folder that is called like a command is given as, say, ./import."""
EXAMPLES = """examples:
  fspo analyse out/quick/runs/fspo-seed0
  fspo analyse RUN_A RUN_B RUN_C   # one set of bins for all
  fspo analyse RUN --edges 1,16,64,257 --rules rloo,gspo,fspo --targets 0.9
  fspo analyse RUN --by entropy   # or any other column of numbers: rollout, reward, user.COLUMN
  fspo analyse RUN --on engine   # the mismatch between sampler and trainer, and what corrections of it mask
  fspo sweep RUN   # other ranges, drifts, dual clips ... on the same log
  fspo calibrate RUN   # ranges that give every rule an equal clip rate, from an unclipped run
  fspo import --help   # read the logs of TRL, verl and others, or a table of responses
  fspo doctor --help   # what is wrong with a run, with evidence and a fix
"""


def build_parser() -> CommandParser:
    """Return the parser of ``fspo analyse``."""
    p = CommandParser(
        prog="fspo analyse",
        description="Diagnose run folders by response length: tables in RUN/analysis, one set of bins for all runs.\n"
        "Exit status 0; 1: a log fails its integrity check (the tables are written); 2: bad input.",
        examples=EXAMPLES,
    )
    p.add_argument("runs", nargs="+", type=str, metavar="RUN", help="run folder that holds gradlog/")
    p.add_argument(
        "--by", type=str, default=Options.by, help="column of the log to bin by: length, entropy, user.COLUMN, ..."
    )
    p.add_argument(
        "--on",
        type=str,
        default=Options.on,
        help=f"log-ratio to analyse: {', '.join(WORDS)}; but for {Options.on} the tables go to RUN/analysis-on-X",
    )
    p.add_argument("--bins", type=int, default=DEFAULT_BINS, help="quantile bins")
    p.add_argument("--edges", type=list[float] | None, default=None, help="edges of the bins (tokens), instead")
    p.add_argument("--window", type=int, default=Options.window, help="rollouts that share a calibration")
    p.add_argument(
        "--rules",
        type=list[str] | None,
        default=None,
        help=f"bands to evaluate, all by default: {', '.join(BANDS)}; on engine and behaviour "
        + ", ".join(candidates("engine")),
    )
    p.add_argument(
        "--targets",
        type=list[float],
        default=list(TARGETS),
        help="acceptances (1 - clip rate) at which rules are compared",
    )
    p.add_argument("--draws", type=int, default=Options.draws, help="draws of the random-drop control")
    p.add_argument("--seed", type=int, default=Options.seed, help="seed of the control")
    p.add_argument(
        "--workers",
        type=str,
        default=None,
        help=f"share a log of more than {IN_MEMORY:,} rows among Dask workers (extra cluster): their number on this "
        "machine, or a scheduler's address; the tables are the same to rounding",
    )
    return p


def main(arguments: list[str] | None = None) -> int:
    """Run the command of ``COMMANDS`` that the first argument names, or analyse run folders; return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in COMMANDS:
        return import_module(COMMANDS[arguments[0]]).main(arguments[1:])
    return analyse_command(arguments)


def analyse_command(arguments: list[str] | None = None) -> int:
    """Analyse run folders, print who is clipped and return the exit status."""
    args = build_parser().parse_args(arguments)
    from tqdm import tqdm  # imported here, as pandas is by the others, so that --help does not wait for them

    from analysis.run import analyse_runs
    from analysis.tables.files import COLUMNS, folder_name, options_of, read_analysis
    from analysis.tables.printed import compared, printed

    options = Options(
        bins=args.bins,
        edges=None if args.edges is None else tuple(args.edges),
        window=args.window,
        rules=None if args.rules is None else tuple(args.rules),
        targets=tuple(args.targets),
        draws=args.draws,
        seed=args.seed,
        by=args.by,
        on=args.on,
    )
    on, partition = known_ratio(args.on), find_partition(args.by)
    with tqdm(
        total=4 * len(args.runs),
        desc="analysis",
        unit="part",
        bar_format="{l_bar}{bar}| {elapsed}{postfix}",
        disable=not sys.stderr.isatty(),
    ) as bar:

        def progress(part: str, share: float = 1.0) -> None:
            bar.set_postfix_str(part)
            bar.update(share)

        summaries = analyse_runs(args.runs, options, progress, args.workers)
    for path, summary in summaries.items():
        passed = summary["integrity"]["pass"]
        state = "columns of the log agree" if passed else "INTEGRITY CHECK OF THE LOG FAILED"
        state = "no scores logged, so no cosines" if passed is None else state
        used, which = ("rows_first_use", "in the first epoch")
        if on == Options.on:
            used, which = ("rows_after_an_update", "after an update")
        counts = summary["counts"]
        print(f"{path}: {counts[used]} of {counts['rows']} rows ({which}), rule {summary['rule']}, {state}")
        for line in [*summary["damage"], *summary["warnings"]]:
            print(f"  {line}")
    analyses = {str(path): read_analysis(path, partition, on).tables for path in summaries}
    if len(analyses) == 1:
        lines = printed(next(iter(analyses.values())), partition, on)
    else:
        lines = [*compared(analyses, partition, on), "other rules: fspo analyse RUN, of one run"]
    print(*lines, sep="\n")
    where = ", ".join(str(path / folder_name(partition, on)) for path in summaries)
    print(f"tables: {where} ({COLUMNS} says what each column is)")
    view = options_of(partition, on)
    print(next_step("figures" if view else "report", summaries, view))
    return 1 if any(summary["integrity"]["pass"] is False for summary in summaries.values()) else 0


if __name__ == "__main__":
    run_cli(main)
