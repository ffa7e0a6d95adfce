"""Small panels of the figure of acceptance by length, one for each rule, all on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec

from analysis.log.partition import Partition
from figures.draw import axis_label, beside, bin_axis, percent_axis, whiskers
from figures.of_runs.acceptance_series import Series
from figures.style import rule_label

REFERENCE = "#b9b9b9"
SMALL_WIDTH, SMALL_HEIGHT = 1.05, 1.0
"""Width and height of a small panel in inches."""
WIDEST = 0.5
"""Part of a panel's height; where the confidence band of a smooth curve is wider than this, the curve is left out."""


def plot_smooth(s: Series, ax: Axes, height: float) -> None:
    """Draw a smooth curve of acceptance and its confidence band, except where the band is wider than the part WIDEST of
    the panel's height (``height``, in units of the y axis).
    """
    if not len(s.smooth):
        return
    at, below, above, value = s.smooth.T
    told = above - below <= WIDEST * height
    below, above, value = (np.where(told, y, np.nan) for y in (below, above, value))
    ax.fill_between(at, below, above, color=s.look.color, alpha=0.16, linewidth=0, zorder=1.2)
    ax.plot(at, value, color=s.look.color, linewidth=0.5, alpha=0.7, zorder=1.8)


@dataclass(frozen=True)
class Small:
    """What a small panel shows: one rule on the log on which all rules are compared (``shared``), the same rule on the
    log of the run that it trained (``trained``), and another rule beside it (``reference``).
    """

    rule: str
    shared: list[Series]
    trained: list[Series]
    reference: list[Series]
    named: bool
    """Whether the title says "trained": the points are of the rule's own run, while other panels show one log for all
    rules.
    """


def plot_small(small: Small, ax: Axes, partition: Partition) -> None:
    """Draw the acceptance of one rule: points with intervals and theory's curve, and in grey another rule. Points are
    hollow where they are from the log of the run that the rule trained.
    """
    place = np.concatenate([s.length for s in (*small.shared, *small.trained, *small.reference)])
    for s in small.reference:
        ax.plot(s.length, s.estimate, color=REFERENCE, linewidth=1.6, zorder=1.5)
    both, span = bool(small.shared and small.trained), float(np.ptp(place))
    for data, offset, fill in ((small.shared, -0.13, "full"), (small.trained, 0.13, "none")):
        for s in data:
            at = beside(s.length, offset if both else 0.0, partition, span)
            if fill == "full" or not both:
                ax.plot(
                    s.curve_length, s.curve, color=s.look.color, linestyle=s.look.linestyle, linewidth=0.8, zorder=2
                )
            look: dict[str, Any] = {
                "color": s.look.color,
                "marker": s.look.marker,
                "fillstyle": fill,
                "markersize": 2.8,
            }
            whiskers(ax, at, s.estimate, s.low, s.high, **look)
    bin_axis(ax, partition, place, most=3)
    ax.set_xlabel("")
    percent_axis(ax.yaxis)
    ax.set_title(rule_label(small.rule) + (", trained" if small.named else ""), pad=2.5)


def small_panels(
    fig: Figure, below: SubplotSpec, columns: int, small: Sequence[Small], title: str, partition: Partition
) -> None:
    """Draw the small panels in ``columns`` columns in the place ``below`` the large ones, with smooth curves, one y
    range and common axis labels.
    """
    grid = below.subgridspec(-(-len(small) // columns), columns)
    first: Axes | None = None
    for i, panel in enumerate(small):
        ax = fig.add_subplot(grid[i // columns, i % columns], sharey=first)
        plot_small(panel, ax, partition)
        first = first or ax
        ax.tick_params(labelleft=i % columns == 0, labelbottom=i + columns >= len(small))
        if i % columns == 0:
            ax.set_ylabel(f"{title}\nin the band (%)")
    assert first is not None
    low, high = first.get_ylim()
    for ax, panel in zip(fig.axes[-len(small) :], small, strict=True):
        for s in panel.shared or panel.trained:
            plot_smooth(s, ax, high - low)
    first.set_ylim(low, max(high, 1.0))
    fig.supxlabel(axis_label(partition), fontsize=8.0)
