"""Share of responses kept (acceptance) by length under each rule: measured points and the Gaussian law's curve (T1,
T2).
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.log.partition import LENGTH, Partition
from figures import draw, layout, scales
from figures.of_runs.acceptance_series import floors, smooth_rows, theory_rows
from figures.style import GREY, Style, band_of, looks, rule_label, styled
from figures.tables import (
    Frame,
    NothingToDraw,
    Tables,
    count_words,
    drawable,
    first_use,
    need,
    plain_outside,
    prefer,
    split,
    view_words,
    views,
)
from fspo.rules import COMPARED
from fspo.stats.intervals import PERCENT

TITLE = "Band acceptance by length"
TITLE_BY = "Band acceptance (bins: {label})"
CAPTION = (
    "Share of responses whose sequence log-ratio lies in the band, by {by}; a fair rule is flat. Points: {by} "
    f"bins with cluster-aware {PERCENT} intervals (n = {{n}} responses for each rule and panel).{{curves}} {{what}}."
    "\n\nPoints stand at the bins' means, rules side by side.{details}{smooth}{noise}"
)
CURVES = " Curves: the Gaussian law of docs/theory.md T1 and T2 at the rule's overall acceptance."
CURVE_DETAILS = (
    " The law of docs/theory.md T1 and T2 has no drift error; its one parameter is set by the rule's overall "
    "acceptance. There is no curve where a rule is no band on whole sequences."
)
SMOOTH = (
    f" Thin, shaded ({{}}): a smooth curve fitted without bins and its {PERCENT} band, which holds at all shown places "
    "together; left out where the band is wider than half of the panel."
)
FLOOR = (
    f" Grey: what numerics alone leave in the band at unchanged weights, by bin; shaded: its {PERCENT} interval over "
    "all responses: {}."
)
FLOOR_LOOK: dict[str, Any] = {"color": GREY, "marker": "_", "markersize": 5, "linestyle": ":", "linewidth": 0.9}
WIDEST = 0.5
"""Share of a panel's height. A smooth curve is left out where its confidence band is wider than this share."""


def rows(tables: Tables) -> Frame:
    """Return the table rows that give band acceptance, over all responses at first use, by bin and over all bins.

    The column ``panel`` names the panel. In a panel for a target acceptance all rules meet the target on one log; a
    further panel shows the rules with which the runs were trained.
    """
    found = tables["acceptance"]
    found = first_use(prefer(found[found["measure"] == "band"], "subset", "all", "nonzero"))
    found = views(need(found, "no rows of band acceptance"))
    drawable(found)
    kept = []
    for part in split(found).values():
        if part["log"].iloc[0]:  # on one log, rules with the same band have the same band acceptance: keep one of them
            part = pd.concat([plain_outside(own) for _, own in part.groupby("rule")])
            part = part[[band_of(rule) == rule or band_of(rule) not in set(part["rule"]) for rule in part["rule"]]]
        kept.append(part)
    return pd.concat(kept)


def plot_acceptance(
    data: Frame,
    ax: Axes | None = None,
    partition: Partition = LENGTH,
    law: Frame | None = None,
    smooth: Frame | None = None,
    noise: Frame | None = None,
) -> Axes:
    """Draw acceptance against length for several rules: measured points with intervals side by side.

    Parameters
    ----------
    data : DataFrame
        Columns ``run``, ``rule``, ``bin_mean``, ``estimate``, ``ci_low``, ``ci_high``: a row for each bin.
    law, smooth, noise : DataFrame, optional
        Theory's curves, smooth curves with confidence bands, and the share that stays in the rule's band under
        numerical noise alone, as `figures.of_runs.acceptance_series` returns them.
    """
    ax, known = draw.new_axes(ax), looks(data["rule"])
    if law is not None and len(law):
        draw.curves(law, ax, x="bin_mean", units="run", ends=(), known=known, marks=False, zorder=2)
    step = min(0.07, 0.5 / len(known))
    draw.curves(data, ax, x="bin_mean", units="run", known=known, lines=False, step=step, partition=partition)
    for _, floor in () if noise is None else noise.groupby(["run", "name"], sort=False):
        whole, bins = floor[floor["bin"] < 0].iloc[0], floor[floor["bin"] >= 0].sort_values("bin")
        ax.axhspan(whole["low"], whole["high"], color=GREY, alpha=0.13, linewidth=0, zorder=0.8)
        ax.plot(bins["bin_mean"], bins["estimate"], zorder=1.6, **FLOOR_LOOK)
    ax.autoscale_view()
    # The confidence band of a smooth curve is wide where there are few responses: it must not set the y range.
    low, high = ax.get_ylim()
    for (rule, _), part in () if smooth is None else smooth.groupby(["rule", "run"], sort=False):
        told = part["ci_high"] - part["ci_low"] <= WIDEST * (high - low)
        below, above, value = (part[name].where(told) for name in ("ci_low", "ci_high", "estimate"))
        color = known[str(rule)].color
        ax.fill_between(part["coordinate"], below, above, color=color, alpha=0.16, linewidth=0, zorder=1.2)
        ax.plot(part["coordinate"], value, color=color, linewidth=0.5, alpha=0.7, zorder=1.8)
    ax.set_ylim(low, high)
    scales.bin_axis(ax, partition, data["bin_mean"][data["estimate"].notna()])
    scales.percent_axis(ax.yaxis)
    return ax


def smoothed(found: Frame, tables: Tables) -> Frame:
    """Return the smooth curves of one rule, because the confidence bands of several rules would hide each other.

    The rule is the last of those that the paper compares (`fspo.rules.COMPARED`). If that rule has no curve, the first
    rule in the order of legends takes its place.
    """
    curves = smooth_rows(found, tables)
    rules = list(looks(curves["rule"]))
    return curves[curves["rule"] == (COMPARED[-1] if COMPARED[-1] in rules else rules[0] if rules else "")]


def caption(tables: Tables) -> str:
    """Return the caption of acceptance by length, with numbers of responses and the sources of numerical noise."""
    found = rows(tables)
    shaded = ", ".join(rule_label(rule) for rule in looks(smoothed(found, tables)["rule"]))
    noise = floors(tables)[["run", "name"]].drop_duplicates()
    words = "; ".join(f"{run}, {source}" for run, source in noise.itertuples(index=False))
    return CAPTION.format(
        what=view_words(found),
        n=count_words(found.loc[found["bin"] < 0, "count"]),
        by=tables.bin_word,
        curves=CURVES if tables.by_length else "",
        details=CURVE_DETAILS if tables.by_length else "",
        smooth=SMOOTH.format(shaded) if shaded else "",
        noise=FLOOR.format(words) if words and (found["log"] == "").any() else "",
    )


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw acceptance by length (T1, T2): a panel for each target acceptance and one for the runs' own rules."""
    found = rows(tables)
    law, smooth, noise = theory_rows(found, tables), smoothed(found, tables), floors(tables)
    bins = found[(found["bin"] >= 0) & (found["count"] > 0)]
    panels = {panel: part for panel, part in split(bins).items() if part["estimate"].notna().any()}
    if not panels:
        raise NothingToDraw("no bin has a finite acceptance")

    def plot(part: Frame, ax: Axes) -> None:
        curve, band = (frame[frame["panel"] == part["panel"].iloc[0]] for frame in (law, smooth))
        plot_acceptance(part, ax, tables.partition, curve, band, noise if part["log"].iloc[0] == "" else None)

    legend = {"numerics alone": layout.key(**FLOOR_LOOK)} if len(noise) and (bins["log"] == "").any() else {}
    known = looks(found["rule"])
    return layout.facets(style, panels, plot, 1.6, legend, known=known, x="bin_mean", left="in the band (%)")[0]
