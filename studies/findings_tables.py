"""The published tables as Markdown and as sentences of docs/findings.md and README."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from scipy import special

from analysis.claims.evidence import select
from analysis.rules.evaluate import TARGETS
from analysis.stats.fair_exponent import WINDOW
from studies import findings_text as text
from studies.findings_verdicts import INTERVAL, JudgedTask, say
from studies.reproduction_tables import FAR, NEAR, OF_LAW, SETS, SHARES, UNCLIPPED

SHARE = min(TARGETS)
"""Accepted share at which sentences name exponents."""
REFERENCES = ("population", "fresh")
ENDS, SLOPE = ("value", "low", "high"), ("slope", "ci_low", "ci_high")


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with the column names ``head`` and the cells ``rows``."""
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def of_all_tasks(found: Sequence[JudgedTask], name: str, column: str) -> pd.DataFrame:
    """Return the table ``name`` of all tasks as one table. If there are several tasks, each value in ``column`` begins
    with the task's name."""
    tables = [judged.tables[name] for judged in found]
    if len(found) > 1:
        tables = [
            table.assign(**{column: f"{judged.task}, " + table[column]})
            for judged, table in zip(found, tables, strict=True)
        ]
    return pd.concat(tables, ignore_index=True)


def over_runs(table: pd.DataFrame, column: str, usual: float, digits: int) -> str:
    """Return a Markdown table that sums up the estimates of all runs.

    It has one line for each value of ``column`` (sets of responses, or parts of the trend) and one column for each
    acceptance in `SHARES`. A cell has the lowest and the highest estimate of all runs, and says how many runs'
    intervals lie below and how many above ``usual``, the value that T1 expects.
    """
    rows = []
    for value, some in table.groupby(column, sort=False):
        cells = []
        for share in SHARES:
            at = select(some, share=share)
            low, high = (f"{number:z.{digits}f}" for number in (at["value"].min(), at["value"].max()))
            below, above = (at["high"] < usual).sum(), (at["low"] > usual).sum()
            cells.append(f"{low} to {high}; {below} below, {above} above, of {len(at)}")
        rows.append([str(value), *cells])
    return grid([column, *(f"{100 * share:.0f} % accepted" for share in SHARES)], rows)


def parts_table(found: Sequence[JudgedTask]) -> str:
    """Return the Markdown table of the trend of the sqrt band's acceptance, and of the parts of the trend that are due
    to drift, scale and shape of S: for all responses, and for those with A != 0."""
    parts = of_all_tasks(found, "trend_parts", "responses")
    named = parts.assign(part=parts["responses"] + ", " + parts["part"])
    return over_runs(named, "part", 0.0, 3)


def law_table(found: Sequence[JudgedTask]) -> str:
    """Return the Markdown table of how S is distributed in the shortest and the longest bin of lengths."""
    columns = {
        "share": "share of the responses",
        "sd": "standard deviation of S/sqrt(L)",
        "near": f"within {NEAR:g} standard deviations",
        "far": f"beyond {FAR:g} standard deviations",
        **{f"q{100 * share:g}": f"{100 * share:.0f} % quantile of |S|/sqrt(L)" for share in sorted(TARGETS)},
    }
    rows = []
    for judged in found:
        law = judged.tables["law"]
        for responses in OF_LAW:
            some = select(law, responses=responses)
            for name, here in zip(("shortest", "longest"), shortest_and_longest(some), strict=True):
                cells = [_mean_and_range(some.loc[here, column]) for column in columns]
                rows.append([f"{judged.task}, {responses}".lstrip(", "), name, *cells])
    return grid(["responses", "bin", *columns.values()], rows)


def shortest_and_longest(law: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Return which rows of the table law are about the shortest, and which about the longest bin of a run."""
    lengths = law.groupby("run")["bin_lo"]
    return tuple(lengths.transform(name) == law["bin_lo"] for name in ("min", "max"))  # type: ignore[return-value]


def first(rows: pd.DataFrame, names: Sequence[str]) -> str:
    """Return the estimate in the first of ``rows`` as text, with its interval if ``names`` names the ends' columns too.

    ``names`` holds the column of the estimate, or those of the estimate and of the interval's two ends.
    """
    if not len(rows):
        return "unknown"
    value, *ends = (rows[name].iloc[0] for name in names)
    return say(value, *ends) if ends else f"{value:z.3f}"


def _mean_and_range(values: pd.Series) -> str:
    return f"{values.mean():z.3f} ({values.min():z.3f} to {values.max():z.3f})"


def shape_words() -> dict[str, Any]:
    """Return the numbers in the text above `law_table`: the rollouts of a window, and the shares of a normal law near
    its mean and far from it.
    """
    near, far = 2 * special.ndtr(NEAR) - 1, 2 * special.ndtr(-FAR)
    return {"window": WINDOW, "near_normal": f"{near:.1%}", "far_normal": f"{far:.2%}"}


def update_table(found: Sequence[JudgedTask]) -> str:
    """Return Markdown tables, one for each task: for each rule, the cosine of its clipped update with the true update
    (population and fresh), and its mean squared error."""
    said = []
    for judged in found:
        table = judged.tables["updates"]
        shown = table.loc[table["rule"] != UNCLIPPED]
        rows = []
        for (rule, outside), some in shown.groupby(["rule", "outside"], sort=False):
            cells = []
            for target in sorted(TARGETS):
                for reference, quantity in (*((name, "cosine") for name in REFERENCES), ("population", "mse")):
                    one = select(some, target=target, reference=reference, quantity=quantity)
                    cells.append(first(one, INTERVAL))
            rows.append([str(rule), str(outside), *cells])
        head = [f"{name} at {100 * target:.0f} %" for target in sorted(TARGETS) for name in (*REFERENCES, "MSE")]
        updates = max(map(int, table["updates"]), default=0)
        on_task = f"On {judged.task}, " if judged.task else ""
        said.append(f"{on_task}{updates} updates:\n\n" + grid(["rule", "outside", *head], rows))
    return "\n".join(said)


def why_line(found: Sequence[JudgedTask]) -> str:
    """Return the sentences on why a band's acceptance over all responses differs from that over those with A != 0: how
    much more frequent A = 0 is among short responses, and which fair exponent T19 predicts from that alone."""
    said = []
    for judged in found:
        law, curve = judged.tables["law"], judged.tables["exponent_curve"]
        moving = select(law, responses="A != 0")
        short, long = (float(moving.loc[here, "share"].mean()) for here in shortest_and_longest(moving))
        at = select(curve, share=SHARE)
        measured, both, active = (first(select(at, responses=name), ENDS) for name in SETS)
        predicted = first(select(at, responses="predicted"), ENDS[:1])
        prefix = f"on {judged.task} " if judged.task else ""
        said.append(
            f"{prefix}A = 0 in {100 * (1 - short):.0f} % of the shortest and {100 * (1 - long):.0f} % of the longest "
            f"responses, and the fair exponent of all responses is {measured}, where T19 predicts {predicted}; that of "
            f"A != 0, cut at the edge on the side of A, is {active}, and {both} if both edges count"
        )
    return (
        "Where they are more frequent among short responses, a band over all responses accepts short ones more often "
        "([T19](theory.md#t19)). In the runs without a clip, a band that accepts "
        f"{100 * SHARE:.0f} %: {'; '.join(said)}. A [fair exponent](#at-which-exponent-a-band-is-fair) makes the band "
        "accept every length alike; T1's model has 1/2."
    )


def edges_line(found: Sequence[JudgedTask]) -> str:
    """Return the sentence of docs/findings.md on the fair exponents of a band's upper and lower edge. The fair
    exponent is the power of the length with which an edge's distance from 0 must grow to accept all lengths alike."""
    tasks = [f" ({judged.task})" if judged.task else "" for judged in found]
    ranges, above, below = [], [], []
    for sign in ("A != 0", "A > 0", "A < 0"):
        at = [select(judged.tables["fair_exponent"], share=SHARE, responses=sign) for judged in found]
        ends = [f"{x['value'].min():z.2f} to {x['value'].max():z.2f}" for x in at]
        ranges.append(", ".join(f"{x}{task}" for x, task in zip(ends, tasks, strict=True)))
        above.append(sum((x["low"] > 1 / 2).sum() for x in at))
        below.append(sum((x["high"] < 1 / 2).sum() for x in at))
    runs = sum(len(x) for x in at)
    return (
        f"Where a band leaves {100 * SHARE:.0f} % of the responses with A != 0 alone, its fair exponent for them is "
        f"{ranges[0]}, lowest to highest of all runs; but that of its upper edge alone (A > 0) is {ranges[1]}, with "
        f"its interval above 1/2 in {above[1]} of {runs} runs and below in {below[1]}, and that of its lower edge "
        f"(A < 0) {ranges[2]}, above in {above[2]} and below in {below[2]}. Of A > 0 a sqrt band cuts long responses "
        "more often where the exponent is above 1/2, of A < 0 short ones where it is below; over both signs together "
        "the two cancel in part."
    )


def language_model(folder: Path) -> str:
    """Return the section on the pretrained model from the files of its runs; "" if there are none."""
    runs = sorted(path.parent for path in folder.glob("*/run.json")) if folder.is_dir() else []
    if not runs:
        return ""
    said = text.LANGUAGE_MODEL
    for run in runs:
        found = json.loads((run / "run.json").read_text(encoding="utf-8"))
        planned, done = found["planned"], found["rollouts"]
        ended = f" of {planned} planned (it ended early)" if done < planned else ""
        moved = found.get("exponent_nonzero")
        said += (
            f"- `{run.name}`: {done} rollouts{ended}, {found['rows']} first-use responses after an update, to "
            f"{found['prompts']} prompts, of {found['shortest']} to {found['longest']} tokens; mean reward "
            f"{found['first']:.2f} in the first and {found['last']:.2f} in the last quarter of the rollouts; S is "
            f"exactly 0 in {found['unmoved']} responses, because in the updates before theirs the rewards were equal "
            f"within each group. 2H: {say(*found['exponent'])}"
            + (f"; where A != 0 {say(*moved)}" if moved else "")
            + ".\n"
        )
    said += (
        "\nChange of the acceptance for each doubling of L, at one acceptance; in all tables of this section ranges "
        f"are calibrated anew in every window of {WINDOW} rollouts:\n\n"
    )
    trends = pd.concat([trends_of(run).assign(run=run.name) for run in runs], ignore_index=True)
    rows = []
    for run, measure, rule in dict.fromkeys(zip(trends["run"], trends["measure"], trends["rule"], strict=True)):
        some = select(trends, run=run, measure=measure, rule=rule)
        cells = [first(select(some, target=target), SLOPE) for target in sorted(TARGETS)]
        rows.append([run, "all" if measure == "band" else "A != 0", rule, *cells])
    said += grid(["run", "responses", "rule", *(f"{100 * t:.0f} %" for t in sorted(TARGETS))], rows)
    said += (
        "\nThe fair exponent; T1's model has 1/2 at every acceptance. It is unknown if in a window the wanted share of "
        "responses has S = 0, or no response has the sign asked for; an interval is missing if this happens in a "
        "resample.\n\n"
    )
    said += _by_share(runs, "fair_exponent", ["responses"])
    said += (
        "\nThe trend of a sqrt band around 0 and its parts; their intervals are from resampled prompts, those of the "
        "first table from Student's law:\n\n"
    )
    return said + _by_share(runs, "trend_parts", ["responses", "part"]) + "\n"


def trends_of(run: Path) -> pd.DataFrame:
    """Return the table ``trend`` of a pretrained model's run.

    The file of the first pretrained run has no column ``measure``: all its trends are of band acceptance.
    """
    table = pd.read_csv(run / "trend.csv")
    return table if "measure" in table else table.assign(measure="band")


def _by_share(runs: Sequence[Path], name: str, columns: list[str]) -> str:
    """Return a Markdown table of estimates with intervals: a line for each run and value of ``columns``, a column for
    each acceptance in `SHARES`."""
    table = pd.concat([pd.read_csv(run / f"{name}.csv").assign(run=run.name) for run in runs], ignore_index=True)
    if "responses" not in table:
        table["responses"] = "all"
    table["responses"] = table["responses"].fillna("all")
    rows = []
    for names, some in table.groupby(["run", *columns], sort=False):
        cells = [first(select(some, share=share), ENDS) for share in SHARES]
        rows.append([*map(str, names if isinstance(names, tuple) else (names,)), *cells])
    return grid(["run", *columns, *(f"{100 * share:.0f} % accepted" for share in SHARES)], rows)


def language_model_line(folder: Path) -> str:
    """Return the sentence on the pretrained model that README must hold."""
    said = []
    for run in sorted(path.parent for path in folder.glob("*/run.json")):
        trend = trends_of(run)
        for measure, of in (("band", "of all responses"), ("update", "of those with A != 0")):
            at = select(trend, target=SHARE, measure=measure)
            cells = [f"{rule} {first(select(at, rule=rule), SLOPE)}" for rule in at["rule"]]
            if cells:
                said.append(f"`{run.name}`, {of}: {', '.join(cells)}")
    return (
        "On a [pretrained model of 268M parameters](docs/findings.md#on-a-pretrained-language-model), at "
        f"{100 * SHARE:.0f} % kept, the acceptance changes with each doubling of the length by: {'; '.join(said)}."
    )


def model_sizes(file: Path, pretrained: Path) -> str:
    """Return the section on models of several sizes from the file of their runs; "" if there is none."""
    if not file.is_file():
        return ""
    runs: list[dict[str, Any]] = [{**row, "task": "chain-add"} for row in pd.read_csv(file).to_dict("records")]
    for path in sorted(pretrained.glob("*/run.json")):
        said = json.loads(path.read_text(encoding="utf-8"))
        exponents = pd.read_csv(path.parent / "fair_exponent.csv")
        found = {}
        for stem, responses in (("fair", "all"), ("fair_nonzero", "A != 0")):
            at = select(exponents, share=SHARE, responses=responses)
            found |= {f"{stem}_{name}": at[name].iloc[0] for name in ENDS if len(at)}
        law = dict(zip(("slope_2H", "ci_low", "ci_high"), said["exponent"], strict=True))
        runs.append({**said, **law, **found, "parameters": 268e6, "task": f"counting, `{path.parent.name}`"})
    rows = []
    for run in runs:
        law, fair, moved = (
            say(*(run[name] for name in names)) if names[0] in run else "not measured"
            for names in (
                ("slope_2H", "ci_low", "ci_high"),
                ("fair_value", "fair_low", "fair_high"),
                ("fair_nonzero_value", "fair_nonzero_low", "fair_nonzero_high"),
            )
        )
        size, lengths = f"{run['parameters'] / 1e6:.3g}M", f"{run['shortest']} to {run['longest']}"
        rows.append([size, str(run["seed"]), run["task"], str(run["rows"]), lengths, law, fair, moved])
    share = f"{100 * SHARE:.0f} %"
    head = ["parameters", "seed", "task", "responses", "tokens", "2H", f"fair exponent at {share}, all", "A != 0"]
    return text.SIZES + grid(head, rows) + "\n"
