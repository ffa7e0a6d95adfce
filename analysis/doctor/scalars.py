"""Examine runs of which only scalar metrics are known, with the package rldoctor if it is installed."""

from __future__ import annotations

import importlib.util
import math
from importlib.metadata import version
from pathlib import Path
from typing import Any

from analysis.doctor.findings import Answer, Severity, found
from analysis.importing.names import FOREIGN
from fspo.gradlog.metrics_file import MetricsFile

PACKAGE, MODULE = "rldoctor", "rl_doctor"
MISSING = (
    f"{PACKAGE} finds trends in scalars (entropy, KL, length, reward): `pip install {PACKAGE}`, then examine again"
)


def records(run: Path) -> list[dict[str, Any]]:
    """Return the train lines of metrics.jsonl, each metric under the name that its trainer gave it; NaN for null."""
    train = MetricsFile(run).of_phase("train")
    plain = [{k.removeprefix(FOREIGN): v for k, v in line.items() if k != "phase"} for line in train]
    return [{k: math.nan if v is None else v for k, v in line.items()} for line in plain]


def by_rldoctor(rows: list[dict[str, Any]]) -> tuple[list[Answer], str]:
    """Return what the package rldoctor finds in lines of metrics, each finding under rldoctor's own name for it.

    Also return a note: which version of rldoctor examined the lines, or how to install it.
    """
    if importlib.util.find_spec(MODULE) is None:
        return [], MISSING
    import rl_doctor  # type: ignore[import-not-found]

    problems = rl_doctor.diagnose(rl_doctor.run_from_records(rows)).problems
    answers = [
        found(
            f"{PACKAGE}: {problem.detector}",
            Severity[problem.severity.name],
            problem.summary,
            "; ".join(problem.prescription) or f"{PACKAGE} names none",
        )
        for problem in problems
    ]
    return answers, f"{PACKAGE} {version(PACKAGE)} looked at {len(rows)} lines of scalars"
