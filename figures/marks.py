"""Draw tables with seaborn: curves, points, rows of dots with intervals, reference lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from numpy.typing import ArrayLike, NDArray

from analysis.log.partition import LENGTH, Partition
from figures.scales import few_ticks
from figures.style import OUTSIDE_COLORS, OUTSIDE_MARKERS, PALE, Look, looks, rule_label
from figures.tables import Frame

ENDS = ("ci_low", "ci_high")
"""Columns of the ends of an estimate's interval."""


def new_axes(ax: Axes | None) -> Axes:
    """Return ``ax``; if it is None, make a new figure and return its axes."""
    return Figure(layout="constrained").subplots() if ax is None else ax


def intervals(data: Frame, lines: Any, at: str, ends: Sequence[str], color: Any) -> None:
    """Draw with ``lines`` (an axes' ``vlines`` or ``hlines``) a bar for each table row of ``data``: at the value of its
    column ``at``, between those of its two columns ``ends`` if both are finite, in ``color`` (one, or one a bar)."""
    told = np.isfinite(data[list(ends)].to_numpy(float)).all(axis=1)
    part = data[told]
    colors: Any = color if isinstance(color, str) else np.asarray(color)[told]
    lines(part[at], part[ends[0]], part[ends[1]], colors=colors, linewidth=0.9, zorder=1.9)


def curves(
    data: Frame,
    ax: Axes | None = None,
    *,
    x: str,
    y: str = "estimate",
    hue: str = "rule",
    units: str | None = None,
    ends: Sequence[str] = ENDS,
    known: Mapping[str, Look] | None = None,
    marks: bool = True,
    lines: bool = True,
    step: float = 0.0,
    partition: Partition = LENGTH,
    **look: Any,
) -> Axes:
    """Draw the table's column ``y`` over ``x``: a line with markers for each rule, and the interval of each point.

    Parameters
    ----------
    data : DataFrame
        Rows to draw; those without a value in ``y`` are left out.
    x, y, hue : str
        Columns of the horizontal coordinate, of the vertical one, and of the value (such as the rule) that sets a
        line's colour and marker.
    units : str, optional
        Column that splits the rows of one ``hue`` into several lines, such as the run.
    ends : pair of str
        Columns of the interval's ends; no bars are drawn if the table lacks them.
    known : mapping, optional
        Look of each value of ``hue``; `figures.style.looks` of rules if not given.
    marks, lines : bool
        Whether points have markers, and whether a line joins them.
    step, partition : float, Partition
        By how much the points of two rules in one bin are moved apart (`beside`), and what responses are binned by.
    look
        Further properties of the lines, as Matplotlib names them."""
    ax = new_axes(ax)
    known = looks(data[hue]) if known is None else known
    data = data[data[y].notna()]
    if data.empty:
        return ax
    if step:
        shift = dict(zip(known, spread(len(known), step), strict=True))
        data = data.assign(**{x: beside(data[x], data[hue].map(shift), partition)})
    if set(ends) <= set(data) and len(ends):
        intervals(data, ax.vlines, x, ends, [known[value].color for value in data[hue]])
    here = [value for value in known if (data[hue] == value).any()]
    properties: dict[str, Any] = {"zorder": 2.5} | look | ({} if lines else {"linestyle": ""})
    sns.lineplot(
        data, x=x, y=y, hue=hue, style=hue, hue_order=here, style_order=here, units=units, estimator=None,
        palette={value: known[value].color for value in here},
        markers={value: known[value].marker for value in here} if marks else False,
        dashes={value: known[value].dashes for value in here} if lines else False,
        markeredgewidth=0.4, legend=False, ax=ax, **properties,
    )  # fmt: skip
    ax.set(xlabel=None, ylabel=None)
    return ax


def cloud(data: Frame, ax: Axes, *, x: str, y: str, hue: str, known: Mapping[str, Look], **look: Any) -> None:
    """Draw a table's column ``y`` over ``x``: a small point for each row. ``known`` gives each value of the column
    ``hue`` its colour and marker; ``look`` holds further properties of the points, as Matplotlib names them."""
    here = [value for value in known if (data[hue] == value).any()]
    sns.scatterplot(
        data, x=x, y=y, hue=hue, style=hue, style_order=here, palette={value: known[value].color for value in here},
        markers={value: known[value].marker for value in here}, legend=False, ax=ax, alpha=0.75, **look,
    )  # fmt: skip


def dots(
    data: Frame,
    ax: Axes | None = None,
    *,
    rows: Sequence[str],
    row: str,
    x: str = "estimate",
    by: str = "",
    order: Sequence[str] = ("",),
    ends: Sequence[str] = ENDS,
    step: float = 0.24,
    mapped: Mapping[str, tuple[str, Mapping[Any, Any]]] | None = None,
    **look: Any,
) -> Axes:
    """Draw the table's column ``x`` as dots with their intervals, in one row of the panel for each category.

    Parameters
    ----------
    data : DataFrame
        Rows to draw; those without a finite value in ``x`` are left out.
    rows : sequence of str
        Categories from top to bottom: values of the column ``row``.
    by, order : str, sequence of str
        In a row of the panel, dots with different values of the column ``by`` stand below each other, ``step`` apart,
        in the order ``order``. Dots that would share a place, such as those of several runs, are spread around it.
    ends : pair of str
        Columns of the interval; none are drawn if the table lacks them.
    mapped : mapping
        Maps a property of the dots, such as "color", to a pair: the column that sets this property, and a mapping from
        the column's values to the property's.
    look
        Properties that are equal for all dots: color, marker, fill (whether dots are filled), pointsize and stroke (the
        width of the lines of a dot that is not filled) in points, alpha."""
    ax = new_axes(ax)
    data = data[np.isfinite(data[x].astype(float)) & data[row].isin(list(rows))]
    if len(data):
        shift = dict(zip(order, spread(len(order), step), strict=True))
        place = data[row].map({name: i for i, name in enumerate(rows)}).astype(float)
        place += data[by].map(shift).astype(float) if by else 0.0
        same = place.groupby(place)
        count = same.transform("size")
        at = place + (same.cumcount() - (count - 1) / 2) * np.minimum(0.06, 0.2 / count)
        given: dict[str, Any] = {"color": "C0", "marker": "o", "fill": True, "pointsize": 3.8, "stroke": 0.8} | look
        given |= {name: data[column].map(values) for name, (column, values) in (mapped or {}).items()}
        data = data.assign(at=at, **given)
        if set(ends) <= set(data) and len(ends):
            intervals(data, ax.hlines, "at", ends, data["color"])
        points = ax.scatter(
            data[x], at, data["pointsize"] ** 2, facecolors=data["color"].where(data["fill"], "none"),
            edgecolors=data["color"], linewidths=data["stroke"].mask(data["fill"], 0.5), alpha=look.get("alpha"),
        )  # fmt: skip
        shapes = {name: MarkerStyle(name) for name in data["marker"]}
        paths = {name: shape.get_path().transformed(shape.get_transform()) for name, shape in shapes.items()}
        points.set_paths([paths[name] for name in data["marker"]])
    ax.set(xlabel=None, ylabel=None)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), [rule_label(name) for name in rows])
    ax.tick_params(axis="y", length=0)
    ax.grid(False, axis="y")
    for edge in range(1, len(rows)):
        ax.axhline(edge - 0.5, color="#e3e3e3", linewidth=0.5, zorder=0.5)
    return ax


def outside_dots(
    data: Frame, rules: Sequence[str], ax: Axes | None = None, *, x: str = "estimate", **more: Any
) -> Axes:
    """Draw the column ``x`` as dots: each rule has a row of the panel, and in it one dot for each treatment outside the
    band (drop, mask, truncate, cap) that the column ``outside`` names. ``more`` are further arguments of `dots`, such
    as ``ends`` and ``step``."""
    here = [name for name in OUTSIDE_MARKERS if (data["outside"] == name).any()]
    mapped = {"color": ("outside", OUTSIDE_COLORS), "marker": ("outside", OUTSIDE_MARKERS)}
    ax = dots(data, ax, rows=rules, row="rule", x=x, by="outside", order=here, mapped=mapped, **more)
    few_ticks(ax.xaxis, 3)
    return ax


def rule_marks(column: str, known: Mapping[str, Look]) -> dict[str, tuple[str, Mapping[Any, Any]]]:
    """Return the argument ``mapped`` of `dots` with which each rule has the colour and marker of its look in ``known``:
    {"color": (column, {rule: colour}), "marker": (column, {rule: marker})}. ``column`` is that of the rules' names."""
    return {name: (column, {rule: getattr(k, name) for rule, k in known.items()}) for name in ("color", "marker")}


def spread(count: int, step: float) -> NDArray[np.float64]:
    """Return ``count`` offsets around 0, ``step`` apart, so that points stand side by side."""
    return (np.arange(count, dtype=np.float64) - (count - 1) / 2) * step


def beside(values: ArrayLike, offset: ArrayLike, partition: Partition = LENGTH) -> NDArray[np.float64]:
    """Return the places of bins on the axis, ``values``, moved so that the points of several rules stand side by side:
    for bins of length they are multiplied by 2^offset; else offset / 5 of the distance from first to last bin is added.
    """
    values, offset = np.asarray(values, float), np.asarray(offset, float)
    return values * 2.0**offset if partition == LENGTH else values + offset * float(np.ptp(values)) / 5


def reference(ax: Axes, value: float, along: str = "y", **look: Any) -> None:
    """Draw a line, grey unless ``look`` says otherwise, at ``value`` of the axis ``along`` ("x" or "y")."""
    line = ax.axhline if along == "y" else ax.axvline
    line(value, **({"color": PALE, "linewidth": 0.9, "zorder": 1.5} | look))
