"""Write ``report.html``: one static page about analysed runs, or about a reproduction. It needs nothing but itself.

The page begins with three sentences (figures/page/story.py), then has the claims, and four sections with figures. The
figures are those of ``fspo figures``, whose files lie beside the page."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import pandas as pd

from figures.page.story import sentences
from figures.tables import load
from fspo.base.errors import UserError
from fspo.base.files import write_text
from fspo.gradlog.metrics_file import MetricsFile

BEGINNING = '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta name="generator" content="fspo">\n'
"""First words of every report, by which a report is recognised among other HTML files."""
WHO, DIRECTION, THEORY, TRAINING = "Who is clipped", "Direction of the update", "Theory on these runs", "Training"
SECTIONS: dict[str, tuple[str, ...]] = {
    WHO: ("acceptance_by_length", "lre_by_rule"),
    DIRECTION: ("cosine_by_rule", "error_split"),
    THEORY: ("variance_scaling", "drift_by_sign", "fair_exponent"),
    TRAINING: ("clip_over_training", "training_curves"),
}
"""Title of each section, and the figures that it shows where they could be drawn."""
MOST_ROWS = 100
"""Largest number of rows of a table on the page; the CSV files have all."""
Row = dict[str, Any]


def write_report(
    path: Path,
    *,
    title: str,
    runs: Sequence[Path],
    diagnoses: Sequence[Mapping[str, Any]],
    folder: Path,
    captions: Sequence[Mapping[str, Any]],
    claims: Sequence[Mapping[str, Any]] = (),
    parts: Sequence[Mapping[str, Any]] = (),
    checks: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> list[str]:
    """Write the page with the heading ``title`` to ``path``; the file appears only when it is complete.

    Parameters
    ----------
    runs : sequence of Path
        Analysed run folders.
    diagnoses : sequence of mappings
        The doctor's answers about the runs, as `fspo doctor --json` writes them.
    folder, captions
        Folder of the runs' figures, and its captions.json as a list of mappings.
    claims, parts : sequence of mappings
        Rows of claims.csv and parts.csv of a reproduction.
    checks, provenance : mapping, optional
        Content of proofs_check.json; further names and values for the page's last section, "Provenance".

    Returns
    -------
    list of str
        The warnings of the analyses about the runs, which the page shows too.

    Raises
    ------
    UserError
        If a run has no readable analysis, or a figure's file is missing.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    options: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "undefined": StrictUndefined}
    loader, escape = FileSystemLoader(Path(__file__).parent), select_autoescape(default=True)
    environment = Environment(loader=loader, autoescape=escape, **options)
    of_runs = load(runs)
    warned = warnings(of_runs.summaries)
    by_name = {str(caption["name"]): caption for caption in captions}
    sections = []
    for name, wanted in SECTIONS.items():
        shown = [by_name[figure] for figure in wanted if figure in by_name]
        notes = warned[:3] if name == WHO else []
        notes += [f"Not drawn: {caption['title']}: {caption['skipped']}" for caption in shown if caption["skipped"]]
        tables: list[dict[str, Any]] = []
        if name == THEORY and checks is not None:
            notes.append(f"Theory: {checks['summary']}.")
            columns = ("id", "method", "name", "verdict", "margin")
            rows = [{column: check.get(column) for column in columns} for check in checks["rows"]]
            tables.append(table("Checks of the theory", rows, most=1000))
        if name == TRAINING:
            tables = [table("Runs", [run_row(run) for run in runs]), table("Health checks", issues(diagnoses))]
            tables.append(table("Warnings of the analysis", [{"warning": line} for line in warned]))
        if name == WHO and parts:
            tables.append(table("Every hypothesis of the claims on every task", [*parts], most=1000))
        figures = [figure(folder, caption) for caption in shown if not caption["skipped"]]
        sections.append({"title": name, "notes": notes, "tables": tables, "figures": figures})
    told = sentences({name: of_runs.frames.get(name, pd.DataFrame()) for name in ("acceptance", "cosine")}, diagnoses)
    said = {"fspo": version("fspo"), **(provenance or {}), "all figures and their numbers": folder.name}
    page = environment.get_template("report.html.j2").render(
        beginning=BEGINNING,
        title=title,
        sentences=[line.replace(" %", "\u00a0%") for line in told],
        claims=[dict(claim) | {"decides": decision(claim, parts)} for claim in claims],
        sections=sections,
        provenance=[(name, plain(value)) for name, value in said.items()],
    )
    write_text(path, page)
    return warned


def warnings(summaries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the analysis's warnings about each run, and the parts of its log that could not be read, one line each.

    ``summaries`` holds the contents of summary.json by the run's name."""
    return [f"{run}: {line}" for run, of in summaries.items() for line in (*of["damage"], *of["warnings"])]


def issues(diagnoses: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return rows of the page's table of issues: one for each issue in the doctor's answers (``diagnoses``), worst
    first; and for each run without an issue one that says so."""
    rank = ("critical", "warning", "info")
    found: list[Row] = []
    for diagnosis in diagnoses:
        run = Path(diagnosis["run"]).name
        found += [
            {"run": run, "severity": a["severity"], "issue": f"{a['id']}: {a['summary']}", "fix": a["fix"]}
            for a in diagnosis["issues"]
        ]
        if not diagnosis["issues"]:
            found.append({"run": run, "severity": "", "issue": f"none in {len(diagnosis['clear'])} checks", "fix": ""})
    return sorted(found, key=lambda row: rank.index(row["severity"]) if row["severity"] in rank else len(rank))


def run_row(run: Path) -> Row:
    """Return a row of the page's table of runs for a run folder: its rollouts, its first and last training reward."""
    rewards = [row.get("reward") for row in MetricsFile(run).of_phase("train")]
    first, last = (rewards[0], rewards[-1]) if rewards else (None, None)
    return {"run": run.name, "rollouts": len(rewards), "first reward": first, "last reward": last}


def decision(claim: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> str:
    """Return as text ``claim["decides"]``, the hypothesis that decides it, with its mean, found in ``parts.csv``."""
    for part in parts:
        if part["claim"] == claim["claim"] and f"{part['task']}: {part['hypothesis']}" == claim["decides"]:
            mean, low, high = (f"{part[name]:.2f}".replace("-", "−") for name in ("mean", "ci_low", "ci_high"))
            return f"{claim['decides']}; found {mean} [{low}, {high}], {part['seeds']} seeds"
    return str(claim["decides"])


def figure(folder: Path, caption: Mapping[str, Any]) -> dict[str, Any]:
    """Return a figure in ``folder`` as values for the page's template: its texts from ``caption`` (one mapping of
    captions.json), its PNG image, and a table of the first rows of its CSV file of drawn numbers.

    Raise UserError if a file of the figure cannot be read."""
    file = folder / f"{caption['name']}.png"
    try:
        image = base64.b64encode(file.read_bytes()).decode()
        numbers = pd.read_csv(folder / caption["numbers"], keep_default_na=False, na_values=[""])
    except KeyError:
        numbers = pd.DataFrame()
    except (OSError, ValueError) as error:
        raise UserError(f"figure {file} cannot be read: run fspo figures again") from error
    rows: list[Row] = [{str(name): value for name, value in row.items()} for row in numbers.to_dict("records")]
    shown = table("The numbers of this figure", rows, f"All rows are in {caption.get('numbers', '')}.")
    return {"title": caption["title"], "caption": caption["caption"], "image": image, "numbers": shown}


def table(heading: str, rows: Sequence[Mapping[str, Any]], left: str = "", most: int = MOST_ROWS) -> dict[str, Any]:
    """Return a table with a heading as values for the page's template; columns are the rows' keys, in order of first
    appearance.

    If there are more than ``most`` rows, only the first ``most`` are shown, and the sentence ``left`` below them."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    numeric = [any(_is_number(row.get(n)) for row in rows) for n in names]
    return {
        "heading": heading,
        "columns": [name.replace("_", " ") for name in names],
        "rows": [[plain(row.get(name)) for name in names] for row in rows[:most]],
        "numeric": numeric,
        "count": len(rows),
        "left": left if len(rows) > most else "",
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def plain(value: Any) -> str:
    """Return a value as text: 4 significant digits, "–" for a missing one, lists and mappings on one line."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}" if abs(int(value)) >= 10_000 else str(int(value))
    if isinstance(value, Real):
        return f"{float(value):.4g}".replace("-", "−").replace("inf", "∞")
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {plain(item)}" for name, item in value.items())
    if isinstance(value, Iterable):
        return ", ".join(plain(item) for item in value)
    return str(value)
