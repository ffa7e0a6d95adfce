"""Compare logged values with values recomputed from other data of the log: columns from other columns, advantages from
rewards, counters (steps, versions, uses) from each other."""

from __future__ import annotations

import numpy as np

from analysis.doctor.issues import Answer, Evidence, Severity, clear, found, not_checked
from analysis.doctor.patient import Ints, Rows
from analysis.log.rows import numbered, repeated
from analysis.rules import estimator_fit as estimators
from analysis.rules.recompute import FIRST, FOLLOWS_FROM, Compared, recompute
from fspo.gradlog.schema import RATIO_COLUMNS
from fspo.rules import Rule

FIXES = {
    "band": (
        ("drift", "lo", "hi", "correction_lo", "correction_hi"),
        "the edges are not those of the header's rule",
        "write the rule that trained into the header, and the drift that its band had",
    ),
    "clip": (
        ("band_accept", "side", "multiplier", "weight", "correction_side", "correction_weight"),
        "what the clip did is not what S, A and the edges ask for",
        "look at what the loss does with responses outside the band, and whether the logged columns are of one update",
    ),
    "sums": (
        (*(name for names in RATIO_COLUMNS.values() for name in names[1:]), "behaviour_log_ratio"),
        "no token log-ratios can have these sums",
        "sum S, its squares and k3 over the same unmasked tokens of one response, in nats, with the sign new - old",
    ),
    "uses": (
        ("times_used",),
        "times_used is not the number of earlier updates on the response",
        "count the uses of each response; rows that were trained on are no fair draws (docs/theory.md section 1)",
    ),
    "counters": (
        ("updates_since_rollout", "policy_version", "identity", "repeated"),
        "steps, versions and uses contradict each other",
        "write these columns from one place, together, before the rows are shuffled or divided",
    ),
}
"""By check: the columns that are recomputed, what is wrong if the logged columns differ from them, and the fix."""
WRONG_ROWS = {name: f"{name} differs from what follows from {source}" for name, source in FOLLOWS_FROM.items()} | {
    "policy_version": "policy_version is not the step",
    "identity": "a response changes its length, reward, advantage or prompt between its uses",
    "repeated": "the same response stands twice in one step",
}
"""What is wrong in rows, by the name of the comparison."""
WRONG_GROUPS = 0.01  # greatest share of groups with advantages of no estimator, or of another, that is not reported
USUAL = 0.9  # if at least this share of the rollouts has one number of rows or steps, those with fewer are reported
UNCHANGING = ("length", "reward", "advantage", "truncated", "engine_log_ratio", "prompt_id")
"""Columns whose value must be the same in all rows of a response."""


def of_columns(rows: Rows, rule: Rule | None, correction: Rule | None, *, imported: bool) -> dict[str, Answer]:
    """Return the answers of the checks that compare logged columns with what follows from others, by their names.

    ``rule`` and ``correction`` are those of the log's header, ``imported`` says whether another trainer's table was
    imported; its steps, versions and uses are not compared, because the import may have made them up."""
    compared = recompute(rows.columns, rule, correction, imported=imported, before=FIRST)
    response = numbered(rows["rollout"], rows["response_id"])
    first = np.unique(response, return_index=True)[1]
    x = np.stack([rows[name].astype(np.float64) for name in UNCHANGING], axis=1)
    same = np.all(np.isclose(x, x[first[response]], rtol=1e-5, atol=1e-6, equal_nan=True), axis=1)
    every = np.ones(len(rows), bool)
    compared["identity"] = Compared(every, ~same)
    compared["repeated"] = Compared(every, repeated(rows["rollout"], rows["step"], rows["response_id"]))
    if not imported:
        version = rows["policy_version"]
        known = np.isfinite(version)
        compared["policy_version"] = Compared(known, known & (version != rows["step"]))
    return {check: _column_answer(check, compared, rows["rollout"]) for check in FIXES}


def _column_answer(check: str, compared: dict[str, Compared], rollout: Ints) -> Answer:
    columns, what, fix = FIXES[check]
    known = {name: compared[name] for name in columns if name in compared and compared[name].compared.any()}
    if not known:
        return not_checked("the log lacks the columns, or names no rule on whole responses")
    wrong = {name: of for name, of in known.items() if of.wrong.any()}
    if not wrong:
        return clear("the logged columns follow from each other")
    told = (f"{WRONG_ROWS[name]} in {of.wrong.sum()} of {of.compared.sum()} rows" for name, of in wrong.items())
    since = min(int(rollout[of.wrong].min()) for of in wrong.values())
    severity = Severity.CRITICAL if check == "clip" else Severity.WARNING
    return found(f"{what}: {', '.join(told)}", fix, since=since, severity=severity)


def estimator(rows: Rows, configured: str | None, *, imported: bool) -> Answer:
    """Check whether the advantages of each group are what the estimator ``configured`` makes of its rewards (None: what
    any known estimator makes of them). ``imported`` says that the log was made from another trainer's table."""
    sizes, times = np.unique(np.bincount(rows.cluster[rows.first]), return_counts=True)
    fit = estimators.estimator_fit(rows.columns, int(max(sizes[times == times.max(initial=0)], default=0)))
    groups = len(fit.rollout)
    if not groups:
        return not_checked("no complete group with rewards and an advantage other than 0")
    fits = {name: int(which.sum()) for name, which in fit.fits.items()}
    said = {name: name for name in estimators.WRONG} | {name: f"of {name}" for name in estimators.SLOPES}
    most = sorted((name for name in said if fits[name]), key=lambda name: -fits[name])[:3]
    evidence = [Evidence(f"groups whose A is {said[name]}", fits[name] / groups, unit="share") for name in most]
    bad = [n for n in estimators.WRONG if fits[n] > WRONG_GROUPS * groups]
    if bad and imported and {*bad} <= {estimators.ZEROED, estimators.NO_LINE}:
        return not_checked("A is no line in the imported reward, which may be a part of the reward alone")
    if bad:
        worst = max(bad, key=lambda n: fits[n])
        # Groups of which responses are missing have such advantages too.
        partial = imported and worst in (estimators.NOT_CENTRED, estimators.CONSTANT)
        fix = "if the file lacks responses of these groups (one process's file, say), import all files; " * partial
        if imported and worst in (estimators.NOT_CENTRED, estimators.ZEROED, estimators.NO_LINE):
            fix += "if step counts updates and a rollout has several, `fspo import --updates-per-rollout N`; else "
        cause = "a shuffle between both, a mask, or a scale by length after the baseline does this"
        if worst == estimators.REVERSED:
            cause = "a reward or its baseline has the wrong sign: A is the reward less the group's mean"
        fix += f"compare the rewards with the advantages of one group by hand (fspo/advantages.py); {cause}"
        what = f"A is {worst} in {fits[worst]} of {groups} groups: no estimator of group rewards gives that"
        since = min(int(fit.rollout[fit.fits[name]].min()) for name in bad)
        # A critic makes advantages that do not follow the reward, too.
        severity = Severity.WARNING if partial or worst == estimators.UNRELATED else Severity.CRITICAL
        return found(what, fix, *evidence, since=since, severity=severity)
    best = max(estimators.SLOPES[:-1], key=lambda n: fits[n])
    named = configured or best
    if fits[named] >= (1 - WRONG_GROUPS) * groups:
        return clear(f"A is the reward by the estimator {named}", *evidence)
    if configured is None and (imported or fits[estimators.SLOPES[-1]] < groups):
        return clear("A is a line in the reward through the group's mean; its slope is none of ours", *evidence)
    likely = f"it is of {best}" if fits[best] > 0.9 * groups else "its scale is of no estimator"
    what = f"A is not the reward by the estimator {named} in {groups - fits[named]} of {groups} groups: {likely}"
    fix = "write the estimator that trained into the configuration, or look for a factor on the advantages"
    return found(what, fix, *evidence)


def succession(rollouts: Ints, *, imported: bool, selected: bool) -> Answer:
    """Check whether rollouts, steps and responses follow each other without gap or copy.

    ``rollouts`` (R, 7) are those of `Kept`; ``imported`` says that the log was made from another trainer's table, and
    ``selected`` that groups were selected by their outcome, so that a rollout with few rows is no defect."""
    number, rows, steps, first, last, low, high = rollouts.T
    since: dict[str, int] = {}
    if not imported and len(number):
        later, follows = number[1:], np.diff(number) == 1
        before, ids = (np.maximum.accumulate(x)[:-1] for x in (last, high))
        skipped = later[follows & (first[1:] > before + 1)]
        again = later[low[1:] <= ids]
        again = again[:0] if len(np.unique(low[1:])) == 1 and len(again) > 1 else again  # each rollout counts anew
        gaps = {
            "missing rollouts": later[~follows],
            "missing steps": np.concatenate([number[steps < last - first + 1], skipped]),
            "overlapping steps": later[first[1:] <= before],
            "overlapping responses": again,
        }
        since |= {f"{what} ({len(at)} times)": int(at.min()) for what, at in gaps.items() if len(at)}
    for what, count in (("rows", rows[:-1]), ("steps", steps[:-1])):  # the run may have been stopped in the last one
        judged = len(count) >= 5 and not (selected and what == "rows")  # groups with equal rewards were dropped
        usual = int(np.bincount(count, minlength=1).argmax())
        few = number[:-1][count < usual]
        if judged and len(few) and np.sum(count == usual) >= USUAL * len(count):
            since[f"{len(few)} rollouts with fewer {what} than the usual {usual}"] = int(few[0])
    if not since:
        return clear("rollouts, steps and responses follow each other without gap or copy")
    what = "; ".join(since) + ": parts are missing or stand twice, or files of several runs lie in one folder"
    return found(what, "copy the log again from its run; keep one run in a folder", since=min(since.values()))
