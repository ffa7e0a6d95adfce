"""Effective sample size by length of the weights that each rule leaves, and the mean weight by length (T9, T10)."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.log.partition import LENGTH, Partition
from analysis.tables.ess import EXACT
from figures import draw, layout, scales
from figures.style import Style, looks, styled
from figures.tables import (
    Frame,
    Tables,
    count_words,
    drawable,
    first_use,
    need,
    plain_outside,
    shared_log,
    split,
    view_words,
    views,
)
from fspo.stats.intervals import PERCENT

TITLE = "Effective sample size by length"
TITLE_BY = "Effective sample size (bins: {label})"
CAPTION = (
    "Effective over actual number of responses of the weights that each rule leaves, by {by} (n = {n} responses "
    "with A ≠ 0 a bin); exact: every response with its weight w = exp({S}). Last panel: mean of w, near 1 where the "
    f"sampler's law is the one that the weights assume. Bars: {PERCENT} intervals. {{what}}."
    "\n\nEffective number over n: (Σ M w)² / (n Σ (M w)²). The mean of w by {by} tells how lengths shift "
    "(docs/theory.md T9); over all responses, those with A = 0 too, it is 1. Intervals of the share: jackknife over "
    "prompts; none where few prompts decide."
)
WEIGHT = "mean weight"


def rows(tables: Tables) -> Frame:
    """Return effective sample sizes by bin, of the weights that a rule leaves and of the unclipped weights ("exact").

    The column ``panel`` names the panel. In a panel for a target acceptance all rules meet the target on one log; a
    further panel shows the rules with which the runs were trained. The rows of a last panel hold, in the column
    ``estimate``, no effective sample size but the mean of the unclipped weights by bin.
    """
    found = first_use(tables["ess"])
    found = drawable(found[found["bin"] >= 0])
    ruled = views(need(found[found["rule"] != EXACT], "no rule leaves a weight"))
    parts = [plain_outside(part) if part["log"].iloc[0] else part for part in split(ruled).values()]
    exact = shared_log(found[found["rule"] == EXACT])
    parts = [p for part in parts for p in ((part, _titled(exact, part)) if part["log"].iloc[0] else (part,))]
    weights = exact.assign(panel=WEIGHT, log=exact["run"], estimate=exact["mean_weight"])
    ends = {end: exact[f"mean_weight_{end}"] for end in draw.ENDS}
    return pd.concat([*parts, weights.assign(**ends)]).drop(columns=[n for n in found if n.startswith("mean_weight")])


def _titled(exact: Frame, part: Frame) -> Frame:
    return exact.assign(panel=part["panel"].iloc[0], log=part["log"].iloc[0])


def plot_estimates(
    data: Frame, ax: Axes | None = None, partition: Partition = LENGTH, step: float = 0.07, **look: Any
) -> Axes:
    """Draw estimates with intervals (columns ``run``, ``rule``, ``bin_mean``, ``estimate``, ``ci_low``, ``ci_high``)
    against the length (or other quantity) of their bins; rules stand side by side, ``step`` apart.
    """
    step = min(step, 7 * step / data["rule"].nunique())
    look = {"linewidth": 0.6} | look
    ax = draw.curves(data, ax, x="bin_mean", units="run", step=step, partition=partition, **look)
    scales.bin_axis(ax, partition, data["bin_mean"])
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of effective sample sizes, with the numbers of responses."""
    found = rows(tables)
    counts = found.loc[found["panel"] == WEIGHT, "count"]
    words = view_words(found[found["panel"] != WEIGHT])
    return CAPTION.format(what=words, n=count_words(counts), by=tables.bin_word, S=tables.symbol)


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw effective sample sizes, a panel for each target acceptance and for the runs' own rules, and a panel of the
    mean weight.
    """
    found = rows(tables)

    def plot(part: Frame, ax: Axes) -> None:
        plot_estimates(part, ax, tables.partition)
        if part["panel"].iloc[0] == WEIGHT:
            draw.reference(ax, 1.0)
            scales.few_ticks(ax.yaxis)
        else:
            scales.percent_axis(ax.yaxis)

    known, left = looks(found["rule"]), "effective responses (%)"
    fig, axes = layout.facets(style, split(found), plot, 1.6, known=known, x="bin_mean", left=left)
    axes[-1].set_ylabel("")
    return fig
