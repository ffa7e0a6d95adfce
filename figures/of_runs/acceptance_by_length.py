"""Share of responses kept (acceptance) by length under each rule: measured points and the Gaussian distribution's curve
(T1, T2)."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.log.partition import LENGTH, Partition
from figures import layout, marks, scales
from figures import tables as reading
from figures.of_runs.acceptance_series import floors, theory_rows
from figures.style import GREY, Style, looks, styled
from figures.tables import Frame, NothingToDraw, Tables
from fspo.stats.intervals import PERCENT

TITLE = "Band acceptance by length"
TITLE_BY = "Band acceptance (bins: {label})"
CAPTION = (
    "Share of responses whose log-ratio lies in the band (on tokens: all tokens), by {by}; a fair rule is flat. "
    "Outside, the sign of A decides which are clipped. Points: {by} "
    f"bins with clustered {PERCENT} intervals (n = {{n}} responses for each rule and panel).{{curves}} {{what}}."
    "\n\nPoints stand at the bins' means, rules side by side.{details}{noise}"
)
CURVES = " Curves: the Gaussian distribution of docs/theory.md T1 and T2 at the rule's overall acceptance."
CURVE_DETAILS = (
    " The distribution of docs/theory.md T1 and T2 has no drift error; its one parameter is set by the rule's overall "
    "acceptance. There is no curve where a rule is no band on whole sequences."
)
FLOOR = (
    f" Grey: what numerics alone leave in the band at unchanged weights, by bin; shaded: its {PERCENT} interval over "
    "all responses: {}."
)
FLOOR_LOOK: dict[str, Any] = {"color": GREY, "marker": "_", "markersize": 5, "linestyle": ":", "linewidth": 0.9}


def rows(tables: Tables) -> Frame:
    """Return the rows of table ``acceptance`` that give band acceptance, over all responses in the first epoch, by bin
    and over all bins.

    The column ``panel`` names the panel. In a panel for a target acceptance all rules meet the target on one log; a
    further panel shows the rules with which the runs were trained."""
    found = tables["acceptance"]
    found = reading.first_use(reading.prefer(found[found["measure"] == "band"], "subset", "all", "nonzero"))
    found = reading.views(reading.need(found, "no rows of band acceptance"))
    reading.drawable(found)
    kept = []
    for part in reading.split(found).values():
        if part["log"].iloc[0]:  # on one log, what happens outside a band does not change its band acceptance
            part = pd.concat([reading.plain_outside(own) for _, own in part.groupby("rule")])
        kept.append(part)
    return pd.concat(kept)


def plot_acceptance(
    data: Frame,
    ax: Axes | None = None,
    partition: Partition = LENGTH,
    theory: Frame | None = None,
    noise: Frame | None = None,
) -> Axes:
    """Draw acceptance against length for several rules: measured points with intervals side by side.

    ``data`` has a row for each run, rule and bin of ``partition``, with the columns ``run``, ``rule``, ``bin_mean``,
    ``estimate``, ``ci_low`` and ``ci_high``. ``theory`` has points of predicted curves (columns ``run``, ``rule``,
    ``bin_mean``, ``estimate``); ``noise`` the share that numerical noise leaves in the band, by run, source (``name``)
    and bin (-1: all), with the columns ``bin_mean``, ``estimate``, ``low`` and ``high``."""
    ax, known = marks.new_axes(ax), looks(data["rule"])
    if theory is not None and len(theory):
        marks.curves(theory, ax, x="bin_mean", units="run", ends=(), known=known, marks=False, zorder=2)
    step = min(0.07, 0.5 / len(known))
    marks.curves(data, ax, x="bin_mean", units="run", known=known, lines=False, step=step, partition=partition)
    for _, floor in () if noise is None else noise.groupby(["run", "name"], sort=False):
        whole, bins = floor[floor["bin"] < 0].iloc[0], floor[floor["bin"] >= 0].sort_values("bin")
        ax.axhspan(whole["low"], whole["high"], color=GREY, alpha=0.13, linewidth=0, zorder=0.8)
        ax.plot(bins["bin_mean"], bins["estimate"], zorder=1.6, **FLOOR_LOOK)
    scales.bin_axis(ax, partition, data["bin_mean"][data["estimate"].notna()])
    scales.percent_axis(ax.yaxis)
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of acceptance by length, with numbers of responses and the sources of numerical noise."""
    found = rows(tables)
    noise = floors(tables)[["run", "name"]].drop_duplicates()
    words = "; ".join(f"{run}, {source}" for run, source in noise.itertuples(index=False))
    return CAPTION.format(
        what=reading.view_words(found),
        n=reading.count_words(found.loc[found["bin"] < 0, "count"]),
        by=tables.bin_word,
        curves=CURVES if tables.by_length else "",
        details=CURVE_DETAILS if tables.by_length else "",
        noise=FLOOR.format(words) if words and (found["log"] == "").any() else "",
    )


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw acceptance by length (T1, T2): a panel for each target acceptance and one for the runs' own rules."""
    found = rows(tables)
    theory, noise = theory_rows(found, tables), floors(tables)
    bins = found[(found["bin"] >= 0) & (found["count"] > 0)]
    panels = {panel: part for panel, part in reading.split(bins).items() if part["estimate"].notna().any()}
    if not panels:
        raise NothingToDraw("no bin has a finite acceptance")

    def plot(part: Frame, ax: Axes) -> None:
        curve = theory[theory["panel"] == part["panel"].iloc[0]]
        plot_acceptance(part, ax, tables.partition, curve, noise if part["log"].iloc[0] == "" else None)

    legend = layout.rule_keys(looks(found["rule"]))
    if len(noise) and (bins["log"] == "").any():
        legend["numerics alone"] = layout.key(**FLOOR_LOOK)
    return layout.facets(style, panels, plot, 1.6, legend, left="in the band (%)")
