"""Write the report of a complete reproduction: every section of report.html, from the stages' files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures.page import contents
from figures.page.report import Section, write_report


@dataclass(frozen=True)
class Page:
    """What was written: the path of the report, and a line for each run whose log is damaged."""

    path: Path
    damaged: list[str]


def write_page(
    out: Path,
    *,
    preset: str,
    runs: Sequence[Path],
    checks: dict[str, Any],
    theory: list[dict[str, Any]],
    ranges: dict[str, Any],
    claims: list[dict[str, Any]],
    figures: list[dict[str, Any]],
    diagnoses: list[dict[str, Any]],
    trained_sweep: Path | None,
    stages: list[dict[str, Any]],
    provenance: Mapping[str, Any],
) -> Page:
    """Write OUT/report.html.

    Parameters
    ----------
    checks, claims, diagnoses
        Contents of proofs_check.json, claims.json and doctor.json.
    theory, figures
        The rows of captions.json of the theory's figures and of the runs' figures.
    ranges : dict
        Content of calibration.json, by rule; empty where the rules trained as published.
    trained_sweep : path, optional
        Table of the trained sweep, if there is one.
    stages : list of dict
        What each stage was and how long it took.
    """
    drawn = out / "figures"
    damaged = [line for run in runs for line in contents.warnings(run)]
    path = write_report(
        out / "report.html",
        title=f"FSPO: reproduction, preset {preset}",
        summary=contents.summary(claims, checks, diagnoses, runs),
        claims=claims,
        figures=contents.pictures(drawn, figures),
        sections=[
            contents.assumptions(runs),
            contents.sensitivity(trained_sweep, contents.pictures(drawn, figures, "sensitivity")),
            contents.theory_gap(runs, contents.pictures(drawn, figures, "gap")),
            contents.cosine_lemma(runs),
            contents.doctor(diagnoses),
            Section("Notes", notes=[*damaged, *contents.skipped([*figures, *theory])]),
            Section(
                "Theory",
                tables=[("Checks", contents.check_rows(checks))],
                figures=contents.pictures(out / "figures-theory", theory),
            ),
            Section(
                "Tables",
                tables=[
                    *([("Calibrated ranges", [{"rule": n, **fit} for n, fit in ranges.items()])] if ranges else []),
                    ("Runs", [contents.run_row(run, ranges) for run in runs]),
                    ("Reuse: further epochs on the same responses", contents.reuse(runs)),
                    ("Noise floor: S at unchanged weights, all lengths", contents.noise(runs)),
                    ("Stages", stages),
                ],
            ),
        ],
        samples=contents.samples(next((r for r in runs if r.name.startswith("fspo-seed")), runs[-1])),
        provenance=provenance,
    )
    return Page(path, damaged)
