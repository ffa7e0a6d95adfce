"""Mean squared error of the clipped update by exponent, centre and acceptance of the band (T12, T13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from figures.draw import cell_axes, new_axes
from figures.style import OUTSIDE_MARKERS, Style
from figures.tables import NothingToDraw, Tables, percent, prefer
from proofs_check.maps.settings import TYPICAL_PROMPTS

TITLE = "Mean squared error of the clipped update"
CAPTION = (
    "Mean squared error (docs/theory.md T12) of the update with {n:,} prompts, as a share of its value without "
    "clipping, over the band's exponent γ and its acceptance, for the centres −KL·L, 0 and +KL·L (T13) and for what "
    "happens outside the band. Model “{model}”; exact moments, so there are no intervals. Star: the least value of a "
    "panel; filled: of all. Cross: larger than without clipping. Least: {best}. The other models are in the "
    "figure of the best bands."
)
MODEL = "aligned"
CENTRES = {-1.0: "centre $-KL$", 0.0: "centre 0", 1.0: "centre $+KL$"}


@dataclass(frozen=True)
class Cells:
    """One panel, for one choice outside the band and one centre of the band: the bands' acceptances (M,), their
    exponents of the length (N,), and the update's mean squared errors, divided by that without clipping (N, M).
    """

    outside: str
    centre: float
    acceptance: NDArray[np.float64]
    gamma: NDArray[np.float64]
    relative: NDArray[np.float64]

    @property
    def least(self) -> tuple[float, float, float]:
        """Return the panel's least error over that without clipping, and exponent and acceptance of the band that has
        it."""
        i, j = np.unravel_index(np.nanargmin(self.relative), self.relative.shape)
        return float(self.relative[i, j]), float(self.gamma[i]), float(self.acceptance[j])


def cells(tables: Tables) -> tuple[list[Cells], str, int]:
    """Return a panel for each choice outside the band and each centre, the name of the policy's model, and the number
    of prompts.
    """
    table = tables["mse_map"]
    table = prefer(table, "model", MODEL, *table["model"].unique())
    table = prefer(table, "n", TYPICAL_PROMPTS, table["n"].max())
    free = table[table["outside"] == "none"]
    if free.empty:
        raise NothingToDraw("no row without clipping to compare with")
    unclipped, found = float(free["mse"].iloc[0]), []
    for outside in OUTSIDE_MARKERS:
        for centre in CENTRES:
            own = table[(table["outside"] == outside) & (table["centre"] == centre)]
            if own.empty:
                continue
            grid: Any = own.pivot(index="gamma", columns="acceptance", values="mse")
            columns, rows = grid.columns.to_numpy(float), grid.index.to_numpy(float)
            found.append(Cells(outside, centre, columns, rows, grid.to_numpy(float) / unclipped))
    if not found:
        raise NothingToDraw("no row with a band")
    return found, str(table["model"].iloc[0]), int(table["n"].iloc[0])


def plot_cells(data: Cells, norm: LogNorm, ax: Axes | None = None, filled: bool = False) -> Any:
    """Draw errors over that without clipping as coloured cells, a cross where clipping raises the error, a star at the
    least error (orange if ``filled``, else white). Return the cells, from which a colour bar is drawn.
    """
    ax = new_axes(ax)
    mesh = ax.pcolormesh(data.relative, cmap="cividis_r", norm=norm, edgecolors="white", linewidth=0.2)
    shape = data.relative.shape
    i, j = np.nonzero(data.relative > 1)
    ax.plot(j + 0.5, i + 0.5, marker="x", markersize=3, linestyle="none", color="white")
    _, gamma, acceptance = data.least
    x, y = np.flatnonzero(data.acceptance == acceptance)[0], np.flatnonzero(data.gamma == gamma)[0]
    ax.plot(
        x + 0.5, y + 0.5, marker="*", markersize=6.5, linestyle="none", markeredgecolor="black",
        color="#D55E00" if filled else "white", markeredgewidth=0.5, clip_on=False,
    )  # fmt: skip
    wanted = np.unique(np.linspace(0, shape[1] - 1, 4).round().astype(int)).tolist()
    ax.set_xticks([j + 0.5 for j in wanted], [f"{100 * data.acceptance[j]:g}" for j in wanted])
    ax.set_yticks(np.arange(0, shape[0], 2) + 0.5, [f"{g:g}" for g in data.gamma[::2]])
    cell_axes(ax)
    return mesh


def caption(tables: Tables) -> str:
    """Return the caption of the map of errors, with the band of least error."""
    found, model, n = cells(tables)
    best = min(found, key=lambda panel: panel.least[0])
    value, gamma, acceptance = best.least
    centre = {-1.0: "−KL", 0.0: "0", 1.0: "+KL"}[best.centre]
    words = f"{value:.3f} ({best.outside}, γ = {gamma:g}, centre {centre}, {percent(acceptance)} accepted)"
    return CAPTION.format(n=n, model=model.replace("_", " "), best=words)


def figure(tables: Tables, style: Style) -> Figure:
    """Draw the errors over that without clipping: a row of panels for each choice outside the band, a column for each
    centre (docs/theory.md T12).
    """
    found, _, _ = cells(tables)
    outsides, centres = list(dict.fromkeys(c.outside for c in found)), list(dict.fromkeys(c.centre for c in found))
    least = min(found, key=lambda panel: panel.least[0])
    low = least.least[0]
    high = max(1.0, *(float(np.nanmax(c.relative)) for c in found))
    with style.context():
        fig = style.new_figure((1.05 if style.narrow else 1.2) * len(outsides) + 0.55)
        grid = fig.subplots(len(outsides), len(centres), squeeze=False, sharex=True, sharey=True)
        norm = LogNorm(low, high)
        mesh: Any = None
        for data in found:
            i, j = outsides.index(data.outside), centres.index(data.centre)
            ax = grid[i, j]
            mesh = plot_cells(data, norm, ax, data is least)
            ax.set_title(f"{data.outside}, {CENTRES[data.centre]}" if not style.narrow else data.outside)
            if style.narrow and i == 0:
                ax.set_title(f"{CENTRES[data.centre]}\n{data.outside}", linespacing=1.1)
            if j == 0:
                ax.set_ylabel("exponent $\\gamma$")
            if i == len(outsides) - 1:
                ax.set_xlabel("accepted (%)")
        bar = fig.colorbar(mesh, ax=list(grid.flat), location="top", shrink=0.7, aspect=40, pad=0.02)
        bar.set_label("mean squared error / without clipping")
        bar.outline.set_visible(False)
        ticks = [t for t in (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 2, 5, 10) if low <= t <= high]
        bar.set_ticks(ticks, labels=[f"{t:g}" for t in ticks])
        bar.ax.minorticks_off()
    return fig
