"""Least error of the clipped update under each model (a policy, a training step and rewards), over all exponents of the
band's growth with length, and with the exponent 1/2 (T12, T13).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import draw, layout, scales
from figures.style import OUTSIDE_COLORS, OUTSIDE_MARKERS, Style, styled
from figures.tables import Frame, Tables, need, prefer, split
from fspo.rules import OF_CLIP_RULES
from proofs_check.maps.settings import TYPICAL_PROMPTS

TITLE = "Least mean squared error by model"
CAPTION = (
    "Least mean squared error of the update (docs/theory.md T12) over exponent, centre and acceptance of the band, as "
    "a share of its value without clipping, by model and by what happens outside the band. Filled: over all "
    "exponents; open: with γ = 1/2, the fair one."
    "\n\n{n:,} prompts. Left: of the update as it is; right: of its direction, g_clip/ā. Exact moments, so there "
    "are no intervals. Best exponents: {gammas}."
)
CRITERIA = {"mse": "update as it is", "mse_direction": "direction"}


def select(tables: Tables) -> Frame:
    """Return the rows of table ``mse_best`` for the errors of the update and of its direction, at the number of prompts
    that the figure shows.
    """
    table = tables["mse_best"]
    table = prefer(table[table["criterion"].isin(CRITERIA)], "n", TYPICAL_PROMPTS, table["n"].max())
    return need(table, "no row of a criterion that is drawn")


def plot_best(data: Frame, ax: Axes | None = None) -> Axes:
    """Draw the least errors (columns ``model``, ``outside``, ``value``, ``value_gamma_half``), as shares of the error
    without clipping (``value_unclipped``): a row for each model, and in it drop, truncate and cap below each other. A
    filled dot is the least error over all exponents of the band, an open dot the least error with the exponent 1/2.
    """
    shares = data.assign(
        best=data["value"] / data["value_unclipped"], half=data["value_gamma_half"] / data["value_unclipped"]
    )
    ax, models = draw.new_axes(ax), list(dict.fromkeys(data["model"]))
    mapped = {"color": ("outside", OUTSIDE_COLORS), "marker": ("outside", OUTSIDE_MARKERS)}
    looks: dict[str, dict[str, Any]] = {"half": {"fill": False, "pointsize": 4.6}, "best": {"pointsize": 2.6}}
    for column, look in looks.items():
        draw.dots(
            shares, ax, rows=models, row="model", x=column, by="outside", order=OF_CLIP_RULES, ends=(), step=0.25,
            mapped=mapped, **look,
        )  # fmt: skip
    draw.reference(ax, 1.0, "x", linestyle="--")
    values = shares[["best", "half"]].to_numpy().ravel()
    if np.nanmax(values) > 5 * np.nanmin(values):
        scales.decade_axis(ax.xaxis, values, 4)
    else:
        scales.few_ticks(ax.xaxis)
    ax.set_yticks(range(len(models)), [model.replace("_", " ") for model in models])
    ax.set_xlabel("error / without clipping")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the figure of the least mean squared error of the clipped update under each model of the
    price map. It names the exponent gamma of the band that is best under each model.
    """
    rows = select(tables)
    rows = rows[(rows["criterion"] == "mse") & (rows["outside"] == "any")]
    words = [
        f"{str(row.model).replace('_', ' ')} {'none (do not clip)' if np.isnan(row.gamma) else f'{row.gamma:g}'}"
        for row in rows.itertuples()
    ]
    return CAPTION.format(n=int(rows["n"].iloc[0]), gammas=", ".join(words))


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw the least mean squared error of the clipped update under each model of the price map: one panel for the
    update as it is, one for its direction (the update over the mean acceptance).
    """
    rows = select(tables)
    rows = rows[rows["outside"].isin(OF_CLIP_RULES)]
    panels = split(rows, "criterion", CRITERIA)
    legend = layout.outside_keys(OF_CLIP_RULES) | {"with $\\gamma=1/2$": layout.key("black", "o", fillstyle="none")}
    return layout.facets(style, panels, plot_best, 0.19 * rows["model"].nunique() + 0.55, legend, sharey=True)[0]
