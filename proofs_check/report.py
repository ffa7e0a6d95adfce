"""The report: a table for the terminal, and ``proofs_check.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fspo.base.files import refuse_foreign, write_text
from proofs_check.frame import Check, Row, Verdict

REPORT_COLUMNS = ("id", "method", "check", "verdict", "margin", "margin of", "resolution", "near misses", "seconds")


def _cells(row: Row) -> tuple[str, ...]:
    """Return the texts of a report's row in the order of `REPORT_COLUMNS`; among them resolution with what x changes,
    and how many near misses failed. What a check does not have, or was not run for, is ""."""
    ran = row.verdict is not Verdict.NOT_RUN
    failed = sum(verdict is Verdict.FAIL for verdict in row.near_misses.values())
    return (
        row.statement,
        row.method,
        row.name,
        str(row.verdict),
        "" if math.isnan(row.margin) else f"{row.margin:.3g}",
        row.unit,
        f"{row.resolution:.0e} {row.false}" if ran and row.resolution is not None else "",
        f"{failed}/{len(row.near_misses)} fail" if ran else "",
        f"{row.seconds:.1f}",
    )


def format_list(checks: Sequence[Check], titles: Mapping[str, str]) -> str:
    """Return a text that lists by statement each check's method and name, its near misses, and the coarsest
    resolution allowed. ``titles`` says in a few words what each statement is about."""
    lines = []
    for statement in dict.fromkeys(check.statement for check in checks):
        lines += ["", f"{statement}  {titles.get(statement, '')}".rstrip()]
        for check in checks:
            if check.statement == statement:
                lines.append(f"  {check.method:15} {check.name}")
                lines.append(f"  {'':15}   near misses: {'; '.join(check.near_misses)}")
                if check.false:
                    lines.append(f"  {'':15}   resolution: {check.sees:.0e} {check.false}, or finer")
    return "\n".join(lines[1:])


def format_table(rows: Sequence[Row]) -> str:
    """Return the checks as a table of fixed width, those that were not run last, followed by a line of totals, and
    sentences on checks that failed or are undecided, near misses that did not fail, and checks that were not run."""
    rows = sorted(rows, key=lambda row: row.verdict is Verdict.NOT_RUN)
    cells = [REPORT_COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(REPORT_COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    lines.insert(1, "  ".join("-" * width for width in widths))
    lines += ["", summary(rows)]
    for row in rows:
        if row.verdict is Verdict.NOT_RUN:
            continue
        if row.verdict is not Verdict.PASS:
            lines.append(f"{row.verdict}: {row.statement} {row.name}: {row.note}")
        elif not row.sound:
            other = {name: verdict for name, verdict in row.near_misses.items() if verdict is not Verdict.FAIL}
            passing = ", ".join(f"{name} ({verdict})" for name, verdict in other.items())
            lines.append(f"near miss did not fail: {row.statement} {row.name}: {passing}")
    lines += [f"not run: {row.statement} {row.name}: {row.note}" for row in rows if row.verdict is Verdict.NOT_RUN]
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> str:
    """Return one line with the numbers of checks by verdict and of near misses that failed."""
    count = {verdict: sum(row.verdict is verdict for row in rows) for verdict in Verdict}
    verdicts = [v for row in rows if row.verdict is not Verdict.NOT_RUN for v in row.near_misses.values()]
    failed = sum(verdict is Verdict.FAIL for verdict in verdicts)
    found = ", ".join(f"{number} {verdict}" for verdict, number in count.items() if number)
    found += f"; {failed} of {len(verdicts)} near misses fail" + ", as they must" * (failed == len(verdicts))
    return f"{len(rows)} {'check' if len(rows) == 1 else 'checks'}: {found}"


def to_json(rows: Sequence[Row], **run: Any) -> str:
    """Return the checks (id, method, verdict, margin, near misses, ...) and the values ``run`` of the whole run as
    strict JSON: NaN is written as null, infinity as a string."""
    records = [{"id": (record := asdict(row)).pop("statement"), **record} for row in rows]
    return json.dumps(_plain({**run, "summary": summary(rows), "rows": records}), indent=1, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return str(value) if isinstance(value, Path) else value


def write_report(rows: Sequence[Row], folder: Path, **run: Any) -> None:
    """Write ``proofs_check.json`` into ``folder``: the checks, and the values ``run`` of the whole run. The file is
    renamed into place, so that it is never incomplete."""
    write_text(folder / "proofs_check.json", to_json(rows, **run))


def check_output(folder: Path) -> None:
    """Refuse an output folder in which ``fspo check`` would overwrite a file that it did not write.

    Raise UserError if ``folder`` is such a folder, or a file."""
    refuse_foreign(folder, {"proofs_check.json": '"exit_status"'}, "fspo check", "--output")
