"""Mean log-ratio per token (drift), overall and by the sign of the advantage, beside minus the KL per token (T11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from figures.draw import few_ticks, new_axes, panel_grid, rule_rows, spread, whiskers
from figures.style import Style, looks, rule_label
from figures.tables import Frame, Tables, count_words, drawable, first_use, noise_by_run
from fspo.stats.intervals import PERCENT

TITLE = "Drift of the log-ratio by the sign of the advantage"
CAPTION = (
    "Drift of {S} per token, its mean over the mean length, by run, for all responses and for A > 0 and A < 0 "
    "(n = {n} responses each), first use, "
    f"with cluster-aware {PERCENT} intervals. Tick: minus the k3 estimate of KL(old‖new) per token, what the drift "
    "would be if it came from the KL alone (docs/theory.md sections 2 and 7; T11).{noise}"
)
FLOOR = f" Grey, dotted: the drift at unchanged weights, which numerics alone make, with its {PERCENT} interval ({{}})."
GREY = "#6a6a6a"
SIGNS = {
    "all": ("all responses", "#000000", "o"),
    "positive": ("$A > 0$", "#0072B2", "^"),
    "negative": ("$A < 0$", "#D55E00", "v"),
}


@dataclass(frozen=True)
class Drifts:
    """Mean log-ratio per token of R runs over the responses with one sign of A (or all): value, interval, the rule that
    trained, and the mean k3 per token (an estimate of KL), arrays (R,).
    """

    sign: str
    rule: tuple[str, ...]
    drift: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    k3: NDArray[np.float64]


@dataclass(frozen=True)
class DriftFloor:
    """Mean log-ratio per token, with interval, that one source of numerical noise makes in a run at unchanged
    weights.
    """

    run: str
    source: str
    rule: str
    drift: float
    low: float
    high: float


def floors(tables: Tables) -> list[DriftFloor]:
    """Return, for each run with a measured noise floor, the drift that its largest source of numerical noise makes."""
    found: list[DriftFloor] = []
    for run, whole, _ in noise_by_run(tables, "drift_per_token"):
        worst = whole.loc[whole["drift_per_token"].abs().idxmax()]
        ends = (float(worst[f"drift_per_token{end}"]) for end in ("", "_ci_low", "_ci_high"))
        found.append(DriftFloor(run, str(worst["meaning"]), str(worst["trained_rule"]), *ends))
    return found


def select(tables: Tables) -> Frame:
    """Return the rows of table scaling with drifts: over all responses, over those with A > 0, and over those with A <
    0.
    """
    tables.only_by_length("it has no bins: draw it without --by")
    rows = first_use(tables["scaling"])
    rows = rows[rows["subset"] == "all"] if (rows["subset"] == "all").any() else rows
    return drawable(rows[rows["sign"].isin(list(SIGNS))], ("drift_per_token",))


def drifts(rows: Frame, sign: str) -> Drifts:
    """Return the drifts of all runs for one sign of A, ordered by rule and run."""
    part = rows[rows["sign"] == sign].sort_values(["trained_rule", "run"])
    if "k3_per_token" not in part:
        part = part.assign(k3_per_token=np.nan)
    columns = (part[c].to_numpy(float) for c in ("drift_per_token", "drift_ci_low", "drift_ci_high", "k3_per_token"))
    return Drifts(sign, tuple(part["trained_rule"]), *columns)


def plot_drifts(
    data: Sequence[Drifts], rules: Sequence[str], ax: Axes | None = None, noise: Sequence[DriftFloor] = ()
) -> Axes:
    """Draw drifts in 1e-3 nats per token: a row for each rule that trained, in it those of all responses, of A > 0 and
    of A < 0 below each other; grey marks are minus k3 (an estimate of KL), grey strips the drift by numerical noise.
    """
    ax = new_axes(ax)
    for floor in noise:
        if floor.rule in rules:
            y = rules.index(floor.rule) + np.array([-0.42, 0.42])
            ax.fill_betweenx(y, 1e3 * floor.low, 1e3 * floor.high, color=GREY, alpha=0.25, linewidth=0, zorder=1.1)
            ax.plot(1e3 * np.full(2, floor.drift), y, color=GREY, linestyle=":", linewidth=1.0, zorder=1.3)
    for d, shift in zip(data, spread(len(data), 0.27), strict=True):
        _, color, marker = SIGNS[d.sign]
        for number, rule in enumerate(rules):
            at = np.array([r == rule for r in d.rule], bool)
            if not at.any():
                continue
            y = number + shift + spread(int(at.sum()), 0.2 / at.sum())
            style = {"color": color, "marker": marker, "markersize": 3.0}
            whiskers(ax, 1e3 * d.drift[at], y, 1e3 * d.low[at], 1e3 * d.high[at], along="x", **style)
            if d.sign == "all":
                tick: dict[str, Any] = {"marker": "|", "color": "#7f7f7f", "markersize": 9, "markeredgewidth": 1.2}
                ax.plot(-1e3 * d.k3[at], y, linestyle="none", zorder=2.2, **tick)
    ax.axvline(0.0, color="#b5b5b5", linewidth=0.8, zorder=1.2)
    rule_rows(ax, [rule_label(rule) for rule in rules])
    few_ticks(ax.xaxis, 6)
    ax.set_xlabel("drift per token ($10^{-3}$ nats)")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the drifts, with numbers of responses and the drift that numerical noise makes."""
    rows = select(tables)
    words = [f"{floor.run}, {floor.source}: {floor.drift:.1e}" for floor in floors(tables)]
    noise = FLOOR.format("; ".join(words)) if words else ""
    return CAPTION.format(n=count_words(rows["count"]) if "count" in rows else "all", noise=noise, S=tables.symbol)


def figure(tables: Tables, style: Style) -> Figure:
    """Draw the drifts in one panel, with a row for each rule that trained."""
    rows = select(tables)
    rules = list(looks(rows["trained_rule"]))
    signs = [sign for sign in SIGNS if (rows["sign"] == sign).any()]
    with style.context():
        handles = [Line2D([], [], color=SIGNS[s][1], marker=SIGNS[s][2], linestyle="none") for s in signs]
        handles.append(Line2D([], [], color="#7f7f7f", marker="|", markersize=7, markeredgewidth=1.2, linestyle="none"))
        labels = [*(SIGNS[s][0] for s in signs), "$-$KL (k3)"]
        noise = floors(tables)
        if noise:
            handles.append(Line2D([], [], color=GREY, linestyle=":", linewidth=1.0))
            labels.append("numerics alone")
        height = max(0.6, 0.3 * len(rules)) + 0.45
        fig, axes = panel_grid(style, 1, height, handles, labels, columns=1)
        plot_drifts([drifts(rows, sign) for sign in signs], rules, axes[0], noise)
    return fig
