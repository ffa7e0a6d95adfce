"""The numbers behind a figure: the table rows that it draws, as one CSV table."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pandas as pd

from figures.tables import Frame, PanelRows, Tables


def numbers(module: ModuleType, tables: Tables) -> Frame | None:
    """Return the table rows that a figure's module draws, with a column ``panel`` if there are several panels; None if
    it draws none.
    """
    select = getattr(module, "rows", None) or getattr(module, "select", None)
    parts = [] if select is None else _parts(select(tables))
    if not parts:
        return None
    titled = [frame.assign(panel=title) if title else frame for title, frame in parts]
    found = pd.concat(titled, ignore_index=True).dropna(axis=1, how="all")
    first = ["panel"] if "panel" in found else []
    return found[[*first, *(name for name in found.columns if name not in first)]]


def _parts(chosen: Any) -> list[tuple[str, Frame]]:
    if isinstance(chosen, pd.DataFrame):
        return [("", chosen)]
    if isinstance(chosen, PanelRows):
        return [(chosen.title, chosen.rows)]
    if isinstance(chosen, tuple) and len(chosen) == 2 and isinstance(chosen[0], str):
        return [(chosen[0], frame) for _, frame in _parts(chosen[1])]
    if isinstance(chosen, (list, tuple)):
        return [part for item in chosen for part in _parts(item)]
    return []
