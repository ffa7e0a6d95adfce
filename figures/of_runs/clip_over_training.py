"""Share of responses out of the band over training (docs/theory.md section 1): a panel for each rule, and in it lines
for the first, the middle and the last length bin."""

from __future__ import annotations

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from figures import layout, marks, scales
from figures.style import Look, Style, looks, rule_label, styled
from figures.tables import Frame, Tables, count_words, drawable, need
from fspo.stats.intervals import PERCENT

TITLE = "Out-of-band rate by length over training"
TITLE_BY = "Out-of-band rate over training (bins: {label})"
CAPTION = (
    "Share of responses whose log-ratio lies outside the band of the rule that trains (docs/theory.md section 1), by "
    "rollout, in the {lowest}, the middle and the {highest} of {bins} {by} bins, all epochs. {runs} n = {n} responses "
    "for each point."
)
ONE = f"Shaded: cluster-aware {PERCENT} intervals."
SEVERAL = "Every run is a line ({seeds} a rule)."
DASHES = ((), (4.0, 1.6), (1.0, 1.6))
"""Lengths of dashes and gaps of the shown bins' lines, from the first to the last bin."""
ENDS = {True: ("shortest", "longest"), False: ("lowest", "highest")}
"""What the caption calls the first and the last bin: under True for bins of length, under False for another
quantity."""


def rows(tables: Tables) -> Frame:
    """Return the rows by bin of table ``over_time``, which has the share of responses out of the band in each rollout.
    Runs that trained without clipping are left out. The new column ``panel`` is the rule of the run."""
    found = tables["over_time"]
    found = need(found[(found["bin"] >= 0) & (found["trained_rule"] != "none")], "only unclipped runs: nothing is out")
    return drawable(found).assign(panel=found["trained_rule"])


def bin_labels(found: Frame, by_length: bool = True) -> dict[int, str]:
    """Return, by number of each bin of the rows ``found``, its name: its range, in tokens if ``by_length``; or only its
    number if the runs' bins differ."""
    bins = found[["bin", "bin_lo", "bin_hi"]].drop_duplicates().sort_values("bin")
    if bins["bin"].is_unique:
        ranges = {int(b): (lo, hi) for b, lo, hi in bins.itertuples(index=False)}
        if by_length:
            return {b: f"{int(lo)}–{int(hi) - 1} tokens" for b, (lo, hi) in ranges.items()}
        return {b: f"{lo:.3g} to {hi:.3g}" for b, (lo, hi) in ranges.items()}
    last, (low, high) = int(bins["bin"].max()), ENDS[by_length]
    return {b: f"bin {b + 1}{f' ({low})' if b == 0 else f' ({high})' if b == last else ''}" for b in range(last + 1)}


def shown(found: Frame, by_length: bool = True) -> Frame:
    """Return the rows of the first, middle and last bin, with the bin's name (`bin_labels`) in a column ``label``."""
    labels = bin_labels(found, by_length)
    bins = sorted(labels)
    return found[found["bin"].isin([bins[0], bins[len(bins) // 2], bins[-1]])].assign(label=found["bin"].map(labels))


def bin_looks(data: Frame) -> dict[str, Look]:
    """Return a look by name of each bin (column ``label``): from dark and solid to pale and dotted."""
    labels = list(dict.fromkeys(data.sort_values("bin")["label"]))
    colors = sns.color_palette("viridis", len(labels) + 1)
    looks_of = zip(labels, colors, ("o", "s", "^"), DASHES, strict=False)
    return {label: Look(to_hex(color), marker, dashes) for label, color, marker, dashes in looks_of}


def plot_rates(data: Frame, known: dict[str, Look], *, shaded: bool, ax: Axes | None = None) -> Axes:
    """Draw the share out of the band (``estimate``) against the rollout (``window``), a line for each ``run`` and bin
    (``label``), in the look that ``known`` has for the bin. With ``shaded``, shade the intervals."""
    alone = data[data["estimate"].notna()].groupby(["label", "run"])["window"].nunique().eq(1).any()
    ax = marks.curves(
        data, ax, x="window", hue="label", units="run", ends=(), known=known, marks=bool(alone),
        linewidth=1.1 if shaded else 0.7, markersize=2.8,
    )  # fmt: skip
    for (label, _), part in data.sort_values(["bin", "window"]).groupby(["label", "run"], sort=False) if shaded else ():
        shade = {"color": known[str(label)].color, "alpha": 0.16, "linewidth": 0}
        ax.fill_between(part["window"], part["ci_low"], part["ci_high"], **shade)
    ax.set_ylim(bottom=0)
    scales.percent_axis(ax.yaxis)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the share of responses out of the band over training, with the number of runs."""
    found = rows(tables)
    seeds = found.groupby("trained_rule")["run"].nunique()
    low, high = ENDS[tables.by_length]
    return CAPTION.format(
        runs=(ONE if seeds.max() == 1 else SEVERAL).format(seeds=count_words(seeds)),
        n=count_words(shown(found)["count"]),
        by=tables.bin_word,
        lowest=low,
        highest=high,
        bins=found["bin"].nunique(),
    )


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw how the share of responses out of the band changes over training, a small panel for each rule that trained,
    with a curve for each of three bins."""
    found = shown(rows(tables), tables.by_length)
    known = bin_looks(found)
    panels = {rule_label(rule): found[found["panel"] == rule] for rule in looks(found["panel"])}
    shaded = bool(found.groupby("trained_rule")["run"].nunique().max() == 1)
    top = float(found[["estimate", "ci_high"] if shaded else ["estimate"]].max().max())

    def plot(part: Frame, ax: Axes) -> None:
        plot_rates(part, known, shaded=shaded, ax=ax).set_ylim(0, min(1.02, 1.05 * top) if top > 0 else 1.0)
        ax.set_xlabel("rollout")

    return layout.facets(style, panels, plot, 1.35, layout.rule_keys(known), left="out of band (%)", sharey=True)
