"""How Var(S|L) grows with length: fitted exponent beside the slope 1 that the sqrt band needs (T1, section 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from figures.draw import few_ticks, length_axis, new_axes, panel_grid, rule_legend, rule_rows, spread, whiskers
from figures.style import Look, Style, looks, rule_label
from figures.tables import Frame, NothingToDraw, Tables, count_words, drawable, first_use, need, noise_by_run, prefer
from fspo.stats.intervals import PERCENT

TITLE = "Variance of the log-ratio against length"
CAPTION = (
    "Left: variance of {S} in each length bin at its mean length, first use, all responses (n = {n} for each run), "
    f"with cluster-aware {PERCENT} intervals; lines: fitted Var({{S}}|L) ∝ L^2H; grey: slope 1. Right: 2H with its "
    f"{PERCENT} interval, one mark a run; docs/theory.md T1 needs 2H = 1.{{noise}}"
)
FLOOR = " Dotted: mean square of S that numerics alone make at unchanged weights, of the source that makes most{}."
IN_SIGHT = 1e-3
"""Smallest noise floor that is drawn, as a share of the smallest measured variance; a lower one is only named in the
caption, because drawing it would flatten the figure.
"""


@dataclass(frozen=True)
class Variances:
    """One run's variance of S by length bin with intervals, arrays (K,), and the slope and intercept of the line fitted
    to its logarithm (NaN: no fit).
    """

    rule: str
    look: Look
    length: NDArray[np.float64]
    variance: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    slope: float
    intercept: float


@dataclass(frozen=True)
class NoiseLevel:
    """Mean square of S that numerical noise makes in one run at unchanged weights, by length bin, arrays (K,), for the
    source of noise that makes most.
    """

    run: str
    source: str
    length: NDArray[np.float64]
    square: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True)
class Exponents:
    """Fitted exponents 2H of Var(S|L), which grows like L^2H, in R runs: rule that trained, value and interval, arrays
    (R,).
    """

    rule: tuple[str, ...]
    slope: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def _usual(rows: Frame) -> Frame:
    return first_use(prefer(rows, "subset", "all", "nonzero"))


def rows(tables: Tables) -> Frame:
    """Return the variances of S by length bin of every run."""
    tables.only_by_length("the growth of Var(S) is about length: draw it without --by")
    found = _usual(tables["moments"])
    found = need(found[(found["bin"] >= 0) & (found["var_S"] > 0)], "no length bin with a positive variance of S")
    return drawable(found, ("var_S", "bin_mean"))


def select(tables: Tables) -> tuple[list[Variances], Exponents]:
    """Return the variances and the fitted exponents of every run."""
    points = rows(tables)
    fits: Frame
    try:
        fits = _usual(tables["scaling"])
        fits = fits[(fits["sign"] == "all") & fits["slope_2H"].notna()]
    except NothingToDraw:
        fits = pd.DataFrame(columns=["run", "trained_rule", "slope_2H", "ci_low", "ci_high", "intercept"])
    found = []
    for rule, look in looks(points["trained_rule"]).items():
        for run, part in points[points["trained_rule"] == rule].groupby("run"):
            part = part.sort_values("bin_mean")
            fit = fits[fits["run"] == run]
            slope, intercept = fit[["slope_2H", "intercept"]].iloc[0] if len(fit) else (np.nan, np.nan)
            columns = (part[c].to_numpy(float) for c in ("bin_mean", "var_S", "var_S_ci_low", "var_S_ci_high"))
            found.append(Variances(rule, look, *columns, slope=float(slope), intercept=float(intercept)))
    values = (fits[name].to_numpy(float) for name in ("slope_2H", "ci_low", "ci_high"))
    return found, Exponents(tuple(fits["trained_rule"]), *values)


def noise_of(tables: Tables) -> list[NoiseLevel]:
    """Return, for each run with a measured noise floor, the mean square of S by length bin that its strongest source of
    numerical noise makes.
    """
    found: list[NoiseLevel] = []
    column = "mean_square_per_token"
    for run, whole, by_bin in noise_by_run(tables, column):
        loudest = whole.loc[whole[column].idxmax()]
        part = by_bin[(by_bin["source"] == loudest["source"]) & (by_bin[column] > 0)]
        length = part["bin_mean"].to_numpy(float)
        squares = (length * part[name].to_numpy(float) for name in (column, f"{column}_ci_low", f"{column}_ci_high"))
        if loudest[column] > 0:
            found.append(NoiseLevel(run, str(loudest["meaning"]), length, *squares))
    return found


def in_sight(noise: NoiseLevel, data: Sequence[Variances]) -> bool:
    """Return whether a noise floor reaches IN_SIGHT of the smallest measured variance, so that it is drawn."""
    lowest = min(float(v.variance.min()) for v in data)
    return noise.square.size > 0 and float(noise.square.max()) >= IN_SIGHT * lowest


def plot_variances(
    data: Sequence[Variances], ax: Axes | None = None, noise: Sequence[NoiseLevel] = (), symbol: str = "S"
) -> Axes:
    """Draw variances of S against length, fitted lines, a reference line of slope 1 and noise floors on logarithmic
    axes.
    """
    ax = new_axes(ax)
    rules = list(dict.fromkeys(v.rule for v in data))
    shift = dict(zip(rules, 2 ** spread(len(rules), min(0.05, 0.3 / len(rules))), strict=True))
    length = np.concatenate([v.length for v in data])
    variance = np.concatenate([v.variance for v in data])
    ends = np.array([length.min() / 1.15, length.max() * 1.15])
    # The reference line of slope 1 stands a little below the lowest point.
    anchor = float(np.exp(np.log(variance / length).min() - 0.35))
    ax.plot(ends, anchor * ends, color="#9a9a9a", linewidth=1.6, zorder=1.5)
    for v in data:
        ax.plot(
            ends, np.exp(v.intercept) * ends**v.slope, color=v.look.color, linestyle=v.look.linestyle, linewidth=0.8
        )
        whiskers(ax, v.length * shift[v.rule], v.variance, v.low, v.high, color=v.look.color, marker=v.look.marker)
    for floor in noise:
        at = floor.square >= IN_SIGHT * variance.min()
        # the lower end of an interval may reach 0, which a logarithmic axis cannot show
        low = np.maximum(floor.low, IN_SIGHT * variance.min())
        columns = (x[at] for x in (floor.length, floor.square, low, floor.high))
        whiskers(ax, *columns, color="#6a6a6a", marker="_", markersize=5, linestyle=":", linewidth=0.8)
    length_axis(ax, length)
    ax.set_yscale("log")
    ax.set_xlabel("response length $L$ (tokens)")
    ax.set_ylabel(f"Var$({symbol}\\,|\\,L)$")
    return ax


def plot_exponents(data: Exponents, rules: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw fitted exponents 2H of Var(S|L): a row for each rule that trained, a mark for each run; sqrt bands need 1,
    where a line stands.
    """
    ax = new_axes(ax)
    for number, (rule, look) in enumerate(looks(rules).items()):
        at = np.array([r == rule for r in data.rule], bool)
        y = number + spread(int(at.sum()), min(0.2, 0.6 / max(at.sum(), 1)))
        style = {"color": look.color, "marker": look.marker}
        whiskers(ax, data.slope[at], y, data.low[at], data.high[at], along="x", **style)
    ax.axvline(1.0, color="#9a9a9a", linewidth=1.6, zorder=1.5)
    rule_rows(ax, [rule_label(rule) for rule in looks(rules)])
    few_ticks(ax.xaxis)
    ax.set_xlabel("fitted exponent $2H$")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the variances, with numbers of responses and the sources of numerical noise."""
    data, _ = select(tables)
    rows = _usual(tables["moments"])
    found = noise_of(tables)
    words = [
        f"{floor.run}, {floor.source}"
        + ("" if in_sight(floor, data) else f" (out of sight below: at most {floor.square.max():.0e})")
        for floor in found
        if floor.square.size
    ]
    noise = FLOOR.format(f" ({'; '.join(words)})") if words else ""
    return CAPTION.format(n=count_words(rows.loc[rows["bin"] < 0, "count"]), noise=noise, S=tables.symbol)


def figure(tables: Tables, style: Style) -> Figure:
    """Draw two panels: variances by length, and fitted exponents by rule (docs/theory.md T1)."""
    data, exponents = select(tables)
    rules = list(looks(v.rule for v in data))
    with style.context():
        handles, labels = rule_legend(looks(rules))
        handles.append(Line2D([], [], color="#9a9a9a", linewidth=1.6))
        labels.append("slope 1")
        noise = [floor for floor in noise_of(tables) if in_sight(floor, data)]
        if noise:
            handles.append(Line2D([], [], color="#6a6a6a", marker="_", markersize=5, linestyle=":", linewidth=0.8))
            labels.append("numerics alone")
        panels = 2 if len(exponents.rule) else 1
        height = 1.9 if not style.narrow else max(1.8, 0.15 * len(rules) + 0.9)
        columns = 1 if style.narrow else panels
        fig, axes = panel_grid(style, panels, height, handles, labels, columns=columns)
        plot_variances(data, axes[0], noise, tables.math)
        if panels == 2:
            plot_exponents(exponents, rules, axes[1])
    return fig
