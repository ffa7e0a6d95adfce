"""How Var(S|L) grows with length: the fitted exponent 2H, beside the exponent 1 that the sqrt band needs (T1, section
7).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import draw, layout, scales
from figures.style import GREY, PALE, Style, looks, styled
from figures.tables import Frame, NothingToDraw, Tables, count_words, drawable, first_use, need, noise_by_run, prefer
from fspo.stats.intervals import PERCENT

TITLE = "Variance of the log-ratio against length"
CAPTION = (
    "Left: variance of {S} in each length bin at its mean length (n = {n} responses for each run), with "
    f"cluster-aware {PERCENT} intervals; lines: fitted Var({{S}}|L) ∝ L^2H; grey: slope 1. Right: 2H with its "
    "interval, one mark a run; docs/theory.md T1 needs 2H = 1."
    "\n\nFirst use, all responses.{noise}"
)
FLOOR = " Dotted: mean square of S that numerics alone make at unchanged weights, of the source that makes most{}."
FLOOR_LOOK = {"color": GREY, "marker": "_", "markersize": 5, "linestyle": ":", "linewidth": 0.8}
IN_SIGHT = 1e-3
"""Smallest noise floor that is drawn, as a share of the smallest measured variance; a lower one is only named in the
caption, because drawing it would flatten the figure.
"""


def _usual(found: Frame) -> Frame:
    return first_use(prefer(found, "subset", "all", "nonzero"))


def rows(tables: Tables) -> Frame:
    """Return the variances of S by length bin of every run."""
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


def noise_of(tables: Tables) -> Frame:
    """Return, for each run with a measured noise floor, the mean square of S that the run's strongest source of
    numerical noise makes, by length bin: the estimate ``square`` and the ends ``low`` and ``high`` of its interval.
    """
    found = [pd.DataFrame(columns=["run", "meaning", "square"])]
    column = "mean_square_per_token"
    for _, whole, by_bin in noise_by_run(tables, column):
        loudest = whole.loc[whole[column].idxmax(), "source"]
        part = by_bin[(by_bin["source"] == loudest) & (by_bin[column] > 0)]
        ends = {"square": column, "low": f"{column}_ci_low", "high": f"{column}_ci_high"}
        found.append(part.assign(**{name: part["bin_mean"] * part[source] for name, source in ends.items()}))
    return pd.concat([frame for frame in found if len(frame)] or found[:1])


def plot_variances(
    data: Frame, ax: Axes | None = None, fits: Frame | None = None, noise: Frame | None = None, symbol: str = "S"
) -> Axes:
    """Draw variances of S against length, fitted lines, a reference line of slope 1 and noise floors on logarithmic
    axes.

    Parameters
    ----------
    data : DataFrame
        Columns ``run``, ``trained_rule``, ``bin_mean``, ``var_S``, ``var_S_ci_low``, ``var_S_ci_high``.
    fits : DataFrame, optional
        Columns ``run``, ``trained_rule``, ``slope_2H``, ``intercept`` of the lines.
    noise : DataFrame, optional
        Columns ``run``, ``bin_mean``, ``square``, ``low``, ``high``.
    """
    ax, known = draw.new_axes(ax), looks(data["trained_rule"])
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
    draw.curves(
        data, ax, x="bin_mean", y="var_S", hue="trained_rule", units="run", ends=("var_S_ci_low", "var_S_ci_high"),
        known=known, lines=False, step=min(0.05, 0.3 / len(known)),
    )  # fmt: skip
    lowest = IN_SIGHT * variance.min()
    for _, floor in () if noise is None else noise[noise["square"] >= lowest].groupby("run"):
        # the lower end of an interval may reach 0, which a logarithmic axis cannot show
        draw.intervals(floor.assign(low=floor["low"].clip(lower=lowest)), ax, "bin_mean", ("low", "high"), GREY)
        ax.plot(floor["bin_mean"], floor["square"], zorder=2.4, **FLOOR_LOOK)
    scales.length_axis(ax, length)
    ax.set_yscale("log")
    ax.set(xlabel="response length $L$ (tokens)", ylabel=f"Var$({symbol}\\,|\\,L)$")
    return ax


def plot_exponents(data: Frame, rules: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw fitted exponents 2H of Var(S|L) (columns ``trained_rule``, ``slope_2H``, ``ci_low``, ``ci_high``): a row for
    each rule that trained, a mark for each run. A line marks 1, the exponent that sqrt bands need.
    """
    known = looks(rules)
    mapped = draw.rule_marks("trained_rule", known)
    ax = draw.dots(data, ax, rows=list(known), row="trained_rule", x="slope_2H", mapped=mapped)
    draw.reference(ax, 1.0, "x", linewidth=1.6)
    scales.few_ticks(ax.xaxis)
    ax.set_xlabel("fitted exponent $2H$")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the variances, with numbers of responses and the sources of numerical noise."""
    found, counts, words = rows(tables), _usual(tables["moments"]), []
    for (run, meaning), floor in noise_of(tables).groupby(["run", "meaning"], sort=False):
        highest = float(floor["square"].max())
        hidden = highest < IN_SIGHT * found["var_S"].min()
        words.append(f"{run}, {meaning}" + (f" (out of sight below: at most {highest:.0e})" if hidden else ""))
    noise = FLOOR.format(f" ({'; '.join(words)})") if words else ""
    return CAPTION.format(n=count_words(counts.loc[counts["bin"] < 0, "count"]), noise=noise, S=tables.symbol)


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw the variance of S by length and, in a second panel, the exponent with which it grows, fitted for each run
    and placed by rule (docs/theory.md T1).
    """
    found, fits, noise = rows(tables), exponents(tables), noise_of(tables)
    known = looks(found["trained_rule"])
    panels = 2 if len(fits) else 1
    # The panel of exponents names the rules at its axis, so the legend names them only if there is no such panel.
    legend = layout.rule_keys(known) if panels == 1 else {}
    legend["slope 1"] = layout.key(PALE, linestyle="-", linewidth=1.6)
    if len(noise) and noise["square"].max() >= IN_SIGHT * found["var_S"].min():
        legend["numerics alone"] = layout.key(**FLOOR_LOOK)
    height = 1.9 if not style.narrow else max(1.8, 0.15 * len(known) + 0.9)
    fig, axes = layout.panel_grid(style, panels, height, legend, columns=1 if style.narrow else panels)
    plot_variances(found, axes[0], fits, noise, tables.math)
    if panels == 2:
        plot_exponents(fits, list(known), axes[1])
    return fig
