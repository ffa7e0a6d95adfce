"""What the report of a reproduction says, from tables and files as the stages write them."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from analysis.claims.catalogue import HEADLINES
from analysis.doctor.findings import Diagnosis, Evidence, Severity, clear, found, not_checked
from figures import of_runs, of_theory
from figures.page import contents
from figures.page.story import CUT, THEORY, UPDATE


def test_claims_and_figures_that_have_a_place_on_the_page_exist():
    placed = {name for names in contents.CLAIMED.values() for name in names}
    assert placed <= {headline.id for headline in HEADLINES}
    figures = {name for names in contents.PLACES.values() for name in names}
    assert figures <= {*of_runs.FIGURES, *of_theory.FIGURES}
    assert contents.LEAD in of_runs.FIGURES


@pytest.fixture
def runs(tmp_path):
    """Two analysed runs; of the first, rows were lost."""
    made = []
    for name, sound in (("fspo-seed0", True), ("none-seed0", None)):
        folder = tmp_path / name / "analysis"
        folder.mkdir(parents=True)
        summary = {"damage": ["3 rows lost"] if sound else [], "warnings": [], "integrity": {"pass": sound}}
        (folder / "summary.json").write_text(json.dumps(summary))
        made.append(tmp_path / name)
    return made


def test_findings_worst_first_with_evidence_and_cure(runs):
    diagnoses = [
        Diagnosis(
            "out/a-seed0",
            "fspo",
            10,
            (
                found(
                    "drift", Severity.WARNING, "too large", "a drift", Evidence("share", 0.125, 0.0625, 0.25, "share")
                ),
                clear("s_zero", "S moves"),
                not_checked("numerics", "no noise floor"),
            ),
        ),
        Diagnosis(
            "out/b-seed0", "rloo", 10, (found("s_zero", Severity.CRITICAL, "S is 0", "reuse", Evidence("x", 2)),)
        ),
        Diagnosis("out/c-seed0", "gspo", 10, (clear("s_zero", "S moves"),), ("no scores",)),
    ]
    plain = json.loads(json.dumps([d.to_dict() for d in diagnoses]).replace("NaN", "null"))
    section = contents.doctor(plain)
    (_, rows), (_, counts) = section.tables
    assert [(r["run"], r["severity"], r["check"], r["cure"]) for r in rows] == [
        ("b-seed0", "critical", "s_zero", "reuse"),
        ("a-seed0", "warning", "drift", "a drift"),
    ]
    assert [r["evidence"] for r in rows] == ["x: 2", "share: 12.50% [6.25%, 25.00%]"]
    assert counts == [
        {"run": "a-seed0", "found": 1, "clear": 1, "not checked": "numerics: no noise floor", "notes": None},
        {"run": "b-seed0", "found": 1, "clear": 0, "not checked": None, "notes": None},
        {"run": "c-seed0", "found": 0, "clear": 1, "not checked": None, "notes": "no scores"},
    ]
    claims = [{"verdict": v} for v in ("supported", "inconclusive", "supported")]
    lines = contents.summary(claims, {"exit_status": 0, "rows": [1, 2]}, plain, runs)
    assert "Claims about training: 3, of them 2 supported, 1 inconclusive" in lines[0]
    assert lines[1:] == [
        "Checks of the theory: 2, all hold.",
        "Logs: 1 of 2 runs pass the integrity checks (T7 and T8 on logged vectors, bands, weights).",
        "Findings in 2 of 3 runs: a-seed0, b-seed0.",
    ]
    assert "SOME FAIL" in contents.summary(claims, {"exit_status": 1, "rows": []}, [], runs)[1]
    assert contents.doctor(plain[2:]).notes == ["No check found anything."]
    assert contents.warnings(runs[0]) == ["fspo-seed0: 3 rows lost"]


def test_figures_stand_in_their_sections(tmp_path):
    captions = [
        {"name": "lre_by_rule", "title": "LRE", "caption": "c", "skipped": "", "numbers": "lre_by_rule.csv"}
        | {"details": "more"},
        {"name": "error_split", "title": "Split", "caption": "c", "skipped": ""},
        {"name": "variance_scaling", "title": "Variance", "caption": "", "skipped": "no bin"},
    ]
    (first,) = contents.pictures(tmp_path, captions, CUT)
    assert (first.file, first.numbers) == (tmp_path / "lre_by_rule.png", tmp_path / "lre_by_rule.csv")
    assert (first.details, first.chart) == ("more", "lre_by_rule")
    (second,) = contents.pictures(tmp_path, captions, UPDATE)
    assert (second.title, second.numbers) == ("Split", None)
    assert contents.pictures(tmp_path, captions, THEORY) == []
    assert contents.lead(tmp_path, captions) is None
    one = {"name": "acceptance_by_length", "title": "A", "caption": "", "skipped": ""}
    assert contents.lead(tmp_path, [one]).title == "A"
    assert contents.pictures(tmp_path, [one], CUT) == []
    assert contents.skipped(captions) == ["Not drawn: Variance: no bin"]


def test_the_noise_floor_over_everything(runs):
    ends = {"_ci_low": -0.25, "": 0.5, "_ci_high": 1.0}
    quantities = ("out_of_band", "drift_per_token", "mean_square_per_token")
    numbers = {name + end: value for name in quantities for end, value in ends.items()}
    noise = [{"run": "fspo-seed0", "meaning": "padding", "bin": b, "count": 5} | numbers for b in (-1, 0)]
    for run in runs:
        own = run.name == "fspo-seed0"
        pd.DataFrame(noise if own else []).to_parquet(run / "analysis" / "noise_floor.parquet")
    (row,) = contents.noise(runs)
    assert (row["source"], row["drift per token"], row["mean of S²/L"]) == ("padding", *["0.5 [−0.25, 1]"] * 2)
    assert contents.noise(runs[1:]) == []


def test_claims_stand_with_the_question_that_they_answer():
    claims = [{"id": "C3", "details": {"atoms": {"95-cosine-rloo": {}}}}, {"id": "95-cosine-rloo"}, {"id": "C1"}]
    assert [claim["id"] for claim in contents.claims_of(claims, UPDATE)] == ["C3", "95-cosine-rloo"]
    assert [claim["id"] for claim in contents.claims_of(claims, CUT)] == ["C1"]
    assert contents.claims_of(claims, THEORY) == []
