"""Error of cosines that are computed from sketches instead of full scores, by the sketch's width (section 5)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from figures.draw import decade_axis, label_left, length_axis, new_axes, panel_grid, spread, whiskers
from figures.estimates import Estimates, estimates_of
from figures.style import Look, Style
from figures.tables import Frame, NothingToDraw, Tables, drawable
from fspo.stats.intervals import PERCENT

TITLE = "Error of sketched cosines by the sketch's width"
CAPTION = (
    "Root mean square error of cosines between sketched scores, against exact gradients ({parameters:,} parameters, "
    f"{{responses}} responses), with {PERCENT} intervals over {{redraws}} redraws. Left: cosines of pairs of "
    "responses; right: of an update with itself after 15 % of its responses were dropped. Grey: (1 − ρ²)/√width, "
    "what hashing alone "
    "gives to first order (not fitted). k: columns of the two random projections of each weight matrix; their own "
    "error does not fall with the width."
)
PANELS = {"pair": "two responses", "drop": "update, 15 % dropped"}
LOOKS = {
    0: Look("#000000", "o", "-"),
    8: Look("#D55E00", "s", "--"),
    16: Look("#009E73", "^", "-."),
    32: Look("#0072B2", "D", (0, (7.0, 2.0))),
}
OTHER = Look("#882255", "v", (0, (2.5, 1.2)))


def select(tables: Tables) -> Frame:
    """Return the rows of table sketch_error (error of a cosine from sketches, by width) that have a finite error."""
    rows = drawable(tables["sketch_error"], ("rmse", "hashing"))
    rows = rows[rows["cosine"].isin(PANELS) & (rows["rmse"] > 0)]
    if rows.empty:
        raise NothingToDraw("no row of a cosine that is drawn")
    return rows


def errors(rows: Frame) -> list[Estimates]:
    """Return the errors of one panel by the sketch's width: `Estimates` for each number of columns of the random
    projection, first without projection.
    """
    return [
        estimates_of(part, label(int(k)), LOOKS.get(int(k), OTHER), "width", "rmse")
        for k, part in rows.groupby("projection")
    ]


def plot_errors(data: Sequence[Estimates], width: NDArray, hashing: NDArray, ax: Axes | None = None) -> Axes:
    """Draw errors with intervals against the sketch's width on logarithmic axes, and as a line the error that hashing
    alone would make at the widths ``width``.
    """
    ax = new_axes(ax)
    ax.plot(width, hashing, color="#b5b5b5", linewidth=2.4, zorder=1.5, solid_capstyle="round")
    shift = 2 ** spread(len(data), 0.06)
    for item, factor in zip(data, shift, strict=True):
        ax.plot(item.at * factor, item.estimate, color=item.look.color, linestyle=item.look.linestyle, linewidth=0.8)
        style = {"color": item.look.color, "marker": item.look.marker}
        whiskers(ax, item.at * factor, item.estimate, item.low, item.high, **style)
    length_axis(ax, width)
    ends = [e for item in data for e in (item.estimate, item.low, item.high)]
    decade_axis(ax.yaxis, np.concatenate([*ends, hashing]))
    ax.set_xlabel("width of the sketch")
    return ax


def label(projection: int) -> str:
    """Return the legend's words for a random projection with so many columns; 0 stands for none."""
    return f"$k={projection}$" if projection else "no projection"


def caption(tables: Tables) -> str:
    """Return the caption of sketch errors, with the numbers of parameters, responses and redraws."""
    rows = select(tables)
    return CAPTION.format(**{name: int(rows[name].iloc[0]) for name in ("parameters", "responses", "redraws")})


def figure(tables: Tables, style: Style) -> Figure:
    """Draw the errors of cosines from sketches, one panel for each kind of cosine."""
    rows = select(tables)
    kinds = [name for name in PANELS if (rows["cosine"] == name).any()]
    with style.context():
        shown = [(int(k), LOOKS.get(int(k), OTHER)) for k in sorted(rows["projection"].unique())]
        handles = [Line2D([], [], color=k.color, marker=k.marker, linestyle=k.linestyle) for _, k in shown]
        handles.append(Line2D([], [], color="#b5b5b5", linewidth=2.4))
        labels = [*(label(k) for k, _ in shown), "$(1-\\rho^2)/\\sqrt{\\mathrm{width}}$"]
        columns = 1 if style.narrow else len(kinds)
        fig, axes = panel_grid(style, len(kinds), 1.75, handles, labels, columns=columns)
        for ax, kind in zip(axes, kinds, strict=True):
            own = rows[rows["cosine"] == kind]
            line = own.drop_duplicates("width").sort_values("width")
            plot_errors(errors(own), line["width"].to_numpy(float), line["hashing"].to_numpy(float), ax)
            ax.set_title(PANELS[kind])
        label_left(axes, "RMSE of the cosine")
    return fig
