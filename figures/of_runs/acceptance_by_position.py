"""Share of tokens that token and prefix rules keep, by the token's position and by the response's length.

The shares come from the table ``positions``.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.log.partition import LENGTH
from figures import layout, scales
from figures.of_runs.ess_by_length import plot_estimates
from figures.style import Style, looks, styled
from figures.tables import Frame, Tables, count_words, drawable, split
from fspo.stats.intervals import PERCENT

TITLE = "Tokens kept by position"
CAPTION = (
    "Share of tokens that rules on tokens or prefixes do not cut, on {S} at first use (A ≠ 0; docs/theory.md "
    "section 2): by the token's position in its response, and by the {by} of the response (n = {n} tokens a bin). "
    f"Bars: {PERCENT} intervals, clustered by prompt."
)


def rows(tables: Tables) -> Frame:
    """Return the rows of table ``positions``, which are shares of tokens kept. The column ``panel`` says what a row is
    binned by: "position" for the token's position, "response" for the response's length (or another quantity by which
    the run was analysed).
    """
    found = tables["positions"]
    return drawable(found[(found["bin"] >= 0) & (found["count"] > 0)]).rename(columns={"by": "panel"})


def caption(tables: Tables) -> str:
    """Return the caption of tokens kept by position, with the numbers of tokens."""
    found = rows(tables)
    counts = found.loc[found["panel"] == "position", "count"]
    return CAPTION.format(S=tables.symbol, by=tables.bin_word, n=count_words(counts))


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw the share of tokens that each rule leaves alone, in one panel by the token's position in its response, in
    another by the length of the response."""
    found = rows(tables)

    def plot(part: Frame, ax: Axes) -> None:
        of_tokens = part["panel"].iloc[0] == "position"
        plot_estimates(part, ax, LENGTH if of_tokens else tables.partition)
        scales.percent_axis(ax.yaxis)
        if of_tokens:
            ax.set_xlabel("position of the token")

    known = looks(found["rule"])
    return layout.facets(style, split(found), plot, 1.6, known=known, x="bin_mean", left="tokens kept (%)")[0]
