"""Squared error of the clipped update as an estimate of the gradient: squared bias, variance and their sum (T12)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from figures.draw import few_ticks, few_words, outside_legend, panel_grid, title_grid
from figures.of_runs.cosine_by_rule import Cosines, plot_cosines
from figures.style import OUTSIDE_MARKERS, Style, band_of, looks
from figures.tables import TOO_LITTLE, PanelRows, Tables, count_words, drawable, need, view_words, views
from fspo.stats.intervals import PERCENT

TITLE = "Squared error of the clipped update"
CAPTION = (
    "Squared bias, variance and their sum, the mean squared error, of the clipped update as an estimate of the "
    "gradient, over the unclipped update's own mean squared error (docs/theory.md T12; below 1, clipping gains more "
    "than it costs); and the same sum for the direction, the update over its acceptance. Squared biases are unbiased "
    "estimates over pairs of different prompts and may fall below 0. {what}. n = {n} scored responses with A ≠ 0, "
    f"first use. Bars: {PERCENT} intervals (jackknife over prompts).{{missing}}"
)
QUANTITIES = {"bias2": "bias$^2$", "variance": "variance", "mse": "MSE", "mse_direction": "MSE, direction"}
UNCLIPPED = {"bias2": 0.0, "variance": 1.0, "mse": 1.0, "mse_direction": 1.0}
"""Squared bias, variance and errors of the update without clipping, in units of its mean squared error: each panel has
a reference line at this value of its quantity.
"""


def select(tables: Tables) -> list[PanelRows]:
    """Return the update's squared bias, variance and errors over all responses, grouped by panel: one for each target
    acceptance, one for the runs' own rules.
    """
    tables.only_by_length("it is of all responses together: draw it without --by")
    rows = tables["population"]
    rows = rows[(rows["bin"] < 0) & (rows["reference"] == "population") & rows["quantity"].isin(list(QUANTITIES))]
    drawable(need(rows, "no update has two prompts with scores"))
    return views(rows)


ROW, LEAST, BESIDES = 0.16, 0.45, 0.42
"""Heights in inches: of one rule's row, of the lowest panel, and of titles and labels around a row of panels."""


def rules_of(view: PanelRows) -> list[str]:
    """Return the rules of one group of table rows in drawing order; presets with the same band count as one."""
    return list(looks(band_of(rule) for rule in view.rows["rule"]))


def outside_grid(
    found: Sequence[PanelRows], names: Sequence[str], style: Style, more: Sequence[tuple[Line2D, str]] = ()
) -> tuple[Figure, list[Axes], int]:
    """Return a figure with a row of panels for each comparison of rules in ``found``, one panel for each quantity in
    ``names``; its axes; and the number of panels in a row.
    """
    columns = min(2, len(names)) if style.narrow else len(names)
    here = [o for o in OUTSIDE_MARKERS if any((view.rows["outside"] == o).any() for view in found)]
    handles, labels = outside_legend(here)
    lines = -(-len(names) // columns)
    heights = [max(LEAST, ROW * len(rules_of(view))) for view in found for _ in range(lines)]
    fig, axes = panel_grid(
        style,
        len(found) * lines * columns,
        BESIDES,
        [*handles, *(handle for handle, _ in more)],
        [*labels, *(word for _, word in more)],
        columns=columns,
        heights=heights,
        sharey="row",
    )
    for i in reversed(range(len(axes))):
        # In two columns an odd number of quantities leaves the last place empty: remove its axes.
        if i % (lines * columns) >= len(names):
            axes.pop(i).remove()
    return fig, axes, columns


def outsides(view: PanelRows, column: str, name: str) -> Cosines:
    """Return one panel's finite estimates as `Cosines`, which holds any quantity by rule: those rows of ``view`` whose
    ``column`` is ``name``.
    """
    rows = view.rows[(view.rows[column] == name) & view.rows["estimate"].notna()]
    values = (rows[c].to_numpy(float) for c in ("estimate", "ci_low", "ci_high"))
    return Cosines(tuple(band_of(r) for r in rows["rule"]), tuple(rows["outside"]), *values, control=float("nan"))


def caption(tables: Tables) -> str:
    """Return the caption of the update's errors, with the number of responses."""
    found = select(tables)
    gone = any(view.rows["estimate"].isna().any() for view in found)
    shown = found[0].rows["count"]
    missing = " Left out: estimates that the data do not give." if gone else ""
    return CAPTION.format(what=view_words(found), n=count_words(shown), missing=missing)


def figure(tables: Tables, style: Style) -> Figure:
    """Draw a column for each of squared bias, variance, squared error and error of the direction, a row of panels for
    each target acceptance and one for the runs' own rules (T12).
    """
    found = select(tables)
    panels = [(view, quantity) for view in found for quantity in QUANTITIES]
    with style.context():
        line = Line2D([], [], color="#9a9a9a", linewidth=1.2)
        fig, axes, columns = outside_grid(found, list(QUANTITIES), style, [(line, "without clipping")])
        for ax, (view, quantity) in zip(axes, panels, strict=True):
            data = outsides(view, "quantity", quantity)
            plot_cosines(data, rules_of(view), ax)
            ax.axvline(UNCLIPPED[quantity], color="#9a9a9a", linewidth=1.2, zorder=1.5)
            few_ticks(ax.xaxis, 3)
            if not data.rule:
                few_words(ax, 0.5, 0.5, TOO_LITTLE, transform=ax.transAxes)
        title_grid(axes, columns, [view.title for view in found], list(QUANTITIES.values()))
        for ax in axes[-columns:]:
            ax.set_xlabel("unclipped MSE = 1")
    return fig
