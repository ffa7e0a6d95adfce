"""The doctor's checks of what a rule is given: rewards, advantages, truncated and missing responses, and how the loss
is averaged.
"""

from __future__ import annotations

import numpy as np

from analysis.doctor.issues import Answer, Evidence, Severity, clear, found, not_checked
from analysis.doctor.patient import Floats, Patient, Rows, by_metric, enough
from analysis.log.rows import repeated
from fspo.gradlog import metric_names as metric
from fspo.stats.intervals import sample_interval

FEW_ADVANTAGES = 0.1
"""A run is reported if fewer than this share of its responses have A != 0, because nearly no response has a gradient.
"""
TRUNCATED, MOSTLY_TRUNCATED = 0.05, 0.3
WHOLE_GROUPS = 0.1
"""When the group size is guessed from the log, only a size that at least this share of the groups has is considered."""
MIN_LENGTHS = 20
"""If a log does not mark truncated responses, the check truncation takes its longest responses as truncated. It does so
only if the log has at least this many different lengths.
"""
MIN_ROLLOUTS = 3
NO_GAP, END_TOKEN = 0.02, 0.05
"""In tokens. The log's mean length agrees with the metrics' if it differs by less than ``NO_GAP``. The end-of-sequence
token is named as lacking if the log has one token too few for each ended response, within ``END_TOKEN``.
"""
DROPPED = 0.002
"""Greatest share of responses without a row, a token or a gradient at which the check dropped_sequences reports
nothing. A sound run loses a few responses too: a verifier may crash, or a line of a file may be torn.
"""


def advantages_zero(p: Patient) -> Answer:
    """Check whether few responses, or none, have an advantage other than 0."""
    if not p.rows.has("advantage"):
        return by_metric(
            p,
            (metric.EQUAL_REWARDS,),
            _how_equal,
            "{share:.1%} of the groups have one reward for all their responses, so no advantage and no gradient",
            "run the verifier by hand on one response; if it is right, choose prompts that the model solves sometimes",
            "groups differ in their rewards",
            "the log has no advantages",
        )
    rows = p.responses
    rows = rows.take(np.isfinite(rows["advantage"]))
    if few := enough(rows):
        return not_checked(few)
    share = rows.share("responses with A != 0", rows["advantage"] != 0)
    late = rows.take(rows["rollout"] >= np.quantile(rows["rollout"], 0.75))
    last = late.share("responses with A != 0, last quarter of the run", late["advantage"] != 0)
    none = not np.any(rows["advantage"])
    if share.high >= FEW_ADVANTAGES and not none and (enough(late) or last.high >= FEW_ADVANTAGES):
        return clear("advantages differ from 0", share, last)
    fix = "give the verifier partial credit, or choose prompts that the model solves sometimes and not always"
    if rows.has("reward") and np.nanstd(rows["reward"]) == 0:
        fix = (
            "every response has the same reward: run the verifier by hand on one response (a timeout off the main "
            "thread, a wrong answer format or an exception caught as 0 gives this)"
        )
    elif rows.has("reward") and none:
        fix = "rewards differ but advantages do not: check the group size (1 gives A = 0) and the order of the rows"
    by_the_end = " by the end of the run" if share.high >= FEW_ADVANTAGES else ""
    return found(
        "every advantage is 0: no response has a gradient"
        if none
        else f"at most {last.high:.1%} of the responses have a gradient{by_the_end}",
        fix,
        share,
        last,
        severity=Severity.CRITICAL if none else Severity.WARNING,
    )


def _how_equal(shares: Floats, mean: Evidence) -> Severity | None:
    if mean.low <= 1 - FEW_ADVANTAGES:
        return None
    return Severity.CRITICAL if np.all(shares == 1) else Severity.WARNING


def truncation(p: Patient) -> Answer:
    """Check for responses that were cut off at the token limit (which some trainers call "clipped")."""
    rows = p.responses
    rows = rows.take(rows["length"] >= 1)
    fix = "raise the token limit; else leave truncated responses out of the baseline and of the loss alike"

    def severity(share: Evidence) -> Severity | None:
        if share.low <= TRUNCATED:
            return None
        return Severity.CRITICAL if share.low > MOSTLY_TRUNCATED else Severity.WARNING

    if few := enough(rows):
        return by_metric(
            p,
            (metric.TRUNCATED,),
            lambda _, share: severity(share),
            f"{{share:.1%}} of the responses are cut off at the token limit; {metric.TRUNCATED} is this, and no "
            "clipping by the rule",
            fix,
            "few responses meet the token limit",
            f"responses of known length: {few}",
        )
    inferred = not rows.has("truncated")
    if inferred and len(np.unique(rows.L)) < MIN_LENGTHS:
        return not_checked("the log does not say which responses are truncated, nor do its few lengths show it")
    limit = rows.L.max()
    label = f"responses of exactly {limit:.0f} tokens, the longest" if inferred else "truncated responses"
    share = rows.share(label, limit == rows.L if inferred else rows["truncated"] == 1)
    how_bad = severity(share)
    if how_bad is None:
        return clear("few responses meet the token limit", share)
    if inferred:
        text = f"{share.value:.1%} of the responses have the greatest length, and may be cut off at the token limit"
        return found(text, f"{fix}; log the column truncated", share, severity=Severity.INFO)
    outside, clipped = p.out_of_band(p.moved), ""
    if outside is not None and not enough(p.moved):
        clipped = f"; the rule's own clip rate is {outside.mean():.1%}"
    return found(
        f"{share.value:.1%} of the responses are cut off at the token limit, which {metric.TRUNCATED} calls clipped"
        f"{clipped}; their length is the limit's, so every curve over length ends in them",
        f"{fix}, and read {metric.CLIPPED} and its like, not {metric.TRUNCATED}, for the rule",
        share,
        severity=how_bad,
    )


def dropped_sequences(p: Patient) -> Answer:
    """Check for responses that were sampled and then did not reach the rule, or reached it without a gradient."""
    rows = p.responses
    if few := enough(rows):
        return not_checked(few)
    count = np.bincount(rows.cluster)
    size = _group_size(count)
    # Number of responses that each cluster would have if none were missing: a multiple of the group size, because a
    # prompt may occur twice in a rollout.
    whole = np.ceil(count / size).astype(np.int64) * size
    once, wanted = rows.take(~repeated(rows.cluster)), whole.astype(np.float64)  # each cluster counts once
    missing = once.mean("responses missing from their groups", wanted - count, wanted, "share")
    evidence: list[Evidence] = []
    reasons: list[str] = []
    if size > 1 and missing.low > DROPPED:
        reasons.append(f"{missing.value:.1%} of the responses are missing from groups of {size}")
        evidence += [missing, *_missing_length(p, rows, whole)]
    for share, said in (
        (_empty(p), "of the rows have no token left"),
        (_muted(p), "of the responses with A != 0 have no gradient though the rule kept them"),
    ):
        if share is not None and share.low > DROPPED:
            reasons.append(f"{share.value:.1%} {said}")
            evidence.append(share)
    limit = p.metric(metric.TRUNCATED)
    if limit.size and limit.mean() > 0.01 and rows.has("truncated") and not np.any(rows["truncated"] == 1):
        reasons.append("the metrics report truncated responses and the log holds none")
        evidence.append(Evidence(f"{metric.TRUNCATED} in the metrics", float(limit.mean()), unit="share"))
    if reasons:
        return found(
            "; ".join(reasons) + ": they never reach the rule, whatever its band",
            "look for a mask before the loss (TRL: mask_truncated_completions, vllm_importance_sampling_mode with "
            "sequence_mask, off_policy_mask_threshold; filters on length) and take the advantages after it, not before",
            *evidence,
            severity=Severity.CRITICAL if missing.low > 0.1 else Severity.WARNING,
        )
    if size == 1:
        return not_checked("no common group size, so a missing response does not show (no prompt in the log?)")
    return clear(f"groups of {size} are whole and every kept response has a gradient", missing)


def _group_size(count: np.ndarray) -> int:
    """Guess how many responses were sampled for each prompt; ``count`` (G,) is the number logged for each group.

    The guess is the most frequent number, if the numbers of all groups are multiples of it. Else it is the largest
    number that at least the share ``WHOLE_GROUPS`` of the groups has, or 1 if there is no such number.
    """
    frequency = np.bincount(count) / len(count)
    usual = int(frequency.argmax())
    if np.all(count % usual == 0):
        return usual
    common = np.flatnonzero(frequency >= WHOLE_GROUPS)
    return int(common.max()) if len(common) else 1


def _told_lengths(p: Patient, rollout: np.ndarray) -> Floats:
    """Return the mean length (K,) that the metrics give for each rollout (K,); NaN where they give none."""
    told: dict[float, list[float]] = {}
    for number, length in p.metrics.get(metric.MEAN_LENGTH, []):
        told.setdefault(number, []).append(length)
    return np.array([np.mean(told.get(float(number), [np.nan])) for number in rollout], np.float64)


def _missing_length(p: Patient, rows: Rows, whole: np.ndarray) -> list[Evidence]:
    """Compute the mean length of the responses that the log lacks. The metrics give the mean length of all responses.

    ``whole`` is the number of responses that each cluster would have if none were missing.
    """
    number, index = np.unique(rows["rollout"], return_inverse=True)
    mean = _told_lengths(p, number)
    wanted = np.bincount(index, (whole / np.bincount(rows.cluster))[rows.cluster])
    known = np.isfinite(mean)
    absent = float((wanted - np.bincount(index))[known].sum())
    if absent < 1:
        return []
    implied = float((mean * wanted - np.bincount(index, rows["length"]))[known].sum()) / absent
    label = (
        f"mean length of the missing ones, from {metric.MEAN_LENGTH} (of the logged ones: {rows['length'].mean():.4g})"
    )
    return [Evidence(label, implied, unit="tokens")]


def _empty(p: Patient) -> Evidence | None:
    """Return the share of rows without a token; None if the log has no lengths."""
    empty = p.rows["length"] < 1
    return None if empty.all() else p.rows.share("rows without a token (wholly masked)", empty)


def _muted(p: Patient) -> Evidence | None:
    """Return the share of rows with A != 0 that have multiplier 0 although the rule did not clip them (side 0)."""
    if not p.finite.has("multiplier", "side") or (p.rule is not None and p.rule.level != "sequence"):
        return None
    live = p.finite.take((p.finite["advantage"] != 0) & np.isfinite(p.finite["multiplier"]))
    if enough(live):
        return None
    return live.share("kept rows with multiplier 0", (live["multiplier"] == 0) & (live["side"] == 0))


def length_weighted(p: Patient) -> Answer:
    """Check whether a rule on whole responses has a loss that is averaged by token, which favours long responses."""
    if p.aggregation is None:
        return not_checked("how the loss was averaged is not in the log (`fspo import --aggregation` says it)")
    if p.rule is None:
        return not_checked("the log names no rule")
    if p.rule.level != "sequence":
        return clear(f"rule {p.rule.label} acts on tokens: each counts once")
    if p.aggregation in ("response", "sequence"):
        return clear(f"aggregation {p.aggregation!r}: each response counts once")
    rows = p.responses
    rows = rows.take((rows["length"] >= 1) & np.isfinite(rows["advantage"]) & (rows["advantage"] != 0))
    evidence: list[Evidence] = []
    summary = ""
    if not enough(rows):
        top = np.quantile(rows.L, 0.9) <= rows.L
        evidence = [
            rows.mean("weight of the longest tenth (A != 0)", rows.L * top, rows.L, "share"),
            rows.mean("mean length as the loss weights it", rows.L**2, rows.L, "tokens"),
            Evidence("LRE_2 of the weights alone", float(np.std(rows.L) / np.mean(rows.L))),
        ]
        summary = f": the longest {top.mean():.0%} of the responses carry {evidence[0].value:.0%} of it"
    return found(
        f"aggregation {p.aggregation!r} weights each response of a sequence rule by its length{summary}; a band that "
        "is fair in length cannot mend that",
        "average over responses: rule.aggregation response here, loss_type grpo in TRL, seq-mean-token-mean in verl",
        *evidence,
    )


def mean_length(p: Patient) -> Answer:
    """Check whether the log's lengths have the mean that the trainer's metrics give, rollout by rollout."""
    rows = p.responses.take(p.responses["length"] >= 1)
    if metric.MEAN_LENGTH not in p.metrics or enough(rows) or dropped_sequences(p).found:
        return not_checked("no mean length in the metrics, or responses are missing or too few")
    number, index = np.unique(rows["rollout"], return_inverse=True)
    off = _told_lengths(p, number) - np.bincount(index, rows.L) / np.bincount(index)
    off = off[np.isfinite(off)]
    if len(off) < MIN_ROLLOUTS:
        return not_checked(f"{len(off)} rollouts with a mean length in the metrics, {MIN_ROLLOUTS} are wanted")
    gap = Evidence(f"{metric.MEAN_LENGTH} less the log's mean length, mean", *sample_interval(off), "tokens")
    ended = Evidence("responses that are not truncated", float(np.mean(rows["truncated"] != 1)), unit="share")
    if np.median(np.abs(off)) < NO_GAP:
        return clear("the log's lengths are those of the metrics", gap)
    why = "the log counts padding or other tokens" if gap.value < 0 else "the log lacks tokens, or whole responses"
    if abs(gap.value - ended.value) < END_TOKEN:
        why = "the log's lengths lack the end-of-sequence token"
    return found(
        f"the mean length in the metrics is {gap.value:+.3g} tokens from the log's: {why}",
        "count in L each token of the loss's mask, the end-of-sequence token included",
        gap,
        ended,
    )
