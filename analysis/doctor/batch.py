"""The doctor's checks of what a rule is given: rewards, advantages, truncated and missing responses, and how the loss
is averaged.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.doctor.findings import Answer, Evidence, Severity, clear, found, not_checked
from analysis.doctor.patient import MIN_ROWS, Patient, Rows, enough
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
"""Distance of the log's mean length from the metrics' that counts as none; distance from one token for each ended
response up to which the end-of-sequence token is named as lacking. In tokens.
"""
DROPPED = 0.002
"""Greatest share of responses without a row, a token or a gradient at which the check dropped_sequences reports
nothing. A sound run loses a few responses too: a verifier may crash, or a line of a file may be torn.
"""


def advantages_zero(p: Patient) -> Answer:
    """Check whether few responses, or none, have an advantage other than 0."""
    name = "advantages_zero"
    if not p.rows.has("advantage"):
        return _equal_rewards(p, name)
    rows = p.responses
    rows = rows.take(np.isfinite(rows["advantage"]))
    if few := enough(rows):
        return not_checked(name, few)
    share = rows.share("responses with A != 0", rows["advantage"] != 0)
    late = rows.take(rows["rollout"] >= np.quantile(rows["rollout"], 0.75))
    last = late.share("responses with A != 0, last quarter of the run", late["advantage"] != 0)
    if share.high >= FEW_ADVANTAGES and np.any(rows["advantage"]) and (enough(late) or last.high >= FEW_ADVANTAGES):
        return clear(name, "advantages differ from 0", share, last)
    evidence = [share, last]
    cure = "give the verifier partial credit, or choose prompts that the model solves sometimes and not always"
    if rows.has("reward"):
        reward = rows["reward"]
        evidence.append(rows.mean("mean reward", np.nan_to_num(reward)))
        evidence.append(Evidence("standard deviation of the reward", float(np.nanstd(reward))))
        if np.nanstd(reward) == 0:
            cure = (
                "every response has the same reward: run the verifier by hand on one response (a timeout off the main "
                "thread, a wrong answer format or an exception caught as 0 gives this)"
            )
        elif not np.any(rows["advantage"]):
            cure = (
                "rewards differ but advantages do not: check the group size (1 gives A = 0) and the order of the rows"
            )
    evidence += [
        Evidence(k, float(v.mean()))
        for k in (metric.VERIFIER_ERROR, metric.VERIFIER_TIMEOUT)
        if (v := p.metric(k)).size
    ]
    everywhere = not np.any(rows["advantage"])
    return found(
        name,
        Severity.CRITICAL if everywhere else Severity.WARNING,
        "every advantage is 0: no response has a gradient"
        if everywhere
        else f"at most {last.high:.1%} of the responses have a gradient"
        + (" by the end of the run" if share.high >= FEW_ADVANTAGES else ""),
        cure,
        *evidence,
    )


def _equal_rewards(p: Patient, name: str) -> Answer:
    """Check a log without advantages by the metric that says in which share of the groups all rewards are equal."""
    equal = p.over_lines(metric.EQUAL_REWARDS, "groups with one reward for all, from the metrics")
    if equal is None:
        return not_checked(name, "the log has no advantages, nor the metrics enough lines with frac_reward_zero_std")
    if equal.low <= 1 - FEW_ADVANTAGES:
        return clear(name, "groups differ in their rewards", equal)
    always = bool(np.all(p.metric(metric.EQUAL_REWARDS) == 1))
    return found(
        name,
        Severity.CRITICAL if always else Severity.WARNING,
        f"{equal.value:.1%} of the groups have one reward for all their responses, so no advantage and no gradient",
        "run the verifier by hand on one response; if it is right, choose prompts that the model solves sometimes",
        equal,
        *(Evidence("mean reward", float(r.mean())) for r in (p.metric(metric.REWARD),) if r.size),
    )


def _limit_from_metrics(p: Patient, name: str, few: str) -> Answer:
    """Check truncation by a metric, the share of truncated responses, because too few rows have a known length."""
    share = p.over_lines(metric.TRUNCATED, "truncated responses, from the metrics")
    if share is None:
        return not_checked(name, f"responses of known length: {few}; nor have the metrics enough lines")
    if share.low <= TRUNCATED:
        return clear(name, "few responses meet the token limit", share)
    return found(
        name,
        Severity.CRITICAL if share.low > MOSTLY_TRUNCATED else Severity.WARNING,
        f"{share.value:.1%} of the responses are cut off at the token limit; {metric.TRUNCATED} is this, and no "
        "clipping by the rule",
        "raise the token limit; else leave truncated responses out of the baseline and of the loss alike",
        share,
    )


def truncation(p: Patient) -> Answer:
    """Check for responses that were cut off at the token limit (which some trainers call "clipped")."""
    name = "truncation"
    rows = p.responses
    rows = rows.take(rows["length"] >= 1)
    if few := enough(rows):
        return _limit_from_metrics(p, name, few)
    inferred = not rows.has("truncated")
    if inferred and len(np.unique(rows.L)) < MIN_LENGTHS:
        return not_checked(name, "the log does not say which responses are truncated, nor do its few lengths show it")
    limit = rows.L.max()
    cut = limit == rows.L if inferred else rows["truncated"] == 1
    label = f"responses of exactly {limit:.0f} tokens, the longest" if inferred else "truncated responses"
    share = rows.share(label, cut)
    if share.low <= TRUNCATED:
        return clear(name, "few responses meet the token limit", share)
    evidence = [share]
    outside = p.out_of_band(p.moved)
    clipped = ""
    if outside is not None and not enough(p.moved):
        all_out = p.moved.share("out of the rule's band", outside)
        ended = p.moved["truncated"] != 1 if not inferred else limit > p.moved.L
        evidence.append(all_out)
        evidence += [
            p.moved.take(which).share(f"out of band among {what}", outside[which])
            for what, which in (("truncated", ~ended), ("ended", ended))
            if which.sum() >= MIN_ROWS
        ]
        clipped = f"; the rule's own clip ratio is {all_out.value:.1%}"
    longest = np.quantile(rows.L, 0.9) <= rows.L
    evidence.append(Evidence("truncated among the longest tenth", float(cut[longest].mean()), unit="share"))
    if rows.has("reward") and cut.any() and not cut.all():
        kept = rows.take(~cut)
        only = rows.take(cut)
        evidence.append(only.mean("mean reward of truncated responses", np.nan_to_num(only["reward"])))
        evidence.append(kept.mean("mean reward of the others", np.nan_to_num(kept["reward"])))
    return found(
        name,
        Severity.INFO if inferred else Severity.CRITICAL if share.low > MOSTLY_TRUNCATED else Severity.WARNING,
        (
            f"{share.value:.1%} of the responses have the greatest length, and may be cut off at the token limit"
            if inferred
            else f"{share.value:.1%} of the responses are cut off at the token limit, which {metric.TRUNCATED} "
            f"calls clipped{clipped}; their length is the limit's, so every curve over length ends in them"
        ),
        "raise the token limit; else leave truncated responses out of the baseline and of the loss alike, and read "
        f"{metric.CLIPPED} and its like, not {metric.TRUNCATED}, for the rule"
        + ("; log the column truncated" if inferred else ""),
        *evidence,
    )


def dropped_sequences(p: Patient) -> Answer:
    """Check for responses that were sampled and then did not reach the rule, or reached it without a gradient."""
    name = "dropped_sequences"
    rows = p.responses
    if few := enough(rows):
        return not_checked(name, few)
    count = np.bincount(rows.cluster)
    size = _group_size(count)
    # Number of responses that each cluster would have if none were missing: a multiple of the group size, because a
    # prompt may occur twice in a rollout.
    whole = np.ceil(count / size).astype(np.int64) * size
    short = (count < whole)[rows.cluster]
    # Mask of the first row of each cluster, so that each cluster counts once.
    once = ~pd.Series(rows.cluster).duplicated().to_numpy()
    missing = rows.take(once).mean(
        "responses missing from their groups",
        (whole - count).astype(np.float64),
        whole.astype(np.float64),
        "share",
    )
    evidence: list[Evidence] = []
    reasons: list[str] = []
    if size > 1 and missing.low > DROPPED:
        reasons.append(f"{missing.value:.1%} of the responses are missing from groups of {size}")
        evidence += [missing, Evidence("incomplete groups", float((count < whole).mean()), unit="share")]
        evidence += _missing_length(p, rows, whole)
        partial = rows.take(short & np.isfinite(rows["advantage"]))
        if len(partial) >= MIN_ROWS:
            evidence.append(
                partial.mean(
                    "mean A left in incomplete groups (0 if it was centred on what is left)", partial["advantage"]
                )
            )
    if p.rows.has("length") and np.any(p.rows["length"] >= 1):
        empty = p.rows.share("rows without a token (wholly masked)", p.rows["length"] < 1)
        if empty.low > DROPPED:
            reasons.append(f"{empty.value:.1%} of the rows have no token left")
            evidence.append(empty)
    muted = _muted(p)
    if muted is not None and muted.low > DROPPED:
        reasons.append(f"{muted.value:.1%} of the responses with A != 0 have no gradient though the rule kept them")
        evidence.append(muted)
    limit = p.metric(metric.TRUNCATED)
    if limit.size and limit.mean() > 0.01 and rows.has("truncated") and not np.any(rows["truncated"] == 1):
        reasons.append("the metrics report truncated responses and the log holds none")
        evidence.append(Evidence(f"{metric.TRUNCATED} in the metrics", float(limit.mean()), unit="share"))
    if reasons:
        return found(
            name,
            Severity.CRITICAL if missing.low > 0.1 else Severity.WARNING,
            "; ".join(reasons) + ": they never reach the rule, whatever its band",
            "look for a mask before the loss (TRL: mask_truncated_completions, vllm_importance_sampling_mode with "
            "sequence_mask, off_policy_mask_threshold; filters on length) and take the advantages after it, not before",
            *evidence,
        )
    if size == 1:
        return not_checked(name, "no common group size, so a missing response does not show (no prompt in the log?)")
    return clear(name, f"groups of {size} are whole and every kept response has a gradient", missing)


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


def _missing_length(p: Patient, rows: Rows, whole: np.ndarray) -> list[Evidence]:
    """Compute the mean length of the responses that the log lacks. The metrics give the mean length of all responses.

    ``whole`` is the number of responses that each cluster would have if none were missing.
    """
    sampled = np.array(p.metrics.get(metric.MEAN_LENGTH, []))
    if not len(sampled):
        return []
    number, index = np.unique(rows["rollout"], return_inverse=True)
    by_rollout = {r: sampled[sampled[:, 0] == r, 1].mean() for r in np.unique(sampled[:, 0])}
    mean = np.array([by_rollout.get(float(r), np.nan) for r in number])
    here = np.bincount(index).astype(np.float64)
    in_group = np.bincount(rows.cluster)[rows.cluster]
    wanted = np.bincount(index, whole[rows.cluster] / in_group)
    known = np.isfinite(mean)
    absent = float((wanted - here)[known].sum())
    if absent < 1:
        return []
    implied = float((mean * wanted - np.bincount(index, rows["length"]))[known].sum()) / absent
    return [
        Evidence(f"mean length of the missing ones, from {metric.MEAN_LENGTH}", implied, unit="tokens"),
        Evidence("mean length of the logged ones", float(rows["length"].mean()), unit="tokens"),
    ]


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
    name = "length_weighted"
    if p.aggregation is None:
        return not_checked(name, "how the loss was averaged is not in the log (`fspo import --aggregation` says it)")
    if p.rule is None:
        return not_checked(name, "the log names no rule")
    if p.rule.level != "sequence":
        return clear(name, f"rule {p.rule.label} acts on tokens: each counts once")
    if p.aggregation in ("response", "sequence"):
        return clear(name, f"aggregation {p.aggregation!r}: each response counts once")
    rows = p.responses
    rows = rows.take((rows["length"] >= 1) & np.isfinite(rows["advantage"]) & (rows["advantage"] != 0))
    evidence: list[Evidence] = []
    summary = ""
    if not enough(rows):
        top = np.quantile(rows.L, 0.9) <= rows.L
        share = rows.mean("weight of the longest tenth (A != 0)", rows.L * top, rows.L, "share")
        evidence = [
            share,
            Evidence("their number", float(top.mean()), unit="share"),
            rows.mean("mean length as the loss weights it", rows.L**2, rows.L, "tokens"),
            rows.mean("mean length", rows.L, unit="tokens"),
            Evidence("LRE_2 of the weights alone", float(np.std(rows.L) / np.mean(rows.L))),
        ]
        summary = f": the longest {top.mean():.0%} of the responses carry {share.value:.0%} of it"
    return found(
        name,
        Severity.WARNING,
        f"aggregation {p.aggregation!r} weights each response of a sequence rule by its length{summary}; a band that "
        "is fair in length cannot mend that",
        "average over responses: rule.aggregation response here, loss_type grpo in TRL, seq-mean-token-mean in verl",
        *evidence,
    )


def mean_length(p: Patient) -> Answer:
    """Check whether the log's lengths have the mean that the trainer's metrics give, rollout by rollout."""
    name, told = "mean_length", np.array(p.metrics.get(metric.MEAN_LENGTH, []))
    rows = p.responses.take(p.responses["length"] >= 1)
    if not len(told) or enough(rows) or dropped_sequences(p).found:
        return not_checked(name, "no mean length in the metrics, or responses are missing or too few")
    number, index = np.unique(rows["rollout"], return_inverse=True)
    logged = np.bincount(index, rows.L) / np.bincount(index)
    said = {r: told[told[:, 0] == r, 1].mean() for r in np.unique(told[:, 0])}
    off = np.array([said[r] - x for r, x in zip(number, logged, strict=True) if r in said])
    if len(off) < MIN_ROLLOUTS:
        return not_checked(name, f"{len(off)} rollouts with a mean length in the metrics, {MIN_ROLLOUTS} are wanted")
    gap = Evidence(f"{metric.MEAN_LENGTH} less the log's mean length, mean", *sample_interval(off), "tokens")
    ended = Evidence("responses that are not truncated", float(np.mean(rows["truncated"] != 1)), unit="share")
    if np.median(np.abs(off)) < NO_GAP:
        return clear(name, "the log's lengths are those of the metrics", gap)
    lacks_end = abs(gap.value - ended.value) < END_TOKEN
    return found(
        name,
        Severity.WARNING,
        f"the mean length in the metrics is {gap.value:+.3g} tokens from the log's: "
        + (
            "the log's lengths lack the end-of-sequence token"
            if lacks_end
            else "the log counts padding or other tokens"
            if gap.value < 0
            else "the log lacks tokens, or whole responses"
        ),
        "count in L each token of the loss's mask, the end-of-sequence token included",
        gap,
        ended,
    )
