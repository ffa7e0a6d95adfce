"""What training with one setting changed gave: range, dual clip, outside, aggregation, group size, minibatches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.draw import (
    few_ticks,
    few_words,
    new_axes,
    panel_grid,
    percent_axis,
    rule_legend,
    rule_rows,
    spread,
    whiskers,
)
from figures.style import Style, looks
from figures.tables import TOO_LITTLE, Frame, Tables, count_words, drawable
from fspo.stats.intervals import PERCENT

TITLE = "Effect of the settings in training"
CAPTION = (
    "Runs trained with one setting changed at a time; “base” and the dashed lines: the rule's own runs. “half”, "
    "“double”: of the calibrated range (in log space), of the responses a prompt at equal responses a rollout, of "
    "the updates a pass over them. Held-out reward (last fifth of the evaluations); share of first-use responses in "
    "the band, its change for each doubling of length in percentage points, its LRE_2 (docs/theory.md section 3); "
    "same-batch cosine of the clipped and the true update (section 5; the clipping alone, without the aggregation). "
    f"Seeds of each row: {{seeds}}. Bars: {PERCENT} intervals, over seeds where there are at least two, else within "
    "the run.{missing}"
)
QUANTITIES = {
    "reward": "held-out reward",
    "acceptance": "in the band (%)",
    "trend": "trend (points)",
    "lre_2": "LRE$_2$ of the band",
    "cosine": "cosine",
}


def rows(tables: Tables) -> Frame:
    """Return the table of the trained sweep: one row for each changed setting, its value and rule."""
    found = tables["trained_sweep"]
    drawable(found, ("reward",))
    return found


def order(table: Frame) -> list[tuple[str, str]]:
    """Return the pairs (setting, value) in the order in which the table first names them."""
    return [(str(s), str(v)) for s, v in table[["setting", "value"]].drop_duplicates().to_numpy()]


def plot_variants(table: Frame, places: Sequence[tuple[str, str]], quantity: str, ax: Axes | None = None) -> Axes:
    """Draw a quantity after training: a row for each changed setting and its value, with the rules below each other."""
    ax = new_axes(ax)
    known = looks(table["rule"])
    shift = spread(len(known), 0.24)
    drawn = np.zeros(len(places), bool)
    for (rule, look), move in zip(known.items(), shift, strict=True):
        part = table[table["rule"] == rule].set_index(["setting", "value"])
        names = (quantity, f"{quantity}_ci_low", f"{quantity}_ci_high")
        estimate, low, high = (part[name].reindex(list(places)).to_numpy(float) for name in names)
        at = np.isfinite(estimate)
        drawn |= at
        style = {"color": look.color, "marker": look.marker, "markersize": 3.0}
        whiskers(ax, estimate[at], np.flatnonzero(at) + move, low[at], high[at], along="x", **style)
        if at[0]:
            ax.axvline(estimate[0], color=look.color, linewidth=0.6, linestyle="--", alpha=0.6, zorder=1.0)
    rule_rows(ax, [f"{setting}: {value}" if setting != "base" else "base" for setting, value in places])
    few_ticks(ax.xaxis, 3)
    for i in np.flatnonzero(~drawn):
        few_words(ax, 0.5, float(i), TOO_LITTLE, transform=ax.get_yaxis_transform())
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the trained sweep, with the number of seeds."""
    table = rows(tables)
    gone = table[list(QUANTITIES)].isna().to_numpy().any()
    missing = " Points that are missing: too little data, or not trained (the table says why)." if gone else ""
    return CAPTION.format(seeds=count_words(table["seeds"]), missing=missing)


def figure(tables: Tables, style: Style) -> Figure:
    """Draw the trained sweep: a column for each measured quantity, a row for each value of each changed setting."""
    table = rows(tables)
    places = order(table)
    shown = [q for q in QUANTITIES if table[q].notna().any()]
    columns = 2 if style.narrow else len(shown)
    with style.context():
        known = looks(table["rule"])
        height = (0.1 + 0.08 * len(known)) * len(places) + 0.45
        legend = rule_legend(known, lines=False)
        fig, axes = panel_grid(style, len(shown), height, *legend, columns=columns, sharey=True)
        for ax, quantity in zip(axes, shown, strict=True):
            plot_variants(table, places, quantity, ax).set_xlabel(QUANTITIES[quantity])
            if quantity in ("acceptance", "trend"):
                percent_axis(ax.xaxis)
    return fig
