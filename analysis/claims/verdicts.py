"""Verdicts on the claims from the estimates of many runs. Seeds are the units of every test.

A hypothesis is tested on each task by Student's t over seeds. A claim is supported if each of its hypotheses is shown
on each task, and refuted if the opposite of one of them is shown. Holm's correction over all claims keeps the
probability of any wrong support at most `ALPHA`, and that of any wrong refutation too; a claim that is neither
supported nor refuted is open."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from analysis.claims.catalogue import CLAIMS, TASKS, Claim, Hypothesis
from fspo.base.files import whole_file
from fspo.stats.intervals import CONFIDENCE, sample_interval, t_quantile

ALPHA = (1 - CONFIDENCE) / 2
"""Level of the tests on each side."""

Verdict = Literal["supported", "refuted", "open"]


class JudgedHypothesis(NamedTuple):
    """A hypothesis on one task, a row of ``parts.csv``: its numbers over seeds."""

    claim: Annotated[str, "id of the claim", "text"]
    task: Annotated[str, "task", "text"]
    hypothesis: Annotated[str, "what is claimed of the mean over seeds", "text"]
    seeds: Annotated[int, "runs, or pairs of runs with one seed, that give a number", "number"]
    mean: Annotated[float, "mean over seeds; smaller in size: of |rival| - |rule| of each seed", "the estimand's"]
    ci_low: Annotated[float, "lower end of its interval", "the estimand's"]
    ci_high: Annotated[float, "upper end of its interval", "the estimand's"]
    sd: Annotated[float, "standard deviation between seeds", "the estimand's"]
    new_low: Annotated[float, "lower end of the prediction interval for one new seed", "the estimand's"]
    new_high: Annotated[float, "upper end of that interval", "the estimand's"]
    p_for: Annotated[float, "p-value of the hypothesis' opposite; smaller in size: of the means", "probability"]
    p_against: Annotated[float, "p-value of the hypothesis", "probability"]


class JudgedClaim(NamedTuple):
    """A claim with its verdict, a row of ``claims.csv``."""

    claim: Annotated[str, "id of the claim", "text"]
    sentence: Annotated[str, "what is claimed", "text"]
    verdict: Annotated[Verdict, "supported, refuted or open", "text"]
    p_for: Annotated[float, "p-value against the claim's opposite, corrected by Holm over all claims", "probability"]
    p_against: Annotated[float, "p-value against the claim, corrected by Holm over all claims", "probability"]
    decides: Annotated[str, "task and hypothesis that decide the verdict", "text"]


def above(values: np.ndarray, margin: float) -> tuple[float, float]:
    """Return the p-values of "the mean is at most the margin" and of "the mean is at least the margin".

    ``values`` (N,) has one number for each seed. Both are 1 with fewer than two seeds."""
    if len(values) < 2:
        return 1.0, 1.0
    error = float(values.std(ddof=1) / np.sqrt(len(values)))
    distance = float(values.mean()) - margin
    if error == 0:
        return (0.0, 1.0) if distance > 0 else (1.0, 0.0) if distance < 0 else (1.0, 1.0)
    t = distance / error
    return float(stats.t.sf(t, len(values) - 1)), float(stats.t.cdf(t, len(values) - 1))


def smaller(values: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    """Return the p-values of |mean of values| >= |mean of others| and of <=, from two arrays (N,) paired by seed.

    |m| < |M| if and only if m lies strictly between -sM and sM for the sign s of M. Both signs are tried, so each
    p-value is doubled."""

    def less(x: np.ndarray, y: np.ndarray) -> float:
        return min(1.0, 2 * min(max(above(s * y - x, 0.0)[0], above(s * y + x, 0.0)[0]) for s in (1, -1)))

    return less(values, others), less(others, values)


def tested(hypothesis: Hypothesis, of_rule: pd.Series, of_rival: pd.Series | None) -> tuple[np.ndarray, float, float]:
    """Return a hypothesis' numbers by seed (N,), the p-value of its opposite (small if the hypothesis holds) and its
    own (small if it fails). ``of_rule`` and ``of_rival`` hold the estimates of the two rules, indexed by seed."""
    if of_rival is not None:
        of_rule, of_rival = of_rule.align(of_rival, join="inner")
    values = of_rule.to_numpy(float)
    others = None if of_rival is None else of_rival.to_numpy(float)
    if hypothesis.relation == "smaller in size":
        assert others is not None
        return np.abs(others) - np.abs(values), *smaller(values, others)
    values = values if others is None else values - others
    if hypothesis.relation == "within":
        over, under = above(values, hypothesis.margin), above(values, -hypothesis.margin)
        return values, max(over[1], under[0]), min(over[0], under[1])
    found = above(hypothesis.sign * values, hypothesis.margin)
    return values, *found


def part(claim: Claim, hypothesis: Hypothesis, task: str, estimates: pd.DataFrame) -> JudgedHypothesis:
    """Return a hypothesis of a claim judged on one task; ``estimates`` has one row for each number of a run, with the
    columns of `Estimate`."""
    same = estimates[
        (estimates.task == task) & (estimates.runs == hypothesis.runs) & (estimates.estimand == hypothesis.estimand)
    ]
    rate = same.clip_rate.isna() if np.isnan(hypothesis.clip_rate) else np.isclose(same.clip_rate, hypothesis.clip_rate)
    by_rule = {}
    for name in (hypothesis.rule, hypothesis.rival):
        own = pd.DataFrame(same[rate & (same.rule == name)])
        by_rule[name] = pd.Series(own.value.to_numpy(), index=own.seed.to_numpy()).dropna().sort_index()
    rival = by_rule[hypothesis.rival] if hypothesis.rival else None
    values, p_for, p_against = tested(hypothesis, by_rule[hypothesis.rule], rival)
    mean, low, high = sample_interval(values)
    sd = float(values.std(ddof=1)) if len(values) > 1 else float("nan")
    reach = t_quantile(len(values) - 1) * sd * np.sqrt(1 + 1 / len(values)) if len(values) > 1 else float("nan")
    interval = (low, high, sd, mean - reach, mean + reach)
    return JudgedHypothesis(claim.id, task, hypothesis.words, len(values), mean, *interval, p_for, p_against)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's method, in the given order: the k-th smallest of n is multiplied by n - k + 1,
    and is at least the (k - 1)-th smallest adjusted one and at most 1."""
    p = np.asarray(p_values, float)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    return [float(value) for value in adjusted]


def judge(
    estimates: pd.DataFrame,
    claims: Iterable[Claim] = CLAIMS,
    tasks: Collection[str] = TASKS,
    planned: Mapping[tuple[str, str], int] = MappingProxyType({}),
) -> tuple[list[JudgedClaim], list[JudgedHypothesis]]:
    """Judge claims by the estimates of all runs, on those of the claims' tasks that ``tasks`` names.

    A claim is open until all planned seeds of its runs have given their numbers, so that nobody can stop at a verdict
    that pleases. A claim for which no run is planned and none has given a number is left out, and does not count in
    Holm's correction.

    Parameters
    ----------
    estimates : DataFrame
        The columns of `analysis.claims.estimands.Estimate`, one row for each number of a run.
    planned : mapping of (str, str) to int
        Number of seeds by set of runs and task; 0 where it is not named.

    Returns
    -------
    claims : list of JudgedClaim, each with its verdict
    parts : list of JudgedHypothesis
        Every hypothesis on every task, with its numbers over seeds.
    """
    found = {
        c: [part(c, h, task, estimates) for task in c.tasks if task in tasks for h in c.hypotheses] for c in claims
    }
    missing = {claim: _unfinished(claim, parts, planned) for claim, parts in found.items()}
    found = {claim: parts for claim, parts in found.items() if missing[claim] or any(p.seeds for p in parts)}
    p_for = holm([1.0 if missing[c] else max(p.p_for for p in parts) for c, parts in found.items()])
    least = {c: 1.0 if missing[c] else min(p.p_against for p in parts) for c, parts in found.items()}
    p_against = holm([min(1.0, len(found[c]) * p) for c, p in least.items()])
    judged = []
    for (claim, parts), supports, refutes in zip(found.items(), p_for, p_against, strict=True):
        verdict: Verdict = "supported" if supports <= ALPHA else "refuted" if refutes <= ALPHA else "open"
        decides = min(parts, key=lambda p: p.p_against) if verdict == "refuted" else max(parts, key=lambda p: p.p_for)
        says = missing[claim] or f"{decides.task}: {decides.hypothesis}"
        judged.append(JudgedClaim(claim.id, claim.sentence, verdict, supports, refutes, says))
    return judged, [p for parts in found.values() for p in parts]


def _unfinished(claim: Claim, parts: Sequence[JudgedHypothesis], planned: Mapping[tuple[str, str], int]) -> str:
    """Return on which task a claim has fewer seeds than planned, and how many; "" if it has all."""
    runs = {h.words: h.runs for h in claim.hypotheses}
    wanted = [planned.get((runs[p.hypothesis], p.task), 0) for p in parts]
    return next((f"{p.task}: {p.seeds} of {n} seeds" for p, n in zip(parts, wanted, strict=True) if p.seeds < n), "")


def write_claims(
    folder: Path, estimates: pd.DataFrame, claims: Sequence[JudgedClaim], parts: Sequence[JudgedHypothesis]
) -> None:
    """Write estimates.csv, parts.csv and claims.csv into a folder, each whole or not at all."""
    tables = {
        "estimates": estimates.sort_values(["task", "runs", "rule", "seed", "estimand", "clip_rate"]),
        "parts": pd.DataFrame(parts, columns=list(JudgedHypothesis._fields)),
        "claims": pd.DataFrame(claims, columns=list(JudgedClaim._fields)),
    }
    for name, table in tables.items():
        with whole_file(folder / f"{name}.csv") as path:
            table.to_csv(path, index=False, float_format="%.6g")
