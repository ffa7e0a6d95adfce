"""How unequally bands that follow a target accept lengths after learning (LRE), by log-ratio model (T14, T15)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from figures.draw import few_ticks, from_zero, new_axes, panel_grid, rule_legend, rule_rows, spread, whiskers
from figures.style import Style, looks
from figures.tables import Frame, Tables, need
from fspo.stats.intervals import PERCENT

TITLE = "Bands that follow a target, by log-ratio model"
CAPTION = (
    "LRE∞ of the long-run acceptance after learning, plug-in over 12 lengths from 8 to 384 tokens; bars: simultaneous "
    f"{PERCENT} intervals over {{runs}} independent runs; 0 is fair. {{centre}}. fspo: its range calibrated once to "
    "the same mean acceptance, 0.8. A learnt exponent is fair where one law scales with a power of L "
    "(docs/theory.md T14) and "
    "leaves the bend elsewhere; fspo-conformal holds each bin of lengths at the target (T15) and is left with what "
    "changes inside a bin."
)
CENTRES = {"kl": "around the model's drift", "none": "without a centre"}


@dataclass(frozen=True)
class ModelDots:
    """One rule's LRE_inf with interval under each log-ratio model: arrays (K,)."""

    rule: str
    estimate: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def dots(rows: Frame, rule: str, models: Sequence[str]) -> ModelDots:
    """Return one rule's LRE_inf under each of the log-ratio ``models``; NaN where the table has no row."""
    own = rows[rows["rule"] == rule].set_index("words").reindex(list(models))
    arrays = (own[name].to_numpy(float) for name in ("lre_inf", "lre_inf_low", "lre_inf_high"))
    return ModelDots(rule, *arrays)


def plot_models(data: Sequence[ModelDots], models: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw LRE_inf as dots with intervals: a row for each log-ratio model, with the rules below each other."""
    ax = new_axes(ax)
    known = looks(d.rule for d in data)
    for d, shift in zip(data, spread(len(data), 0.2), strict=True):
        look = {"color": known[d.rule].color, "marker": known[d.rule].marker}
        whiskers(ax, d.estimate, np.arange(len(models)) + shift, d.low, d.high, along="x", **look)
    rule_rows(ax, list(models))
    from_zero([ax])
    few_ticks(ax.xaxis, 4)
    ax.set_xlabel("LRE$_\\infty$")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the figure of bands that follow a target, with the number of simulated runs."""
    table = need(tables["adaptive_models"], "no model")
    here = [words for drift, words in CENTRES.items() if (table["drift"] == drift).any()]
    return CAPTION.format(runs=int(table["runs"].iloc[0]), centre=f"Bands {' and '.join(here)}")


def figure(tables: Tables, style: Style) -> Figure:
    """Draw LRE_inf by log-ratio model and rule, one panel each for bands around the drift and around 0 (docs/theory.md
    T14, T15).
    """
    table = need(tables["adaptive_models"], "no model")
    models, rules = list(dict.fromkeys(table["words"])), list(dict.fromkeys(table["rule"]))
    drifts = [drift for drift in CENTRES if (table["drift"] == drift).any()]
    with style.context():
        known = looks(rules)
        handles, labels = rule_legend({rule: known[rule] for rule in rules}, lines=False)
        height = 0.26 * len(models) + 0.45
        columns = 1 if style.narrow else len(drifts)
        fig, axes = panel_grid(style, len(drifts), height, handles, labels, most=2, columns=columns, sharey=True)
        for ax, drift in zip(axes, drifts, strict=True):
            rows = table[table["drift"] == drift]
            plot_models([dots(rows, rule, models) for rule in rules], models, ax).set_title(CENTRES[drift])
    return fig
