"""Draw tables with seaborn: curves, dots with intervals in rows, grids of panels, names of lines, axes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from textwrap import fill
from typing import Any, cast

import matplotlib as mpl
import numpy as np
import seaborn as sns
import seaborn.objects as so
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.offsetbox import AnnotationBbox, DrawingArea
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator, ScalarFormatter
from numpy.typing import ArrayLike, NDArray

from analysis.log.partition import LENGTH, Partition
from figures.style import GREY, OUTSIDE_COLORS, OUTSIDE_MARKERS, PALE, Look, Style, looks, rule_label
from figures.tables import REFERENCES, Frame, split

ENDS = ("ci_low", "ci_high")
"""Columns of the ends of an estimate's interval."""
PIECE = 14
"""Length, points, of the short piece of a rule's line that `name_lines` draws before the rule's name."""


def new_axes(ax: Axes | None) -> Axes:
    """Return the given axes; without any, the axes of a new figure."""
    return Figure(layout="constrained").subplots() if ax is None else ax


def intervals(data: Frame, ax: Axes, x: str, ends: Sequence[str], color: Any) -> None:
    """Draw the interval of each row of a table as a vertical bar at the row's ``x``.

    The bar reaches from the first to the second of the columns ``ends``. A row whose ends are not both finite gets no
    bar.
    """
    told = np.isfinite(data[list(ends)].to_numpy(float)).all(axis=1)
    part = data[told]
    colors: Any = color if isinstance(color, str) else np.asarray(color)[told]
    ax.vlines(part[x], part[ends[0]], part[ends[1]], colors=colors, linewidth=0.9, zorder=1.9)


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
    ax : Axes, optional
        Where to draw; new axes if not given.
    x, y, hue : str
        Columns of the horizontal and the vertical coordinate, and of what sets a line's colour and marker (the rule).
    units : str, optional
        Column that splits the rows of one ``hue`` into several lines, such as the run.
    ends : pair of str
        Columns of the interval; no bars are drawn if the table lacks them.
    known : mapping, optional
        Look of each value of ``hue``; `figures.style.looks` of rules if not given.
    marks, lines : bool
        Whether to draw markers and lines.
    step : float
        Distance between the points of two rules in one bin, see `beside`.
    look
        Further properties of the lines, as Matplotlib names them.
    """
    ax = new_axes(ax)
    known = looks(data[hue]) if known is None else known
    data = data[data[y].notna()]
    if data.empty:
        return ax
    if step:
        shift = dict(zip(known, spread(len(known), step), strict=True))
        data = data.assign(**{x: beside(data[x], data[hue].map(shift), partition)})
    if set(ends) <= set(data) and len(ends):
        intervals(data, ax, x, ends, [known[value].color for value in data[hue]])
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
    missing: str = "",
    **look: Any,
) -> Axes:
    """Draw the table's column ``x`` as dots with their intervals, in one row of the panel for each category.

    Parameters
    ----------
    data : DataFrame
        Rows to draw; those without a finite value in ``x`` are left out.
    ax : Axes, optional
        Where to draw; new axes if not given.
    rows : sequence of str
        Categories from top to bottom: values of the column ``row``.
    by, order : str, sequence of str
        Column whose values ``order`` stand below each other in a row, ``step`` apart. Rows of the table that share a
        place, such as several runs, are spread around it.
    ends : pair of str
        Columns of the interval; none are drawn if the table lacks them.
    mapped : mapping
        From a property of `seaborn.objects.Dot` (color, marker, fill) to a column and the property of each value.
    missing : str
        Words in a row without a dot.
    look
        Constant properties of the dots.
    """
    ax = new_axes(ax)
    mapped = mapped or {}
    data = data[np.isfinite(data[x].astype(float)) & data[row].isin(list(rows))]
    if len(data):
        shift = dict(zip(order, spread(len(order), step), strict=True))
        place = data[row].map({name: i for i, name in enumerate(rows)}).astype(float)
        place += data[by].map(shift).astype(float) if by else 0.0
        same = data.assign(place=place).groupby("place")["place"]
        at = place + (same.cumcount() - (same.transform("size") - 1) / 2) * np.minimum(
            0.06, 0.2 / same.transform("size")
        )
        columns = {x, *(column for column, _ in mapped.values()), *(e for e in ends if e in data)}
        variables: dict[str, Any] = {name: column for name, (column, _) in mapped.items()}
        plot = so.Plot(data[sorted(columns)].assign(_place=at), x=x, y="_place", **variables)
        if set(ends) <= set(data) and len(ends):
            told = np.isfinite(data[list(ends)].to_numpy(float)).all(axis=1)
            color = {"color": look["color"]} if "color" in look else {}
            line, low, high = so.Range(linewidth=0.9, **color), *(data[e].where(told) for e in ends)
            plot = plot.add(line, xmin=low, xmax=high, orient="y", legend=False, marker=None, fill=None)
        dot: dict[str, Any] = {"pointsize": 3.8, "stroke": 0.8} | look
        plot = plot.add(so.Dot(**dot), legend=False)
        plot = plot.scale(**{name: so.Nominal(dict(values)) for name, (_, values) in mapped.items()})
        theme: Any = mpl.rcParams.find_all("^(axes|font|grid|lines|[xy]tick)")
        plot.theme(dict(theme)).on(ax).plot()
    ax.set(xlabel=None, ylabel=None)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), [rule_label(name) for name in rows])
    ax.tick_params(axis="y", length=0)
    spec = ax.get_subplotspec()
    if spec is not None and not spec.is_first_col() and len(ax.get_shared_y_axes().get_siblings(ax)) > 1:
        ax.tick_params(labelleft=False)  # seaborn.objects had shown them again
    ax.grid(False, axis="y")
    for empty in (i for i, name in enumerate(rows) if missing and not (data[row] == name).any()):
        few_words(ax, 0.5, empty, missing, transform=ax.get_yaxis_transform())
    for edge in range(1, len(rows)):
        ax.axhline(edge - 0.5, color="#e3e3e3", linewidth=0.5, zorder=0.5)
    return ax


def outside_dots(
    data: Frame, rules: Sequence[str], ax: Axes | None = None, *, x: str = "estimate", **more: Any
) -> Axes:
    """Draw the table's column ``x`` as dots, in one row of the panel for each rule (column ``band``).

    A rule's row has one dot for each choice outside the band (column ``outside``): drop, truncate and cap, from top to
    bottom. ``more`` goes to `dots`.
    """
    here = [name for name in OUTSIDE_MARKERS if (data["outside"] == name).any()]
    mapped = {"color": ("outside", OUTSIDE_COLORS), "marker": ("outside", OUTSIDE_MARKERS)}
    ax = dots(data, ax, rows=rules, row="band", x=x, by="outside", order=here, mapped=mapped, **more)
    few_ticks(ax.xaxis, 3)
    return ax


def rule_marks(column: str, known: Mapping[str, Look]) -> dict[str, tuple[str, Mapping[Any, Any]]]:
    """Return the argument ``mapped`` of `dots` that gives each rule of a column its colour and marker."""
    return {name: (column, {rule: getattr(k, name) for rule, k in known.items()}) for name in ("color", "marker")}


def spread(count: int, step: float) -> NDArray[np.float64]:
    """Return ``count`` offsets around 0, ``step`` apart, so that points stand side by side."""
    return (np.arange(count, dtype=np.float64) - (count - 1) / 2) * step


def beside(values: ArrayLike, offset: ArrayLike, partition: Partition = LENGTH) -> NDArray[np.float64]:
    """Return the bins' places shifted by ``offset`` (bins of length: times 2^offset; else: plus offset / 5 of the
    distance from first to last bin), so that points of several rules in one bin stand side by side.
    """
    values, offset = np.asarray(values, float), np.asarray(offset, float)
    return values * 2.0**offset if partition == LENGTH else values + offset * float(np.ptp(values)) / 5


def few_words(ax: Axes, x: float, y: float, text: str, **where: Any) -> None:
    """Write grey words inside a panel, such as the reason why a row is empty."""
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    ax.text(x, y, text, ha="center", va="center", fontsize=6.5, color=GREY, linespacing=1.1, bbox=box, **where)


def reference(ax: Axes, value: float, along: str = "y", **look: Any) -> None:
    """Draw a grey line at ``value`` of the axis ``along`` ("x" or "y"), with which the drawn values are compared."""
    line = ax.axhline if along == "y" else ax.axvline
    line(value, **({"color": PALE, "linewidth": 0.9, "zorder": 1.5} | look))


# ---------------------------------------------------------------------------------------------- grids, legends, names


def key(color: str = "#444444", marker: str | None = None, **look: Any) -> Line2D:
    """Return a legend's mark of the given look; no line unless ``linestyle`` is given."""
    properties: dict[str, Any] = {"linestyle": "none"} | look
    return Line2D([], [], color=color, marker=marker, **properties)


def rule_keys(known: Mapping[str, Look], lines: bool = True) -> dict[str, Line2D]:
    """Return a legend's marks of rules by label: each rule's colour and marker, and its line style if ``lines``."""
    return {
        rule_label(rule): key(k.color, k.marker, linestyle=k.linestyle if lines else "none")
        for rule, k in known.items()
    }


def outside_keys(shown: Iterable[str]) -> dict[str, Line2D]:
    """Return a legend's marks, by label, of those things that may happen outside the band which ``shown`` names."""
    here = set(shown)
    return {o: key(OUTSIDE_COLORS[o], marker) for o, marker in OUTSIDE_MARKERS.items() if o in here}


def legend_columns(labels: Iterable[str], style: Style) -> int:
    """Return the number of columns for a legend of ``labels`` that fits the figure's width, with rows of nearly equal
    size.
    """
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
    """Return a figure with ``panels`` axes in rows of at most ``most`` (or of ``columns``, if given), and one legend
    above them (its marks by label). Heights are in inches.
    """
    fixed = columns > 0
    columns = columns or style.columns(panels, most)
    rows = -(-panels // columns)
    columns = columns if fixed else -(-panels // rows)
    legend_rows = -(-len(legend) // legend_columns(legend, style)) if legend else 0
    figure = style.new_figure(panel_height * rows + sum(heights) + 0.15 * legend_rows + 0.1)
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
    known: Mapping[str, Look] | None = None,
    x: str = "",
    y: str = "estimate",
    hue: str = "rule",
    left: str = "",
    **options: Any,
) -> tuple[Figure, list[Axes]]:
    """Return a figure with a panel for each title, and its axes; ``plot`` draws the panel's rows into them.

    Parameters
    ----------
    panels : mapping
        Rows of each panel by its title.
    height : float
        Of a panel, in inches.
    legend : mapping
        Marks of the legend by label.
    known : mapping, optional
        Look of each value of ``hue`` in curves over ``x``. A narrow figure names them in the legend, a wide one beside
        the curves (`name_lines`).
    left : str
        The y label of the first panel in each row.
    options
        Further arguments of `panel_grid`.
    """
    keys = rule_keys(known) if known and style.narrow else {}
    figure, axes = panel_grid(style, len(panels), height, keys | dict(legend or {}), **options)
    for ax, (title, part) in zip(axes, panels.items(), strict=True):
        plot(part, ax)
        ax.set_title(title, linespacing=1.1)
        spec = ax.get_subplotspec()
        if left and spec is not None and spec.is_first_col():
            ax.set_ylabel(left)
    if known and not style.narrow:
        name_lines(axes, list(panels.values()), known, x=x, y=y, hue=hue)
    return figure, axes


ROW, LEAST, BESIDES = 0.16, 0.45, 0.42
"""Heights in inches: of one rule's row, of the lowest panel, and of titles and labels around a row of panels."""


def matrix(
    found: Frame,
    column: str,
    names: Mapping[str, str],
    style: Style,
    plot: Callable[[Frame, list[str], Axes], Any],
    label: str,
    legend: Mapping[str, Any],
    *,
    row: str = "band",
    height: float = ROW,
    narrow: int = 2,
    sharex: Any = False,
) -> Figure:
    """Return a figure with a row of panels for each value of the column ``panel``, and in it a panel for each value of
    ``column`` in ``names``, whose titles these are. A panel without rows is left out.

    Parameters
    ----------
    plot : function
        Draws the rows of one panel into axes, in one row for each of the given rules (values of the column ``row``).
    label : str
        Label of the x axes below.
    legend : mapping
        Marks of the legend by label.
    height : float
        Of one rule's row, in inches.
    narrow : int
        Largest number of panels beside each other in a narrow figure.
    """
    views, columns = split(found), [name for name in names if (found[column] == name).any()]
    width = min(narrow, len(columns)) if style.narrow else len(columns)
    lines = -(-len(columns) // width)
    rules = {title: [name for name in looks(view[row]) if name not in REFERENCES] for title, view in views.items()}
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


def name_lines(
    axes: Sequence[Axes], parts: Sequence[Frame], known: Mapping[str, Look], *, x: str, y: str, hue: str
) -> None:
    """Write each rule's name at the right of the last panel that shows the rule, as high as its curve ends; before the
    name, draw a short piece of the curve's line with its marker.

    Call when the axes have their limits. ``parts``: the rows of each panel.
    """
    named: set[str] = set()
    height_of_figure = cast(Figure, axes[0].figure).get_figheight()
    for ax, part in reversed(list(zip(axes, parts, strict=True))):
        shown = part[part[y].notna() & ~part[hue].isin(named)].sort_values(x).groupby(hue)[y].last()
        named |= set(shown.index)
        ends = (
            ax.transAxes.inverted().transform(ax.transData.transform([(ax.get_xlim()[1], v) for v in shown]))[:, 1]
            if len(shown)
            else np.empty(0)
        )
        gap = 8.5 / 72 / (0.72 * ax.get_position().height * height_of_figure)
        order = np.argsort(ends)
        places = apart(np.clip(ends[order], 0, 1), gap)
        if len(places):
            places = places - max(places[-1] - 1, 0)  # the names stay beside the panel
            places = places + max(-places[0], 0)
        for at, rule in zip(places, shown.index[order], strict=True):
            look, piece = known[rule], DrawingArea(PIECE, 0)
            piece.add_artist(Line2D([0, PIECE / 2, PIECE], [0, 0, 0], color=look.color, linestyle=look.linestyle,
                                    marker=look.marker, markevery=[1]))  # fmt: skip
            box: dict[str, Any] = {"box_alignment": (0, 0.5), "frameon": False, "pad": 0}
            ax.add_artist(AnnotationBbox(piece, (1.02, at), xycoords="axes fraction", annotation_clip=False, **box))
            ax.annotate(rule_label(rule), (1.02, at), (PIECE + 3, 0), xycoords="axes fraction", color=look.color,
                        textcoords="offset points", va="center", fontsize=7, annotation_clip=False)  # fmt: skip


def apart(places: NDArray[np.float64], gap: float) -> NDArray[np.float64]:
    """Return ascending ``places`` moved so that neighbours are at least ``gap`` apart, each group around its mean."""
    groups = [[float(p)] for p in places]
    means = [g[0] for g in groups]
    i = 0
    while i + 1 < len(groups):
        half = gap * (len(groups[i]) + len(groups[i + 1])) / 2
        if means[i + 1] - means[i] < half:
            groups[i] += groups.pop(i + 1)
            means[i : i + 2] = [float(np.mean(groups[i]))]
            i = max(i - 1, 0)
        else:
            i += 1
    return np.concatenate([m + spread(len(g), gap) for g, m in zip(groups, means, strict=True)] or [np.empty(0)])


# ---------------------------------------------------------------------------------------------------------------- axes


def length_axis(ax: Axes, lengths: ArrayLike, most: int = 6) -> None:
    """Make the x axis a base-2 logarithmic length axis with plain numbers, at most ``most`` tick labels."""
    lengths = np.asarray(lengths, float)
    ax.set_xscale("log", base=2)
    low, high = np.nanmin(lengths) / 1.25, np.nanmax(lengths) * 1.25
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


def decade_axis(axis: Any, values: ArrayLike, most: int = 6) -> None:
    """Make an axis base-10 logarithmic over the positive ``values``, with at most ``most`` labelled powers of ten. If
    fewer than two powers are in range, 2 and 5 times a power are labelled too.
    """
    values = np.asarray(values, float)
    values = values[np.isfinite(values) & (values > 0)]
    low, high = values.min() / 1.4, values.max() * 1.4
    name = axis.axis_name
    getattr(axis.axes, f"set_{name}scale")("log")
    getattr(axis.axes, f"set_{name}lim")(low, high)
    powers = np.arange(np.ceil(np.log10(low)), np.floor(np.log10(high)) + 1)
    ticks = 10.0 ** powers[:: max(1, int(np.ceil(len(powers) / most)))]
    if len(powers) < 2:
        between = np.outer(10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high))), [1, 2, 5]).ravel()
        ticks = between[(between >= low) & (between <= high)]
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axis.set_major_locator(FixedLocator(list(ticks)))
    axis.set_minor_locator(NullLocator())


def percent_axis(axis: Any) -> None:
    """Format an axis of shares as percentages."""
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.4g}".replace("-", "\N{MINUS SIGN}")))


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
    axis.set_major_formatter(ScalarFormatter())


def cell_axes(ax: Axes) -> None:
    """Format axes of a map of coloured cells, the first row of the table at the bottom: no grid, frame or tick
    marks.
    """
    ax.set_ylim(*sorted(ax.get_ylim()))
    ax.tick_params(length=0, rotation=0)
    ax.grid(False)
    sns.despine(ax=ax, left=True, bottom=True)
