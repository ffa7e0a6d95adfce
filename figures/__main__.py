"""``python -m figures RUN [RUN ...] --output DIR --width WIDTH``: publication figures from analysis tables."""

from __future__ import annotations

import json
from pathlib import Path

from figures import MODULES, Drawn, draw_all
from fspo.command_line import CommandParser
from fspo.errors import UserError, run_cli
from fspo.files import write_text

EXAMPLES = """examples:
  python -m figures runs/fspo-seed0
      all figures of one analysed run, in runs/fspo-seed0/figures at NeurIPS width
  python -m figures runs/* --output figures-icml --width icml-column
      all runs of a comparison, for one column of an ICML paper
  python -m figures runs/none-seed0 --only '[lre_by_rule,cosine_by_rule]'
      two figures alone
"""


def write_captions(results: list[Drawn], output: Path) -> Path:
    """``captions.json``: name, title, caption or reason of each figure, in order."""
    fields = [{"name": r.name, "title": r.title, "caption": r.caption, "skipped": r.skipped} for r in results]
    path = output / "captions.json"
    write_text(path, json.dumps(fields, indent=2) + "\n")
    return path


def build_parser() -> CommandParser:
    """The command line."""
    from figures.style import WIDTHS

    parser = CommandParser(
        prog="python -m figures",
        description="Draw publication figures (PDF and PNG) from the analysis tables of one or more runs.",
        examples=EXAMPLES,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folder that python -m analysis was run on")
    parser.add_argument(
        "--output", type=Path | None, help="folder for the files; RUN/figures for one run, figures-out for several"
    )
    parser.add_argument("--width", type=str, default="neurips", help=f"venue width: {', '.join(WIDTHS)}")
    parser.add_argument("--only", type=list[str], default=[], help=f"figures wanted, of {', '.join(MODULES)}")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Draw, print what was drawn and what was skipped, write the captions."""
    from figures.tables import load

    values = build_parser().parse_args(arguments)
    runs = [Path(run) for run in values.runs]
    output = values.output or (runs[0] / "figures" if len(runs) == 1 else Path("figures-out"))
    results = draw_all(load(runs), output, values.width, values.only)
    for item in results:
        print(f"skipped  {item.name}: {item.skipped}" if item.skipped else f"drawn    {item.pdf} and .png")
    if all(item.skipped for item in results):
        raise UserError("nothing could be drawn (reasons above): run python -m analysis on a longer run")
    write_captions(results, output)
    return 0


if __name__ == "__main__":
    run_cli(main)
