"""How far the share of responses in a band is from the share under a Gaussian distribution of S, and the Berry-Esseen
bound on that distance (T4)."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import layout, marks, scales
from figures.style import Look, Style, styled
from figures.tables import Frame, Tables, split

TITLE = "Berry-Esseen envelope against the truth"
CAPTION = (
    "Distance of the sqrt band's acceptance from its Gaussian value, for independent tokens that are not Gaussian: "
    "the worst band at each length, below the envelope 2 · 0.4748 ρ₃/√L of docs/theory.md T4. Largest share of the "
    "envelope: {shares}."
    "\n\nCurves: exact distributions. Skewed tokens and tokens on a lattice fall like 1/√L, as the envelope does; "
    "symmetric continuous ones like 1/L."
)
TITLES = {"exponential": "exponential", "signs": "$\\pm\\sigma$", "student": "Student $t_5$"}
WORDS = {"exponential": "exponential", "signs": "±σ", "student": "Student t₅"}
CURVES = {"envelope": Look("black", ""), "difference": Look("#0072B2", "")}
LABELS = {"envelope": "envelope", "difference": "worst band"}


def plot_distances(data: Frame, ax: Axes | None = None, lowest: float = 1e-5) -> Axes:
    """Draw over length how far acceptance is from its value under a Gaussian distribution (column ``difference``), and
    the Berry-Esseen bound on that distance (``envelope``). Both axes are logarithmic; distances below ``lowest`` are
    not shown."""
    long = data.melt("length", list(CURVES), "line", "value")
    ax = marks.curves(long, ax, x="length", y="value", hue="line", ends=(), known=CURVES, marks=False)
    scales.decade_axis(ax.xaxis, data["length"])
    scales.decade_axis(ax.yaxis, [1.4 * lowest, 3.0])
    ax.set_xlabel("response length $L$ (tokens)")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the Berry-Esseen figure, with the largest share of the bound that the distance reaches
    under each distribution of token log-ratios."""
    table = tables["normal_approximation"]
    reached = (table["difference"] / table["envelope"]).groupby(table["distribution"], sort=False).max()
    return CAPTION.format(shares=", ".join(f"{WORDS.get(name, name)} {share:.2f}" for name, share in reached.items()))


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw how far acceptance is from its value under a Gaussian distribution, one panel for each distribution of token
    log-ratios."""
    table = tables["normal_approximation"]
    lowest = float(table["difference"].min()) / 1.5
    parts = split(table, "distribution")
    panels = {f"{TITLES.get(name, name)} ($\\rho_3={own['rho3'].iloc[0]:.3g}$)": own for name, own in parts.items()}
    legend = {LABELS[name]: mark for name, mark in layout.rule_keys(CURVES).items()}

    def plot(part: Frame, ax: Axes) -> None:
        plot_distances(part, ax, lowest)

    return layout.facets(style, panels, plot, 1.6, legend, left="$|a-a_{Gauss}|$", sharey=True)
