"""What wider or narrower ranges would have done to the responses of one log: acceptance, LRE, cosine, squared error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from figures.draw import new_axes, panel_grid, percent_axis, rule_legend, spread, whiskers
from figures.estimates import Estimates, by_run
from figures.style import Style, looks
from figures.tables import Frame, Tables, drawable, need, reasons, shared_log
from fspo.rules import CORRECTIONS, PRESETS
from fspo.stats.intervals import PERCENT

TITLE = "Effect of the clip range"
CAPTION = (
    "What each rule's range, as a multiple of its default (both edges in log space), would have done to the log of run "
    "{run} (first use; counterfactual: the responses stay the log's): share in the band, its LRE_2 (docs/theory.md "
    "section 3), same-batch cosine of the clipped and the true update (section 5), and mean squared error of the "
    f"clipped update over that of the unclipped one (T12; below 1, clipping gains more than it costs). Bars: {PERCENT} "
    "intervals; rules side by side.{missing}"
)
QUANTITIES = {
    "band": "in the band (%)",
    "lre_band_l2": "LRE$_2$ of the band",
    "cosine": "cosine",
    "mse": "MSE, unclipped = 1",
}


def range_factor(rule: str, value: str) -> float:
    """Return how many times the preset's upper half-width the swept range is; ``value`` is the table's text "lo hi"."""
    band = CORRECTIONS[rule] if rule in CORRECTIONS else PRESETS[rule].rule
    swept, preset = (r.half_widths(np.ones(1))[1][0] for r in (replace(band, range_hi=float(value.split()[1])), band))
    # The table rounds ranges to few digits, so the factor is rounded too.
    return float(f"{swept / preset:.2g}")


def select(tables: Tables) -> Frame:
    """Return the rows of one log's table sweep in which the range was changed, with its multiple of the preset's in a
    new column ``factor``.
    """
    tables.only_by_length("the sweep is by length: draw it without --by")
    rows = need(tables["sweep"].query("setting == 'range'"), "the sweep has no ranges")
    rows = rows[rows["quantity"].isin(list(QUANTITIES)) & rows["rule"].isin([*PRESETS, *CORRECTIONS])]
    rows = shared_log(need(rows, "the sweep has no range of a preset"))
    drawable(rows)
    factors = [range_factor(rule, value) for rule, value in zip(rows["rule"], rows["value"], strict=True)]
    return rows.assign(factor=factors)


def plot_sensitivity(data: Sequence[Estimates], ax: Axes | None = None) -> Axes:
    """Draw a quantity with intervals against the multiple of the preset's range (base-2 axis); rules stand side by
    side.
    """
    ax = new_axes(ax)
    shift = 2 ** spread(len(data), min(0.16, 0.6 / len(data)))
    for curve, move in zip(data, shift, strict=True):
        look = {"color": curve.look.color, "marker": curve.look.marker, "linestyle": curve.look.linestyle}
        whiskers(ax, curve.at * move, curve.estimate, curve.low, curve.high, linewidth=0.8, **look)
    factors = np.unique(np.concatenate([c.at for c in data]))
    ax.set_xscale("log", base=2)
    if factors.size:
        ax.set_xlim(factors.min() / 1.35, factors.max() * 1.35)
        ax.xaxis.set_major_locator(FixedLocator(list(factors)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: {0.25: "¼", 0.5: "½"}.get(v, f"{v:g}")))
    ax.set_xlabel("range / default")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the sweep over ranges, with the run whose log was used."""
    rows = select(tables)
    gone = rows[rows["estimate"].isna()]
    missing = f" Left out where there is too little data ({reasons(gone)})." if len(gone) else ""
    return CAPTION.format(run=rows["run"].iloc[0], missing=missing)


def figure(tables: Tables, style: Style) -> Figure:
    """Draw the sweep over ranges: a panel each for acceptance, LRE, cosine and squared error (docs/theory.md sections 3
    and 5, T12).
    """
    rows = select(tables)
    shown = [q for q in QUANTITIES if rows.loc[rows["quantity"] == q, "estimate"].notna().any()]
    with style.context():
        handles, labels = rule_legend(looks(rows["rule"]))
        columns = 2 if style.narrow else len(shown)
        fig, axes = panel_grid(style, len(shown), 1.5, handles, labels, columns=columns)
        for ax, quantity in zip(axes, shown, strict=True):
            plot_sensitivity(by_run(rows[rows["quantity"] == quantity], "factor"), ax).set_title(QUANTITIES[quantity])
            if quantity == "band":
                percent_axis(ax.yaxis)
            if quantity in ("cosine", "mse"):
                ax.axhline(1.0, color="#9a9a9a", linewidth=0.8, zorder=1.5)
    return fig
