"""Reward and response length over training, a line for every run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from figures.draw import new_axes, panel_grid, rule_legend, whiskers
from figures.style import Look, Style, looks
from figures.tables import Frame, NothingToDraw, Tables, count_words, need
from fspo.gradlog import metric_names as metric

TITLE = "Reward and length over training"
CAPTION = (
    "Mean reward and response length of each rollout, and reward on held-out prompts where it was evaluated "
    "({stderr}). One line a run, {seeds} for each rule; no average is drawn over seeds. The theory (docs/theory.md) "
    "says nothing about these curves."
)
PANELS = {
    metric.REWARD: "reward (training)",
    metric.HELD_OUT_REWARD: "reward (held out)",
    metric.MEAN_LENGTH: "mean length (tokens)",
}


@dataclass(frozen=True)
class MetricCurve:
    """One run's values of one logged metric by rollout, arrays (K,); the standard error is NaN where none was
    logged.
    """

    rule: str
    look: Look
    rollout: NDArray[np.float64]
    value: NDArray[np.float64]
    stderr: NDArray[np.float64]


def select(tables: Tables) -> Frame:
    """Return the rows of table training for reward, held-out reward with its standard errors, and response length."""
    tables.only_by_length("it has no bins: draw it without --by")
    if tables.on != "update":
        raise NothingToDraw("it is about no log-ratio: draw it without --on")
    rows = tables["training"]
    rows = rows[rows["name"].isin([*PANELS, metric.HELD_OUT_STDERR]) & rows["value"].notna()]
    need(rows[rows["name"].isin(list(PANELS))], "metrics.jsonl has neither reward nor length")
    return rows


def curves(rows: Frame, name: str) -> list[MetricCurve]:
    """Return the values by rollout of the metric ``name``, one `MetricCurve` for each run."""
    found = []
    errors = rows[rows["name"] == name + metric.STDERR]
    rows = rows[rows["name"] == name]
    for rule, look in looks(rows["trained_rule"]).items():
        for run, part in rows[rows["trained_rule"] == rule].groupby("run"):
            part = part.drop_duplicates("rollout", keep="last").sort_values("rollout")
            own = errors[errors["run"] == run].drop_duplicates("rollout", keep="last").set_index("rollout")["value"]
            stderr = part["rollout"].map(own).to_numpy(float)
            found.append(
                MetricCurve(rule, look, part["rollout"].to_numpy(float), part["value"].to_numpy(float), stderr)
            )
    return found


def plot_curves(data: Sequence[MetricCurve], ax: Axes | None = None) -> Axes:
    """Draw a metric against the rollout: a thin line for each run, with bars of one standard error where logged."""
    ax = new_axes(ax)
    for curve in data:
        known = np.isfinite(curve.stderr)
        look = {"color": curve.look.color, "linestyle": curve.look.linestyle, "linewidth": 0.8, "alpha": 0.9}
        if known.any() or len(curve.rollout) == 1:
            look |= {"marker": curve.look.marker, "markersize": 2.4, "interval_width": 0.6}
            whiskers(
                ax, curve.rollout, curve.value, curve.value - curve.stderr, curve.value + curve.stderr, **look
            )  # fmt: skip
        else:
            ax.plot(curve.rollout, curve.value, **look)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    ax.set_xlabel("rollout")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the training curves, with the number of seeds."""
    rows = select(tables)
    seeds = rows.groupby("trained_rule")["run"].nunique()
    bars = "bars: one standard error over prompts" if (rows["name"] == metric.HELD_OUT_STDERR).any() else "no intervals"
    words = count_words(seeds)
    return CAPTION.format(stderr=bars, seeds=f"{words} seed" if words == "1" else f"{words} seeds")


def figure(tables: Tables, style: Style) -> Figure:
    """Draw the training curves, one panel for each metric that was logged."""
    rows = select(tables)
    names = [name for name in PANELS if (rows["name"] == name).any()]
    drawn = looks(rows["trained_rule"])
    with style.context():
        fig, axes = panel_grid(style, len(names), 1.55, *rule_legend(drawn, marks=False))
        for ax, name in zip(axes, names, strict=True):
            plot_curves(curves(rows, name), ax).set_title(PANELS[name])
    return fig
