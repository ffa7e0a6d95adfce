"""What one other setting (dual clip, outside, drift, ...) would have done to the responses of one log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from analysis.log.ratio import CORRECTED
from figures.draw import few_ticks, few_words, new_axes, panel_grid, percent_axis, rule_rows, whiskers
from figures.style import Style, looks
from figures.tables import TOO_LITTLE, Frame, NothingToDraw, Tables, drawable, need, shared_log
from fspo.stats.intervals import PERCENT

TITLE = "Effect of the other settings"
CAPTION = (
    "One setting of the rule fspo changed at a time, on the log of run {run} (first use; counterfactual: the responses "
    "stay the log's): share of responses not cut (A ≠ 0), its LRE_2 (docs/theory.md section 3), same-batch cosine of "
    "the clipped and the true update (section 5), mean squared error of the clipped update over that of the unclipped "
    f"one (T12). The exponent's band has fspo's width at the median length. Bars: {PERCENT} "
    "intervals.{missing}"
)
QUANTITIES = {
    "update": "not cut (%)",
    "lre_update_l2": "LRE$_2$ of not cut",
    "cosine": "cosine",
    "mse": "MSE, unclipped = 1",
}
SETTINGS = {
    "dual": ("dual clip", {"none"}),
    "outside": ("outside", {"drop"}),
    "drift": ("drift", {"none"}),
    "gamma": ("exponent γ", {"0.5"}),
    "aggregation": ("weight by", {"response"}),
    "group": ("group size", set()),
    "minibatch": ("update no.", set()),
}
"""Label of each setting that the sweep changes, and the value of it that the preset fspo has."""


@dataclass(frozen=True)
class SettingEstimates:
    """The estimates of one quantity with intervals, one for each setting and value of it, arrays (K,), NaN if there is
    none. ``own``: whether the preset fspo has that value.
    """

    estimate: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    own: NDArray[np.bool_]


def select(tables: Tables) -> tuple[Frame, list[tuple[str, str]]]:
    """Return the rows of one log's table sweep in which another setting than the range was changed, and the pairs
    (setting, value) in drawing order.
    """
    tables.only_by_length("the sweep is by length: draw it without --by")
    if tables.on in CORRECTED:
        raise NothingToDraw("it is about clip rules: the table sweep.csv has the settings of corrections")
    rows = tables["sweep"]
    rows = need(rows[rows["setting"].isin(list(SETTINGS)) & rows["quantity"].isin(list(QUANTITIES))], "only ranges")
    rows = shared_log(rows)
    drawable(rows)
    order = [(s, str(v)) for s in SETTINGS for v in rows.loc[rows["setting"] == s, "value"].drop_duplicates()]
    return rows.assign(value=rows["value"].astype(str)), order


def values(rows: Frame, order: Sequence[tuple[str, str]], quantity: str) -> SettingEstimates:
    """Return the estimates of one quantity, in the order of the pairs (setting, value) in ``order``."""
    part = rows[rows["quantity"] == quantity].set_index(["setting", "value"])
    columns = [part[name].reindex(order).to_numpy(float) for name in ("estimate", "ci_low", "ci_high")]
    return SettingEstimates(*columns, own=np.array([value in SETTINGS[setting][1] for setting, value in order]))


def plot_settings(data: SettingEstimates, order: Sequence[tuple[str, str]], ax: Axes | None = None) -> Axes:
    """Draw the estimates in rows, one for each value of each setting, with lines between settings. In a row without an
    estimate stands "too little data".
    """
    ax = new_axes(ax)
    y = np.arange(len(order), dtype=np.float64)
    color = looks(["fspo"])["fspo"].color
    for own, fill in ((True, "full"), (False, "none")):
        at = (data.own == own) & np.isfinite(data.estimate)
        look = {"color": color, "marker": "o", "fillstyle": fill}
        whiskers(ax, data.estimate[at], y[at], data.low[at], data.high[at], along="x", **look)
    rule_rows(ax, [value for _, value in order])
    for line in list(ax.lines):  # remove all lines between rows; the lines between settings are drawn next
        if line.get_color() == "#e3e3e3":
            line.remove()
    for i in range(1, len(order)):
        if order[i][0] != order[i - 1][0]:
            ax.axhline(i - 0.5, color="#b0b0b0", linewidth=0.5, zorder=0.5)
    few_ticks(ax.xaxis, 3)
    for i in np.flatnonzero(~np.isfinite(data.estimate)):
        few_words(ax, 0.5, y[i], TOO_LITTLE, transform=ax.get_yaxis_transform())
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the sweep over settings, with the run whose log was used."""
    rows, order = select(tables)
    gone = any(np.isnan(values(rows, order, q).estimate).any() for q in QUANTITIES)
    missing = " “Too little data”: no update has enough scored responses." if gone else ""
    return CAPTION.format(run=rows["run"].iloc[0], missing=missing)


def figure(tables: Tables, style: Style) -> Figure:
    """Draw the sweep over settings: a column each for acceptance, LRE, cosine and squared error, a row for each value
    of each setting.
    """
    rows, order = select(tables)
    shown = [q for q in QUANTITIES if rows.loc[rows["quantity"] == q, "estimate"].notna().any()]
    columns = 2 if style.narrow else len(shown)
    with style.context():
        height = 0.125 * len(order) + 0.45
        color = looks(["fspo"])["fspo"].color
        marks = [Line2D([], [], color=color, marker="o", fillstyle=f, linestyle="none") for f in ("full", "none")]
        words = ["fspo as it is", "one setting changed"]
        fig, axes = panel_grid(style, len(shown), height, marks, words, columns=columns, sharey=True)
        for ax, quantity in zip(axes, shown, strict=True):
            plot_settings(values(rows, order, quantity), order, ax).set_xlabel(QUANTITIES[quantity])
            if quantity == "update":
                percent_axis(ax.xaxis)
            if quantity == "mse":
                ax.axvline(1.0, color="#9a9a9a", linewidth=0.8, zorder=1.5)
        for ax in axes[::columns]:
            # The label of a setting's first row begins with the name of the setting.
            first = [i == 0 or order[i][0] != order[i - 1][0] for i in range(len(order))]
            names = [f"{SETTINGS[s][0]}: {v}" if new else v for (s, v), new in zip(order, first, strict=True)]
            ax.set_yticks(range(len(order)), names)
    return fig
