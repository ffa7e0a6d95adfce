"""Make the numbers that judge each atom from the tables of several runs.

For each quantity a function returns one number: the mean over seeds of one value for each seed. The value of a seed is
the mean over its logs. No log or seed is left out: if the tables lack what a value needs, the number is missing and
holds the reason.
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
    groups,
    lead_in_size,
    logs_of,
    number,
    over_seeds,
    row_of,
    select,
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


def number_of(seen: Seen, atom: Atom) -> Number:
    """Return the number that judges an atom: an estimate with its interval, or the reason why there is none."""
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


def _by_seed(rows: list[tuple[Log, Row]], column: str, *, single: bool = False) -> dict[float, float]:
    """Return for each seed the mean of a column over the seed's logs; NaN where one of them has no row, or, with
    ``single``, where two logs have this seed."""
    found: dict[float, list[float]] = {}
    for log, row in rows:
        found.setdefault(log.seed, []).append(NAN if isinstance(row, str) else float(row.get(column, NAN)))
    return {seed: NAN if single and len(x) > 1 else float(np.mean(x)) for seed, x in found.items()}


def _mean(atom: Atom, values: Mapping[float, float]) -> Number:
    return number(OVER_SEEDS, over_seeds(values), atom.relation, atom.margin)


def _gaps(left: Mapping[float, float], right: Mapping[float, float]) -> dict[float, float]:
    return {seed: left.get(seed, NAN) - right.get(seed, NAN) for seed in left}


def _accepted(seen: Seen, table: str, atom: Atom, rule: str, column: str, **where: Any) -> dict[float, float]:
    """Return for each seed a column of the rule's rows about the acceptance that the atom is about."""
    rows = _rows(seen, table, atom, rule, **ACCEPTED[atom.responses], **where)
    return _by_seed(rows, column, single=atom.arm == "published")


def _trend(seen: Seen, atom: Atom) -> Number:
    return _mean(atom, _accepted(seen, "trend", atom, atom.rule, "slope"))


def _lead_in_trend(seen: Seen, atom: Atom) -> Number:
    mine, theirs = (_accepted(seen, "trend", atom, rule, "slope") for rule in (atom.rule, atom.rival))
    total = _gaps(theirs, {seed: -value for seed, value in mine.items()})
    return lead_in_size(OVER_SEEDS, over_seeds(_gaps(theirs, mine)), over_seeds(total))


def _lre_inf(seen: Seen, atom: Atom) -> Number:
    return _mean(atom, _accepted(seen, "lre", atom, atom.rule, "estimate", norm="inf"))


def _lead_in_lre(seen: Seen, atom: Atom) -> Number:
    both = (_accepted(seen, "lre", atom, rule, "estimate", norm="l2_squared") for rule in (atom.rival, atom.rule))
    return _mean(atom, _gaps(*both))


def _cosine(seen: Seen, atom: Atom, column: str = "diff_fspo", sign: int = -1) -> Number:
    """Judge a difference of two cosines.

    For an atom with a rival it is fspo's cosine less the rival's. For an atom without a rival both are of fspo's band:
    the cosine with the atom's ``outside`` (truncate or cap) less the cosine with drop. ``column`` of the table cosine
    holds the difference; its sign is changed if ``sign`` is -1.
    """
    rows = _rows(seen, "cosine", atom, atom.rival or FAIR, use="first", bin=-1)
    return _mean(atom, {seed: sign * value for seed, value in _by_seed(rows, column).items()})


def _exponent(seen: Seen, atom: Atom) -> Number:
    rows = select(seen.tables["scaling"], subset=atom.responses, use="first", sign="all")
    found = _by_seed([(log, row_of(rows, log)) for log in seen.logs], "slope_2H")
    return _mean(atom, {seed: value - 1 for seed, value in found.items()})


def _law(seen: Seen, atom: Atom) -> Number:
    """Judge in each log the bin of lengths whose S is farthest from normal, or whose mean of S is farthest from -L KL.

    KL is one number for a log: the mean of k3 over all its tokens. A bin's own mean of k3 is not used. S + k3, the sum
    of e^s - 1, has mean 0 over all responses for any policy (T9), so a bin's mean of S would lie near minus its own
    mean of k3 even if the mean of S were not proportional to L.
    """
    everything = select(seen.tables["moments"], subset=atom.responses, use="first")
    m = _seen_bins(everything)
    whole = select(everything, bin=-1)
    if atom.quantity == "distance from normal":
        value = m["ks_distance"].to_numpy(float)
    else:
        k3 = dict(zip(whole["run"], whole["k3_per_token"], strict=True))
        kl = np.array([k3.get(run, NAN) for run in m["run"]]) * m["bin_mean"].to_numpy(float)
        value = (m["mean_S"].to_numpy(float) + kl) / np.sqrt(m["var_S"].to_numpy(float))
    worst: dict[str, float] = {}
    for run, distance in zip(m["run"].tolist(), np.abs(value).tolist(), strict=True):
        worst[run] = max(worst.get(run, 0.0), distance)
    rows: list[tuple[Log, Row]] = [(log, {"worst": worst.get(log.run, NAN)}) for log in seen.logs]
    return _mean(atom, _by_seed(rows, "worst"))


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


def _training(seen: Seen, atom: Atom, name: str, phase: str, reduce: Callable[[pd.DataFrame], float]) -> Number:
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


def _missed(seen: Seen, atom: Atom) -> Number:
    """Judge by how many rollouts a run of the atom's rule ended before the longest of all compared runs: the largest
    such number. It is counted, so it has no standard error."""
    found = {log: missed for log, missed in _ended(seen, atom).items() if log.rule == atom.rule}
    why = next((reason for log in found if (reason := seen.not_published(log))), "")
    counted: Measured | str = why or Measured(float(np.max([*found.values()], initial=-np.inf)), 0.0)
    return number("the run that missed most", counted if found else "no run", atom.relation, atom.margin)


_QUANTITIES: dict[Quantity, Callable[[Seen, Atom], Number]] = {
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
