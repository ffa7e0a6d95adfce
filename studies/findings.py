"""Publish a finished reproduction: results/quick/ (claims and small tables) and the page docs/findings.md.

The page also holds the numbers of results/pretrained/, which studies/pretrained.py measures.

    python studies/findings.py out/quick    # after make repro

It prints the lines that README must hold, but for the sentence on the pretrained model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.claims.catalogue import ATOMS
from analysis.claims.evidence import ALPHA
from analysis.log.loading import load_run
from analysis.log.rows import Floats, Ints, windows
from analysis.rules.evaluate import TARGETS
from analysis.stats.fair_exponent import SIGNS, WIDEST, WINDOW, Parts, fair_exponents, interval, trend_parts
from fspo.base.command_line import CommandParser
from fspo.base.errors import UserError, run_cli
from fspo.base.files import whole_file, write_text
from fspo.rules import COMPARED
from fspo.stats.clusters import dense
from fspo.stats.intervals import PERCENT

ROOT = Path(__file__).resolve().parent.parent
PAGE, RESULTS = ROOT / "docs" / "findings.md", ROOT / "results" / "quick"
PRETRAINED = ROOT / "results" / "pretrained"
SHARES = (0.75, *sorted(TARGETS))
"""Shares of responses that a band accepts, at which the fair exponent is estimated."""
HEAD = """# What the reproduction found

From the runs of `make repro` (`results/quick/`: seeds {seeds}, commit {commit}, catalogue {catalogue}).
`studies/findings.py` writes this page. Each number has its {percent} interval.
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
and its parts: the drift of S, its scale (a variance that is not proportional to L), and its shape (laws that differ in
more than both). Each cell: lowest to highest estimate of the runs, and how many runs' intervals lie below and above 0.
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
The fair exponent; T1's model has 1/2 at every acceptance:

{exponents}
The trend of a sqrt band around 0 and its parts:

{parts}
"""
READ = """## How to read a verdict

A claim consists of parts; a part is about one estimand and one margin, and is judged on every log, or on the mean over
seeds. A part is supported if the p-value of the hypothesis that it is false is at most {level} on every log. It is
refuted if, of n logs, n times the smallest p-value of the hypothesis that it is true is at most {level}. A claim is
supported if all its parts are, and refuted if, of k parts, k times the smallest such p-value is at most {level}: so a
part alone may be refuted while its claim, which pays for looking at k parts, is inconclusive. The estimate is that of
the part and log that decide; behind it stands what was claimed of it. The last column is the distance from the margin
that the data would have shown with 80 % probability, the claim's power. The log that decides is not a typical one: it
is the one that speaks most clearly against the part, or least clearly for it; "all logs" is the range of all estimates,
with the name of the log that decides. Each verdict alone is wrong with probability at most {level}; the claims are not
corrected for each other. "Exploratory" marks what was chosen after runs were seen; all other claims were
fixed before. [The rules](theory.md#11-how-to-read-a-verdict); estimands, margins and numbers log by log:
[results/quick/claims.json](../results/quick/claims.json), [fair_exponent.csv](../results/quick/fair_exponent.csv),
[trend_parts.csv](../results/quick/trend_parts.csv).

"""
CLAIMS = "| claim | verdict | estimate | all logs | distance seen |\n| --- | --- | --- | --- | --- |\n"
"""Head of the table of claims."""
PARTS = "| part | statement | verdict | estimate | all logs | distance seen |\n| --- | --- | --- | --- | --- | --- |\n"
"""Head of the table of the claims' parts."""
EVERY = """## Every part

What each verdict above is made of.

"""
ADVICE = """## What to do

- Look at the fair exponent at the acceptance at which your band cuts, not at the exponent of the variance.
- Where its interval excludes 1/2, a sqrt band cuts lengths unevenly. `fspo-adaptive` estimates the exponent from
  earlier updates; its verdicts (C7) stand above.
- Where drift is the largest part, a band around the drift (`fspo-kl`) takes it away; where shape is, no drift and no
  fixed exponent does at every acceptance.
"""


def measured(run: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of fair_exponent.csv and of trend_parts.csv for one run."""
    loaded = load_run(run)
    rows = loaded.rows.use("first")
    rows = rows.take(rows.updates > 0)
    window, key = windows(rows.rollout, WINDOW), {"run": loaded.name, "rule": loaded.trained_rule, "seed": loaded.seed}
    exponents: list[dict[str, Any]] = []
    for name, sign in SIGNS.items():
        for share, found in zip(SHARES, fair_exponents(rows, SHARES, sign), strict=True):
            exponents.append({**key, "responses": name, "share": share, **found._asdict()})

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
    ends = ", no interval" if low is None or high is None or np.isnan(low) else f" [{low:.3f}, {high:.3f}]"
    return f"{value:.3f}{ends}"


def verdict_lines(claims: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of the table of verdicts: each headline with the estimate that decides it.

    README and docs/findings.md hold these lines; a test compares them with results/quick/claims.json.
    """
    return [f"| {c['id']} {c['statement']} | {verdict(c)} |" for c in claims if "atoms" in c["details"]]


def verdict(claim: dict[str, Any]) -> str:
    """Return two cells of a claim's line: its verdict, and the estimate that decides beside what was claimed of it."""
    relation = {atom.id: f"{atom.quantity} {{}}; claimed {atom.relation} {atom.margin:g}" for atom in ATOMS}
    verdict = claim["verdict"] + (", exploratory" if claim.get("status") == "exploratory" else "")
    return f"{verdict} | {relation.get(deciding_part(claim), '{}').format(say(*(claim[name] for name in INTERVAL)))}"


def deciding_part(claim: dict[str, Any]) -> str:
    """Return the name of the part that decides a claim; a part decides itself."""
    return claim["id"] if "atoms" not in claim["details"] else re.findall(r"decides, (.+?):", claim["estimand"])[0]


def further(claim: dict[str, Any], claims: Sequence[dict[str, Any]]) -> str:
    """Return the last two cells of a claim's line: the range of its estimates over all logs, with the log that decides,
    and the distance from the margin that its data show with 80 % probability.
    """
    parts = {part["id"]: part["details"].get("numbers", {}) for part in claims}
    values = {log: number["value"] for log, number in parts.get(deciding_part(claim), {}).items()}
    logs = [log for log, value in values.items() if value == claim["estimate"]]
    known = [value for value in values.values() if value is not None and np.isfinite(value)]
    every = f"{min(known):.3f} to {max(known):.3f}; {logs[0]} decides" if len(known) > 1 and logs else "one number"
    seen = re.findall(r"distance of (\S+)", claim["details"].get("power", {}).get("sentence", ""))
    return f"{every} | {seen[0] if seen else 'none'} |"


def page(said: dict[str, Any], exponents: pd.DataFrame, parts: pd.DataFrame) -> str:
    """Return the text of docs/findings.md from claims.json and the two tables."""
    seeds = ", ".join(f"{seed:g}" for seed in said["seeds"])
    text = HEAD.format(seeds=seeds, commit=said["commit"][:12], catalogue=said["catalogue"], percent=PERCENT)
    heads = zip(verdict_lines(said["claims"]), (c for c in said["claims"] if "atoms" in c["details"]), strict=True)
    text += (
        "\n## Verdicts\n\n" + CLAIMS + "".join(f"{line} {further(claim, said['claims'])}\n" for line, claim in heads)
    )
    text += "\n" + READ.format(level=f"{ALPHA:g}") + LAW + "\n"
    for claim in said["claims"]:
        if claim["id"].startswith("log-"):
            words = f"{claim['estimand']}; in the log that decides {say(*(claim[n] for n in INTERVAL))}"
            text += f"- {claim['statement']} *{claim['verdict'].capitalize()}* ({words}).\n"
    exponents_2H = [
        1 + number["value"]
        for claim in said["claims"]
        if claim["id"] == "log-variance"
        for number in claim["details"].get("numbers", {}).values()
        if number["value"] is not None
    ]
    text += (
        "\n"
        + FAIR.format(window=WINDOW, widest=WIDEST)
        + "\n"
        + over_runs(exponents, "responses", 0.5, 2)
        + "\n"
        + TREND
        + "\n"
        + over_runs(parts, "part", 0.0, 3)
    )
    text += (
        "\n"
        + language_model(embedded=exponents_2H)
        + ADVICE
        + "\n## Run by run\n\nThe fair exponent:\n\n"
        + by_share(exponents, "responses")
    )
    text += "\nThe trend and its parts:\n\n" + by_share(parts, "part") + "\n" + EVERY + PARTS
    every = [c for c in said["claims"] if "atoms" not in c["details"]]
    return text + "".join(
        f"| {c['id']} | {c['statement']} | {verdict(c)} | {further(c, said['claims'])}\n" for c in every
    )


INTERVAL = ("estimate", "ci_low", "ci_high")


def language_model(folder: Path = PRETRAINED, embedded: Sequence[float] = ()) -> str:
    """Return the section on the pretrained model from the files of its results; "" if there are none.

    ``embedded`` are the exponents 2H of the runs of the embedded model, which the section names beside its own.
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
        "embedded": f", and the runs of the embedded model, of 0.4M parameters, have {min(embedded):.3f} to "
        f"{max(embedded):.3f} on another task; no model of a size between was trained"
        if embedded
        else "",
        "trends": "\n".join(lines) + "\n",
    }
    return LANGUAGE_MODEL.format(
        **said, **words, exponents=by_share(exponents, "responses"), parts=by_share(parts, "part")
    )


def over_runs(table: pd.DataFrame, column: str, usual: float, digits: int) -> str:
    """Return a Markdown table with one line for each value of a column, and one column for each share: the lowest and
    the highest estimate of all runs, and how many runs' intervals lie below and above ``usual``.
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
    """Return a Markdown table with one line for each run and value of a column, and one column for each share."""
    lines = [f"| run | {column} |" + "".join(f" {share:.0%} accepted |" for share in SHARES), "|" + " --- |" * 5]
    for names, some in table.groupby(["run", column], sort=False):
        run, value = names if isinstance(names, tuple) else (names, "")
        cells = [say(row["value"], row["low"], row["high"]) for row in some.to_dict("records")]
        lines.append(f"| {run} | {value} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def language_model_line(folder: Path = PRETRAINED) -> str:
    """Return the sentence on the pretrained model that README must hold."""
    trend = pd.read_csv(folder / "trend.csv").query("target == 0.85").set_index("rule")
    found = [f"{say(*trend.loc[rule, ['slope', 'ci_low', 'ci_high']])} in {rule}'s band" for rule in COMPARED]
    return (
        "On a [pretrained model of 268M parameters](docs/findings.md#on-a-pretrained-language-model), at 85 % accepted,"
        f" the acceptance changes with each doubling of the length by {', '.join(found)}."
    )


def edges_line(folder: Path = RESULTS) -> str:
    """Return the sentence on the fair exponents of the two edges that README must hold."""
    at = pd.read_csv(folder / "fair_exponent.csv").query("share == 0.85")
    edges = (at["value"][at["responses"] == sign] for sign in ("A > 0", "A < 0"))
    up, down = (f"{of_edge.min():.2f} to {of_edge.max():.2f}" for of_edge in edges)
    where = "docs/findings.md#at-which-exponent-a-band-is-fair"
    return (
        f"Its edge for A > 0 would be [fair]({where}) at an exponent of {up}, that for A < 0 at {down} (T1: 1/2) "
        "in every window of a run where it keeps 85 %."
    )


def publish(out: Path, results: Path, target: Path) -> None:
    """Measure the runs of a finished reproduction and write the folder of results and the page."""
    claims, runs = out / "claims.json", sorted((out / "runs").glob("*/"))
    if not claims.is_file() or not runs:
        raise UserError(f"{out} holds no claims.json or no runs: run `make repro` to its end first")
    said = json.loads(claims.read_text(encoding="utf-8"))
    found = [measured(run) for run in runs]
    tables = [pd.DataFrame([row for both in found for row in both[i]]) for i in range(2)]
    results.mkdir(parents=True, exist_ok=True)
    write_text(results / "claims.json", claims.read_text(encoding="utf-8"))
    for name, table in zip(("fair_exponent", "trend_parts"), tables, strict=True):
        with whole_file(results / f"{name}.csv") as path:
            table.to_csv(path, index=False, float_format="%.4g")
    write_text(target, page(said, *tables))


def published() -> str:
    """Return the text of docs/findings.md from the files under results/."""
    said = json.loads((RESULTS / "claims.json").read_text(encoding="utf-8"))
    return page(said, *(pd.read_csv(RESULTS / f"{name}.csv") for name in ("fair_exponent", "trend_parts")))


def main() -> int:
    """Publish the reproduction named on the command line."""
    parser = CommandParser(prog="python studies/findings.py", description=__doc__ or "")
    parser.add_argument("folder", type=str, help="folder of one finished reproduction, such as out/quick")
    publish(Path(parser.parse_args().folder), RESULTS, PAGE)
    claims = json.loads((RESULTS / "claims.json").read_text(encoding="utf-8"))["claims"]
    print(*verdict_lines(claims), edges_line(), sep="\n")
    return 0


if __name__ == "__main__":
    run_cli(main)
