"""The command ``fspo sweep RUN``: print what changes of single settings of the rule (range, drift, what happens outside
the band, ...) would have done to a run's log."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.log.partition import LENGTH
from analysis.log.ratio import UPDATE, WORDS
from fspo.base.command_line import CommandParser, next_step
from fspo.base.errors import unknown_name
from fspo.stats.bins import DEFAULT_BINS

if TYPE_CHECKING:
    import pandas as pd


def build_parser() -> CommandParser:
    """Return the parser of ``fspo sweep``."""
    p = CommandParser(
        prog="fspo sweep",
        description="What other ranges, drifts, exponents, dual clips, outsides, aggregations, group sizes and "
        "minibatches would have done to a run's own log, into RUN/analysis/sweep.csv.",
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
    from tqdm import tqdm  # imported here, so that --help does not wait for pandas

    from analysis.log.loading import load_run
    from analysis.options import Options
    from analysis.run import shared_bins
    from analysis.sweeps.counterfactual import SweepRow, settings, sweep
    from analysis.tables.columns import frame
    from analysis.tables.files import check_folder, folder_name, options_of
    from fspo.base.files import whole_file
    from fspo.stats.intervals import PERCENT

    for path in args.runs:
        target = Path(path) / folder_name(on=args.on) / "sweep.csv"
        check_folder(target.parent)
        run = load_run(path, on=args.on)
        if run.streamed:
            print(f"{path}: {run.sampled['text']}", file=sys.stderr)
        bins = shared_bins([run], Options(bins=args.bins, on=args.on))
        names = list(dict.fromkeys(s.name for s in settings(run)))
        for name in args.only:
            if name not in names:
                raise unknown_name("setting", name, names)
        with tqdm(desc=f"sweep {run.name}", unit="part", disable=not sys.stderr.isatty()) as bar:

            def progress(part: str, bar: tqdm = bar) -> None:
                bar.set_postfix_str(part)
                bar.update()

            rows, of_reading = sweep(run, bins, progress)
        table, notes = frame(SweepRow, rows), run.notes + of_reading
        with whole_file(target) as part:
            table.to_csv(part, index=False)
        print(f"{path}: one setting changed at a time, first uses; acceptances and LRE, {PERCENT} intervals")
        for line in [*notes.damage, *notes.warnings]:
            print(f"  {line}")
        print(format_sweep(table, args.only or names))
        print(f"table: {target}")
    drawn = f"{options_of(LENGTH, args.on)} --only sensitivity_range,sensitivity_settings"
    print(next_step("figures", args.runs, drawn))
    return 0


def format_sweep(table: pd.DataFrame, names: Sequence[str]) -> str:
    """Return the table of ``fspo sweep`` as text: for each setting that was tried on the log (another range, another
    drift, ...) a line with estimates and intervals."""
    quantities = list(dict.fromkeys(table["quantity"]))
    lines = ["  ".join(f"{word:24}" for word in ("setting", "value", "rule", *quantities)).rstrip()]
    for key, part in table.groupby(["setting", "value", "rule"], sort=False):
        setting, value, rule = key if isinstance(key, tuple) else (key, "", "")
        if setting not in names:
            continue
        cells = {row["quantity"]: _cell(row) for row in part.to_dict("records")}
        words = [str(setting), str(value), str(rule), *(cells.get(q, "") for q in quantities)]
        lines.append("  ".join(f"{word:24}" for word in words).rstrip())
    return "\n".join(lines)


def _cell(row: dict[Any, Any]) -> str:
    if not np.isfinite(row["estimate"]):
        return "-"
    return f"{row['estimate']:.3f} [{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
