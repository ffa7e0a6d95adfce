"""Cosine between clipped and unclipped gradient by rule, for drop, truncate and cap (T7), beside the cosine when as
many responses are dropped at random."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import layout, marks
from figures.style import OUTSIDE_MARKERS, RANDOM_LABEL, Style, styled
from figures.tables import Frame, Tables, count_words, drawable, first_use, view_words, views
from fspo.stats.intervals import PERCENT

TITLE = "Cosine of the clipped and the unclipped gradient"
CAPTION = (
    "Same-batch cosine of the clipped and the unclipped gradient (docs/theory.md section 5): over all {all}, and in "
    f"the {{by}} bin where it is lowest. Dashed line: as many responses dropped at random. Bars: {PERCENT} intervals. "
    "{what}."
    "\n\nOne common weight exp({S}) and one common g. What happens outside the band: {outside}. n = {n} scored "
    "responses with A ≠ 0, first epoch. Intervals: jackknife over prompts, Fisher's z."
)
ENDS = {"estimate": ("ci_low", "ci_high"), "worst_bin": ("worst_ci_low", "worst_ci_high")}


def rows(tables: Tables) -> Frame:
    """Return the rows of table ``cosine`` over all lengths. The random drop, with which rules are compared, is the rule
    "random".

    The column ``panel`` names the panel. In a panel for a target acceptance all rules meet the target on one log; a
    further panel shows the rules with which the runs were trained."""
    found = tables["cosine"]
    found = first_use(found[found["bin"] < 0])
    drawable(found[found["rule"] != "random"])
    found = views(found)
    known = found["estimate"].notna() & (found["rule"] != "random")
    return found[known.groupby(found["panel"]).transform("any")]


def plot_cosines(data: Frame, rules: list[str], ax: Axes | None = None, part: str = "estimate") -> Axes:
    """Draw cosines with intervals: the rules stand below each other, each with drop, truncate and cap below each other.
    A dashed line marks the cosine when as many responses are dropped at random.

    ``data`` has the columns ``rule`` ("random" for random drops), ``outside``, ``log`` (the run on whose log rules are
    compared, else ""), and the cosine in the column ``part``, with its interval: "estimate" over all lengths, or
    "worst_bin" in the bin where it is least."""
    random = data["rule"] == "random"
    ax = marks.outside_dots(data[~random], rules, ax, x=part, ends=ENDS[part])
    for value in data.loc[random & (data["log"] != ""), part].dropna().iloc[:1]:
        marks.reference(ax, value, "x", color="#7f7f7f", linestyle="--")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the figure of cosines by rule, with the number of responses."""
    found = rows(tables)
    first = found[found["panel"] == found["panel"].iloc[0]]
    return CAPTION.format(
        what=view_words(found),
        n=count_words(first["count"]),
        all="lengths" if tables.by_length else "responses",
        by=tables.bin_word,
        S=tables.symbol,
        outside=", ".join(name for name in OUTSIDE_MARKERS if (found["outside"] == name).any()),
    )


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw cosines over all lengths and, beside them, in the bin where the cosine is least: a line of panels for each
    target acceptance and one for the runs' own rules."""
    found = rows(tables)
    legend = layout.outside_keys(found["outside"])
    legend[RANDOM_LABEL] = layout.key("#7f7f7f", linestyle="--", linewidth=0.9)
    titles = {"estimate": "all lengths" if tables.by_length else "all responses", "worst_bin": "worst bin"}
    both = pd.concat([found.assign(part=part) for part in titles])

    def plot(part: Frame, rules: list[str], ax: Axes) -> None:
        plot_cosines(part, rules, ax, part["part"].iloc[0])

    return layout.matrix(both, "part", titles, style, plot, "cosine", legend)
