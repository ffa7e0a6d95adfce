"""What another value of one setting of the rule fspo (dual clip, outside, drift, ..., not the range) would have done to
the responses of one log.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.log.ratio import CORRECTED
from figures import draw, layout, scales
from figures.style import LOOKS, Style, styled
from figures.tables import TOO_LITTLE, Frame, NothingToDraw, Tables, drawable, need, shared_log, with_data
from fspo.stats.intervals import PERCENT

TITLE = "Effect of the other settings"
CAPTION = (
    "One setting of the rule fspo changed at a time, on the log of run {run}: share of responses not cut (A ≠ 0), "
    "its LRE_2 (docs/theory.md section 3), cosine of the clipped and the true update (section 5), and squared error "
    f"of the clipped update over that of the unclipped one (T12). Bars: {PERCENT} intervals.{{missing}}"
    "\n\nFirst use; counterfactual: the responses stay the log's. The cosine is of the same batch. The exponent's "
    "band has fspo's width at the median length. “Too little data”: no update has enough scored responses."
)
QUANTITIES = {
    "update": "not cut (%)",
    "lre_update_l2": "LRE$_2$ of not cut",
    "cosine": "cosine",
    "mse": "MSE, unclipped = 1",
}
SETTINGS = {
    "dual": ("dual clip", {"none"}),
    "outside": ("outside", {"drop"}),
    "drift": ("drift", {"none"}),
    "gamma": ("exponent γ", {"0.5"}),
    "aggregation": ("weight by", {"response"}),
    "group": ("group size", set()),
    "minibatch": ("update no.", set()),
}
"""Label of each setting that the sweep changes, and the setting's value in the preset fspo (empty if it has none)."""


def rows(tables: Tables) -> Frame:
    """Return the rows of one log's table ``sweep`` in which another setting than the range was changed, sorted as they
    are drawn.

    New columns are ``label`` (setting and value, the label of the row in a panel), ``panel`` (the label of the
    quantity: acceptance, LRE, cosine or squared error) and ``own`` (whether the preset fspo has that value).
    """
    tables.only_by_length("the sweep is by length: draw it without --by")
    if tables.on in CORRECTED:
        raise NothingToDraw("it is about clip rules: the table sweep.csv has the settings of corrections")
    found = tables["sweep"]
    found = need(found[found["setting"].isin(list(SETTINGS)) & found["quantity"].isin(list(QUANTITIES))], "only ranges")
    found = shared_log(found).sort_values("setting", key=lambda s: s.map(list(SETTINGS).index), kind="stable")
    drawable(found)
    value = found["value"].astype(str)
    own = [v in SETTINGS[setting][1] for setting, v in zip(found["setting"], value, strict=True)]
    label = found["setting"].map({name: words for name, (words, _) in SETTINGS.items()}) + ": " + value
    return found.assign(label=label, own=own, panel=found["quantity"].map(QUANTITIES))


def plot_settings(data: Frame, labels: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw one quantity (such as LRE) as it would be if one setting of fspo were changed: a row for each value of each
    setting, named "setting: value" in ``labels``, from top to bottom.

    ``data`` has the columns ``label``, ``own``, ``estimate``, ``ci_low`` and ``ci_high``. A dot is filled where ``own``
    is true: fspo itself has that value. A row without an estimate shows "too little data".
    """
    mapped = {"fill": ("own", {True: True, False: False})}
    look = {"color": LOOKS["fspo"].color, "pointsize": 4, "missing": TOO_LITTLE}
    ax = draw.dots(data, ax, rows=labels, row="label", mapped=mapped, **look)
    settings = [label.partition(":")[0] for label in labels]
    first = [i == 0 or setting != settings[i - 1] for i, setting in enumerate(settings)]
    # Label the first row of each setting "setting: value" and draw a darker line above it. The setting's other rows
    # are labelled with the value alone.
    ax.set_yticks(
        range(len(labels)), [name if new else name.partition(": ")[2] for name, new in zip(labels, first, strict=True)]
    )
    for i in (i for i, new in enumerate(first) if new and i):
        ax.axhline(i - 0.5, color="#a0a0a0", linewidth=0.6, zorder=0.6)
    scales.few_ticks(ax.xaxis, 3)
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the figure of fspo with one setting changed, with the run whose log was used."""
    found = rows(tables)
    return CAPTION.format(run=found["run"].iloc[0], missing=with_data(found, ["panel"])[1])


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw what the rule fspo would have done with one setting changed at a time: a row for each setting and value, a
    column each for acceptance, LRE, cosine and squared error.
    """
    found = rows(tables)
    labels, kept = list(dict.fromkeys(found["label"])), with_data(found, ["panel"])[0]
    shown = [quantity for quantity in QUANTITIES if (kept["quantity"] == quantity).any()]
    words = {"fspo as it is": "full", "one setting changed": "none"}
    legend = {text: layout.key(LOOKS["fspo"].color, "o", fillstyle=fill) for text, fill in words.items()}
    height, columns = 0.125 * len(labels) + 0.45, 2 if style.narrow else len(shown)
    fig, axes = layout.panel_grid(style, len(shown), height, legend, columns=columns, sharey=True)
    for ax, quantity in zip(axes, shown, strict=True):
        plot_settings(found[found["quantity"] == quantity], labels, ax).set_xlabel(QUANTITIES[quantity])
        if quantity == "update":
            scales.percent_axis(ax.xaxis)
        if quantity == "mse":
            draw.reference(ax, 1.0, "x")
    return fig
