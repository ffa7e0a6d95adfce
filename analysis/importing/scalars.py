"""Write another trainer's scalars to metrics.jsonl, under the names that `metric_name` gives them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis.importing.names import FOREIGN, metric_name, step_column
from analysis.importing.report import Report
from analysis.importing.sources import Sources, dissolved, read_parts
from fspo.base.errors import UserError
from fspo.gradlog.metrics_file import MetricsFile

NO_STEP = "lines without a step"


def import_scalars(sources: Sources, run: Path, updates: int, given: Mapping[str, str], report: Report) -> None:
    """Write metrics.jsonl from every scalar of the sources, one line for each step and phase; what was used goes into
    ``report``.

    A rollout has ``updates`` updates. ``given`` maps this project's names of metrics, and ``step``, to the source's."""
    lines: dict[tuple[int, str], dict[str, float]] = defaultdict(dict)
    theirs = {name: ours for ours, name in given.items()}
    newest = next((file for file in reversed(sources.state) if [*read_parts(file, report.damage)]), None)
    for file in [*([newest] if newest else []), *sources.scalars]:
        seen: Counter[tuple[int, str]] = Counter()
        for step, row in _records(file, given.get("step"), report):
            for name, value in row.items():
                if not isinstance(value, (int, float)) or not math.isfinite(value):
                    report.not_stored[name] += 1
                    continue
                seen[step, name] += 1
                phase, plain, stored = metric_name(name)
                stored = theirs.get(name, stored)
                lines[step, phase].setdefault(stored, float(value))  # of two sources that read first counts
                if not stored.startswith(FOREIGN):
                    report.metrics[plain if phase == "train" else f"{phase}/{plain}"] = stored
        if seen.total() > 2 * len(seen):
            raise UserError(
                f"{file} has many lines for each step, as a table with a row for each response has: name its columns "
                "with --columns length=COLUMN,new=COLUMN,old=COLUMN,sampler=COLUMN as far as they are there; it has "
                f"{', '.join(dict.fromkeys(name for _, name in seen))}"
            )
    foreign = {name for values in lines.values() for name in values if name.startswith(FOREIGN)}
    report.foreign_metrics, report.metric_lines = sorted(n.removeprefix(FOREIGN) for n in foreign), len(lines)
    MetricsFile(run).write_all(
        {"rollout": max(step - sources.first_step, 0) // updates, "step": step, "phase": phase, **values}
        for (step, phase), values in sorted(lines.items())
    )


def _records(file: Path, step_name: str | None, report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the step and a dict of all other values of each line with a step (column ``step_name``, or guessed)."""
    for part in read_parts(file, report.damage):
        for record in part if isinstance(part, list) else part.to_pylist():
            # Weights & Biases puts a run's name and " - " before each scalar, and adds its extremes
            told = {n: v for n, v in dissolved(record, "/").items() if v is not None}
            runs = sorted({n.partition(" - ")[0] for n in told if " - " in n})
            if len(runs) > 1:
                raise UserError(f"{file} has the scalars of {len(runs)} runs ({', '.join(runs[:3])}): export one run")
            row = {n.rpartition(" - ")[2]: v for n, v in told.items() if not n.endswith(("__MIN", "__MAX"))}
            name = step_name or step_column(row)
            step = row.get(name) if name else None
            if isinstance(step, (int, float)) and math.isfinite(step):
                yield int(step), {n: v for n, v in row.items() if n not in (name, "epoch")}
            else:
                report.not_stored[NO_STEP] += 1
