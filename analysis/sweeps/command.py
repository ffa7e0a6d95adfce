"""The command ``fspo sweep RUN``: print what changes of single settings of the rule (range, drift, what happens outside
the band, ...) would have done to a run's log."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.log.ratio import UPDATE, WORDS
from fspo.base.command_line import CommandParser
from fspo.base.errors import unknown_name
from fspo.stats.bins import DEFAULT_BINS


def build_parser() -> CommandParser:
    """Return the parser of ``fspo sweep``."""
    p = CommandParser(
        prog="fspo sweep",
        description="What other ranges, dual clips, outsides, drifts and exponents would have done to a run's own log, "
        "into RUN/analysis/sweep.csv.",
        examples="examples:\n  fspo sweep out/quick/runs/none-seed0\n  fspo sweep RUN_A RUN_B --only range,outside\n",
    )
    p.add_argument("runs", nargs="+", type=str, metavar="RUN", help="run folder that holds gradlog/")
    p.add_argument("--on", type=str, default=UPDATE.on, help=f"log-ratio that the rules act on: {', '.join(WORDS)}")
    p.add_argument("--bins", type=int, default=DEFAULT_BINS, help="quantile bins of length")
    p.add_argument("--only", type=list[str], default=[], help="settings to print, of range, dual, outside, ...")
    return p


def main(arguments: Sequence[str] | None = None) -> int:
    """Write and print a table of what changes of single settings of the rule would have done to each run's log."""
    args = build_parser().parse_args(arguments)
    from analysis.log.loading import load_run  # imported here, so that --help does not wait for pandas
    from analysis.options import Options
    from analysis.run import shared_bins
    from analysis.sweeps.counterfactual import SweepRow, settings, sweep
    from analysis.tables.files import check_folder, folder_name
    from analysis.tables.typed_rows import frame
    from fspo.base.files import whole_file
    from fspo.stats.intervals import PERCENT

    for path in args.runs:
        target = Path(path) / folder_name(on=args.on) / "sweep.csv"
        check_folder(target.parent)
        run = load_run(path, on=args.on)
        if run.streamed:
            print(f"{path}: {run.sampled['text']}", file=sys.stderr)
        names = list(dict.fromkeys(s.name for s in settings(run)))
        for name in args.only:
            if name not in names:
                raise unknown_name("setting", name, names)
        table = frame(SweepRow, sweep(run, shared_bins([run], Options(bins=args.bins, on=args.on))))
        with whole_file(target) as part:
            table.to_csv(part, index=False)
        print(
            f"{path}: one setting changed at a time, first epoch; shares of all responses in the band (band) and "
            f"of those with A != 0 not clipped (update), and the LRE_2 of each, {PERCENT} intervals"
        )
        for line in [*run.notes.damage, *run.notes.warnings]:
            print(f"  {line}")
        cells = table.assign(text=[_cell(*row) for row in table[["estimate", "ci_low", "ci_high"]].to_numpy()])
        wide = cells[cells["setting"].isin(args.only or names)]
        print(wide.pivot_table("text", ["setting", "value", "rule"], "quantity", "first", sort=False).to_string())
        print(f"table: {target}")
    return 0


def _cell(value: float, low: float, high: float) -> str:
    return "-" if value != value else f"{value:.3f} [{low:.3f}, {high:.3f}]"
