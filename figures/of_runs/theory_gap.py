"""The figure theory_gap: the measured share of responses in the band less the share by T1, for each bin of length, and
how much of this gap each departure from the theory causes.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.log.partition import LENGTH, Partition
from analysis.tables.theory_gap import INGREDIENTS
from figures import draw, layout, scales
from figures.of_runs.ess_by_length import plot_estimates
from figures.style import Style, looks, styled
from figures.tables import Frame, Tables, count_words, drawable, need, percent
from fspo.stats.intervals import PERCENT

TITLE = "Where theory and data differ"
CAPTION = (
    "First panel: measured less theoretical share in the band (docs/theory.md T1), each run's own rule on its own "
    "log, by {by} bin. The other panels add up to it: what each departure from the theory contributes, and the "
    f"rest. n = {{n}} responses a bin. Bars: {PERCENT} intervals (jackknife over prompts).{{small}}"
    "\n\nFirst use. The theory: {S} normal with the rule's own drift and variance σ²L, in a symmetric band. The "
    "departures: the band's asymmetry, the measured drift, the measured spread (H), the measured law of the "
    "standardised {S} (tails) and its dependence on the sign of A; each is a mean over all orders of putting them "
    "in."
)
PARTS = ("gap", *INGREDIENTS, "rest")
WORDS = {"gap": "measured − theory", "H": "H (spread)"}
SMALL = 0.005
"""A part of the gap that is below this size in every bin is named in the caption and has no panel."""


def rows(tables: Tables) -> Frame:
    """Return the rows by bin of table ``theory_gap``: measured less theoretical acceptance (the gap), and the parts of
    the gap, one for each cause. The column ``panel`` says which of these a row is.
    """
    found = tables["theory_gap"]
    found = found[(found["bin"] >= 0) & found["part"].isin(list(PARTS))]
    found = drawable(need(found, "no rule with a band on whole sequences has trained"))
    return found.assign(panel=found["part"].map(lambda part: WORDS.get(part, part))).drop(columns="part")


def plot_part(data: Frame, ax: Axes | None = None, partition: Partition = LENGTH) -> Axes:
    """Draw the gap between measured and theoretical acceptance, or one part of it (columns ``run``, ``trained_rule``,
    ``bin_mean``, ``estimate``, ``ci_low``, ``ci_high``), against length; rules stand side by side.
    """
    data = data.assign(rule=data["trained_rule"])
    ax = plot_estimates(data, ax, partition, step=0.11, linewidth=0.5, markersize=3.2)
    draw.reference(ax, 0.0)
    scales.percent_axis(ax.yaxis)
    return ax


def shown(found: Frame) -> dict[str, Frame]:
    """Return the rows of each panel of the figure of the gap between measured and theoretical acceptance.

    A part of the gap that is below ``SMALL`` in every bin has no panel.
    """
    panels = {title: found[found["panel"] == title] for title in (WORDS.get(part, part) for part in PARTS)}
    return {t: part for i, (t, part) in enumerate(panels.items()) if i == 0 or part["estimate"].abs().max() >= SMALL}


def caption(tables: Tables) -> str:
    """Return the caption of the figure of the gap between measured and theoretical acceptance. It names the numbers of
    responses, and the parts of the gap that are too small for a panel.
    """
    found = rows(tables)
    small = [title for title in dict.fromkeys(found["panel"]) if title not in shown(found)]
    words = f" Below {percent(SMALL)} everywhere: {', '.join(small)}." if small else ""
    return CAPTION.format(by=tables.bin_word, S=tables.symbol, n=count_words(found["count"]), small=words)


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw the gap between measured and theoretical acceptance by bin, and each part of it that is not small.

    The parts are the contributions of single departures from the theory. Each has a panel; all panels share one scale.
    """
    found = rows(tables)
    panels, legend = shown(found), layout.rule_keys(looks(found["trained_rule"]))

    def plot(part: Frame, ax: Axes) -> None:
        plot_part(part, ax, tables.partition)
        if tables.by_length:
            ax.set_xlabel("length $L$ (tokens)")

    columns = min(len(panels), 2 if style.narrow else 3)
    return layout.facets(style, panels, plot, 1.45, legend, columns=columns, left="percentage points", sharey=True)[0]
