"""Share of responses kept (acceptance) by length under each rule: measured points and the Gaussian law's curve (T1,
T2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.lines import Line2D

from analysis.log.partition import LENGTH, Partition
from figures.draw import (
    beside,
    bin_axis,
    label_left,
    new_axes,
    panel_grid,
    panels_above,
    percent_axis,
    rule_legend,
    spread,
    whiskers,
)
from figures.of_runs.acceptance_series import Series, ShareFloor, floors, series
from figures.of_runs.acceptance_small import REFERENCE, SMALL_HEIGHT, SMALL_WIDTH, Small, plot_smooth, small_panels
from figures.style import Style, band_of, looks, rule_label
from figures.tables import (
    NothingToDraw,
    PanelRows,
    Tables,
    count_words,
    drawable,
    first_use,
    need,
    plain_outside,
    prefer,
    view_words,
    views,
)
from fspo.rules import COMPARED
from fspo.stats.intervals import PERCENT

TITLE = "Band acceptance by length"
TITLE_BY = "Band acceptance (bins: {label})"
CAPTION = (
    "Share of responses whose sequence log-ratio lies in the band, by {by}. {what}. "
    "Points: {by} bins at their mean (n = {n} responses for each rule and panel; rules side by side), "
    f"bars: cluster-aware {PERCENT} intervals.{{apart}}{{curves}}{{smooth}}{{noise}}"
)
CURVES = (
    " Curves: the Gaussian law of docs/theory.md T1 and T2 with no drift error, whose one parameter is set by the "
    "rule's overall acceptance; no curve where a rule is no band on whole sequences."
)
SMOOTH = (
    f" Thin, shaded ({{}}): a smooth curve fitted without bins and its {PERCENT} band, which holds at all shown places "
    "together; left out where the band is wider than half of the panel."
)
APART = " Small panels: each other rule alone, {view}; grey line: {reference} there."
OWN = " Hollow: as trained, on the log of the rule's own run{against}."
FRONT = COMPARED
"""The rules that the paper compares. If there are more than TOGETHER rules, these share the large panels, and each
other rule has a small one.
"""
TOGETHER = 5
"""Largest number of rules whose curves share a panel."""
FLOOR = (
    f" Grey: what numerics alone leave in the band at unchanged weights, by bin; shaded: its {PERCENT} interval "
    "over all responses: {}."
)
FLOOR_COLOR = "#6a6a6a"
FLOOR_LOOK: dict[str, Any] = {
    "color": FLOOR_COLOR, "marker": "_", "markersize": 5, "linestyle": ":", "linewidth": 0.9, "zorder": 1.6,
}  # fmt: skip


def select(tables: Tables) -> list[PanelRows]:
    """Return the table rows that give band acceptance, over all responses at first use, by bin and over all bins,
    grouped by large panel: one for each target acceptance, one for the runs' own rules.
    """
    rows = tables["acceptance"]
    rows = first_use(prefer(rows[rows["measure"] == "band"], "subset", "all", "nonzero"))
    found = views(need(rows, "no rows of band acceptance"))
    drawable(pd.concat([view.rows for view in found]))
    kept = []
    for view in found:
        part = view.rows
        if view.run:  # on one log, rules that differ only outside the band have the same band acceptance: keep one
            part = pd.concat([plain_outside(p) for _, p in part.groupby("rule")])
            part = part[[band_of(rule) == rule or band_of(rule) not in set(part["rule"]) for rule in part["rule"]]]
        kept.append(replace(view, rows=part))
    return kept


def plot_acceptance(
    data: Sequence[Series],
    ax: Axes | None = None,
    partition: Partition = LENGTH,
    noise: Sequence[ShareFloor] = (),
    smooth: Sequence[Series] | None = None,
) -> Axes:
    """Draw acceptance against length for several rules: theory's curves, measured points side by side, smooth curves
    with confidence bands, and in grey the share that stays in the rule's band under numerical noise alone.
    """
    ax = new_axes(ax)
    rules = list(dict.fromkeys(s.rule for s in data))
    step = min(0.07, 0.5 / len(rules))
    shift = dict(zip(rules, spread(len(rules), step), strict=True))
    place = np.concatenate([s.length[np.isfinite(s.estimate)] for s in data])
    for s in data:
        at = beside(s.length, shift[s.rule], partition, float(np.ptp(place)))
        ax.plot(s.curve_length, s.curve, color=s.look.color, linestyle=s.look.linestyle, zorder=2)
        whiskers(ax, at, s.estimate, s.low, s.high, color=s.look.color, marker=s.look.marker)
    for floor in noise:
        ax.axhspan(floor.low, floor.high, color=FLOOR_COLOR, alpha=0.13, linewidth=0, zorder=0.8)
        ax.plot(floor.length, floor.estimate, **FLOOR_LOOK)
    # The confidence band of a smooth curve is wide where there are few responses, so the y range is fixed before it is
    # drawn.
    ax.autoscale_view()
    low, high = ax.get_ylim()
    for s in smoothed(data) if smooth is None else smooth:
        plot_smooth(s, ax, high - low)
    ax.set_ylim(low, high)
    bin_axis(ax, partition, place)
    percent_axis(ax.yaxis)
    return ax


def smoothed(data: Sequence[Series]) -> list[Series]:
    """Return the data of at most three rules with smooth curves; confidence bands of more rules would hide each
    other."""
    having = [s for s in data if len(s.smooth)]
    rules = sorted({s.rule for s in having}, key=lambda r: (FRONT.index(r) if r in FRONT else len(FRONT), r))
    return [s for s in having if s.rule in rules[: len(FRONT)]]


def layout(panels: Sequence[tuple[PanelRows, list[Series]]]) -> tuple[list[str], list[Small], str]:
    """Return the rules of the large panels, the small panels, and the title of the small ones. If there are too many
    rules for one panel, those that the paper compares share the large panels and each other rule has a small one, else
    there are no small ones.
    """
    rules = list(looks(s.rule for _, data in panels for s in data))
    if len(rules) <= TOGETHER:
        return rules, [], ""
    own = list(dict.fromkeys(s.rule for view, data in panels if not view.run for s in data))
    front = [rule for rule in rules if rule in FRONT or own == [rule]] or rules[: len(FRONT)]
    shared = next(((view, data) for view, data in reversed(panels) if view.run), None)
    trained = [s for view, data in panels if not view.run for s in data]
    base = [] if shared is None else shared[1]
    reference, small = _reference(front), []
    for rule in (rule for rule in rules if rule not in front):
        ours, theirs = ([s for s in data if s.rule == rule] for data in (base, trained))
        small.append(
            Small(
                rule,
                ours,
                theirs,
                [s for s in (base if ours else trained) if s.rule == reference],
                bool(base and not ours),
            )
        )
    return front, small, shared[0].title if shared else panels[-1][0].title


def caption(tables: Tables) -> str:
    """Return the caption of acceptance by length, with numbers of responses and the sources of numerical noise."""
    found = select(tables)
    panels = _panels(found, tables)
    front, small, title = layout(panels)
    large = [s for _, data in panels for s in (_kept(data, front) if small else smoothed(data)) if len(s.smooth)]
    shaded = looks(s.rule for s in (*large, *(s for p in small for s in p.shared or p.trained if len(s.smooth))))
    counts = pd.concat([view.rows.loc[view.rows["bin"] < 0, "count"] for view in found])
    noise = [f"{floor.run}, {floor.source}" for floor in floors(tables)]
    named = ", ".join(map(rule_label, shaded))
    return CAPTION.format(
        what=view_words(found),
        n=count_words(counts),
        by=tables.bin_word,
        apart=_apart(small, title, front),
        curves=CURVES if tables.by_length else "",
        smooth=SMOOTH.format(named) if shaded else "",
        noise=FLOOR.format("; ".join(noise)) if noise and not found[-1].run else "",
    )


def _apart(small: Sequence[Small], title: str, front: Sequence[str]) -> str:
    if not small:
        return ""
    reference = rule_label(_reference(front))
    alone = [rule_label(p.rule) for p in small if p.trained and not p.shared]
    text = APART.format(view=title, reference=reference)
    if any(p.shared for p in small) and any(p.trained for p in small):
        text += OWN.format(against=f", as is {reference} beside {', '.join(alone)}" if alone else "")
    return text


def _reference(front: Sequence[str]) -> str:
    """Return the reference rule, which every small panel shows in grey beside the panel's own rule."""
    return FRONT[-1] if FRONT[-1] in front else front[-1]


def _kept(data: Sequence[Series], front: Sequence[str]) -> list[Series]:
    """Return the data of the reference rule. With small panels, only this rule is smoothed in the large ones."""
    return [s for s in data if s.rule == _reference(front)]


def _panels(found: Sequence[PanelRows], tables: Tables) -> list[tuple[PanelRows, list[Series]]]:
    return [(view, data) for view in found if (data := series(view.rows, tables))]


def figure(tables: Tables, style: Style) -> Figure:
    """Draw acceptance by length (T1, T2): a large panel for each target acceptance and one for the runs' own rules, and
    small panels, one for each further rule, if there are more than TOGETHER rules.
    """
    panels = _panels(select(tables), tables)
    if not panels:
        raise NothingToDraw("no bin has a finite acceptance")
    front, small, title = layout(panels)
    large = [(view, kept) for view, data in panels if (kept := [s for s in data if s.rule in front])]
    drawn = looks(s.rule for _, data in large for s in data)
    noise = floors(tables) if any(not view.run for view, _ in large) else []
    with style.context():
        handles, labels = rule_legend(drawn)
        if noise:
            handles.append(Line2D([], [], **FLOOR_LOOK))
            labels.append("numerics alone")
        if small:
            handles.append(Line2D([], [], color=REFERENCE, linewidth=1.6))
            labels.append(f"{rule_label(_reference(front))} (small panels)")
        if any(p.trained for p in small) and any(p.shared for p in small):
            handles.append(Line2D([], [], color="#333333", marker="o", fillstyle="none", linestyle="none"))
            labels.append("as trained (small panels)")
        below: SubplotSpec | None = None
        if small:
            rows = -(-len(small) // max(2, int(style.width / SMALL_WIDTH)))
            fig, axes, below = panels_above(style, len(large), 1.6, SMALL_HEIGHT * rows + 0.2, handles, labels)
        else:
            fig, axes = panel_grid(style, len(large), 1.6, handles, labels)
        for ax, (view, data) in zip(axes, large, strict=True):
            own = () if view.run else noise
            plot_acceptance(data, ax, tables.partition, own, _kept(data, front) if small else None).set_title(
                view.title
            )
        label_left(axes, "in the band (%)")
        if below is not None:
            small_panels(fig, below, -(-len(small) // rows), small, title, tables.partition)
    return fig
