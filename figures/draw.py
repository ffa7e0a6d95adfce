"""Small drawing helpers that several figures share: points with intervals, legends outside, length axes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import ArrayLike

from analysis.log.partition import LENGTH, Partition
from figures.estimates import ComputedLaw
from figures.style import OUTSIDE_COLORS, OUTSIDE_MARKERS, Look, Style, rule_label


def new_axes(ax: Axes | None) -> Axes:
    """Return the given axes; without any, the axes of a new figure."""
    return Figure(layout="constrained").subplots() if ax is None else ax


def whiskers(
    ax: Axes, x: ArrayLike, y: ArrayLike, low: ArrayLike, high: ArrayLike, *, along: str = "y", **look: Any
) -> Any:
    """Draw points with intervals ``low .. high`` in the direction ``along`` ("x" or "y"); an interval whose end is not
    finite is left out.
    """
    x, y, low, high = (np.asarray(v, float) for v in (x, y, low, high))
    color = look.get("color", "black")
    lines = ax.vlines if along == "y" else ax.hlines
    known = np.isfinite(low) & np.isfinite(high)
    at = x if along == "y" else y
    lines(at[known], low[known], high[known], color=color, linewidth=look.pop("interval_width", 0.9), zorder=2.4)
    look.setdefault("zorder", 2.6)
    return ax.plot(x, y, linestyle=look.pop("linestyle", "none"), **look)[0]


def rule_legend(drawn: Mapping[str, Look], marks: bool = True, lines: bool = True) -> tuple[list[Line2D], list[str]]:
    """Return handles and labels for a legend of rules, which shows each rule's colour with its marker or its line
    style."""
    handles = [
        Line2D([], [], color=k.color, marker=k.marker if marks else None, linestyle=k.linestyle if lines else "none")
        for k in drawn.values()
    ]
    return handles, [rule_label(rule) for rule in drawn]


def outside_legend(shown: Iterable[str]) -> tuple[list[Line2D], list[str]]:
    """Return handles and labels for a legend of what happens outside the band: drop, truncate, cap."""
    names = list(shown)
    handles = [Line2D([], [], color=OUTSIDE_COLORS[o], marker=OUTSIDE_MARKERS[o], linestyle="none") for o in names]
    return handles, names


def draw_law(ax: Axes, law: ComputedLaw, markersize: float, **curve: Any) -> None:
    """Draw a rule's computed curve, and its simulated points with their intervals."""
    points = law.points
    look = {"color": points.look.color, "marker": points.look.marker, "markersize": markersize}
    ax.plot(law.x, law.y, color=points.look.color, linestyle=points.look.linestyle, zorder=2, **curve)
    whiskers(ax, points.at, points.estimate, points.low, points.high, **look)


def cell_axes(ax: Axes) -> None:
    """Format axes of a map of coloured cells: no grid, no frame, no tick marks."""
    ax.tick_params(length=0)
    ax.grid(False)
    for spine in ax.spines.values():
        spine.set_visible(False)


def length_axis(ax: Axes, lengths: ArrayLike, most: int = 6) -> None:
    """Make the x axis a base-2 logarithmic length axis with plain numbers, at most ``most`` tick labels."""
    lengths = np.asarray(lengths, float)
    ax.set_xscale("log", base=2)
    low, high = lengths.min() / 1.25, lengths.max() * 1.25
    ax.set_xlim(low, high)
    powers = np.arange(np.ceil(np.log2(low)), np.floor(np.log2(high)) + 1)
    step = max(1, int(np.ceil(len(powers) / most)))
    ax.xaxis.set_major_locator(FixedLocator(list(2.0 ** powers[::step])))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))


def bin_axis(ax: Axes, partition: Partition, values: ArrayLike, most: int = 6) -> None:
    """Format and label the x axis for bins: base-2 logarithmic for bins of length, linear for bins of another quantity.
    ``values``: the bins' places.
    """
    values = np.asarray(values, float)
    if partition == LENGTH:
        length_axis(ax, values, most)
    else:
        room = 0.08 * (float(np.ptp(values)) or 1.0)
        ax.set_xlim(values.min() - room, values.max() + room)
        few_ticks(ax.xaxis, min(most, 4))
    ax.set_xlabel(axis_label(partition))


def axis_label(partition: Partition) -> str:
    """Return the axis label of the quantity that is binned, broken into lines if it is long, because panels are
    narrow.
    """
    return partition.label if partition == LENGTH else fill(partition.label, 24)


def beside(values: ArrayLike, offset: float, partition: Partition, span: float) -> np.ndarray:
    """Return the bins' places shifted by ``offset`` (bins of length: times 2^offset; else: plus offset * span / 5,
    ``span`` being the distance from first to last bin), so that points of several rules in one bin stand side by side.
    """
    values = np.asarray(values, float)
    return values * 2.0**offset if partition == LENGTH else values + offset * span / 5


def few_words(ax: Axes, x: float, y: float, text: str, **where: Any) -> None:
    """Write grey words inside a panel, such as the reason why a row or a panel is empty."""
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    ax.text(x, y, text, ha="center", va="center", fontsize=6.5, color="#6a6a6a", linespacing=1.1, bbox=box, **where)


def decade_axis(axis: Any, values: ArrayLike) -> None:
    """Make an axis base-10 logarithmic over the positive ``values``, with at most six labelled powers of ten. If fewer
    than two powers are in range, 2 and 5 times a power are labelled too.
    """
    values = np.asarray(values, float)
    values = values[np.isfinite(values) & (values > 0)]
    low, high = values.min() / 1.4, values.max() * 1.4
    name = axis.axis_name
    getattr(axis.axes, f"set_{name}scale")("log")
    getattr(axis.axes, f"set_{name}lim")(low, high)
    powers = np.arange(np.ceil(np.log10(low)), np.floor(np.log10(high)) + 1)
    ticks = 10.0 ** powers[:: max(1, int(np.ceil(len(powers) / 6)))]
    if len(powers) < 2:
        between = np.outer(10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high))), [1, 2, 5]).ravel()
        ticks = between[(between >= low) & (between <= high)]
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axis.set_major_locator(FixedLocator(list(ticks)))
    axis.set_minor_locator(NullLocator())


def visible(text: str) -> int:
    """Estimate how many characters of a label are printed, mathematics included."""
    return len(re.sub(r"\\[a-zA-Z]+", "x", re.sub(r"[${}_^\s]", "", text)))


def legend_columns(labels: Sequence[str], style: Style) -> int:
    """Return the number of columns for a legend of ``labels`` that fits the figure's width, with rows of nearly equal
    size.
    """
    longest = max(visible(text) for text in labels)
    most = max(1, min(len(labels), int(style.width / (0.38 + 0.046 * longest))))
    return -(-len(labels) // -(-len(labels) // most))


def panel_grid(
    style: Style,
    panels: int,
    panel_height: float,
    handles: Sequence[Any] = (),
    labels: Sequence[str] = (),
    *,
    most: int = 3,
    columns: int = 0,
    heights: Sequence[float] = (),
    **options: Any,
) -> tuple[Figure, list[Axes]]:
    """Return a figure with ``panels`` axes in rows of at most ``most`` (or of ``columns``, if given), and one legend
    above them. Heights are in inches.
    """
    fixed = columns > 0
    columns = columns or style.columns(panels, most)
    rows = -(-panels // columns)
    columns = columns if fixed else -(-panels // rows)
    legend_rows = 0
    if labels:
        legend_rows = -(-len(labels) // legend_columns(labels, style))
    figure = style.new_figure(panel_height * rows + sum(heights) + 0.15 * legend_rows + 0.1)
    ratios = {"height_ratios": list(heights)} if heights else {}
    grid = figure.subplots(rows, columns, squeeze=False, gridspec_kw=ratios, **options)
    axes = list(grid.flat)
    for ax in axes[panels:]:
        ax.remove()
    if labels:
        figure.legend(handles, labels, loc="outside upper center", ncols=legend_columns(labels, style))
    return figure, axes[:panels]


def panels_above(
    style: Style, panels: int, panel_height: float, room: float, handles: Sequence[Any], labels: Sequence[str]
) -> tuple[Figure, list[Axes], SubplotSpec]:
    """Return a figure with ``panels`` axes, at most three in a row, these axes, and an empty place of ``room`` inches
    below them for more panels.
    """
    columns = style.columns(panels, 3)
    rows = -(-panels // columns)
    legend_rows = -(-len(labels) // legend_columns(labels, style))
    figure = style.new_figure(panel_height * rows + room + 0.15 * legend_rows + 0.1)
    outer = figure.add_gridspec(2, 1, height_ratios=[panel_height * rows, room])
    grid = outer[0].subgridspec(rows, columns)
    axes = [figure.add_subplot(grid[i // columns, i % columns]) for i in range(panels)]
    figure.legend(handles, labels, loc="outside upper center", ncols=legend_columns(labels, style))
    return figure, axes, outer[1]


def label_left(axes: Sequence[Axes], text: str) -> None:
    """Write ``text`` as y label on the first panel of each row."""
    for ax in axes:
        spec = ax.get_subplotspec()
        if spec is not None and spec.is_first_col():
            ax.set_ylabel(text)


def title_grid(axes: Sequence[Axes], columns: int, rows: Sequence[str], names: Sequence[str]) -> None:
    """Write titles over a grid of panels: ``names`` above the columns, and ``rows`` as bold labels at the left edge."""
    for i, ax in enumerate(axes):
        if i < columns or columns < len(names):
            ax.set_title(names[i % len(names)])
        spec = ax.get_subplotspec()
        if spec is not None and spec.is_first_col():
            ax.set_ylabel(rows[i // len(names)], fontweight="bold", labelpad=4)
    if axes and axes[0].figure is not None:
        axes[0].figure.align_ylabels(axes)


def percent_axis(axis: Any) -> None:
    """Format an axis of shares as percentages."""
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.4g}"))


def spread(count: int, step: float) -> np.ndarray:
    """Return ``count`` offsets around 0, ``step`` apart: the points of each rule are shifted by one, so that they stand
    side by side."""
    return (np.arange(count) - (count - 1) / 2) * step


def rule_rows(ax: Axes, labels: Sequence[str]) -> None:
    """Make the y axis a list: one row for each label, the first on top, with faint lines between rows."""
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.set_yticks(range(len(labels)), labels)
    ax.tick_params(axis="y", length=0)
    ax.grid(False, axis="y")
    for edge in range(1, len(labels)):
        ax.axhline(edge - 0.5, color="#e3e3e3", linewidth=0.5, zorder=0.5)


def from_zero(axes: Sequence[Axes]) -> None:
    """Give all axes one x range, from 0 (with room for a marker there) to the largest value that is drawn in any of
    them.
    """
    right = max(float(ax.dataLim.x1) for ax in axes)
    right = right if np.isfinite(right) and right > 0 else 1.0
    for ax in axes:
        ax.set_xlim(-0.03 * right, 1.05 * right)


def few_ticks(axis: Any, count: int = 4) -> None:
    """Put round ticks on an axis, with at most ``count`` intervals, fewer where many digits make the labels wide."""
    axis.axes.autoscale_view()
    low, high = axis.get_view_interval()
    relative = (high - low) / max(abs(low), abs(high), 1e-300)
    locator = MaxNLocator(nbins=min(count, 2) if relative < 2e-3 else count, steps=[1, 2, 2.5, 5, 10])
    if relative < 1e-4:
        inside = [tick for tick in locator.tick_values(low, high) if low <= tick <= high]
        locator = FixedLocator([inside[0], inside[-1]] if inside else [low])
    axis.set_major_locator(locator)
