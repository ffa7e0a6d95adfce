"""The report's five questions about runs, and the sentences of its first screen, which answer three of them from the
runs' tables and the doctor's findings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from figures.tables import REFERENCES, TOO_LITTLE, Frame, amount, first_use, percent, plain_outside, reasons, shared_log
from fspo.rules import COMPARED

QUESTION = "Which responses does clipping cut, and what does that do to training?"
CUT, UPDATE, THEORY, HEALTH, ACTION = (
    "Who is cut?",
    "What does it do to the update?",
    "Does the theory hold here?",
    "Is the run healthy?",
    "What to do?",
)
QUESTIONS = (CUT, UPDATE, THEORY, HEALTH, ACTION)
"""The questions, in the order of the page. Each is the heading of a section, and each sentence of the first screen
answers one.
"""


MOST_RUNS = 3
"""Largest number of rules of which the first screen says what they cut in a run that they trained."""


def sentences(tables: Mapping[str, Frame], diagnoses: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the sentences at the top of the page of ``fspo report``, each with the question that it answers.

    Parameters
    ----------
    tables : mapping of DataFrame
        The tables acceptance and cosine of the runs, stacked; a table without rows is empty.
    diagnoses : sequence of mappings
        The doctor's answers about the runs, as doctor.json holds them.
    """
    return [
        (HEALTH, healthy(diagnoses)),
        (CUT, as_trained(tables["acceptance"])),
        (CUT, cut(tables["acceptance"])),
        (UPDATE, turned(tables["cosine"])),
    ]


def as_trained(acceptance: Frame) -> str:
    """Say how often each rule, in a run that it trained, cuts the longest and the shortest responses."""
    what = "how often the rule that trained cuts each length"
    if acceptance.empty:
        return _missing(what, acceptance)
    rows = acceptance[(acceptance["measure"] == "band") & (acceptance["subset"] == "all") & (acceptance["bin"] >= 0)]
    rows = rows[(rows["source"] == "trained") & ~rows["rule"].isin(REFERENCES)]
    told = []
    for rule, runs in first_use(rows).groupby("rule", sort=False) if len(rows) else ():
        own = runs[(runs["run"] == runs["run"].iloc[0]) & runs["estimate"].notna()].sort_values("bin")
        if len(own) >= 2:
            short, long = own.iloc[0], own.iloc[-1]
            many, few = (f"{row['bin_lo']:g} to {row['bin_hi']:g}" for row in (long, short))
            lengths = f"{many} and of {few} tokens"
            told.append(f"{rule} (run {long['run']}) cuts, of responses of {lengths}, {_two_shares(long, short)}")
    return f"As trained, {'; '.join(told[:MOST_RUNS])}." if told else _missing(what, rows)


def cut(acceptance: Frame) -> str:
    """Say how often each rule that the paper compares cuts the longest and the shortest responses, with ranges at which
    all rules keep the same share of responses.
    """
    if acceptance.empty:
        return _missing("how often each length is cut", acceptance)
    rows = acceptance[(acceptance["measure"] == "band") & (acceptance["subset"] == "all") & (acceptance["bin"] >= 0)]
    rows, where = _at_one_rate(rows)
    rules = [(rule, own[own["estimate"].notna()].set_index("bin")) for rule, own in _by_rule(rows)]
    rules = [(rule, own) for rule, own in rules if len(own)]
    bins = sorted(set.intersection(*(set(own.index) for _, own in rules))) if rules else []
    if len(bins) < 2:
        return _missing("how often each length is cut", rows)
    told = [f"{rule} cuts {_two_shares(own.loc[bins[-1]], own.loc[bins[0]])}" for rule, own in rules]
    short, long = (
        f"{rules[0][1].loc[at, 'bin_lo']:g} to {rules[0][1].loc[at, 'bin_hi']:g}" for at in bins[:: len(bins) - 1]
    )
    return f"{where}of responses of {long} tokens and of those of {short}, {'; '.join(told)}."


def turned(cosine: Frame) -> str:
    """Say the cosine of clipped and true update under each rule that the paper compares, with ranges at which all rules
    keep the same share of responses.
    """
    what = "how far clipping turns the update"
    if cosine.empty:
        return f"{_missing(what, cosine)} The log has no scores: a run with --log.score-every 1 writes them."
    rows = cosine[(cosine["bin"] < 0) & (cosine["rule"] != "random")]
    rows, where = _at_one_rate(rows, "responses with A ≠ 0")
    told = _values(rows)
    return f"{where}the clipped update has with the true one a cosine of {told}." if told else _missing(what, rows)


def healthy(diagnoses: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence that says what the doctor found in the analysed runs."""
    found = [
        f"in {Path(run['run']).name} {answer['severity']} {answer['id']}, {answer['summary']}"
        for run in diagnoses
        for answer in run["findings"]
    ]
    clear, unknown = (sum(len(run[kind]) for run in diagnoses) for kind in ("clear", "not_checked"))
    rest = f"{clear} checks found nothing, {unknown} could not be made."
    if not found:
        return f"The doctor finds no problem: {rest}"
    more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
    return f"The doctor finds: {'; '.join(found[:3])}{more}; {rest}"


def _at_one_rate(rows: Frame, what: str = "all responses") -> tuple[Frame, str]:
    """Return the rows of rules whose range is matched to the least target acceptance on one run's log, and the words
    with which a sentence about these rows begins.
    """
    rows = rows[rows["source"] == "matched"]
    if rows.empty:
        return rows, ""
    rows = first_use(shared_log(rows))
    rows = rows[rows["target"] == rows["target"].min()]
    return rows, f"At {percent(rows['target'].iloc[0])} of {what} kept (log of {rows['run'].iloc[0]}), "


def _by_rule(rows: Frame) -> list[tuple[str, Frame]]:
    """Return the rows of each rule that the paper compares, in the paper's order."""
    own = ((rule, rows[rows["rule"] == rule]) for rule in COMPARED)
    return [(rule, plain_outside(part)) for rule, part in own if len(part)]


def _values(rows: Frame) -> str:
    """Return words that give one quantity for each rule that the paper compares: its estimate with the interval, or how
    much data a missing estimate needs. ``rows`` are table rows of the quantity.
    """
    told = []
    for rule, own in _by_rule(rows):
        row = own.iloc[0]
        known = row["estimate"] == row["estimate"]
        text = f"{row['estimate']:.3f} [{row['ci_low']:.3f}, {row['ci_high']:.3f}]" if known else f"({amount(own)})"
        told.append((known, f"{text} under {rule}"))
    return ", ".join(text for _, text in told).replace("-", "−") if any(known for known, _ in told) else ""


def _two_shares(long: Any, short: Any) -> str:
    """Say which shares of long and of short responses a rule cuts, their ratio, and whether their intervals overlap."""
    few, many = 1 - short["estimate"], 1 - long["estimate"]
    said = [f"{many / few:.1f} times as often"] if few > 0 and many > 0 else []
    if not (short["ci_high"] < long["ci_low"] or long["ci_high"] < short["ci_low"]):
        said.append("the intervals overlap")
    return f"{_share_cut(long)} and {_share_cut(short)}" + (f" ({'; '.join(said)})" if said else "")


def _share_cut(row: Any) -> str:
    low, high = (max(100 * (1 - row[name]), 0) for name in ("ci_high", "ci_low"))
    return f"{percent(1 - row['estimate'])} [{low:.3g}, {high:.3g}]"


def _missing(what: str, rows: Frame) -> str:
    """Return the sentence "These runs do not show WHAT." If the column ``reason`` of ``rows`` says why the rows have no
    estimate, the sentence gives this reason too.
    """
    why = (
        f" ({amount(rows).removeprefix(f'{TOO_LITTLE}: ')})"
        if "reason" in rows and reasons(rows) != "no reason given"
        else ""
    )
    return f"These runs do not show {what}{why}."


def anchor(title: str) -> str:
    """Return the HTML id of the page's section with the heading ``title``. The page's own links point to this id."""
    return re.sub(r"\W+", "-", title.lower()).strip("-")
