"""What a check is, how its outcome is judged, and when the suite reports success.

A check compares a formula of ``fspo.theory`` or a rule of ``fspo.rules`` with an independent computation. Two things
show that it could have failed. Its near misses are false neighbours of the statement: one that passes is a failure of
the suite. Its resolution is measured: evidence is gathered once, and the statement is judged on it as it stands and
made false by numbers x from 1e-16 to 1, in one of its parts at a time; the resolution is the smallest x that is noticed
in every part."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np

from fspo.base.errors import UserError, unknown_name

ALPHA = 1e-3
"""Largest probability that a run of all checks judges any true statement false because of chance in simulated draws.
Holm's correction for the number of checks on simulated data ensures it."""
FAMILY = 50
"""At least the number of checks on simulated data. The resolution of such a check is measured with p-values times this
number, so that it holds whichever checks run together."""
SIZES = (*(m * 10.0**k for k in range(-16, 0) for m in (1, 2, 5)), 1.0)
"""Numbers x by which a statement is made false to measure a check's resolution."""


class Verdict(StrEnum):
    """The verdict on one check. ``UNDECIDED`` (too little data, or a margin that is NaN) never counts as a pass."""

    PASS = "pass"
    FAIL = "fail"
    UNDECIDED = "undecided"
    NOT_RUN = "not run"


class Method(StrEnum):
    """How a check tests a statement, never by ``fspo`` itself; ``fspo check --help`` says what each method is."""

    CLOSED = "closed form"
    SIMULATED = "simulated"
    ATTACKED = "attacked"
    ENUMERATED = "enumerated"
    MACHINE_PROVED = "machine-proved"


@dataclass(frozen=True)
class Outcome:
    """The result of a check's function. Deterministic checks give ``margin``, the distance from failing (negative: the
    statement is false), and its ``unit``: words for what is measured. Checks on simulated data give ``p_value``,
    corrected for the several tests inside the check. NaN in either says that there was too little data. ``note`` is for
    the report. A check that could not be run says why in ``not_run``."""

    margin: float = math.nan
    unit: str = ""
    p_value: float | None = None
    note: str = ""
    not_run: str = ""


Test = Callable[[float], Outcome]
"""Judges a statement made false by a number x >= 0 on evidence that was gathered before; x = 0 is the statement."""


def worst(*outcomes: Outcome) -> Outcome:
    """Return one outcome for several that must hold together: of margins, one that is NaN, or else the smallest; of
    p-values, the least times their number."""
    p_values = [outcome.p_value for outcome in outcomes if outcome.p_value is not None]
    if p_values:
        if len(p_values) < len(outcomes):
            raise UserError("a p-value and a margin cannot be judged together")
        p = math.nan if any(map(math.isnan, p_values)) else min(1.0, len(p_values) * min(p_values))
        return Outcome(p_value=p, note="; ".join(outcome.note for outcome in outcomes))
    undecided = [outcome for outcome in outcomes if math.isnan(outcome.margin)]
    return undecided[0] if undecided else min(outcomes, key=lambda outcome: outcome.margin)


@dataclass(frozen=True)
class Parts:
    """A test of several statements (parts) that must all hold. If one raises an error, the margin is ``on_error``."""

    tests: tuple[Test, ...]
    on_error: float = -math.inf

    def __call__(self, x: float, alone: int | None = None) -> Outcome:
        """Judge all parts, each made false by x, or only the part number ``alone`` made false and the others true."""
        try:
            return worst(*(one(x if alone in (None, i) else 0.0) for i, one in enumerate(self.tests)))
        except Exception as error:  # an exception in one check must not lose the report on the other checks
            return failed(error, self.on_error)


def failed(error: Exception, margin: float) -> Outcome:
    """Return the outcome of a check that raised an exception: ``margin``, with the exception as note."""
    return Outcome(margin, "exception", note=f"{type(error).__name__}: {error}")


Function = Callable[[np.random.Generator], "Test | Outcome"]
"""Gathers evidence with random numbers; returns the test of a statement, or an outcome that has no x."""


@dataclass(frozen=True)
class Check:
    """A statement checked by one method.

    Attributes
    ----------
    statement : str
        Id in docs/theory.md, such as "T7".
    method : Method
        How it is checked.
    name : str
        What exactly is checked. No two checks of one statement by one method have the same name.
    run : function of a Generator
        Tests the statement as it stands.
    near_misses : dict of name -> function
        Each name says in words how the statement is made false; the function tests that false variant. There is at
        least one.
    false : str
        What the number x that makes the statement false changes, as words after a number: "of a(l)", "nats of S". Empty
        if the statement has no x, as Coq's have not.
    sees : float
        Coarsest resolution allowed. The check is undecided if its measured one is coarser."""

    statement: str
    method: Method
    name: str
    run: Function
    near_misses: Mapping[str, Function]
    false: str = ""
    sees: float = math.inf

    def __post_init__(self) -> None:
        if not self.near_misses:
            raise UserError(f"check {self.key!r} has no near miss: a check that cannot fail shows nothing")

    @property
    def key(self) -> str:
        """Name of the check that no other check has: statement, method and name."""
        return f"{self.statement}/{self.method}/{self.name}"


MADE: list[Check] = []
"""The checks that `check` has made, in the order in which their modules were imported."""
_NEAR: dict[Callable[..., Any], dict[str, Function]] = {}


def near_miss(name: str, /, **wrong: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds a near miss to a check's function: the same function, called with the arguments
    ``wrong``. ``name`` says how they make the statement false."""

    def add(run: Callable[..., Any]) -> Callable[..., Any]:
        _NEAR[run] = {name: partial(run, **wrong), **_NEAR.get(run, {})}
        return run

    return add


def check(
    statement: str, method: Method, name: str, false: str = "", sees: float = math.inf
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator, to be put above the near misses, that makes of a function a `Check` of the catalogue. The
    arguments are attributes of `Check`."""

    def make(run: Callable[..., Any]) -> Callable[..., Any]:
        MADE.append(Check(statement, method, name, run, _NEAR.pop(run, {}), false, sees))
        return run

    return make


@dataclass(frozen=True)
class Row:
    """A row of the report: a check with its verdict, margin in ``unit``, p-value (also corrected for the number of
    checks on simulated data, ``p_adjusted``), resolution (least x that it notices), and its near misses' verdicts."""

    statement: str
    method: str
    name: str
    verdict: Verdict
    margin: float
    unit: str
    near_misses: Mapping[str, Verdict]
    p_value: float | None
    p_adjusted: float | None
    note: str
    seconds: float
    resolution: float | None = None
    false: str = ""

    @property
    def sound(self) -> bool:
        """Return whether the check passed and all its near misses failed, or the check was not run."""
        if self.verdict is Verdict.NOT_RUN:
            return True
        return self.verdict is Verdict.PASS and set(self.near_misses.values()) == {Verdict.FAIL}


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's step-down method (1979), in the given order. NaN stays NaN, but is counted."""
    order = sorted((i for i, p in enumerate(p_values) if not math.isnan(p)), key=lambda i: p_values[i])
    adjusted, running = [math.nan] * len(p_values), 0.0
    for rank, i in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = running
    return adjusted


def judge(outcome: Outcome, p_adjusted: float | None = None) -> Verdict:
    """Return the verdict on one outcome. ``p_adjusted`` is its p-value, corrected for the number of checks on simulated
    data; if it is None, the outcome's own p-value counts, if it has one."""
    if outcome.not_run:
        return Verdict.NOT_RUN
    if outcome.p_value is None:
        if math.isnan(outcome.margin):
            return Verdict.UNDECIDED
        return Verdict.PASS if outcome.margin >= 0 else Verdict.FAIL
    p = outcome.p_value if p_adjusted is None else p_adjusted
    if math.isnan(p):
        return Verdict.UNDECIDED
    return Verdict.FAIL if p < ALPHA else Verdict.PASS


def generator(seed: int, key: str, role: str) -> np.random.Generator:
    """Return a random stream that depends only on the seed, the check's name and the role (the check itself, or one of
    its near misses), and not on which other checks run."""
    words = (zlib.crc32(key.encode()), zlib.crc32(role.encode()))
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=words))


@dataclass(frozen=True)
class Raw:
    """Outcomes of a check and its near misses, before Holm's correction for the number of checks on simulated data.
    ``index`` is the check's place in the list, ``resolution`` the smallest x that it notices (None if it has no x)."""

    index: int
    outcome: Outcome
    near_misses: Mapping[str, Outcome]
    seconds: float
    resolution: float | None = None


def run_one(index: int, check: Check, seed: int) -> Raw:
    """Run one check and its near misses, and measure its resolution. ``index`` is the check's place in the list. If the
    check itself raises an exception, it has failed. A near miss that raises one is undecided, as it showed nothing."""
    start = time.perf_counter()
    test = gathered(check.run, generator(seed, check.key, "claim"), on_error=-math.inf)
    outcome = test(0.0)
    near_misses = {
        name: gathered(run, generator(seed, check.key, name), on_error=math.nan)(0.0)
        for name, run in check.near_misses.items()
    }
    found = resolution(test) if check.false and not outcome.not_run else None
    return Raw(index, outcome, near_misses, time.perf_counter() - start, found)


def gathered(run: Function, rng: np.random.Generator, on_error: float) -> Parts:
    """Gather a check's evidence and return its test, which raises nothing: an error becomes the margin ``on_error``."""
    try:
        found = run(rng)
    except Exception as error:
        found = failed(error, on_error)
    if isinstance(found, Outcome):
        return Parts((lambda x: found,))
    return Parts(found.tests if isinstance(found, Parts) else (found,), on_error)


def noticed(test: Test, x: float) -> bool:
    """Return whether a test fails on a statement made false by ``x``, even if p-values are corrected for 50 checks."""
    outcome = test(x)
    return judge(outcome, None if outcome.p_value is None else FAMILY * outcome.p_value) is Verdict.FAIL


def resolution(test: Parts) -> float:
    """Return the smallest x of `SIZES` (1e-16 to 1) such that the test fails whichever one of its parts is made false
    by it; infinity if there is none. Bisection finds it, assuming that all larger sizes are noticed too."""
    high = 0
    for part in range(len(test.tests)):
        low, top = high - 1, len(SIZES)
        while top - low > 1:
            middle = (low + top) // 2
            low, top = (low, middle) if noticed(partial(test, alone=part), SIZES[middle]) else (middle, top)
        high = top
    return SIZES[high] if high < len(SIZES) else math.inf


def assemble(checks: Sequence[Check], raws: Sequence[Raw]) -> list[Row]:
    """Return the report's row of each check: its outcome in ``raws`` judged, with p-values corrected by Holm's method
    for the number of checks on simulated data. A near miss's p-value is multiplied by the number of checks on simulated
    data, the harshest correction that Holm gives a p-value: a near miss that fails here would fail as a check."""
    simulated = [raw.index for raw in raws if raw.outcome.p_value is not None]
    p_values = [p for raw in raws if (p := raw.outcome.p_value) is not None]
    adjusted = dict(zip(simulated, holm(p_values), strict=True))
    return [_row(checks[raw.index], raw, adjusted.get(raw.index), max(len(simulated), 1)) for raw in raws]


def _row(check: Check, raw: Raw, p_adjusted: float | None, family: int) -> Row:
    outcome, verdicts = raw.outcome, {}
    for name, found in raw.near_misses.items():
        verdicts[name] = judge(found, None if found.p_value is None else family * found.p_value)
    if p_adjusted is not None:
        margin = math.nan if math.isnan(p_adjusted) else math.log10(max(p_adjusted, 1e-300) / ALPHA)
        outcome = replace(outcome, margin=margin, unit="decades of p-value")
    verdict = judge(outcome, p_adjusted)
    if verdict is Verdict.PASS and raw.resolution is not None and not raw.resolution <= check.sees:
        verdict = Verdict.UNDECIDED
        note = f"resolution {raw.resolution:.0e} {check.false}: too coarse, at most {check.sees:.0e} is allowed"
        outcome = replace(outcome, note=note)
    return Row(
        *(check.statement, str(check.method), check.name, verdict, outcome.margin + 0.0, outcome.unit, verdicts),
        *(outcome.p_value, p_adjusted, outcome.not_run or outcome.note, raw.seconds, raw.resolution, check.false),
    )


def exit_status(rows: Iterable[Row], strict: bool = False) -> int:
    """Return 0 if at least one check ran, none failed or is undecided, and every near miss failed; else 1. With
    ``strict`` all must have run."""
    rows = list(rows)
    ran = [row for row in rows if row.verdict is not Verdict.NOT_RUN]
    sound = bool(ran) and all(row.sound for row in rows) and (len(ran) == len(rows) or not strict)
    return 0 if sound else 1


def select(checks: Sequence[Check], only: Sequence[str] = (), method: str | None = None) -> list[Check]:
    """Return the checks of the statements named in ``only`` (all if empty) by ``method`` (any if None).

    Raise UserError if no check has such a statement or such a method, or none has both; the message lists the names
    that exist or says how to list them."""
    statements = list(dict.fromkeys(check.statement for check in checks))
    for name in only:
        if name not in statements:
            raise unknown_name("statement", name, statements)
    methods = sorted({str(check.method) for check in checks})
    if method is not None and method not in methods:
        raise unknown_name("method", method, methods)
    chosen = [c for c in checks if (not only or c.statement in only) and method in (None, str(c.method))]
    if not chosen:
        raise UserError(f"no check of {', '.join(only)} uses the method {method!r}; --list shows what there is")
    return chosen
