"""What training with one setting changed gave: range, dual clip, outside, aggregation, group size, minibatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import draw
from figures.style import Style, looks, styled
from figures.tables import TOO_LITTLE, Frame, Tables, count_words, drawable
from fspo.stats.intervals import PERCENT

TITLE = "Effect of the settings in training"
CAPTION = (
    "Runs trained with one setting changed at a time; “base” and the dashed lines: the rule's own runs. Held-out "
    "reward; share in the band, its change for each doubling of length, its LRE_2 (docs/theory.md section 3); cosine "
    f"of the clipped and the true update (section 5). Bars: {PERCENT} intervals. Seeds of each row: "
    "{seeds}.{missing}"
    "\n\n“half”, “double”: of the calibrated range (in log space), of the responses a prompt at equal responses a "
    "rollout, of the updates a pass over them. Reward: last fifth of the evaluations. Band: first use; its trend is "
    "in percentage points. The cosine is of the same batch and of the clipping alone, without the aggregation. "
    "Intervals are over seeds where there are at least two, else within the run."
)
QUANTITIES = {
    "reward": "held-out reward",
    "acceptance": "in the band (%)",
    "trend": "trend (points)",
    "lre_2": "LRE$_2$ of the band",
    "cosine": "cosine",
}


def rows(tables: Tables) -> Frame:
    """Return the table of the trained sweep, one row for each changed setting, its value and rule, with the label of
    its row of the figure in a new column ``label``.
    """
    found = tables["trained_sweep"]
    drawable(found, ("reward",))
    label = found["setting"].astype(str) + ": " + found["value"].astype(str)
    return found.assign(label=label.where(found["setting"] != "base", "base"))


def plot_variants(data: Frame, labels: Sequence[str], quantity: str, ax: Axes | None = None) -> Axes:
    """Draw a quantity after training (columns ``rule``, ``label`` and the quantity with its ``_ci_low`` and
    ``_ci_high``): a row for each of ``labels``, with the rules below each other.
    """
    known = looks(data["rule"])
    mapped = draw.rule_marks("rule", known)
    ends = (f"{quantity}_ci_low", f"{quantity}_ci_high")
    place: dict[str, Any] = {"rows": labels, "row": "label", "by": "rule", "order": list(known), "missing": TOO_LITTLE}
    ax = draw.dots(data, ax, x=quantity, ends=ends, mapped=mapped, **place)
    for rule, value in data[data["label"] == "base"].set_index("rule")[quantity].dropna().items():
        color = known[str(rule)].color
        draw.reference(ax, value, "x", color=color, linewidth=0.6, linestyle="--", alpha=0.6, zorder=1.0)
    draw.few_ticks(ax.xaxis, 3)
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the trained sweep, with the number of seeds."""
    table = rows(tables)
    gone = table[list(QUANTITIES)].isna().to_numpy().any()
    missing = " Points that are missing: too little data, or not trained (the table says why)." if gone else ""
    return CAPTION.format(seeds=count_words(table["seeds"]), missing=missing)


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw the trained sweep: a column for each measured quantity, a row for each value of each changed setting."""
    table = rows(tables)
    labels, shown = list(dict.fromkeys(table["label"])), [q for q in QUANTITIES if table[q].notna().any()]
    known = looks(table["rule"])
    height, columns = (0.1 + 0.08 * len(known)) * len(labels) + 0.45, 2 if style.narrow else len(shown)
    legend = draw.rule_keys(known, lines=False)
    fig, axes = draw.panel_grid(style, len(shown), height, legend, columns=columns, sharey=True)
    for ax, quantity in zip(axes, shown, strict=True):
        plot_variants(table, labels, quantity, ax).set_xlabel(QUANTITIES[quantity])
        if quantity in ("acceptance", "trend"):
            draw.percent_axis(ax.xaxis)
    return fig
