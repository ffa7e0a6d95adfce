"""The published claims as lines of Markdown: tables of verdicts, and the sentences about them in README and theory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.claims.catalogue import ATOMS, HEADLINES
from analysis.claims.evidence import ALPHA
from analysis.rules.evaluate import TARGETS
from analysis.tables.acceptance import TREND_MARGIN
from fspo.repro.presets import TASKS
from fspo.rules import COMPARED, RIVALS

JUDGED = "claims.json"
INTERVAL = ("estimate", "ci_low", "ci_high")
TABLES = ("fair_exponent", "trend_parts", "law", "exponent_curve", "acceptance", "updates", "rules")
"""Names of the tables beside a task's claims."""
IN_PRACTICE = (
    ("FSPO's band, all responses: change of $`a(l)`$ for each doubling of $`L`$ is {}", "T1", "85-fspo-flat"),
    ("FSPO's band, responses with $`A \\ne 0`$: change of $`a_{{upd}}(l)`$ is {}", "T1, T11", "85-update-fspo-flat"),
    ("the fixed band, all responses: change of $`a(l)`$ is {}", "T2", "85-rloo-falls"),
    ("the linear band, all responses: change of $`a(l)`$ is {}", "T2", "85-gspo-rises"),
    ("the linear band, $`A \\ne 0`$: change of $`a_{{upd}}(l)`$ is {}", "T2, T11", "85-update-gspo-rises"),
    ("RLOO's $`LRE_2^2`$ less FSPO's is {}", "T1, T2", "85-lre-rloo"),
    ("$`Var(S \\mid L)`$ grows like $`L`$: $`2H-1`$ is {}", "T1", "log-variance"),
    ("the same where $`A \\ne 0`$: $`2H-1`$ is {}", "T1", "log-update-variance"),
    ("mean of $`S`$ is $`-KL\\,L`$: distance in standard deviations is {}", "T3, `fspo-kl`", "log-drift"),
    ("$`S`$ is Gaussian: distance from the normal law is {}", "sections 4 and 6", "log-normal"),
)
"""What theory asks of the data, for which statements, and the part of the claims that judges it, at 85 % accepted where
it is about a band; what this part claims of the number is put in at {}."""


@dataclass(frozen=True)
class JudgedTask:
    """One task of a reproduction whose claims have verdicts: its name ("" if the reproduction has one task), the
    content of claims.json, and the tables of `TABLES` by name."""

    task: str
    said: dict[str, Any]
    tables: Mapping[str, pd.DataFrame]

    @property
    def claims(self) -> list[dict[str, Any]]:
        """The claims judged on the task, each a dict as in claims.json."""
        return self.said["claims"]

    @property
    def on_task(self) -> str:
        """The words that begin a sentence about this task; "" if the reproduction has one task."""
        return f"On {self.task}: " if self.task else ""

    def headlines(self) -> list[dict[str, Any]]:
        """Return the headlines judged on this task of the reproduction: the claims that consist of parts (atoms)."""
        return headlines_of(self.claims)

    def numbers(self, part: str) -> list[dict[str, Any]]:
        """Return the estimates by which the atom with the id ``part`` was judged, with their p-values: one for each
        log, or one that is a mean over seeds."""
        (claim,) = (claim for claim in self.claims if claim["id"] == part)
        return list(claim["details"]["numbers"].values())


def task_folders(folder: Path) -> dict[str, Path]:
    """Return the folder of each judged task of a reproduction by the task's name.

    A reproduction of one task has no folder for the task; the task's name is then "".
    """
    found = {task: folder / task for task in TASKS if (folder / task / JUDGED).is_file()}
    return found or {"": folder}


def read(results: Path) -> list[JudgedTask]:
    """Return the judged tasks that a folder of results holds."""
    return [
        JudgedTask(
            task,
            json.loads((folder / JUDGED).read_text(encoding="utf-8")),
            {name: pd.read_csv(folder / f"{name}.csv", dtype={"at": str}) for name in TABLES},
        )
        for task, folder in task_folders(results).items()
    ]


def main_claims(results: Path) -> list[dict[str, Any]]:
    """Return the claims that README shows: those judged over all tasks together, or those of the first task if some
    task is not judged."""
    file = results / JUDGED
    return (json.loads(file.read_text(encoding="utf-8")) if file.is_file() else read(results)[0].said)["claims"]


def headlines_of(claims: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return those of the ``claims`` that are headlines, leaving out the atoms."""
    return [claim for claim in claims if claim["id"] in {headline.id for headline in HEADLINES}]


def say(value: Any, low: Any, high: Any) -> str:
    """Return an estimate with its interval as text; "unknown" where there is no number."""
    if value is None or np.isnan(value):
        return "unknown"
    ends = ", no interval" if low is None or high is None or np.isnan(low) else f" [{low:z.3f}, {high:z.3f}]"
    return f"{value:z.3f}{ends}"


def verdict_lines(claims: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of the table of verdicts: each headline with its verdict and the estimate that decides it.

    README and docs/findings.md hold these lines; a test compares them with the published claims.
    """
    return [f"| {c['id']} {c['statement']} | {verdict_of(c)} |" for c in headlines_of(claims)]


def verdict_of(claim: dict[str, Any]) -> str:
    """Return two cells of a claim's row in a table of verdicts. The first is the verdict. The second is the estimate
    that decides it, with the relation and margin that the claim states; before it stand the task and the atom that
    decide, if the claim is over all tasks or has atoms."""
    relation = {atom.id: f"{atom.quantity} {{}}; claimed {atom.relation} {atom.margin:g}" for atom in ATOMS}
    verdict = claim["verdict"] + (", exploratory" if claim.get("status") == "exploratory" else "")
    estimate = relation.get(deciding_part(claim), "{}").format(say(*(claim[name] for name in INTERVAL)))
    named = [name for name in deciders(claim) if name in TASKS or name in relation]
    return f"{verdict} | {''.join(f'{name}: ' for name in named)}{estimate}"


def deciding_part(claim: dict[str, Any]) -> str:
    """Return the id of the part (atom) whose estimate decides a claim's verdict; a part decides its own."""
    return next((name for name in deciders(claim) if name not in TASKS), claim["id"])


def deciders(claim: dict[str, Any]) -> list[str]:
    """Return what decides a claim: a task for a claim over all tasks, a part (atom) for a claim that has parts.

    claims.json of versions that lack ``decides`` has the names in the estimand alone.
    """
    named = claim["details"].get("decides", re.findall(r"decides, (\S+?):", claim["estimand"]))
    return [named] if isinstance(named, str) else named


def further(claim: dict[str, Any], claims: Sequence[dict[str, Any]]) -> str:
    """Return the last two columns of a claim's line in a Markdown table of claims: the range of the claim's estimates
    over all logs, with the log that decides, and the distance from the margin that the data would have shown with 80 %
    probability (the claim's power).
    """
    parts = {part["id"]: part["details"].get("numbers", {}) for part in claims}
    numbers = parts.get(deciding_part(claim), {})
    logs = [log for log, number in numbers.items() if number["value"] == claim["estimate"]]
    known = [x["value"] for x in numbers.values() if x["value"] is not None and np.isfinite(x["value"])]
    alone = [sum(x[p] <= ALPHA for x in numbers.values()) for p in ("p for", "p against")]
    every = (
        f"{min(known):z.3f} to {max(known):z.3f}; {logs[0]} decides; {alone[0]} support, {alone[1]} refute, of "
        f"{len(numbers)}"
        if len(known) > 1 and logs
        else "one number"
    )
    seen = distance_seen(claim)
    return f"{every} | {'none' if seen is None else f'{seen:g}'} |"


def distance_seen(claim: dict[str, Any]) -> float | None:
    """Return the distance from the margin that the log with the widest interval shows with 80 % probability.

    A claims.json that an older version wrote has no field ``distance``. The distance is then read from the claim's
    sentence about its power.
    """
    power = claim["details"].get("power", {})
    if "distance" in power:
        return None if power["distance"] is None else float(f"{power['distance']:.2g}")
    seen = re.findall(r"distance of (\S+)", power.get("sentence", ""))
    return float(seen[0]) if seen else None


def hardly_supported(found: Sequence[JudgedTask]) -> str:
    """Name the atoms that are true if their estimand is 0 and whose margin is smaller than the distance seen, each with
    the tasks on which this is so."""
    inside = {
        "within": lambda margin: margin > 0,
        "below": lambda margin: margin > 0,
        "above": lambda margin: margin < 0,
    }
    near = {atom.id for atom in ATOMS if inside[atom.relation](atom.margin)}
    weak: dict[str, list[str]] = {}
    for judged in found:
        for claim in judged.claims:
            seen = distance_seen(claim)
            if claim["id"] in near and seen is not None and seen > abs(claim["margin"]):
                weak.setdefault(claim["id"], []).append(judged.task)
    on_tasks: dict[str, list[str]] = {}
    for name, tasks in weak.items():
        where = "" if not all(tasks) else "on all tasks " if len(tasks) == len(found) else f"on {' and '.join(tasks)} "
        on_tasks.setdefault(where, []).append(f"`{name}`")
    return "; ".join(where + ", ".join(names) for where, names in on_tasks.items()) or "none"


def parts_of_claims(found: Sequence[JudgedTask]) -> str:
    """Return a Markdown table with the verdict on each atom of each headline, a column for each task."""
    lines = [f"| claim | part | {' | '.join(judged.task or 'verdict' for judged in found)} |"]
    lines.append("|" + " --- |" * (2 + len(found)))
    verdicts = [{claim["id"]: claim["verdict"] for claim in judged.claims} for judged in found]
    for headline in HEADLINES:
        for part in headline.atoms:
            cells = " | ".join(of_task.get(part, "not judged") for of_task in verdicts)
            lines.append(f"| {headline.id} | {part} | {cells} |")
    return "\n".join(lines) + "\n\n"


def side_by_side(pooled: Sequence[dict[str, Any]], found: Sequence[JudgedTask]) -> str:
    """Return a Markdown table with the verdict on each headline on each task, and first over all tasks.

    ``pooled`` are the claims over all tasks; empty if some task is not judged.
    """
    columns = ["claim", *(["over all tasks"] if pooled else []), *(judged.task for judged in found)]
    text = f"| {' | '.join(columns)} |\n" + "|" + " --- |" * len(columns) + "\n"
    heads = [headlines_of(pooled)] if pooled else []
    for claims_of_all in zip(*heads, *(judged.headlines() for judged in found), strict=True):
        verdicts = " | ".join(claim["verdict"] for claim in claims_of_all)
        text += f"| {claims_of_all[0]['id']} {claims_of_all[0]['statement']} | {verdicts} |\n"
    return text + "\n"


def counts_line(claims: Sequence[dict[str, Any]], where: str) -> str:
    """Return a Markdown line with the numbers of headlines that are supported, refuted and inconclusive. ``where``
    names the tasks that they are about, such as " on products".
    """
    verdicts = [claim["verdict"] for claim in claims]
    said = ", ".join(f"{verdicts.count(word)} {word}" for word in ("supported", "refuted", "inconclusive"))
    return f"- {len(claims)} claims{where}: {said}."


@dataclass(frozen=True)
class KeptShare:
    """A target acceptance of the claims: an update acceptance (``update``) or a band acceptance, and its value in per
    cent (``share``). The properties are its name in tables, and the beginning of the ids of the atoms about it."""

    update: bool
    share: int

    @property
    def tag(self) -> str:
        """Beginning of the ids of the atoms about this acceptance, such as "85-update"."""
        return f"{self.share}-update" if self.update else f"{self.share}"

    @property
    def words(self) -> str:
        """Name of the acceptance in tables."""
        return f"A != 0, {self.share} % left alone" if self.update else f"all, {self.share} % in the band"


KEPT = [KeptShare(update, round(100 * target)) for update in (True, False) for target in sorted(TARGETS, reverse=True)]
TREND_OF: dict[str, str] = dict(zip(COMPARED, ("rloo-falls", "gspo-rises", "fspo-flat"), strict=True))
"""The part of the claims whose numbers are a rule's trends, after the tag of the acceptance."""


def trend_lines(found: Sequence[JudgedTask]) -> list[str]:
    """Return the lines of the table of docs/findings.md with the change of each rule's acceptance for each doubling of
    the length, at one acceptance on common logs."""
    lines = [
        f"| change for each doubling of L | rule | {' | '.join(judged.task or 'all logs' for judged in found)} |",
        "|" + " --- |" * (2 + len(found)),
    ]
    for kept in KEPT:
        for rule in TREND_OF:
            cells = []
            for judged in found:
                values = _trends(judged, kept, rule)
                cells.append(
                    f"{np.mean(values):z.3f} ({min(values):z.3f} to {max(values):z.3f})" if values else "unknown"
                )
            lines.append(f"| {kept.words} | {rule} | {' | '.join(cells)} |")
    return lines


def mean_trend_lines(found: Sequence[JudgedTask]) -> list[str]:
    """Return the lines of the table that README must hold: the means of `trend_lines`, a line for each rule; a cell has
    the mean of each task."""
    tasks = ", ".join(judged.task for judged in found if judged.task)
    words = " | ".join(kept.words for kept in KEPT)
    lines = [
        f"| on common logs, change for each doubling of L{f' ({tasks})' if tasks else ''} | {words} |",
        "|" + " --- |" * (1 + len(KEPT)),
    ]
    for rule in TREND_OF:
        cells = []
        for kept in KEPT:
            of_tasks = (_trends(judged, kept, rule) for judged in found)
            cells.append(", ".join(f"{np.mean(values):z.3f}" if values else "unknown" for values in of_tasks))
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    return lines


def _trends(judged: JudgedTask, kept: KeptShare, rule: str) -> list[float]:
    return _values(judged.numbers(f"{kept.tag}-{TREND_OF[rule]}"))


def trend_counts(found: Sequence[JudgedTask]) -> list[str]:
    """Return the lines of the table of docs/findings.md that says on how many logs the trends of acceptance of rloo,
    gspo and fspo are what T1 or T2 says, and on how many fspo's trend is smaller in size than that of rloo and of
    gspo."""
    rivals = " | ".join(f"fspo's is smaller in size than {rival}'s" for rival in RIVALS)
    lines = [
        f"| trend of | rloo's falls | gspo's rises | fspo's is within {TREND_MARGIN:g} of 0 | {rivals} |",
        "|" + " --- |" * (4 + len(RIVALS)),
    ]
    so: dict[str, Callable[[float], bool]] = {
        "rloo-falls": lambda trend: trend < 0,
        "gspo-rises": lambda trend: trend > 0,
        "fspo-flat": lambda trend: abs(trend) <= TREND_MARGIN,
        **{f"trend-{rival}": lambda lead: lead > 0 for rival in RIVALS},
    }
    for kept in KEPT:
        cells = []
        for part, holds in so.items():
            numbers = [x for judged in found for x in judged.numbers(f"{kept.tag}-{part}")]
            clear, against = (sum(x[p] <= ALPHA for x in numbers) for p in ("p for", "p against"))
            cells.append(f"{sum(map(holds, _values(numbers)))} ({clear}, {against})")
        lines.append(f"| {kept.words} | {' | '.join(cells)} |")
    return lines


def number_of_logs(found: Sequence[JudgedTask]) -> int:
    """Return how many logs the table of `trend_counts` is about."""
    return sum(len(judged.numbers(f"{KEPT[0].tag}-fspo-flat")) for judged in found)


def _values(numbers: Sequence[dict[str, Any]]) -> list[float]:
    return [x["value"] for x in numbers if x["value"] is not None and np.isfinite(x["value"])]


def practice_lines(found: Sequence[JudgedTask]) -> list[str]:
    """Return the lines of the table that docs/theory.md, section 10, must hold. Each line has one thing that theory
    asks of the data, and for each task the verdict on it with the estimate of the log that decides.
    """
    lines = [
        f"| asked of the data | serves | {' | '.join(judged.task for judged in found)} |",
        "|" + " --- |" * (2 + len(found)),
    ]
    claimed = {a.id: f"{a.relation} {a.margin:g}{' of 0' if a.relation == 'within' else ''}" for a in ATOMS}
    for asked, serves, part in IN_PRACTICE:
        claims = [claim for judged in found for claim in judged.claims if claim["id"] == part]
        cells = [f"{claim['verdict']}, {say(*(claim[name] for name in INTERVAL))}" for claim in claims]
        lines.append(f"| {asked.format(claimed[part])} | {serves} | {' | '.join(cells)} |")
    return lines
