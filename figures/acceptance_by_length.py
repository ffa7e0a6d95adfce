"""Acceptance by length under the rules: the Gaussian law's curve and the measured points (T1, T2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from analysis.partition import LENGTH, Partition
from figures.draw import beside, bin_axis, label_left, new_axes, panel_grid, percent_axis, spread, whiskers
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
    "Share of responses whose sequence log-ratio lies in the band, by {by}. {what}. "
    "Points: {by} bins at their mean (n = {n} responses for each rule and panel; rules side by side), "
    "bars: cluster-aware 95 % intervals.{curves}{smooth}{noise}"
)
CURVES = (
    " Curves: the Gaussian law of docs/theory.md T1 and T2 with no drift error, whose one parameter is set by the "
    "rule's overall acceptance; no curve where a rule is no band on whole sequences."
)
SMOOTH = (
    " Thin, shaded ({}): a smooth curve fitted without bins and its 95 % band, which holds at all shown places "
    "together; left out where the band is wider than half of the panel."
)
SMOOTHED = ("rloo", "gspo", "fspo")
"""Rules whose smooth bands are drawn before those of others."""
FLOOR = (
    " Grey: what numerics alone leave in the band at unchanged weights, by bin; shaded: its 95 % interval over all "
    "responses: {}."
)
WIDEST = 0.5
"""Of a panel's height: a smooth curve with a wider band says nothing about its course."""
FLOOR_COLOR = "#6a6a6a"
FLOOR_LOOK: dict[str, Any] = {
    "color": FLOOR_COLOR, "marker": "_", "markersize": 5, "linestyle": ":", "linewidth": 0.9, "zorder": 1.6,
}  # fmt: skip


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
    smooth: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 4)))
    """Place, lower and upper end of its band, and value of the smooth curve, (P, 4)."""


@dataclass(frozen=True)
class Floor:
    """What one source of numerical noise leaves in a run's band: by bin, arrays (K,), and its interval over all."""

    run: str
    source: str
    length: NDArray[np.float64]
    estimate: NDArray[np.float64]
    low: float
    high: float


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


_CASE = ("run", "rule", "outside", "source", "target", "subset", "use", "measure")


def smooth_band(tables: Tables, case: Frame) -> NDArray[np.float64]:
    """Place, band and value of the smooth curve of a case (a row of acceptance), (P, 4); empty without one."""
    rows = tables.frames.get("smooth")
    if rows is None:
        return np.empty((0, 4))
    for name in _CASE:
        rows = rows[(rows[name] == case[name]) | (rows[name].isna() & pd.isna(case[name]))]
    rows = rows[rows["estimate"].notna()]
    return rows.sort_values("length")[["length", "ci_low", "ci_high", "estimate"]].to_numpy(float)


def floors(tables: Tables) -> list[Floor]:
    """The noise floor of each run that has one; sources that never put a response out stand together as one."""
    rows = tables.frames.get("noise_floor")
    if rows is None:
        return []
    found = []
    for run, own in rows[rows["out_of_band"].notna()].groupby("run"):
        quiet = own.groupby("source")["out_of_band"].transform("max") == 0
        own = own.assign(name=own["source"].where(~quiet, "every source" if quiet.all() else "other sources"))
        for name, part in own.drop_duplicates(["name", "bin"]).groupby("name", sort=False):
            whole, part = part[part["bin"] < 0], part[part["bin"] >= 0].sort_values("bin")
            if len(whole):
                low, high = (1 - float(whole[f"out_of_band_ci_{end}"].iloc[0]) for end in ("high", "low"))
                at, share = part["length_mean"].to_numpy(float), part["out_of_band"].to_numpy(float)
                found.append(Floor(str(run), str(name), at, 1 - share, low, high))
    return found


def series(rows: Frame, tables: Tables) -> list[Series]:
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
            if len(whole) == 1 and tables.by_length:
                seen = length[by_bin["estimate"].notna()]
                at = np.geomspace(seen.min() / 1.15, seen.max() * 1.15, 97)
                shares = by_bin["count"].to_numpy(float) / by_bin["count"].sum()
                curve = theory_curve(rule, length, shares, float(whole["estimate"].iloc[0]), at)
            columns = (by_bin[name].to_numpy(float) for name in ("estimate", "ci_low", "ci_high"))
            band = smooth_band(tables, by_bin.iloc[0])
            found.append(Series(rule, look, length, *columns, curve_length=at[: curve.size], curve=curve, smooth=band))
    return found


def plot_acceptance(
    data: Sequence[Series], ax: Axes | None = None, partition: Partition = LENGTH, noise: Sequence[Floor] = ()
) -> Axes:
    """Curves, bands and points of one panel; points of different rules side by side at a bin's mean; noise in grey."""
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
    # a band is wide wherever there are few lengths: it must not set the scale
    ax.autoscale_view()
    low, high = ax.get_ylim()
    for s in smoothed(data):
        at, below, above, value = s.smooth.T
        told = above - below <= WIDEST * (high - low)
        below, above, value = (np.where(told, y, np.nan) for y in (below, above, value))
        ax.fill_between(at, below, above, color=s.look.color, alpha=0.16, linewidth=0, zorder=1.2)
        ax.plot(at, value, color=s.look.color, linewidth=0.5, alpha=0.7, zorder=1.8)
    ax.set_ylim(low, high)
    bin_axis(ax, partition, place)
    percent_axis(ax.yaxis)
    return ax


def smoothed(data: Sequence[Series]) -> list[Series]:
    """The series whose smooth bands are drawn: those of the first three rules, for more hide each other."""
    having = [s for s in data if len(s.smooth)]
    rules = sorted({s.rule for s in having}, key=lambda r: (SMOOTHED.index(r) if r in SMOOTHED else len(SMOOTHED), r))
    return [s for s in having if s.rule in rules[: len(SMOOTHED)]]


def caption(tables: Tables) -> str:
    """The caption with its numbers."""
    found = select(tables)
    shaded = looks(s.rule for view in found for s in smoothed(series(view.rows, tables)))
    counts = pd.concat([view.rows.loc[view.rows["bin"] < 0, "count"] for view in found])
    noise = [f"{floor.run}, {floor.source}" for floor in floors(tables)]
    return CAPTION.format(
        what=view_words(found),
        n=count_words(counts),
        by=tables.bin_word,
        curves=CURVES if tables.by_length else "",
        smooth=SMOOTH.format(", ".join(map(rule_label, shaded))) if shaded else "",
        noise=FLOOR.format("; ".join(noise)) if noise and not found[-1].run else "",
    )


def figure(tables: Tables, style: Style) -> Figure:
    """One panel for each way to compare the rules (docs/theory.md T1, T2)."""
    found = select(tables)
    panels = [(view, data) for view in found if (data := series(view.rows, tables))]
    if not panels:
        raise NothingToDraw("no bin has a finite acceptance")
    drawn = looks(s.rule for _, data in panels for s in data)
    noise = floors(tables) if any(not view.run for view, _ in panels) else []
    with style.context():
        handles = [Line2D([], [], color=k.color, marker=k.marker, linestyle=k.linestyle) for k in drawn.values()]
        labels = [rule_label(rule) for rule in drawn]
        if noise:
            handles.append(Line2D([], [], **FLOOR_LOOK))
            labels.append("numerics alone")
        fig, axes = panel_grid(style, len(panels), 1.6, handles, labels)
        for ax, (view, data) in zip(axes, panels, strict=True):
            plot_acceptance(data, ax, tables.partition, () if view.run else noise).set_title(view.title)
        label_left(axes, "in the band (%)")
    return fig
