"""Share of responses out of the band over training, a line for each length bin, a panel for each rule (section 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from figures.draw import label_left, new_axes, panel_grid, percent_axis
from figures.style import Style, looks, rule_label
from figures.tables import Frame, Tables, count_words, drawable, need
from fspo.stats.intervals import PERCENT

TITLE = "Out-of-band rate by length over training"
TITLE_BY = "Out-of-band rate over training (bins: {label})"
CAPTION = (
    "Share of responses whose log-ratio lies outside the band of the rule that trains (docs/theory.md section 1), by "
    "rollout and {by} bin; darker is {darker}. {runs} n = {n} responses for each point."
)
ONE = f"Shaded: cluster-aware {PERCENT} intervals of the {{lowest}} and the {{highest}} bin."
ENDS = {True: ("shortest", "longest"), False: ("lowest", "highest")}
"""What the caption calls the first and the last bin: under True for bins of length, under False for another
quantity."""
SEVERAL = "Every seed is a thin line ({seeds} seeds)."


@dataclass(frozen=True)
class ShareLine:
    """Share of one run's responses in one length bin that lie out of the band: arrays (K,) over rollouts."""

    bin: int
    rollout: NDArray[np.float64]
    estimate: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def select(tables: Tables) -> Frame:
    """Return the rows of table over_time (share out of the band by window of rollouts) by bin, of runs that trained
    with a rule that clips.
    """
    rows = tables["over_time"]
    rows = need(rows[(rows["bin"] >= 0) & (rows["trained_rule"] != "none")], "only unclipped runs: nothing is out")
    return drawable(rows)


def bin_labels(rows: Frame, by_length: bool = True) -> dict[int, str]:
    """Return the name of each bin: its range, or only its number if the runs have different bins."""
    found = rows[["bin", "bin_lo", "bin_hi"]].drop_duplicates().sort_values("bin")
    if found["bin"].is_unique:
        if by_length:
            return {int(b): f"{int(lo)}–{int(hi) - 1} tokens" for b, lo, hi in found.itertuples(index=False)}
        return {int(b): f"{lo:.3g} to {hi:.3g}" for b, lo, hi in found.itertuples(index=False)}
    last, (low, high) = int(found["bin"].max()), ENDS[by_length]
    return {b: f"bin {b + 1}{f' ({low})' if b == 0 else f' ({high})' if b == last else ''}" for b in range(last + 1)}


def bin_colors(bins: Sequence[int]) -> dict[int, tuple[float, float, float, float]]:
    """Return a colour for each bin, from dark (first) to light (last), so that a grey print keeps the order."""
    at = np.linspace(0.0, 0.82, max(len(bins), 2))
    return {b: colormaps["viridis"](float(x)) for b, x in zip(bins, at, strict=False)}


def lines(rows: Frame) -> list[ShareLine]:
    """Return the share out of the band over rollouts, one line for each run and bin among the rows of one panel."""
    found = []
    for (_, number), part in rows.sort_values("window").groupby(["run", "bin"]):
        columns = (part[name].to_numpy(float) for name in ("window", "estimate", "ci_low", "ci_high"))
        found.append(ShareLine(int(number), *columns))  # pyright: ignore[reportArgumentType]
    return found


def plot_rates(data: Sequence[ShareLine], bins: Sequence[int], *, intervals: bool, ax: Axes | None = None) -> Axes:
    """Draw the share out of the band against the rollout, a line for each run and bin. With ``intervals``, shade the
    intervals of the first and the last bin.
    """
    ax = new_axes(ax)
    colors = bin_colors(bins)
    for line in data:
        marker = "o" if len(line.rollout) == 1 else None
        width = 0.9 if intervals else 0.6
        ax.plot(line.rollout, line.estimate, color=colors[line.bin], linewidth=width, marker=marker, markersize=2.5)
        if intervals and line.bin in (bins[0], bins[-1]):
            shade = {"color": colors[line.bin], "alpha": 0.16, "linewidth": 0}
            ax.fill_between(line.rollout, line.low, line.high, **shade)
    ax.set_ylim(bottom=0)
    percent_axis(ax.yaxis)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    ax.set_xlabel("rollout")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the share out of the band over training, with the number of runs."""
    rows = select(tables)
    seeds = rows.groupby("trained_rule")["run"].nunique()
    runs = ONE if seeds.max() == 1 else SEVERAL
    low, high = ENDS[tables.by_length]
    darker = "shorter" if tables.by_length else "lower"
    return CAPTION.format(
        runs=runs.format(lowest=low, highest=high, seeds=count_words(seeds)),
        n=count_words(rows["count"]),
        by=tables.bin_word,
        darker=darker,
    )


def figure(tables: Tables, style: Style) -> Figure:
    """Draw the share out of the band over training, one small panel for each rule that trained."""
    rows = select(tables)
    rules = list(looks(rows["trained_rule"]))
    labels = bin_labels(rows, tables.by_length)
    intervals = bool(rows.groupby("trained_rule")["run"].nunique().max() == 1)
    shaded = rows["bin"].isin([min(labels), max(labels)]) & intervals
    top = max(float(rows["estimate"].max()), float(rows.loc[shaded, "ci_high"].max()) if shaded.any() else 0.0)
    with style.context():
        handles = [Line2D([], [], color=color, linewidth=1.6) for color in bin_colors(list(labels)).values()]
        fig, axes = panel_grid(
            style, len(rules), 1.35, handles[: len(labels)], list(labels.values()), sharey=True, sharex=True
        )
        for ax, rule in zip(axes, rules, strict=True):
            data = lines(rows[rows["trained_rule"] == rule])
            plot_rates(data, list(labels), intervals=intervals, ax=ax).set_title(rule_label(rule))
            ax.label_outer()
        axes[0].set_ylim(0, min(1.02, 1.05 * top) if top > 0 else 1.0)
        show_lowest_ticks(axes)
        label_left(axes, "out of band (%)")
    return fig


def show_lowest_ticks(axes: Sequence[Axes]) -> None:
    """Show rollout labels below the lowest panel of each column, also where the grid's last row is not full."""
    lowest: dict[int, Axes] = {}
    for ax in axes:
        spec = ax.get_subplotspec()
        if spec is not None:
            lowest[spec.colspan.start] = ax
    for ax in lowest.values():
        ax.tick_params(labelbottom=True)
        ax.set_xlabel("rollout")
