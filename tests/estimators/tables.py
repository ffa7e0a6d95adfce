"""Analyse gradient logs of a small policy by the code that analyses real runs, and look up rows of the tables."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.log.loading import load_run
from analysis.options import Options
from analysis.rules.evaluate import Case, make_cases
from analysis.rules.tally import Grouping, Tally
from analysis.run import analyse, shared_bins
from analysis.scores.sketches import ScoredWindows
from analysis.tables.acceptance import AcceptanceTables, tables_of
from analysis.tables.columns import RunKey
from analysis.tables.cosine import CosineRow, CosineTable
from fspo.stats.bins import make_bins
from fspo.stats.clusters import dense
from tests.estimators.drawn_logs import EDGES, RULE

Write = Callable[[Path], None]
"""Type of a function that writes a gradient log into a run folder."""
Select = Callable[..., list[dict[str, Any]]]


def tables(
    write: Write,
    rules: Sequence[str] = (RULE,),
    targets: Sequence[float] = (),
    edges: Sequence[float] = EDGES,
    window: int = 5,
) -> Select:
    """Analyse the gradient log that ``write`` writes, and return a function that looks up rows of the resulting tables.

    The function takes a table's name and values of columns, and returns the table's rows that have these values. If no
    values of the columns ``rule``, ``source`` and ``use`` are given, it returns rows about `RULE` at its own range and
    about first use, where the table has such columns.

    Parameters
    ----------
    rules, targets, edges, window
        The rules, the target acceptances of matched ranges, the edges of the bins of length, and the number of rollouts
        in a window, as in the options of an analysis.
    """

    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        run = load_run(folder)
        options = Options(rules=tuple(rules), targets=tuple(targets), edges=tuple(edges), draws=1, window=window)
        found, _ = analyse(run, shared_bins([run], options), options)
    records: dict[str, list[dict[str, Any]]] = {name: frame.to_dict("records") for name, frame in found.items()}

    def rows(table: str, **where: Any) -> list[dict[str, Any]]:
        usual = {"rule": RULE, "source": "given", "use": "first"}
        wanted = {name: value for name, value in usual.items() if name in found[table]} | where
        return [r for r in records[table] if all(r[name] == value for name, value in wanted.items())]

    return rows


def acceptance_of_each(write: Write, outside: str, edges: Sequence[float]) -> Iterator[AcceptanceTables]:
    """Yield, for each rollout of the log that ``write`` writes, its tables acceptance, lre and trend, made as if the
    rollout were a log of its own. They are about update and weight acceptance of `RULE` with ``outside``, the name of
    what happens outside the band.
    """

    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        run = load_run(folder)
    bins = make_bins(run.rows.coordinate, len(edges) - 1, tuple(edges))
    for first, rows in run.windows(1):
        one = replace(run, rows=replace(rows, cluster=dense(rows.cluster)))
        tally = Tally(one, Grouping.of(one, bins), cases(outside))
        tally.add(first, one.rows, None)
        yield tables_of(one, tally, ("first",))


def cosines_of_each(write: Write, ways: Sequence[str], rollouts: int) -> Iterator[list[CosineRow]]:
    """Yield, for each ``rollouts`` successive rollouts of the log that ``write`` writes, the rows of the table cosine,
    made as if these rollouts were a log of their own. ``ways``: names of what happens outside the band of `RULE`.
    """

    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        run = load_run(folder)
        bins = make_bins(run.rows.coordinate, len(EDGES) - 1, EDGES)
        for window in ScoredWindows(run, bins, rollouts):
            table = CosineTable(RunKey.of(run), bins, cases(*ways), targets=(), draws=1, seed=0)
            table.add(window)
            yield table.rows()


def cases(*ways: str) -> list[Case]:
    """Return `RULE` at its own range with each of ``ways``, names of what happens outside the band, as the cases that
    an analysis evaluates."""

    return [case for case in make_cases((RULE,), ()) if case.rule.outside in ways]
