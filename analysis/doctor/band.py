"""Check the band: where it lies and what it rejects."""

from __future__ import annotations

import numpy as np

from analysis.doctor.issues import Answer, Evidence, Severity, clear, found, not_checked
from analysis.doctor.patient import Patient, enough
from fspo.stats.bins import quantile_bins

BINS = 8
"""Number of length bins; the check acceptance looks in each for most responses beyond one edge of the band."""
TOO_TIGHT, TOO_WIDE = 0.5, 0.995
"""Least and greatest band acceptance at which the check acceptance reports nothing."""


def acceptance(p: Patient) -> Answer:
    """Check that the share of responses with S in the band lies between ``TOO_TIGHT`` and ``TOO_WIDE``, and that in no
    bin of lengths more than half lie beyond one edge, as they do if the mean of S lies outside the band."""
    rows, rule = p.moved, p.rule
    outside, band = p.out_of_band(rows), p.band(rows)
    if enough(rows) or outside is None or not np.any(rows.S) or (rule is not None and rule.shape == "none"):
        return not_checked(enough(rows) or "no band on S, or S is 0 everywhere")
    if rule is not None and rule.level != "sequence":
        return not_checked(f"rule {rule.label} acts on tokens: its acceptance is no share of responses")
    inside = rows.share("band acceptance", ~outside)
    beyond: list[Evidence] = []
    bins = quantile_bins(rows.L, BINS)
    index = bins.index(rows.L)
    edges = {} if band is None else {"below": band[0] > rows.S, "above": band[1] < rows.S}
    for k in range(len(bins)):
        at = index == k
        here = rows.take(at)
        for side, off in edges.items() if not enough(here) else ():
            name = f"of {here.L.min():.0f} to {here.L.max():.0f} tokens lie {side} the band"
            beyond.append(here.share(name, off[at], level=0.99))
    worst = max(beyond, key=lambda share: share.low, default=inside)
    if worst is not inside and worst.low > 0.5:
        fix = "centre the band on the drift (rule.preset fspo-kl), or move less: fewer updates a rollout, a lower rate"
        if rule is not None and rule.drift != "none":
            fix = "the band's drift estimate is wrong: compare `drift` in the log with the evidence"
        text = f"most responses {worst.name} ({worst.value:.0%}): the drift of S is larger than the band is wide"
        return found(text, fix, inside, worst)
    fix = "set rule.range_lo and rule.range_hi, or what your trainer calls them, to what `fspo calibrate RUN` prints"
    if inside.high < TOO_TIGHT:
        return found(f"the band accepts {inside.value:.1%}, less than half of the responses", fix, inside)
    if inside.low > TOO_WIDE:
        text = f"the band accepts {inside.value:.2%}: the rule clips next to nothing"
        return found(text, fix, inside, severity=Severity.INFO)
    return clear("the band accepts a sensible share", inside)
