"""Write another trainer's scalars to metrics.jsonl.

A scalar that means the same as a metric of this project gets that metric's name. Every other scalar keeps its name
behind the prefix ``imported/``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis.importing.names import COLUMNS, metric_name
from analysis.importing.report import Report
from analysis.importing.sources import Sources, state_records
from analysis.importing.tables import events, read_chunks
from fspo.base.errors import UserError
from fspo.gradlog.metrics_file import MetricsFile


def import_scalars(sources: Sources, run: Path, updates_per_rollout: int, report: Report) -> None:
    """Write metrics.jsonl from every scalar of the sources, one line for each step and phase."""
    lines: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    unknown: dict[str, None] = {}
    for step, name, value in _scalars(sources, report):
        phase, plain, stored, why = metric_name(name)
        if stored in lines[phase, step]:
            continue  # two sources have this scalar: keep the value of the source read first
        lines[phase, step][stored] = value
        if why == "":
            report.metrics[plain if phase == "train" else f"{phase}/{plain}"] = stored
        elif why == "unknown":
            unknown[plain] = None
        else:
            report.different_metrics[plain] = why
    report.unknown_metrics = sorted(unknown)
    report.metric_lines = len(lines)
    MetricsFile(run).write_all(
        {"rollout": max(step - sources.first_step, 0) // updates_per_rollout, "step": step, "phase": phase, **values}
        for (phase, step), values in sorted(lines.items(), key=lambda item: (item[0][1], item[0][0]))
    )


def _scalars(sources: Sources, report: Report) -> Iterator[tuple[int, str, float]]:
    for file in sources.state:
        try:
            records = list(state_records(file))
        except UserError as error:
            report.damage.append(str(error))
            continue
        for step, values in records:
            yield from _numbers(step, values, report)
    for file in sources.scalars:
        for chunk in read_chunks(file, report.damage):
            steps = next((name for name in chunk if name.lower() in COLUMNS["step"]), None)
            columns = {n: c if isinstance(c, list) else c.to_pylist() for n, c in chunk.items()}
            for i in range(len(next(iter(columns.values())))):
                row = {name: values[i] for name, values in columns.items() if name != steps}
                step = columns[steps][i] if steps else None
                if not isinstance(step, (int, float)) or not math.isfinite(step):
                    report.not_stored["lines without a step"] += 1
                    continue
                nested = row.pop("data", None)  # verl's file logger nests the scalars of a step in "data"
                row |= nested if isinstance(nested, dict) else {}
                yield from _numbers(int(step), row, report)
    for file in sources.events:
        for step, tag, value in events(file, report.damage):
            yield from _numbers(step, {tag: value}, report)


def _numbers(step: int, values: Mapping[str, Any], report: Report) -> Iterator[tuple[int, str, float]]:
    for name, value in values.items():
        if value is None or name == "epoch":
            continue
        if isinstance(value, (int, float)) and math.isfinite(value):
            yield step, str(name), float(value)
        else:
            report.not_stored[str(name)] += 1
