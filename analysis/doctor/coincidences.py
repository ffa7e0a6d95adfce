"""Check for what chance cannot explain: equal or rounded S, one length of many rows, advantages that follow length."""

from __future__ import annotations

import math

import numpy as np

from analysis.doctor.issues import Answer, Evidence, Severity, clear, found, not_checked
from analysis.doctor.patient import MIN_ROWS, Floats, Rows
from analysis.log.rows import numbered, repeated

LENGTHS = 10  # least number of different lengths below the token limit with which length_pile judges a log
PILE, LEAST_PILE = 0.005, 10
"""The check length_pile reports responses that have the length of the token limit, or more, and are not marked as
truncated, if they are at least the share ``PILE`` of all responses and at least ``LEAST_PILE`` responses."""
MARKED, ONE_LIMIT = 3, 0.9
"""If at least ``MARKED`` responses are marked as truncated, and the share ``ONE_LIMIT`` of them has the same length,
that length is taken as the token limit."""
CUT_OFF, TIMES = 0.01, 4.0
"""Where no response is marked as truncated, the greatest length is taken for a token limit if at least this share of
the responses has it, and this many times as many as any length in the upper half of the lengths below it."""
UNCHANGED = 0.5  # S is reported as not computed again if a larger share of later rows has exactly the S before
ONE_LENGTH = 0.9  # padding counts in the length if in this share of the minibatches all responses have one length
BY_LENGTH = 0.97  # largest |mean over groups of the correlation of A with the length| that is not reported


def values_of_s(rows: Rows) -> Answer:
    """Check whether S was rounded to 16-bit floats, or most responses have exactly the same S at successive updates."""
    rows = rows.take(np.isfinite(rows.S) & (rows["updates_since_rollout"] >= 1) & (rows.S != 0) & (rows["length"] >= 1))
    S, n = rows.S, len(rows)
    if n < MIN_ROWS:
        return not_checked(f"{n} rows with S other than 0")
    order = np.lexsort((rows["step"], rows["response_id"], rows["rollout"]))
    key = numbered(rows["rollout"], rows["response_id"])[order]
    later = (key[1:] == key[:-1]) & (np.diff(rows["step"][order]) > 0)
    same = later & (S[order][1:] == S[order][:-1])
    if later.sum() >= MIN_ROWS and same.sum() > UNCHANGED * later.sum():
        what = f"{same.sum() / later.sum():.0%} of the responses have the same S, to the last bit, at a later update: "
        what += "new log-probs are not computed again after updates"
        fix = "compute the new log-probabilities at each update, under the weights that it changes"
        return found(what, fix, severity=Severity.CRITICAL)
    single = S.astype(np.float32)
    with np.errstate(over="ignore"):
        half, brain = S.astype(np.float16) == S, (single == S) & ((single.view(np.uint32) & 0xFFFF) == 0)
    for kind, exact in (("bfloat16", brain), ("float16", half)):
        if np.mean(exact) > 0.99:
            what = f"every S is a {kind} number: sums over many tokens lose the changes of single tokens"
            return found(what, "subtract and sum log-probabilities in float32 or float64")
    return clear("S has all its digits and is computed at each update")


def length_pile(rows: Rows, limit: int | None) -> Answer:
    """Check whether responses that the token limit cut off are not marked as truncated, and whether padding counts in
    the length.

    Many responses of one length count as cut off only if that length is the token limit, because answers of a fixed
    form may all have one length too. ``limit`` is the configuration's limit or None; the log may show another."""
    rows = rows.take(rows.first & (rows["length"] >= 1))
    if not len(rows):
        return not_checked("no response has a known length")
    marked = rows["truncated"] == 1
    lengths, all_of = np.unique(rows.L, return_counts=True)
    batch = numbered(rows["rollout"], rows["step"])
    of_one = [np.bincount(batch, ~repeated(batch, rows[of].astype(np.int64))) < 2 for of in ("prompt_id", "length")]
    several, one = int(np.sum(~of_one[0])), int(np.sum(~of_one[0] & of_one[1]))
    if several >= LENGTHS and one >= ONE_LENGTH * several and len(lengths) > 2:
        what = f"in {one} of {several} minibatches all responses have one length: padding counts in the length"
        return found(what, "count the tokens of the loss's mask, which ends with the end-of-sequence token")
    guessed = False
    of_marked, times = np.unique(rows.L[marked], return_counts=True)
    if marked.sum() >= MARKED and times.max() >= ONE_LIMIT * marked.sum():
        limit = int(of_marked[times.argmax()])
    elif not marked.any() and (limit is None or lengths[-1] < limit):
        upper = all_of[(lengths >= lengths[-1] / 2) & (lengths < lengths[-1])]
        guessed = all_of[-1] >= max(CUT_OFF * len(rows), LEAST_PILE, TIMES * max(upper, default=all_of[-1]))
        limit = int(lengths[-1]) if guessed else limit
    if limit is None or np.sum(lengths < limit) < LENGTHS:
        return not_checked("the log and the configuration show no token limit, or few lengths below it")
    at, over = (int(np.sum(~marked & which)) for which in (limit == rows.L, limit < rows.L))
    low = int(0.8 * limit)
    below = float(np.sum((low <= rows.L) & (limit > rows.L))) / (limit - low)
    wrong = over + at * (at >= 5 * below + 5 * math.sqrt(below))
    if wrong < max(PILE * len(rows), LEAST_PILE):
        return clear("no pile of ended responses at the token limit, and none beyond")
    what = f"{wrong} responses have {limit} tokens, the limit, or more, and are not marked as truncated"
    if guessed:
        what = f"{wrong} responses have exactly {limit} tokens, the most, and none is marked as truncated: "
        what += "they may be cut off at a limit"
    fix = "mark responses that meet the token limit (column truncated), do not reward them as ended, and count no "
    fix += "padding in the length"
    return found(what, fix, severity=Severity.INFO if guessed else Severity.WARNING)


def advantage_by_length(rows: Rows) -> Answer:
    """Check whether the advantage is a linear function of the length, or of its logarithm, inside groups."""
    rows = rows.take(rows.first & (rows["length"] >= 1) & np.isfinite(rows["advantage"]))
    group, A = rows.cluster, rows["advantage"]
    count = np.bincount(group)
    distinct = np.bincount(group, ~repeated(group, rows["length"].astype(np.int64)))
    judged = (distinct >= 3) & (np.bincount(group, np.abs(A)) > 0)
    if judged.sum() < 20:
        return not_checked(f"{judged.sum()} groups with three lengths and an advantage, 20 are wanted")

    def inside(x: Floats) -> Floats:
        x = x - (np.bincount(group, x) / count)[group]
        return x / np.sqrt(np.maximum(np.bincount(group, x * x), np.finfo(float).tiny))[group]

    of_L, of_log = (float(np.bincount(group, inside(x) * inside(A))[judged].mean()) for x in (rows.L, np.log(rows.L)))
    name, r = ("L", of_L) if abs(of_L) >= abs(of_log) else ("log L", of_log)
    evidence = Evidence(f"mean correlation of A and {name} inside groups", r)
    if abs(r) <= BY_LENGTH:
        return clear("A is no function of the length", evidence)
    what = "inside groups the advantage is a function of the length: the reward counts tokens"
    return found(what, "look at the reward: a length penalty or bonus outweighs everything else", evidence)
