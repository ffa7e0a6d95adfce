"""Figure of the LRE_inf of fspo (colour) and of the rule with the least LRE_inf (marker) on grids of laws of S that
depart from the Gaussian model in two ways at once.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import draw, layout
from figures.of_theory.fairness_map import FACTORS, LINES, MEASURES, line_looks
from figures.style import Style, styled
from figures.tables import Frame, Tables, need, percent

TITLE = "Fairness map, two factors at a time"
CAPTION = (
    "Colour: LRE∞ (docs/theory.md section 3) of fspo, whose band is centred at 0, over two departures from the base "
    "case of the one-factor map, at {target} mean acceptance. Marker: the rule with the least LRE∞ in the cell. "
    "fspo is fairest in {share}."
    "\n\nClosed forms, so there are no intervals; {tie}."
)
RULE = "fspo"
TIE = 1e-3
"""Rules whose LRE is within this distance of the least one count as equally fair. Of these the figure shows fspo, or
else the one that legends list first (``LINES``).
"""


def grids(tables: Tables) -> tuple[Frame, float]:
    """Return a table with a row for each pair of departures from the Gaussian model and each pair of their sizes, and
    the mean acceptance, which is the same for all rules. A row has fspo's LRE (``lre_inf``) and the name of the rule
    with the least LRE (``fairest``).
    """
    table = tables["fairness_map"]
    rows = table[table["factor_2"].notna() & table["rule"].isin(LINES) & (table["method"] == "closed")]
    target = float(need(rows, "no rows with two factors")["target"].max())
    cell = ["factor", "factor_2", "measure", "value", "value_2"]
    wide = rows[rows["target"] == target].pivot(index=cell, columns="rule", values="lre_inf")
    wide = wide[[rule for rule in dict.fromkeys([RULE, *LINES]) if rule in wide]].fillna(np.inf)
    fair = wide.le(wide.min(axis=1) + TIE, axis=0)
    return wide.assign(lre_inf=wide[RULE], fairest=fair.idxmax(axis=1)).reset_index(), target


def plot_grid(data: Frame, ax: Axes | None = None, highest: float | None = None) -> Axes:
    """Draw LRE of fspo as coloured cells (columns ``value`` along x, ``value_2`` along y, ``lre_inf``), and in each
    cell the marker of the rule with the least LRE (column ``fairest``). ``highest``: LRE of the lightest colour.
    """
    ax = draw.new_axes(ax)
    colors = {"cmap": "cividis", "vmin": 0, "vmax": highest, "linewidths": 0.3}
    wide = draw.cells(data, ax, x="value", y="value_2", value="lre_inf", **colors)
    for rule, look in line_looks(data["fairest"]).items():
        own = data[data["fairest"] == rule]
        x, y = wide.columns.get_indexer(own["value"]) + 0.5, wide.index.get_indexer(own["value_2"]) + 0.5
        edge = {"markeredgecolor": "white", "markeredgewidth": 0.5, "linestyle": "none"}
        ax.plot(x, y, marker=look.marker, color=look.color, markersize=3.8, **edge)
    for axis, values in ((ax.xaxis, wide.columns), (ax.yaxis, wide.index)):
        step = 2 if len(values) > 5 else 1
        axis.set_ticks(np.arange(0, len(values), step) + 0.5, [f"{v:.3g}" for v in values[::step]])
    first = data.iloc[0]
    ax.set(xlabel=FACTORS[first["factor"]].label, ylabel=FACTORS[first["factor_2"]].label)
    return ax


def caption(tables: Tables) -> str:
    """Return the figure's caption, which says for each grid of laws in how many of its cells fspo has the least
    LRE_inf.
    """
    data, target = grids(tables)
    shares = [
        f"{(own['fairest'] == RULE).sum()} of {len(own)} cells ({one} and {other})".replace("_", " ")
        for (one, other), own in data.groupby(["factor", "factor_2"], sort=False)
    ]
    tie = f"differences below {TIE:g} count as none, fspo before all"
    return CAPTION.format(target=percent(target), tie=tie, share=", ".join(shares))


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw the LRE of fspo where S departs from the Gaussian model in two ways at once, a panel for each pair of
    ways.
    """
    data, _ = grids(tables)
    parts = [part for _, part in data.groupby(["factor", "factor_2", "measure"], sort=False)]
    highest = float(data["lre_inf"][np.isfinite(data["lre_inf"])].max())
    fig, axes = layout.panel_grid(style, len(parts), 1.75, layout.rule_keys(line_looks(data["fairest"]), lines=False))
    for ax, part in zip(axes, parts, strict=True):
        plot_grid(part, ax, highest).set_title(f"$LRE_\\infty$ of {MEASURES[part['measure'].iloc[0]]}")
    layout.color_bar(fig, axes, f"$LRE_\\infty$ of {RULE}", shrink=0.9, aspect=18)
    return fig
