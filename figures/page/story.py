"""The three sentences with which a report begins: who is clipped, what that does to the direction, and health."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.tables.printed import NO_SCORES
from figures.tables import REFERENCES, Frame, first_use, percent, plain_outside, reasons, shared_log
from fspo.rules import COMPARED

MOST = 3
"""Largest number of rules, or of issues, that a sentence names."""


def sentences(tables: Mapping[str, Frame], diagnoses: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the report's first sentences, from the runs' tables acceptance and cosine, each with the rows of all runs,
    and from the doctor's answers."""
    own, compared = as_trained(tables["acceptance"]), at_equal_rates(tables["acceptance"])
    return [" ".join(filter(None, (own, compared))), direction(tables["cosine"]), health(diagnoses)]


def as_trained(acceptance: Frame) -> str:
    """Return a sentence on how often each rule that trained a run clips its shortest and its longest responses; "" if
    no run says."""
    rows = _by_length(acceptance)
    if rows.empty:
        return ""
    rows = rows[(rows["source"] == "trained") & ~rows["rule"].isin(REFERENCES)]
    told = []
    for rule, runs in first_use(rows).groupby("rule", sort=False) if len(rows) else ():
        own, several = runs[runs["run"] == runs["run"].iloc[0]], runs["run"].nunique()
        ends = _ends(own)
        if ends is not None:
            short, long = ends
            beyond = "; longer ones are too few" if max(own["bin"]) > long["bin"] else ""
            named = rule if several == 1 else f"{rule} (run {own['run'].iloc[0]}, one of {several})"
            told.append(
                f"{named} clips "
                f"{100 - 100 * short['estimate']:.1f} % of the shortest responses ({_span(short)} tokens) "
                f"and {100 - 100 * long['estimate']:.1f} % of the longest ({_span(long)}{beyond})"
            )
    whose = " (A ≠ 0, first epoch)" if (rows["measure"] == "update").all() else ""
    return f"As trained{whose}, {'; '.join(told[:MOST])}." if told else ""


def at_equal_rates(acceptance: Frame) -> str:
    """Return a sentence on how often each rule that the paper compares clips the shortest and the longest responses of
    one run, with ranges at which all rules have an equal clip rate."""
    rows, where = _matched(_by_length(acceptance))
    parts = {rule: own.drop_duplicates("bin").set_index("bin") for rule, own in _by_rule(rows)}
    rates = pd.DataFrame({rule: own["estimate"] for rule, own in parts.items()}).dropna(axis=1, how="all").dropna()
    if rates.empty or len(rates) < 2:
        return _missing("how often each length is clipped", rows)
    short, long = rates.index.min(), rates.index.max()
    clipped = 100 - 100 * rates
    told = [f"{own[short]:.1f} % and {own[long]:.1f} % under {rule}" for rule, own in clipped.items()]
    first, last = (_span(parts[rates.columns[0]].loc[at]) for at in (short, long))
    whose = f"the shortest responses ({first} tokens) and of the longest ({last})"
    return f"{where}the clip rate of {whose} is {', '.join(told)}."


def direction(cosine: Frame) -> str:
    """Return a sentence with the cosine of clipped and unclipped gradient under each rule that the paper compares."""
    if cosine.empty:
        return f"The direction of the update is {NO_SCORES}."
    rows = cosine[(cosine["bin"] < 0) & (cosine["rule"] != "random")]
    rows, where = _matched(rows)
    told = [
        f"{row['estimate']:.3f} [{row['ci_low']:.3f}, {row['ci_high']:.3f}] under {rule}".replace("[-", "[−")
        for rule, own in _by_rule(rows)
        if (row := own.iloc[0])["estimate"] == row["estimate"]
    ]
    if not told:
        return _missing("what clipping does to the direction of the update", rows)
    return f"{where}the cosine of the clipped with the unclipped gradient is {', '.join(told)}."


def health(diagnoses: Sequence[Mapping[str, Any]]) -> str:
    """Return a text that says which issues the doctor found, each with its fix; or that the runs are sound."""
    found = [(Path(run["run"]).name, answer) for run in diagnoses for answer in run["issues"]]
    if not found:
        return f"Health checks: sound ({sum(len(run['clear']) for run in diagnoses)} checks without an issue)."
    told = [
        f"{name}: {issue['severity']} {issue['id']}, {issue['summary']}. Fix: {issue['fix']}." for name, issue in found
    ]
    more = f" And {len(found) - MOST} more, see Training." if len(found) > MOST else ""
    return f"Health checks: {' '.join(told[:MOST])}{more}"


def _by_length(acceptance: Frame) -> Frame:
    """Return the rows of single bins: of update acceptance (A != 0) if it is known, else of band acceptance (all A)."""
    if acceptance.empty:
        return acceptance
    rows = acceptance[acceptance["bin"] >= 0]
    nonzero = rows[rows["measure"] == "update"]
    return (
        nonzero if nonzero["estimate"].notna().any() else rows[(rows["measure"] == "band") & (rows["subset"] == "all")]
    )


def _matched(rows: Frame) -> tuple[Frame, str]:
    """Return the rows of one run's log in which all rules are matched to the lowest clip rate, and the words with which
    a sentence about these rows begins."""
    rows = rows if rows.empty else rows[rows["source"] == "matched"]
    if rows.empty:
        return rows, ""
    rows = first_use(shared_log(rows))
    rows = rows[rows["target"] == rows["target"].max()]
    return rows, f"At {percent(1 - rows['target'].iloc[0])} clipped (run {rows['run'].iloc[0]}), "


def _by_rule(rows: Frame) -> Iterator[tuple[str, Frame]]:
    for rule in COMPARED if len(rows) else ():
        own = rows[rows["rule"] == rule]
        if len(own):
            yield rule, plain_outside(own)


def _ends(rows: Frame) -> tuple[Any, Any] | None:
    """Return the rows of the first and the last bin with an estimate; None if fewer than two bins have one."""
    known = rows[rows["estimate"].notna()].sort_values("bin")
    return (known.iloc[0], known.iloc[-1]) if len(known) >= 2 else None


def _span(row: Any) -> str:
    return f"{row['bin_lo']:g} to {row['bin_hi'] - 1:g}"


def _missing(what: str, rows: Frame) -> str:
    """Return the sentence "These runs do not show WHAT.", with the reason that ``rows`` give, if they give one."""
    return f"These runs do not show {what}{reasons(rows)}."
