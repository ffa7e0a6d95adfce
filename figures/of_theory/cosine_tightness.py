"""The figure of angles between clipped and unclipped gradient, beside the bound of the cosine lemma (T7).

One example in docs/theory.md, T7s, reaches the bound."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import layout, marks, scales
from figures.style import Look, Style, styled
from figures.tables import Frame, Tables, need
from fspo.theory import cosine_bound

TITLE = "The cosine lemma is tight"
CAPTION = (
    "Angle between clipped and unclipped gradient against ρ of docs/theory.md T7, one point for each set of strata: "
    "its cosine with the bound √(1 − ρ²), and its sine with the same bound, sin ≤ ρ. Points on the curve: T7s by "
    "construction. Largest sin/ρ: {reached}."
    "\n\nAll values are exact, so there are no intervals. {counts}."
)
SOURCES = {
    "random": ("random strata", Look("#7F7F7F", ".")),
    "policy": ("softmax policy", Look("#009E73", "^")),
    "T7s": ("T7s", Look("#0072B2", "o")),
}
"""The ways in which the check of T7 makes strata and their gradients: label and look by the name in the table."""
SMALLEST = 1e-4
"""Least value of the cosine lemma's rho (T7) that is drawn. Below it, the computed angle is only rounding error."""


def clouds(tables: Tables) -> Frame:
    """Return the rows of table ``cosine_tightness`` where the cosine lemma gives a bound (rho < 1, T7), in drawing
    order."""
    table = tables["cosine_tightness"]
    found = table[table["source"].isin(list(SOURCES)) & table["rho"].between(SMALLEST, 1.0, inclusive="left")]
    found = need(found, "no strata with a guarantee (rho < 1)")
    return found.sort_values("source", key=lambda names: names.map(list(SOURCES).index), kind="stable")


def plot_angles(data: Frame, y: str, ax: Axes | None = None) -> Axes:
    """Draw the cosine or the sine (``y``: "cosine" or "sine") of the angle between clipped and unclipped gradient
    against the cosine lemma's rho (columns ``source``, ``rho``), and the lemma's bound (T7); the axes of the sine are
    logarithmic."""
    ax = marks.new_axes(ax)
    rho = np.sin(np.linspace(0, np.pi / 2, 200)) if y == "cosine" else np.array([SMALLEST, 1.0])
    bound = [cosine_bound(r) or 0.0 for r in rho] if y == "cosine" else rho
    ax.plot(rho, bound, color="black", linewidth=1.0, zorder=2.2)
    known = {name: look for name, (_, look) in SOURCES.items()}
    marks.cloud(data, ax, x="rho", y=y, hue="source", known=known, s=9, linewidth=0, rasterized=True, zorder=2.3)
    if y == "cosine":
        ax.set(xlim=(-0.02, 1.02), ylim=(-0.03, 1.03))
    else:
        scales.decade_axis(ax.xaxis, [SMALLEST, 1])
        scales.decade_axis(ax.yaxis, [SMALLEST / 10, 1])
    ax.set(xlabel="$\\rho$", ylabel=y)
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the figure of angles, with the numbers of points and how nearly they reach the bound."""
    table, shown = tables["cosine_tightness"], clouds(tables)
    counts, reached = [], []
    for source, part in shown.groupby("source", sort=False):
        own, label = table[table["source"] == source], SOURCES[str(source)][0]
        counts.append(f"{label}: {int((own['rho'] < 1).sum()):,} of {len(own):,} with ρ < 1")
        reached.append(f"{label} {float((part['sine'] / part['rho']).max()):.4f}")
    return CAPTION.format(counts="; ".join(counts), reached=", ".join(reached))


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw angles between clipped and unclipped gradient: the cosine in the left panel, the sine in the right one."""
    data = clouds(tables)
    legend = {SOURCES[s][0]: layout.key(SOURCES[s][1].color, SOURCES[s][1].marker) for s in data["source"].unique()}
    legend["bound"] = layout.key("black", linestyle="-", linewidth=1.0)
    fig, axes = layout.panel_grid(style, 2, 1.9, legend)
    for ax, y in zip(axes, ("cosine", "sine"), strict=True):
        plot_angles(data, y, ax)
    return fig
