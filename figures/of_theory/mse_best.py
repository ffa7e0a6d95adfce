"""Least error of the clipped update under each model, for any exponent of the band and for a square root (T12, T13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from figures.draw import new_axes, outside_legend, panel_grid, rule_rows
from figures.style import OUTSIDE_COLORS, OUTSIDE_MARKERS, Style
from figures.tables import Frame, NothingToDraw, Tables, prefer
from fspo.rules import OF_CLIP_RULES
from proofs_check.maps.settings import TYPICAL_PROMPTS

TITLE = "Least mean squared error by model"
CAPTION = (
    "Least mean squared error of the update (docs/theory.md T12) over exponent, centre and acceptance of the band, as "
    "a share of its value without clipping, in each model and for what happens outside the band ({n:,} prompts). "
    "Filled: over all exponents; open: with γ = 1/2, the fair one. Left: of the update as it is; right: of its "
    "direction, g_clip/ā. Exact moments, so there are no intervals. Best exponents: {gammas}."
)
CRITERIA = {"mse": "update as it is", "mse_direction": "direction"}


@dataclass(frozen=True)
class Best:
    """Least mean squared error of the update over all bands with one choice outside (drop, truncate or cap), divided by
    the error without clipping: for K models, over all exponents of the length and with exponent 1/2 alone.
    """

    outside: str
    any_gamma: NDArray[np.float64]
    gamma_half: NDArray[np.float64]


def select(tables: Tables) -> Frame:
    """Return the rows of table mse_best for the errors of the update and of its direction, at the number of prompts
    that the figure shows.
    """
    table = tables["mse_best"]
    table = prefer(table[table["criterion"].isin(CRITERIA)], "n", TYPICAL_PROMPTS, table["n"].max())
    if table.empty:
        raise NothingToDraw("no row of a criterion that is drawn")
    return table


def best(rows: Frame, models: Sequence[str]) -> list[Best]:
    """Return, for each of drop, truncate and cap, the least error under each model, divided by the error without
    clipping.
    """
    found = []
    for outside in OF_CLIP_RULES:
        own = rows[rows["outside"] == outside].set_index("model").reindex(list(models))
        columns = (own[name] / own["value_unclipped"] for name in ("value", "value_gamma_half"))
        found.append(Best(outside, *(column.to_numpy(float) for column in columns)))
    return found


def plot_best(data: Sequence[Best], models: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw the least errors, as shares of the error without clipping: a row for each model, and in it drop, truncate
    and cap below each other."""
    ax = new_axes(ax)
    rows = np.arange(len(models))
    for shift, item in zip((-0.25, 0.0, 0.25), data, strict=True):
        look: dict[str, Any] = {"marker": OUTSIDE_MARKERS[item.outside], "color": OUTSIDE_COLORS[item.outside]}
        y = rows + shift
        ax.plot(item.gamma_half, y, fillstyle="none", linestyle="none", markersize=4.2, zorder=2.5, **look)
        ax.plot(item.any_gamma, y, linestyle="none", markersize=2.4, zorder=2.6, **look)
    ax.axvline(1.0, color="#9a9a9a", linestyle="--", linewidth=0.8, zorder=1)
    ax.set_xscale("log")
    rule_rows(ax, [model.replace("_", " ") for model in models])
    ax.set_xlabel("error / without clipping")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the least errors, with the best exponent of the band under each model."""
    rows = select(tables)
    rows = rows[(rows["criterion"] == "mse") & (rows["outside"] == "any")]
    words = [
        f"{str(row.model).replace('_', ' ')} {'none (do not clip)' if np.isnan(row.gamma) else f'{row.gamma:g}'}"
        for row in rows.itertuples()
    ]
    return CAPTION.format(n=int(rows["n"].iloc[0]), gammas=", ".join(words))


def figure(tables: Tables, style: Style) -> Figure:
    """Draw the least error by model, one panel each for the update as it is and for its direction (docs/theory.md
    T12).
    """
    rows = select(tables)
    models = list(dict.fromkeys(rows["model"]))
    criteria = [name for name in CRITERIA if (rows["criterion"] == name).any()]
    with style.context():
        handles, labels = outside_legend(OF_CLIP_RULES)
        handles.append(Line2D([], [], color="black", marker="o", fillstyle="none", linestyle="none"))
        labels.append("with $\\gamma=1/2$")
        height = 0.19 * len(models) + 0.55
        fig, axes = panel_grid(style, len(criteria), height, handles, labels, most=2, sharey=True)
        for ax, name in zip(axes, criteria, strict=True):
            plot_best(best(rows[rows["criterion"] == name], models), models, ax).set_title(CRITERIA[name])
    return fig
