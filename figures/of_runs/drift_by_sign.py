"""Mean log-ratio per token (drift), overall and by the sign of the advantage, beside minus the KL per token (T9)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import layout, marks, scales
from figures.style import Style, looks, styled
from figures.tables import Frame, Tables, count_words, drawable, first_use
from fspo.stats.intervals import PERCENT

TITLE = "Drift of the log-ratio by the sign of the advantage"
CAPTION = (
    "Drift of {S} per token, its mean over the mean length, by run, for all responses and by the sign of A (n = "
    f"{{n}} each; cluster-aware {PERCENT} intervals). Tick: minus the k3 estimate of KL(old‖new) per token, what the "
    "drift would be if it came from the KL alone (docs/theory.md sections 2 and 7; T9)."
    "\n\nFirst epoch."
)
SIGNS = {
    "all": ("all responses", "#000000", "o"),
    "positive": ("$A > 0$", "#0072B2", "^"),
    "negative": ("$A < 0$", "#D55E00", "v"),
}


def rows(tables: Tables) -> Frame:
    """Return the rows of table ``scaling`` that hold a drift: over all responses, over those with A > 0, and over those
    with A < 0."""
    tables.only_by_length("it has no bins: draw it without --by")
    found = first_use(tables["scaling"])
    found = found[found["subset"] == "all"] if (found["subset"] == "all").any() else found
    return drawable(found[found["sign"].isin(list(SIGNS))], ("drift_per_token",))


def plot_drifts(data: Frame, rules: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw mean S per token. Each rule that trained has a row of the panel, in which the dots for all responses, for
    A > 0 and for A < 0 stand below each other. Grey ticks are minus k3 (an estimate of KL) per token.

    ``data``, in nats per token (drawn in 1e-3 nats), has the columns ``trained_rule``, ``run``, ``sign``,
    ``drift_per_token``, ``drift_ci_low``, ``drift_ci_high`` and ``k3_per_token``."""
    ax = marks.new_axes(ax)
    data = data.sort_values(["trained_rule", "run"])
    milli = {"ci_low": data["drift_ci_low"], "ci_high": data["drift_ci_high"], "drift": data["drift_per_token"]}
    data = data.assign(**{name: 1e3 * column for name, column in milli.items()})
    place = {
        "rows": rules,
        "row": "trained_rule",
        "by": "sign",
        "order": [s for s in SIGNS if (data["sign"] == s).any()],
    }
    kl = data[data["sign"] == "all"].assign(kl=-1e3 * data["k3_per_token"])
    marks.dots(
        kl, ax, x="kl", ends=(), step=0.27, marker="|", fill=False, pointsize=9, stroke=1.3, color="#7f7f7f", **place
    )
    colors, markers = ({sign: look[i] for sign, look in SIGNS.items()} for i in (1, 2))
    mapped = {"color": ("sign", colors), "marker": ("sign", markers)}
    marks.dots(data, ax, x="drift", step=0.27, mapped=mapped, **place)
    marks.reference(ax, 0.0, "x", zorder=1.2)
    scales.few_ticks(ax.xaxis, 6)
    ax.set_xlabel("drift per token ($10^{-3}$ nats)")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the figure of drifts per token, with the numbers of responses."""
    return CAPTION.format(n=count_words(rows(tables)["count"]), S=tables.symbol)


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw the measured drift of S, for all responses and by the sign of A, in one panel with a row for each rule that
    trained."""
    found = rows(tables)
    rules = list(looks(found["trained_rule"]))
    legend = {words: layout.key(c, m) for sign, (words, c, m) in SIGNS.items() if (found["sign"] == sign).any()}
    legend["$-$KL (k3)"] = layout.key("#7f7f7f", "|", markersize=7, markeredgewidth=1.2)
    fig, (ax,) = layout.panel_grid(style, 1, max(0.6, 0.3 * len(rules)) + 0.45, legend, columns=1)
    plot_drifts(found, rules, ax)
    return fig
