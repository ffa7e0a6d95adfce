"""Lay out figures: grids of panels, their legends, and the rules' names beside their curves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from figures.style import OUTSIDE_COLORS, OUTSIDE_MARKERS, Look, Style, looks, rule_label
from figures.tables import REFERENCES, Frame, split


def key(color: str = "#444444", marker: str | None = None, **look: Any) -> Line2D:
    """Return a mark for a legend: a Line2D of a colour and a marker, with further properties ``look``. It has no line
    unless ``linestyle`` is given."""
    properties: dict[str, Any] = {"linestyle": "none"} | look
    return Line2D([], [], color=color, marker=marker, **properties)


def rule_keys(known: Mapping[str, Look], lines: bool = True) -> dict[str, Line2D]:
    """Return a legend's marks by label, one for each rule in ``known``, which maps rules to their looks: colour, marker
    and, if ``lines``, line style."""
    return {
        rule_label(rule): key(k.color, k.marker, linestyle=k.linestyle if lines else "none")
        for rule, k in known.items()
    }


def outside_keys(shown: Iterable[str]) -> dict[str, Line2D]:
    """Return a legend's marks by label, one for each treatment outside the band (drop, cap, ...) in ``shown``."""
    here = set(shown)
    return {o: key(OUTSIDE_COLORS[o], marker) for o, marker in OUTSIDE_MARKERS.items() if o in here}


def legend_columns(labels: Iterable[str], style: Style) -> int:
    """Return in how many columns a legend of ``labels`` fits the figure's width, with rows of nearly equal size."""
    printed = [len(re.sub(r"\\[a-zA-Z]+", "x", re.sub(r"[${}_^\s]", "", text))) for text in labels]
    most = max(1, min(len(printed), int(style.width / (0.38 + 0.046 * max(printed)))))
    return -(-len(printed) // -(-len(printed) // most))


def panel_grid(
    style: Style,
    panels: int,
    panel_height: float,
    legend: Mapping[str, Any] | None = None,
    *,
    most: int = 3,
    columns: int = 0,
    heights: Sequence[float] = (),
    **options: Any,
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its ``panels`` axes, in a grid of at most ``most`` (or, if given, ``columns``) in a line.

    ``legend`` maps labels to the marks of one legend above the axes. The figure's height is ``panel_height`` inches for
    each line of panels, plus the sum of ``heights`` (inches), plus room for the legend. If ``heights``, one for each
    line, are given, the lines' heights have their ratios. ``options`` go to Matplotlib's ``subplots``."""
    fixed = columns > 0
    columns = columns or style.columns(panels, most)
    rows = -(-panels // columns)
    columns = columns if fixed else -(-panels // rows)
    legend_rows = -(-len(legend) // legend_columns(legend, style)) if legend else 0
    height = panel_height * rows + sum(heights) + 0.15 * legend_rows + 0.1
    figure = Figure(figsize=(style.width, height), layout="constrained")
    ratios = {"height_ratios": list(heights)} if heights else {}
    axes = list(figure.subplots(rows, columns, squeeze=False, gridspec_kw=ratios, **options).flat)
    for ax in axes[panels:]:
        ax.remove()
    if legend:
        ncols = legend_columns(legend, style)
        figure.legend(list(legend.values()), list(legend), loc="outside upper center", ncols=ncols)
    return figure, axes[:panels]


def facets(
    style: Style,
    panels: Mapping[str, Frame],
    plot: Callable[[Frame, Axes], Any],
    height: float,
    legend: Mapping[str, Any] | None = None,
    *,
    left: str = "",
    **options: Any,
) -> Figure:
    """Return a figure with a panel for each title. ``plot`` draws a panel's rows into the panel's axes.

    Parameters
    ----------
    panels : mapping
        The table rows that each panel shows, by its title.
    height : float
        Height of a panel, in inches.
    legend : mapping
        Marks of the legend by label.
    left, options
        The y label of the leftmost panels; further arguments of `panel_grid`, such as ``most``.
    """
    figure, axes = panel_grid(style, len(panels), height, legend, **options)
    for ax, (title, part) in zip(axes, panels.items(), strict=True):
        plot(part, ax)
        ax.set_title(title, linespacing=1.1)
        spec = ax.get_subplotspec()
        if left and spec is not None and spec.is_first_col():
            ax.set_ylabel(left)
    return figure


ROW, LEAST, BESIDES = 0.16, 0.45, 0.42
"""Heights in inches: one rule's row, the least height of a panel, and titles and labels around a row of panels."""


def matrix(
    found: Frame,
    column: str,
    names: Mapping[str, str],
    style: Style,
    plot: Callable[[Frame, list[str], Axes], Any],
    label: str,
    legend: Mapping[str, Any],
    *,
    height: float = ROW,
    narrow: int = 2,
    sharex: Any = False,
) -> Figure:
    """Return a figure with a grid of panels: one line of panels for each value of the column ``panel`` of ``found``,
    and in a line one panel for each value of ``column``, under the title to which ``names`` maps it. A panel to which
    no table row belongs is left out.

    Parameters
    ----------
    found : DataFrame
        The table rows to draw.
    plot : function
        Draws one panel, called as ``plot(part, rules, axes)``: ``part`` holds the panel's table rows, ``rules`` are the
        names of all rules in its line of panels, which it must place below each other in this order, and ``axes`` is
        where to draw.
    label : str
        Label of the x axes of the lowest panels.
    legend : mapping
        Marks of the legend by label.
    height : float
        Height that a panel has for each rule, in inches.
    narrow, sharex
        Largest number of panels beside each other in a narrow figure; which panels share an x axis, as in Matplotlib.
    """
    views, columns = split(found), [name for name in names if (found[column] == name).any()]
    width = min(narrow, len(columns)) if style.narrow else len(columns)
    lines = -(-len(columns) // width)
    rules = {title: [name for name in looks(view["rule"]) if name not in REFERENCES] for title, view in views.items()}
    heights = [max(LEAST, height * len(rules[title])) for title in views for _ in range(lines)]
    count = len(views) * lines * width
    fig, axes = panel_grid(style, count, BESIDES, legend, columns=width, heights=heights, sharey="row", sharex=sharex)
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
