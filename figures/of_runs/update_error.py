"""Squared error of the clipped update as an estimate of the gradient: squared bias, variance and their sum (T12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import draw
from figures.style import Style, band_of, looks
from figures.tables import Frame, Tables, count_words, drawable, need, split, view_words, views, with_data
from fspo.stats.intervals import PERCENT

TITLE = "Squared error of the clipped update"
CAPTION = (
    "Squared bias, variance and their sum, the mean squared error, of the clipped update over the unclipped update's "
    "own mean squared error (docs/theory.md T12; below 1, clipping gains more than it costs); and the same sum for the "
    f"direction. Bars: {PERCENT} intervals. {{what}}.{{missing}}"
    "\n\nErrors are those of an estimate of the gradient; the direction is the update over its acceptance. Squared "
    "biases are unbiased estimates over pairs of different prompts and may fall below 0. n = {n} scored responses with "
    "A ≠ 0, first use. Intervals: jackknife over prompts."
)
QUANTITIES = {"bias2": "bias$^2$", "variance": "variance", "mse": "MSE", "mse_direction": "MSE, direction"}
UNCLIPPED = {"bias2": 0.0, "variance": 1.0, "mse": 1.0, "mse_direction": 1.0}
"""Values of the quantities for the update without clipping, each over that update's mean squared error. A panel shows
the value of its quantity as a reference line.
"""
ROW, LEAST, BESIDES = 0.16, 0.45, 0.42
"""Heights in inches: of one rule's row, of the lowest panel, and of titles and labels around a row of panels."""


def rows(tables: Tables) -> Frame:
    """Return the update's squared bias, variance and errors over all responses, with a column ``band``: a panel for
    each target acceptance, one for the runs' own rules.
    """
    tables.only_by_length("it is of all responses together: draw it without --by")
    found = tables["population"]
    found = found[(found["bin"] < 0) & (found["reference"] == "population") & found["quantity"].isin(list(QUANTITIES))]
    drawable(need(found, "no update has two prompts with scores"))
    found = views(found)
    return found.assign(band=found["rule"].map(band_of))


def outside_grid(
    found: Frame, column: str, names: Mapping[str, str], style: Style, plot: Callable[[Frame, list[str], Axes], Any],
    label: str, more: Mapping[str, Any] | None = None,
) -> Figure:  # fmt: skip
    """Return a figure with a row of panels for each comparison of rules (``panel``), and in it a panel for each value
    of ``column`` in ``names``, whose titles these are. A panel without any estimate is left out.

    Parameters
    ----------
    plot : function
        Draws the rows of one panel, in rows of the given rules, into axes.
    label : str
        Label of the x axes below.
    more : mapping
        Marks of the legend beside those of drop, truncate and cap.
    """
    found = with_data(found, ["panel", column])[0]
    views, columns = split(found), [name for name in names if (found[column] == name).any()]
    width = min(2, len(columns)) if style.narrow else len(columns)
    lines = -(-len(columns) // width)
    rules = {title: list(looks(view["band"])) for title, view in views.items()}
    heights = [max(LEAST, ROW * len(rules[title])) for title in views for _ in range(lines)]
    legend = draw.outside_keys(found["outside"]) | dict(more or {})
    count = len(views) * lines * width
    fig, axes = draw.panel_grid(style, count, BESIDES, legend, columns=width, heights=heights, sharey="row")
    for i, (title, view) in enumerate(views.items()):
        own = axes[i * lines * width : (i + 1) * lines * width]
        for j, ax in enumerate(own):
            part = view[view[column] == columns[j]] if j < len(columns) else view.iloc[:0]
            if part.empty:
                ax.set_visible(False)
                ax.set_in_layout(False)
                continue
            plot(part, rules[title], ax)
            ax.set_title(names[columns[j]] if i == 0 or lines > 1 else "")
            ax.set_xlabel(label if i == len(views) - 1 and j + width >= len(columns) else "")
        for j in range(0, len(own), width):
            own[j].set_ylabel(title, fontweight="bold", labelpad=4)
    fig.align_ylabels(axes)
    return fig


def plot_errors(data: Frame, rules: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw one of the ``QUANTITIES`` (columns ``quantity``, ``band``, ``outside``, ``estimate``, ``ci_low``,
    ``ci_high``) in rows of rules, and a line at its value without clipping.
    """
    ax = draw.outside_dots(data, rules, ax)
    draw.reference(ax, UNCLIPPED[data["quantity"].iloc[0]], "x", linewidth=1.2)
    draw.few_ticks(ax.xaxis, 3)
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the update's errors, with the number of responses."""
    found = rows(tables)
    counts = found.loc[found["panel"] == found["panel"].iloc[0], "count"]
    missing = with_data(found, ["panel", "quantity"])[1]
    return CAPTION.format(what=view_words(found), n=count_words(counts), missing=missing)


def figure(tables: Tables, style: Style) -> Figure:
    """Draw a column for each of squared bias, variance, squared error and error of the direction, a row of panels for
    each target acceptance and one for the runs' own rules (T12).
    """
    found = rows(tables)
    with style.context():
        line = {"without clipping": draw.key("#9a9a9a", linestyle="-", linewidth=1.2)}
        return outside_grid(found, "quantity", QUANTITIES, style, plot_errors, "unclipped MSE = 1", line)
