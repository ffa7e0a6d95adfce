"""Write ``report.html``, one self-contained page: first sentences that answer the page's questions about runs, then a
section for each question.

The page loads nothing from elsewhere: its scripts, which draw the charts, are inside it. Without scripts, and in print,
the page shows the figures instead of the charts.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from figures.page import charts
from figures.page.story import QUESTION, anchor
from fspo.base.errors import UserError
from fspo.base.files import write_text

VERDICTS = {
    "supported": ("✓", "supported"),
    "refuted": ("✗", "failing"),
    "inconclusive": ("?", "open"),
}
"""Symbol and CSS class of the badge for each verdict of a claim. A verdict without an entry gets a plain badge."""
_CLAIM_FIELDS = ("id", "statement", "verdict", "estimand", "estimate", "ci_low", "ci_high", "margin", "test")
BEGINNING = '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta name="generator" content="fspo">\n'
"""First words of every report, by which a report is recognised among other HTML files."""
_COLORS = 128
_MOST_ROWS = 250
"""Largest number of rows in the table of a figure's numbers on the page; longer tables stay in their CSV files."""


@dataclass(frozen=True)
class Picture:
    """A figure on the page of ``fspo report``: PNG file, title, caption, the CSV file of its numbers if there is one,
    details (shown when the reader unfolds them), and the key of `figures.page.charts.CHARTS` if the numbers are shown
    as charts.
    """

    file: Path
    title: str
    caption: str
    numbers: Path | None = None
    details: str = ""
    chart: str = ""


@dataclass(frozen=True)
class Section:
    """A section of a report, which is an HTML page: a heading and what the page shows below it.

    Attributes
    ----------
    title : str
        Heading, and the words of the link to it.
    notes : sequence of str
        Sentences, shown as a list.
    tables : sequence of (heading, rows)
        Rows are mappings; the columns are the keys in the order of their first appearance. The page shows each table
        folded.
    figures : sequence of Picture
    claims : sequence of mappings
        ``id``, ``statement``, ``verdict`` ("supported", "refuted", "inconclusive"); ``estimand``, ``estimate``,
        ``ci_low``, ``ci_high``, ``margin``, ``test`` where they exist. A field that holds a list of mappings is shown
        as a table, any other field as a line. The atoms of a headline are folded below it.
    """

    title: str
    notes: Sequence[str] = ()
    tables: Sequence[tuple[str, Sequence[Mapping[str, Any]]]] = ()
    figures: Sequence[Picture] = ()
    claims: Sequence[Mapping[str, Any]] = ()


def write_report(
    path: str | Path,
    *,
    title: str,
    sentences: Sequence[tuple[str, str]] = (),
    lead: Picture | None = None,
    findings: Sequence[Mapping[str, Any]] = (),
    sections: Sequence[Section] = (),
    samples: Sequence[Mapping[str, Any]] = (),
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write the report; the file appears only when it is complete.

    Parameters
    ----------
    path : path
        The HTML file.
    title : str
        Heading.
    sentences : sequence of (title of a section, sentence)
        The first screen, above everything else.
    lead : Picture, optional
        The first screen's picture.
    findings : sequence of mappings
        Rows of the first screen's table. If a section has claims, a table of their verdicts takes its place.
    sections : sequence of Section
        Sections in the order of the page; an empty section is left out.
    samples : sequence of mappings
        Responses of the model, each a mapping: its ``title`` is the heading, its numbers stand on one line, and its
        other fields are shown as preformatted text.
    provenance : mapping
        Versions, seeds, command; nested values are shown inline.

    Returns
    -------
    Path
        The file that was written. All text is escaped; figures are embedded.

    Raises
    ------
    UserError
        If a figure's file is missing or is no PNG.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
    first = [] if lead is None else [_picture(lead, 1)]
    shown = _sections(sections, len(first))
    claims = [claim for section in shown for claim in section["claims"]]
    figures = [*first, *(figure for section in shown for figure in section["figures"])]
    charted = [figure["number"] for figure in figures if figure["charts"]]
    page = environment.get_template("report.html.j2").render(
        beginning=BEGINNING,
        title=title,
        question=QUESTION,
        sentences=[(question, anchor(question), sentence) for question, sentence in sentences],
        anchors={section["anchor"] for section in shown},
        lead=first,
        claims=claims,
        tally=_tally(claims),
        findings=_table("", findings),
        sections=shown,
        samples=[_sample(sample) for sample in samples],
        provenance=[(str(name), plain(value)) for name, value in (provenance or {}).items()],
        first_chart=min(charted, default=0),
        library=charts.library() if charted else "",
        script=(Path(__file__).parent / "charts.js").read_text(encoding="utf-8"),
    )
    path = Path(path)
    write_text(path, page)
    return path


def plain(value: Any) -> str:
    """Return a value as text: 4 significant digits, "–" for a missing one, lists and mappings on one line."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}" if abs(int(value)) >= 10_000 else str(int(value))
    if isinstance(value, Real):
        number = float(value)
        if math.isnan(number):
            return "–"
        return f"{number:.4g}".replace("-", "−").replace("inf", "∞")
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {plain(item)}" for name, item in value.items())
    if isinstance(value, Iterable):
        return ", ".join(plain(item) for item in value)
    return str(value)


def estimate_text(fields: Mapping[str, Any]) -> str:
    """Return the text ``estimate [ci_low, ci_high]`` from fields of these names, or "" if there is no estimate."""
    if plain(fields.get("estimate")) == "–":
        return ""
    text = plain(fields["estimate"])
    if fields.get("ci_low") is None and fields.get("ci_high") is None:
        return text
    return f"{text} [{plain(fields.get('ci_low'))}, {plain(fields.get('ci_high'))}]"


def badge(verdict: str) -> dict[str, str]:
    """Return symbol, words and CSS class of the badge of a verdict. Symbol and words show the verdict without
    colour.
    """
    symbol, kind = VERDICTS.get(verdict, ("•", "other"))
    return {"symbol": symbol, "text": verdict, "kind": kind}


def _claim(claim: Mapping[str, Any]) -> dict[str, Any]:
    lines = [(name, plain(claim[name])) for name in ("estimand", "margin", "test") if claim.get(name) is not None]
    tables: list[dict[str, Any]] = []
    for name, value in claim.items():
        if name in _CLAIM_FIELDS:
            continue
        if name == "details" and isinstance(value, Mapping):
            for part, content in value.items():
                _detail(_words(part), content, lines, tables)
        else:
            _detail(_words(name), value, lines, tables)
    return {
        "id": str(claim.get("id", "")),
        "statement": str(claim.get("statement", "")),
        "anchor": f"claim-{anchor(str(claim.get('id', '')))}",
        "badge": badge(str(claim.get("verdict", "no verdict"))),
        "estimate": estimate_text(claim),
        "atoms": [],
        "lines": lines,
        "tables": tables,
    }


def _claims(claims: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return claims in the form that the page's template takes. An atom is inside the first headline that names it."""
    made = {str(claim.get("id", "")): _claim(claim) for claim in claims}
    owner: dict[str, str] = {}
    for claim in claims:
        for name in (claim.get("details") or {}).get("atoms", ()):
            owner.setdefault(name, str(claim["id"]))
    for name, headline in owner.items():
        if name in made:
            made[headline]["atoms"].append(made[name])
    return [claim for name, claim in made.items() if name not in owner]


def _detail(name: str, value: Any, lines: list[tuple[str, str]], tables: list[dict[str, Any]]) -> None:
    """Add a field of a claim to ``tables`` if it holds rows (mappings), else as text to ``lines``."""
    if value is None or value == "" or (isinstance(value, (list, tuple, dict)) and not value):
        return
    if isinstance(value, Mapping) and all(isinstance(row, Mapping) for row in value.values()):
        tables.append(_table(name, [{"": key, **_with_interval(row)} for key, row in value.items()]))
    elif isinstance(value, (list, tuple)) and all(isinstance(row, Mapping) for row in value):
        tables.append(_table(name, [_with_interval(row) for row in value]))
    elif isinstance(value, Mapping) and isinstance(value.get("sentence"), str):
        lines.append((name, value["sentence"]))
        if isinstance(parts := value.get("parts"), Mapping) and parts:
            rows = [{"of": part, "detectable difference": found} for part, found in parts.items()]
            tables.append(_table(f"{name} of each estimate", rows))
    elif isinstance(value, Mapping):
        fields = _with_interval(value)
        lines.append((name, plain(fields if len(fields) > 1 else next(iter(fields.values())))))
    else:
        lines.append((name, plain(value)))


def _with_interval(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table row in which the estimate and the ends of its interval stand in one field as text."""
    for value, low, high in (("value", "low", "high"), ("estimate", "ci_low", "ci_high")):
        if {value, low, high} <= set(row):
            text = estimate_text({"estimate": row[value], "ci_low": row[low], "ci_high": row[high]})
            shown = {name: (text or None) if name == value else item for name, item in row.items()}
            return {("estimate" if n == value else n): item for n, item in shown.items() if n not in (low, high)}
    return dict(row)


def _tally(claims: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found = [one["badge"]["text"] for claim in claims for one in (claim, *claim["atoms"])]
    order = [*VERDICTS, *sorted(set(found) - set(VERDICTS))]
    return [{**badge(verdict), "count": found.count(verdict)} for verdict in order if verdict in found]


def _table(heading: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[plain(row.get(name)) for name in columns] for row in rows]
    numeric = [
        any(_is_number(row.get(name)) for row in rows)
        and all(row.get(name) is None or _is_number(row.get(name)) for row in rows)
        for name in columns
    ]
    return {
        "heading": heading,
        "columns": [_words(name) for name in columns],
        "rows": cells,
        "numeric": numeric,
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, (bool, np.bool_))


def _words(name: Any) -> str:
    return str(name).replace("_", " ")


def _sample(sample: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in sample.items() if name != "title"}
    return {
        "title": str(sample.get("title", "")),
        "fields": [(_words(name), plain(value)) for name, value in shown.items() if not isinstance(value, Real)],
        "numbers": [(_words(name), plain(value)) for name, value in shown.items() if isinstance(value, Real)],
    }


def _sections(sections: Sequence[Section], figures: int) -> list[dict[str, Any]]:
    """Return the report's sections that are not empty, as values for its HTML template. Their figures are numbered from
    ``figures`` + 1 on, ``figures`` being the number of figures before them.
    """
    found = []
    for section in sections:
        if section.notes or section.tables or section.figures or section.claims:
            pictures = [_picture(picture, figures + i) for i, picture in enumerate(section.figures, 1)]
            figures += len(pictures)
            found.append(
                {
                    "title": section.title,
                    "anchor": anchor(section.title),
                    "notes": list(section.notes),
                    "tables": [_table(heading, rows) for heading, rows in section.tables],
                    "figures": pictures,
                    "claims": _claims(section.claims),
                }
            )
    return found


def _picture(picture: Picture, number: int) -> dict[str, Any]:
    frame = None if picture.numbers is None else _read_numbers(picture.numbers)
    told, found = ("", []) if frame is None else charts.charts(picture.chart, frame)
    shown: dict[str, Any] = {"number": number, "title": picture.title, "caption": picture.caption}
    shown |= {"details": picture.details, "charts": found, "chart_caption": told}
    table = None if frame is None or picture.numbers is None else _numbers(frame, picture.numbers.name)
    return shown | _embedded(Path(picture.file)) | {"numbers": table}


def _read_numbers(file: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(file, keep_default_na=False, na_values=[""])
    except (OSError, ValueError):
        raise UserError(f"the numbers {file} of a figure cannot be read: run fspo figures again") from None


def _numbers(frame: pd.DataFrame, name: str) -> dict[str, Any]:
    """Return the numbers that a figure shows, as a table for the HTML report. A column with the same value in all rows
    is not in the table; its name and value stand above it. ``name`` is the name of the CSV file with the numbers.
    """
    rows: list[dict[str, Any]] = [{str(k): v for k, v in row.items()} for row in frame.to_dict("records")]
    columns = map(str, frame.columns)
    same = [column for column in columns if len(rows) > 1 and len({plain(row[column]) for row in rows}) == 1]
    told = {_words(column): rows[0][column] for column in same}
    rows = [{column: value for column, value in row.items() if column not in same} for row in rows]
    table = _table("", [_with_interval(row) for row in rows[:_MOST_ROWS]])
    left = f"The first {_MOST_ROWS} of {len(rows)} rows; all are in {name}." if len(rows) > _MOST_ROWS else ""
    return {**table, "told": plain(told), "count": len(rows), "left": left}


def _embedded(file: Path) -> dict[str, Any]:
    try:
        content = file.read_bytes()
    except OSError:
        raise UserError(f"figure {file} is missing: run fspo figures again") from None
    if content[:8] != b"\x89PNG\r\n\x1a\n":
        raise UserError(f"figure {file} is no PNG: run fspo figures again")
    from PIL import Image

    with Image.open(BytesIO(content)) as image, BytesIO() as small:
        width, height = image.size
        # Pictures are put into the report with 128 colours, which makes it a third as large; the PNG file of the figure
        # keeps all colours.
        image.convert("RGB").quantize(_COLORS).save(small, "PNG")
        text = base64.b64encode(min(small.getvalue(), content, key=len)).decode()
    return {"image": text, "width": width, "height": height}
