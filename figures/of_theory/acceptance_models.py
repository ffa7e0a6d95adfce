"""Share of responses kept (acceptance) by length, for rules that keep the same mean share (T1, T2)."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import layout, marks, scales
from figures.style import Style, looks, rule_label, styled
from figures.tables import Frame, Tables, count_words, percent, split
from fspo.stats.intervals import PERCENT

TITLE = "Acceptance by length, in theory"
CAPTION = (
    "Share of responses that each rule's band accepts, by length, for Gaussian log-ratios (docs/theory.md T1, T2); "
    "every rule accepts {target} on average. Curves: closed forms; points: simulations. Right: with drift μ = "
    "−σ²/2, which fspo-kl alone follows."
    "\n\nσ = {sigma} nats per root token; lengths are uniform in log L. Points: {draws} simulated responses each, "
    f"put through the rule, with {PERCENT} Clopper-Pearson intervals (most are smaller than the marker). With the "
    "drift, weights average to 1. Least acceptance of a length there: {least}."
)
TITLES = {"no drift error": "no drift", "drift -sigma^2/2": "drift $\\mu=-\\sigma^2/2$"}


def plot_laws(data: Frame, ax: Axes | None = None) -> Axes:
    """Draw acceptance against length (columns ``rule``, ``kind``, ``length``, ``acceptance``, ``ci_low``, ``ci_high``):
    rows of kind "formula" as curves, rows of kind "simulated" as points with intervals."""
    known = looks(data["rule"])
    formula, points = data[data["kind"] == "formula"], data[data["kind"] == "simulated"]
    ax = marks.curves(formula, ax, x="length", y="acceptance", ends=(), known=known, marks=False)
    marks.curves(points, ax, x="length", y="acceptance", known=known, lines=False)
    scales.decade_axis(ax.xaxis, formula["length"])
    ax.set_ylim(-0.03, 1.03)
    scales.percent_axis(ax.yaxis)
    ax.set_xlabel("response length $L$ (tokens)")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the acceptance curves, with each rule's least acceptance."""
    table = tables["acceptance_models"]
    worst = table[(table["panel"] == table["panel"].unique()[-1]) & (table["kind"] == "formula")]
    least = worst.groupby("rule")["acceptance"].min()
    return CAPTION.format(
        sigma=f"{table['sigma'].iloc[0]:g}",
        draws=count_words(table["draws"].dropna()),
        target=percent(float(table["target"].iloc[0])),
        least=", ".join(f"{rule_label(rule)} {percent(float(least[rule]))}" for rule in looks(least.index)),
    )


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw acceptance against length for each rule, a panel for each drift of the log-ratio (docs/theory.md T1, T2)."""
    table = tables["acceptance_models"]
    panels = {TITLES.get(panel, panel): part for panel, part in split(table).items()}
    legend = layout.rule_keys(looks(table["rule"]))
    return layout.facets(style, panels, plot_laws, 1.75, legend, left="in the band (%)", most=2, sharey=True)
