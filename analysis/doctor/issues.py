"""The answers that the doctor's checks give about a run, and how the answers are printed."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

SCHEMA_VERSION = "3.0"
"""Version (major.minor) of the JSON that ``--json`` writes (doctor.schema.json): a new minor version adds fields, a new
major version changes or removes some."""

SHOWN = 3  # number of issues whose evidence and fix are printed without ``--verbose``


class Severity(IntEnum):
    """How bad an issue is: INFO (worth knowing, although the run may be sound), WARNING (the run does something else
    than it seems to do) or CRITICAL (it does not learn, or learns from wrong input)."""

    INFO = 1
    WARNING = 2
    CRITICAL = 3

    @property
    def label(self) -> str:
        """The severity's name in lower case, as on the command line."""
        return self.name.lower()


@dataclass(frozen=True)
class Evidence:
    """A number that supports an answer of the doctor: its name, value and unit, with the ends of an interval over
    clusters (``low``, ``high``) if it is an estimate, else NaN."""

    name: str
    value: float
    low: float = math.nan
    high: float = math.nan
    unit: str = ""  # unit of ``value``; a number with the unit "share" is printed in percent

    def __str__(self) -> str:
        share = self.unit == "share"
        value, low, high = (f"{x:.2%}" if share else f"{x:.4g}" for x in (self.value, self.low, self.high))
        interval = f" [{low}, {high}]" if math.isfinite(self.low) else ""
        return f"{self.name}: {value}{interval}{f' {self.unit}' if self.unit and not share else ''}"


@dataclass(frozen=True)
class Answer:
    """The answer of one check about a run, with the numbers that support it (``evidence``)."""

    status: str  # "found" (something wrong), "clear" (nothing wrong) or "not checked" (the check could not be made)
    summary: str  # one sentence: what was found, or why the check could not be made
    evidence: tuple[Evidence, ...] = ()
    severity: Severity | None = None  # of an issue
    fix: str = ""  # what the user should change, for an issue
    since: int | None = None  # the rollout from which on an issue holds
    id: str = ""  # name of the check, for --fail-on; whoever asks the check gives it

    @property
    def found(self) -> bool:
        """Whether the check found something wrong."""
        return self.status == "found"

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain values for JSON."""
        return asdict(self) | {"severity": self.severity.label if self.severity else None}


def found(
    summary: str, fix: str, *evidence: Evidence, since: int | None = None, severity: Severity = Severity.WARNING
) -> Answer:
    """Return the answer of a check that found something wrong (the parameters are fields of `Answer`)."""
    return Answer("found", summary, evidence, severity, fix, since)


def clear(summary: str, *evidence: Evidence) -> Answer:
    """Return the answer of a check that found nothing wrong: one sentence, and the numbers that support it."""
    return Answer("clear", summary, evidence)


def not_checked(why: str) -> Answer:
    """Return the answer of a check that was not made; ``why`` names the data that the log lacks."""
    return Answer("not checked", why)


@dataclass(frozen=True)
class Diagnosis:
    """All answers of the doctor about one run: ``rule`` is the label of its rule, ``rows`` the number of its rows,
    ``blind`` whether it has rows but none with a log-ratio, so that nothing is known about clipping, and ``on`` the
    log-ratio that ``fspo analyse --on`` can be about ("" if none). ``notes`` are for whoever reads the answers."""

    run: str
    rule: str
    rows: int
    answers: tuple[Answer, ...]
    notes: tuple[str, ...] = ()
    blind: bool = False
    on: str = "update"

    @property
    def issues(self) -> list[Answer]:
        """The answers of the checks that found something wrong, the worst first."""
        return sorted((a for a in self.answers if a.found), key=lambda a: -(a.severity or 0))

    def fails(self, threshold: str) -> bool:
        """Return whether there is an issue at or above ``threshold``, if that is a severity, else one of the check of
        that name."""
        least = {severity.label: severity for severity in Severity}.get(threshold, math.inf)
        return any(a.id == threshold or (a.severity or 0) >= least for a in self.issues)

    def _of(self, status: str) -> list[Answer]:
        return [answer for answer in self.answers if answer.status == status]

    def to_dict(self) -> dict[str, Any]:
        """Return the answers of all the doctor's checks about the run, as plain values for JSON."""
        kinds = {"issues": self.issues, "clear": self._of("clear"), "not_checked": self._of("not checked")}
        answers = {name: [answer.to_dict() for answer in kind] for name, kind in kinds.items()}
        worst = next((answer["severity"] for answer in answers["issues"]), None)
        run = {"schema": SCHEMA_VERSION, "run": self.run, "rule": self.rule, "rows": self.rows, "worst": worst}
        return run | answers | {"notes": list(self.notes)}

    @property
    def verdict(self) -> str:
        """What the checks found, in words: "no issue", or the number of issues and how bad the worst is."""
        if issues := self.issues:
            worst = (issues[0].severity or Severity.INFO).label
            return f"1 issue ({worst})" if len(issues) == 1 else f"{len(issues)} issues (worst: {worst})"
        none = "no issue in what can be told without log-ratios" if self.blind else "no issue"
        return none if self._of("clear") else "nothing could be checked"

    def lines(self, *, verbose: bool = False) -> list[str]:
        """Return the doctor's answers about the run as lines of text for the terminal.

        Without ``verbose`` only the worst `SHOWN` issues have their evidence and fix. Checks that found nothing wrong
        (but for mismatch) and checks that were not made are only counted."""
        out = [f"{self.run}: {self.rows} rows, rule {self.rule}: {self.verdict}"]
        out += [f"  note: {note}" for note in self.notes]
        issues, passed, left = self.issues, self._of("clear"), self._of("not checked")
        shown = len(issues) if verbose else SHOWN
        for answer in issues[:shown]:
            since = "" if answer.since is None else f" (from rollout {answer.since} on)"
            label = (answer.severity or Severity.INFO).label.upper()
            out.append(f"  {label} {answer.id}: {answer.summary}{since}")
            out += [f"    {evidence}" for evidence in (*answer.evidence, f"fix: {answer.fix}")]
        if more := issues[shown:]:
            out.append(f"  and {', '.join(answer.id for answer in more)} (--verbose)")
        for answer in passed if verbose else [a for a in passed if a.id == "mismatch"]:
            out.append(f"  clear {answer.id}: {answer.summary}")
            out += [f"    {evidence}" for evidence in answer.evidence if verbose]
        for why in sorted({answer.summary for answer in left}) if verbose else ():
            out.append(f"  not checked {', '.join(a.id for a in left if a.summary == why)}: {why}")
        lacking = f", {len(left)} could not be made" if left else ""
        checks = f"{len(passed)} check{'s' * (len(passed) != 1)} found no issue{lacking}"
        return [*out, f"  {checks}" + ("" if verbose else " (--verbose says which)")]
