"""One self-contained ``report.html``: summary, claims, figures, tables, provenance. No network, no scripts."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from fspo.errors import UserError
from fspo.files import write_text

VERDICTS = {
    "supported": ("✓", "supported"),
    "not supported": ("✗", "failing"),
    "inconclusive": ("?", "open"),
}
"""Symbol and class of each verdict's badge; another verdict is shown as it is."""
_CLAIM_FIELDS = ("id", "statement", "verdict", "estimand", "estimate", "ci_low", "ci_high", "margin", "test")
_LONG_TABLE = 30


@dataclass(frozen=True)
class Theory:
    """What the report says about the theory: figures and tables as in ``write_report``, and advice in Markdown."""

    figures: Sequence[tuple[str | Path, str, str]] = ()
    tables: Sequence[tuple[str, Sequence[Mapping[str, Any]]]] = ()
    advice: str = ""


def write_report(
    path: str | Path,
    *,
    title: str,
    claims: Sequence[Mapping[str, Any]],
    figures: Sequence[tuple[str | Path, str, str]],
    tables: Sequence[tuple[str, Sequence[Mapping[str, Any]]]] = (),
    findings: Sequence[str] = (),
    samples: Sequence[Mapping[str, Any]] = (),
    provenance: Mapping[str, Any] | None = None,
    summary: str = "",
    theory: Theory | None = None,
) -> Path:
    """Write the report, whole or not at all.

    Parameters
    ----------
    path : path
        The HTML file.
    title : str
        Heading.
    claims : sequence of mappings
        ``id``, ``statement``, ``verdict`` ("supported", "not supported", "inconclusive"); ``estimand``,
        ``estimate``, ``ci_low``, ``ci_high``, ``margin``, ``test`` where they exist. A field that holds a list of
        mappings is shown as a table, any other one as a line.
    figures : sequence of (png file, title, caption)
    tables : sequence of (heading, rows)
        Rows are mappings; the columns are the keys in the order of their first appearance.
    findings : sequence of str
        Sentences shown after the summary.
    samples : sequence of mappings
        Model text and other free text, shown preformatted; numbers on one line; a ``title`` field becomes the heading.
    provenance : mapping
        Versions, seeds, command; nested values are shown inline.
    summary : str
        A paragraph above everything else.
    theory : Theory
        A section of its own, after the figures.

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
    page = environment.get_template("report.html.j2").render(
        title=title,
        summary=summary,
        claims=[_claim(claim) for claim in claims],
        tally=_tally(claims),
        figures=[_embedded(Path(file), name, caption) for file, name, caption in figures],
        tables=[_table(heading, rows) for heading, rows in tables],
        findings=list(findings),
        samples=[_sample(sample) for sample in samples],
        theory=None if theory is None else _theory(theory),
        provenance=[(str(name), plain(value)) for name, value in (provenance or {}).items()],
    )
    path = Path(path)
    write_text(path, page)
    return path


def plain(value: Any) -> str:
    """A value as text: 4 significant digits, "–" for a missing one, lists and mappings inline."""
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
    """``estimate [ci_low, ci_high]``; empty if there is no estimate."""
    if fields.get("estimate") is None:
        return ""
    text = plain(fields["estimate"])
    if fields.get("ci_low") is None and fields.get("ci_high") is None:
        return text
    return f"{text} [{plain(fields.get('ci_low'))}, {plain(fields.get('ci_high'))}]"


def badge(verdict: str) -> dict[str, str]:
    """Symbol, words and class of a verdict: symbol and words say it without colour."""
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
        "badge": badge(str(claim.get("verdict", "no verdict"))),
        "estimate": estimate_text(claim),
        "lines": lines,
        "tables": tables,
    }


def _detail(name: str, value: Any, lines: list[tuple[str, str]], tables: list[dict[str, Any]]) -> None:
    """One more field of a claim: an interval or a plain value as a line, rows or a mapping of mappings as a table."""
    if value is None or value == "" or (isinstance(value, (list, tuple, dict)) and not value):
        return
    if isinstance(value, Mapping) and all(isinstance(row, Mapping) for row in value.values()):
        tables.append(_table(name, [{"": key, **_with_interval(row)} for key, row in value.items()]))
    elif isinstance(value, (list, tuple)) and all(isinstance(row, Mapping) for row in value):
        tables.append(_table(name, [_with_interval(row) for row in value]))
    elif isinstance(value, Mapping):
        fields = _with_interval(value)
        lines.append((name, plain(fields if len(fields) > 1 else next(iter(fields.values())))))
    else:
        lines.append((name, plain(value)))


def _with_interval(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with value (or estimate), low and high as one field."""
    for value, low, high in (("value", "low", "high"), ("estimate", "ci_low", "ci_high")):
        if {value, low, high} <= set(row):
            text = estimate_text({"estimate": row[value], "ci_low": row[low], "ci_high": row[high]})
            rest = {name: item for name, item in row.items() if name not in (value, low, high)}
            return {"estimate": text or None, **rest}
    return dict(row)


def _tally(claims: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found = [str(claim.get("verdict", "no verdict")) for claim in claims]
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
        "long": len(rows) > _LONG_TABLE,
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


def _theory(theory: Theory) -> dict[str, Any]:
    return {
        "figures": [_embedded(Path(file), name, caption) for file, name, caption in theory.figures],
        "tables": [_table(heading, rows) for heading, rows in theory.tables],
        "advice": markdown(theory.advice),
    }


def markdown(text: str) -> str:
    """Markdown as HTML for a section: headings two levels down, HTML inside it escaped, no links to scripts."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("js-default").disable("image")  # this preset escapes HTML; nothing is fetched
    tokens = parser.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1:]) + 2, 6)}"
    return parser.renderer.render(tokens, parser.options, {})


def _embedded(file: Path, title: str, caption: str) -> dict[str, Any]:
    try:
        content = file.read_bytes()
    except OSError:
        raise UserError(f"figure {file} is missing: run python -m figures again") from None
    if content[:8] != b"\x89PNG\r\n\x1a\n":
        raise UserError(f"figure {file} is no PNG: run python -m figures again")
    width, height = struct.unpack(">II", content[16:24])
    image = base64.b64encode(content).decode()
    return {"title": title, "caption": caption, "image": image, "width": width, "height": height}
