"""How far the share of responses in a band is from the share under a Gaussian law of S, and the Berry-Esseen bound on
that distance (T5).
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import draw, layout, scales
from figures.style import Look, Style, styled
from figures.tables import Frame, Tables, count_words, split
from fspo.stats.intervals import PERCENT

TITLE = "Berry-Esseen envelope against the truth"
CAPTION = (
    "Distance of the sqrt band's acceptance from its Gaussian value, for independent tokens that are not Gaussian: "
    "the worst band at each length and the band of one standard deviation (u = 1), below the envelope 2 · 0.4748 "
    "ρ₃/√L of docs/theory.md T5. Worst band, largest share of the envelope: {shares}."
    f"\n\nCurves: exact laws. Points: {{draws}} simulated responses each (u = 1), with {PERCENT} Clopper-Pearson "
    "intervals; an interval that reaches the lower edge includes 0. Between the steps of a lattice the band u = 1 "
    "jumps from length to length. Skewed tokens and tokens on a lattice fall like 1/√L, as the envelope does; "
    "symmetric continuous ones like 1/L."
)
LAWS = {"exponential": "exponential", "signs": "$\\pm\\sigma$", "student": "Student $t_5$"}
WORDS = {"exponential": "exponential", "signs": "±σ", "student": "Student t₅"}
CURVES = {
    "envelope": Look("black", ""),
    "worst": Look("#0072B2", ""),
    "unit": Look("#D55E00", "s", (4.0, 1.6)),
}
LABELS = {"envelope": "envelope", "worst": "worst band", "unit": "band $u=1$"}


def plot_distances(data: Frame, ax: Axes | None = None, lowest: float = 1e-5) -> Axes:
    """Draw over length how far acceptance is from its value under a Gaussian law, and the Berry-Esseen bound on that
    distance.

    Both axes are logarithmic.

    Parameters
    ----------
    data : DataFrame
        Columns ``kind`` ("exact" or "simulated"), ``band`` ("worst", or "unit" for one standard deviation), ``length``,
        ``difference`` (the distance), ``ci_low`` and ``ci_high`` (its interval, of simulated rows), ``envelope`` (the
        bound, of exact rows).
    lowest : float
        Smaller distances are not shown.
    """
    exact, points = data[data["kind"] == "exact"], data[data["kind"] == "simulated"]
    bound = exact[exact["band"] == "worst"].assign(band="envelope", difference=lambda rows: rows["envelope"])
    ax = draw.curves(
        pd.concat([bound, exact]), ax, x="length", y="difference", hue="band", ends=(), known=CURVES, marks=False
    )
    points = points.assign(band="unit", ci_low=points["ci_low"].clip(lower=lowest))
    draw.curves(points, ax, x="length", y="difference", hue="band", known=CURVES, lines=False, markersize=3.2)
    scales.decade_axis(ax.xaxis, data["length"])
    scales.decade_axis(ax.yaxis, [1.4 * lowest, 3.0])
    ax.set_xlabel("response length $L$ (tokens)")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the Berry-Esseen figure, with the largest share of the bound that the distance reaches
    under each law of token log-ratios.
    """
    table = tables["berry_esseen"]
    worst = table[(table["kind"] == "exact") & (table["band"] == "worst")]
    reached = (worst["difference"] / worst["envelope"]).groupby(worst["law"], sort=False).max()
    shares = ", ".join(f"{WORDS.get(law, law)} {share:.2f}" for law, share in reached.items())
    return CAPTION.format(draws=count_words(table["draws"].dropna()), shares=shares)


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw how far acceptance is from its value under a Gaussian law, one panel for each law of token log-ratios."""
    table = tables["berry_esseen"]
    unit = table[(table["kind"] == "exact") & (table["band"] == "unit") & (table["difference"] > 0)]
    lowest = float(unit["difference"].min()) / 1.5
    laws = split(table, "law")
    panels = {f"{LAWS.get(law, law)} ($\\rho_3={own['rho3'].iloc[0]:.3g}$)": own for law, own in laws.items()}
    legend = {LABELS[name]: mark for name, mark in layout.rule_keys(CURVES).items()}

    def plot(part: Frame, ax: Axes) -> None:
        plot_distances(part, ax, lowest)

    return layout.facets(style, panels, plot, 1.6, legend, left="$|a-a_{Gauss}|$", sharey=True)[0]
