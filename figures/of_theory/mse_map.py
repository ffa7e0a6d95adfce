"""Mean squared error of the clipped update by exponent, centre and acceptance of the band (T12, T13)."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from figures import draw, layout
from figures.style import OUTSIDE_MARKERS, Style, styled
from figures.tables import Frame, Tables, need, percent, prefer
from proofs_check.maps.settings import TYPICAL_PROMPTS

TITLE = "Mean squared error of the clipped update"
CAPTION = (
    "Mean squared error (docs/theory.md T12) of the update, as a share of its value without clipping, over the band's "
    "exponent γ and its acceptance, for three centres (T13) and for what happens outside the band. Star: least value "
    "of a panel; filled: of all. Cross: larger than without clipping. Least: {best}."
    "\n\nModel “{model}”, {n:,} prompts; exact moments, so there are no intervals. Centres −KL·L, 0 and +KL·L. "
    "The other models are in the figure of the best bands."
)
MODEL = "aligned"
CENTRES = {-1.0: "centre $-KL$", 0.0: "centre 0", 1.0: "centre $+KL$"}


def cells(tables: Tables) -> Frame:
    """Return the rows of table ``mse_map`` that have a band, for one model and one number of prompts. The new column
    ``relative`` is the error divided by the error without clipping.
    """
    table = tables["mse_map"]
    table = prefer(table, "model", MODEL, *table["model"].unique())
    table = prefer(table, "n", TYPICAL_PROMPTS, table["n"].max())
    free = need(table[table["outside"] == "none"], "no row without clipping to compare with")
    found = table[table["outside"].isin(list(OUTSIDE_MARKERS)) & table["centre"].isin(list(CENTRES))]
    return need(found, "no row with a band").assign(relative=found["mse"] / float(free["mse"].iloc[0]))


def plot_cells(data: Frame, norm: LogNorm, ax: Axes | None = None, filled: bool = False) -> Axes:
    """Draw a map of the clipped update's mean squared error by the band's exponent gamma and acceptance.

    The colour of a cell is the error divided by the error without clipping. A cross marks cells where clipping raises
    the error, a star the cell of least error (orange if ``filled``, else white). ``data`` has the columns ``gamma`` and
    ``acceptance``, which place a cell, and ``relative``, the quotient.
    """
    ax = draw.new_axes(ax)
    colors = {"cmap": "vlag", "norm": norm, "linewidths": 0.2}
    wide = draw.cells(data, ax, x="acceptance", y="gamma", value="relative", **colors)
    values = wide.to_numpy(float)
    i, j = np.nonzero(values > 1)
    ax.plot(j + 0.5, i + 0.5, marker="x", markersize=2.5, linestyle="none", color="#333333")
    y, x = np.unravel_index(np.nanargmin(values), values.shape)
    star = {"markersize": 6.5, "markeredgecolor": "black", "markeredgewidth": 0.5, "clip_on": False}
    ax.plot(x + 0.5, y + 0.5, marker="*", linestyle="none", color="#D55E00" if filled else "white", **star)
    wanted = np.unique(np.linspace(0, len(wide.columns) - 1, 4).round().astype(int))
    ax.set_xticks(wanted + 0.5, [f"{100 * wide.columns[j]:g}" for j in wanted])
    ax.set_yticks(np.arange(0, len(wide), 2) + 0.5, [f"{g:g}" for g in wide.index[::2]])
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the map of the clipped update's mean squared error over bands; it names the band of least
    error.
    """
    found = cells(tables)
    best = found.loc[found["relative"].idxmin()]
    centre = {-1.0: "−KL", 0.0: "0", 1.0: "+KL"}[best["centre"]]
    where = f"{best['outside']}, γ = {best['gamma']:g}, centre {centre}, {percent(best['acceptance'])} accepted"
    model = str(best["model"]).replace("_", " ")
    return CAPTION.format(n=int(best["n"]), model=model, best=f"{best['relative']:.3f} ({where})")


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw the map of the clipped update's squared error over bands: a row of panels for each treatment outside the
    band (drop, truncate, cap), a column for each centre of the band.
    """
    found = cells(tables)
    outsides = [name for name in OUTSIDE_MARKERS if (found["outside"] == name).any()]
    centres = [centre for centre in CENTRES if (found["centre"] == centre).any()]
    low, high = float(found["relative"].min()), max(1.0, float(found["relative"].max()))
    # The colours show the clipped update's error over that without clipping, from 1 / far to far on a log scale, so
    # that the ratio 1 is white.
    far = max(high, 1 / low)
    height = 1.05 if style.narrow else 1.2
    fig, axes = layout.panel_grid(
        style, len(outsides) * len(centres), height, columns=len(centres), sharex=True, sharey=True
    )
    fig.set_figheight(fig.get_figheight() + 0.45)
    for i, ax in enumerate(axes):
        outside, centre = outsides[i // len(centres)], centres[i % len(centres)]
        part = found[(found["outside"] == outside) & (found["centre"] == centre)]
        plot_cells(part, LogNorm(1 / far, far), ax, float(part["relative"].min()) == low)
        narrow = f"{CENTRES[centre]}\n{outside}" if i < len(centres) else outside
        ax.set_title(narrow if style.narrow else f"{outside}, {CENTRES[centre]}", linespacing=1.1)
        ax.set_xlabel("accepted (%)")
        ax.set_ylabel("exponent $\\gamma$")
        ax.label_outer()
    bar = layout.color_bar(fig, axes, "mean squared error / without clipping", location="top", shrink=0.7, aspect=40)
    ticks = [t for t in (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 2, 5, 10) if 1 / far <= t <= far]
    bar.set_ticks(ticks, labels=[f"{t:g}" for t in ticks])
    bar.ax.minorticks_off()
    return fig
