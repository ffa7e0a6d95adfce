"""Length Reweighting Error by rule, for band, update and weight acceptance: dots with intervals.

Formulas: docs/theory.md section 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import layout, marks, scales
from figures.style import Style, looks, styled
from figures.tables import Frame, Tables, drawable, first_use, need, plain_outside, prefer, view_words, views
from fspo.stats.intervals import PERCENT

TITLE = "Length Reweighting Error by rule"
TITLE_BY = "Reweighting error by rule (bins: {label})"
CAPTION = (
    "{error} (docs/theory.md section 3; 0 is even) where clipped responses are dropped. Left to right: of the "
    f"share in the band (all responses), of the share not clipped and of the kept weight (A ≠ 0). Bars: {PERCENT} "
    "intervals. {what}.{missing}"
    "\n\nUpper row LRE_2, bias-corrected, with intervals by test inversion; lower row LRE_inf, plug-in, with those of "
    "simultaneous bands."
)
MEASURES = {"band": "in the band", "update": "not clipped", "weight": "weight kept"}
NORMS = {"l2": "LRE$_2$", "inf": "LRE$_\\infty$"}
VIEW_MARKERS: tuple[tuple[str, bool], ...] = (("o", True), ("o", False), ("D", True), ("D", False))


def rows(tables: Tables) -> Frame:
    """Return the rows of table ``lre`` for LRE_2 and LRE_inf. The column ``panel`` names a target acceptance, which all
    rules meet on one log, or is "as trained": each run's own rule on its own log."""
    found = tables["lre"]
    found = found[found["norm"].isin(list(NORMS))]
    band = prefer(found[found["measure"] == "band"], "subset", "all", "nonzero")
    rest = prefer(found[found["measure"] != "band"], "subset", "nonzero", "all")
    found = first_use(need(pd.concat([band, rest]), "no rows of LRE_2 or LRE_inf"))
    trained = found["source"] == "trained"
    found = pd.concat([plain_outside(found[~trained]), found[trained]])
    drawable(found)
    return views(found)


def plot_lre(data: Frame, rules: Sequence[str], panels: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw LRE as dots with intervals: the rules stand below each other, each with a dot for each of ``panels`` (target
    acceptances, or the runs' own rules), from top to bottom.

    ``data`` has the columns ``rule``, ``panel`` (one of ``panels``), ``estimate``, ``ci_low`` and ``ci_high``."""
    shapes = {panel: VIEW_MARKERS[i % len(VIEW_MARKERS)] for i, panel in enumerate(panels)}
    mapped: dict[str, Any] = {"color": ("rule", {rule: look.color for rule, look in looks(rules).items()})}
    mapped |= {"marker": ("panel", {p: marker for p, (marker, _) in shapes.items()})}
    mapped |= {"fill": ("panel", {p: full for p, (_, full) in shapes.items()})}
    ax = marks.dots(data, ax, rows=rules, row="rule", by="panel", order=panels, mapped=mapped)
    scales.few_ticks(ax.xaxis)
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of LRE by rule, which says on which run's log the rules are compared."""
    found = rows(tables)
    gone = sorted(set(found.loc[found["estimate"].isna(), "rule"]))
    missing = f" Without an estimate in some panel: {', '.join(gone)}." if gone else ""
    error = "Length Reweighting Error" if tables.by_length else f"Reweighting error of the bins of {tables.bin_word}"
    return CAPTION.format(error=error, what=view_words(found), missing=missing)


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw LRE by rule: panels of LRE_2 above those of LRE_inf, and beside each other one for each kind of
    acceptance."""
    found = rows(tables)
    panels = list(dict.fromkeys(found["panel"]))
    shapes = {panel: VIEW_MARKERS[i % len(VIEW_MARKERS)] for i, panel in enumerate(panels)}
    legend = {p: layout.key(marker=m, fillstyle="full" if full else "none") for p, (m, full) in shapes.items()}
    found = found.assign(view=found["panel"], panel=found["norm"].map(NORMS)).sort_values(
        "norm", ascending=False, kind="stable"
    )

    def plot(part: Frame, rules: list[str], ax: Axes) -> None:
        plot_lre(part.assign(panel=part["view"]), rules, panels, ax)
        scales.from_zero(ax.get_shared_x_axes().get_siblings(ax))
        scales.few_ticks(ax.xaxis, 2 if style.narrow else 4)

    grid: dict[str, Any] = {"height": 0.08 * (len(panels) + 0.5), "narrow": 3, "sharex": "row"}
    return layout.matrix(found, "measure", MEASURES, style, plot, "LRE", legend, **grid)
