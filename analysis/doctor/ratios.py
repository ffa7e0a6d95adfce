"""Checks of the log-ratio S: whether it exists, is finite, and measures the policy rather than numerical error; and of
the band on S: what it rejects."""

from __future__ import annotations

import numpy as np

from analysis.doctor.issues import Answer, Evidence, Severity, clear, found, not_checked
from analysis.doctor.patient import Ints, Patient, Rows, enough
from analysis.importing.watch import CAUSES
from analysis.log.rows import numbered
from analysis.log.usable import SEVERAL
from fspo.gradlog import metric_names as metric
from fspo.rules import COMPARED, PRESETS
from fspo.stats.bins import quantile_bins
from fspo.stats.slopes import cluster_slope

RESET = 0.05
"""If the mean of S^2/L falls, at some update, below this share of its value at an earlier update on the same rollout,
the old log-probabilities were computed again in between."""
LEAST_FROZEN, IN_SUCCESSION = 8, 3
"""A rollout counts as frozen if S is exactly 0 in all of at least ``LEAST_FROZEN`` rows after an update with a
gradient. Frozen rollouts are reported if at least ``IN_SUCCESSION`` follow each other."""
ROUNDED = 2 * float(np.finfo(np.float32).eps)  # greatest |S| a token that rounding of sums in float32 explains
FLOOR_SHARE, FLOOR_MINIMUM = 0.2, 0.002
"""The check numerics reports a run if at least ``FLOOR_SHARE`` of its clip ratio (the share of responses out of the
band), and at least ``FLOOR_MINIMUM`` of the responses, are out of the band already before any update."""
BINS = 8  # number of length bins; the check acceptance looks in each for most responses beyond one edge of the band
TOO_TIGHT, TOO_WIDE = 0.5, 0.995  # least and greatest band acceptance at which the check acceptance reports nothing


def s_zero(p: Patient) -> Answer:
    """Check whether S is 0 because no row follows an update, or because nothing moved in all or some rollouts."""
    if len(p.finite) == 0:
        return not_checked("the log has no finite S with a length")
    zero = p.finite.mean("responses with S = 0", p.finite.S == 0)
    once = _once(p)
    if len(p.moved) == 0 or (once and np.all(np.abs(p.finite.S) <= ROUNDED * np.maximum(p.finite.L, 16))):
        what = "each rollout serves one update, by its steps, so S is 0 up to float32's rounding: "
        what += "no clip can act, as is right on-policy"
        return found(what, f"nothing, if on-policy training is wanted; else {SEVERAL}", zero, severity=Severity.INFO)
    rate, norm = p.metric(metric.LEARNING_RATE), p.metric(metric.GRAD_NORM)
    if not np.any(p.moved.S) and ((rate.size and not rate.any()) or (norm.size and not norm.any())):
        what = "S is 0 in every row although updates were made, and the learning rate or the gradient is 0: "
        what += "nothing moves"
        fix = "raise the learning rate; with a gradient of 0 look at the advantages and at which parameters are frozen"
        return found(what, fix, zero, severity=Severity.CRITICAL)
    if once and np.any(p.moved.S) and not enough(p.finite):
        return _one_update(p.finite)
    if len(frozen := _frozen(p)):
        what = f"S is exactly 0 in every row after updates of {len(frozen)} rollouts that had a gradient, and not in "
        what += "the others: nothing moves there, or the old log-probabilities are recomputed"
        fix = "look at the learning rate and at the optimizer's state, after a resumption say"
        return found(what, fix, zero, since=int(frozen[0]), severity=Severity.CRITICAL)
    return clear("S moves once an update was made", zero)


def _once(p: Patient) -> bool:
    """Return whether the log has one step a rollout and does not say how many updates came before."""
    rollout, step = p.finite["rollout"], p.finite["step"]
    known = "updates_since_rollout" in p.logged or np.any(p.finite["times_used"] > 0)
    return not known and numbered(rollout, step).max() == numbered(rollout).max()


def _one_update(rows: Rows) -> Answer:
    """Say, for a log with one step a rollout and S other than 0, whether S is numerical noise between two forward
    passes, or the rows were logged after their update."""
    root = rows.S / np.sqrt(rows.L)
    follows = rows.mean("mean of A S / sqrt(L)", np.nan_to_num(rows["advantage"]) * root)
    why, fix = "It follows A, so rows were logged after their update", "log S before the update"
    if (zero := rows.S == 0).mean() > 0.1 and rows.L[zero].mean() > rows.L.mean() / 2:
        why = f"It is exactly 0 in {zero.mean():.0%} of the rows: these are of a first update, the others of later ones"
        fix = "name what counts updates: --columns step=UPDATE,rollout=STEP; if STEP does, --updates-per-rollout N"
    elif not follows.low > 0:
        why = "It does not follow A: numerics of two forward passes, before any update"
        fix = "take old and new log-probs by one code, precision and padding; a range must be wide beside this noise"
    bands = {label: PRESETS[label].rule.band(rows.L) for label in COMPARED}
    clipped = (f"{label} {np.mean((lo > rows.S) | (hi < rows.S)):.0%}" for label, (lo, hi) in bands.items())
    what = f"one step a rollout, and S is not 0: {np.sqrt(np.mean(root**2)):.2g} nats a root token. {why}. The default "
    what += f"ranges clip of it: {', '.join(clipped)}"
    return found(what, fix, follows, severity=Severity.INFO)


def _frozen(p: Patient) -> Ints:
    """Return the numbers of frozen rollouts: those with S exactly 0 in every row after an update that had a gradient.

    Only rollouts after the first one in which S was not 0 count, and only ``IN_SUCCESSION`` or more in succession,
    because a few updates may change only parameters on which the logged rows do not depend. Rollouts whose learning
    rate is 0 by the metrics do not count."""
    rows = p.finite
    step, (rollout, number) = rows["step"], np.unique(rows["rollout"], return_inverse=True)
    pulls = np.isfinite(rows["advantage"]) & (rows["advantage"] != 0) & (rows["multiplier"] != 0)
    first = np.full(len(rollout), np.iinfo(np.int64).max)
    np.minimum.at(first, number[pulls], step[pulls])
    after = (step > first[number]) & (rows["updates_since_rollout"] >= 1)
    count, moves = (np.bincount(number[which], minlength=len(first)) for which in (after, after & (rows.S != 0)))
    resting = [r for r, rate in p.metrics.get(metric.LEARNING_RATE, []) if rate == 0]
    frozen = (count >= LEAST_FROZEN) & (moves == 0) & ~np.isin(rollout, resting) & (np.cumsum(moves) > 0)
    run = np.cumsum(~frozen)  # frozen rollouts that follow each other without a gap have one value
    return rollout[frozen & (np.bincount(run, frozen)[run] >= IN_SUCCESSION)]


def old_recomputed(p: Patient) -> Answer:
    """Check whether the old log-probabilities were wrongly computed again with new weights after the rollout."""
    if (few := enough(p.moved)) or s_zero(p).found:
        return not_checked(f"too few rows after an update: {few}" if few else "S is 0 for another reason (s_zero)")
    fix = "take the old log-probabilities once, right after the rollout and before its first update, and keep them for "
    fix += "all its minibatches and epochs"
    if not np.any(p.moved.S):
        what = "S is exactly 0 in every row, also after updates: the old log-probabilities are recomputed with the new "
        what += "weights, so the ratio is always 1 and nothing is ever clipped"
        zero = p.moved.mean("rows after an update with S = 0", p.moved.S == 0)
        return found(what, fix, zero, severity=Severity.CRITICAL)
    since = p.finite["updates_since_rollout"]
    sizes: list[Evidence] = []
    for update in np.unique(since[np.isfinite(since)]).tolist():
        if enough(rows := p.finite.take(since == update)):
            continue
        here = _size(rows, f"{update:.0f} updates after the rollout")
        largest = max(sizes, key=lambda size: size.low, default=here)
        sizes.append(here)
        if update >= 1 and here.high < RESET * largest.low:
            what = f"S falls back to nothing {update:.0f} updates after the rollout, inside its use: the old "
            what += "log-probabilities were taken again (each epoch, say), so the ratio misses the updates before"
            return found(what, fix, largest, here, severity=Severity.CRITICAL)
    if not enough(p.unmoved) and np.any(p.unmoved.S):
        before, after = _size(p.unmoved, "before any update"), _size(p.moved, "after updates")
        line = cluster_slope(p.finite.S**2 / p.finite.L, since, p.finite.cluster)
        low, high = float(since.max()) * line.ci_low, float(since.max()) * line.ci_high
        if after.high < 2 * before.low and low <= 0 and high < before.low:
            what = "S after updates is no larger than the numerical noise before any: the old log-probabilities are "
            what += "recomputed with the new weights, or the weights hardly move"
            fix += "; if they are, raise the learning rate"
            return found(what, fix, before, after, severity=Severity.CRITICAL)
    return clear("S grows with the updates since the rollout", *sizes[:1], *sizes[-1:])


def _size(rows: Rows, when: str) -> Evidence:
    return rows.mean(f"mean S^2/L {when}", rows.S**2 / rows.L, unit="nats^2 a token")


def not_finite(p: Patient) -> Answer:
    """Check for S or A that is NaN or infinite, and for log-probabilities that stand for missing ones."""
    known = [c for c in ("log_ratio", "advantage") if c in p.logged]
    if not known:
        return not_checked("the log holds neither S nor A")
    if p.tokens.cause and not p.tokens.sampler:
        what, fix = CAUSES[p.tokens.cause]
        return found(f"{p.tokens.base} or {p.tokens.against}: {what}{p.tokens.places()}", fix)
    bad = ~np.all([np.isfinite(p.rows[c]) for c in known], axis=0)
    share = p.rows.mean("rows with a NaN or infinite S or A", bad)
    if not bad.any():
        return clear("every S and A is finite", share)
    what = f"{int(bad.sum())} rows have no finite S or A; one such row makes the whole batch's loss NaN"
    fix = "cap S before exp, mask padding before the difference (inf - inf), and give failed rewards a number"
    return found(what, fix, share, severity=Severity.CRITICAL)


def numerics(p: Patient) -> Answer:
    """Check whether many responses are out of the band even before the first update, which only numerics can cause."""
    still = p.unmoved
    if few := enough(still) or enough(p.moved):
        return not_checked(f"too few rows before, or after, the first update of a rollout: {few}")
    before, after = p.out_of_band(still), p.out_of_band(p.moved)
    if before is None or after is None:
        return not_checked("the log names no band")
    if not np.any(still.S):
        return clear("S is exactly 0 before the first update: no noise floor")
    floor = still.mean("out of band before any update", before)
    measured = p.moved.mean("out of band after updates", after)
    if floor.low < FLOOR_MINIMUM or floor.low < FLOOR_SHARE * measured.high:
        return clear("the noise floor is small beside the clip ratio", floor, measured)
    what = f"at least {floor.low / measured.high:.0%} of the clip ratio is there before any update, as arithmetic"
    fix = "take old and new log-probabilities by the same code, precision, chunking and padding (float32 logits), or "
    fix += "from the trainer and not from the sampler; or widen the band above the noise floor"
    severity = Severity.CRITICAL if floor.low > 0.5 * measured.high else Severity.WARNING
    return found(what, fix, floor, measured, severity=severity)


def acceptance(p: Patient) -> Answer:
    """Check that the share of responses with S in the band lies between ``TOO_TIGHT`` and ``TOO_WIDE``, and that in no
    bin of lengths more than half lie beyond one edge, as they do if the mean of S lies outside the band."""
    rows, rule = p.moved, p.rule
    outside, band = p.out_of_band(rows), p.band(rows)
    if enough(rows) or outside is None or not np.any(rows.S) or (rule is not None and rule.shape == "none"):
        return not_checked(enough(rows) or "no band on S, or S is 0 everywhere")
    if rule is not None and rule.level != "sequence":
        return not_checked(f"rule {rule.label} acts on tokens: its acceptance is no share of responses")
    inside = rows.mean("band acceptance", ~outside)
    beyond: list[Evidence] = []
    index = quantile_bins(rows.L, BINS).index(rows.L)
    edges = {} if band is None else {"below": band[0] > rows.S, "above": band[1] < rows.S}
    for k in range(BINS):
        at = index == k
        here = rows.take(at)
        for side, off in edges.items() if not enough(here) else ():
            name = f"of {here.L.min():.0f} to {here.L.max():.0f} tokens lie {side} the band"
            beyond.append(here.mean(name, off[at], level=0.99))
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
