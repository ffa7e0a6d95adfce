"""The error of the clipped update split by cause (T8): shares of lengths that changed (e_len), and clipping inside a
length (e_in).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from figures.draw import few_ticks, from_zero, new_axes, panel_grid, rule_rows
from figures.style import OUTSIDE_MARKERS, Style, looks, rule_label
from figures.tables import Frame, PanelRows, Tables, drawable, lemma_updates, view_words, views

TITLE = "Lost alignment: across lengths and inside a length"
TITLE_BY = "Lost alignment: across bins and inside a bin (bins: {label})"
CAPTION = (
    "The two parts of docs/theory.md T8 relative to the true update, one point {unit}: "
    "‖e_len‖/‖g‖ ({bins} reweighted) above, ‖e_in‖/‖g‖ "
    "(clipping inside a {bin}) below; responses with A ≠ 0. {what}. {n} updates for each rule; every update "
    "is drawn, so there are no intervals. Points are spread in height to be told apart."
)
COMPONENTS = {
    "e_len": ("$\\Vert e_{len}\\Vert / \\Vert g\\Vert$", "#56B4E9", "^", -0.2),
    "e_in": ("$\\Vert e_{in}\\Vert / \\Vert g\\Vert$", "#D55E00", "o", 0.2),
}


@dataclass(frozen=True)
class Split:
    """How far one rule moves each of its K updates from the true update, as a share of the true update's norm, (K,): by
    changed shares of lengths (``e_len``) and by clipping inside a length (``e_in``).
    """

    rule: str
    e_len: NDArray[np.float64]
    e_in: NDArray[np.float64]


def select(tables: Tables) -> tuple[list[tuple[str, PanelRows]], str]:
    """Return titled groups of rows of table lemma, one for each target acceptance and what rules do outside the band,
    and words for what a row is: one update, or one window.
    """
    rows, unit = lemma_updates(tables)
    rows = drawable(rows, ("e_len", "e_in"))
    panels = []
    found = views(rows)
    for view in found:
        if not view.run:
            if len(found) == 1:
                panels.append((view.title, view))
            continue
        for outside in OUTSIDE_MARKERS:
            part = view.rows[view.rows["outside"] == outside]
            if not part.empty:
                panels.append((f"{view.title}, {outside}", PanelRows(view.title, part, view.run)))
    return panels, unit


def splits(rows: Frame) -> list[Split]:
    """Return, from rows of table lemma, both parts of the errors of each rule's updates: between and inside lengths
    (T8)."""
    found = []
    for rule in looks(rows["rule"]):
        part = rows[rows["rule"] == rule]
        found.append(Split(rule, part["e_len"].to_numpy(float), part["e_in"].to_numpy(float)))
    return found


def scatter_heights(count: int) -> NDArray[np.float64]:
    """Return ``count`` heights in (-0.12, 0.12) at which points of one row are drawn, so that they cover each other
    little (golden-ratio sequence).
    """
    golden = np.arange(1, count + 1, dtype=np.float64) * 0.6180339887498949
    return 0.24 * np.remainder(golden, 1.0) - 0.12


def plot_split(data: Sequence[Split], rules: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw both parts of the updates' errors: a row for each rule, with points of e_len (by changed shares of lengths)
    above those of e_in (by clipping inside a length)."""
    ax = new_axes(ax)
    for split in data:
        row = list(rules).index(split.rule)
        for name, (_, color, marker, shift) in COMPONENTS.items():
            values = getattr(split, name)
            ax.plot(
                values, row + shift + scatter_heights(len(values)), linestyle="none", marker=marker, color=color,
                markersize=2.2, markeredgewidth=0.0, alpha=0.7, zorder=2.5,
            )  # fmt: skip
    rule_rows(ax, [rule_label(rule) for rule in rules])
    from_zero([ax])
    few_ticks(ax.xaxis)
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the updates' split error, with the number of updates."""
    panels, unit = select(tables)
    sizes = sorted({len(split.e_in) for _, view in panels for split in splits(view.rows)})
    n = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    bins, one = ("lengths", "length") if tables.by_length else (f"bins of {tables.bin_word}", "bin")
    return CAPTION.format(unit=unit, what=view_words([view for _, view in panels]), n=n, bins=bins, bin=one)


def arrange(
    panels: list[tuple[str, PanelRows]], style: Style
) -> tuple[list[tuple[str, PanelRows]], int, list[list[int]]]:
    """Return the panels in drawing order, the number of panels in a row, and the groups of panels that get one x range:
    those of one target acceptance.
    """
    ways = list(dict.fromkeys(view.title for _, view in panels))
    by_way = [[item for item in panels if item[1].title == way] for way in ways]
    size = len(by_way[0])
    if any(len(part) != size for part in by_way):
        return panels, style.columns(len(panels)), [list(range(len(panels)))]
    if style.columns(size) == size:
        groups = [[size * i + j for j in range(size)] for i in range(len(ways))]
        return panels, size, groups
    if style.columns(len(ways)) == len(ways):
        turned = [part[j] for j in range(size) for part in by_way]
        return turned, len(ways), [[len(ways) * j + i for j in range(size)] for i in range(len(ways))]
    return panels, 1, [[size * i + j for j in range(size)] for i in range(len(ways))]


def figure(tables: Tables, style: Style) -> Figure:
    """Draw the updates' errors in two parts, by changed shares of lengths and by clipping inside a length: a panel for
    each target acceptance and each of drop, truncate, cap (docs/theory.md T8).
    """
    panels, columns, groups = arrange(select(tables)[0], style)
    rules = list(looks(rule for _, view in panels for rule in view.rows["rule"]))
    height = max(0.6, 0.26 * len(rules)) + 0.4
    with style.context():
        handles = [Line2D([], [], color=c, marker=m, linestyle="none") for _, c, m, _ in COMPONENTS.values()]
        labels = [label for label, *_ in COMPONENTS.values()]
        fig, axes = panel_grid(style, len(panels), height, handles, labels, columns=columns, sharey=True)
        for ax, (title, view) in zip(axes, panels, strict=True):
            plot_split(splits(view.rows), rules, ax).set_title(title)
        for group in groups:
            from_zero([axes[i] for i in group])
        for ax in axes[-columns:]:
            ax.set_xlabel("relative to $\\Vert g\\Vert$")
    return fig
