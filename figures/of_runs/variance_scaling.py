"""How Var(S|L) grows with length: the fitted exponent 2H, beside the exponent 1 that the sqrt band needs (T1, section
7)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import layout, marks, scales
from figures.style import PALE, Style, looks, styled
from figures.tables import Frame, NothingToDraw, Tables, count_words, drawable, first_use, need, prefer
from fspo.stats.intervals import PERCENT

TITLE = "Variance of the log-ratio against length"
CAPTION = (
    "Left: variance of {S} in each length bin at its mean length (n = {n} responses for each run), with "
    f"cluster-aware {PERCENT} intervals; lines: fitted Var({{S}}|L) ∝ L^2H, all updates at one level; grey: slope 1. "
    "Right: 2H with its interval, a mark for each run; docs/theory.md T1 needs 2H = 1."
    "\n\nFirst epoch, all responses."
)


def _usual(found: Frame) -> Frame:
    return first_use(prefer(found, "subset", "all", "nonzero"))


def rows(tables: Tables) -> Frame:
    """Return the rows of table ``moments`` with the variance of S in each length bin of every run."""
    tables.only_by_length("the growth of Var(S) is about length: draw it without --by")
    found = _usual(tables["moments"])
    found = need(found[(found["bin"] >= 0) & (found["var_S"] > 0)], "no length bin with a positive variance of S")
    return drawable(found, ("var_S", "bin_mean"))


def exponents(tables: Tables) -> Frame:
    """Return the rows of the table ``scaling``: each run's fitted exponent 2H, with which Var(S|L) grows."""
    try:
        fits = _usual(tables["scaling"])
    except NothingToDraw:
        return pd.DataFrame(columns=["run", "trained_rule", "slope_2H", "ci_low", "ci_high", "intercept"])
    return fits[(fits["sign"] == "all") & fits["slope_2H"].notna()]


def plot_variances(data: Frame, ax: Axes | None = None, fits: Frame | None = None, symbol: str = "S") -> Axes:
    """Draw variances of S against length, fitted lines and a reference line of slope 1 on logarithmic axes.

    ``data`` has the columns ``run``, ``trained_rule``, ``bin_mean``, ``var_S``, ``var_S_ci_low`` and ``var_S_ci_high``;
    ``fits`` has ``run``, ``trained_rule``, ``slope_2H`` and ``intercept`` of the lines; ``symbol`` names the log-ratio.
    """
    ax, known = marks.new_axes(ax), looks(data["trained_rule"])
    length, variance = data["bin_mean"], data["var_S"]
    ends = np.array([length.min() / 1.15, length.max() * 1.15])
    # Draw a grey line of slope 1, for comparison, a little below all measured variances.
    anchor = float(np.exp(np.log(variance / length).min() - 0.35))
    ax.plot(ends, anchor * ends, color=PALE, linewidth=1.6, zorder=1.5)
    for fit in () if fits is None else fits.itertuples():
        if fit.trained_rule in known:
            look = known[str(fit.trained_rule)]
            y = np.exp(fit.intercept) * ends**fit.slope_2H
            ax.plot(ends, y, color=look.color, linestyle=look.linestyle, linewidth=0.8)
    marks.curves(
        data, ax, x="bin_mean", y="var_S", hue="trained_rule", units="run", ends=("var_S_ci_low", "var_S_ci_high"),
        known=known, lines=False, step=min(0.05, 0.3 / len(known)),
    )  # fmt: skip
    scales.length_axis(ax, length)
    ax.set_yscale("log")
    ax.set(xlabel="response length $L$ (tokens)", ylabel=f"Var$({symbol}\\,|\\,L)$")
    return ax


def plot_exponents(data: Frame, rules: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw fitted exponents 2H of Var(S|L) (columns ``trained_rule``, ``slope_2H``, ``ci_low``, ``ci_high``): a row for
    each rule that trained, a mark for each run. A line marks 1, the exponent that sqrt bands need."""
    known = looks(rules)
    mapped = marks.rule_marks("trained_rule", known)
    ax = marks.dots(data, ax, rows=list(known), row="trained_rule", x="slope_2H", mapped=mapped)
    marks.reference(ax, 1.0, "x", linewidth=1.6)
    scales.few_ticks(ax.xaxis)
    ax.set_xlabel("fitted exponent $2H$")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the figure of Var(S | L), with the number of responses of each run."""
    counts = _usual(tables["moments"])
    return CAPTION.format(n=count_words(counts.loc[counts["bin"] < 0, "count"]), S=tables.symbol)


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw the variance of S by length and, in a second panel, the exponent with which it grows, fitted for each run
    and placed by rule (docs/theory.md T1)."""
    found, fits = rows(tables), exponents(tables)
    known = looks(found["trained_rule"])
    panels = 2 if len(fits) else 1
    # The panel of exponents names the rules at its axis, so the legend names them only if there is no such panel.
    legend = layout.rule_keys(known) if panels == 1 else {}
    legend["slope 1"] = layout.key(PALE, linestyle="-", linewidth=1.6)
    height = 1.9 if not style.narrow else max(1.8, 0.15 * len(known) + 0.9)
    fig, axes = layout.panel_grid(style, panels, height, legend, columns=1 if style.narrow else panels)
    plot_variances(found, axes[0], fits, tables.math)
    if panels == 2:
        plot_exponents(fits, list(known), axes[1])
    return fig
