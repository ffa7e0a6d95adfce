"""Publish a finished reproduction in results/ (claims, small tables, report, figure) and on the page docs/findings.md.

The page also holds the numbers of results/pretrained/ and results/model_size.csv, which studies/pretrained.py and
studies/model_size.py measure.

    python -m studies.findings out/paper    # after fspo reproduce --preset paper
    python -m studies.findings out/quick    # after make repro

Of a reproduction of several tasks, those tasks are published whose claims are judged already. README's picture is that
of the first task. The command prints the lines that README and docs/theory.md must hold, except the sentence on the
pretrained model.
"""

from __future__ import annotations

import filecmp
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
from tqdm import tqdm

from analysis.claims.catalogue import ATOMS, HEADLINES, LEARNT
from analysis.claims.evidence import ALPHA
from analysis.log.loading import load_run
from analysis.log.rows import Floats, Ints, windows
from analysis.rules.evaluate import TARGETS
from analysis.stats.fair_exponent import WIDEST, WINDOW, Parts, ResponseSet, fair_exponents, interval, trend_parts
from fspo.base.command_line import CommandParser
from fspo.base.errors import UserError, run_cli
from fspo.base.files import whole_file, write_text
from fspo.repro.presets import PRESETS, TASKS
from fspo.rules import RIVALS
from fspo.stats.clusters import dense
from fspo.stats.intervals import CONFIDENCE, PERCENT
from studies import rule_table

ROOT = Path(__file__).resolve().parent.parent
PAGE, README_PICTURE = ROOT / "docs" / "findings.md", ROOT / "docs" / "images" / "acceptance.png"
RESULTS = ROOT / "results" / "paper"
"""Results folder of the reproduction that docs/findings.md and README show."""
PRETRAINED, MODEL_SIZE = ROOT / "results" / "pretrained", ROOT / "results" / "model_size.csv"
JUDGED, REPORT, PICTURE = "claims.json", "report.html", "figures/acceptance_by_length.png"
TABLES, RULES = ("fair_exponent", "trend_parts"), "rules"
"""Names of the published tables: two that have rows for each run, and one with rows for each rule over all runs."""
FILES = (JUDGED, *(f"{name}.csv" for name in (*TABLES, RULES)))
"""Files of a task's results that the page links to."""
SHARES = (0.75, *sorted(TARGETS))
"""Acceptances of a band at which the fair exponent and the parts of the trend are estimated. A band |S| <= f L^gamma
accepts all lengths alike if gamma is the fair exponent."""
HEAD = """# What the reproduction found

From the runs of `fspo reproduce --preset {preset}` (`results/{preset}/`: {tasks}seeds {seeds}, commit
{commit}, catalogue {catalogue}).
`python -m studies.findings out/{preset}` writes this page. Square brackets hold a {percent} interval, round ones the
lowest and the highest value. All runs train one model of 0.4M parameters at one learning rate for {rollouts} rollouts;
as published, a run differs from another of its seed and task in the rule with its range alone. So nothing here says
what a rule does in longer training, at other learning rates or in larger models, except
[the one pretrained model](#on-a-pretrained-language-model).
"""
SHORT = """## In short

{verdicts}
- Supported means on every log of every task; refuted means that some part fails on some log of some task, so
  [look which](#every-part). Where a claim says that fspo leads, it is compared with
  {rivals} alone.
- {logs}
- {edges}
- Of the [parts of fspo's trend](#why-fspos-acceptance-has-a-trend) at 85 % accepted, the interval excludes 0 for
  {parts}. Chance alone would give {chance:.0f}.
- {fairest}
- {gain}
"""
LAW = """## Which law S follows

T1's simplest model has S normal given L, with the mean -KL L and a variance proportional to L. Of these:
"""
FAIR = """## At which exponent a band is fair

A band |S| <= f L^gamma accepts every length alike where gamma is the fair exponent. With one law of S/sqrt(L) it is 1/2
at every acceptance (T1); [otherwise it depends on how much the band cuts](theory.md) (T17). The upper edge cuts
responses with A > 0, the lower edge those with A < 0; "all" counts |S| whatever A. First-use responses after the first
update of a rollout; the range f is calibrated anew in every window of {window} rollouts, so that changes of S's law
while the model learns do not look like a dependence on the length. Intervals, from resampled prompts, end at -inf or
inf where they go beyond -{widest:g} or {widest:g}. Each cell: lowest to highest estimate of the runs, and how many
runs' intervals lie below and above 1/2.
"""
TREND = """## Why fspo's acceptance has a trend

Change of the acceptance for each doubling of L of a sqrt band around 0 that accepts the share given in every window,
and its parts: the drift of S, its scale (a variance that is not proportional to L), and its shape (the trend that is
left when drift and scale are taken away in each window, in this order). Each cell: lowest to highest estimate of the
runs, and how many runs' intervals lie below and above 0.
"""
LANGUAGE_MODEL = """## On a pretrained language model

One run without a clip of a pretrained model of 268M parameters and 262,144 tokens that learns to count (Gemma 3 270M;
`studies/pretrained.py`, seed {seed}; design and seed were committed before the run): {rows} first-use responses after
an update, to {prompts} prompts, of {shortest} to {longest} tokens. The mean reward was {first:.2f} in the first quarter
of its {rollouts} rollouts and {last:.2f} in the last{ended}. The exponent 2H of
Var(S|L) is {exponent}; T1's model has 1{embedded}.

![Band acceptance by length on the pretrained model](images/pretrained_acceptance.png)

Change of the acceptance for each doubling of L, of each rule at one acceptance; in all three tables ranges are
calibrated anew in every window of {window} rollouts:

{trends}
The fair exponent; T1's model has 1/2 at every acceptance. In {unmoved} of the responses
S is exactly 0: in each update of their rollout before theirs, the rewards were equal within each group, so the weights
had not moved. The fair exponent is unknown if in a window the wanted share of responses has S = 0, or no response has
the sign asked for; an interval is missing if this happens in a resample. Without these {unmoved} responses, a choice
made after the run was seen, the exponent at 85 % of all would be {fair_moved}:

{exponents}
The trend of a sqrt band around 0 and its parts:

{parts}
"""
SIZES = """## The model's size

Runs without a clip of the embedded model and of a wider one of the same build, warmed up alike, on chain-add
(`studies/model_size.py`; learning rates in inverse proportion to the width), and the pretrained model above on its own
task. First-use responses after an update; T1's model has 2H = 1 and the fair exponent 1/2.

"""
READ = """## How to read a verdict

A claim consists of parts; a part is about one estimand and one margin, and is judged on every log, or on the mean over
seeds. Names of parts begin with the acceptance on common logs, with `own` for rules as published, or with `log` for the
law of S.

- A part is supported if the p-value of the hypothesis that it is false is at most {level} on every log. It is refuted
  if, of n logs, n times the smallest p-value of the hypothesis that it is true is at most {level}.
- A claim is supported if all its parts are, and refuted if, of k parts, k times the smallest such p-value is at most
  {level}; over t tasks this is done again with t in place of k. So an interval may lie beyond the margin, or a part be
  refuted, while the claim, which pays for looking at k parts and t tasks, is inconclusive. A part that says that a
  number is within a margin pays for looking at two sides.
- The estimate is that of the part and the log that decide; behind it stands what was claimed of it. The log that
  decides is not a typical one: it speaks most clearly against the part, or least clearly for it. "All logs" is the
  range of all estimates, with the log that decides, and how many logs alone would support and refute the part, each at
  the level {level}.
- "Distance seen" is how far from the margin the truth must lie for the log with the widest interval to show it with
  80 % probability. A part that must hold on all logs sees less well.

What these verdicts cannot say:

- Each is wrong with probability at most {level} if the errors of the estimates follow Student's or the normal law as
  far out as n logs, k parts and t tasks make the test look. The claims are not corrected for each other.
- If the truth were 0, these parts would be supported with a probability below 80 %, because the distance seen exceeds
  their margin: {weak}.
- The lead of one rule over another in trend or LRE_2 on one log has the sum of both rules' errors, which is enough
  however they depend on each other, and often too much.
- A log on which two rules cut alike has a lead of exactly 0 without an error, and leaves a part about this lead
  without support.
- The logs of a seed share prompts and the start of training, so a count of logs is no count of independent runs.
- "Exploratory" marks what was chosen after runs were seen. Estimands, margins and sizes of all other claims were fixed
  before these runs; the hash of the catalogue covers them, not the code that computes them, which the commit names. Of
  the seeds, 11 to 13 had been seen on chain-add in the shorter runs of the preset quick.

[The rules](theory.md#11-how-to-read-a-verdict); estimands, margins and numbers log by log:
{files}.

"""
IN_PRACTICE = (
    ("FSPO's band: change of $`a(l)`$ for each doubling of $`L`$ is {}", "T1", "85-fspo-flat"),
    ("the fixed band: this change is {}", "T2", "85-rloo-falls"),
    ("the linear band: this change is {}", "T2", "85-gspo-rises"),
    ("RLOO's $`LRE_2^2`$ less FSPO's is {}", "T1, T2", "85-lre-rloo"),
    ("$`Var(S \\mid L)`$ grows like $`L`$: $`2H-1`$ is {}", "T1", "log-variance"),
    ("mean of $`S`$ is $`-KL\\,L`$: distance in standard deviations is {}", "T3, `fspo-kl`", "log-drift"),
    ("$`S`$ is Gaussian: distance from the normal law is {}", "sections 4 and 6", "log-normal"),
)
"""What theory asks of the data, for which statements, and the part of the claims that judges it at 85 % accepted; what
this part claims of the number is put in at {}."""
CLAIMS = "| claim | verdict | estimate | all logs | distance seen |\n| --- | --- | --- | --- | --- |\n"
"""Head of the page's table of claims."""
PARTS = "| part | statement | verdict | estimate | all logs | distance seen |\n| --- | --- | --- | --- | --- | --- |\n"
"""Head of the page's table of the claims' parts (atoms)."""
EVERY = """## Every part

What each verdict above is made of: first which parts each claim has, then their estimates.

"""
ADVICE = """## What to do

{of_tasks}
- Look at the fair exponent at the acceptance at which your band cuts, not at the exponent of the variance.
- Where its interval excludes 1/2, a sqrt band cuts lengths unevenly. `fspo-adaptive` estimates the exponent from
  earlier updates, and `fspo-conformal` a factor for each bin of lengths (claims {learnt}).
- Where drift is the largest part, a band around the drift (`fspo-kl`) takes it away; where shape is, no drift and no
  fixed exponent does at every acceptance.
"""


def measured(run: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Measure one run. Return its rows of fair_exponent.csv (the exponents at which a band accepts all lengths alike)
    and of trend_parts.csv (the trend of a sqrt band's acceptance, and the parts that add up to it).
    """
    loaded = load_run(run)
    rows = loaded.rows.use("first")
    rows = rows.take(rows.updates > 0)
    window, key = windows(rows.rollout, WINDOW), {"run": loaded.name, "rule": loaded.trained_rule, "seed": loaded.seed}
    exponents: list[dict[str, Any]] = []
    for responses in get_args(ResponseSet):
        for share, found in zip(SHARES, fair_exponents(rows, SHARES, responses), strict=True):
            exponents.append({**key, "responses": responses, "share": share, **found._asdict()})

    def split(at: Ints) -> Floats:
        return np.concatenate([trend_parts(rows.S[at], rows.length[at], share, window[at]) for share in SHARES])

    names = [(share, part) for share in SHARES for part in Parts._fields]
    parts = [
        {**key, "share": share, "part": part, **found._asdict()}
        for (share, part), found in zip(names, interval(split, dense(rows.cluster)), strict=True)
    ]
    return exponents, parts


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


def headlines_of(claims: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the headlines among the claims, that is those made of parts (atoms)."""
    return [claim for claim in claims if claim["id"] in {headline.id for headline in HEADLINES}]


def verdict_of(claim: dict[str, Any]) -> str:
    """Return two cells of a claim's row in a table of verdicts. The first is the verdict. The second is the estimate
    that decides it, with the margin that the claim sets for it and the names of the task and the part that decide."""
    relation = {atom.id: f"{atom.quantity} {{}}; claimed {atom.relation} {atom.margin:g}" for atom in ATOMS}
    verdict = claim["verdict"] + (", exploratory" if claim.get("status") == "exploratory" else "")
    estimate = relation.get(deciding_part(claim), "{}").format(say(*(claim[name] for name in INTERVAL)))
    named = [name for name in deciders(claim) if name in TASKS or name in relation]
    return f"{verdict} | {''.join(f'{name}: ' for name in named)}{estimate}"


def deciding_part(claim: dict[str, Any]) -> str:
    """Return the id of the part (atom) whose estimate decides a claim's verdict. If the claim is itself a part, that is
    its own id."""
    return next((name for name in deciders(claim) if name not in TASKS), claim["id"])


def deciders(claim: dict[str, Any]) -> list[str]:
    """Return the names of the task and of the part (atom) that decide a claim's verdict, read from the text of its
    estimand. A claim on one task names no task; a claim without parts names no part.
    """
    return re.findall(r"decides, (\S+?):", claim["estimand"])


def further(claim: dict[str, Any], claims: Sequence[dict[str, Any]]) -> str:
    """Return the last two cells of a claim's line in a table. The first has the lowest and the highest estimate of all
    logs and names the log that decides the verdict. The second has the claim's power, as `distance_seen` returns it.
    """
    parts = {part["id"]: part["details"].get("numbers", {}) for part in claims}
    numbers = parts.get(deciding_part(claim), {})
    logs = [log for log, number in numbers.items() if number["value"] == claim["estimate"]]
    known = [x["value"] for x in numbers.values() if x["value"] is not None and np.isfinite(x["value"])]
    alone = [sum(x[p] <= ALPHA for x in numbers.values()) for p in ("p for", "p against")]
    every = (
        f"{min(known):.3f} to {max(known):.3f}; {logs[0]} decides; {alone[0]} support, {alone[1]} refute, of "
        f"{len(numbers)}"
        if len(known) > 1 and logs
        else "one number"
    )
    seen = distance_seen(claim)
    return f"{every} | {'none' if seen is None else f'{seen:g}'} |"


def distance_seen(claim: dict[str, Any]) -> float | None:
    """Return how far from the claim's margin the true value must lie for the log with the widest interval to show with
    80 % probability on which side of the margin it lies; None if the claim has no such number."""
    seen = re.findall(r"distance of (\S+)", claim["details"].get("power", {}).get("sentence", ""))
    return float(seen[0]) if seen else None


def hardly_supported(found: Sequence[JudgedTask]) -> str:
    """Return as text the parts that say that a number is near 0 and could hardly have been supported, each with the
    tasks on which this is so: the part's margin is smaller there than the distance that `distance_seen` returns."""
    near = {atom.id for atom in ATOMS if atom.relation == "within" or (atom.relation == "below" and atom.margin > 0)}
    weak: dict[str, list[str]] = {}
    for judged in found:
        for claim in judged.said["claims"]:
            seen = distance_seen(claim)
            if claim["id"] in near and seen is not None and seen > claim["margin"]:
                weak.setdefault(claim["id"], []).append(judged.task)
    on_tasks: dict[str, list[str]] = {}
    for name, tasks in weak.items():
        where = "" if not all(tasks) else "on all tasks " if len(tasks) == len(found) else f"on {' and '.join(tasks)} "
        on_tasks.setdefault(where, []).append(f"`{name}`")
    return "; ".join(where + ", ".join(names) for where, names in on_tasks.items()) or "none"


def parts_of_claims(found: Sequence[JudgedTask]) -> str:
    """Return a Markdown table with the verdict on each part of each claim on each task."""
    lines = [f"| claim | part | {' | '.join(judged.task or 'verdict' for judged in found)} |"]
    lines.append("|" + " --- |" * (2 + len(found)))
    verdicts = [{claim["id"]: claim["verdict"] for claim in judged.said["claims"]} for judged in found]
    for headline in HEADLINES:
        for part in headline.atoms:
            cells = " | ".join(of_task.get(part, "not judged") for of_task in verdicts)
            lines.append(f"| {headline.id} | {part} | {cells} |")
    return "\n".join(lines) + "\n\n"


@dataclass(frozen=True)
class JudgedTask:
    """One task of a reproduction whose claims have verdicts. The fields are its name ("" if the reproduction has one
    task), the content of claims.json, and the rows of fair_exponent.csv, of trend_parts.csv and of rules.csv."""

    task: str
    said: dict[str, Any]
    exponents: pd.DataFrame
    parts: pd.DataFrame
    rules: pd.DataFrame

    @property
    def on_task(self) -> str:
        """The words that begin a sentence about this task; "" if the reproduction has one task."""
        return f"On {self.task}: " if self.task else ""

    def headlines(self) -> list[dict[str, Any]]:
        """Return the task's headlines: the claims that consist of parts (atoms)."""
        return headlines_of(self.said["claims"])

    def exponents_2H(self) -> list[float]:
        """Return, for each run that has an estimate of it, the exponent 2H with which Var(S|L) grows: like L^(2H)."""
        (claim,) = (claim for claim in self.said["claims"] if claim["id"] == "log-variance")
        numbers = claim["details"].get("numbers", {}).values()
        return [1 + number["value"] for number in numbers if number["value"] is not None]


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
            *(pd.read_csv(folder / f"{name}.csv", dtype={"at": str}) for name in (*TABLES, RULES)),
        )
        for task, folder in task_folders(results).items()
    ]


def main_claims(results: Path) -> list[dict[str, Any]]:
    """Return the claims that README shows: those judged over all tasks together, or those of the first task if some
    task is not judged."""
    file = results / JUDGED
    return (json.loads(file.read_text(encoding="utf-8")) if file.is_file() else read(results)[0].said)["claims"]


def page(results: Path) -> str:
    """Return the text of docs/findings.md from a folder of results."""
    found = read(results)
    said = found[0].said
    several = len(found) > 1
    tasks = f"tasks {', '.join(task.task for task in found)}; " if found[0].task else ""
    missing = [task for task in TASKS if several and task not in {judged.task for judged in found}]
    text = HEAD.format(
        preset=results.name,
        tasks=tasks,
        seeds=", ".join(f"{seed:g}" for seed in said["seeds"]),
        commit=said["commit"][:12],
        catalogue=said["catalogue"],
        percent=PERCENT,
        rollouts=PRESETS[results.name].rollouts,
    )
    text += (
        "\n"
        + in_short(results, found)
        + "\n## Verdicts\n\n"
        + (side_by_side([] if missing else main_claims(results), found) if several else "")
    )
    text += f"Not judged yet: {', '.join(missing)}.\n\n" if missing else ""
    for judged in found:
        text += f"### On {judged.task}\n\n" if several else ""
        lines = zip(verdict_lines(judged.said["claims"]), judged.headlines(), strict=True)
        text += CLAIMS + "".join(f"{line} {further(claim, judged.said['claims'])}\n" for line, claim in lines) + "\n"
    names = [f"{folder.relative_to(results.parent)}/" for folder in task_folders(results).values()]
    files = [f"[results/{name}{file}](../results/{name}{file})" for name in names for file in FILES]
    text += READ.format(level=f"{ALPHA:g}", files=",\n".join(files), weak=hardly_supported(found)) + LAW + "\n"
    for judged in found:
        for claim in judged.said["claims"]:
            if claim["id"].startswith("log-"):
                words = f"{claim['estimand']}; in the log that decides {say(*(claim[n] for n in INTERVAL))}"
                verdict = claim["verdict"].capitalize()
                text += f"- {judged.on_task}{claim['statement']} *{verdict}* ({words}).\n"
    exponents, parts = of_all_tasks(found, "exponents", "responses"), of_all_tasks(found, "parts", "part")
    text += "\n" + FAIR.format(window=WINDOW, widest=WIDEST) + "\n" + over_runs(exponents, "responses", 0.5, 2)
    text += "\n" + TREND + "\n" + over_runs(parts, "part", 0.0, 3) + "\n"
    text += rule_table.HEAD
    text += "".join(rule_table.section(judged.rules, judged.task if several else "") for judged in found)
    text += "\n" + language_model(embedded=[h for judged in found for h in judged.exponents_2H()]) + model_sizes()
    lines = [f"- {line}" for judged in found for line in rule_table.advice(judged.rules, judged.task)]
    learnt = [h.id for h in HEADLINES if any(rule in part for part in h.atoms for rule in LEARNT)]
    text += ADVICE.format(of_tasks="\n".join(lines), learnt=", ".join(learnt))
    text += "\n" + EVERY + parts_of_claims(found)
    for judged in found:
        text += (f"On {judged.task}:\n\n" if several else "") + PARTS
        for claim in judged.said["claims"]:
            if claim not in judged.headlines():
                words = f"{claim['id']} | {claim['statement']} | {verdict_of(claim)}"
                text += f"| {words} | {further(claim, judged.said['claims'])}\n"
        text += "\n"
    return text.rstrip("\n") + "\n"


def in_short(results: Path, found: Sequence[JudgedTask]) -> str:
    """Return the section that answers in a few sentences what the judged tasks showed."""
    sets = {f" on {task.task}" if task.task else "": task.headlines() for task in found}
    if (results / JUDGED).is_file():
        sets = {" over all tasks": headlines_of(main_claims(results)), **sets}
    counts = []
    for where, claims in sets.items():
        verdicts = [claim["verdict"] for claim in claims]
        said = ", ".join(f"{verdicts.count(word)} {word}" for word in ("supported", "refuted", "inconclusive"))
        counts.append(f"- {len(claims)} claims{where}: {said}.")
    table = pd.concat([task.parts for task in found]).query("share == 0.85")
    parts = []
    for part in Parts._fields[1:]:
        rows = table[table["part"] == part]
        parts.append(f"the {part} in {((rows['high'] < 0) | (rows['low'] > 0)).sum()} of {len(rows)} runs")
    return SHORT.format(
        verdicts="\n".join(counts),
        logs=logs_line(results),
        edges=edges_line(results).replace(PAGE.relative_to(ROOT).as_posix(), ""),
        parts=", ".join(parts),
        chance=(1 - CONFIDENCE) * len(table) / len(Parts._fields),
        fairest=rule_table.fairest_line({task.task: task.rules for task in found}),
        gain=gain_line(results),
        rivals=" and ".join(RIVALS),
    )


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


def of_all_tasks(found: Sequence[JudgedTask], name: str, column: str) -> pd.DataFrame:
    """Return the table ``name`` (a field of `JudgedTask`) of all tasks as one table. If there are several tasks, each
    value in ``column`` begins with the task's name."""
    tables = [getattr(judged, name) for judged in found]
    if len(found) > 1:
        tables = [
            table.assign(**{column: f"{judged.task}, " + table[column]})
            for judged, table in zip(found, tables, strict=True)
        ]
    return pd.concat(tables, ignore_index=True)


INTERVAL = ("estimate", "ci_low", "ci_high")


def language_model(folder: Path = PRETRAINED, embedded: Sequence[float] = ()) -> str:
    """Return the section on the pretrained model from the files of its results; "" if there are none.

    ``embedded`` are the exponents 2H of the runs of the embedded model, which the section names beside that of the
    pretrained model.
    """
    if not folder.is_dir():
        return ""
    said = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    exponents, parts, trend = (
        pd.read_csv(folder / f"{name}.csv") for name in ("fair_exponent", "trend_parts", "trend")
    )
    lines = [
        f"| rule | {' | '.join(f'{t:.0%} accepted' for t in sorted(TARGETS))} |",
        "|" + " --- |" * (1 + len(TARGETS)),
    ]
    for rule, some in trend.groupby("rule", sort=False):
        cells = [
            say(row["slope"], row["ci_low"], row["ci_high"]) for row in some.sort_values("target").to_dict("records")
        ]
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    planned = said.pop("planned")
    ended = f" ({planned} were planned; the run ended early for want of time)" if said["rollouts"] < planned else ""
    words = {
        "window": WINDOW,
        "ended": ended,
        "exponent": say(*said.pop("exponent")),
        "fair_moved": say(*said.pop("fair_moved")),
        "embedded": f", and the runs of the embedded model, of 0.4M parameters, have {min(embedded):.3f} to "
        f"{max(embedded):.3f} on the tasks above"
        if embedded
        else "",
        "trends": "\n".join(lines) + "\n",
    }
    return LANGUAGE_MODEL.format(
        **said, **words, exponents=by_share(exponents, "responses"), parts=by_share(parts, "part")
    )


def model_sizes(file: Path = MODEL_SIZE, pretrained: Path = PRETRAINED) -> str:
    """Return the section on models of several sizes from the file of their runs; "" if there is none."""
    if not file.is_file():
        return ""
    columns = ("parameters", "seed", "task", "responses", "tokens", "2H", "fair exponent at 85 %")
    lines = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    runs: list[dict[str, Any]] = [{**row, "task": "chain-add"} for row in pd.read_csv(file).to_dict("records")]
    if pretrained.is_dir():
        said = json.loads((pretrained / "run.json").read_text(encoding="utf-8"))
        fair = pd.read_csv(pretrained / "fair_exponent.csv").query("responses == 'all' and share == 0.85").iloc[0]
        law = dict(zip(("slope_2H", "ci_low", "ci_high"), said["exponent"], strict=True))
        ends = {f"fair_{name}": fair[name] for name in ("value", "low", "high")}
        runs.append({**said, **law, **ends, "parameters": 268e6, "task": "counting"})
    for run in runs:
        law, fair = (
            say(*(run[name] for name in names))
            for names in (("slope_2H", "ci_low", "ci_high"), ("fair_value", "fair_low", "fair_high"))
        )
        size = f"{run['parameters'] / 1e6:.3g}M"
        cells = (size, run["seed"], run["task"], run["rows"], f"{run['shortest']} to {run['longest']}", law, fair)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return SIZES + "\n".join(lines) + "\n\n"


def over_runs(table: pd.DataFrame, column: str, usual: float, digits: int) -> str:
    """Return a Markdown table that sums up the estimates of all runs.

    It has one line for each value of ``column`` (sets of responses, or parts of the trend) and one column for each
    acceptance in `SHARES`. A cell has the lowest and the highest estimate of all runs, and says how many runs'
    intervals lie below and how many above ``usual``, the value that T1 expects.
    """
    lines = [
        f"| {column} |" + "".join(f" {share:.0%} accepted |" for share in SHARES),
        "|" + " --- |" * (1 + len(SHARES)),
    ]
    for value, some in table.groupby(column, sort=False):
        cells = []
        for share in SHARES:
            at = some[some["share"] == share]
            low, high = (f"{number:.{digits}f}" for number in (at["value"].min(), at["value"].max()))
            below, above = (at["high"] < usual).sum(), (at["low"] > usual).sum()
            cells.append(f"{low} to {high}; {below} below, {above} above, of {len(at)}")
        lines.append(f"| {value} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def by_share(table: pd.DataFrame, column: str) -> str:
    """Return a Markdown table of estimates with their intervals: one line for each run and value of ``column`` (sets of
    responses, or parts of the trend), one column for each acceptance in `SHARES`."""
    lines = [f"| run | {column} |" + "".join(f" {share:.0%} accepted |" for share in SHARES), "|" + " --- |" * 5]
    for names, some in table.groupby(["run", column], sort=False):
        run, value = names if isinstance(names, tuple) else (names, "")
        cells = [say(row["value"], row["low"], row["high"]) for row in some.to_dict("records")]
        lines.append(f"| {run} | {value} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def language_model_line(folder: Path = PRETRAINED) -> str:
    """Return the sentence on the pretrained model that README must hold."""
    trend = pd.read_csv(folder / "trend.csv").query("target == 0.85").set_index("rule")
    found = [f"{say(*row[['slope', 'ci_low', 'ci_high']])} in {rule}'s band" for rule, row in trend.iterrows()]
    return (
        "In one run of a [pretrained model of 268M parameters](docs/findings.md#on-a-pretrained-language-model), at "
        f"85 % accepted, the acceptance changes with each doubling of the length by {', '.join(found)}."
    )


def logs_line(folder: Path = RESULTS) -> str:
    """Return the sentence that README must hold on how fspo's acceptance depends on the length.

    The sentence says, at each target acceptance, on how many logs fspo's acceptance has a smaller trend than rloo's and
    than gspo's, and on how many logs the p-value of the log alone would support that.
    """
    numbers: dict[str, list[dict[str, Any]]] = {}
    for judged in read(folder):
        for claim in judged.said["claims"]:
            numbers.setdefault(claim["id"], []).extend(claim["details"].get("numbers", {}).values())

    def leads(share: int, rival: str) -> tuple[int, int, int]:
        found = numbers[f"{share}-trend-{rival}"]
        ahead = sum(x["value"] is not None and x["value"] > 0 for x in found)
        return ahead, sum(x["p for"] <= ALPHA for x in found), len(found)

    first, *others = sorted(round(100 * target) for target in TARGETS)
    (ahead, clear, count), (less, lead, _) = (leads(first, rival) for rival in RIVALS)
    said = (
        f"Where every band keeps {first} % of each of {count} logs, fspo's acceptance has a smaller trend in the "
        f"length than rloo's on {ahead} (clearly on {clear}) and than gspo's on {less} ({lead})"
    )
    for share in others:
        (ahead, clear, _), (less, lead, _) = (leads(share, rival) for rival in RIVALS)
        said += f"; where it keeps {share} %, on {ahead} ({clear}) and on {less} ({lead})"
    return f"{said}. Clearly: p at most {ALPHA:g} on that log alone."


def practice_lines(folder: Path = RESULTS) -> list[str]:
    """Return the lines of the table that docs/theory.md, section 10, must hold. Each line has one thing that theory
    asks of the data, and for each task the verdict on it with the estimate of the log that decides.
    """
    found = read(folder)
    lines = [
        f"| asked of the data | serves | {' | '.join(judged.task for judged in found)} |",
        "|" + " --- |" * (2 + len(found)),
    ]
    claimed = {a.id: f"{a.relation} {a.margin:g}{' of 0' if a.relation == 'within' else ''}" for a in ATOMS}
    for asked, serves, part in IN_PRACTICE:
        claims = [claim for judged in found for claim in judged.said["claims"] if claim["id"] == part]
        cells = [f"{claim['verdict']}, {say(*(claim[name] for name in INTERVAL))}" for claim in claims]
        lines.append(f"| {asked.format(claimed[part])} | {serves} | {' | '.join(cells)} |")
    return lines


def edges_line(folder: Path = RESULTS) -> str:
    """Return the sentence that README must hold on the fair exponents of a band's upper and lower edge. The fair
    exponent is the power of the length with which an edge's distance from 0 must grow to accept all lengths alike."""
    edges = []
    for sign in ("A > 0", "A < 0"):
        ranges = []
        for judged in read(folder):
            at = judged.exponents.query("share == 0.85").groupby("responses")["value"].get_group(sign)
            ranges.append(f"{at.min():.2f} to {at.max():.2f}" + (f" ({judged.task})" if judged.task else ""))
        edges.append(", ".join(ranges))
    where = "docs/findings.md#at-which-exponent-a-band-is-fair"
    return (
        f"Where a band keeps 85 %, its edge for A > 0 would be [fair]({where}) at an exponent of {edges[0]}, "
        f"its edge for A < 0 at {edges[1]}; T1's model without drift has 1/2."
    )


def rules_line(folder: Path = RESULTS) -> str:
    """Return the sentence that README must hold on all rules, each in its own runs with its preset's range."""
    found = read(folder)
    return rule_table.readme_line({judged.task: judged.rules for judged in found})


def gain_line(folder: Path = RESULTS) -> str:
    """Return the sentence that README must hold on what fspo's clip gains in reward."""
    return rule_table.gain_line({judged.task: judged.rules for judged in read(folder)})


def publish(out: Path, results: Path) -> None:
    """Measure the runs of a reproduction's judged tasks, and write the folder of results.

    A task is passed over if ``results`` holds all its files and the same claims.
    """
    folders = task_folders(out)
    for task, folder in folders.items():
        claims, runs = folder / JUDGED, sorted((folder / "runs").glob("*/"))
        if not claims.is_file() or not runs:
            raise UserError(f"{out} holds no {JUDGED} or no runs: run `make repro` to its end first")
        place = results / task
        if all((place / name).is_file() for name in FILES) and filecmp.cmp(claims, place / JUDGED, shallow=False):
            continue
        place.mkdir(parents=True, exist_ok=True)
        for file in (JUDGED, REPORT, PICTURE):
            shutil.copy(folder / file, place / Path(file).name)
        found = [measured(run) for run in tqdm(runs, desc=task or out.name, unit="run", leave=False)]
        for i, name in enumerate(TABLES):
            with whole_file(place / f"{name}.csv") as path:
                table = pd.DataFrame([row for of_run in found for row in of_run[i]])
                table.to_csv(path, index=False, float_format="%.4g")
        with whole_file(place / f"{RULES}.csv") as path:
            rule_table.rule_rows(runs).to_csv(path, index=False, float_format="%.4g")
    if set(folders) == set(TASKS):
        pooled = out / JUDGED
        if set(json.loads(pooled.read_text(encoding="utf-8"))["tasks"]) != set(TASKS):
            raise UserError(f"{pooled} is not about all tasks: start `fspo reproduce --preset {out.name}` again")
        shutil.copy(pooled, results / JUDGED)


def published() -> str:
    """Return the text of docs/findings.md from the files under results/."""
    return page(RESULTS)


def main() -> int:
    """Publish the reproduction named on the command line."""
    parser = CommandParser(prog="python -m studies.findings", description=__doc__ or "")
    parser.add_argument("folder", type=str, help="folder of a finished reproduction, such as out/paper")
    out = Path(parser.parse_args().folder)
    publish(out, RESULTS.parent / out.name)
    write_text(PAGE, published())
    first = next(iter(task_folders(RESULTS).values()))
    shutil.copy(first / Path(PICTURE).name, README_PICTURE)
    lines = logs_line(), edges_line(), rules_line(), gain_line(), *practice_lines()
    print(*verdict_lines(main_claims(RESULTS)), *lines, sep="\n")
    return 0


if __name__ == "__main__":
    run_cli(main)
