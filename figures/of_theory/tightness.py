"""Angles between clipped and true update, against the bound of the cosine lemma (T7) and the case T7s that reaches
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from figures.draw import decade_axis, new_axes, panel_grid
from figures.style import Style
from figures.tables import NothingToDraw, Tables
from fspo.theory import cosine_bound

TITLE = "The cosine lemma is tight"
CAPTION = (
    "Angle between clipped and true update against ρ of docs/theory.md T7, one point for each set of strata. Left: "
    "its cosine, with the bound √(1 − ρ²); right: its sine, with the same bound in the form sin ≤ ρ, for small "
    "angles. All values are exact, so there are no intervals. {counts}. Points on the curve: T7s by construction, and "
    "what an optimiser found when it turned the update as far as it could. Largest sin/ρ: {reached}."
)
SOURCES = {
    "random": ("random strata", "#7F7F7F", "."),
    "policy": ("softmax policy", "#009E73", "^"),
    "optimised": ("optimised", "#D55E00", "s"),
    "T7s": ("T7s", "#0072B2", "o"),
}
"""The ways in which the check of T7 makes strata and their gradients: name in the table to label, colour and marker."""
SMALLEST = 1e-4
"""Least value of the cosine lemma's rho (T7) that is drawn. Below it, the computed angle is only rounding error."""


@dataclass(frozen=True)
class Cloud:
    """The cosine lemma's rho (T7), and cosine and sine of the angle between clipped and true update, for K sets of
    strata made in one way: arrays (K,), all with SMALLEST <= rho < 1.
    """

    source: str
    rho: NDArray[np.float64]
    cosine: NDArray[np.float64]
    sine: NDArray[np.float64]


def clouds(tables: Tables) -> list[Cloud]:
    """Return rho, cosine and sine for each way of making strata, where the cosine lemma gives a bound (rho < 1, T7)."""
    table = tables["tightness"]
    found = []
    for source in SOURCES:
        own = table[(table["source"] == source) & table["rho"].between(SMALLEST, 1.0, inclusive="left")]
        if not own.empty:
            found.append(Cloud(source, *(own[name].to_numpy(float) for name in ("rho", "cosine", "sine"))))
    if not found:
        raise NothingToDraw("no strata with a guarantee (rho < 1)")
    return found


def plot_cosine(data: Sequence[Cloud], ax: Axes | None = None) -> Axes:
    """Draw the cosine of the angle between clipped and true update against the cosine lemma's rho, and its lower bound
    (T7)."""
    ax = new_axes(ax)
    at = np.linspace(0, 1, 400)[:-1]
    ax.plot(at, [cosine_bound(r) or 0.0 for r in at], color="black", linewidth=1.0, zorder=2.2)
    for cloud in data:
        _points(ax, cloud, cloud.cosine)
    ax.set_xlim(-0.02, 1.02)
    ax.set_ylim(-0.03, 1.03)
    ax.set_xlabel("$\\rho$")
    ax.set_ylabel("cosine")
    return ax


def plot_sine(data: Sequence[Cloud], ax: Axes | None = None) -> Axes:
    """Draw the sine of the angle between clipped and true update against the cosine lemma's rho (T7), and the bound
    sine <= rho; both axes are logarithmic.
    """
    ax = new_axes(ax)
    ax.plot([SMALLEST, 1], [SMALLEST, 1], color="black", linewidth=1.0, zorder=2.2)
    for cloud in data:
        _points(ax, cloud, cloud.sine)
    decade_axis(ax.xaxis, [SMALLEST, 1])
    decade_axis(ax.yaxis, [SMALLEST / 10, 1])
    ax.set_xlabel("$\\rho$")
    ax.set_ylabel("sine")
    return ax


def _points(ax: Axes, cloud: Cloud, y: NDArray[np.float64]) -> None:
    _, color, marker = SOURCES[cloud.source]
    many, above = cloud.source == "random", 0.1 * list(SOURCES).index(cloud.source)
    ax.plot(
        cloud.rho, y, linestyle="none", marker=marker, color=color, markersize=1.6 if many else 3.0,
        alpha=0.5 if many else 0.85, markeredgewidth=0.3, rasterized=many, zorder=2.3 + above,
    )  # fmt: skip


def caption(tables: Tables) -> str:
    """Return the caption of the figure of angles, with the numbers of points and how nearly they reach the bound."""
    table, data = tables["tightness"], clouds(tables)
    counts, reached = [], []
    for cloud in data:
        label = SOURCES[cloud.source][0]
        own = table[table["source"] == cloud.source]
        counts.append(f"{label}: {int((own['rho'] < 1).sum()):,} of {len(own):,} with ρ < 1")
        reached.append(f"{label} {float(np.max(cloud.sine / cloud.rho)):.4f}")
    return CAPTION.format(counts="; ".join(counts), reached=", ".join(reached))


def figure(tables: Tables, style: Style) -> Figure:
    """Draw angles between clipped and true update: the cosine in the left panel, the sine in the right one
    (docs/theory.md T7, T7s).
    """
    data = clouds(tables)
    with style.context():
        looks = [SOURCES[cloud.source] for cloud in data]
        handles = [Line2D([], [], color=color, marker=marker, linestyle="none") for _, color, marker in looks]
        handles.append(Line2D([], [], color="black", linewidth=1.0))
        fig, axes = panel_grid(style, 2, 1.9, handles, [*(label for label, _, _ in looks), "bound"], most=2)
        plot_cosine(data, axes[0])
        plot_sine(data, axes[1])
    return fig
