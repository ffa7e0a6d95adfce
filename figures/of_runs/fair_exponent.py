"""The exponent of a band that clips every length alike, by clip rate and sign of the advantage (T10)."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import layout, marks, scales
from figures.of_runs.drift_by_sign import SIGNS
from figures.style import Style, looks, styled
from figures.tables import Frame, Tables, count_words, drawable, first_use
from fspo.stats.intervals import PERCENT

TITLE = "Exponent of a band that clips every length alike"
CAPTION = (
    "Exponent g of the band c L^g that clips every length alike, by run, where it clips {rates} of the responses with "
    "A ≠ 0 (n = {n}), each at the edge of its active side: of both signs together, and of each sign at its own clip "
    f"rate under that band ({PERCENT} intervals). Grey: the sqrt band's 1/2 (docs/theory.md T1, T10)."
    "\n\nFirst epoch."
)
RATES = {"95": "5 %", "85": "15 %"}
"""Maps the share kept by a band, as columns of table ``scaling`` are named for it (fair_95), to the share clipped."""
LOOKS = SIGNS | {"all": ("both signs", *SIGNS["all"][1:])}


def rows(tables: Tables) -> Frame:
    """Return for each clip rate the rows of table ``scaling`` for A != 0, with the fair exponent in the column
    ``exponent``."""
    tables.only_by_length("it has no bins: draw it without --by")
    found = first_use(tables["scaling"])
    found = found[(found["subset"] == "nonzero") & found["sign"].isin(list(LOOKS))]
    of_rate = []
    for kept, clipped in RATES.items():
        names = {f"fair_{kept}{end}": f"exponent{end}" for end in ("", "_ci_low", "_ci_high")}
        names |= {f"weight_{kept}": "weight", f"of_shares_{kept}": "of_shares"}
        chosen = found[["run", "trained_rule", "seed", "sign", "count", *names]].rename(columns=names)
        of_rate.append(chosen.assign(panel=f"{clipped} clipped"))
    return drawable(pd.concat(of_rate, ignore_index=True), ("exponent",))


def plot_fair_exponents(data: Frame, rules: list[str], ax: Axes | None = None) -> Axes:
    """Draw fair exponents: each rule that trained has a row of the panel. In it the exponents of all responses, of
    those with A > 0 and of those with A < 0 stand below each other, a mark for each run. ``data`` has the columns
    ``trained_rule``, ``run``, ``sign``, ``exponent``, ``exponent_ci_low`` and ``exponent_ci_high``."""
    colors, markers = ({sign: look[i] for sign, look in LOOKS.items()} for i in (1, 2))
    data = data.sort_values(["trained_rule", "run"]).rename(
        columns={"exponent_ci_low": "ci_low", "exponent_ci_high": "ci_high"}
    )
    ax = marks.dots(
        data, ax, rows=rules, row="trained_rule", x="exponent", by="sign", step=0.27,
        order=[sign for sign in LOOKS if (data["sign"] == sign).any()],
        mapped={"color": ("sign", colors), "marker": ("sign", markers)},
    )  # fmt: skip
    marks.reference(ax, 0.5, "x", linewidth=1.6)
    scales.few_ticks(ax.xaxis)
    ax.set_xlabel("fair exponent")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the figure of fair exponents, with the clip rates and the number of responses."""
    found = rows(tables)
    rates = " and ".join(rate.removesuffix(" clipped") for rate in found["panel"].unique())
    return CAPTION.format(rates=rates, n=count_words(found.loc[found["sign"] == "all", "count"]))


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw the fair exponents in a panel for each clip rate, in which the rules that trained stand below each other
    (T10)."""
    found = rows(tables)
    rules, panels = list(looks(found["trained_rule"])), list(found["panel"].unique())
    legend = {words: layout.key(c, m) for sign, (words, c, m) in LOOKS.items() if (found["sign"] == sign).any()}
    columns = 1 if style.narrow else len(panels)
    fig, axes = layout.panel_grid(style, len(panels), max(0.6, 0.3 * len(rules)) + 0.45, legend, columns=columns)
    for ax, panel in zip(axes, panels, strict=True):
        plot_fair_exponents(found[found["panel"] == panel], rules, ax)
        ax.set_title(panel)
    limits = [end for ax in axes for end in ax.get_xlim()]
    for ax in axes:
        ax.set_xlim(min(limits), max(limits))
    return fig
