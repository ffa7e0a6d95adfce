"""Cosine of the clipped update with four estimates of the true one: from the same batch, from pairs of different
prompts, with capped weights, from a fresh rollout (docs/theory.md section 5).
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import draw, layout
from figures.style import Style, band_of, styled
from figures.tables import (
    TOO_LITTLE,
    Frame,
    NothingToDraw,
    Tables,
    amount,
    drawable,
    first_use,
    need,
    split,
    view_words,
    views,
    with_data,
)
from fspo.stats.intervals import PERCENT

TITLE = "Cosine with four references"
CAPTION = (
    "Cosine of the clipped with the true update as four references tell it (docs/theory.md section 5): the same "
    "batch, which flatters; the population, from pairs of different prompts; the same with capped weights; new "
    f"responses (“fresh”). Bars: {PERCENT} intervals. {{what}}.{{missing}}"
    "\n\nThe same batch shares its noise with the clipped update. One common weight exp({S}), first use, A ≠ 0. "
    "“Capped” holds the reference's weights at 2; “fresh” is at the same parameters. Intervals: jackknife over "
    "prompts."
)
REFERENCES = {"same_batch": "same batch", "population": "population", "capped": "capped", "fresh": "fresh"}


def rows(tables: Tables) -> Frame:
    """Return cosines of the clipped update with four estimates of the true one (``reference``), over all responses.

    The column ``panel`` names the row of panels. In a row for a target acceptance all rules meet the target on one log;
    a further row shows the rules with which the runs were trained. Rules with the same band share a row of the panel;
    the column ``band`` names it by the first such preset.
    """
    tables.only_by_length("it is of all responses together: draw it without --by")
    same, others = tables["cosine"], tables["population"]
    same = same[(same["weight"] == "sequence") & ~same["control"].astype(bool) & (same["rule"] != "random")]
    found = pd.concat([first_use(same), others[others["quantity"] == "cosine"]], ignore_index=True)
    found = found[(found["bin"] < 0) & found["reference"].isin(list(REFERENCES))]
    drawable(need(found, "no cosine over all responses"))
    found = views(found)
    if set(with_data(found, ["reference", "panel"])[0]["reference"]) <= {"same_batch"}:
        lacks = {name: part for name, part in split(found, "reference").items() if name != "same_batch"}
        words = "; ".join(f"{name}: {amount(part)}" for name, part in lacks.items())
        raise NothingToDraw(f"only the same batch gives a cosine ({words or 'no other was measured'})")
    return found.assign(band=found["rule"].map(band_of))


def plot_reference(data: Frame, rules: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw the cosines with one estimate of the true update (columns ``band``, ``outside``, ``estimate``, ``ci_low``,
    ``ci_high``), one row for each rule. In a row without an estimate stands "too little data".
    """
    return draw.outside_dots(data, rules, ax, missing=TOO_LITTLE)


def caption(tables: Tables) -> str:
    """Return the caption of cosines with four estimates of the true update. If cosines are missing, it says how much
    data they need.
    """
    found = rows(tables).replace({"reference": REFERENCES})
    kept, words = with_data(found, ["reference", "panel"])
    gone = split(found[~found["reference"].isin(kept["reference"])], "reference")
    whole = "; ".join(f"{name} ({amount(part)})" for name, part in gone.items())
    missing = f" No panels: {whole}." if whole else words
    return CAPTION.format(what=view_words(found), missing=missing, S=tables.symbol)


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw the cosine of clipped and true update: a column of panels for each estimate of the true update, a row of
    panels for each target acceptance and one for the runs' own rules.
    """
    found = with_data(rows(tables), ["panel", "reference"])[0]
    legend = layout.outside_keys(found["outside"])
    return layout.matrix(found, "reference", REFERENCES, style, plot_reference, "cosine", legend)
