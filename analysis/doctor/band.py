"""Check the band and its effect: where it lies, what it rejects, whether one response makes up much of an update."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from analysis.doctor.issues import Answer, Evidence, Severity, clear, found, not_checked
from analysis.doctor.patient import Patient, Rows, enough
from analysis.rules.evaluate import TARGETS
from fspo.base.errors import UserError
from fspo.rules import calibrate
from fspo.stats.bins import quantile_bins
from fspo.stats.clusters import dense, ratios
from fspo.stats.intervals import mean_interval

BINS = 8
TOO_TIGHT, TOO_WIDE = 0.5, 0.995
"""Least and greatest band acceptance of a rule without a target at which the check acceptance reports nothing."""
FAR = 2.0
"""The check drift reports a mean of S that lies farther than this from the band's centre, in half-widths, even if the
median of S lies in the band.
"""
MARGIN = 0.1
"""Greatest distance of the band acceptance from a stated target at which the check acceptance reports nothing."""
TOP_SHARE, RULED = 0.2, 0.05
"""The check heavy_weights reports a run if the heaviest response of an update makes up more than the share
``TOP_SHARE`` of the update, averaged over updates, or if in more than the share ``RULED`` of the updates one response
makes up more than half of the update.
"""
MIN_UPDATE = 8
"""The check heavy_weights leaves out updates in which fewer responses than this have a gradient."""


def drift(p: Patient) -> Answer:
    """Check whether most responses of some length lie beyond one edge of the band, because S drifts farther than the
    band's half-width.
    """
    rows = p.moved
    if few := enough(rows):
        return not_checked(f"too few rows after an update: {few}")
    band = p.band(rows)
    if band is None:
        return not_checked("the log names no band on S")
    bins = quantile_bins(rows.L, BINS)
    index = bins.index(rows.L)
    # The length bin and the side of the band that look worst so far: (score, bin, side, share of responses beyond that
    # edge). A score above 1 is reported: more than half of the responses are beyond the edge, or E[S] is more than FAR
    # half-widths from the centre.
    worst: tuple[float, int, str, Evidence] | None = None
    for k in range(len(bins)):
        at = index == k
        here = rows.take(at)
        if enough(here):
            continue
        mean = here.mean("", here.S)
        centre, half = (float(np.median(x[at])) for x in ((band[0] + band[1]) / 2, (band[1] - band[0]) / 2))
        # The distance of the mean of S from the band's centre is measured to the nearer end of the interval of that
        # mean, so that noise in it is not reported as drift.
        for side, beyond, away in (
            ("below", band[0][at] > here.S, centre - mean.high),
            ("above", band[1][at] < here.S, mean.low - centre),
        ):
            share = here.share(f"{side} the band, {_span(here)}", beyond, level=0.99)
            score = max(2 * share.low, away / half / FAR if np.isfinite(half) and half > 0 else 0.0)
            if worst is None or score > worst[0]:
                worst = (score, k, side, share)
    if worst is None:
        return not_checked("no length bin has enough rows")
    score, k, side, share = worst
    here = rows.take(index == k)
    edge = (band[0] if side == "below" else band[1])[index == k]
    evidence = (
        share,
        here.mean(f"mean S, {_span(here)}", here.S, unit="nats"),
        Evidence("median edge of the band there", float(np.median(edge)), unit="nats"),
    )
    if score <= 1:
        return clear("the typical response of every length lies inside the band", *evidence)
    fix = "centre the band on the drift (rule.preset fspo-kl), or move less: fewer updates a rollout, a lower rate"
    if p.rule is not None and p.rule.drift != "none":
        fix = "the band's drift estimate is wrong: compare `drift` in the log with the evidence"
    what = f"E[S] of {_span(here)} lies more than {FAR:.0f} half-widths {side} the band"
    if share.low > 0.5:
        what = f"most responses of {_span(here)} lie {side} the band: the drift of S is larger than the band is wide"
    elif side == "below":
        what += ": a tail of the responses has become far less likely, and the band lies where the others are"
    return found(what, fix, *evidence)


def _span(rows: Rows) -> str:
    return f"L {rows.L.min():.0f}-{rows.L.max():.0f}"


def heavy_weights(p: Patient) -> Answer:
    """Check whether one response makes up much of an update, that is much of the update's sum of M w |A|."""
    rows = p.moved
    if few := enough(rows):
        return not_checked(f"too few rows after an update: {few}")
    if not rows.has("weight", "multiplier"):
        return not_checked("the log has no weights and multipliers (`fspo import --rule` adds them)")
    with np.errstate(invalid="ignore"):  # an infinite weight times M = 0 is NaN; `live` leaves such rows out
        x = rows["weight"] * rows["multiplier"] * np.abs(rows["advantage"])
    live = np.isfinite(x) & (x > 0)
    rows, x = rows.take(live), x[live]
    if few := enough(rows):
        return not_checked(f"too few rows with a gradient: {few}")
    update = dense(rows["step"])
    total, count = np.bincount(update, x), np.bincount(update)
    largest = np.zeros(len(total))
    np.maximum.at(largest, update, x)
    effective = total**2 / np.bincount(update, x * x) / count
    good = count >= MIN_UPDATE
    if not good.any():
        return not_checked(f"no update has {MIN_UPDATE} responses with a gradient")
    rollout = np.zeros(len(total), np.int64)
    rollout[update] = rows["rollout"]
    top = (largest / total)[good]
    mean = _over_updates("share of the largest weight in an update, mean", top, rollout[good])
    ruled = _over_updates("updates of which one response is more than half", (top > 0.5) * 1.0, rollout[good])
    evidence = (mean, ruled, _over_updates("effective sample size over size, mean", effective[good], rollout[good]))
    fair = 4.0 / float(np.mean(count[good]))
    low = np.nan_to_num(mean.low, nan=-1.0), np.nan_to_num(ruled.low, nan=-1.0)
    if low[0] <= max(TOP_SHARE, fair) and low[1] <= RULED:
        return clear("no single response makes up an update", *evidence)
    heaviest, rule = int(np.argmax(x)), p.rule
    negative = rows["advantage"][heaviest] < 0 and rows.S[heaviest] > 0
    fix = "set rule.outside to truncate or cap, which hold the weight at the edge"
    if rule is not None and rule.shape == "none":
        fix = "no band bounds the weights: set rule.preset to fspo and rule.outside to truncate or cap"
    elif negative and rule is not None and rule.dual is None and rule.outside == "drop":
        fix = "drop bounds no weight with A < 0 above the band: set rule.dual (2 to 10) or rule.outside truncate or cap"
    return found(
        f"one response carries {mean.value:.0%} of an update on average, and more than half of it in {ruled.value:.0%} "
        f"of the updates; the heaviest has S {rows.S[heaviest]:.3g}, A {rows['advantage'][heaviest]:.3g} and "
        f"{rows.L[heaviest]:.0f} tokens",
        f"{fix}; or move less between rollouts, so that S stays small",
        *evidence,
    )


def _over_updates(label: str, y: np.ndarray, rollout: np.ndarray) -> Evidence:
    """Return the mean of ``y``, one number for each update, with an interval that takes rollouts as clusters."""
    r = ratios(y, dense(rollout.astype(np.int64)), np.zeros(len(y), np.int64), 1)
    low, high = mean_interval(r.value, r.variance, r.clusters)
    return Evidence(label, float(r.value[-1]), float(low[-1]), float(high[-1]), "share")


def acceptance(p: Patient) -> Answer:
    """Check whether the band accepts a sensible share of the responses.

    If not, name the range with which the band would accept the patient's target, or without a target the range for each
    share in ``TARGETS``.
    """
    target = p.target
    rows = p.moved
    if few := enough(rows):
        return not_checked(f"too few rows after an update: {few}")
    if p.rule is not None and p.rule.shape == "none":
        return not_checked("rule none has no band")
    if p.rule is not None and p.rule.level != "sequence":
        return not_checked(f"rule {p.rule.label} acts on tokens: its acceptance is no share of responses")
    outside = p.out_of_band(rows)
    if outside is None:
        return not_checked("the log names no band")
    if not np.any(rows.S):
        return not_checked("S is 0 everywhere")
    inside = rows.share("band acceptance", ~outside)
    low, high = (TOO_TIGHT, TOO_WIDE) if target is None else (target - MARGIN, target + MARGIN)
    if inside.high >= low and inside.low <= high:
        return clear("the band accepts a sensible share", inside)
    tight = inside.high < low
    ranges = [e for t in (TARGETS if target is None else (target,)) for e in _ranges(p, rows, t)]
    summary = f"the band accepts {inside.value:.2%}: the rule clips next to nothing"
    if tight or target is not None:
        stated = "half of the responses" if target is None else f"the target of {target:.0%}"
        summary = f"the band accepts {inside.value:.1%}, {'less' if tight else 'more'} than {stated}"
    named = ", ".join(f"{e.name}: {e.value:.4g}" for e in ranges)
    return found(
        summary,
        f"set rule.range_lo and rule.range_hi, or what your trainer calls them ({named})"
        if named
        else "set the range; none can be named, since the log names no rule (`fspo import --rule`), or S is broken",
        inside,
        *ranges,
        severity=Severity.WARNING if tight or target is not None else Severity.INFO,
    )


def _ranges(p: Patient, rows: Rows, target: float) -> list[Evidence]:
    """Return the range with which the rule's band would accept the share ``target`` of the rows."""
    rule, S = p.rule, rows.S
    if rule is None:
        return []
    if rule.drift != "none":
        if not rows.has("drift"):
            return []
        S, rule = rows.S - rows["drift"] * rows.L, replace(rule, drift="none")
    try:
        fitted = calibrate(rule, S, rows.L, np.ones_like(S), target)
    except UserError:  # no range accepts the share: S is broken
        return []
    unit = "nats per root token" if rule.shape == "sqrt" else ""
    ends = {"range_lo": fitted.range_lo, "range_hi": fitted.range_hi}
    ends = {"range_lo and range_hi": fitted.range_lo} if fitted.range_lo == fitted.range_hi else ends
    return [Evidence(f"{name} for {target:.0%}", float(value), unit=unit) for name, value in ends.items()]
