"""Compare the rules of a reproduction: on common logs at one acceptance, and each in its own runs at its own range.

`python -m studies.findings` writes the numbers to results/PRESET/TASK/rules.csv and the tables to docs/findings.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.claims.evidence import Log, Tables, logs_of, over_seeds, select
from analysis.claims.quantities import drawdown, final_reward
from analysis.rules.evaluate import TARGETS
from analysis.tables.files import read_tables
from fspo.gradlog import metric_names as metric
from fspo.repro.presets import SIX_RULES
from fspo.stats.intervals import PERCENT, t_quantile

PUBLISHED = "as published"
TREND, LRE, MSE, ACCEPTANCE, REWARD, FALL = "trend", "LRE_2", "MSE", "acceptance", "held-out reward", "fall"
GAIN = "reward less none's"
ON_LOGS, IN_RUNS = (TREND, LRE, MSE), (ACCEPTANCE, TREND, LRE, REWARD, GAIN, FALL)
"""The quantities that the tables show: of all rules on common logs, and of each rule in its own runs."""
RANGE = "range"
REFERENCE, UNCLIPPED = "fspo", "none"
"""The rule by whose MSE the MSE of each rule is divided, and the rule that does not clip."""
_BAND = {"measure": "band", "subset": "all", "use": "first"}
HEAD = f"""## The rules side by side

These tables only describe: their columns were chosen after the runs had been seen, so no verdict follows from them.

On common logs each rule's band keeps the same share of every log. Trend is the change of the acceptance for each
doubling of L; LRE_2 is the [Length Reweighting Error](glossary.md); MSE is the mean squared error of the clipped
update as an estimate of the true one (T12), divided by that of `{REFERENCE}` on the same log, so that less than 1 is
better. Trend and LRE_2 are means over the logs, MSE the median; behind each stand its lowest and highest value.

As published, each rule has its preset's range in its own runs; all other options are those of the embedded model.
The acceptance counts responses in the band, at first use. The held-out reward is the mean over the last fifth of
the evaluations (of five, the last); the next column is the reward less that of the run without a clip (`{UNCLIPPED}`)
with the same seed. Fall is the deepest fall of the training reward below its maximum so far. Each number is the mean
over the seeds with its {PERCENT} interval. A band that cuts little has little trend, so compare the acceptances too.
"""


def rule_rows(runs: Sequence[Path]) -> pd.DataFrame:
    """Return the numbers of all rules from the tables of several analysed runs.

    Returns
    -------
    DataFrame
        Columns rule, at, quantity, value, low, high, number. ``at`` is the acceptance of the band on common logs,
        "0.85" or "0.95", or `PUBLISHED` for the rule's own runs with its preset's range. ``low`` and ``high`` are the
        ends of an interval for `PUBLISHED`, else the lowest and the highest value of all logs. ``number`` says how many
        logs or seeds have a value.
    """
    tables = dict(read_tables(runs))
    training = tables["training"]
    # The unclipped run, which also calibrates ranges, may be longer than the runs of the rules: cut it to their length.
    last = training.loc[training["trained_rule"].isin(SIX_RULES), "rollout"].max()
    tables["training"] = training.loc[training["rollout"] <= last]
    logs = logs_of(tables)
    rows = []
    for rule in (*SIX_RULES, UNCLIPPED):
        for target in sorted(TARGETS) if rule != UNCLIPPED else ():
            for quantity, values in _matched(tables, rule, target):
                centre = np.median if quantity in (MSE, RANGE) else np.mean
                rows.append((rule, f"{target:g}", quantity, *_summary(values, centre)))
        own = {name: [log for log in logs if log.rule == name] for name in (rule, UNCLIPPED)}
        found = dict(_own(tables, own[rule]))
        rewards, others = found[REWARD], dict(_own(tables, own[UNCLIPPED]))[REWARD]
        found[GAIN] = {seed: reward - others.get(seed, np.nan) for seed, reward in rewards.items()}
        rows += [(rule, PUBLISHED, quantity, *_over_seeds(found[quantity])) for quantity in IN_RUNS]
    return pd.DataFrame(rows, columns=["rule", "at", "quantity", "value", "low", "high", "number"])


def _matched(tables: Tables, rule: str, target: float) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each quantity's name and its values on all logs, for a rule whose band keeps the share ``target`` of each
    log's responses."""
    case = {"rule": rule, "source": "matched", "target": target, "outside": "drop"}
    yield TREND, select(tables["trend"], **case, **_BAND)["slope"].to_numpy(float)
    yield LRE, select(tables["lre"], **case, **_BAND, norm="l2")["estimate"].to_numpy(float)
    where = {"reference": "population", "quantity": "mse", "bin": -1}
    found = [
        select(tables["population"], **{**case, "rule": name}, **where).set_index("run")["estimate"]
        for name in (rule, REFERENCE)
    ]
    yield MSE, (found[0] / found[1]).to_numpy(float)
    ranges = select(tables["ranges"], **case, rate="band", use="first")
    yield RANGE, ranges["range_hi"].to_numpy(float)


def _own(tables: Tables, own: Sequence[Log]) -> Iterator[tuple[str, dict[float, float]]]:
    """Yield each quantity's name and its values by seed, for a rule in its own runs ``own``."""

    def by_seed(rows: pd.DataFrame, read: Callable[[pd.DataFrame], float]) -> dict[float, float]:
        found = {log.seed: rows.loc[rows["run"] == log.run] for log in own}
        return {seed: read(some) if len(some) else float("nan") for seed, some in found.items()}

    def only(column: str, rows: pd.DataFrame) -> float:
        return float(rows[column].iloc[0])

    trained = {"source": "trained", **_BAND}
    acceptance = select(tables["acceptance"], **trained, bin=-1)
    yield ACCEPTANCE, by_seed(acceptance, partial(only, "estimate"))
    yield TREND, by_seed(select(tables["trend"], **trained), partial(only, "slope"))
    yield LRE, by_seed(select(tables["lre"], **trained, norm="l2"), partial(only, "estimate"))
    yield REWARD, by_seed(select(tables["training"], name=metric.HELD_OUT_REWARD, phase="eval"), final_reward)
    yield FALL, by_seed(select(tables["training"], name=metric.REWARD, phase="train"), drawdown)


def _summary(values: np.ndarray, centre: Callable[[np.ndarray], Any]) -> tuple[float, float, float, int]:
    known = values[np.isfinite(values)]
    if not len(known):
        return float("nan"), float("nan"), float("nan"), 0
    return float(centre(known)), float(known.min()), float(known.max()), len(known)


def _over_seeds(values: dict[float, float]) -> tuple[float, float, float, int]:
    found = over_seeds(values)
    if isinstance(
        found, str
    ):  # no interval, as a value is missing, seeds are too few or values are equal: return the mean of known values
        known = [value for value in values.values() if np.isfinite(value)]
        return float(np.mean(known)) if known else float("nan"), float("nan"), float("nan"), len(known)
    half = t_quantile(found.df) * found.se_low
    return found.value, found.value - half, found.value + half, len(values)


def section(rules: pd.DataFrame, task: str = "") -> str:
    """Return two Markdown tables of the rows of `rule_rows`: on common logs, and in the rules' own runs."""
    shares = [f"{target:g}" for target in sorted(TARGETS)]
    on_logs = [(f"{quantity} at {float(share):.0%}", share, quantity) for share in shares for quantity in ON_LOGS]
    in_runs = [(quantity, PUBLISHED, quantity) for quantity in IN_RUNS]
    on_task = f" of {task}" if task else ""
    return (
        f"\nOn common logs{on_task}:\n\n"
        + _table(rules.loc[rules["rule"] != UNCLIPPED], on_logs, " ({:z.3f} to {:z.3f})")
        + f"\nAs published, runs{on_task}:\n\n"
        + _table(rules, in_runs, " [{:z.3f}, {:z.3f}]")
    )


def _table(rules: pd.DataFrame, columns: Sequence[tuple[str, str, str]], ends: str) -> str:
    """Return a Markdown table with one line for each rule.

    ``columns`` gives for each column its head and the values of ``at`` and ``quantity`` that select its rows; ``ends``
    is the format in which ``low`` and ``high`` stand behind a value.
    """
    lines = ["| rule | " + " | ".join(head for head, *_ in columns) + " |", "|" + " --- |" * (1 + len(columns))]
    for rule, some in rules.groupby("rule", sort=False):
        cells = []
        for _, at, quantity in columns:
            row = select(some, at=at, quantity=quantity).iloc[0]
            said = "unknown" if np.isnan(row["value"]) else f"{row['value']:z.3f}"
            cells.append(said if np.isnan(row["low"]) else said + ends.format(row["low"], row["high"]))
        lines.append(f"| {rule} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def advice(rules: pd.DataFrame, task: str = "") -> list[str]:
    """Return lines of advice, from the numbers of one task, on the choice of a rule, of its range and of the share that
    it cuts."""
    on_task = f" on {task}" if task else ""

    def value(rule: str, at: str, quantity: str) -> float:
        return float(select(rules, rule=rule, at=at, quantity=quantity)["value"].iloc[0])

    fairest = least_lre(rules)
    said = [
        f"**Rule**{on_task}: as published, `{fairest}` has the least estimate of LRE_2: "
        f"{value(fairest, PUBLISHED, LRE):.3f}, `{REFERENCE}` {value(REFERENCE, PUBLISHED, LRE):.3f}. "
        f"Their held-out rewards are {value(fairest, PUBLISHED, REWARD):.3f} and "
        f"{value(REFERENCE, PUBLISHED, REWARD):.3f}."
    ]
    ranges = []
    for share in sorted(TARGETS):
        row = select(rules, rule=REFERENCE, at=f"{share:g}", quantity=RANGE).iloc[0]
        ranges.append(f"{share:.0%} at {row['value']:.3g} ({row['low']:.2g} to {row['high']:.2g})")
    said.append(
        f"**Range**{on_task}: `{REFERENCE}` keeps {' and '.join(ranges)}: the median over the windows of all logs, "
        "with the lowest and the highest. It depends on how far an update moves the model: `fspo calibrate RUN` finds "
        "that of your log."
    )
    tight, wide = (f"{share:g}" for share in sorted(TARGETS))
    errors = select(rules, at=wide, quantity=MSE)["value"]
    said.append(
        f"**Cut**{on_task}: cut little. `{REFERENCE}` has LRE_2 {value(REFERENCE, tight, LRE):.3f} where it keeps "
        f"{float(tight):.0%} and {value(REFERENCE, wide, LRE):.3f} where it keeps {float(wide):.0%}. Where all rules "
        f"keep {float(wide):.0%}, the medians of their MSE are {errors.min():.3f} to {errors.max():.3f} times "
        f"`{REFERENCE}`'s: the error does not choose between them."
    )
    return said


def least_lre(rules: pd.DataFrame) -> str:
    """Return the rule with the least LRE_2 of all that clip, each in its own runs with its preset's range."""
    own = select(rules, at=PUBLISHED, quantity=LRE)
    return str(own.loc[own["rule"] != UNCLIPPED].sort_values(by="value")["rule"].iloc[0])


def fairest_line(of_tasks: Mapping[str, pd.DataFrame]) -> str:
    """Return a sentence that names, for each task, the rule with the least LRE_2 in its own runs."""
    found = [f"{least_lre(rules)}{f' ({task})' if task else ''}" for task, rules in of_tasks.items()]
    return f"As published, the rule with the least estimate of LRE_2 is {', '.join(found)}."


def gain_line(of_tasks: Mapping[str, pd.DataFrame]) -> str:
    """Return a sentence on the held-out reward of `REFERENCE`'s runs less that of the runs without a clip."""
    found = []
    for task, rules in of_tasks.items():
        row = select(rules, rule=REFERENCE, at=PUBLISHED, quantity=GAIN).iloc[0]
        found.append(f"{row['value']:z.3f} [{row['low']:z.3f}, {row['high']:z.3f}]{f' ({task})' if task else ''}")
    return f"The held-out reward of {REFERENCE}'s runs less that of runs without a clip is {', '.join(found)}."


def readme_line(of_tasks: Mapping[str, pd.DataFrame]) -> str:
    """Return the sentence that README must hold on all rules, each in its own runs with its preset's range.

    `of_tasks` holds the table of `rule_rows` of each task.
    """

    def values(quantity: str) -> str:
        tables = [select(rules, at=PUBLISHED, quantity=quantity).set_index("rule") for rules in of_tasks.values()]
        found = {rule: [f"{table.loc[rule, 'value']:.3f}" for table in tables] for rule in tables[0].index}
        return "; ".join(
            f"{rule} {', '.join(of_rule)}"
            for rule, of_rule in found.items()
            if rule != UNCLIPPED or quantity == REWARD  # without a clip LRE_2 is always 0: leave it out
        )

    tasks = ", ".join(of_tasks)
    return (
        f"[As published](docs/findings.md#the-rules-side-by-side){f' (on {tasks})' if tasks else ''}, LRE_2 is: "
        f"{values(LRE)}. The held-out reward is: {values(REWARD)}."
    )
