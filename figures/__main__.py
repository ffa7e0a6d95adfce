"""The command ``fspo figures RUN [RUN ...] --output DIR --width WIDTH``: draw publication figures from tables.

``--theory`` draws the figures of the theory, whose numbers it computes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.log.ratio import UPDATE
from figures import DrawnFigure, check_names, draw_all, file_name, of_runs, of_theory
from fspo.base.command_line import CommandParser, next_step
from fspo.base.errors import UserError, run_cli
from fspo.base.files import refuse_foreign, write_text
from fspo.gradlog.run_folder import folder_for

EXAMPLES = """examples:
  fspo figures runs/fspo-seed0
      all figures of one analysed run, in runs/fspo-seed0/figures at NeurIPS width
  fspo figures runs/* --output figures-icml --width icml-column
      all runs of a comparison, for one column of an ICML paper
  fspo figures runs/none-seed0 --only lre_by_rule,cosine_by_rule
      two figures alone
  fspo figures RUN --by entropy
      the same figures with bins of entropy, from what fspo analyse RUN --by entropy wrote
  fspo figures RUN --on engine
      the same figures of the mismatch between sampler and trainer, from fspo analyse RUN --on engine
  fspo figures --theory --output figures-theory
      the figures of the theory (docs/theory.md)
"""

_NO_CAPTIONS = "[]\n"


def described(results: list[DrawnFigure]) -> list[dict[str, Any]]:
    """Return for each figure its name, title, caption, details, the reason why it was not drawn ("" if it was), and
    the name of its CSV file if it has one."""
    return [
        {"name": r.name, "title": r.title, "caption": r.caption, "details": r.details, "skipped": r.skipped}
        | ({"numbers": r.numbers.name} if r.numbers else {})
        for r in results
    ]


def write_captions(results: list[DrawnFigure], path: Path) -> None:
    """Write the name, title, caption and details of each figure to a JSON file (captions.json)."""
    write_text(path, json.dumps(described(results), indent=2) + "\n")


def check_output(folder: Path) -> None:
    """Raise UserError if the output ``folder`` holds files, and none by which ``fspo figures`` knows it as its own."""
    refuse_foreign(folder, {"captions*.json": '"skipped"'}, "fspo figures")


def build_parser() -> CommandParser:
    """Return the parser of ``fspo figures``."""
    from analysis.log.ratio import WORDS
    from figures.widths import WIDTHS

    parser = CommandParser(
        prog="fspo figures",
        description="Draw publication figures (PDF and PNG) from the analysis tables of one or more runs, and of "
        "the theory.",
        examples=EXAMPLES,
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help="run folder that fspo analyse was run on")
    parser.add_argument("--theory", action="store_true", help="figures of the theory too, or alone without a run")
    parser.add_argument(
        "--by", type=str, default="length", help="column of the log that the bins are of: length, entropy, user.COLUMN"
    )
    parser.add_argument("--on", type=str, default=UPDATE.on, help=f"log-ratio of the tables: {', '.join(WORDS)}")
    parser.add_argument(
        "--output", type=Path | None, help="folder for the files; by default figures in RUN, of several in comparison/"
    )
    parser.add_argument("--width", type=str, default="neurips", help=f"venue width: {', '.join(WIDTHS)}")
    known = ", ".join(of_runs.FIGURES + of_theory.FIGURES)
    parser.add_argument("--only", type=list[str], default=[], help=f"figures wanted, of {known}")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Draw the figures, print which were drawn and which skipped, and write the captions."""
    values = build_parser().parse_args(arguments)
    from figures.tables import Tables, load  # imported here, so that --help does not wait for pandas

    runs = [Path(run) for run in values.runs]
    if not runs and not values.theory:
        raise UserError("name at least one run folder (fspo figures RUN), or --theory")
    output = values.output or (folder_for(runs) / "figures" if runs else Path("figures-theory"))
    tables = load(runs, values.by, values.on) if runs else Tables({})
    check_output(output)
    modules = (of_runs.FIGURES if runs else ()) + (of_theory.FIGURES if values.theory else ())
    check_names(values.only, modules)
    if values.theory:
        from figures.of_theory.numbers import theory_tables

        tables = replace(tables, frames=tables.frames | theory_tables(values.only).frames)
    captions = output / f"captions{file_name('', tables)}.json"  # captions-by-entropy.json, where bins are of entropy
    with _begun(captions):
        results = draw_all(tables, output, values.width, values.only, modules)
        for item in results:
            print(f"skipped  {item.name}: {item.skipped}" if item.skipped else f"drawn    {item.pdf} and .png")
        if all(item.skipped for item in results):
            raise UserError("nothing could be drawn (reasons above): run fspo analyse on a longer run")
        write_captions(results, captions)
    drawn = sum(not item.skipped for item in results)
    print(f"{drawn} figures drawn, {len(results) - drawn} skipped: {output} (captions: {captions.name})")
    if runs and tables.by_length and values.on == UPDATE.on:
        print(next_step("report", runs))
    return 0


@contextmanager
def _begun(captions: Path) -> Iterator[None]:
    """Write an empty captions file before any figure is drawn, by which a later ``fspo figures`` recognises the folder
    as its own even if this process is killed. If nothing was drawn, remove the file, and folders that are new."""
    new, folder = not captions.exists(), captions.parent
    made = [place for place in (folder, folder.parent) if not place.exists()]
    if new:
        write_text(captions, _NO_CAPTIONS)
    try:
        yield
    finally:
        if new and list(folder.iterdir()) == [captions] and captions.read_text(encoding="utf-8") == _NO_CAPTIONS:
            captions.unlink()
            for place in made:
                place.rmdir()


if __name__ == "__main__":
    run_cli(main)
