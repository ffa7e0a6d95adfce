"""Measured less theoretical share of responses in the band by length, and the parts of that gap by cause (T1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.log.partition import LENGTH, Partition
from analysis.tables.theory_gap import INGREDIENTS
from figures.draw import (
    axis_label,
    beside,
    bin_axis,
    label_left,
    new_axes,
    panel_grid,
    percent_axis,
    rule_legend,
    spread,
    whiskers,
)
from figures.estimates import Estimates, by_run
from figures.style import Style, looks
from figures.tables import Frame, Tables, count_words, drawable, need
from fspo.stats.intervals import PERCENT

TITLE = "Where theory and data differ"
CAPTION = (
    "First panel: measured less theoretical share in the band, each run's own rule on its own log, first use, by {by} "
    "bin. The theory is docs/theory.md T1: {S} normal with the rule's own drift and variance σ²L, in a symmetric band. "
    "The other panels add up to the first: what the band's asymmetry, the measured drift, the measured spread (H), the "
    "measured law of the standardised {S} (tails) and its dependence on the sign of A each contribute (mean over all "
    f"orders of putting them in), and the rest. n = {{n}} responses a bin. Bars: {PERCENT} intervals (jackknife "
    "over prompts); rules side by side."
)
PARTS = ("gap", *INGREDIENTS, "rest")
WORDS = {"gap": "measured − theory", "H": "H (spread)"}


def select(tables: Tables) -> Frame:
    """Return the rows by bin of table theory_gap: measured less theoretical acceptance (the gap), and the parts of it
    by cause.
    """
    rows = tables["theory_gap"]
    rows = rows[(rows["bin"] >= 0) & rows["part"].isin(list(PARTS))]
    return drawable(need(rows, "no rule with a band on whole sequences has trained"))


def plot_part(data: Sequence[Estimates], partition: Partition = LENGTH, ax: Axes | None = None) -> Axes:
    """Draw the gap between measured and theoretical acceptance, or one part of it, against length, with intervals;
    rules stand side by side.
    """
    ax = new_axes(ax)
    rules = list(dict.fromkeys(d.rule for d in data))
    shift = dict(zip(rules, spread(len(rules), min(0.12, 0.7 / len(rules))), strict=True))
    place = np.concatenate([d.at for d in data])
    ax.axhline(0.0, color="#9a9a9a", linewidth=0.8, zorder=1.5)
    for d in data:
        look = {"color": d.look.color, "marker": d.look.marker, "markersize": 2.8, "interval_width": 0.8}
        at = beside(d.at, shift[d.rule], partition, float(np.ptp(place)))
        whiskers(ax, at, d.estimate, d.low, d.high, linestyle=d.look.linestyle, linewidth=0.5, **look)
    bin_axis(ax, partition, place)
    percent_axis(ax.yaxis)
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the gap between measured and theoretical acceptance, with the numbers of responses."""
    return CAPTION.format(by=tables.bin_word, S=tables.symbol, n=count_words(select(tables)["count"]))


def figure(tables: Tables, style: Style) -> Figure:
    """Draw a panel for the gap between measured and theoretical acceptance and one for each of its parts, all on one
    scale (docs/theory.md T1).
    """
    rows = select(tables)
    with style.context():
        handles, labels = rule_legend(looks(rows["trained_rule"]))
        columns = 2 if style.narrow else 4
        fig, axes = panel_grid(style, len(PARTS), 1.3, handles, labels, columns=columns, sharey=True)
        for ax, name in zip(axes, PARTS, strict=True):
            data = by_run(rows[rows["part"] == name], "bin_mean", "trained_rule")
            plot_part(data, tables.partition, ax).set_title(WORDS.get(name, name))
            ax.set_xlabel("")
        for ax in axes[-columns:]:
            ax.set_xlabel("length $L$ (tokens)" if tables.by_length else axis_label(tables.partition))
        label_left(axes, "percentage points")
    return fig
