"""Analyse gradient logs of a small policy by the code that analyses real runs, and look up rows of the tables."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from analysis.log.loading import load_run
from analysis.options import Options
from analysis.run import analyse, shared_bins
from tests.estimators.policy_logs import EDGES, RULE

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

    ``rules``, ``targets``, ``edges`` and ``window`` are options of an analysis.
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
