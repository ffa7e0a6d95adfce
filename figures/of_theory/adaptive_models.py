"""LRE of bands that follow a target acceptance, after they have learnt, by log-ratio model (T14, T15)."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import draw, layout, scales
from figures.style import Style, looks, styled
from figures.tables import Frame, Tables, need, split
from fspo.stats.intervals import PERCENT

TITLE = "Bands that follow a target, by log-ratio model"
CAPTION = (
    "LRE∞ of the long-run acceptance after learning, over 12 lengths from 8 to 384 tokens; 0 is fair. fspo: its range "
    "calibrated once to the same mean acceptance, 0.8. A learnt exponent is fair where one law scales with a power of "
    "L (docs/theory.md T14); fspo-conformal holds each bin of lengths at the target (T15)."
    f"\n\n{{centre}}. Plug-in values; bars: simultaneous {PERCENT} intervals over {{runs}} independent runs. A learnt "
    "exponent leaves the bend where no one law scales with a power of L; fspo-conformal is left with what changes "
    "inside a bin."
)
CENTRES = {"kl": "around the model's drift", "none": "without a centre"}


def plot_models(data: Frame, ax: Axes | None = None) -> Axes:
    """Draw LRE_inf as dots with intervals (columns ``words``, ``rule``, ``lre_inf``, ``lre_inf_low``,
    ``lre_inf_high``): a row for each log-ratio model (``words``), with the rules below each other.
    """
    models, rules = list(dict.fromkeys(data["words"])), list(dict.fromkeys(data["rule"]))
    known = looks(rules)
    mapped = draw.rule_marks("rule", known)
    ends = ("lre_inf_low", "lre_inf_high")
    ax = draw.dots(
        data, ax, rows=models, row="words", x="lre_inf", by="rule", order=rules, ends=ends, step=0.2, mapped=mapped
    )
    scales.from_zero([ax])
    scales.few_ticks(ax.xaxis, 4)
    ax.set_xlabel("LRE$_\\infty$")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the figure of bands that follow a target, with the number of simulated runs."""
    table = need(tables["adaptive_models"], "no model")
    here = [words for drift, words in CENTRES.items() if (table["drift"] == drift).any()]
    return CAPTION.format(runs=int(table["runs"].iloc[0]), centre=f"Bands {' and '.join(here)}")


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw LRE_inf by log-ratio model and rule, one panel each for bands centred at the model's drift and at 0."""
    table = need(tables["adaptive_models"], "no model")
    panels = split(table, "drift", CENTRES)
    legend = layout.rule_keys(looks(table["rule"]), lines=False)
    height, columns = 0.26 * table["words"].nunique() + 0.45, 1 if style.narrow else len(panels)
    return layout.facets(style, panels, plot_models, height, legend, columns=columns, sharey=True)[0]
