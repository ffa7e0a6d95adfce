"""LRE where a band's assumed drift is wrong, by the size of the error: computed values with proved limits, and T3's
bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from figures.draw import label_left, new_axes, panel_grid
from figures.style import Style
from figures.tables import Frame, Tables

TITLE = "LRE against drift error"
CAPTION = (
    "Largest LRE∞ over all length distributions whose drift errors reach x, for the sqrt band. Blue curve: the value "
    "at the ranges in the title, certified by ball arithmetic (widest enclosure: {width}). Shaded: certified "
    "enclosure for all ranges within {near} of them. Dashed and dotted: docs/theory.md T3, B/(a₀ − B) and "
    "2B/(a₀ − B); they end where B reaches a₀ and T3 promises nothing. The first holds for drift errors of one sign "
    "or equal ranges; with both signs and unequal ranges it fails{where}. Without a centre, x = 0.47 at "
    "σ = 0.03 and L = 1,000. Largest LRE∞ over its bound: {ratios}."
)
BLUE, RED, GREEN = "#0072B2", "#D55E00", "#117733"


@dataclass(frozen=True)
class BoundCurve:
    """LRE and T3's bounds for one pair of ranges u_lo, u_hi (in standard deviations of S): arrays (K,) over the largest
    drift error; NaN where T3 gives no bound.
    """

    u_lo: float
    u_hi: float
    mixed: bool
    x: NDArray[np.float64]
    lre: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    near_low: NDArray[np.float64]
    near_high: NDArray[np.float64]
    one_sided: NDArray[np.float64]
    two_sided: NDArray[np.float64]

    def title(self, style: Style) -> str:
        """Return the panel's title: the ranges below and above the centre in standard deviations of S, and whether
        drift errors have one sign or both."""
        signs = "both signs" if self.mixed else "one sign"
        return f"$u_-={self.u_lo:g}$, $u_+={self.u_hi:g}${chr(10) if style.narrow else ', '}{signs}"


def curves(table: Frame) -> list[BoundCurve]:
    """Return LRE and T3's bounds against drift error for each pair of ranges in the table."""
    found = []
    names = ("x", "lre", "low", "high", "near_low", "near_high", "one_sided", "two_sided")
    for case in table["case"].unique():
        own = table[table["case"] == case].sort_values("x")
        first = own.iloc[0]
        arrays = (own[name].to_numpy(float) for name in names)
        found.append(BoundCurve(float(first["u_lo"]), float(first["u_hi"]), bool(first["mixed_signs"]), *arrays))
    return found


def plot_drift(data: BoundCurve, ax: Axes | None = None) -> Axes:
    """Draw LRE and T3's two bounds (drift errors of one sign, of both signs) against the largest drift error. The y
    axis fits the values of LRE, so a bound far above them is cut off.
    """
    ax = new_axes(ax)
    ax.fill_between(data.x, data.near_low, data.near_high, color=BLUE, alpha=0.2, linewidth=0, zorder=1.5)
    ax.fill_between(data.x, data.low, data.high, color=BLUE, linewidth=0, zorder=2)
    ax.plot(data.x, data.lre, color=BLUE, zorder=2.3)
    ax.plot(data.x, data.one_sided, color=RED, linestyle="--", zorder=2.4)
    ax.plot(data.x, data.two_sided, color=GREEN, linestyle=":", linewidth=1.4, zorder=2.4)
    ax.set_xlim(0, float(data.x.max()))
    ax.set_ylim(0, 1.15 * float(np.nanmax(data.near_high)))
    ax.set_xlabel("largest drift error $|x|$")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the figure of drift errors, with the largest ratio of LRE to its bound."""
    table = tables["drift_lre"]
    found = curves(table)
    width = max(float(np.max(((c.high - c.low) / c.high)[c.x > 0])) for c in found)
    broken = [
        float(c.x[(c.low > c.one_sided) & (c.x > 0)][0]) for c in found if np.any((c.low > c.one_sided) & (c.x > 0))
    ]
    ratios = []
    for c in found:
        some = c.x > 0
        tightest = float(np.nanmax(c.high[some] / (c.two_sided if c.mixed else c.one_sided)[some]))
        ratios.append(f"{tightest:.3f} (u₋ = {c.u_lo:g}, u₊ = {c.u_hi:g})")
    return CAPTION.format(
        width=f"{width:.0e} of the value".replace("e-", " × 10^−"),
        near=f"{100 * float(table['near'].iloc[0]):g} %",
        where=f" (first at x = {min(broken):.2g})" if broken else "",
        ratios="; ".join(ratios),
    )


def figure(tables: Tables, style: Style) -> Figure:
    """Draw LRE against the drift error, one panel for each pair of ranges (docs/theory.md T3)."""
    found = curves(tables["drift_lre"])
    with style.context():
        handles = [
            Line2D([], [], color=BLUE),
            Patch(color=BLUE, alpha=0.2, linewidth=0),
            Line2D([], [], color=RED, linestyle="--"),
            Line2D([], [], color=GREEN, linestyle=":", linewidth=1.4),
        ]
        near = f"ranges $\\pm${100 * float(tables['drift_lre']['near'].iloc[0]):g} %"
        labels = ["$LRE_\\infty$", near, "$B/(a_0-B)$", "$2B/(a_0-B)$"]
        fig, axes = panel_grid(style, len(found), 1.75, handles, labels, most=2)
        for ax, data in zip(axes, found, strict=True):
            plot_drift(data, ax).set_title(data.title(style))
        label_left(axes, "largest $LRE_\\infty$")
    return fig
