"""The error of the clipped update split by cause (T8): shares of lengths that changed (e_len), and clipping inside a
length (e_in).
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import draw
from figures.style import OUTSIDE_MARKERS, Style, looks
from figures.tables import AS_TRAINED, Frame, Tables, drawable, lemma_updates, split, view_words, views

TITLE = "Lost alignment: across lengths and inside a length"
TITLE_BY = "Lost alignment: across bins and inside a bin (bins: {label})"
CAPTION = (
    "The two parts of docs/theory.md T8 relative to the true update, one point {unit}: ‖e_len‖/‖g‖ ({bins} reweighted) "
    "above, ‖e_in‖/‖g‖ (clipping inside a {bin}) below; A ≠ 0. {what}."
    "\n\n{n} updates for each rule; every update is drawn, so there are no intervals. Points are spread in height to "
    "be told apart."
)
COMPONENTS = {
    "e_len": ("$\\Vert e_{len}\\Vert / \\Vert g\\Vert$", "#56B4E9", "^"),
    "e_in": ("$\\Vert e_{in}\\Vert / \\Vert g\\Vert$", "#D55E00", "o"),
}


def rows(tables: Tables) -> Frame:
    """Return the rows of table lemma with both parts of the error: a panel for each target acceptance and what rules do
    outside the band; with no such rows, one for the runs' own rules.
    """
    found = views(drawable(lemma_updates(tables)[0], ("e_len", "e_in")))
    shared = found[found["log"] != ""]
    if shared.empty:
        return found
    order = {name: i for i, name in enumerate(OUTSIDE_MARKERS)}
    first = {panel: i for i, panel in enumerate(dict.fromkeys(shared["panel"]))}
    place = shared["panel"].map(first) * len(order) + shared["outside"].map(order)
    titled = shared.assign(panel=shared["panel"] + ", " + shared["outside"], way=shared["panel"], place=place)
    return titled.sort_values("place", kind="stable").drop(columns="place")


def plot_split(data: Frame, rules: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw both parts of the updates' errors (columns ``rule``, ``e_len``, ``e_in``): a row for each rule, with points
    of e_len (by changed shares of lengths) above those of e_in (by clipping inside a length).
    """
    long = data.melt(["rule"], list(COMPONENTS), "part", "value")
    mapped = {
        "color": ("part", {name: color for name, (_, color, _) in COMPONENTS.items()}),
        "marker": ("part", {name: marker for name, (_, _, marker) in COMPONENTS.items()}),
    }
    ax = draw.dots(
        long, ax, rows=rules, row="rule", x="value", by="part", order=list(COMPONENTS), ends=(), step=0.4,
        mapped=mapped, pointsize=2.6, stroke=0, alpha=0.7,
    )  # fmt: skip
    draw.from_zero([ax])
    draw.few_ticks(ax.xaxis)
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the updates' split error, with the number of updates."""
    found = rows(tables)
    sizes = sorted(set(found.groupby(["panel", "rule"]).size()))
    n = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    bins, one = ("lengths", "length") if tables.by_length else (f"bins of {tables.bin_word}", "bin")
    unit = lemma_updates(tables)[1]
    return CAPTION.format(unit=unit, what=view_words(found), n=n, bins=bins, bin=one)


def figure(tables: Tables, style: Style) -> Figure:
    """Draw the updates' errors in two parts, by changed shares of lengths and by clipping inside a length: a row of
    panels for each target acceptance, or in a narrow figure for each of drop, truncate, cap (docs/theory.md T8).
    """
    found = rows(tables)
    if "way" not in found:
        found = found.assign(way=AS_TRAINED)
    rules, ways = list(looks(found["rule"])), list(dict.fromkeys(found["way"]))
    panels = split(found)
    columns = len(panels) // len(ways)
    if style.columns(columns) < columns:
        columns = style.columns(len(ways))
        if columns == len(ways):  # a column for each target acceptance
            panels = dict(
                sorted(panels.items(), key=lambda item: list(OUTSIDE_MARKERS).index(item[1]["outside"].iloc[0]))
            )
    with style.context():
        legend = {label: draw.key(color, marker) for label, color, marker in COMPONENTS.values()}
        height = max(0.6, 0.26 * len(rules)) + 0.4
        fig, axes = draw.panel_grid(style, len(panels), height, legend, columns=columns, sharey=True)
        for i, (ax, (panel, part)) in enumerate(zip(axes, panels.items(), strict=True)):
            plot_split(part, rules, ax).set_title(panel)
            ax.set_xlabel("relative to $\\Vert g\\Vert$" if i >= len(panels) - columns else "")
        for way in ways:  # one x range for each target acceptance
            draw.from_zero([ax for ax, part in zip(axes, panels.values(), strict=True) if part["way"].iloc[0] == way])
    return fig
