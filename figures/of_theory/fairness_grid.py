"""LRE of fspo, and the rule with the least LRE, where S departs from the Gaussian model in two ways at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from figures.draw import cell_axes, new_axes, panel_grid, rule_legend
from figures.of_theory.fairness_map import FACTORS, LINES, MEASURES, line_looks
from figures.style import Style
from figures.tables import NothingToDraw, Tables, percent

TITLE = "Fairness map, two factors at a time"
CAPTION = (
    "Colour: LRE∞ (docs/theory.md section 3) of fspo, whose band is centred at 0, over two departures from the base "
    "case of the one-factor map, at {target} mean acceptance; closed forms, so there are no intervals. Marker: the "
    "rule with the least LRE∞ in that cell; {tie}. fspo is fairest in {share}."
)
RULE = "fspo"
TIE = 1e-3
"""Rules whose LRE is within this distance of the least one count as equally fair. Of these the figure shows fspo, or
else the one that legends list first (``LINES``).
"""


@dataclass(frozen=True)
class Grid:
    """Two departures from the Gaussian model at once: their values along x (M,) and y (N,), LRE of fspo (N, M), and the
    rule with the least LRE in each cell.
    """

    factor: str
    factor_2: str
    measure: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    lre: NDArray[np.float64]
    fairest: list[list[str]]


def grids(tables: Tables) -> tuple[list[Grid], float]:
    """Return a grid for each pair of departures from the Gaussian model in the table, and the mean acceptance that all
    rules have.
    """
    table = tables["fairness_map"]
    rows = table[table["factor_2"].notna() & table["rule"].isin(LINES) & (table["method"] == "closed")]
    if rows.empty:
        raise NothingToDraw("no rows with two factors")
    target = float(rows["target"].max())
    found = []
    order = [RULE, *(rule for rule in LINES if rule != RULE)]
    for (factor, factor_2, measure), part in rows[rows["target"] == target].groupby(
        ["factor", "factor_2", "measure"], sort=False
    ):
        values = {
            rule: own.pivot(index="value_2", columns="value", values="lre_inf") for rule, own in part.groupby("rule")
        }
        own: Any = values[RULE]
        names = [rule for rule in order if rule in values]
        cube = np.stack([values[rule].to_numpy(float) for rule in names])
        cube = np.where(np.isnan(cube), np.inf, cube)
        first = np.argmax(cube <= cube.min(axis=0) + TIE, axis=0)
        found.append(
            Grid(
                str(factor),
                str(factor_2),
                str(measure),
                own.columns.to_numpy(float),
                own.index.to_numpy(float),
                own.to_numpy(float),
                [[names[i] for i in row] for row in first],
            )
        )
    return found, target


def plot_grid(data: Grid, norm: Normalize, ax: Axes | None = None) -> Any:
    """Draw LRE of fspo as coloured cells, and in each cell the marker of the rule with the least LRE. Return the cells,
    from which a colour bar is drawn.
    """
    ax = new_axes(ax)
    known = line_looks(rule for row in data.fairest for rule in row)
    mesh = ax.pcolormesh(data.lre, cmap="cividis", norm=norm, edgecolors="white", linewidth=0.3)
    for i, row in enumerate(data.fairest):
        for j, rule in enumerate(row):
            look = known[rule]
            ax.plot(
                j + 0.5, i + 0.5, marker=look.marker, color=look.color, markersize=3.8, markeredgecolor="white",
                markeredgewidth=0.5,
            )  # fmt: skip
    for axis, values in ((ax.xaxis, data.x), (ax.yaxis, data.y)):
        step = 2 if len(values) > 5 else 1
        axis.set_ticks(np.arange(0, len(values), step) + 0.5, [f"{v:.3g}" for v in values[::step]])
    cell_axes(ax)
    ax.set_xlabel(FACTORS[data.factor].label)
    ax.set_ylabel(FACTORS[data.factor_2].label)
    return mesh


def caption(tables: Tables) -> str:
    """Return the caption of the grids, with the share of cells in which fspo has the least LRE."""
    found, target = grids(tables)
    shares = []
    for grid in found:
        cells = [rule for row in grid.fairest for rule in row]
        shares.append(
            f"{cells.count(RULE)} of {len(cells)} cells ({grid.factor} and {grid.factor_2})".replace("_", " ")
        )
    tie = f"differences below {TIE:g} count as none, fspo before all"
    return CAPTION.format(target=percent(target), tie=tie, share=", ".join(shares))


def figure(tables: Tables, style: Style) -> Figure:
    """Draw LRE of fspo and the rule with the least LRE, one panel for each pair of departures from the Gaussian
    model.
    """
    found, _ = grids(tables)
    drawn = line_looks(rule for grid in found for row in grid.fairest for rule in row)
    with style.context():
        fig, axes = panel_grid(style, len(found), 1.75, *rule_legend(drawn, lines=False), most=3)
        norm = Normalize(0, max(float(np.nanmax(grid.lre)) for grid in found))
        mesh: Any = None
        for ax, grid in zip(axes, found, strict=True):
            mesh = plot_grid(grid, norm, ax)
            ax.set_title(f"$LRE_\\infty$ of {MEASURES[grid.measure]}")
        bar = fig.colorbar(mesh, ax=axes, shrink=0.9, aspect=18, pad=0.02)
        bar.set_label(f"$LRE_\\infty$ of {RULE}")
        bar.outline.set_visible(False)
    return fig
