"""Checks of the log-ratio S: whether it exists, is finite, and measures the policy rather than numerical error."""

from __future__ import annotations

import numpy as np

from analysis.doctor.issues import Answer, Evidence, Severity, clear, found, not_checked
from analysis.doctor.patient import Ints, Patient, Rows, by_metric, enough
from analysis.importing.names import FOREIGN, VERL_CLIP_SHARE
from analysis.log.rows import numbered
from fspo.gradlog import metric_names as metric
from fspo.rules import COMPARED, PRESETS
from fspo.stats.slopes import cluster_slope

CLIP_RATIOS = tuple(
    prefix + name for name in (metric.OUT_OF_BAND, metric.CLIPPED, VERL_CLIP_SHARE) for prefix in ("", FOREIGN)
)
RESET = 0.05
"""If the mean of S^2/L falls, at some update, below this share of its value at an earlier update on the same rollout,
the old log-probabilities were computed again in between.
"""
LEAST_FROZEN, IN_SUCCESSION = 8, 3
"""A rollout counts as frozen if S is exactly 0 in all of at least ``LEAST_FROZEN`` rows after an update with a
gradient. Frozen rollouts are reported if at least ``IN_SUCCESSION`` follow each other.
"""
ROUNDED = 2 * float(np.finfo(np.float32).eps)
"""An |S| of at most this for each token is rounding of log-probabilities added in float32."""
FLOOR_SHARE = 0.2
"""The check numerics reports a run if at least this share of its clip ratio (the share of responses out of the band) is
already there before any update.
"""
FLOOR_MINIMUM = 0.002
"""Share of responses out of the band before any update below which the check numerics reports nothing."""


def s_zero(p: Patient) -> Answer:
    """Check whether S is exactly 0 in the complete run, or in successive rollouts, because nothing moved."""
    if len(p.finite) == 0:
        return by_metric(
            p,
            CLIP_RATIOS,
            lambda shares, _: None if shares.any() else Severity.INFO,
            "the clip rate is exactly 0 in all {lines} lines: S is 0 (one update a rollout, or old log-probabilities "
            "recomputed), or the range is wider than S ever is; scalars cannot tell which",
            "log S for each response (columns old and new log-probabilities), import it and look again; with one "
            "update a rollout raise steps_per_generation or num_iterations (TRL)",
            "something is clipped, so S moves",
            "the log has no finite S with a length",
        )
    zero = p.finite.share("responses with S = 0", p.finite.S == 0)
    if len(p.moved) == 0:
        return found(
            "each rollout serves one update, so S is 0 up to rounding and no rule on S ever clips",
            "nothing, if on-policy training is wanted; else set more than one minibatch or epoch a rollout (TRL: "
            "steps_per_generation above gradient_accumulation_steps, or num_iterations above 1)",
            zero,
            severity=Severity.INFO,
        )
    rate, norm = p.metric(metric.LEARNING_RATE), p.metric(metric.GRAD_NORM)
    if not np.any(p.moved.S) and ((rate.size and not rate.any()) or (norm.size and not norm.any())):
        return found(
            "S is 0 in every row although updates were made, and the learning rate or the gradient is 0: nothing moves",
            "raise the learning rate; with a gradient of 0 look at the advantages and at which parameters are frozen",
            zero,
            *(
                Evidence(f"largest {name}", float(p.metric(name).max(initial=0)))
                for name in (metric.LEARNING_RATE, metric.GRAD_NORM)
            ),
            severity=Severity.CRITICAL,
        )
    if (told := _one_update(p, zero)) is not None:
        return told
    if len(frozen := _frozen(p)):
        return found(
            f"S is exactly 0 in every row after updates of {len(frozen)} rollouts that had a gradient, and not in the "
            "others: nothing moves there, or the old log-probabilities are recomputed",
            "look at the learning rate and at the optimizer's state, after a resumption say",
            zero,
            since=int(frozen[0]),
            severity=Severity.CRITICAL,
        )
    return clear("S moves once an update was made", p.moved.share("rows after an update with S = 0", p.moved.S == 0))


def _one_update(p: Patient, zero: Evidence) -> Answer | None:
    """Answer for a log with one step a rollout that does not say how many updates came before: S is rounding, or it is
    the numerics of two forward passes, or the rows were logged after their update. None for any other log.
    """
    rows = p.finite
    pairs = numbered(rows["rollout"], rows["step"])
    if "updates_since_rollout" in p.logged or pairs.max() != numbered(rows["rollout"]).max():
        return None
    if np.all(np.abs(rows.S) <= ROUNDED * np.maximum(rows.L, 16)):
        return found(
            "each rollout serves one update, and S is 0 up to the rounding of float32: no clip can act, which is right "
            "on-policy",
            "nothing, if on-policy training is wanted; else use a rollout for more than one update",
            zero,
            Evidence("largest |S|", float(np.abs(rows.S).max()), unit="nats"),
            severity=Severity.INFO,
        )
    if not np.any(p.moved.S) or enough(rows):
        return None
    root = rows.S / np.sqrt(rows.L)
    follows = rows.mean("mean of A S / sqrt(L)", np.nan_to_num(rows["advantage"]) * root)
    why, fix = "It follows A, so rows were logged after their update", "log S before the update"
    if not follows.low > 0:
        why = "It does not follow A: numerics of two forward passes, before any update"
        fix = "take old and new log-probs by one code, precision and padding; a range must be wide beside this noise"
    clipped = []
    for label in COMPARED:
        lo, hi = PRESETS[label].rule.band(rows.L)
        clipped.append(rows.share(f"out of the band of {label} at its default range", (lo > rows.S) | (hi < rows.S)))
    ranges = ", ".join(f"{label} {share.value:.0%}" for label, share in zip(COMPARED, clipped, strict=True))
    text = f"one update a rollout, and S is not 0: {np.sqrt(np.mean(root**2)):.2g} nats a root token. {why}"
    return found(f"{text}. The default ranges clip of it: {ranges}", fix, follows, *clipped, severity=Severity.INFO)


def _frozen(p: Patient) -> Ints:
    """Return the numbers of frozen rollouts: those with S exactly 0 in every row after an update that had a gradient.

    Only rollouts after the first one in which S was not 0 count, and only ``IN_SUCCESSION`` or more in succession,
    because a few updates may change only parameters on which the logged rows do not depend. Rollouts whose learning
    rate is 0 by the metrics do not count.
    """
    rows = p.finite
    step, number = rows["step"], numbered(rows["rollout"])
    pulls = np.isfinite(rows["advantage"]) & (rows["advantage"] != 0) & (rows["multiplier"] != 0)
    first = np.full(int(number.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, number[pulls], step[pulls])
    after = (step > first[number]) & (rows["updates_since_rollout"] >= 1)
    count, moves = (np.bincount(number[which], minlength=len(first)) for which in (after, after & (rows.S != 0)))
    rollout = np.unique(rows["rollout"])
    resting = [r for r, rate in p.metrics.get(metric.LEARNING_RATE, []) if rate == 0]
    frozen = (count >= LEAST_FROZEN) & (moves == 0) & ~np.isin(rollout, resting) & (np.cumsum(moves) > 0)
    # A rollout is frozen if S stayed 0 although updates were made. `run` counts the rollouts so far that are not
    # frozen. Frozen rollouts that follow each other without a gap have the same `run`, so the number of frozen rollouts
    # with one value of `run` is the length of a series.
    run = np.cumsum(~frozen)
    return rollout[frozen & (np.bincount(run, frozen)[run] >= IN_SUCCESSION)]


def old_recomputed(p: Patient) -> Answer:
    """Check whether the old log-probabilities were wrongly computed again with new weights after the rollout."""
    if few := enough(p.moved):
        return not_checked(f"too few rows after an update: {few}")
    if s_zero(p).found:
        return not_checked("S is 0 for another reason (s_zero)")
    fix = (
        "take the old log-probabilities once, right after the rollout and before its first update, and keep them for "
        "all its minibatches and epochs"
    )
    if not np.any(p.moved.S):
        return found(
            "S is exactly 0 in every row, also after updates: the old log-probabilities are recomputed with the new "
            "weights, so the ratio is always 1 and nothing is ever clipped",
            fix,
            p.moved.share("rows after an update with S = 0", p.moved.S == 0),
            Evidence("most updates since the rollout", float(p.moved["updates_since_rollout"].max())),
            severity=Severity.CRITICAL,
        )
    spread = _by_update(p)
    largest: Evidence | None = None
    for update, here in sorted(spread.items()):
        if update >= 1 and largest is not None and here.high < RESET * largest.low:
            return found(
                f"S falls back to nothing {update} updates after the rollout, inside its use: the old "
                "log-probabilities were taken again (each epoch, say), so the ratio misses the updates before",
                fix,
                largest,
                here,
                severity=Severity.CRITICAL,
            )
        if largest is None or here.low > largest.low:
            largest = here
    if not enough(p.unmoved) and np.any(p.unmoved.S):
        before, after = _size(p.unmoved, "before any update"), _size(p.moved, "after updates")
        growth = _growth_by_update(p)
        if after.high < 2 * before.low and growth.low <= 0 and growth.high < before.low:
            return found(
                "S after updates is no larger than the numerical noise before any: the old log-probabilities are "
                "recomputed with the new weights, or the weights hardly move",
                fix + "; if they are, raise the learning rate",
                before,
                after,
                growth,
                severity=Severity.CRITICAL,
            )
    ends = list(spread.values())
    return clear("S grows with the updates since the rollout", *ends[:1], *ends[-1:])


def _size(rows: Rows, when: str) -> Evidence:
    return rows.mean(f"mean S^2/L {when}", rows.S**2 / rows.L, unit="nats^2 a token")


def _by_update(p: Patient) -> dict[int, Evidence]:
    out: dict[int, Evidence] = {}
    since = p.finite["updates_since_rollout"]
    for update in np.unique(since[np.isfinite(since)]):
        rows = p.finite.take(since == update)
        if not enough(rows):
            out[int(update)] = _size(rows, f"{update:.0f} updates after the rollout")
    return out


def _growth_by_update(p: Patient) -> Evidence:
    """Return how much S^2/L grows from the first to the last update on a rollout, by a line fitted over the updates."""
    rows = p.finite
    since = rows["updates_since_rollout"]
    most = float(since.max())
    line = cluster_slope(rows.S**2 / rows.L, since, rows.cluster)
    gain = (line.slope * most, line.ci_low * most, line.ci_high * most)
    return Evidence("growth of S^2/L over the rollout's use", *gain, unit="nats^2 a token")


def not_finite(p: Patient) -> Answer:
    """Check for S or A that is NaN or infinite."""
    rows = p.rows
    known = [c for c in ("log_ratio", "advantage") if c in p.logged]
    if not known:
        return not_checked("the log holds neither S nor A")
    bad = ~np.all([np.isfinite(rows[c]) for c in known], axis=0)
    share = rows.share("rows with a NaN or infinite S or A", bad)
    if not bad.any():
        return clear("every S and A is finite", share)
    return found(
        f"{int(bad.sum())} rows have no finite S or A; one such row makes the whole batch's loss NaN",
        "cap S before exp, mask padding before the difference (inf - inf), and give failed rewards a number",
        share,
        Evidence("their mean length", float(rows["length"][bad].mean()), unit="tokens"),
        severity=Severity.CRITICAL,
    )


def numerics(p: Patient) -> Answer:
    """Check whether many responses are out of the band even before the first update, which only numerics can cause."""
    still = p.unmoved
    if few := enough(still):
        return not_checked(f"too few rows before the first update of a rollout to see the noise floor: {few}")
    if not np.any(still.S):
        return clear("S is exactly 0 before the first update: no noise floor", Evidence("noise in S", 0.0))
    before, after = p.out_of_band(still), p.out_of_band(p.moved)
    if before is None or after is None:
        return not_checked("the log names no band, so its clip ratio is not known")
    if few := enough(p.moved):
        return not_checked(f"too few rows after an update: {few}")
    floor = still.share("out of band before any update", before)
    measured = p.moved.share("out of band after updates", after)
    evidence = (floor, measured, _size(still, "before any update"))
    if floor.low < FLOOR_MINIMUM or floor.low < FLOOR_SHARE * measured.high:
        return clear("the noise floor is small beside the clip ratio", *evidence)
    return found(
        f"at least {floor.low / measured.high:.0%} of the clip ratio is there before any update, as arithmetic",
        "take old and new log-probabilities by the same code, precision, chunking and padding (float32 logits), or "
        "from the trainer and not from the sampler; or widen the band above the noise floor",
        *evidence,
        severity=Severity.CRITICAL if floor.low > 0.5 * measured.high else Severity.WARNING,
    )
