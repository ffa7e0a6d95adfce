"""The command ``fspo report RUN [RUN ...]``: write one page about analysed runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fspo.base.command_line import CommandParser, next_step
from fspo.base.errors import UserError, run_cli
from fspo.gradlog.run_folder import folder_for

EXAMPLES = """examples:
  fspo report RUN                 RUN/report.html, after fspo analyse RUN
  fspo report RUN_A RUN_B --output comparison/report.html
  fspo report RUN --only acceptance_by_length,variance_scaling --open
"""


def build_parser() -> CommandParser:
    """Return the parser of ``fspo report``."""
    parser = CommandParser(
        prog="fspo report",
        description="Write one static page about analysed runs: who is clipped, the direction of the update, health "
        "checks, and figures with their numbers.",
        examples=EXAMPLES,
    )
    parser.add_argument("runs", nargs="+", type=str, metavar="RUN", help="run folder that fspo analyse was run on")
    parser.add_argument(
        "--output", type=str | None, help="the page; by default report.html in RUN, of several in comparison/"
    )
    parser.add_argument("--only", type=list[str], default=[], help="figures wanted; fspo figures --help names them")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    return parser


def write(runs: Sequence[Path], path: Path, only: Sequence[str] = (), title: str = "") -> list[str]:
    """Write the page about analysed runs to ``path``, headed ``title`` ("": the runs' names), and figures/ beside it.

    Returns
    -------
    list of str
        A line for each run, what the doctor found in how many rows, and a line for each of its worst issues.

    Raises
    ------
    UserError
        If a run has no finished analysis or grew since, or ``path`` is a folder or a file not by ``fspo report``.
    """
    from analysis.doctor.examine import examine
    from analysis.doctor.issues import SHOWN
    from figures import draw_all
    from figures.__main__ import check_output, described, write_captions
    from figures.page.report import BEGINNING, SECTIONS, write_report
    from figures.tables import load
    from fspo.base.files import refuse_foreign_file

    refuse_foreign_file(path, BEGINNING, "fspo report")
    tables = load(runs)
    examined = [examine(run) for run in runs]
    for run, diagnosis, summary in zip(runs, examined, tables.summaries.values(), strict=True):
        if diagnosis.rows > (before := summary["counts"]["rows"]):
            raise UserError(f"{run} has grown from {before} to {diagnosis.rows} rows: run `fspo analyse {run}` again")
    diagnoses = [diagnosis.to_dict() for diagnosis in examined]
    folder = path.parent / "figures"
    check_output(folder)
    shown = [name for names in SECTIONS.values() for name in names]
    drawn = draw_all(tables, folder, only=only or shown)
    write_captions(drawn, folder / "captions.json")
    title = title or f"FSPO: {', '.join(run.name for run in runs)}"
    write_report(path, title=title, runs=runs, diagnoses=diagnoses, folder=folder, captions=described(drawn))
    lines = []
    for run, diagnosis in zip(runs, examined, strict=True):
        lines.append(f"{run.name}: {diagnosis.verdict} in {diagnosis.rows:,} rows")
        lines += [f"  {issue.id}: {issue.summary}" for issue in diagnosis.issues[:SHOWN]]
    return lines


def show(path: Path) -> None:
    """Open a page in the user's browser.

    Raise UserError if there is no browser."""
    import webbrowser

    if not webbrowser.open(path.resolve().as_uri()):
        raise UserError(f"no browser could be started: open {path} yourself")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report on the runs that the command line names as an HTML page, print its path and open it on
    request."""
    args = build_parser().parse_args(arguments)
    runs = [Path(run) for run in args.runs]
    path = Path(args.output) if args.output else folder_for(runs) / "report.html"
    print(*write(runs, path, args.only), f"report: {path}", sep="\n")
    print(next_step("sweep", runs[:1]))
    if args.open:
        show(path)
    return 0


if __name__ == "__main__":
    run_cli(main)
