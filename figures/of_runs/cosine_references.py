"""Cosine of the clipped update with four estimates of the true one: from the same batch, from pairs of different
prompts, with capped weights, from a fresh rollout (docs/theory.md section 5).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from figures.draw import few_words, title_grid
from figures.of_runs.cosine_by_rule import plot_cosines
from figures.of_runs.update_error import outside_grid, outsides, rules_of
from figures.style import Style, band_of
from figures.tables import (
    TOO_LITTLE,
    Frame,
    NothingToDraw,
    PanelRows,
    Tables,
    drawable,
    first_use,
    need,
    reasons,
    view_words,
    views,
)
from fspo.stats.intervals import PERCENT

TITLE = "Cosine with four references"
CAPTION = (
    "Cosine of the clipped update with the true one as four references tell it (docs/theory.md section 5), one common "
    "weight exp({S}), first use, A ≠ 0: of the same responses (“same batch”, which shares its noise and flatters); of "
    "the population, from pairs of different prompts; the same with the reference's weights held at 2 (“capped”); of "
    f"new responses at the same parameters (“fresh”). {{what}}. Bars: {PERCENT} intervals (jackknife over "
    f"prompts).{{missing}}"
)
REFERENCES = {"same_batch": "same batch", "population": "population", "capped": "capped", "fresh": "fresh"}


def select(tables: Tables) -> list[PanelRows]:
    """Return cosines of the clipped update with four estimates of the true one, over all responses, grouped by panel:
    one for each target acceptance, one for the runs' own rules.
    """
    tables.only_by_length("it is of all responses together: draw it without --by")
    same, others = tables["cosine"], tables["population"]
    same = same[(same["weight"] == "sequence") & ~same["control"].astype(bool) & (same["rule"] != "random")]
    rows = pd.concat([first_use(same), others[others["quantity"] == "cosine"]], ignore_index=True)
    rows = rows[(rows["bin"] < 0) & rows["reference"].isin(list(REFERENCES))]
    drawable(need(rows, "no cosine over all responses"))
    found = views(rows)
    if measured(found) == ["same_batch"]:
        others = pd.concat([view.rows for view in found])
        words = [
            f"{name}: {missing_words(own)}"
            for name in REFERENCES
            if len(own := others[others["reference"] == name]) and name != "same_batch"
        ]
        raise NothingToDraw(f"only the same batch gives a cosine ({'; '.join(words)})")
    return found


def measured(found: Sequence[PanelRows]) -> list[str]:
    """Return the estimates of the true update (names of ``REFERENCES``) with which at least one panel has a cosine, in
    drawing order.
    """
    rows = pd.concat([view.rows for view in found])
    known = set(rows.loc[rows["estimate"].notna(), "reference"])
    return [name for name in REFERENCES if name in known]


def missing_words(rows: Frame) -> str:
    """Return words for a cosine that is missing, with how many times more responses it would need if the table says
    so.
    """
    if rows.empty:
        return "not measured"
    found = [re.search(r"about ([\d.]+) times", str(reason)) for reason in rows["reason"].dropna()]
    times = sorted(float(match[1]) for match in found if match)
    if not times:
        return TOO_LITTLE
    need_of = f"{times[0]:g}" if times[0] == times[-1] else f"{times[0]:g} to {times[-1]:g}"
    return f"{TOO_LITTLE}, {need_of} times needed"


def caption(tables: Tables) -> str:
    """Return the caption of cosines with four estimates of the true update, with the reasons for missing ones."""
    found = select(tables)
    gone = pd.concat([view.rows[view.rows["estimate"].isna()] for view in found])
    missing = f" Without an estimate: {reasons(gone)}." if len(gone) else ""
    return CAPTION.format(what=view_words(found), missing=missing, S=tables.symbol)


def figure(tables: Tables, style: Style) -> Figure:
    """Draw cosines with the true update (section 5): a column for each estimate of it, a row of panels for each target
    acceptance and one for the runs' own rules.
    """
    found = select(tables)
    names = measured(found)
    panels = [(view, reference) for view in found for reference in names]
    with style.context():
        fig, axes, columns = outside_grid(found, names, style)
        for ax, (view, reference) in zip(axes, panels, strict=True):
            data, rules = outsides(view, "reference", reference), rules_of(view)
            plot_cosines(data, rules, ax)
            rows = view.rows[view.rows["reference"] == reference]
            if not np.isfinite(data.estimate).any():
                # Break the reason for the missing estimate into at most two lines; more would be spaced unevenly.
                words = missing_words(rows).replace(", ", ",\n")
                few_words(ax, 0.5, 0.5, words, transform=ax.transAxes)
                ax.set_xticks([])
                continue
            for rule in set(rows["rule"].map(band_of)) - set(data.rule):
                few_words(ax, 0.5, rules.index(rule), TOO_LITTLE, transform=ax.get_yaxis_transform())
        title_grid(axes, columns, [view.title for view in found], [REFERENCES[name] for name in names])
        for ax in axes[-columns:]:
            ax.set_xlabel("cosine" if len(ax.get_xticks()) else "")
    return fig
