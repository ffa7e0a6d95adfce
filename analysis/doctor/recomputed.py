"""Compare logged values with values recomputed from other data of the log: columns from other columns, advantages from
rewards, counters (steps, versions, uses) from each other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.doctor.issues import Answer, Evidence, Severity, clear, found, not_checked
from analysis.doctor.patient import Ints, Mask, Rows
from analysis.log.rows import numbered, repeated
from analysis.rules.estimator_fit import NO_LINE, SLOPES, WRONG, ZEROED, estimator_fit
from analysis.rules.recompute import FIRST, FOLLOWS_FROM, recompute
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
"""What is wrong in the rows that `Recomputed` counts, by the name under which it counts them."""
WRONG_GROUPS = 0.01
"""The check estimator reports advantages that no known estimator makes, or that the run's estimator does not make, only
if more than this share of the groups has them.
"""
USUAL = 0.9
"""If at least this share of the rollouts has the same number of rows, steps or files, rollouts with fewer are reported.
The last rollout is not reported, because the run may have been stopped in it.
"""
CONSTANT = ("length", "reward", "advantage", "truncated", "engine_log_ratio", "prompt_id")
"""Columns whose value must be the same in all rows of a response."""


@dataclass
class Recomputed:
    """Counts of rows with a logged value that other columns contradict. Pass complete rollouts to ``add``, in order.

    Parameters
    ----------
    estimator : str, optional
        The advantage estimator that the configuration names.
    imported : bool
        Whether another trainer's table was imported; its steps, versions and uses are not compared, because the import
        may have made them up.
    """

    rule: Rule | None = None
    correction: Rule | None = None
    estimator: str | None = None
    imported: bool = False
    rows: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    since: dict[str, int] = field(default_factory=dict)
    groups: int = 0
    fits: Counter[str] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)
    of_rollout: dict[str, Counter[int]] = field(default_factory=lambda: {"rows": Counter(), "steps": Counter()})
    odd: dict[str, dict[int, int]] = field(default_factory=lambda: {"rows": {}, "steps": {}})
    latest: dict[str, int] = field(default_factory=dict)  # how many "rows" and "steps" the last rollout has
    last_rollout: int = FIRST[0]
    last_step: int = FIRST[1]
    last_response: int = -1
    starts: Counter[int] = field(default_factory=Counter)

    def add(self, rows: Rows) -> None:
        """Recompute the columns of complete rollouts, and count the rows in which the logged columns differ."""
        c, rollout = rows.columns, rows["rollout"]
        before = (self.last_rollout, self.last_step)
        for name, done in recompute(c, self.rule, self.correction, imported=self.imported, before=before).items():
            self._count(name, done.wrong, rollout, int(done.compared.sum()))
        self._advantages(rows)
        self._identity(rows)
        for number in np.unique(rollout):
            self._rollout(int(number), rows.take(rollout == number))

    def _count(self, name: str, wrong: Mask, rollout: Ints, compared: int) -> None:
        self.rows[name] += compared
        if wrong.any():
            self.wrong[name] += int(wrong.sum())
            self.since.setdefault(name, int(rollout[wrong].min()))

    def _advantages(self, rows: Rows) -> None:
        if not rows.has("reward", "advantage"):
            return
        first = ~repeated(rows["rollout"], rows["response_id"])
        count = np.bincount(numbered(rows["rollout"][first], rows["prompt_id"][first]))
        self.sizes.update(count.tolist())
        fit = estimator_fit(rows.columns, max(self.sizes, key=lambda size: self.sizes[size]))
        self.groups += len(fit.rollout)
        for name, which in fit.fits.items():
            self.fits[name] += int(which.sum())
            if which.any():
                self.since.setdefault(name, int(fit.rollout[which].min()))

    def _identity(self, rows: Rows) -> None:
        """Count rows that contradict their response's first row, and rows logged twice.

        A row contradicts the first if they differ in a column of ``CONSTANT``, such as length or reward.
        """
        response = numbered(rows["rollout"], rows["response_id"])
        first = np.zeros(int(response.max(initial=-1)) + 1, np.int64)
        first[response[::-1]] = np.arange(len(response))[::-1]
        for name in CONSTANT:
            x = rows[name].astype(np.float64)
            wrong = ~np.isclose(x, x[first[response]], rtol=1e-5, atol=1e-6, equal_nan=True)
            self._count("identity", wrong, rows["rollout"], len(x) if name == "length" else 0)
        again = repeated(rows["rollout"], rows["step"], rows["response_id"])
        self._count("repeated", again, rows["rollout"], len(again))

    def _rollout(self, number: int, rows: Rows) -> None:
        """Compare one rollout's steps, versions and response numbers with each other and with the rollout before."""
        step, rollout = rows["step"], rows["rollout"]
        first, last = int(step.min()), int(step.max())
        steps = len(np.unique(step))
        for name, value in (("rows", len(step)), ("steps", steps)):
            self.of_rollout[name][value] += 1
            self.odd[name].setdefault(value, number)
            self.latest[name] = value
        one = np.ones(1, bool)
        here = np.array([number])
        if self.imported:
            return
        version = rows["policy_version"]
        known = np.isfinite(version)
        self._count("policy_version", known & (version != step), rollout, int(known.sum()))
        self._count("missing steps", one & (steps < last - first + 1), here, 1)
        if self.last_rollout != FIRST[0]:
            self._count("missing rollouts", one & (number > self.last_rollout + 1), here, 1)
            self._count("overlapping steps", one & (first <= self.last_step), here, 1)
            if number == self.last_rollout + 1:
                self._count("missing steps", one & (first > self.last_step + 1), here, 1)
            ids = int(rows["response_id"].min())
            self.starts[ids] += 1
            self._count("overlapping responses", one & (ids <= self.last_response), here, 1)
        self.last_rollout, self.last_step = number, max(last, self.last_step)
        self.last_response = max(int(rows["response_id"].max()), self.last_response)

    def answers(self, files: dict[str, Any], *, selected: bool = False) -> dict[str, Answer]:
        """Return the answers of the checks that recompute a log, by their names.

        ``files`` are the defects of the log's files, each with its first rollout. ``selected`` says whether groups were
        selected by their outcome; if they were, a rollout with fewer rows than usual is no defect.
        """
        answers = {name: self._columns(name) for name in FIXES}
        return answers | {"estimator": self._estimator(), "log": self._log(files, selected)}

    def _columns(self, check: str) -> Answer:
        columns, what, fix = FIXES[check]
        if not any(self.rows[c] for c in columns):
            return not_checked("the log lacks the columns, or names no rule on whole responses")
        wrong = [c for c in columns if self.wrong[c]]
        if not wrong:
            return clear("the logged columns follow from each other")
        share = {c: self.wrong[c] / self.rows[c] for c in wrong}
        evidence = [Evidence(WRONG_ROWS[c], share[c], unit="share") for c in sorted(wrong, key=lambda c: -share[c])[:3]]
        listed = ", ".join(
            f"{WRONG_ROWS[c] if check == 'counters' else c} in {self.wrong[c]} of {self.rows[c]} rows" for c in wrong
        )
        severity = Severity.CRITICAL if check == "clip" else Severity.WARNING
        return found(f"{what}: {listed}", fix, *evidence, since=min(self.since[c] for c in wrong), severity=severity)

    def _estimator(self) -> Answer:
        if not self.groups:
            return not_checked("no complete group with rewards and an advantage other than 0")
        fits, groups, enough = self.fits, self.groups, (1 - WRONG_GROUPS) * self.groups
        most = sorted((n for n in (*WRONG, *SLOPES) if fits[n]), key=lambda n: -fits[n])[:3]
        of = {n: n if n in WRONG else f"of {n}" for n in most}
        evidence = [Evidence(f"groups whose A is {of[n]}", fits[n] / groups, unit="share") for n in most]
        bad = [n for n in WRONG if fits[n] > WRONG_GROUPS * groups]
        if bad and self.imported and {*bad} <= {ZEROED, NO_LINE}:
            return not_checked("A is no line in the imported reward, which may be a part of the reward alone")
        if bad:
            worst = max(bad, key=lambda n: fits[n])
            return found(
                f"A is {worst} in {fits[worst]} of {groups} groups: no estimator of group rewards gives that",
                "compare the rewards with the advantages of one group by hand (fspo/advantages.py); a shuffle between "
                "both, a mask, or a scale by length after the baseline does this",
                *evidence,
                since=min(self.since[n] for n in bad),
                severity=Severity.CRITICAL,
            )
        best = max(SLOPES[:-1], key=lambda n: fits[n])
        named = self.estimator or best
        if fits[named] >= enough:
            return clear(f"A is the reward by the estimator {named}", *evidence)
        if self.estimator is None and fits[SLOPES[-1]] < groups:
            return clear("A is a line in the reward through the group's mean; its slope is none of ours", *evidence)
        if self.estimator is None and self.imported:
            return clear("A is the centred reward times a constant", *evidence)
        likely = f"it is of {best}" if fits[best] > 0.9 * groups else "its scale is of no estimator"
        return found(
            f"A is not the reward by the estimator {named} in {groups - fits[named]} of {groups} groups: {likely}",
            "write the estimator that trained into the configuration, or look for a factor on the advantages",
            *evidence,
        )

    def _log(self, files: dict[str, Any], selected: bool) -> Answer:
        since: dict[str, int] = {}
        numbering = len(self.starts) == 1 and self.wrong["overlapping responses"] > 1
        for key in ("missing rollouts", "missing steps", "overlapping steps", "overlapping responses"):
            if self.wrong[key] and not (key == "overlapping responses" and numbering):
                since[f"{key} ({self.wrong[key]} times)"] = self.since[key]
        for key, odd in self.odd.items():
            if key == "rows" and selected:
                continue  # dropped groups with equal rewards explain why a rollout has fewer rows
            sizes = self.of_rollout[key] - Counter([self.latest.get(key, 0)])
            usual, times = sizes.most_common(1)[0] if sizes else (0, 0)
            few = [size for size in sizes if size < usual]
            if few and times >= USUAL * sizes.total() and sizes.total() >= 5:
                text = f"{sum(sizes[size] for size in few)} rollouts with fewer {key} than the usual {usual}"
                since[text] = min(odd[size] for size in few)
        since |= files
        if not since:
            return clear("rollouts, steps and responses follow each other without gap or copy")
        return found(
            "; ".join(since) + ": parts are missing, or files of several runs lie in one folder",
            "copy the log again from its run; keep one run in a folder",
            since=min(since.values()),
        )
