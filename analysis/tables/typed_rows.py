"""Rows of tables as named tuples that say what each column means, and data frames made from them.

A field is ``Annotated[type, meaning, unit]`` and makes one column of its name. A field whose type is another named
tuple stands for that tuple's columns (``RunKey``, ``CaseKey``, ``BinKey``). A field ``x`` of type ``Interval`` makes
three columns: ``x``, ``x_ci_low`` and ``x_ci_high``. If the field's name is ``estimate``, the columns are ``estimate``,
``ci_low`` and ``ci_high``. A third text after meaning and unit replaces the ``x_`` before ``ci_low`` and ``ci_high``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np
import pandas as pd

from analysis.log.loading import Run
from analysis.rules.evaluate import Case
from fspo.rules import Outside
from fspo.stats.bins import Bins
from fspo.stats.clusters import Ratios
from fspo.stats.intervals import PERCENT, mean_interval

WAYS = ", ".join(get_args(Outside))
"""The treatments of a response outside the band, as text."""


class Column(NamedTuple):
    """One column of a table: its name, what it means, and its unit."""

    name: str
    meaning: str
    unit: str


class Interval(NamedTuple):
    """A value with the ends ``low`` and ``high`` of its 95 % interval, NaN where unknown."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan


UNKNOWN = Interval()


class RunKey(NamedTuple):
    """The columns of every table that name a run: run, trained rule and seed."""

    run: Annotated[str, "name of the run folder", "text"]
    trained_rule: Annotated[str, "label of the rule that trained", "text"]
    seed: Annotated[float, "seed of the run's configuration; empty if unknown", "number"]

    @staticmethod
    def of(run: Run) -> RunKey:
        """Return the columns that name a run (its name, rule and seed), with their values."""
        return RunKey(run.name, run.trained_rule, run.seed)


class RuleKey(NamedTuple):
    """The columns that name a run and the rule that is evaluated on it."""

    run: RunKey
    rule: Annotated[str, "rule that is evaluated: a preset's name, the trained rule's label, or random", "text"]
    outside: Annotated[str, f"what happens to a response outside the band: {WAYS}", "text"]
    source: Annotated[
        str,
        "trained: the rule that trained, at its logged drift; given: a preset with its own parameters; matched: a "
        "preset whose range is calibrated in each block of rollouts to the acceptance in target",
        "text",
    ]
    target: Annotated[
        float, "acceptance (1 - clip rate) that the range is calibrated to; empty for other sources", "share"
    ]

    @staticmethod
    def of(run: RunKey, case: Case) -> RuleKey:
        """Return the columns that name a run and a rule that is evaluated on it, with their values."""
        return RuleKey(run, **case.key)


class CaseKey(NamedTuple):
    """The columns that name a run, a rule, and the rows on which the rule is evaluated."""

    band: RuleKey
    subset: Annotated[str, "all: every response; nonzero: responses whose advantage A is not 0", "text"]
    use: Annotated[
        str, "`first`: in the first epoch, no update has used the response before; `reused`: in a later one", "text"
    ]


class BinKey(NamedTuple):
    """The columns that name a bin of response length, or of another partition's coordinate (``--by``)."""

    bin: Annotated[int, "number of the bin from 0; -1: all bins together", "number"]
    bin_lo: Annotated[float, "lower edge of the bin, inside it", "tokens (--by: the coordinate's unit)"]
    bin_hi: Annotated[float, "upper edge of the bin, outside it but for the last bin", "tokens (--by: as bin_lo)"]
    bin_mean: Annotated[float, "mean coordinate of the rows in the bin", "tokens (--by: as bin_lo)"]

    @staticmethod
    def of(bins: Bins, k: int, mean: float) -> BinKey:
        """Return the columns that name bin ``k``, with the mean coordinate ``mean`` of its rows; -1 and the number of
        bins both mean all bins."""
        k = -1 if k == len(bins) else k
        return BinKey(k, *bins.limits(k), mean)


def mean_at(found: Ratios, k: int) -> Interval:
    """Return the ratio of sums (a mean over rows or tokens) that ``found`` holds for bin ``k``, with Student's t
    interval over clusters, NaN with fewer than 5 of them."""
    low, high = mean_interval(found.value[k], found.variance[k], found.clusters[k])
    return Interval(found.value[k], float(low), float(high))


@cache
def columns(row: Any) -> tuple[Column, ...]:
    """Return the columns, in order, of a table whose rows are named tuples of the type ``row``."""
    found: list[Column] = []
    for name, hint in _hints(row):
        if get_origin(hint) is not Annotated:
            found += columns(hint)
            continue
        kind, meaning, unit, *before = get_args(hint)
        found.append(Column(name, meaning, unit))
        if kind is Interval:
            stem = before[0] if before else "" if name == "estimate" else f"{name}_"
            found.append(Column(f"{stem}ci_low", f"lower end of the {PERCENT} interval of {name}", unit))
            found.append(Column(f"{stem}ci_high", f"upper end of the {PERCENT} interval of {name}", unit))
    return tuple(found)


@cache
def names(row: Any) -> tuple[str, ...]:
    """Return the names of the columns, in order, of a table whose rows are named tuples of the type ``row``."""
    return tuple(column.name for column in columns(row))


def frame(row: Any, rows: Sequence[tuple[Any, ...]]) -> pd.DataFrame:
    """Make a data frame from ``rows``, named tuples of the type ``row``; without any, every column is empty and
    float64."""
    if not rows:
        return pd.DataFrame(np.zeros((0, len(names(row)))), columns=list(names(row)))
    return pd.DataFrame(dict(zip(names(row), _values(row, rows), strict=True)))


def _values(row: Any, rows: Sequence[tuple[Any, ...]]) -> Iterator[list[Any]]:
    for (_, hint), values in zip(_hints(row), zip(*rows, strict=True), strict=True):
        if get_origin(hint) is not Annotated:
            yield from _values(hint, values)
        elif get_args(hint)[0] is Interval:
            yield from map(list, zip(*values, strict=True))
        else:
            yield list(values)


@cache
def _hints(row: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(get_type_hints(row, include_extras=True).items())
