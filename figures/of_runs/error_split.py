"""The two parts of the clipped gradient's error (T8): e_len, because clipping changes the shares of lengths, and e_in,
because clipping changes the mean gradient of a length."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import layout, marks, scales
from figures.style import Style, styled
from figures.tables import Frame, Tables, drawable, lemma_updates, view_words, views

TITLE = "Lost alignment: across lengths and inside a length"
TITLE_BY = "Lost alignment: across bins and inside a bin (bins: {label})"
CAPTION = (
    "The two parts of docs/theory.md T8 relative to the unclipped gradient, one point {unit}: ‖e_len‖/‖g‖ ({bins} "
    "reweighted) above, ‖e_in‖/‖g‖ (clipping inside a {bin}) below; A ≠ 0. {what}."
    "\n\n{n} updates for each rule; every update is drawn, so there are no intervals. Points are spread in height "
    "to be told apart."
)
COMPONENTS = {
    "e_len": ("$\\Vert e_{len}\\Vert / \\Vert g\\Vert$", "#56B4E9", "^"),
    "e_in": ("$\\Vert e_{in}\\Vert / \\Vert g\\Vert$", "#D55E00", "o"),
}


def rows(tables: Tables) -> Frame:
    """Return the rows of table ``lemma`` that have e_len and e_in, the two parts of the clipped gradient's error.

    The column ``panel`` names the panel. In a panel for a target acceptance all rules meet the target on one run's log.
    If there is no such panel, one panel shows each run's own rule on its own log."""
    found = views(drawable(lemma_updates(tables)[0], ("e_len", "e_in")))
    shared = found[found["log"] != ""]
    return found if shared.empty else shared


def plot_split(data: Frame, rules: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw both parts of the updates' errors (columns ``rule``, ``e_len``, ``e_in``): a row for each rule, with points
    of e_len (by changed shares of lengths) above those of e_in (by clipping inside a length)."""
    long = data.melt(["rule"], list(COMPONENTS), "part", "value")
    mapped = {
        "color": ("part", {name: color for name, (_, color, _) in COMPONENTS.items()}),
        "marker": ("part", {name: marker for name, (_, _, marker) in COMPONENTS.items()}),
    }
    ax = marks.dots(
        long, ax, rows=rules, row="rule", x="value", by="part", order=list(COMPONENTS), ends=(), step=0.4,
        mapped=mapped, pointsize=2.6, alpha=0.7,
    )  # fmt: skip
    scales.from_zero([ax])
    scales.few_ticks(ax.xaxis)
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of e_len and e_in, the two parts of the clipped gradient's error (T8), and of the updates."""
    found = rows(tables)
    sizes = sorted(set(found.groupby(["panel", "outside", "rule"]).size()))
    n = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    bins, one = ("lengths", "length") if tables.by_length else (f"bins of {tables.bin_word}", "bin")
    unit = lemma_updates(tables)[1]
    return CAPTION.format(unit=unit, what=view_words(found), n=n, bins=bins, bin=one)


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw the two parts of the clipped gradients' errors, e_len and e_in (T8): a panel for each target acceptance, in
    it a row for each rule and each choice of what happens outside the band."""
    found = rows(tables)
    plain = found["outside"].isin(["drop", "mask"])
    found = found.assign(rule=found["rule"].where(plain, found["rule"] + ", " + found["outside"]))
    legend = {label: layout.key(color, marker) for label, color, marker in COMPONENTS.values()}
    panels = {title: title for title in found["panel"]}
    label = "relative to $\\Vert g\\Vert$"
    return layout.matrix(
        found.assign(panel="", view=found["panel"]), "view", panels, style, plot_split, label, legend, height=0.26
    )
