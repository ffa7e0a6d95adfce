"""Share of responses out of the band over training, a line for each length bin, a panel for each rule (section 1)."""

from __future__ import annotations

from collections.abc import Sequence

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from figures import draw
from figures.style import Look, Style, looks, rule_label
from figures.tables import Frame, Tables, count_words, drawable, need
from fspo.stats.intervals import PERCENT

TITLE = "Out-of-band rate by length over training"
TITLE_BY = "Out-of-band rate over training (bins: {label})"
CAPTION = (
    "Share of responses whose log-ratio lies outside the band of the rule that trains (docs/theory.md section 1), by "
    "rollout and {by} bin; darker is {darker}. {runs} n = {n} responses for each point."
)
ONE = f"Shaded: cluster-aware {PERCENT} intervals of the {{lowest}} and the {{highest}} bin."
SEVERAL = "Every seed is a thin line ({seeds} seeds)."
ENDS = {True: ("shortest", "longest"), False: ("lowest", "highest")}
"""What the caption calls the first and the last bin: under True for bins of length, under False for another
quantity."""


def rows(tables: Tables) -> Frame:
    """Return the rows of table over_time (share out of the band by window of rollouts) by bin, of runs that trained
    with a rule that clips; the column ``panel`` is that rule.
    """
    found = tables["over_time"]
    found = need(found[(found["bin"] >= 0) & (found["trained_rule"] != "none")], "only unclipped runs: nothing is out")
    return drawable(found).assign(panel=found["trained_rule"])


def bin_labels(found: Frame, by_length: bool = True) -> dict[int, str]:
    """Return the name of each bin: its range, or only its number if the runs have different bins."""
    bins = found[["bin", "bin_lo", "bin_hi"]].drop_duplicates().sort_values("bin")
    if bins["bin"].is_unique:
        text = (
            (lambda lo, hi: f"{int(lo)}–{int(hi) - 1} tokens")
            if by_length
            else (lambda lo, hi: f"{lo:.3g} to {hi:.3g}")
        )
        return {int(b): text(lo, hi) for b, lo, hi in bins.itertuples(index=False)}
    last, (low, high) = int(bins["bin"].max()), ENDS[by_length]
    return {b: f"bin {b + 1}{f' ({low})' if b == 0 else f' ({high})' if b == last else ''}" for b in range(last + 1)}


def bin_looks(labels: Sequence[str]) -> dict[str, Look]:
    """Return a look for each bin, from dark (first) to light (last), so that a grey print keeps the order."""
    colors = sns.color_palette("viridis", max(len(labels), 2) + 1)
    return {label: Look(to_hex(color), "o") for label, color in zip(labels, colors, strict=False)}


def plot_rates(data: Frame, labels: dict[int, str], *, shaded: bool, ax: Axes | None = None) -> Axes:
    """Draw the share out of the band (``estimate``) against the rollout (``window``), a line for each ``run`` and
    ``bin``. ``labels``: name of each bin. With ``shaded``, shade the intervals of the first and the last bin.
    """
    known = bin_looks(list(labels.values()))
    data = data.assign(label=data["bin"].map(labels))
    ax = draw.curves(
        data, ax, x="window", hue="label", units="run", ends=(), known=known, marks=data["window"].nunique() == 1,
        linewidth=0.9 if shaded else 0.6, markersize=2.8,
    )  # fmt: skip
    for label in (labels[min(labels)], labels[max(labels)]) if shaded else ():
        for _, part in data[data["label"] == label].sort_values("window").groupby("run"):
            shade = {"color": known[label].color, "alpha": 0.16, "linewidth": 0}
            ax.fill_between(part["window"], part["ci_low"], part["ci_high"], **shade)
    ax.set_ylim(bottom=0)
    draw.percent_axis(ax.yaxis)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the share out of the band over training, with the number of runs."""
    found = rows(tables)
    seeds = found.groupby("trained_rule")["run"].nunique()
    low, high = ENDS[tables.by_length]
    return CAPTION.format(
        runs=(ONE if seeds.max() == 1 else SEVERAL).format(lowest=low, highest=high, seeds=count_words(seeds)),
        n=count_words(found["count"]),
        by=tables.bin_word,
        darker="shorter" if tables.by_length else "lower",
    )


def figure(tables: Tables, style: Style) -> Figure:
    """Draw the share out of the band over training, one small panel for each rule that trained."""
    found = rows(tables)
    rules, labels = list(looks(found["trained_rule"])), bin_labels(found, tables.by_length)
    shaded = bool(found.groupby("trained_rule")["run"].nunique().max() == 1)
    ends = found.loc[found["bin"].isin([min(labels), max(labels)]) & shaded, "ci_high"]
    top = max(float(found["estimate"].max()), float(ends.max()) if len(ends) else 0.0)
    with style.context():
        legend = {
            n: draw.key(k.color, linestyle="-", linewidth=1.6) for n, k in bin_looks(list(labels.values())).items()
        }
        fig, axes = draw.panel_grid(style, len(rules), 1.35, legend, sharey=True, sharex=True)
        for ax, rule in zip(axes, rules, strict=True):
            plot_rates(found[found["trained_rule"] == rule], labels, shaded=shaded, ax=ax).set_title(rule_label(rule))
            ax.label_outer()
        axes[0].set_ylim(0, min(1.02, 1.05 * top) if top > 0 else 1.0)
        columns = style.columns(len(rules), 3)
        columns = -(-len(rules) // -(-len(rules) // columns))
        for ax in axes[-columns:]:  # the lowest of each column, also where the last row is not full
            ax.tick_params(labelbottom=True)
            ax.set_xlabel("rollout")
            ax.xaxis.label.set_visible(True)
        draw.label_left(axes, "out of band (%)")
    return fig
