"""Squared error of the clipped update as an estimate of the gradient: squared bias, variance and their sum (T12)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import draw, layout, scales
from figures.style import PALE, Style, band_of, styled
from figures.tables import Frame, Tables, count_words, drawable, need, view_words, views, with_data
from fspo.stats.intervals import PERCENT

TITLE = "Squared error of the clipped update"
CAPTION = (
    "Squared bias, variance and their sum, the mean squared error, of the clipped update over the unclipped update's "
    "own mean squared error (docs/theory.md T12; below 1, clipping gains more than it costs); and the same sum for "
    f"the direction. Bars: {PERCENT} intervals. {{what}}.{{missing}}"
    "\n\nErrors are those of an estimate of the gradient; the direction is the update over its acceptance. Squared "
    "biases are unbiased estimates over pairs of different prompts and may fall below 0. n = {n} scored responses "
    "with A ≠ 0, first use. Intervals: jackknife over prompts."
)
QUANTITIES = {"bias2": "bias$^2$", "variance": "variance", "mse": "MSE", "mse_direction": "MSE, direction"}
UNCLIPPED = {"bias2": 0.0, "variance": 1.0, "mse": 1.0, "mse_direction": 1.0}
"""Values of the quantities for the update without clipping, each over that update's mean squared error. A panel shows
the value of its quantity as a reference line.
"""


def rows(tables: Tables) -> Frame:
    """Return squared bias, variance and mean squared error of the clipped update, and the mean squared error of its
    direction, over all responses.

    The column ``panel`` says to which row of panels a table row belongs. In the panels for a target acceptance all
    rules meet the target on one log; further panels show the rules with which the runs were trained. Rules with the
    same band share a line of a panel; the column ``band`` names the line by the first preset with that band.
    """
    tables.only_by_length("it is of all responses together: draw it without --by")
    found = tables["population"]
    found = found[(found["bin"] < 0) & (found["reference"] == "population") & found["quantity"].isin(list(QUANTITIES))]
    drawable(need(found, "no update has two prompts with scores"))
    found = views(found)
    return found.assign(band=found["rule"].map(band_of))


def plot_errors(data: Frame, rules: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw one of the ``QUANTITIES``, such as the squared bias (columns ``quantity``, ``band``, ``outside``,
    ``estimate``, ``ci_low``, ``ci_high``), one row for each rule, and a line at the quantity's value without clipping.
    """
    ax = draw.outside_dots(data, rules, ax)
    draw.reference(ax, UNCLIPPED[data["quantity"].iloc[0]], "x", linewidth=1.2)
    scales.few_ticks(ax.xaxis, 3)
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the figure of the clipped update's errors, with the number of responses."""
    found = rows(tables)
    counts = found.loc[found["panel"] == found["panel"].iloc[0], "count"]
    missing = with_data(found, ["panel", "quantity"])[1]
    return CAPTION.format(what=view_words(found), n=count_words(counts), missing=missing)


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw the errors of the clipped update: a column of panels for each of the ``QUANTITIES`` (squared bias, variance,
    mean squared error, that of the direction), and a row of panels for each target acceptance and for the runs' own
    rules.
    """
    found = with_data(rows(tables), ["panel", "quantity"])[0]
    legend = layout.outside_keys(found["outside"])
    legend["without clipping"] = layout.key(PALE, linestyle="-", linewidth=1.2)
    return layout.matrix(found, "quantity", QUANTITIES, style, plot_errors, "unclipped MSE = 1", legend)
