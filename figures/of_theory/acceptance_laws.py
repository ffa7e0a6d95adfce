"""Share of responses kept (acceptance) by length, for rules that keep the same mean share (T1, T2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.draw import decade_axis, draw_law, label_left, new_axes, panel_grid, percent_axis, rule_legend
from figures.estimates import ComputedLaw, estimates_of
from figures.style import Style, looks, rule_label
from figures.tables import Tables, count_words, percent
from fspo.stats.intervals import PERCENT

TITLE = "Acceptance laws"
CAPTION = (
    "Share of responses that each rule's band accepts, by response length, under the Gaussian model with σ = {sigma} "
    "nats per root token. Curves: closed forms of docs/theory.md T1 and T2. Points: {draws} simulated responses each, "
    f"put through the rule, with {PERCENT} Clopper-Pearson intervals (most are smaller than the marker). In each "
    "panel every range is set so that the rule accepts {target} on average over lengths that are uniform in log L. "
    "Left: tokens "
    "without drift. Right: tokens with drift μ = −σ²/2, where weights average to 1; only fspo-kl follows it. "
    "Least acceptance of a length: {least}."
)
TITLES = {"no drift error": "no drift", "drift -sigma^2/2": "drift $\\mu=-\\sigma^2/2$"}


def laws(tables: Tables) -> dict[str, list[ComputedLaw]]:
    """Return, for each panel (a drift of the tokens), each rule's acceptance against length: curve and simulated
    points.
    """
    table = tables["acceptance_laws"]
    known = looks(table["rule"])
    found: dict[str, list[ComputedLaw]] = {}
    for panel in table["panel"].unique():
        for rule, look in known.items():
            own = table[(table["panel"] == panel) & (table["rule"] == rule)].sort_values("length")
            curve, points = own[own["kind"] == "law"], own[own["kind"] == "simulated"]
            if own.empty:
                continue
            x, y = (curve[name].to_numpy(float) for name in ("length", "acceptance"))
            found.setdefault(panel, []).append(
                ComputedLaw(x, y, estimates_of(points, rule, look, "length", "acceptance"))
            )
    return found


def plot_laws(data: Sequence[ComputedLaw], ax: Axes | None = None) -> Axes:
    """Draw acceptance against length: a curve for each rule, and its simulated points with intervals."""
    ax = new_axes(ax)
    for law in data:
        draw_law(ax, law, markersize=2.8)
    decade_axis(ax.xaxis, np.concatenate([law.x for law in data]))
    ax.set_ylim(-0.03, 1.03)
    percent_axis(ax.yaxis)
    ax.set_xlabel("response length $L$ (tokens)")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the acceptance curves, with each rule's least acceptance."""
    table = tables["acceptance_laws"]
    worst = [
        f"{rule_label(law.points.rule)} {percent(float(law.y.min()))}" for data in [*laws(tables).values()][-1:]
        for law in data
    ]  # fmt: skip
    return CAPTION.format(
        sigma=f"{table['sigma'].iloc[0]:g}",
        draws=count_words(table["draws"].dropna()),
        target=percent(float(table["target"].iloc[0])),
        least=", ".join(worst) + " (right panel)",
    )


def figure(tables: Tables, style: Style) -> Figure:
    """Draw acceptance against length for each rule, one panel for each drift of the tokens (docs/theory.md T1, T2)."""
    found = laws(tables)
    drawn = looks(law.points.rule for data in found.values() for law in data)
    with style.context():
        fig, axes = panel_grid(style, len(found), 1.75, *rule_legend(drawn), most=2, sharey=True)
        for ax, (panel, data) in zip(axes, found.items(), strict=True):
            plot_laws(data, ax).set_title(TITLES.get(panel, panel))
        label_left(axes, "in the band (%)")
    return fig
