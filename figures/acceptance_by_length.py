"""Acceptance by length under the rules: the Gaussian law's curve and the measured points (T1, T2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from figures.draw import label_left, length_axis, new_axes, panel_grid, percent_axis, spread, whiskers
from figures.style import Look, Style, band_of, looks, rule_label
from figures.tables import (
    Frame,
    NothingToDraw,
    Tables,
    View,
    count_words,
    drawable,
    first_use,
    need,
    prefer,
    view_words,
    views,
)
from fspo.rules import PRESETS
from fspo.theory import band_acceptance, matching_sigma

NAME = "acceptance_by_length"
TITLE = "Band acceptance by length"
CAPTION = (
    "Share of responses whose sequence log-ratio lies in the band, by response length. {what}. "
    "Points: length bins at their mean length (n = {n} responses for each rule and panel; rules side by side), "
    "bars: cluster-aware 95 % intervals. Curves: the Gaussian law of docs/theory.md T1 and T2 with no drift error, "
    "whose one parameter is set by the rule's overall acceptance; no curve where a rule is no band on whole sequences."
)


@dataclass(frozen=True)
class Series:
    """One rule's measured acceptance by length bin, with its theory curve (empty if there is none)."""

    rule: str
    look: Look
    length: NDArray[np.float64]
    estimate: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    curve_length: NDArray[np.float64]
    curve: NDArray[np.float64]


def theory_curve(
    rule: str, lengths: NDArray[np.float64], shares: NDArray[np.float64], overall: float, at: NDArray[np.float64]
) -> NDArray[np.float64]:
    """T1 and T2 at ``at``: the preset's band under S ~ N(m_L, sigma^2 L), sigma such that the mean is ``overall``.

    Parameters
    ----------
    rule : str
        A preset's name; without a sequence band, or unknown, the result is empty.
    lengths, shares : arrays (K,)
        Mean length and share of responses of each bin.
    overall : float
        Acceptance over all lengths.
    at : array (M,)
        Lengths at which the curve is wanted.
    """
    band = PRESETS[rule].rule if rule in PRESETS else None
    if band is None or band.shape in ("none", "token", "prefix") or not 0 < overall < 1:
        return np.empty(0)
    centred = replace(band, drift="none")
    sigma = matching_sigma(centred, lengths, shares, overall)
    return np.empty(0) if sigma is None else band_acceptance(centred, at, 0.0, sigma)


def select(tables: Tables) -> list[View]:
    """Band acceptance over all responses at first use, one View a panel; bins and overall."""
    rows = tables["acceptance"]
    rows = first_use(prefer(rows[rows["measure"] == "band"], "subset", "all", "nonzero"))
    found = views(need(rows, "no rows of band acceptance"))
    drawable(pd.concat([view.rows for view in found]))
    kept = []
    for view in found:
        part = view.rows
        if view.run:  # counterfactual rules that differ only outside the band have one band acceptance
            part = pd.concat([prefer(p, "outside", "drop", "truncate", "cap") for _, p in part.groupby("rule")])
            part = part[[band_of(rule) == rule or band_of(rule) not in set(part["rule"]) for rule in part["rule"]]]
        kept.append(replace(view, rows=part))
    return kept


def series(rows: Frame) -> list[Series]:
    """One Series for each run and rule of one panel."""
    known = looks(rows["rule"])
    found = []
    for rule, look in known.items():
        for _, part in rows[rows["rule"] == rule].groupby("run"):
            by_bin = part[(part["bin"] >= 0) & (part["count"] > 0)].sort_values("length_mean")
            whole = part[part["bin"] < 0]
            if not by_bin["estimate"].notna().any():
                continue
            length = by_bin["length_mean"].to_numpy(float)
            at, curve = np.empty(0), np.empty(0)
            if len(whole) == 1:
                seen = length[by_bin["estimate"].notna()]
                at = np.geomspace(seen.min() / 1.15, seen.max() * 1.15, 97)
                shares = by_bin["count"].to_numpy(float) / by_bin["count"].sum()
                curve = theory_curve(rule, length, shares, float(whole["estimate"].iloc[0]), at)
            columns = (by_bin[name].to_numpy(float) for name in ("estimate", "ci_low", "ci_high"))
            found.append(Series(rule, look, length, *columns, curve_length=at[: curve.size], curve=curve))
    return found


def plot_acceptance(data: Sequence[Series], ax: Axes | None = None) -> Axes:
    """Curves and points of one panel; points of different rules are set side by side at a bin's mean length."""
    ax = new_axes(ax)
    rules = list(dict.fromkeys(s.rule for s in data))
    shift = dict(zip(rules, 2 ** spread(len(rules), min(0.07, 0.5 / len(rules))), strict=True))
    for s in data:
        ax.plot(s.curve_length, s.curve, color=s.look.color, linestyle=s.look.linestyle, zorder=2)
        whiskers(ax, s.length * shift[s.rule], s.estimate, s.low, s.high, color=s.look.color, marker=s.look.marker)
    length_axis(ax, np.concatenate([s.length[np.isfinite(s.estimate)] for s in data]))
    percent_axis(ax.yaxis)
    ax.set_xlabel("response length $L$ (tokens)")
    return ax


def caption(tables: Tables) -> str:
    """The caption with its numbers."""
    found = select(tables)
    counts = pd.concat([view.rows.loc[view.rows["bin"] < 0, "count"] for view in found])
    return CAPTION.format(what=view_words(found), n=count_words(counts))


def figure(tables: Tables, style: Style) -> Figure:
    """One panel for each way to compare the rules (docs/theory.md T1, T2)."""
    panels = [(view.title, series(view.rows)) for view in select(tables)]
    panels = [(title, data) for title, data in panels if data]
    if not panels:
        raise NothingToDraw("no length bin has a finite acceptance")
    drawn = looks(s.rule for _, data in panels for s in data)
    with style.context():
        handles = [Line2D([], [], color=k.color, marker=k.marker, linestyle=k.linestyle) for k in drawn.values()]
        fig, axes = panel_grid(style, len(panels), 1.6, handles, [rule_label(rule) for rule in drawn])
        for ax, (title, data) in zip(axes, panels, strict=True):
            plot_acceptance(data, ax).set_title(title)
        label_left(axes, "in the band (%)")
    return fig
