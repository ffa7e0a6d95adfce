"""Cosine between clipped and unclipped gradient against rho, the cosine lemma's bound on the clipped gradient's
relative error (T7)."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import layout, marks, scales
from figures.style import Style, looks, styled
from figures.tables import Frame, Tables, drawable, lemma_updates, need, split, view_words, views
from fspo.rules import ZEROING
from fspo.theory import cosine_bound

TITLE = "Cosine against the bound of T7"
CAPTION = (
    "Cosine of the clipped and the unclipped gradient against ρ, one point {unit} (rules that drop; A ≠ 0). Black: the "
    "bound √(1 − ρ²) of docs/theory.md T7; shaded: ρ ≥ 1, where T7 promises nothing. {what}."
    "\n\nPoints have no intervals, since T7 holds for the logged vectors themselves. Noise "
    "of finitely many responses biases ρ upward as a rule. Without a guarantee: {n}."
)


def rows(tables: Tables) -> Frame:
    """Return the rows of table ``lemma`` that have the cosine lemma's rho (T7) and the cosine.

    The column ``panel`` names the panel. In a panel for a target acceptance all rules meet the target on one log; a
    further panel shows the rules with which the runs were trained."""
    found, _ = lemma_updates(tables)
    found = need(found[found["outside"].isin(ZEROING)], "no rule that drops has scored updates")
    return views(drawable(found, ("rho", "cosine")))


def plot_bound(data: Frame, ax: Axes | None = None, lowest: float = 0.0) -> Axes:
    """Draw each update's cosine over rho, which bounds the clipped gradient's error, with T7's lower bound sqrt(1 -
    rho^2).

    T7 says nothing where rho >= 1, so that part is shaded. ``data`` has the columns ``rule``, ``rho`` and ``cosine``, a
    row for each update; the y axis begins at ``lowest``, if no cosine is lower."""
    ax, known = marks.new_axes(ax), looks(data["rule"])
    high = float(data["rho"].max())
    wide = high > 4
    right = high * 1.2 if wide else max(1.2, 1.05 * high)
    at = np.linspace(0.0, 1.0, 400)
    ax.plot(at, [cosine_bound(r) or 0.0 for r in at], color="black", linewidth=1.0, zorder=2.2)
    ax.axvspan(1.0, right, color="#ececec", linewidth=0, zorder=0.2)
    marks.cloud(data, ax, x="rho", y="cosine", hue="rule", known=known, s=10, linewidth=0.2, zorder=2.6)
    if wide:
        # The axis is linear below rho = 1, where T7 gives a bound, and logarithmic above.
        ax.set_xscale("symlog", base=2, linthresh=1, linscale=2)
        octaves = np.arange(0, np.log2(right), max(1, np.log2(right) // 4))
        scales.fixed_ticks(ax.xaxis, [0, 0.5, *2.0**octaves])
    lowest = min(lowest, float(data["cosine"].min()))
    ax.set(xlim=(0, right), ylim=(lowest - 0.03, 1.03), xlabel="$\\rho$", ylabel="")
    return ax


def guarantees(tables: Tables) -> dict[str, str]:
    """Return by panel in how many updates T7 gives no bound (rho >= 1), as a text such as "3 of 12"."""
    return {
        panel: f"{(~part['guaranteed'].astype(bool)).sum()} of {len(part)}"
        for panel, part in split(rows(tables)).items()
    }


def caption(tables: Tables) -> str:
    """Return the caption of cosine against the cosine lemma's rho (T7), with the number of updates without a bound."""
    words = "; ".join(f"{panel}: {count}" for panel, count in guarantees(tables).items())
    return CAPTION.format(unit=lemma_updates(tables)[1], what=view_words(rows(tables)), n=words)


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw the updates' cosine against T7's rho, a panel for each target acceptance and one for the runs' own rules."""
    found = rows(tables)
    panels, lowest = split(found), min(0.0, float(found["cosine"].min()))
    titled = {f"{name}\nno guarantee: {count}": panels[name] for name, count in guarantees(tables).items()}
    legend = layout.rule_keys(looks(found["rule"]), lines=False) | {"bound": layout.key("black", linestyle="-")}

    def plot(part: Frame, ax: Axes) -> None:
        plot_bound(part, ax, lowest)

    return layout.facets(style, titled, plot, 1.75, legend, left="cosine", sharey=True)
