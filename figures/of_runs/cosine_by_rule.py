"""Cosine between clipped and true update by rule, for drop, truncate and cap, beside a random control (T7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from figures.draw import few_ticks, new_axes, outside_legend, panel_grid, rule_rows, spread, whiskers
from figures.style import OUTSIDE_COLORS, OUTSIDE_MARKERS, RANDOM_LABEL, Style, band_of, looks, rule_label
from figures.tables import NothingToDraw, PanelRows, Tables, count_words, drawable, first_use, need, view_words, views
from fspo.stats.intervals import PERCENT

TITLE = "Cosine of the clipped and the true update"
CAPTION = (
    "Same-batch cosine of the clipped and the true update, one common weight exp({S}) and one common g "
    "(docs/theory.md section 5): over all {all}, and in the {by} bin where it is lowest. What happens outside "
    "the band: {outside}. {what}. n = {n} scored responses with A ≠ 0, first "
    f"use. Bars: {PERCENT} intervals (jackknife over prompts, Fisher's z). Dashed line: as many responses dropped "
    "at random."
)
DROPPED = "dropped, truncated at the edge or capped"
MASKED = "masked, or capped at the upper edge"
PARTS = {"estimate": ("ci_low", "ci_high", "all"), "worst_bin": ("worst_ci_low", "worst_ci_high", "worst bin")}


@dataclass(frozen=True)
class Cosines:
    """Cosines of clipped and true update in one panel with intervals, arrays (K,), each with its rule and what that
    does outside the band; ``control`` is the cosine if as many responses are dropped at random.
    """

    rule: tuple[str, ...]
    outside: tuple[str, ...]
    estimate: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    control: float


def select(tables: Tables) -> list[PanelRows]:
    """Return the rows of table cosine over all lengths, with the weight exp(S) for every rule, grouped by panel: one
    for each target acceptance, one for the runs' own rules. Dropping at random is the rule "random".
    """
    rows = tables["cosine"]
    rows = rows[(rows["bin"] < 0) & (rows["weight"] == "sequence")]
    rows = first_use(need(rows, "no rows with the common weight exp(S)"))
    drawable(rows[~rows["control"].astype(bool)])
    return [v for v in views(rows) if (v.rows["estimate"].notna() & (v.rows["rule"] != "random")).any()]


def cosines(view: PanelRows, column: str) -> Cosines:
    """Return the finite cosines of one panel from a ``column`` of its rows: over all lengths (``estimate``) or in the
    bin where it is least (``worst_bin``). Intervals are NaN where the table has none.
    """
    rows = view.rows
    if column not in rows:
        raise NothingToDraw(f"the table 'cosine' has no column {column}")
    low, high, _ = PARTS[column]
    rows = rows.assign(**{name: np.nan for name in (low, high) if name not in rows})
    rows = rows[rows[column].notna()]
    control = rows.loc[rows["rule"] == "random", column] if view.run else rows.loc[[], column]
    rows = rows[rows["rule"] != "random"]
    arrays = (rows[name].to_numpy(float) for name in (column, low, high))
    value = float(control.iloc[0]) if len(control) else float("nan")
    return Cosines(tuple(band_of(rule) for rule in rows["rule"]), tuple(rows["outside"]), *arrays, control=value)


def part_words(part: str, tables: Tables) -> str:
    """Return words for a panel's title: "all lengths" for the column ``estimate``, words for the worst bin for
    ``worst_bin``.
    """
    words = PARTS[part][2]
    return "all lengths" if words == "all" and tables.by_length else words


def plot_cosines(data: Cosines, rules: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw cosines with intervals: a row for each rule, with drop, truncate and cap below each other in it."""
    ax = new_axes(ax)
    here = [o for o in OUTSIDE_MARKERS if o in data.outside]
    shift = dict(zip(here, spread(len(here), 0.24), strict=True))
    for outside in here:
        for rule in rules:
            pairs = zip(data.rule, data.outside, strict=True)
            at = np.array([r == rule and o == outside for r, o in pairs], bool)
            if at.any():
                y = list(rules).index(rule) + shift[outside] + spread(int(at.sum()), 0.06)
                look = {"color": OUTSIDE_COLORS[outside], "marker": OUTSIDE_MARKERS[outside]}
                whiskers(ax, data.estimate[at], y, data.low[at], data.high[at], along="x", **look)
    if np.isfinite(data.control):
        ax.axvline(data.control, color="#7f7f7f", linestyle="--", linewidth=0.9, zorder=1.5)
    rule_rows(ax, [rule_label(rule) for rule in rules])
    few_ticks(ax.xaxis, 3)
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the cosines by rule, with the number of responses."""
    found = select(tables)
    counts = [view.rows["count"] for view in found if "count" in view.rows]
    return CAPTION.format(
        what=view_words(found),
        n=count_words(counts[0]) if counts else "all",
        all="lengths" if tables.by_length else "responses",
        by=tables.bin_word,
        S=tables.symbol,
        outside=MASKED if any((view.rows["outside"] == "mask").any() for view in found) else DROPPED,
    )


def figure(tables: Tables, style: Style) -> Figure:
    """Draw cosines by rule, over all lengths and in the worst bin: for each a panel for every target acceptance and one
    for the runs' own rules (T7).
    """
    found = select(tables)
    rules = [r for r in looks(band_of(rule) for view in found for rule in view.rows["rule"]) if r != "random"]
    parts = [p for p in PARTS if p in tables["cosine"]]
    panels = [(view, part) for part in parts for view in found]
    columns = len(found)
    if style.narrow and len(parts) == 2:
        panels, columns = [(view, part) for view in found for part in parts], 2
    height = max(0.6, 0.24 * len(rules)) + 0.45
    between = "\n" if style.narrow else " "  # long rule names make panels narrow, so the title is broken there
    with style.context():
        here = [o for o in OUTSIDE_MARKERS if any((view.rows["outside"] == o).any() for view in found)]
        handles, labels = outside_legend(here)
        handles.append(Line2D([], [], color="#7f7f7f", linestyle="--", linewidth=0.9))
        labels.append(RANDOM_LABEL)
        fig, axes = panel_grid(style, len(panels), height, handles, labels, most=3, columns=columns, sharey=True)
        for ax, (view, part) in zip(axes, panels, strict=True):
            title = f"{view.title},{between}{part_words(part, tables)}"
            plot_cosines(cosines(view, part), rules, ax).set_title(title)
        for ax in axes[-columns:]:
            ax.set_xlabel("cosine")
    return fig
