"""Publish a finished reproduction in results/ (claims, small tables, report, figure) and on the page docs/findings.md.

The page also holds the numbers of results/pretrained/ and results/model_size.csv, which studies/pretrained.py and
studies/model_size.py measure.

    python -m studies.findings out/paper    # after fspo reproduce --preset paper

A reproduction of several tasks is published task by task: those whose claims are judged already. README's picture is
that of the first task. The command prints the lines that README and docs/theory.md must hold.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from analysis.claims.catalogue import HEADLINES, LEARNT
from analysis.claims.evidence import ALPHA
from analysis.stats.fair_exponent import WIDEST, WINDOW
from fspo.base.command_line import CommandParser
from fspo.base.errors import UserError, run_cli
from fspo.base.files import whole_file, write_text
from fspo.repro.presets import PRESETS, TASKS
from fspo.repro.stages import GROUND_FLOOR, Stages, source_digest
from fspo.rules import RIVALS
from fspo.stats.intervals import PERCENT
from studies import findings_tables as tables
from studies import findings_text as text
from studies import findings_verdicts as verdicts
from studies import reproduction_tables, rule_table
from studies.findings_picture import draw, draw_acceptance
from studies.findings_verdicts import JUDGED, TABLES, JudgedTask, read, task_folders
from studies.reproduction_tables import tables_of_task

ROOT = Path(__file__).resolve().parent.parent
PAGE, README_PICTURE = ROOT / "docs" / "findings.md", ROOT / "docs" / "images" / "acceptance.png"
EXPONENTS = ROOT / "docs" / "images" / "fair_exponent.png"
RESULTS = ROOT / "results" / "paper"
"""Results folder of the reproduction that docs/findings.md and README show."""
PRETRAINED, MODEL_SIZE = ROOT / "results" / "pretrained", ROOT / "results" / "model_size.csv"
REPORT, PICTURE = "report.html", "figures/acceptance_by_length.png"
FILES = (JUDGED, *(f"{name}.csv" for name in TABLES))
"""Files of a task's results that the page links to."""
MEASURED = "published"
"""Folder of a task of a reproduction in which its tables are kept until they are published."""


def page(results: Path) -> str:
    """Return the text of docs/findings.md from a folder of results."""
    found = read(results)
    several = len(found) > 1
    missing = [task for task in TASKS if found[0].task and task not in {judged.task for judged in found}]
    pooled = verdicts.main_claims(results) if several and not missing else []
    said = _head(results, found) + "\n" + in_short(found, pooled) + "\n## Verdicts\n\n"
    said += verdicts.side_by_side(pooled, found) if several else ""
    said += f"Not judged yet: {', '.join(missing)}.\n\n" if missing else ""
    for judged in found:
        said += f"### On {judged.task}\n\n" if several else ""
        lines = zip(verdicts.verdict_lines(judged.claims), judged.headlines(), strict=True)
        rows = "".join(f"{line} {verdicts.further(claim, judged.claims)}\n" for line, claim in lines)
        said += text.CLAIMS + rows + "\n"
    said += _how_to_read(results, found) + _law(found)
    said += "\n" + text.FAIR.format(percent=PERCENT, window=WINDOW, widest=WIDEST)
    said += tables.over_runs(tables.of_all_tasks(found, "fair_exponent", "responses"), "responses", 0.5, 2)
    said += "\n" + text.TREND + tables.parts_table(found) + "\n" + rule_table.HEAD
    said += "".join(rule_table.section(judged.tables["rules"], judged.task if several else "") for judged in found)
    said += text.UPDATES + tables.update_table(found) + "\n"
    said += tables.language_model(PRETRAINED) + tables.model_sizes(MODEL_SIZE, PRETRAINED)
    lines = [f"- {line}" for judged in found for line in rule_table.advice(judged.tables["rules"], judged.task)]
    verdict = {claim["id"]: f" ({claim['verdict']})" for claim in (pooled if several else found[0].claims)}
    heads = [h.id for h in HEADLINES if any(rule in part for part in h.atoms for rule in LEARNT)]
    learnt = [head + verdict.get(head, "") for head in heads]
    said += text.ADVICE.format(of_tasks="\n".join(lines), learnt=", ".join(learnt))
    said += "\n" + text.EVERY + verdicts.parts_of_claims(found)
    for judged in found:
        said += (f"On {judged.task}:\n\n" if several else "") + text.PARTS
        for claim in judged.claims:
            if claim not in judged.headlines():
                words = f"{claim['id']} | {claim['statement']} | {verdicts.verdict_of(claim)}"
                said += f"| {words} | {verdicts.further(claim, judged.claims)}\n"
        said += "\n"
    return said.rstrip("\n") + "\n"


def _head(results: Path, found: Sequence[JudgedTask]) -> str:
    first, sizes = found[0].said, PRESETS[results.name]
    return text.HEAD.format(
        preset=results.name,
        tasks=f"tasks {', '.join(task.task for task in found)}; " if found[0].task else "",
        seeds=", ".join(f"{seed:g}" for seed in first["seeds"]),
        commit=first["commit"][:12],
        catalogue=first["catalogue"],
        percent=PERCENT,
        rollouts=sizes.rollouts,
        unclipped=sizes.unclipped_rollouts,
    )


def in_short(found: Sequence[JudgedTask], pooled: Sequence[dict[str, Any]]) -> str:
    """Return the section of docs/findings.md that says in a few sentences what the reproduction showed on each task
    whose claims are judged. ``pooled`` holds the claims over all tasks; it is empty if there are none.
    """
    sets = {f" on {task.task}" if task.task else "": task.headlines() for task in found}
    if pooled:
        sets = {" over all tasks": verdicts.headlines_of(pooled), **sets}
    rules = {task.task: task.tables["rules"] for task in found}
    return text.SHORT.format(
        verdicts="\n".join(verdicts.counts_line(claims, where) for where, claims in sets.items()),
        trends="\n".join(verdicts.trend_lines(found)),
        counts="\n".join(verdicts.trend_counts(found)),
        logs=verdicts.number_of_logs(found),
        level=f"{ALPHA:g}",
        window=WINDOW,
        why=tables.why_line(found),
        edges=tables.edges_line(found),
        fairest=rule_table.fairest_line(rules),
        gain=rule_table.gain_line(rules),
        rivals=" and ".join(RIVALS),
    )


def _how_to_read(results: Path, found: Sequence[JudgedTask]) -> str:
    names = [f"{folder.relative_to(results.parent)}/" for folder in task_folders(results).values()]
    files = [f"[results/{name}{file}](../results/{name}{file})" for name in names for file in FILES]
    weak = verdicts.hardly_supported(found)
    return text.READ.format(level=f"{ALPHA:g}", files=",\n".join(files), weak=weak)


def _law(found: Sequence[JudgedTask]) -> str:
    """Return the section of docs/findings.md on the law of S: claims about it, and S at short and long lengths."""
    said = text.LAW
    for judged in found:
        for claim in judged.claims:
            if claim["id"].startswith("log-"):
                words = f"{claim['estimand']}; in the log that decides "
                words += verdicts.say(*(claim[name] for name in verdicts.INTERVAL))
                said += f"- {judged.on_task}{claim['statement']} *{claim['verdict'].capitalize()}* ({words}).\n"
    return said + text.SHAPE.format(**tables.shape_words()) + tables.law_table(found)


def readme_lines(results: Path = RESULTS) -> list[str]:
    """Return the lines that README must hold about the results: the table of claims with their verdicts, that of the
    rules' trends, and a sentence on the rules as published."""
    found = read(results)
    return [
        *verdicts.verdict_lines(verdicts.main_claims(results)),
        *verdicts.mean_trend_lines(found),
        rule_table.readme_line({judged.task: judged.tables["rules"] for judged in found}),
        *([tables.language_model_line(PRETRAINED)] if PRETRAINED.is_dir() else []),
    ]


def publish(out: Path, results: Path) -> None:
    """Measure the runs of a reproduction's judged tasks, and write the folder of results.

    Tables that were measured before by the same code from the same runs are not measured again. A task's claims are
    written last, so that a command that was killed leaves no claims beside tables of other runs.
    """
    folders = task_folders(out)
    for task, folder in folders.items():
        runs = sorted((folder / "runs").glob("*/"))
        if not (folder / JUDGED).is_file() or not runs:
            raise UserError(f"{out} holds no {JUDGED} or no runs: run `make repro` to its end first")
        measured, place = folder / MEASURED, results / task

        def measure(runs: list[Path] = runs, measured: Path = measured, task: str = task) -> None:
            with tqdm(total=len(runs), desc=task or out.name, unit="run", leave=False) as bar:
                for name, table in tables_of_task(runs, bar.update).items():
                    _write(measured / f"{name}.csv", table)

        def compare(runs: list[Path] = runs, measured: Path = measured) -> None:
            _write(measured / "rules.csv", rule_table.rule_rows(runs))

        keys = [(run / "key.txt").read_text() if (run / "key.txt").is_file() else run.name for run in runs]
        stages = Stages(measured)
        for name, module, work in (("tables", reproduction_tables, measure), ("rules", rule_table, compare)):
            source = source_digest("analysis", module.__name__, *GROUND_FLOOR)
            stages.run(name, {"runs": keys, "source": source}, work)
        place.mkdir(parents=True, exist_ok=True)
        for file in (*(f"{MEASURED}/{name}.csv" for name in TABLES), REPORT, PICTURE, JUDGED):
            shutil.copy(folder / file, place / Path(file).name)
    if set(folders) == set(TASKS):
        pooled = out / JUDGED
        if set(json.loads(pooled.read_text(encoding="utf-8"))["tasks"]) != set(TASKS):
            raise UserError(f"{pooled} is not about all tasks: start `fspo reproduce --preset {out.name}` again")
        shutil.copy(pooled, results / JUDGED)


def _write(path: Path, table: pd.DataFrame) -> None:
    with whole_file(path) as part:
        table.to_csv(part, index=False, float_format="%.4g")


def published() -> str:
    """Return the text of docs/findings.md from the files under results/."""
    return page(RESULTS)


def main() -> int:
    """Copy the results of the reproduction named on the command line into the repository, and write docs/findings.md
    from them."""
    parser = CommandParser(prog="python -m studies.findings", description=__doc__ or "")
    parser.add_argument("folder", type=str, help="folder of a finished reproduction, out/paper")
    out = Path(parser.parse_args().folder)
    if out.name != RESULTS.name:
        raise UserError(
            f"{out} is no reproduction of preset {RESULTS.name}: name its folder, such as out/{RESULTS.name}"
        )
    publish(out, RESULTS)
    write_text(PAGE, published())
    found = read(RESULTS)
    draw_acceptance(found[0], README_PICTURE)
    draw(found, EXPONENTS)
    print(*readme_lines(), *verdicts.practice_lines(found), sep="\n")
    return 0


if __name__ == "__main__":
    run_cli(main)
