"""Share of tokens that token and prefix rules keep, by the token's position and by the response (table positions)."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis.log.partition import LENGTH
from figures.draw import label_left, panel_grid, percent_axis, rule_legend
from figures.estimates import by_run
from figures.of_runs.ess_by_length import plot_estimates
from figures.style import Style, looks
from figures.tables import Frame, Tables, count_words, drawable
from fspo.stats.intervals import PERCENT

TITLE = "Tokens kept by position"
CAPTION = (
    "Share of tokens that rules on tokens or prefixes do not cut, on {S} at first use (A ≠ 0; docs/theory.md section "
    "2): left by the token's position in its response, right by the {by} of the response (n = {n} tokens a bin). "
    f"Bars: {PERCENT} intervals, clustered by prompt."
)


def select(tables: Tables) -> Frame:
    """Return the rows of table positions: shares of tokens kept, by bins of the token's position and by bins of
    responses; the column ``by`` says which.
    """
    rows = tables["positions"]
    return drawable(rows[(rows["bin"] >= 0) & (rows["count"] > 0)])


def caption(tables: Tables) -> str:
    """Return the caption of tokens kept by position, with the numbers of tokens."""
    rows = select(tables)
    return CAPTION.format(
        S=tables.symbol, by=tables.bin_word, n=count_words(rows.loc[rows["by"] == "position", "count"])
    )


def figure(tables: Tables, style: Style) -> Figure:
    """Draw the share of tokens kept in two panels, by the token's position and by the response's length; rules stand
    side by side (docs/theory.md section 2).
    """
    rows = select(tables)
    with style.context():
        fig, axes = panel_grid(style, 2, 1.6, *rule_legend(looks(rows["rule"])))
        for ax, by in zip(axes, ("position", "response"), strict=True):
            part = rows[rows["by"] == by]
            plot_estimates(by_run(part, "bin_mean"), LENGTH if by == "position" else tables.partition, ax)
            percent_axis(ax.yaxis)
        axes[0].set_xlabel("position of the token")
        label_left(axes, "tokens kept (%)")
    return fig
