"""Cosine between clipped and true update against rho, the cosine lemma's bound on the clipped update's relative error
(T7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from figures.draw import label_left, new_axes, panel_grid, rule_legend
from figures.style import Look, Style, looks
from figures.tables import (
    Frame,
    NothingToDraw,
    PanelRows,
    Tables,
    drawable,
    first_use,
    lemma_updates,
    view_words,
    views,
)
from fspo.rules import ZEROING
from fspo.stats.intervals import PERCENT
from fspo.theory import cosine_bound

TITLE = "Cosine against the bound of T7"
CAPTION = (
    "Cosine of the clipped and the true update against ρ, one point {unit} (rules that drop; responses with "
    "A ≠ 0). Black curve: the bound √(1 − ρ²) of docs/theory.md T7; shaded: ρ ≥ 1, where "
    f"T7 promises nothing. Crosses: means over updates with {PERCENT} intervals (Student’s t, rollouts as "
    "clusters); a point has none, since T7 holds for the logged vectors themselves. Noise of finitely many "
    "responses biases ρ upward as a "
    "rule. {what}. Without a guarantee: {n}."
)


@dataclass(frozen=True)
class Points:
    """The cosine lemma's rho (T7: it bounds the clipped update's relative error) and the cosine of clipped and true
    update, for each of one rule's K updates."""

    rule: str
    look: Look
    rho: NDArray[np.float64]
    cosine: NDArray[np.float64]


def select(tables: Tables) -> tuple[list[PanelRows], str]:
    """Return the rows of table lemma that have the cosine lemma's rho (T7) and the cosine, grouped by panel (each
    target acceptance, the runs' own rules), and words for what a row is: one update, or one window.
    """
    rows, unit = lemma_updates(tables)
    trained = rows["source"] == "trained"
    rows = pd.concat([rows[~trained], rows[trained]])
    rows = rows[rows["outside"].isin(ZEROING)]
    if rows.empty:
        raise NothingToDraw("no rule that drops has scored updates")
    rows = drawable(rows, ("rho", "cosine"))
    return views(rows), unit


def points(view: PanelRows) -> list[Points]:
    """Return the cosine lemma's rho (T7) and the cosine of each rule's updates in one panel."""
    found = []
    for rule, look in looks(view.rows["rule"]).items():
        part = view.rows[view.rows["rule"] == rule]
        found.append(Points(rule, look, part["rho"].to_numpy(float), part["cosine"].to_numpy(float)))
    return found


def means(tables: Tables, view: PanelRows) -> Frame:
    """Return the rows of table lemma_summary with the means over updates of the cosine lemma's rho (T7) and of the
    cosine, for the cases and runs of one panel.
    """
    table = tables.frames.get("lemma_summary")
    if table is None or table.empty:
        return pd.DataFrame()
    table = first_use(table[table["quantity"].isin(["rho", "cosine"])])
    names = ["run", "rule", "outside", "source", "target"]
    shown = view.rows[names].drop_duplicates()
    return table.merge(shown, on=names)  # as a run's own rule has no target: merge takes NaN for equal to NaN


def plot_means(found: Frame, drawn: Mapping[str, Look], ax: Axes) -> None:
    """Draw a cross for each case: along x the interval of its mean rho (T7), along y the interval of its mean
    cosine."""
    if found.empty:
        return
    for key, own in found.groupby(["run", "rule", "outside", "source", "target"], sort=False, dropna=False):
        rho, cosine = (own[own["quantity"] == name].iloc[0] for name in ("rho", "cosine"))
        ends = [*rho[["ci_low", "ci_high"]], *cosine[["ci_low", "ci_high"]]]
        if not np.all(np.isfinite(np.asarray(ends, float))):
            continue
        look = {"color": drawn[str(key[1])].color, "linewidth": 1.0, "zorder": 2.4}
        ax.hlines(cosine["estimate"], rho["ci_low"], rho["ci_high"], **look)
        ax.vlines(rho["estimate"], cosine["ci_low"], cosine["ci_high"], **look)


def rows(tables: Tables) -> list[PanelRows]:
    """Return all table rows that the figure draws: the updates of every panel, then their means."""
    found, _ = select(tables)
    crosses = [PanelRows(f"{view.title}: means over updates", means(tables, view), view.run) for view in found]
    return [*found, *(view for view in crosses if len(view.rows))]


def without_guarantee(view: PanelRows) -> tuple[int, int]:
    """Return for how many of a panel's updates the cosine lemma gives no bound (rho >= 1), and how many updates it
    shows."""
    return int((~view.rows["guaranteed"].astype(bool)).sum()), len(view.rows)


def plot_bound(data: Sequence[Points], ax: Axes | None = None, lowest: float = 0.0) -> Axes:
    """Draw cosine against the cosine lemma's rho (T7), its lower bound sqrt(1 - rho^2), and shade rho >= 1, which has
    no bound. The y axis begins at ``lowest`` or at the least cosine.
    """
    ax = new_axes(ax)
    rho = np.concatenate([p.rho for p in data])
    low, high = float(rho.min()), float(rho.max())
    lowest = min(lowest, *(float(p.cosine.min()) for p in data))
    wide = high > 4
    left, right = (min(low, 0.9) / 1.2, high * 1.2) if wide else (0.0, max(1.2, 1.05 * high))
    at = np.linspace(left, 1.0, 400)
    ax.plot(at, [cosine_bound(r) or 0.0 for r in at], color="black", linewidth=1.0, zorder=2.2)
    ax.axvspan(1.0, right, color="#ececec", linewidth=0, zorder=0.2)
    for p in data:
        ax.plot(
            p.rho, p.cosine, linestyle="none", marker=p.look.marker, color=p.look.color, markersize=2.8, alpha=0.75,
            markeredgewidth=0.3, zorder=2.6,
        )  # fmt: skip
    if wide:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(lambda v, _: f"{v:g}")
    ax.set_xlim(left, right)
    ax.set_ylim(lowest - 0.03, 1.03)
    ax.set_xlabel("$\\rho$")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of cosine against the cosine lemma's rho (T7), with the number of updates without a bound."""
    found, unit = select(tables)
    counts = [(view.title, *without_guarantee(view)) for view in found]
    words = "; ".join(f"{title}: {none} of {total}" for title, none, total in counts)
    return CAPTION.format(unit=unit, what=view_words(found), n=words)


def figure(tables: Tables, style: Style) -> Figure:
    """Draw the updates' cosine against the cosine lemma's rho, one panel for each target acceptance and one for the
    runs' own rules (docs/theory.md T7).
    """
    found, _ = select(tables)
    drawn = looks(rule for view in found for rule in view.rows["rule"])
    lowest = min(0.0, *(float(view.rows["cosine"].min()) for view in found))
    with style.context():
        handles, labels = rule_legend(drawn, lines=False)
        handles.append(Line2D([], [], color="black", linewidth=1.0))
        labels.append("bound")
        fig, axes = panel_grid(style, len(found), 1.75, handles, labels, sharey=True)
        for ax, view in zip(axes, found, strict=True):
            none, total = without_guarantee(view)
            title = f"{view.title}\nno guarantee: {none} of {total}"
            plot_bound(points(view), ax, lowest).set_title(title, linespacing=1.0)
            plot_means(means(tables, view), looks(view.rows["rule"]), ax)
        label_left(axes, "cosine")
    return fig
