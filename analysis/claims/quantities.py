"""Make the numbers that judge each atom from the tables of several runs.

For each quantity a function returns one number for every log that the atom is about, or one mean over seeds. No log or
seed is left out: if the tables lack what a number needs, the number is missing and holds the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from analysis.claims.catalogue import FAIR, Atom, Quantity, Responses
from analysis.claims.evidence import (
    NAN,
    Log,
    Measured,
    Number,
    Tables,
    absolute,
    groups,
    lead_in_size,
    logs_of,
    number,
    over_seeds,
    row_of,
    select,
    worst_by_run,
)
from analysis.stats.lre import MOST_LEFT_OUT
from fspo.gradlog import metric_names as metric
from fspo.rules import COMPARED

Row = dict[str, Any] | str
"""A row of a table, or a text that says why there is no row."""
OVER_SEEDS = "mean over seeds"
ACCEPTED: dict[Responses, dict[str, str]] = {
    "all": {"measure": "band", "subset": "all", "use": "first"},
    "nonzero": {"measure": "update", "subset": "nonzero", "use": "first"},
}
"""Columns that select the rows of a table of acceptance, for the responses that an atom is about."""


class Seen:
    """What claims are judged by: the tables of several runs, the runs' logs, and in which options other than rule and
    seed the runs differ (`analysis.claims.settings.unlike`)."""

    def __init__(self, tables: Tables, unlike: str = "") -> None:
        self._unlike = unlike
        self.tables, self.logs = tables, logs_of(tables)

    def not_published(self, log: Log) -> str:
        """Say why a run cannot stand for its rule as published; "" if it can. It cannot if the compared runs differ in
        more than rule and seed, or if an option of a run's rule is not its preset's."""
        return self._unlike or ("" if log in self.logs else "no run")


def numbers_of(seen: Seen, atom: Atom) -> list[Number]:
    """Return the numbers that judge an atom: estimates with intervals, one for each log, or one mean over seeds."""
    return _QUANTITIES[atom.quantity](seen, atom)


def final_reward(rows: pd.DataFrame) -> float:
    """Return the mean held-out reward over the last fifth of the evaluations."""
    values = rows.sort_values(["rollout", "step"])["value"].to_numpy(np.float64)
    return float(values[-max(len(values) // 5, 1) :].mean())


def drawdown(rows: pd.DataFrame) -> float:
    """Return the deepest fall of the training reward below its running maximum."""
    values = rows.sort_values(["rollout", "step"])["value"].to_numpy(np.float64)
    return float(np.max(np.maximum.accumulate(values) - values))


def _logs(seen: Seen, atom: Atom, rule: str) -> list[Log]:
    """Return the logs that an atom is about: all logs, or in the arm ``published`` the runs that ``rule`` trained.

    In the arm ``published``, if another rule of `COMPARED` trained with a seed and ``rule`` did not, a log without rows
    stands for the missing run, so that the number of this seed counts as missing.
    """
    logs = seen.logs
    if atom.arm != "published":
        return logs
    seeds = dict.fromkeys(log.seed for log in logs if log.rule in COMPARED)
    own = [log for log in logs if log.rule == rule]
    missing = [seed for seed in seeds if seed not in {log.seed for log in own}]
    return [*own, *(Log(f"{rule}, seed {seed:g}", rule, seed) for seed in missing)]


def _rows(seen: Seen, table: str, atom: Atom, rule: str, **where: Any) -> list[tuple[Log, Row]]:
    """Return each log of an atom with the rule's row in a table, or with a text that says why there is no row.

    In the arm ``matched`` it is the row of the band whose range is set to meet the atom's target acceptance. In the arm
    ``published`` it is the row of the band that the run trained with, if this is the rule's band as published.
    """
    logs = _logs(seen, atom, rule)
    if atom.arm == "matched":
        found = {"source": "matched", "target": atom.target, "outside": atom.outside}
        rows = select(seen.tables[table], rule=rule, **found, **where)
        return [(log, row_of(rows, log)) for log in logs]
    rows = select(seen.tables[table], rule=rule, source="trained", **where)
    return [(log, seen.not_published(log) or row_of(rows, log)) for log in logs]


def _by_seed(rows: list[tuple[Log, Row]], column: str) -> dict[float, float]:
    """Return a column's value for each seed; NaN where the seed's log has no row or two logs have this seed."""
    seeds = [log.seed for log, _ in rows]
    return {
        log.seed: NAN if isinstance(row, str) or seeds.count(log.seed) > 1 else float(row[column]) for log, row in rows
    }


def _slope(row: Row) -> Measured | str:
    if isinstance(row, str):
        return row
    return Measured(float(row["slope"]), float(row["se"]), float(row["se"]), float(row["clusters"]) - 1)


def _interval(row: Row, name: str = "estimate") -> Measured | str:
    if isinstance(row, str):
        return row
    stem = "" if name == "estimate" else f"{name}_"
    return Measured.of_interval(*(float(row.get(c, NAN)) for c in (name, f"{stem}ci_low", f"{stem}ci_high")))


def _mean(atom: Atom, values: Mapping[float, float]) -> list[Number]:
    return [number(OVER_SEEDS, over_seeds(values), atom.relation, atom.margin)]


def _gaps(left: Mapping[float, float], right: Mapping[float, float]) -> dict[float, float]:
    return {seed: left.get(seed, NAN) - right.get(seed, NAN) for seed in left}


def _trend(seen: Seen, atom: Atom) -> list[Number]:
    rows = _rows(seen, "trend", atom, atom.rule, **ACCEPTED[atom.responses])
    if atom.arm == "published":
        return _mean(atom, _by_seed(rows, "slope"))
    return [number(log.run, _slope(row), atom.relation, atom.margin) for log, row in rows]


def _lead_in_trend(seen: Seen, atom: Atom) -> list[Number]:
    own, rival = (_rows(seen, "trend", atom, rule, **ACCEPTED[atom.responses]) for rule in (atom.rule, atom.rival))
    if atom.arm == "published":
        mine, theirs = (_by_seed(rows, "slope") for rows in (own, rival))
        total = _gaps(theirs, {seed: -value for seed, value in mine.items()})
        return [lead_in_size(OVER_SEEDS, over_seeds(_gaps(theirs, mine)), over_seeds(total))]
    out = []
    for (log, row), (_, other) in zip(own, rival, strict=True):
        one, two = _slope(other), _slope(row)
        if isinstance(one, str) or isinstance(two, str):
            out.append(Number(log.run, reason=one if isinstance(one, str) else str(two)))
            continue
        out.append(lead_in_size(log.run, one.plus(-two), one.plus(two)))
    return out


def _lre_inf(seen: Seen, atom: Atom) -> list[Number]:
    """Judge the atom about LRE_inf in each log by the intervals of LRE_inf and of LRE_2.

    LRE_2 is at most LRE_inf and has a smaller error, so an LRE_2 above the margin refutes the atom too.
    """
    both = (_rows(seen, "lre", atom, atom.rule, **ACCEPTED[atom.responses], norm=norm) for norm in ("inf", "l2"))
    out = []
    for (log, row), (_, two) in zip(*both, strict=True):
        largest, mean = (number(log.run, _interval(r), atom.relation, atom.margin) for r in (row, two))
        # LRE_inf and LRE_2 test the same hypothesis, so the smaller p-value is doubled (Bonferroni).
        against = min(2 * min(largest.p_against, mean.p_against), 1.0)
        out.append(Number(log.run, largest.value, largest.low, largest.high, largest.p_for, against, largest.reason))
    return out


def _lead_in_lre(seen: Seen, atom: Atom) -> list[Number]:
    where = {**ACCEPTED[atom.responses], "norm": "l2_squared"}
    own, rival = (_rows(seen, "lre", atom, rule, **where) for rule in (atom.rule, atom.rival))
    if atom.arm == "published":
        return _mean(atom, _gaps(*(_by_seed(rows, "estimate") for rows in (rival, own))))
    out = []
    for (log, row), (_, other) in zip(own, rival, strict=True):
        one, two = _interval(other), _interval(row)
        gap = one if isinstance(one, str) else two if isinstance(two, str) else one.plus(-two)
        out.append(number(log.run, gap, atom.relation, atom.margin))
    return out


def _cosine(seen: Seen, atom: Atom, column: str = "diff_fspo", sign: int = -1) -> list[Number]:
    """Judge a difference of two cosines in each log.

    For an atom with a rival it is fspo's cosine less the rival's. For an atom without a rival both are of fspo's band:
    the cosine with the atom's ``outside`` (truncate or cap) less the cosine with drop. ``column`` of the table cosine
    holds the difference; its sign is changed if ``sign`` is -1.
    """
    where = {"use": "first", "bin": -1}
    out = []
    for log, row in _rows(seen, "cosine", atom, atom.rival or FAIR, **where):
        found = _interval(row, column)
        gap = found if isinstance(found, str) or sign > 0 else -found
        out.append(number(log.run, gap, atom.relation, atom.margin))
    return out


def _exponent(seen: Seen, atom: Atom) -> list[Number]:
    rows = select(seen.tables["scaling"], subset=atom.responses, use="first", sign="all")
    out = []
    for log in seen.logs:
        row = row_of(rows, log)
        found = _interval(row if isinstance(row, str) else row | {"estimate": row["slope_2H"]})
        gap = found if isinstance(found, str) else found._replace(value=found.value - 1)
        out.append(number(log.run, gap, atom.relation, atom.margin))
    return out


def _law(seen: Seen, atom: Atom) -> list[Number]:
    """Judge in each log the bin of lengths whose S is farthest from normal, or whose mean of S is farthest from -L KL.

    KL is one number for a log: the mean of k3 over all its tokens. A bin's own mean of k3 is not used. S + k3, the sum
    of e^s - 1, has mean 0 over all responses for any policy (T9), so a bin's mean of S would lie near minus its own
    mean of k3 even if the mean of S were not proportional to L.
    """
    everything = select(seen.tables["moments"], subset=atom.responses, use="first")
    m = _seen_bins(everything)
    whole = select(everything, bin=-1)
    k3 = dict(zip(whole["run"], whole["k3_per_token"], strict=True))
    base = {"run": m["run"].to_numpy(), "seed": m["seed"].to_numpy(float)}
    if atom.quantity == "distance from normal":
        names = ("ks_distance", "ks_ci_low", "ks_ci_high")
        values = [m[name].to_numpy(float) for name in names]
    else:
        sd, kl = (
            np.sqrt(m["var_S"].to_numpy(float)),
            np.array([k3.get(run, NAN) for run in m["run"]]) * m["bin_mean"].to_numpy(float),
        )
        values = [(m[name].to_numpy(float) + kl) / sd for name in ("mean_S", "mean_S_ci_low", "mean_S_ci_high")]
    bins = pd.DataFrame(base | dict(zip(("value", "low", "high"), values, strict=True)))
    rows = worst_by_run(absolute(bins)) if len(bins) else bins
    out = []
    for log in seen.logs:
        row = row_of(rows, log)
        found = row if isinstance(row, str) else Measured.of_interval(*(row[n] for n in ("value", "low", "high")))
        out.append(number(log.run, found, atom.relation, atom.margin))
    return out


def _seen_bins(moments: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the table moments for length bins with an estimated variance of S.

    A run is left out, so that an atom has no number for it, if more than the share MOST_LEFT_OUT of its rows lies in
    bins without this estimate. The reason is that the atoms on the law of S are about all bins.
    """
    bins = moments.loc[moments["bin"].to_numpy(float) >= 0]
    known = bins["var_S"].to_numpy(float) > 0  # in a bin with constant S, the law of S cannot be judged
    count = bins["count"].to_numpy(float)
    seen = pd.DataFrame({"run": bins["run"].to_numpy(), "all": count, "seen": np.where(known, count, 0.0)})
    sums = seen.groupby("run").transform("sum")
    enough = sums["seen"].to_numpy(float) >= (1 - MOST_LEFT_OUT) * sums["all"].to_numpy(float)
    return bins.loc[known & enough]


def _ended(seen: Seen, atom: Atom) -> dict[Log, float]:
    """Return by how many rollouts each run of the compared rules and of the atom's rules ended before the longest of
    these runs; NaN for a run that is missing or of which no training metrics are known."""
    rows = select(seen.tables["training"], phase="train")
    last = {str(run): some["rollout"].to_numpy(float).max() for (run,), some in groups(rows, ["run"])}
    rules = filter(None, dict.fromkeys((*COMPARED, atom.rule, atom.rival)))
    logs = dict.fromkeys(log for rule in rules for log in _logs(seen, atom, rule))
    longest = max((last[log.run] for log in logs if log.run in last), default=NAN)
    return {log: longest - last.get(log.run, NAN) for log in logs}


def _training(seen: Seen, atom: Atom, name: str, phase: str, reduce: Callable[[pd.DataFrame], float]) -> list[Number]:
    """Judge the mean over seeds of a difference between the rule's and the rival's run, such as in the final reward.

    ``reduce`` makes a run's value from the run's rows of the table training that are of the metric ``name`` and of the
    phase ``phase`` (train or eval). A run that ended early, or that cannot stand for its rule as published, has no
    value.
    """
    rows = select(seen.tables["training"], name=name, phase=phase)
    found: dict[str, dict[float, float]] = {atom.rule: {}, atom.rival: {}}
    for log, missed in _ended(seen, atom).items():
        if log.rule in found:
            some = rows.loc[rows["run"] == log.run]
            whole = missed == 0 and len(some) and not seen.not_published(log) and log.seed not in found[log.rule]
            found[log.rule][log.seed] = reduce(some) if whole else NAN
    return _mean(atom, _gaps(found[atom.rule], found[atom.rival]))


def _missed(seen: Seen, atom: Atom) -> list[Number]:
    """Judge, for each run of the atom's rule, how many rollouts fewer it has than the longest of all compared runs.
    This count has no standard error. For a run that cannot stand for its rule as published there is no count, but the
    reason."""
    found = [(log, missed) for log, missed in _ended(seen, atom).items() if log.rule == atom.rule]
    counts = [(log, seen.not_published(log) or Measured(missed, 0.0, 0.0)) for log, missed in found]
    return [number(log.run, count, atom.relation, atom.margin) for log, count in counts]


_QUANTITIES: dict[Quantity, Callable[[Seen, Atom], list[Number]]] = {
    "trend": _trend,
    "lead in trend": _lead_in_trend,
    "LRE_inf": _lre_inf,
    "lead in LRE_2^2": _lead_in_lre,
    "lead in cosine": _cosine,
    "lead in worst bin's cosine": partial(_cosine, column="diff_fspo_worst"),
    "gain in cosine": partial(_cosine, column="diff_drop", sign=1),
    "2H - 1": _exponent,
    "distance from normal": _law,
    "drift error": _law,
    "reward": partial(_training, name=metric.HELD_OUT_REWARD, phase="eval", reduce=final_reward),
    "fall": partial(_training, name=metric.REWARD, phase="train", reduce=drawdown),
    "rollouts missed": _missed,
}
