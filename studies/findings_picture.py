"""Draw the picture of docs/findings.md: the fair exponent of a band by the share of the responses that it accepts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import draw as lines
from figures import layout
from figures.style import Look, Style, styled
from fspo.base.files import whole_file
from studies.findings_verdicts import JudgedTask

LOOKS = {
    "all": Look("#0072B2", "o"),
    "A != 0, both edges": Look("#009E73", "^", (6.0, 1.5)),
    "A != 0": Look("#D55E00", "s", (3.0, 1.5)),
    "predicted": Look("#0072B2", "", (1.0, 1.4)),
}
"""How each row set of the table exponent_curve is drawn."""
NAMES = {
    "all": "all responses",
    "predicted": "all, predicted by T19",
    "A != 0, both edges": "A ≠ 0, in the band",
    "A != 0": "A ≠ 0, not cut",
}
DPI = 160
ENDS = ("low", "high")


@styled
def figure(found: Sequence[JudgedTask], style: Style) -> Figure:
    """Draw the fair exponent over the accepted share, a panel for each task."""
    panels = {judged.task or "all runs": judged.tables["exponent_curve"] for judged in found}
    legend = {NAMES[name]: layout.key(k.color, k.marker or None, linestyle=k.linestyle) for name, k in LOOKS.items()}
    made, axes = layout.facets(style, panels, _plot, 1.7, legend, left="fair exponent", sharey=True)
    for ax in axes:
        ax.set_xlabel("share accepted (%)")
    return made


def _plot(curve: pd.DataFrame, ax: Axes) -> None:
    data = curve.assign(percent=100 * curve["share"])
    lines.reference(ax, 0.5)
    for name, look in LOOKS.items():
        some = data[data["responses"] == name]
        ax.fill_between(some["percent"], some["low"], some["high"], color=look.color, alpha=0.15, linewidth=0)
        lines.curves(
            some, ax, x="percent", y="value", hue="responses", ends=(), known={name: look}, marks=bool(look.marker)
        )


def draw(found: Sequence[JudgedTask], path: Path) -> None:
    """Write the picture of docs/findings.md, the fair exponent by the share accepted, as PNG to ``path``."""
    with whole_file(path) as part:
        figure(found, Style("neurips")).savefig(part, dpi=DPI, format="png")
