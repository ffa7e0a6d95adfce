"""The contents of the report on runs or on a reproduction, read from run folders and tables.

Only counts and a run's mean acceptance are computed here; all other numbers are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from figures import of_theory
from figures.page.report import Picture, Section, plain
from figures.page.story import ACTION, CUT, HEALTH, QUESTIONS, THEORY, UPDATE, sentences
from figures.tables import Frame
from fspo.base.files import json_lines
from fspo.gradlog import metric_names as metric
from fspo.gradlog.metrics_file import MetricsFile
from fspo.gradlog.run_folder import ANALYSIS, ROLLOUTS, SUMMARY

PLACES = {
    UPDATE: ("cosine_by_rule", "cosine_bound", "error_split"),
    THEORY: ("variance_scaling", "drift_by_sign", *of_theory.FIGURES),
    HEALTH: ("training_curves",),
}
"""Figures by the question of the page that they answer. A figure that is not listed here answers the question `CUT`."""
CLAIMED = {UPDATE: ("C3", "C6"), THEORY: ("C4", "C4u"), HEALTH: ("C5",)}
"""Headlines of claims by the question of the page that they answer. A headline not listed here answers `CUT`."""
LEAD = "acceptance_by_length"
"""The figure on the first screen of the report."""
Row = dict[str, Any]


def pictures(folder: Path, captions: Sequence[Mapping[str, Any]], question: str) -> list[Picture]:
    """Return the drawn figures of ``captions`` that answer ``question``, one of the report's questions. The figure on
    the report's first screen is left out.
    """
    place = {name: asked for asked, names in PLACES.items() for name in names}
    drawn = [f for f in captions if not f["skipped"] and f["name"] != LEAD]
    return [_picture(folder, f) for f in drawn if place.get(f["name"], CUT) == question]


def lead(folder: Path, captions: Sequence[Mapping[str, Any]]) -> Picture | None:
    """Return the figure with which the report begins, `LEAD`; None if it was not drawn."""
    return next((_picture(folder, f) for f in captions if f["name"] == LEAD and not f["skipped"]), None)


def _picture(folder: Path, drawn: Mapping[str, Any]) -> Picture:
    numbers = folder / drawn["numbers"] if "numbers" in drawn else None
    file = folder / f"{drawn['name']}.png"
    return Picture(file, drawn["title"], drawn["caption"], numbers, drawn.get("details", ""), drawn["name"])


def claims_of(claims: Sequence[Mapping[str, Any]], question: str) -> list[Mapping[str, Any]]:
    """Return those of ``claims`` (headlines and atoms) that answer ``question``, one of the report's questions.
    `CLAIMED` says which headlines do; an atom answers the question of the headline that it is part of.
    """
    place = {name: asked for asked, names in CLAIMED.items() for name in names}
    for claim in claims:
        for atom in (claim.get("details") or {}).get("atoms", ()):
            place.setdefault(atom, place.get(claim["id"], CUT))
    return [claim for claim in claims if place.get(claim["id"], CUT) == question]


def story(runs: Sequence[Path], diagnoses: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the sentences about the analysed runs with which the report begins."""
    return sentences({name: read_all(runs, name) for name in ("acceptance", "cosine")}, diagnoses)


def page_sections(
    runs: Sequence[Path],
    diagnoses: Sequence[Mapping[str, Any]],
    folder: Path,
    captions: Sequence[Mapping[str, Any]],
    claims: Sequence[Mapping[str, Any]] = (),
    more: Mapping[str, Section] | None = None,
) -> list[Section]:
    """Return the sections of the page of ``fspo report``, one for each question that the page answers. ``more`` maps a
    question to further contents of its section.
    """
    found = doctor(diagnoses)
    cures = [f"{row['run']}: {row['check']}: {row['cure']}" for row in findings(diagnoses)]
    lost = [line for run in runs for line in warnings(run)]
    notes = {HEALTH: [*found.notes, *lost]}
    notes[ACTION] = [*(cures or ["The doctor asks for nothing."]), *skipped(captions)]
    tables = {HEALTH: found.tables}
    made = []
    for question in QUESTIONS:
        extra = (more or {}).get(question, Section(question))
        made.append(
            Section(
                question,
                [*notes.get(question, ()), *extra.notes],
                [table for table in (*tables.get(question, ()), *extra.tables) if table[1]],
                [*pictures(folder, captions, question), *extra.figures],
                claims_of(claims, question),
            )
        )
    return made


def skipped(captions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each figure that was not drawn, with the reason."""
    return [f"Not drawn: {f['title']}: {f['skipped']}" for f in captions if f["skipped"]]


def warnings(run: Path) -> list[str]:
    """Return the analysis's warnings about a run, and the parts of its log that could not be read, one line each."""
    summary = json.loads((run / ANALYSIS / SUMMARY).read_text(encoding="utf-8"))
    return [f"{run.name}: {line}" for line in (*summary["damage"], *summary["warnings"])]


def read_all(runs: Sequence[Path], name: str) -> Frame:
    """Return one table of several runs, concatenated; runs without rows are left out."""
    found = [pd.read_parquet(run / ANALYSIS / f"{name}.parquet") for run in runs]
    found = [frame for frame in found if len(frame)]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def noise(runs: Sequence[Path]) -> list[Row]:
    """Return a table row for each run and source of numerical noise: what it alone does to S, over all lengths."""
    table = read_all(runs, "noise_floor")
    if table.empty:
        return []
    columns = {"out_of_band": "out of band", "mean_square_per_token": "mean of S²/L"}
    columns |= {"drift_per_token": "drift per token"}
    return [
        {"run": row["run"], "source": row["meaning"], "responses": int(row["count"])}
        | {words: _with_ends(row, name) for name, words in columns.items()}
        for row in table[table["bin"] < 0].to_dict("records")
    ]


def _with_ends(row: Mapping[Any, Any], name: str) -> str:
    low, high = (row[f"{name}_ci_{end}"] for end in ("low", "high"))
    return f"{row[name]:.3g} [{low:.3g}, {high:.3g}]".replace("-", "−")


def doctor(diagnoses: Sequence[Mapping[str, Any]]) -> Section:
    """Return the report's section on the findings of the doctor, which looks for problems in runs. The findings come
    worst first; for each run follow the number of problems that were looked for and not found, and those that could not
    be looked for.
    """
    rank = {"critical": 0, "warning": 1, "info": 2}
    found: list[Row] = []
    counts: list[Row] = []
    for diagnosis in diagnoses:
        run, notes = Path(diagnosis["run"]).name, list(diagnosis["notes"])
        for answer in diagnosis["findings"]:
            evidence = "; ".join(_evidence(item) for item in answer["evidence"])
            row = {"run": run, "severity": answer["severity"], "check": answer["id"], "finding": answer["summary"]}
            found.append({**row, "evidence": evidence, "cure": answer["cure"]})
        missing = "; ".join(f"{a['id']}: {a['summary']}" for a in diagnosis["not_checked"])
        row = {"run": run, "found": len(diagnosis["findings"]), "clear": len(diagnosis["clear"])}
        counts.append({**row, "not checked": missing or None, "notes": "; ".join(notes) or None})
    found.sort(key=lambda row: rank.get(str(row["severity"]), 3))
    notes = [] if found else ["No check found anything."]
    tables = [("What was found", found)] if found else []
    return Section("Findings", notes, [*tables, ("Checks by run", counts)])


def findings(diagnoses: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return a table row for each finding of the doctor, worst first, without its evidence."""
    names = ("run", "severity", "check", "finding", "cure")
    return [
        {name: row[name] for name in names} for _, rows in doctor(diagnoses).tables for row in rows if "cure" in row
    ]


def _evidence(item: Mapping[str, Any]) -> str:
    share = item["unit"] == "share"
    value, low, high = (_number(item[name], share) for name in ("value", "low", "high"))
    text = f"{item['name']}: {value}" + (f" [{low}, {high}]" if item["low"] is not None else "")
    return text + (f" {item['unit']}" if item["unit"] and not share else "")


def _number(value: float | None, share: bool) -> str:
    return plain(value) if value is None or not share else f"{value:.2%}"


def summary(
    claims: Sequence[Mapping[str, Any]],
    checks: Mapping[str, Any],
    diagnoses: Sequence[Mapping[str, Any]],
    runs: Sequence[Path],
) -> list[str]:
    """Return the first lines of the report: how many claims have each verdict, whether all theory checks pass, how many
    logs pass the integrity checks, and in how many runs the doctor found something.
    """
    verdicts = [str(claim["verdict"]) for claim in claims]
    counted = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
    held = "all hold" if checks["exit_status"] == 0 else "SOME FAIL (see Theory)"
    read = [json.loads((run / ANALYSIS / SUMMARY).read_text(encoding="utf-8")) for run in runs]
    sound = sum(bool(found["integrity"]["pass"]) for found in read)
    ill = [Path(d["run"]).name for d in diagnoses if d["findings"]]
    return [
        f"Claims about training: {len(claims)}, of them {counted}; each with its estimate, "
        "margin and power, and an interval where the runs allow one.",
        f"Checks of the theory: {len(checks['rows'])}, {held}.",
        f"Logs: {sound} of {len(runs)} runs pass the integrity checks (T7 and T8 on logged vectors, bands, weights).",
        f"Findings in {len(ill)} of {len(diagnoses)} runs" + (f": {', '.join(ill)}." if ill else "."),
    ]


def check_rows(checks: Mapping[str, Any]) -> list[Row]:
    """Return one table row for each theory check: id, method, verdict, margin and control."""
    wanted = ("id", "method", "verdict", "margin", "control")
    return [{name: row.get(name) for name in wanted} for row in checks["rows"]]


def run_row(run: Path, ranges: Mapping[str, Any]) -> Row:
    """Return a table row for one run: number of rollouts, wanted and realised acceptance, and the first and last reward
    on held-out prompts.
    """
    metrics = MetricsFile(run)
    train, held_out = metrics.of_phase("train"), metrics.of_phase("eval")
    outside = sum(row[metric.OUT_OF_BAND] for row in train) / len(train)
    return {
        "run": run.name,
        "rollouts": len(train),
        "wanted acceptance": ranges.get(run.name.rpartition("-seed")[0], {}).get("target"),
        "realised acceptance": 1 - outside,
        "held-out reward, first": held_out[0][metric.HELD_OUT_REWARD] if held_out else None,
        "held-out reward, last": held_out[-1][metric.HELD_OUT_REWARD] if held_out else None,
        "standard error": held_out[-1][metric.HELD_OUT_STDERR] if held_out else None,
    }


def samples(run: Path) -> list[Row]:
    """Return the longest right and the longest wrong response of a run's last rollout, each with its prompt, length,
    reward and advantage. A response is right if its reward is positive.
    """
    files = sorted((run / ROLLOUTS).glob("rollout-*.jsonl"))
    if not files:
        return []
    with files[-1].open(encoding="utf-8") as stream:
        lines = [line for _, line in json_lines(stream) if not isinstance(line, str)]
    best: dict[bool, Row] = {}
    for line in sorted(lines, key=lambda found: found["length"]):
        best[line["reward"] > 0] = line
    keep = ("prompt", "response", "length", "reward", "advantage")
    title = "{}, rollout {}, response {}"
    return [
        {"title": title.format(run.name, line["rollout"], line["response_id"]), **{k: line[k] for k in keep}}
        for line in best.values()
    ]
