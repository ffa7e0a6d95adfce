"""Checks of what a rule is given: rewards, advantages, truncated and missing responses, how the loss is averaged."""

from __future__ import annotations

import numpy as np

from analysis.doctor.issues import Answer, Evidence, Severity, clear, found, not_checked
from analysis.doctor.patient import Floats, Patient, enough
from analysis.log.rows import repeated
from fspo.gradlog import metric_names as metric
from fspo.stats.intervals import sample_interval

FEW_ADVANTAGES = 0.1  # a run is reported if a smaller share of its responses has A != 0, and so a gradient
TRUNCATED, MOSTLY_TRUNCATED = 0.05, 0.3
WHOLE_GROUPS = 0.1  # a group size is guessed from the log only if at least this share of the groups has it
MIN_ROLLOUTS = 3
NO_GAP, END_TOKEN = 0.02, 0.05
"""In tokens. The log's mean length agrees with the metrics' if it differs by less than ``NO_GAP``. The end-of-sequence
token is named as lacking if the log has one token too few for each ended response, within ``END_TOKEN``."""
DROPPED = 0.002  # a sound run may lose this share of its responses: a verifier crashes, a line of a file is torn
VERIFIER = "run the verifier by hand on one response; if it is right, choose prompts that the model solves sometimes"
LIMIT = "raise the token limit; else leave truncated responses out of the baseline and of the loss alike"


def advantages_zero(p: Patient) -> Answer:
    """Check whether less than the share ``FEW_ADVANTAGES`` of the responses, or of those in the last quarter of the
    run, have an advantage other than 0."""
    rows = p.responses.take(np.isfinite(p.responses["advantage"]))
    if few := enough(rows):
        return not_checked(few if len(rows) else "the log has no advantages")
    share = rows.mean("responses with A != 0", rows["advantage"] != 0)
    late = rows.take(rows["rollout"] >= np.quantile(rows["rollout"], 0.75))
    last = late.mean("responses with A != 0, last quarter of the run", late["advantage"] != 0)
    text, fix, severity = f"at most {last.high:.1%} of the responses have a gradient", VERIFIER, Severity.WARNING
    if not np.any(rows["advantage"]):
        text, severity = "every advantage is 0: no response has a gradient", Severity.CRITICAL
        reward, group = np.where(np.isfinite(rows["reward"]), rows["reward"], np.nan), rows.cluster
        apart = np.abs(reward - (np.bincount(group, reward) / np.bincount(group))[group]) > 1e-6
        if apart.any() or (rows.clusters == len(rows) and len(np.unique(reward[np.isfinite(reward)])) > 1):
            fix = "rewards differ but advantages do not: check the group size (1 gives A = 0) and the order of the rows"
        elif rows.clusters < len(rows) and np.isfinite(reward).any():
            text += ", for all responses to a prompt have one reward (are they copies, of one seed?)"
    elif share.high >= FEW_ADVANTAGES:
        text += " by the end of the run"
        if enough(late) or last.high >= FEW_ADVANTAGES:
            return clear("advantages differ from 0", share, last)
    return found(text, fix, share, last, severity=severity)


def truncation(p: Patient) -> Answer:
    """Check for responses that were cut off at the token limit (which some trainers call "clipped")."""
    rows = p.responses.take(p.responses["length"] >= 1)
    if few := enough(rows):
        return not_checked(f"responses of known length: {few}")
    if not rows.has("truncated"):
        return not_checked("the log does not say which responses are truncated")
    share = rows.mean("truncated responses", rows["truncated"] == 1)
    if share.low <= TRUNCATED:
        return clear("few responses meet the token limit", share)
    what = f"{share.value:.1%} of the responses are cut off at the token limit; their length is the limit's, so every "
    what += "curve over length ends in them"
    fix = LIMIT + f"; {metric.TRUNCATED} is this share, and not the rule's" * (metric.TRUNCATED in p.metrics)
    return found(what, fix, share, severity=Severity.CRITICAL if share.low > MOSTLY_TRUNCATED else Severity.WARNING)


def dropped_sequences(p: Patient) -> Answer:
    """Check for sampled responses that did not reach the rule, or got no gradient though the rule did not clip them."""
    rows = p.responses
    if few := enough(rows):
        return not_checked(few)
    count = np.bincount(rows.cluster)
    size = _group_size(count)
    # A cluster, counted once, has a multiple of the group size if no response is missing: a prompt may occur twice in a
    # rollout.
    wanted: Floats = np.ceil(count / size) * size
    once = rows.take(~repeated(rows.cluster))
    missing = once.mean("responses missing from their groups", np.subtract(wanted, count), wanted, "share")
    shares = {f"are missing from groups of {size}": missing} if size > 1 else {}
    empty = p.rows["length"] < 1
    if not empty.all():
        shares["have no token left"] = p.rows.mean("rows without a token (wholly masked)", empty)
    live = p.finite.take((p.finite["advantage"] != 0) & np.isfinite(p.finite["multiplier"]))
    if live.has("multiplier", "side") and (p.rule is None or p.rule.level == "sequence") and not enough(live):
        muted = live.mean("kept rows with multiplier 0", (live["multiplier"] == 0) & (live["side"] == 0))
        shares["have A != 0 and no gradient, though the rule kept them"] = muted
    lost = {what: share for what, share in shares.items() if share.low > DROPPED}
    if lost:
        told = "; ".join(f"{share.value:.1%} of the responses {what}" for what, share in lost.items())
        what = f"{told}: they never reach the rule, whatever its band"
        fix = "look for a mask before the loss (TRL: mask_truncated_completions, vllm_importance_sampling_mode with "
        fix += "sequence_mask, off_policy_mask_threshold; filters on length) and take the advantages after it"
        return found(what, fix, *lost.values(), severity=Severity.CRITICAL if missing.low > 0.1 else Severity.WARNING)
    if size == 1:
        return not_checked("no common group size, so a missing response does not show (no prompt in the log?)")
    return clear(f"groups of {size} are whole and every kept response has a gradient", missing)


def _group_size(count: np.ndarray) -> int:
    """Guess how many responses were sampled for each prompt, from the number logged for each group (G,): the most
    frequent number, if the numbers of all groups are multiples of it; else the largest number that at least the share
    ``WHOLE_GROUPS`` of the groups has, or 1 if there is none."""
    frequency = np.bincount(count) / len(count)
    usual = int(frequency.argmax())
    return usual if np.all(count % usual == 0) else max(np.flatnonzero(frequency >= WHOLE_GROUPS).tolist(), default=1)


def length_weighted(p: Patient) -> Answer:
    """Check whether a rule on whole responses has a loss that is averaged by token, which favours long responses."""
    if p.aggregation is None or p.rule is None:
        return not_checked("the log names no rule, or not how the loss was averaged (`fspo import --aggregation`)")
    if p.rule.level != "sequence" or p.aggregation in ("response", "sequence"):
        return clear(f"rule {p.rule.label}, aggregation {p.aggregation!r}: each token, or each response, counts once")
    L = p.responses.L
    carried = float(L[np.quantile(L, 0.9) <= L].sum() / L.sum()) if len(L) else 0.0
    what = f"aggregation {p.aggregation!r} weights each response of a sequence rule by its length (the longest tenth "
    what += f"has {carried:.0%} of it); a band that is fair in length cannot mend that"
    fix = "average over responses: rule.aggregation response here, loss_type grpo in TRL, seq-mean-token-mean in verl"
    return found(what, fix)


def mean_length(p: Patient) -> Answer:
    """Check whether the mean length of the logged responses of each rollout equals the mean length in metrics.jsonl,
    which the trainer computed itself."""
    rows = p.responses.take(p.responses["length"] >= 1)
    if metric.MEAN_LENGTH not in p.metrics or enough(rows) or dropped_sequences(p).found:
        return not_checked("no mean length in the metrics, or responses are missing or too few")
    number, index = np.unique(rows["rollout"], return_inverse=True)
    rollout, length = np.array(p.metrics[metric.MEAN_LENGTH]).T
    told = [length[rollout == n].mean() if n in rollout else np.nan for n in number]
    off = np.array(told) - np.bincount(index, rows.L) / np.bincount(index)
    off = off[np.isfinite(off)]
    if len(off) < MIN_ROLLOUTS:
        return not_checked(f"{len(off)} rollouts with a mean length in the metrics, {MIN_ROLLOUTS} are wanted")
    gap = Evidence(f"{metric.MEAN_LENGTH} less the log's mean length, mean", *sample_interval(off), "tokens")
    if np.median(np.abs(off)) < NO_GAP:
        return clear("the log's lengths are those of the metrics", gap)
    why = "the log counts padding or other tokens" if gap.value < 0 else "the log lacks tokens, or whole responses"
    if abs(gap.value - np.mean(rows["truncated"] != 1)) < END_TOKEN:
        why = "the log's lengths lack the end-of-sequence token"
    what = f"the mean length in the metrics is {gap.value:+.3g} tokens from the log's: {why}"
    return found(what, "count in L each token of the loss's mask, the end-of-sequence token included", gap)
