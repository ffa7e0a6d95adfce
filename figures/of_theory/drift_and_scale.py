"""LRE of a band whose centre is not the mean of S, by the drift error, and T3's bounds."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import layout, marks
from figures.style import Look, Style, styled
from figures.tables import Frame, Tables, split

TITLE = "LRE against drift error"
CAPTION = (
    "Exact worst LRE∞ of the sqrt band over all length distributions whose drift errors reach x (blue; docs/theory.md "
    "T3), beside two simple bounds on it, B/(a₀ − B) and 2B/(a₀ − B). The first holds for drift errors of one sign or "
    "equal ranges; with both signs and unequal ranges it fails{where}. Largest LRE∞ over its bound: {ratios}."
    "\n\nAll curves are exact. The bounds end where B reaches a₀ and T3 promises nothing. Without a centre, x = 0.47 "
    "at σ = 0.03 and L = 1,000."
)
LINES = {
    "lre": ("$LRE_\\infty$", Look("#0072B2", "")),
    "one_sided": ("$B/(a_0-B)$", Look("#D55E00", "", (4.0, 1.6))),
    "two_sided": ("$2B/(a_0-B)$", Look("#117733", "", (1.0, 1.6))),
}


def plot_drift(data: Frame, ax: Axes | None = None) -> Axes:
    """Draw LRE and T3's two bounds on it over the largest drift error.

    The y axis fits the values of LRE, so a bound far above them is cut off. ``data`` has the columns ``x`` (largest
    drift error), ``lre``, and the bounds ``one_sided`` and ``two_sided`` (errors of one and of both signs)."""
    long = data.melt("x", list(LINES), "line", "value")
    known = {name: look for name, (_, look) in LINES.items()}
    ax = marks.curves(long, ax, x="x", y="value", hue="line", known=known, marks=False)
    ax.set_xlim(0, float(data["x"].max()))
    ax.set_ylim(0, 1.2 * float(data["lre"].max()))
    ax.set_xlabel("largest drift error $|x|$")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the figure of drift errors, with the largest ratio of LRE to its bound."""
    table = tables["drift_and_scale"]
    rows = table[table["x"] > 0]
    rows = rows.assign(ratio=rows["lre"] / rows["two_sided"].where(rows["mixed_signs"], rows["one_sided"]))
    broken = rows[rows["lre"] > rows["one_sided"]]["x"]
    tightest = rows.groupby(["u_lo", "u_hi"], sort=False)["ratio"].max()
    return CAPTION.format(
        where=f" (first at x = {broken.min():.2g})" if len(broken) else "",
        ratios="; ".join(f"{ratio:.3f} (u₋ = {lo:g}, u₊ = {hi:g})" for (lo, hi), ratio in tightest.items()),
    )


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw LRE against the drift error, one panel for each pair of a lower and an upper range (docs/theory.md T3)."""
    legend: dict[str, Any] = dict(layout.rule_keys(dict(LINES.values())))
    panels = {}
    for part in split(tables["drift_and_scale"], "u_lo").values():
        signs = "both signs" if part["mixed_signs"].iloc[0] else "one sign"
        ranges = f"$u_-={part['u_lo'].iloc[0]:g}$, $u_+={part['u_hi'].iloc[0]:g}$"
        panels[f"{ranges}{chr(10) if style.narrow else ', '}{signs}"] = part.sort_values("x")
    return layout.facets(style, panels, plot_drift, 1.75, legend, left="largest $LRE_\\infty$")
