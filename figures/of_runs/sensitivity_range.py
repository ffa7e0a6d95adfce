"""What wider or narrower ranges would have done to the responses of one log: acceptance, LRE, cosine, squared error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from figures import draw, layout, scales
from figures.style import Style, looks, styled
from figures.tables import Frame, Tables, drawable, need, shared_log, split, with_data
from fspo.rules import CORRECTIONS, PRESETS
from fspo.stats.intervals import PERCENT

TITLE = "Effect of the clip range"
CAPTION = (
    "What each rule's range, as a multiple of its default, would have done to the log of run {run}: share in the "
    "band, its LRE_2 (docs/theory.md section 3), cosine of the clipped and the true update (section 5), and squared "
    f"error of the clipped update over that of the unclipped one (T12; below 1, clipping gains). Bars: {PERCENT} "
    "intervals.{missing}"
    "\n\nBoth edges are multiplied in log space. First use; counterfactual: the responses stay the log's. The cosine "
    "is of the same batch. Rules stand side by side; a point is missing where there is too little data."
)
QUANTITIES = {
    "band": "in the band (%)",
    "lre_band_l2": "LRE$_2$ of the band",
    "cosine": "cosine",
    "mse": "MSE, unclipped = 1",
}


def range_factor(rule: str, value: str) -> float:
    """Return the upper half-width that a rule has with another range, as a multiple of the one with its preset's range.
    ``rule`` names the preset; ``value`` is the other range as the table ``sweep`` writes it, a text "lo hi".
    """
    band = CORRECTIONS[rule] if rule in CORRECTIONS else PRESETS[rule].rule
    swept, preset = (r.half_widths(np.ones(1))[1][0] for r in (replace(band, range_hi=float(value.split()[1])), band))
    # The table ``sweep`` holds ranges rounded to few digits. So the ratio of a half-width there to the preset's is
    # rounded too.
    return float(f"{swept / preset:.2g}")


def rows(tables: Tables) -> Frame:
    """Return the rows of one log's table ``sweep`` in which the range was changed. The new column ``factor`` is the
    range as a multiple of the preset's; the new column ``panel`` is the label of the quantity (acceptance, LRE, cosine
    or squared error).
    """
    tables.only_by_length("the sweep is by length: draw it without --by")
    found = need(tables["sweep"].query("setting == 'range'"), "the sweep has no ranges")
    found = found[found["quantity"].isin(list(QUANTITIES)) & found["rule"].isin([*PRESETS, *CORRECTIONS])]
    found = shared_log(need(found, "the sweep has no range of a preset"))
    drawable(found)
    factors = [range_factor(rule, value) for rule, value in zip(found["rule"], found["value"], strict=True)]
    return found.assign(factor=factors, panel=found["quantity"].map(QUANTITIES))


def plot_sensitivity(data: Frame, ax: Axes | None = None) -> Axes:
    """Draw estimates of one quantity with their intervals (columns ``rule``, ``estimate``, ``ci_low``, ``ci_high``)
    against ``factor``, the range as a multiple of the preset's, on a base-2 axis; rules stand side by side.
    """
    step = min(0.16, 0.6 / data["rule"].nunique())
    ax = draw.curves(data, ax, x="factor", step=step, linewidth=0.8)
    factors = np.unique(data["factor"][data["estimate"].notna()])
    ax.set_xscale("log", base=2)
    ax.set_xlim(factors.min() / 1.35, factors.max() * 1.35)
    scales.fixed_ticks(ax.xaxis, factors)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: {0.25: "¼", 0.5: "½"}.get(v, f"{v:g}")))
    ax.set_xlabel("range / default")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the sweep over ranges, with the run whose log was used."""
    found = rows(tables)
    return CAPTION.format(run=found["run"].iloc[0], missing=with_data(found, ["panel"])[1])


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw the sweep over ranges, a panel each for acceptance, LRE, cosine and squared error."""
    found = with_data(rows(tables), ["panel"])[0]
    panels = split(found, "quantity", QUANTITIES)

    def plot(part: Frame, ax: Axes) -> None:
        plot_sensitivity(part, ax)
        if part["quantity"].iloc[0] == "band":
            scales.percent_axis(ax.yaxis)
        elif part["quantity"].iloc[0] != "lre_band_l2":
            draw.reference(ax, 1.0)

    columns = 2 if style.narrow else len(panels)
    return layout.facets(style, panels, plot, 1.5, known=looks(found["rule"]), x="factor", columns=columns)[0]
