"""How far the share of responses in a band is from its Gaussian value, and the Berry-Esseen bound on it (T5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from figures.draw import decade_axis, label_left, new_axes, panel_grid, whiskers
from figures.style import Style
from figures.tables import Frame, Tables, count_words
from fspo.stats.intervals import PERCENT

TITLE = "Berry-Esseen envelope against the truth"
CAPTION = (
    "Distance of the sqrt band's acceptance from the Gaussian value, for independent tokens that are not Gaussian. "
    "Black: the envelope 2 · 0.4748 ρ₃/√L of docs/theory.md T5. Blue: the true distance for the worst band at each "
    "length; orange: for the band of one standard deviation (u = 1); both from exact laws. Points: {draws} simulated "
    f"responses each (u = 1), with {PERCENT} Clopper-Pearson intervals; an interval that reaches the lower edge "
    "includes 0. Worst band, largest share of the envelope: {shares}. Between the steps of a lattice the band u = 1 "
    "jumps from "
    "length to length. Skewed tokens and tokens on a lattice fall like 1/√L, as "
    "the envelope does; symmetric continuous ones like 1/L."
)
LAWS = {"exponential": "exponential", "signs": "$\\pm\\sigma$", "student": "Student $t_5$"}
WORDS = {"exponential": "exponential", "signs": "±σ", "student": "Student t₅"}
BLUE, ORANGE = "#0072B2", "#D55E00"


@dataclass(frozen=True)
class Distances:
    """For one law of token log-ratios, arrays over length: the Berry-Esseen bound (``envelope``), and how far
    acceptance is from its Gaussian value for the worst band, for the band of one standard deviation (``unit``), and in
    simulations of the latter.
    """

    law: str
    rho3: float
    length: NDArray[np.float64]
    envelope: NDArray[np.float64]
    worst: NDArray[np.float64]
    unit: NDArray[np.float64]
    at: NDArray[np.float64]
    simulated: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def distances(table: Frame) -> list[Distances]:
    """Return, for each token law of the table, how far acceptance is from its Gaussian value."""
    found = []
    for law in table["law"].unique():
        own = table[table["law"] == law].sort_values("length")
        exact, points = own[own["kind"] == "exact"], own[own["kind"] == "simulated"]
        worst, unit = exact[exact["band"] == "worst"], exact[exact["band"] == "unit"]
        arrays = (worst["length"], worst["envelope"], worst["difference"], unit["difference"])
        drawn = (points[name] for name in ("length", "difference", "ci_low", "ci_high"))
        columns = (column.to_numpy(float) for column in (*arrays, *drawn))
        found.append(Distances(law, float(own["rho3"].iloc[0]), *columns))
    return found


def plot_distances(data: Distances, ax: Axes | None = None, lowest: float = 1e-5) -> Axes:
    """Draw against length the Berry-Esseen bound and the distances of acceptance from its Gaussian value, exact and
    simulated; both axes are logarithmic; distances below ``lowest`` are not shown.
    """
    ax = new_axes(ax)
    ax.plot(data.length, data.envelope, color="black", linewidth=1.0, zorder=2.2)
    ax.plot(data.length, data.worst, color=BLUE, zorder=2.3)
    ax.plot(data.length, data.unit, color=ORANGE, linestyle="--", linewidth=0.9, zorder=2.3)
    low = np.maximum(data.low, lowest)
    whiskers(ax, data.at, data.simulated, low, data.high, color=ORANGE, marker="s", markersize=2.8)
    decade_axis(ax.xaxis, data.length)
    decade_axis(ax.yaxis, [1.4 * lowest, 3.0])
    ax.set_xlabel("response length $L$ (tokens)")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the Berry-Esseen figure, with the share of the bound that each token law reaches."""
    table = tables["berry_esseen"]
    shares = [f"{WORDS.get(d.law, d.law)} {np.max(d.worst / d.envelope):.2f}" for d in distances(table)]
    return CAPTION.format(draws=count_words(table["draws"].dropna()), shares=", ".join(shares))


def figure(tables: Tables, style: Style) -> Figure:
    """Draw how far acceptance is from its Gaussian value, one panel for each law of token log-ratios (docs/theory.md
    T5).
    """
    found = distances(tables["berry_esseen"])
    with style.context():
        handles = [
            Line2D([], [], color="black", linewidth=1.0),
            Line2D([], [], color=BLUE),
            Line2D([], [], color=ORANGE, linestyle="--", marker="s", markersize=2.8, linewidth=0.9),
        ]
        labels = ["envelope", "worst band", "band $u=1$"]
        fig, axes = panel_grid(style, len(found), 1.6, handles, labels, most=3, sharey=True)
        lowest = min(float(np.min(d.unit[d.unit > 0])) for d in found) / 1.5
        for ax, data in zip(axes, found, strict=True):
            title = f"{LAWS.get(data.law, data.law)} ($\\rho_3={data.rho3:.3g}$)"
            plot_distances(data, ax, lowest).set_title(title)
        label_left(axes, "$|a-a_{Gauss}|$")
    return fig
