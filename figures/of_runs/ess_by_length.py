"""Effective sample size by length of the weights that each rule leaves, and the mean weight by length (T9, T10)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.log.partition import LENGTH, Partition
from analysis.tables.ess import EXACT
from figures.draw import (
    beside,
    bin_axis,
    few_ticks,
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
from figures.tables import (
    PanelRows,
    Tables,
    count_words,
    drawable,
    first_use,
    need,
    plain_outside,
    shared_log,
    view_words,
    views,
)
from fspo.rules import COMPARED
from fspo.stats.intervals import PERCENT

TITLE = "Effective sample size by length"
TITLE_BY = "Effective sample size (bins: {label})"
CAPTION = (
    "Effective over actual number of responses of the weights that each rule leaves, (Σ M w)² / (n Σ (M w)²), by {by} "
    "(n = {n} responses with A ≠ 0 a bin). exact: every response is kept with its weight w = exp({S}). {what}. Last "
    "panel: mean of w; it is 1 where the sampler's law is the one that the weights assume, and by {by} tells how "
    f"lengths shift (docs/theory.md T9). Bars: {PERCENT} intervals (share: jackknife over prompts; none "
    "where few prompts decide)."
)
WEIGHT = "mean weight"
MOST = 5
"""Largest number of rules in a panel, beside the unclipped weights ("exact"). With more rules only those that the paper
compares are drawn.
"""


def select(tables: Tables) -> list[PanelRows]:
    """Return effective sample sizes by bin, grouped by panel: one for each target acceptance, one for the runs' own
    rules, and last the unclipped weights ("exact").
    """
    rows = first_use(tables["ess"])
    rows = drawable(rows[rows["bin"] >= 0])
    found = []
    for view in views(need(rows[rows["rule"] != EXACT], "no rule leaves a weight")):
        part = plain_outside(view.rows) if view.run else view.rows
        if part["rule"].nunique() > MOST:
            part = part[part["rule"].isin(COMPARED)]
        found.append(PanelRows(view.title, part, view.run))
    exact = shared_log(rows[rows["rule"] == EXACT])
    return [*found, PanelRows(WEIGHT, exact, str(exact["run"].iloc[0]))]


def plot_estimates(data: Sequence[Estimates], partition: Partition = LENGTH, ax: Axes | None = None) -> Axes:
    """Draw estimates with intervals against the length (or other quantity) of their bins; rules stand side by side."""
    ax = new_axes(ax)
    rules = list(dict.fromkeys(d.rule for d in data))
    shift = dict(zip(rules, spread(len(rules), min(0.07, 0.5 / len(rules))), strict=True))
    place = np.concatenate([d.at for d in data])
    for d in data:
        at = beside(d.at, shift[d.rule], partition, float(np.ptp(place)))
        look = {"color": d.look.color, "marker": d.look.marker, "linestyle": d.look.linestyle, "linewidth": 0.6}
        whiskers(ax, at, d.estimate, d.low, d.high, **look)
    bin_axis(ax, partition, place)
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of effective sample sizes, with the numbers of responses."""
    *found, exact = select(tables)
    return CAPTION.format(
        what=view_words(found), n=count_words(exact.rows["count"]), by=tables.bin_word, S=tables.symbol
    )


def figure(tables: Tables, style: Style) -> Figure:
    """Draw effective sample sizes by length, a panel for each target acceptance and one for the runs' own rules, and a
    panel of the mean weight (docs/theory.md T9, T10).
    """
    *found, exact = select(tables)
    weights = exact.rows.drop(columns=["estimate", "ci_low", "ci_high"]).rename(
        columns={"mean_weight": "estimate", "mean_weight_ci_low": "ci_low", "mean_weight_ci_high": "ci_high"}
    )
    with style.context():
        drawn = looks([EXACT, *(rule for view in found for rule in view.rows["rule"])])
        fig, axes = panel_grid(style, len(found) + 1, 1.6, *rule_legend(drawn))
        plain = exact.rows if any(view.run for view in found) else exact.rows.iloc[:0]
        for ax, view in zip(axes, found, strict=False):
            rows = pd.concat([view.rows, plain]) if view.run else view.rows
            plot_estimates(by_run(rows, "bin_mean"), tables.partition, ax).set_title(view.title)
            percent_axis(ax.yaxis)
        label_left(axes[:-1], "effective responses (%)")
        plot_estimates(by_run(weights, "bin_mean"), tables.partition, axes[-1]).set_title(WEIGHT)
        axes[-1].axhline(1.0, color="#9a9a9a", linewidth=0.8, zorder=1.5)
        few_ticks(axes[-1].yaxis)
    return fig
