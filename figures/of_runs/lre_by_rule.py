"""Length Reweighting Error by rule, for band, update and weight acceptance: dots with intervals (section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from figures.draw import few_ticks, from_zero, new_axes, panel_grid, rule_rows, spread, whiskers
from figures.style import Style, looks, rule_label
from figures.tables import PanelRows, Tables, drawable, first_use, need, plain_outside, prefer, view_words, views
from fspo.stats.intervals import PERCENT

TITLE = "Length Reweighting Error by rule"
TITLE_BY = "Reweighting error by rule (bins: {label})"
CAPTION = (
    "{error} (docs/theory.md section 3) of the rules that drop: of the share in the band (all "
    "responses), of the share not cut and of the kept weight (responses with A ≠ 0); upper row LRE_2, "
    f"bias-corrected, lower row LRE_inf, plug-in. {{what}}. Bars: {PERCENT} intervals (LRE_2: test inversion; "
    "LRE_inf: simultaneous bands). 0 is fair.{missing}"
)
MEASURES = {"band": "in the band", "update": "not cut", "weight": "weight kept"}
NORMS = {"l2": "LRE$_2$", "inf": "LRE$_\\infty$"}
VIEW_MARKERS: tuple[tuple[str, Any], ...] = (("o", "full"), ("o", "none"), ("D", "full"), ("D", "none"))


@dataclass(frozen=True)
class RuleDots:
    """LRE of K rules at one target acceptance, or of the runs' own rules (``label`` says which): rule, value and
    interval, arrays (K,).
    """

    label: str
    rule: tuple[str, ...]
    estimate: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def select(tables: Tables) -> list[PanelRows]:
    """Return the rows of table lre for LRE_2 and LRE_inf, grouped by comparison: one for each target acceptance, one
    for the runs' own rules.
    """
    rows = tables["lre"]
    rows = rows[rows["norm"].isin(list(NORMS))]
    band = prefer(rows[rows["measure"] == "band"], "subset", "all", "nonzero")
    rest = prefer(rows[rows["measure"] != "band"], "subset", "nonzero", "all")
    rows = first_use(need(pd.concat([band, rest]), "no rows of LRE_2 or LRE_inf"))
    trained = rows["source"] == "trained"
    rows = pd.concat([plain_outside(rows[~trained]), rows[trained]])
    drawable(rows)
    return views(rows)


def dots(view: PanelRows, measure: str, norm: str) -> RuleDots:
    """Return the finite LREs of one comparison of rules, for one kind of acceptance (``measure``) and LRE_2 or LRE_inf
    (``norm``).
    """
    part = view.rows[(view.rows["measure"] == measure) & (view.rows["norm"] == norm) & view.rows["estimate"].notna()]
    columns = (part[name].to_numpy(float) for name in ("estimate", "ci_low", "ci_high"))
    return RuleDots(view.title, tuple(part["rule"]), *columns)


def plot_lre(data: Sequence[RuleDots], rules: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw LRE: a row for each rule, in it one dot for each target acceptance and one as the run's own rule, below each
    other.
    """
    ax = new_axes(ax)
    known = looks(rules)
    shift = spread(len(data), 0.24)
    for number, d in enumerate(data):
        marker, fill = VIEW_MARKERS[number % len(VIEW_MARKERS)]
        for rule, look in known.items():
            at = np.array([r == rule for r in d.rule], bool)
            if at.any():
                y = list(rules).index(rule) + shift[number] + spread(int(at.sum()), 0.05)
                style = {"color": look.color, "marker": marker, "fillstyle": fill}
                whiskers(ax, d.estimate[at], y, d.low[at], d.high[at], along="x", **style)
    rule_rows(ax, [rule_label(rule) for rule in rules])
    from_zero([ax])
    few_ticks(ax.xaxis)
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of LRE by rule, which says on which run's log the rules are compared."""
    found = select(tables)
    gone = sorted({str(rule) for view in found for rule in view.rows.loc[view.rows["estimate"].isna(), "rule"]})
    missing = f" Without an estimate in some panel: {', '.join(gone)}." if gone else ""
    error = "Length Reweighting Error" if tables.by_length else f"Reweighting error of the bins of {tables.bin_word}"
    return CAPTION.format(error=error, what=view_words(found), missing=missing)


def figure(tables: Tables, style: Style) -> Figure:
    """Draw LRE by rule (docs/theory.md section 3): a column for each kind of acceptance, a row of panels each for LRE_2
    and LRE_inf.
    """
    found = select(tables)
    rules = list(looks(rule for view in found for rule in view.rows["rule"]))
    norms = [n for n in NORMS if any((view.rows["norm"] == n).any() for view in found)]
    height = max(0.7, 0.08 * (len(found) + 0.5) * len(rules)) + 0.4
    with style.context():
        handles = [
            Line2D([], [], color="#444444", marker=m, fillstyle=f, linestyle="none")
            for m, f in (VIEW_MARKERS[i % len(VIEW_MARKERS)] for i in range(len(found)))
        ]
        labels = [view.title for view in found]
        fig, axes = panel_grid(
            style, 3 * len(norms), height, handles, labels, most=3, columns=3, sharey=True, sharex="row"
        )
        for i, norm in enumerate(norms):
            for j, (measure, words) in enumerate(MEASURES.items()):
                ax = plot_lre([dots(view, measure, norm) for view in found], rules, axes[3 * i + j])
                ax.set_xlabel(NORMS[norm])
                if i == 0:
                    ax.set_title(words)
            row = axes[3 * i : 3 * i + 3]
            from_zero(row)
            if style.narrow:
                few_ticks(row[0].xaxis, 2)
    return fig
