"""Error of cosines computed from sketches instead of full scores, by the sketch's width (docs/theory.md section 5)."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import draw, layout, scales
from figures.style import Look, Style, styled
from figures.tables import Frame, Tables, drawable, need, split
from fspo.stats.intervals import PERCENT

TITLE = "Error of sketched cosines by the sketch's width"
CAPTION = (
    "Root mean square error of cosines between sketched scores, against exact gradients, for pairs of responses and "
    "for an update with itself after 15 % of its responses were dropped. Grey: (1 − ρ²)/√width, what hashing alone "
    f"gives to first order (not fitted). Bars: {PERCENT} intervals."
    "\n\n{parameters:,} parameters, {responses} responses; intervals are over {redraws} redraws. k: columns of "
    "the two random projections of each weight matrix; their own error does not fall with the width."
)
PANELS = {"pair": "two responses", "drop": "update, 15 % dropped"}
LOOKS = {
    "no projection": Look("#000000", "o"),
    "$k=8$": Look("#D55E00", "s", (4.0, 1.6)),
    "$k=16$": Look("#009E73", "^", (5.0, 1.5, 1.0, 1.5)),
    "$k=32$": Look("#0072B2", "D", (7.0, 2.0)),
}
OTHER = Look("#882255", "v", (2.5, 1.2))
HASHING = "#b5b5b5"


def rows(tables: Tables) -> Frame:
    """Return the rows of table ``sketch_error`` (error of a cosine from sketches, by width) that have a finite error.
    The new column ``label`` gives the number of columns of the random projection, or says that there was none.
    """
    found = drawable(tables["sketch_error"], ("rmse", "hashing"))
    found = need(found[found["cosine"].isin(PANELS) & (found["rmse"] > 0)], "no row of a cosine that is drawn")
    found = found.sort_values(["projection", "width"], kind="stable")
    labels = found["projection"].map(lambda k: f"$k={int(k)}$" if k else "no projection")
    return found.assign(panel=found["cosine"].map(PANELS), label=labels)


def plot_errors(data: Frame, ax: Axes | None = None) -> Axes:
    """Draw errors with intervals (columns ``label``, ``rmse``, ``ci_low``, ``ci_high``) against the sketch's ``width``
    on logarithmic axes, and as a grey line the column ``hashing``, the error that hashing alone would make.
    """
    ax = draw.new_axes(ax)
    line = data.drop_duplicates("width").sort_values("width")
    ax.plot(line["width"], line["hashing"], color=HASHING, linewidth=2.4, zorder=1.5, solid_capstyle="round")
    known = {label: LOOKS.get(label, OTHER) for label in dict.fromkeys(data["label"])}
    draw.curves(data, ax, x="width", y="rmse", hue="label", known=known, step=0.06, linewidth=0.8)
    scales.length_axis(ax, data["width"])
    scales.decade_axis(ax.yaxis, data[["rmse", "ci_low", "ci_high", "hashing"]].to_numpy().ravel())
    ax.set_xlabel("width of the sketch")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the figure of sketch errors, with the numbers of parameters, of responses, and of
    independent draws of the sketch.
    """
    found = rows(tables)
    return CAPTION.format(**{name: int(found[name].iloc[0]) for name in ("parameters", "responses", "redraws")})


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw the errors of cosines that are computed from sketches. One panel has the cosine of the scores of two
    responses, the other that of an update before and after some of its responses are dropped.
    """
    found = rows(tables)
    panels = split(found, "cosine", PANELS)
    legend = layout.rule_keys({label: LOOKS.get(label, OTHER) for label in dict.fromkeys(found["label"])})
    legend["$(1-\\rho^2)/\\sqrt{\\mathrm{width}}$"] = layout.key(HASHING, linestyle="-", linewidth=2.4)
    columns = 1 if style.narrow else len(panels)
    return layout.facets(style, panels, plot_errors, 1.75, legend, columns=columns, left="RMSE of the cosine")[0]
