"""What the report of a reproduction says, from tables and files as the stages write them."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from analysis.claims.catalogue import HEADLINES
from analysis.doctor.findings import Diagnosis, Evidence, Severity, clear, found, not_checked
from figures import of_runs, of_theory
from figures.page import contents
from figures.page.story import ACTION, CUT, THEORY, UPDATE


def test_claims_and_figures_that_have_a_place_on_the_page_exist():
    placed = {name for names in contents.CLAIMED.values() for name in names}
    assert placed <= {headline.id for headline in HEADLINES}
    figures = {name for names in contents.PLACES.values() for name in names}
    assert figures <= {*of_runs.FIGURES, *of_theory.FIGURES}
    assert contents.LEAD in of_runs.FIGURES


@pytest.fixture
def runs(tmp_path):
    """Two analysed runs: theory gap and assumptions; the second without rows of either."""
    rows = [
        {
            "run": "fspo-seed0",
            "bin": b,
            "part": part,
            "estimate": value,
            "ci_low": value - 0.01,
            "ci_high": value + 0.02,
        }
        for b in (-1, 0)
        for part, value in {"theory": 0.9, "measured": 0.95, "gap": 0.05, "tails": 0.06, "rest": -0.01}.items()
    ]
    tests = [
        {"run": "fspo-seed0", "subset": subset, "use": "first", "name": "exponent H", "count": 10}
        | {"verdict": verdict, "estimate": value, "sentence": f"{verdict}: in words"}
        for subset, verdict, value in (("all", "holds", 0.5125), ("nonzero", "too little data", np.nan))
    ]
    made = []
    for name, gap, assumed, sound in (("fspo-seed0", rows, tests, True), ("none-seed0", [], [], None)):
        folder = tmp_path / name / "analysis"
        folder.mkdir(parents=True)
        pd.DataFrame(gap).to_parquet(folder / "theory_gap.parquet")
        pd.DataFrame(assumed).to_parquet(folder / "assumptions.parquet")
        summary = {"damage": ["3 rows lost"] if sound else [], "warnings": [], "integrity": {"pass": sound}}
        (folder / "summary.json").write_text(json.dumps(summary))
        made.append(tmp_path / name)
    return made


def test_gap_over_all_lengths_with_its_parts(runs):
    ((_, rows),) = contents.theory_gap(runs)
    assert rows == [
        {
            "run": "fspo-seed0",
            "theory": "0.900 [0.890, 0.920]",
            "measured": "0.950 [0.940, 0.970]",
            "gap": "0.050 [0.040, 0.070]",
            "tails": "0.060 [0.050, 0.080]",
            "rest": "−0.010 [−0.020, 0.010]",
        }
    ]
    assert contents.theory_gap(runs[1:]) == []


def lemma_rows(source, held):
    """Six updates' summary: all, some or none of them with a guarantee."""
    key = {"run": "a", "rule": "fspo", "outside": "drop", "source": source, "target": np.nan, "use": "first"}
    values = dict.fromkeys(("kappa", "kappa_c", "eta", "rho", "cosine"), (0.5, 0.4, 0.6, 6, ""))
    few = "fewer than 5 rollouts: no interval"
    values["bound"] = {
        6: (0.8, 0.7, 0.9, 6, ""),
        2: (0.8, np.nan, np.nan, 2, few),
        0: (np.nan, np.nan, np.nan, 0, "no guarantee"),
    }[held]
    values["guaranteed"] = (held / 6, 0.0, 1.0, 6, "")
    names = ("estimate", "ci_low", "ci_high", "count", "reason")
    return [
        {**key, "quantity": name, "updates": 6, "rollouts": 6} | dict(zip(names, found, strict=True))
        for name, found in values.items()
    ]


@pytest.mark.parametrize(
    ("held", "bound"),
    [
        (6, "0.800 [0.700, 0.900]"),
        (2, "0.800 (fewer than 5 rollouts: no interval); no guarantee in 4 of 6"),
        (0, "no guarantee"),
    ],
)
def test_lemma_with_intervals_and_what_has_no_guarantee(tmp_path, held, bound):
    (tmp_path / "analysis").mkdir()
    table = pd.DataFrame([*lemma_rows("trained", held), *lemma_rows("given", 6)])
    table = pd.concat([table, table.assign(use="reused", estimate=9.0)])
    table.to_parquet(tmp_path / "analysis" / "lemma_summary.parquet")
    section = contents.cosine_lemma([tmp_path])
    assert "noise biases" in " ".join(section.notes)
    (_, (row,)), (_, (other,)) = section.tables
    assert row["bound √(1 − ρ²)"] == bound
    assert row["ρ"] == "0.500 [0.400, 0.600]"
    assert row["share with a guarantee"] == f"{held / 6:.3f} [0.000, 1.000]"
    assert (row["target"], row["updates"], other["source"]) == (None, 6, "given")


def test_assumptions_by_run_and_in_words(runs):
    section = contents.assumptions(runs)
    assert [(heading, rows[0]) for heading, rows in section.tables] == [
        ("Verdicts: all responses", {"assumption": "exponent H", "fspo-seed0": "holds (0.5125)"}),
        ("Verdicts: responses with A ≠ 0", {"assumption": "exponent H", "fspo-seed0": "too little data (–)"}),
        (
            "In words: fspo-seed0",
            {"subset": "all", "use": "first", "name": "exponent H", "count": 10, "sentence": "holds: in words"},
        ),
    ]
    assert contents.assumptions(runs[1:]).notes == ["No run has enough rows for a test."]


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
        {"name": "lre_by_rule-supplement-1", "title": "LRE (supplement 1)", "caption": "c", "skipped": ""},
        {"name": "sensitivity_range", "title": "Range", "caption": "c", "skipped": ""},
        {"name": "theory_gap", "title": "Gap", "caption": "", "skipped": "no band"},
    ]
    (first,) = contents.pictures(tmp_path, captions, CUT)
    assert (first.file, first.numbers) == (tmp_path / "lre_by_rule.png", tmp_path / "lre_by_rule.csv")
    assert (first.details, first.chart) == ("more", "lre_by_rule")
    (second,) = contents.pictures(tmp_path, captions, ACTION)
    assert (second.title, second.numbers) == ("Range", None)
    assert contents.pictures(tmp_path, captions, THEORY) == []
    assert contents.lead(tmp_path, captions) is None
    one = {"name": "acceptance_by_length", "title": "A", "caption": "", "skipped": ""}
    assert contents.lead(tmp_path, [one]).title == "A"
    assert contents.pictures(tmp_path, [one], CUT) == []
    assert contents.skipped(captions) == [
        "Not drawn: Gap: no band",
        "Figures of further rules, as files beside the others: lre_by_rule-supplement-1.",
    ]


def test_reuse_and_the_noise_floor_over_everything(runs):
    ends = {"_ci_low": -0.25, "": 0.5, "_ci_high": 1.0}
    quantities = ("out_of_band", "mean_weight", "drift_per_token", "mean_square_per_token")
    numbers = {name + end: value for name in quantities for end, value in ends.items()}
    reused = [
        {"run": "fspo-seed0", "times_used": used, "updates_since_rollout": updates, "count": 7, "ess_share": 0.75}
        | numbers
        for used, updates in ((0, -1), (0, 1), (1, -1))
    ]
    noise = [{"run": "fspo-seed0", "meaning": "padding", "bin": b, "count": 5} | numbers for b in (-1, 0)]
    for run in runs:
        own = run.name == "fspo-seed0"
        pd.DataFrame(reused if own else []).to_parquet(run / "analysis" / "reuse.parquet")
        pd.DataFrame(noise if own else []).to_parquet(run / "analysis" / "noise_floor.parquet")
    rows = contents.reuse(runs)
    assert [(row["run"], row["times used before"], row["responses"]) for row in rows] == [
        ("fspo-seed0", 0, 7),
        ("fspo-seed0", 1, 7),
    ]
    assert rows[0]["mean of exp S"] == rows[0]["out of band"] == "0.5 [−0.25, 1]"
    assert rows[0]["ESS share"] == 0.75
    (row,) = contents.noise(runs)
    assert (row["source"], row["drift per token"], row["mean of S²/L"]) == ("padding", *["0.5 [−0.25, 1]"] * 2)
    assert contents.reuse(runs[1:]) == contents.noise(runs[1:]) == []


def test_claims_stand_with_the_question_that_they_answer():
    claims = [{"id": "C3", "details": {"atoms": {"95-cosine-rloo": {}}}}, {"id": "95-cosine-rloo"}, {"id": "C1"}]
    assert [claim["id"] for claim in contents.claims_of(claims, UPDATE)] == ["C3", "95-cosine-rloo"]
    assert [claim["id"] for claim in contents.claims_of(claims, CUT)] == ["C1"]
    assert contents.claims_of(claims, THEORY) == []
