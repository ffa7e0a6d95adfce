"""LRE of each rule against one departure from the Gaussian model at a time, all rules at the same mean acceptance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from figures import draw, layout, scales
from figures.style import Look, Style, looks, rule_label, styled
from figures.tables import Frame, NothingToDraw, Tables, percent
from fspo.stats.intervals import PERCENT
from proofs_check.maps.settings import RATIO, SIGMA, lengths_on

TITLE = "Fairness map, one factor at a time"
CAPTION = (
    "LRE∞ (docs/theory.md section 3) of each rule against one departure from the base case, ranges matched to "
    "{target} mean acceptance in every point; 0 is fair, as random drop is. Curves: closed forms; points: "
    "simulations, which lie above an LRE of 0 because they are plug-in values. Where a_upd is named: of the update "
    "acceptance (T11)."
    "\n\nBase case: Gaussian log-ratios with drift −σ²/2, σ = {sigma:g}, {number} lengths from {shortest:,.0f} "
    "to {longest:,.0f}, so that the drift error of an uncentred band reaches {error:.2f} at the longest. Curves "
    f"go through the points of the grid; root scale. Points with simultaneous {PERCENT} intervals. LRE∞ is of the band "
    "acceptance over all responses; a_upd under drop. All bands are symmetric. {missing}"
)
LINES = ("fixed", "power-0.25", "fspo", "power-0.75", "linear", "fspo-kl", "fspo-gaussian", "fspo-tilted")
MAIN = ("fixed", "linear", "fspo", "fspo-kl", "power-0.75")
"""Rules that the main figure shows, if it cannot show all."""
OF_PRESET = {"fixed": "rloo", "linear": "gspo", "power-0.75": "power"}
"""Preset in whose colour and marker a rule of the map is drawn. The bands of both grow with the same power of the
length.
"""


@dataclass(frozen=True)
class Factor:
    """How the axis of one departure from the Gaussian model is drawn: label, the kind of acceptance whose LRE is shown,
    scale, and ticks (empty: automatic).
    """

    label: str
    measure: str = "band"
    scale: str = "linear"
    ticks: tuple[float, ...] = ()


FACTORS = {
    "drift_error": Factor("drift error at $L_{max}$"),
    "drift_factor": Factor("estimated / true drift"),
    "exponent": Factor("exponent $H$"),
    "tail": Factor("1 / df of Student tokens"),
    "ar1": Factor("AR(1) coefficient", scale="atanh", ticks=(-0.9, 0, 0.9, 0.99)),
    "switching": Factor("persistence of states", scale="atanh", ticks=(0, 0.9, 0.99, 0.999)),
    "length_ratio": Factor("$L_{max}/L_{min}$", scale="log2", ticks=(2, 8, 32, 256)),
    "asymmetry": Factor("$c_{hi}/c_{lo}$", "update", "log2", (0.25, 1, 4)),
    "sign_share": Factor("change of $P(A>0)$", "update"),
    "sign_drift": Factor("drift by sign of $A$", "update"),
}
MEASURES = {"band": "$a$", "update": "$a_{upd}$", "weight": "$b$"}


def line_looks(rules: Iterable[str]) -> dict[str, Look]:
    """Return colour and marker of each of ``rules`` that the fairness map's figure draws, in the order of ``LINES``."""
    names = set(rules)
    return {rule: next(iter(looks([OF_PRESET.get(rule, rule)]).values())) for rule in LINES if rule in names}


def rows(tables: Tables) -> Frame:
    """Return the rows of table ``fairness_map`` with a single departure from the Gaussian model, at the highest mean
    acceptance for which all three kinds of acceptance have rows.
    """
    table = tables["fairness_map"]
    found = table[table["factor_2"].isna() & table["rule"].isin(LINES)]
    shared = [t for t, part in found.groupby("target") if set(part["measure"]) == set(found["measure"])]
    if found.empty or not shared:
        raise NothingToDraw("no rows with one factor")
    return found[found["target"] == max(shared)]


def panels(tables: Tables) -> dict[str, Frame]:
    """Return, for each departure from the Gaussian model, the rows of table ``fairness_map`` that a panel draws.

    They are the rows of those rules whose LRE under this departure is known by a formula.
    """
    table, found = rows(tables), {}
    for name, factor in FACTORS.items():
        own = table[(table["factor"] == name) & (table["measure"] == factor.measure)]
        known = own[(own["method"] == "closed") & own["lre_inf"].notna()]["rule"]
        if len(known):
            found[name] = own[own["rule"].isin(known)]
    if not found:
        raise NothingToDraw("no factor has a finite LRE")
    return found


def plot_factor(data: Frame, factor: Factor, ax: Axes | None = None) -> Axes:
    """Draw LRE_inf of each rule over the size of one departure from the Gaussian model.

    Parameters
    ----------
    data : DataFrame
        Columns ``rule``, ``method`` ("closed": drawn as lines, "simulated": as points), ``value`` (size of the
        departure), ``lre_inf`` and the ends of its interval, ``lre_inf_low`` and ``lre_inf_high``.
    factor : Factor
        The departure.
    """
    ax, known = draw.new_axes(ax), line_looks(data["rule"])
    common: dict[str, Any] = {"x": "value", "y": "lre_inf", "known": known}
    draw.curves(data[data["method"] == "closed"], ax, ends=(), marks=False, linewidth=0.9, **common)
    ends = ("lre_inf_low", "lre_inf_high")
    draw.curves(data[data["method"] == "simulated"], ax, ends=ends, lines=False, markersize=3.0, **common)
    if factor.scale == "log2":
        ax.set_xscale("log", base=2)
    elif factor.scale == "atanh":
        ax.set_xscale("function", functions=(_atanh, np.tanh))
    if factor.ticks:
        scales.fixed_ticks(ax.xaxis, factor.ticks)
    else:
        scales.few_ticks(ax.xaxis, 3)
        ax.xaxis.set_major_formatter(FuncFormatter(scales.plain))
    # a square-root axis shows differences near 0, which matter most
    ax.set_yscale("function", functions=(_root, _square))
    scales.fixed_ticks(ax.yaxis, [0, 0.05, 0.2, 0.5, 1])
    ax.set_title(title(factor))
    return ax


def title(factor: Factor) -> str:
    """Return the title of a panel of the fairness map: in what way S departs from the Gaussian model there and, unless
    the panel shows the LRE of band acceptance, the kind of acceptance."""
    return factor.label + ("" if factor.measure == "band" else f" ({MEASURES[factor.measure]})")


def _root(y: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sign(y) * np.sqrt(np.abs(y))


def _square(y: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sign(y) * np.square(y)


def _atanh(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.arctanh(np.clip(x, -0.9999, 0.9999))


def caption(tables: Tables) -> str:
    """Return the caption of the figure of the fairness map, with the mean acceptance and why a curve ends early."""
    table = rows(tables)
    panels(tables)
    lost = table[table["lre_inf"].isna() & table["note"].notna()]
    shown = [(name, factor.measure) for name, factor in FACTORS.items()]
    lost = lost[[pair in shown for pair in zip(lost["factor"], lost["measure"], strict=True)]]
    notes = sorted({f"{rule_label(r)}: {n}" for r, n in zip(lost["rule"], lost["note"], strict=True)})
    lengths = lengths_on(RATIO)
    return CAPTION.format(
        target=percent(float(table["target"].iloc[0])),
        missing=f"Where a curve ends: {'; '.join(notes)}." if notes else "",
        sigma=SIGMA,
        number=len(lengths),
        shortest=lengths[0],
        longest=lengths[-1],
        error=SIGMA * lengths[-1] ** 0.5 / 2,
    )


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw LRE of the rules, one panel for each departure from the Gaussian model."""
    found = panels(tables)
    every = pd.concat(found.values())
    columns, legend = min(len(found), 2 if style.narrow else 4), layout.rule_keys(line_looks(every["rule"]))

    def plot(part: Frame, ax: Axes) -> None:
        plot_factor(part, FACTORS[part["factor"].iloc[0]], ax)

    titles = {title(FACTORS[name]): part for name, part in found.items()}
    left = "$LRE_\\infty$"
    fig, axes = layout.facets(style, titles, plot, 1.15, legend, left=left, columns=columns, sharey=True)
    top = float(every[["lre_inf", "lre_inf_high"]].max().max())
    axes[0].set_ylim(-1e-3 * top, 1.1 * top)
    return fig
