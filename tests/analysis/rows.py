"""Rows of tables in tests: made of values by column, and as values by column."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, get_type_hints

import numpy as np

from analysis.scores.sketches import Vectors
from analysis.tables.typed_rows import Interval, columns, frame, names

_hints = cache(get_type_hints)


def made(row: Any, values: dict[str, Any]) -> Any:
    """A row with the given values by column, NaN elsewhere; columns that the row does not have are left out."""
    fields = []
    for name, kind in _hints(row).items():
        if kind is Interval:
            at = [column.name for column in columns(row)].index(name)
            fields.append(Interval(*(values.get(column, math.nan) for column in names(row)[at : at + 3])))
        elif hasattr(kind, "_fields"):
            fields.append(made(kind, values))
        else:
            fields.append(values.get(name, math.nan))
    return row(*fields)


def records(row: Any, rows: Any) -> list[dict[Any, Any]]:
    """Rows as values by column."""
    return frame(row, rows).to_dict("records")


def held(vectors: Any) -> Vectors:
    """Vectors A psi (n, D) as a window of scored rows holds them."""
    return Vectors(vectors, np.arange(len(vectors)), np.ones(len(vectors)))
