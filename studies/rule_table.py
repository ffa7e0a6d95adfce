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

from analysis.claims.catalogue import Responses
from analysis.claims.evidence import NAN, Log, Tables, logs_of, over_seeds, select
from analysis.claims.quantities import ACCEPTED, drawdown, final_reward
from analysis.rules.evaluate import TARGETS
from analysis.tables.files import read_tables
from fspo.gradlog import metric_names as metric
from fspo.repro.presets import SIX_RULES
from fspo.stats.intervals import PERCENT, sample_interval

PUBLISHED = "as published"
REFERENCE, UNCLIPPED, AROUND_DRIFT = "fspo", "none", "fspo-kl"
"""The rule that the others are compared with, the rule that does not clip, and the rule with the reference's band
around the drift of S."""
TREND, LRE, MSE, ACCEPTANCE, REWARD, FALL = "trend", "LRE_2", "MSE", "acceptance", "held-out reward", "fall"
GAIN, LAG = f"reward less {UNCLIPPED}'s", f"reward less {REFERENCE}'s"
SIZE, RANGE = f"size of trend less {REFERENCE}'s", "range"
OF: dict[Responses, str] = {"all": "", "nonzero": " of A != 0"}
"""What follows the name of a quantity, by the responses whose acceptance it is about."""
NONZERO = OF["nonzero"]
OF_RESPONSES: dict[Responses, str] = {"nonzero": "of the responses with A != 0", "all": "of all responses"}
"""The responses in words, first those from which the clip takes gradient."""
SECOND = ", second pass"
"""What follows the name of a quantity of responses that the run has trained on before, in its first pass."""
ON_LOGS: dict[str, tuple[str, ...]] = {
    "": (TREND, LRE),
    ", responses with A != 0": (TREND + NONZERO, LRE + NONZERO, MSE),
}
IN_RUNS: dict[str, tuple[str, ...]] = {
    "": (ACCEPTANCE, TREND, LRE, REWARD, GAIN, LAG, FALL),
    ", responses with A != 0": (ACCEPTANCE + NONZERO, TREND + NONZERO, LRE + NONZERO),
    ", responses with A != 0 in the second pass": tuple(x + NONZERO + SECOND for x in (ACCEPTANCE, TREND, LRE)),
}
"""The quantities that the tables show, by the end of a table's title: of all rules on common logs, and of each rule in
its own runs. The MSE is of bands that leave the same share of the responses with A != 0 alone."""
SAME_ERROR = 0.05
"""If no rule's median MSE is farther than this from that of `REFERENCE`, as a share of it, the advice says that the
error does not choose between the rules."""
OF_LOGS, OF_SEEDS = " ({:z.3f} to {:z.3f})", " [{:z.3f}, {:z.3f}]"
"""How the ends stand behind a value: the lowest and the highest value of all logs, or an interval over seeds."""
HEAD = f"""## The rules side by side

These tables only describe: their columns were chosen after the runs had been seen, so no verdict follows from them.

On common logs each rule's band keeps the same share of every log. In the tables about A != 0, the responses with a
gradient, each rule instead leaves the same share of these responses alone, at other ranges. Trend is the change of
this share for each doubling of L; LRE_2 is its [Length Reweighting Error](glossary.md); MSE is the mean squared error
of the clipped update as an estimate of the true one (T12), divided by that of `{REFERENCE}` on the same log, so that
less than 1 is better. Trend and LRE_2 are means over the logs, MSE the median; behind each stand its lowest and
highest value.

As published, each rule has its preset's range in its own runs; all other options are those of the embedded model.
The acceptance counts responses in the band, or of those with A != 0 the ones left alone, at first use. The held-out
reward is the mean over the last fifth of the evaluations (of five, the last); the next two columns are the reward less
that of the run without a clip (`{UNCLIPPED}`), and less that of `{REFERENCE}`, with the same seed. Fall is the deepest
fall of the training reward below its maximum so far. Each number is the mean over the seeds with its {PERCENT}
interval; it has none if a seed lacks the number, if all seeds have the same, or if seeds are too few. The rules cut
unlike shares in their own runs, and a band that cuts little has little trend, so compare the acceptances too. In short
runs of chain-add, with other seeds, in which each rule's range followed one band acceptance, the rewards of rloo and
fspo [did not differ](which_rule.md#in-training).
"""


def rule_rows(runs: Sequence[Path]) -> pd.DataFrame:
    """Return what was measured of every rule (acceptance, LRE, cosine, reward, ...), from the tables of analysed runs.

    Returns
    -------
    DataFrame
        Columns rule, at, quantity, value, low, high, number. ``at`` is the acceptance of the band on common logs,
        "0.85" or "0.95", or `PUBLISHED` for the rule's own runs with its preset's range. A quantity whose name ends
        with "of A != 0", and the MSE, are about the responses with A != 0; on common logs, ``at`` is then the share of
        these responses that the rule leaves alone. ``low`` and ``high`` are the ends of an interval for `PUBLISHED`,
        else the lowest and the highest of all values. ``number`` says how many logs or seeds have a value; for the
        quantity `RANGE`, the upper range of the band in a window, how many windows of all logs.
    """
    tables = dict(read_tables(runs))
    training = tables["training"]
    # The unclipped run, which also calibrates ranges, may be longer than the runs of the rules: cut it to their length.
    last = training.loc[training["trained_rule"].isin(SIX_RULES), "rollout"].max()
    tables["training"] = training.loc[training["rollout"] <= last]
    logs = [log for log in logs_of(tables) if log.rule in (*SIX_RULES, UNCLIPPED)]
    seeds = sorted({log.seed for log in logs})
    own = {
        rule: dict(_own(tables, [log for log in logs if log.rule == rule], seeds)) for rule in (*SIX_RULES, UNCLIPPED)
    }
    rows = []
    for rule, found in own.items():
        for target in sorted(TARGETS) if rule != UNCLIPPED else ():
            for quantity, values in _matched(tables, rule, target):
                centre = np.median if quantity in (MSE, RANGE) else np.mean
                rows.append((rule, f"{target:g}", quantity, *_summary(values, centre)))
        for quantity, other in ((GAIN, UNCLIPPED), (LAG, REFERENCE)):
            theirs = own[other][REWARD]
            found[quantity] = {seed: reward - theirs[seed] for seed, reward in found[REWARD].items()}
        shown = (quantity for quantities in IN_RUNS.values() for quantity in quantities)
        rows += [(rule, PUBLISHED, quantity, *_over_seeds(found[quantity])) for quantity in shown]
    return pd.DataFrame(rows, columns=["rule", "at", "quantity", "value", "low", "high", "number"])


def _matched(tables: Tables, rule: str, target: float) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of each quantity that the tables of rules on common logs show (trend, LRE_2, MSE, range, ...),
    with its values on all logs, for a rule whose range is matched: it keeps the share ``target`` of each log's
    responses in its band, or, in quantities about A != 0, leaves this share of these responses alone."""
    case = {"source": "matched", "target": target, "outside": "drop"}

    def by_log(table: str, column: str, name: str = rule, **where: Any) -> Any:
        return select(tables[table], rule=name, **case, **where).set_index("run")[column]

    for responses, accepted in ACCEPTED.items():
        yield TREND + OF[responses], by_log("trend", "slope", **accepted).to_numpy(float)
        yield LRE + OF[responses], by_log("lre", "estimate", **accepted, norm="l2").to_numpy(float)
    slopes = [by_log("trend", "slope", name, **ACCEPTED["all"]).abs() for name in (rule, REFERENCE)]
    yield SIZE, (slopes[0] - slopes[1]).to_numpy(float)
    error = {"reference": "population", "quantity": "mse", "bin": -1}
    errors = [by_log("population", "estimate", name, **error) for name in (rule, REFERENCE)]
    yield MSE, (errors[0] / errors[1]).to_numpy(float)
    yield RANGE, by_log("ranges", "range_hi", rate="band", use="first").to_numpy(float)


def _own(tables: Tables, own: Sequence[Log], seeds: Sequence[float]) -> Iterator[tuple[str, dict[float, float]]]:
    """Yield, for the runs ``own`` that one rule trained, the name of each quantity of the table of rules (acceptance,
    trend, reward, ...) and its values by seed.

    ``seeds`` are those of the runs of all rules. A seed has no value (NaN) if the rule has no run or several runs with
    it.
    """
    runs = {seed: [log.run for log in own if log.seed == seed] for seed in seeds}

    def by_seed(rows: pd.DataFrame, read: Callable[[pd.DataFrame], float]) -> dict[float, float]:
        found = {seed: rows.loc[rows["run"] == names[0]] for seed, names in runs.items() if len(names) == 1}
        return {seed: read(found[seed]) if len(found.get(seed, ())) else NAN for seed in seeds}

    def only(column: str, rows: pd.DataFrame) -> float:
        return float(rows[column].iloc[0])

    of_uses = {OF[responses]: accepted for responses, accepted in ACCEPTED.items()}
    of_uses[NONZERO + SECOND] = ACCEPTED["nonzero"] | {"use": "reused"}
    for of, accepted in of_uses.items():
        trained = {"source": "trained", **accepted}
        acceptance = select(tables["acceptance"], **trained, bin=-1)
        yield ACCEPTANCE + of, by_seed(acceptance, partial(only, "estimate"))
        yield TREND + of, by_seed(select(tables["trend"], **trained), partial(only, "slope"))
        yield LRE + of, by_seed(select(tables["lre"], **trained, norm="l2"), partial(only, "estimate"))
    yield REWARD, by_seed(select(tables["training"], name=metric.HELD_OUT_REWARD, phase="eval"), final_reward)
    yield FALL, by_seed(select(tables["training"], name=metric.REWARD, phase="train"), drawdown)


def _summary(values: np.ndarray, centre: Callable[[np.ndarray], Any]) -> tuple[float, float, float, int]:
    known = values[np.isfinite(values)]
    if not len(known):
        return NAN, NAN, NAN, 0
    return float(centre(known)), float(known.min()), float(known.max()), len(known)


def _over_seeds(values: Mapping[float, float]) -> tuple[float, float, float, int]:
    """Return the mean of a quantity over those seeds of a rule's runs that have a value of it, both ends of the mean's
    interval, and the number of these seeds.

    The ends are NaN where `over_seeds` gives no mean: if a seed has no value, if seeds are too few, or if all values
    are equal.
    """
    known = [value for value in values.values() if np.isfinite(value)]
    mean, *ends = sample_interval(known)
    low, high = (NAN, NAN) if isinstance(over_seeds(values), str) else ends
    return mean, low, high, len(known)


def section(rules: pd.DataFrame, task: str = "") -> str:
    """Return Markdown: tables of the quantities in ``rules`` (made by `rule_rows`), with a line for each rule. Two are
    about common logs and three about the rules' own runs; the first of either is about all responses, the others about
    those with A != 0.
    """
    shares = [f"{target:g}" for target in sorted(TARGETS)]
    places = {f"On common logs{f' of {task}' if task else ''}": (ON_LOGS, shares, OF_LOGS)}
    places[f"As published, runs{f' of {task}' if task else ''}"] = (IN_RUNS, [PUBLISHED], OF_SEEDS)
    text = ""
    for words, (shown, where, ends) in places.items():
        some = rules if PUBLISHED in where else rules.loc[rules["rule"] != UNCLIPPED]
        for of, quantities in shown.items():
            columns = [
                (quantity.removesuffix(SECOND), at, quantity)
                if at == PUBLISHED
                else (f"{quantity} at {100 * float(at):.0f} %", at, quantity)
                for at in where
                for quantity in quantities
            ]
            text += f"\n{words}{of}:\n\n"
            text += _table(some, columns, ends)
    return text


def _table(rules: pd.DataFrame, columns: Sequence[tuple[str, str, str]], ends: str) -> str:
    """Return a Markdown table of ``rules`` (made by `rule_rows`), with one line for each rule.

    ``columns`` gives for each column of the table its head, and the values of ``at`` and ``quantity`` of the rows that
    fill it; ``ends`` is the format in which a value's ``low`` and ``high`` stand behind it.
    """
    lines = ["| rule | " + " | ".join(head for head, *_ in columns) + " |", "|" + " --- |" * (1 + len(columns))]
    for rule in dict.fromkeys(rules["rule"]):
        cells = [_said(_row(rules, rule, at, quantity), ends) for _, at, quantity in columns]
        lines.append(f"| {rule} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _row(rules: pd.DataFrame, rule: str, at: str, quantity: str) -> tuple[float, float, float]:
    """Read one line of the table of rules: ``quantity`` of ``rule`` at ``at`` (a target acceptance, or as published).
    Return its value, and the least and largest value of all logs (as published: the ends of an interval over seeds).
    What the table lacks is NaN."""
    rows = select(rules, rule=rule, at=at, quantity=quantity)
    found = rows.iloc[0].to_dict() if len(rows) else {}
    value, low, high = (float(found.get(name, NAN)) for name in ("value", "low", "high"))
    return value, low, high


def _said(found: tuple[float, float, float], ends: str) -> str:
    """Return a value as text, with its low and high end where it has these; "unknown" where there is no value."""
    value, low, high = found
    said = "unknown" if np.isnan(value) else f"{value:z.3f}"
    return said if np.isnan(low) else said + ends.format(low, high)


def _shown(number: float) -> float:
    """Round a number to the 3 decimals with which docs/findings.md prints it. The advice there concludes from rounded
    numbers, so that no conclusion contradicts the printed numbers."""
    return round(number, 3)


def _others(rules: pd.DataFrame) -> list[str]:
    """Return the names of the rules in ``rules`` that clip, without `REFERENCE` (fspo), the rule that they are compared
    with.
    """
    return [rule for rule in dict.fromkeys(rules["rule"]) if rule not in (REFERENCE, UNCLIPPED)]


def advice(rules: pd.DataFrame, task: str = "") -> list[str]:
    """Return lines of advice, from the numbers of one task, on the choice of a rule, of its range and of the share that
    it cuts.

    Whatever a line concludes follows from the numbers in it; where they allow no conclusion, the line has them alone.
    """
    on_task = f" on {task}" if task else ""
    lines = {
        "Rule": _fairest(rules),
        "Reward": _behind(rules),
        "Range": _ranges(rules),
        "Cut": _how_much_to_cut(rules),
        "Drift": _around_drift(rules),
    }
    return [f"**{name}**{on_task}: {line}" for name, line in lines.items()]


def _fairest(rules: pd.DataFrame) -> str:
    """Say which rule has the least LRE_2 in its own runs at its preset's range, of responses with A != 0 and of all,
    and give LRE_2 and held-out reward of these rules and of `REFERENCE`, the rule that the others are compared with."""

    def values(quantity: str, named: Sequence[str]) -> str:
        rows = (f"`{rule}` {_said(_row(rules, rule, PUBLISHED, quantity), OF_SEEDS)}" for rule in named)
        return ", ".join(rows)

    said, compared = [], [REFERENCE]
    for responses, words in OF_RESPONSES.items():
        fairest = least_lre(rules, responses)
        if fairest:
            compared.append(fairest)
            named = list(dict.fromkeys([fairest, REFERENCE]))
            said.append(f"{words} `{fairest}` has the least estimate of LRE_2: {values(LRE + OF[responses], named)}")
        else:
            said.append(f"{words} the LRE_2 of every rule is unknown")
    return f"as published, {'; '.join(said)}. Held-out reward: {values(REWARD, list(dict.fromkeys(compared)))}."


def _behind(rules: pd.DataFrame) -> str:
    """Name the rules whose held-out reward as published is clearly below that of `REFERENCE`: the whole interval of the
    difference lies below 0."""
    found = {rule: _row(rules, rule, PUBLISHED, LAG) for rule in _others(rules)}
    compared = {rule: row for rule, row in found.items() if not np.isnan(row[2])}
    if not compared:
        return f"as published, no rule's held-out reward less that of `{REFERENCE}` has an interval."
    behind = [f"`{rule}` {_said(row, OF_SEEDS)}" for rule, row in compared.items() if _shown(row[2]) < 0]
    if not behind:
        return (
            f"as published, none of {len(compared)} rules has a held-out reward clearly below that of `{REFERENCE}` "
            "(by the whole interval of the difference)."
        )
    return (
        f"as published, beware: of {len(compared)} rules these have a held-out reward clearly below that of "
        f"`{REFERENCE}` (by the whole interval of the difference): {', '.join(behind)}."
    )


def _ranges(rules: pd.DataFrame) -> str:
    """Say with which range fspo (`REFERENCE`) leaves each target share of a log's responses alone."""
    ranges = []
    for share in sorted(TARGETS):
        value, low, high = _row(rules, REFERENCE, f"{share:g}", RANGE)
        known = f"{value:.3g} ({low:.2g} to {high:.2g})"
        ranges.append(f"{100 * share:.0f} % at {'an unknown range' if np.isnan(value) else known}")
    return (
        f"`{REFERENCE}` keeps {' and '.join(ranges)}: the median over the windows of all logs, with the lowest and the "
        "highest. It depends on how far an update moves the model: `fspo calibrate RUN` finds that of your log."
    )


def _how_much_to_cut(rules: pd.DataFrame) -> str:
    """State the LRE_2 of fspo (`REFERENCE`) where it cuts few and where it cuts many responses, and how the other
    rules' mean squared error of the update compares with fspo's.
    """
    tight, wide = (f"{share:g}" for share in sorted(TARGETS))
    narrow, broad = (_row(rules, REFERENCE, share, LRE + NONZERO) for share in (tight, wide))
    said = (
        f"of the responses with A != 0, `{REFERENCE}` has LRE_2 {_said(narrow, OF_LOGS)} where it leaves "
        f"{100 * float(tight):.0f} % alone and {_said(broad, OF_LOGS)} where it leaves {100 * float(wide):.0f} % alone"
    )
    # "On every log less" is said if the largest LRE_2 of any log at the wide band is below the smallest LRE_2 of any
    # log at the tight band.
    less = _shown(broad[2]) < _shown(narrow[1])
    said += ": on every log less where it cuts less. These runs do not say whether to cut at all. " if less else ". "
    found = {rule: _shown(_row(rules, rule, wide, MSE)[0]) for rule in _others(rules)}
    errors = {rule: error for rule, error in found.items() if not np.isnan(error)}
    where = f"Where all rules leave {100 * float(wide):.0f} % of the responses with A != 0 alone, "
    if not errors:
        return f"{said}{where}the other rules' MSE is unknown."
    least, most = min(errors, key=lambda rule: errors[rule]), max(errors, key=lambda rule: errors[rule])
    said += (
        f"{where}the other rules' medians of the MSE are {errors[least]:.3f} (`{least}`) to {errors[most]:.3f} "
        f"(`{most}`) times `{REFERENCE}`'s"
    )
    alike = max(_shown(abs(error - 1)) for error in errors.values()) <= SAME_ERROR
    return (
        f"{said}: all within {100 * SAME_ERROR:.0f} %, so the error does not choose between them."
        if alike
        else f"{said}."
    )


def _around_drift(rules: pd.DataFrame) -> str:
    """Return words that compare, on the same logs, two rules' trends of acceptance: that of `AROUND_DRIFT` (fspo-kl),
    whose band lies around the drift of S, and that of `REFERENCE` (fspo), whose band lies around 0.
    """
    said = []
    for share in sorted(TARGETS):
        at = f"{share:g}"
        centred, fixed = (_said(_row(rules, rule, at, TREND), OF_LOGS) for rule in (AROUND_DRIFT, REFERENCE))
        size = _row(rules, AROUND_DRIFT, at, SIZE)
        low, high = _shown(size[1]), _shown(size[2])
        seen = ": smaller on every log" if high < 0 else ": larger on every log" if low > 0 else ""
        said.append(
            f"where both keep {100 * share:.0f} %, is {centred} and that of `{REFERENCE}` {fixed}, the size of the "
            f"former less that of the latter {_said(size, OF_LOGS)}{seen}"
        )
    return f"the trend of `{AROUND_DRIFT}`, whose band lies around the drift of S, {'; '.join(said)}."


def least_lre(rules: pd.DataFrame, responses: Responses) -> str:
    """Return the rule with the least LRE_2 of all that clip, each in its own runs with its preset's range; "" if none
    has an LRE_2. ``responses`` are those whose acceptance by length LRE_2 is about."""
    own = select(rules, at=PUBLISHED, quantity=LRE + OF[responses])
    own = own.loc[(own["rule"] != UNCLIPPED) & own["value"].notna()]
    return str(own.sort_values(by="value", kind="stable")["rule"].iloc[0]) if len(own) else ""


def fairest_line(of_tasks: Mapping[str, pd.DataFrame]) -> str:
    """Return a sentence that names, for each task, the rule with the least LRE_2 in its own runs."""
    said = []
    for responses, words in OF_RESPONSES.items():
        least = {task: least_lre(rules, responses) or "unknown" for task, rules in of_tasks.items()}
        rules_of_tasks = ", ".join(f"{rule}{f' ({task})' if task else ''}" for task, rule in least.items())
        said.append(f"{words} {rules_of_tasks}")
    return f"As published, the rule with the least estimate of LRE_2 is {'; '.join(said)}."


def gain_line(of_tasks: Mapping[str, pd.DataFrame]) -> str:
    """Return a sentence that says, for each task, by how much the held-out reward of the runs of `REFERENCE` (the rule
    that others are compared with) exceeds that of the runs without a clip."""
    found = []
    for task, rules in of_tasks.items():
        row = _row(rules, REFERENCE, PUBLISHED, GAIN)
        bare = ", no interval" if np.isnan(row[1]) and not np.isnan(row[0]) else ""
        found.append(f"{_said(row, OF_SEEDS)}{bare}{f' ({task})' if task else ''}")
    return f"The held-out reward of {REFERENCE}'s runs less that of runs without a clip is {', '.join(found)}."


def readme_line(of_tasks: Mapping[str, pd.DataFrame]) -> str:
    """Return the sentence that README must hold on all rules, each in its own runs with its preset's range.

    `of_tasks` holds the table of `rule_rows` of each task.
    """

    def values(quantity: str) -> str:
        shown = dict.fromkeys(rule for rules in of_tasks.values() for rule in rules["rule"])
        found = {rule: [_row(rules, rule, PUBLISHED, quantity)[0] for rules in of_tasks.values()] for rule in shown}
        return "; ".join(
            f"{rule} {', '.join('unknown' if np.isnan(value) else f'{value:.3f}' for value in of_rule)}"
            for rule, of_rule in found.items()
            if rule != UNCLIPPED or quantity == REWARD  # without a clip LRE_2 is always 0: leave it out
        )

    tasks = ", ".join(of_tasks)
    return (
        f"[As published](docs/findings.md#the-rules-side-by-side){f' (on {tasks})' if tasks else ''}, LRE_2 "
        f"{'; and '.join(f'{words} is: {values(LRE + OF[responses])}' for responses, words in OF_RESPONSES.items())}. "
        f"The held-out reward is: {values(REWARD)}."
    )
