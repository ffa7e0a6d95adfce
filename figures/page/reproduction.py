"""Write the report of a complete reproduction: every section of report.html, from the files that the stages wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures.page import contents
from figures.page.report import Section, write_report
from figures.page.story import CUT, HEALTH, THEORY


@dataclass(frozen=True)
class Page:
    """The path of the report that was written, and the lines of `figures.page.contents.warnings`: one for each part of
    a log that could not be read and for each warning of an analysis.
    """

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
    stages: list[dict[str, Any]],
    provenance: Mapping[str, Any],
) -> Page:
    """Write the report of a reproduction, the file report.html in the folder ``out``.

    Parameters
    ----------
    checks, claims, diagnoses
        Contents of proofs_check.json, claims.json and doctor.json.
    theory, figures
        The rows of captions.json of the theory's figures and of the runs' figures.
    ranges : dict
        Content of calibration.json, by rule; empty if the rules trained with their presets' ranges.
    stages : list of dict
        Name of each stage, its seconds, and whether an earlier command had done it.
    """
    drawn = out / "figures"
    damaged = [line for run in runs for line in contents.warnings(run)]
    more = {
        THEORY: Section(
            THEORY,
            contents.skipped(theory),
            [("Checks", contents.check_rows(checks))],
            contents.pictures(out / "figures-theory", theory, THEORY),
        ),
        HEALTH: Section(
            HEALTH,
            contents.summary(claims, checks, diagnoses, runs),
            [
                ("Runs", [contents.run_row(run, ranges) for run in runs]),
                ("Noise floor: S at unchanged weights, all lengths", contents.noise(runs)),
                ("Stages", stages),
            ],
        ),
    }
    if ranges:
        calibrated = [{"rule": name, **fit} for name, fit in ranges.items()]
        more[CUT] = Section(CUT, tables=[("Calibrated ranges", calibrated)])
    path = write_report(
        out / "report.html",
        title=f"FSPO: reproduction, preset {preset}",
        sentences=contents.story(runs, diagnoses),
        lead=contents.lead(drawn, figures),
        sections=contents.page_sections(runs, diagnoses, drawn, figures, claims, more),
        samples=contents.samples(next((r for r in runs if r.name.startswith("fspo-seed")), runs[-1])),
        provenance=provenance,
    )
    return Page(path, damaged)
