"""Draw README's picture, the acceptance by length on common logs, and that of docs/findings.md, the fair exponent of a
band by the share of the responses that it accepts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.claims.evidence import select
from analysis.log.partition import LENGTH
from figures import draw as lines
from figures import layout, scales
from figures.style import Look, Style, looks, styled
from fspo.base.files import digest_of, whole_file
from fspo.rules import COMPARED
from studies.findings_verdicts import KEPT, JudgedTask

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


@styled
def acceptance_figure(judged: JudgedTask, style: Style) -> Figure:
    """Draw the acceptance by length of the rules that the paper compares, on the runs without a clip of a task: a panel
    for each share that the rules keep, of the responses with A != 0 and of all."""
    table = judged.tables["acceptance"]
    of_all_lengths = (table["bin_lo"] == table["bin_lo"].min()) & (table["bin_hi"] == table["bin_hi"].max())
    table = table.loc[table["rule"].isin(COMPARED) & ~of_all_lengths]
    panels = {
        kept.words.replace("!=", "≠"): select(
            table, target=kept.share / 100, measure="update" if kept.update else "band"
        ).assign(target=kept.share)
        for kept in KEPT
    }
    known = looks(table["rule"])
    legend = {rule: layout.key(look.color, look.marker, linestyle=look.linestyle) for rule, look in known.items()}
    made, axes = layout.facets(style, panels, _plot_acceptance, 1.7, legend, left="accepted (%)")
    for ax in axes:
        ax.set_xlabel("response length L (tokens)")
    return made


def _plot_acceptance(data: pd.DataFrame, ax: Axes) -> None:
    lines.reference(ax, data["target"].iloc[0] / 100)
    lines.curves(data, ax, x="bin_mean", units="run", ends=(), known=looks(data["rule"]), linewidth=0.7, markersize=3.5)
    scales.bin_axis(ax, LENGTH, data["bin_mean"])
    scales.percent_axis(ax.yaxis)


def source_of(judged: JudgedTask) -> str:
    """Return a hash of the numbers that README's picture shows, which the picture's file holds as its description."""
    return digest_of(judged.tables["acceptance"].to_csv(index=False))


def draw_acceptance(judged: JudgedTask, path: Path) -> None:
    """Write README's picture, the acceptance by length on a task, as PNG to ``path``."""
    with whole_file(path) as part:
        made = acceptance_figure(judged, Style("neurips"))
        made.savefig(part, dpi=DPI, format="png", metadata={"Description": source_of(judged)})


def draw(found: Sequence[JudgedTask], path: Path) -> None:
    """Write the picture of docs/findings.md, the fair exponent by the share accepted, as PNG to ``path``."""
    with whole_file(path) as part:
        figure(found, Style("neurips")).savefig(part, dpi=DPI, format="png")
