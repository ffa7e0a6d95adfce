"""Gradient logs of a small policy, and sums over all that it can draw: the expected values of an analysis's tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fspo.advantages import advantages
from fspo.gradlog import GradLogWriter
from fspo.rules import OF_CLIP_RULES, preset
from fspo.theory import Floats
from proofs_check.tools.policy import Bandit, make_bandit

RULE = "fspo"
"""The preset under whose rule the simulated logs are analysed; its half-width is `RANGE` times sqrt(L)."""
OTHER = "rloo"
"""A preset whose band has the same edges for every length; its cosines are compared with those of `RULE`."""
RANGE = 0.03
LENGTHS = (1, 2, 3)
EDGES = (1, 2, 3, 4)
"""Edges of bins of length that hold one length each."""


def small_policy(rng: np.random.Generator, step: float = 0.05) -> Bandit:
    """Return a policy of 15 responses of 1 to 3 tokens, none of them rare, before and after a training step, which
    moves a third of the responses out of the band.
    """
    while True:
        bandit = make_bandit(rng, vocabulary=2, max_length=LENGTHS[-1], step=step)
        if bandit.p_old.min() > 0.015:
            return bandit


OTHER_BAND = (np.log(0.8), np.log(1.2))
"""Edges of the band of `OTHER`, for every length."""


def multiplier(outside: str, S: float, A: float, lo: float, hi: float) -> float:
    """Return the multiplier M of one response with the weight e^S and the band [lo, hi] (docs/theory.md section 2)."""
    if A == 0:
        return 1.0
    if outside == "cap":
        return min(1.0, math.exp(hi - S))
    edge = hi if A > 0 and hi < S else lo if A < 0 and lo > S else None
    if edge is None:
        return 1.0
    return {"drop": 0.0, "truncate": math.exp(edge - S)}[outside]


def clipped_weights(bandit: Bandit, outside: str, rule: str = RULE, factor: float = 1.0) -> tuple[Floats, Floats]:
    """Return the clipped weight M w of each of the N responses, and whether the rule leaves the response alone. Both
    are arrays (2, N): row 0 holds the values for A < 0 and row 1 those for A > 0.

    ``rule`` is `RULE`, whose half-widths are multiplied by ``factor``, or `OTHER`.
    """
    half = factor * RANGE * np.sqrt(bandit.lengths)
    lo, hi = (-half, half) if rule == RULE else tuple(0 * half + edge for edge in OTHER_BAND)
    rows = list(zip(bandit.log_ratio, lo, hi, strict=True))
    M = np.array([[multiplier(outside, S, A, lo, hi) for S, lo, hi in rows] for A in (-1.0, 1.0)])
    return M * np.exp(bandit.log_ratio), M == 1


def cosine(u: Floats, v: Floats) -> float:
    return float(u @ v / np.sqrt((u @ u) * (v @ v)))


def same_batch_cosine(p: Floats, u: Floats, v: Floats, prompts: int) -> float:
    """Return the cosine of two means over the same ``prompts`` prompts drawn independently: their expected inner
    product over the roots of their expected squared norms.

    ``p`` (M,) are the probabilities of M groups; ``u`` and ``v`` (M, D) what each group adds to the two means.
    """

    def product(u: Floats, v: Floats) -> float:
        return float(p @ (u * v).sum(axis=1)) / prompts + (1 - 1 / prompts) * float((p @ u) @ (p @ v))

    return product(u, v) / np.sqrt(product(u, u) * product(v, v))


def spread(p: Floats, u: Floats) -> float:
    """Return the trace of the covariance of ``u`` (M, D) over groups with the probabilities ``p`` (M,)."""
    return float(p @ (u**2).sum(axis=1) - np.sum((p @ u) ** 2))


@dataclass(frozen=True)
class Accepted:
    """How much a rule accepts of each of n responses.

    ``mass`` (n,) is the share of each response; ``kept`` and ``whole`` (n,) are numerator and denominator of its
    acceptance: what the rule accepts of it, and what it would be at most.
    """

    mass: Floats
    kept: Floats
    whole: Floats
    lengths: Floats

    @staticmethod
    def of(
        bandit: Bandit, at: np.ndarray, mass: Floats, A: Floats, outside: str, measure: str, factor: float = 1.0
    ) -> Accepted:
        """Return what `RULE`, its half-widths times ``factor``, accepts of responses ``at`` (docs/theory.md section 1).

        ``measure`` is band, update or weight; for update and weight, responses with A = 0 do not count.
        """
        weights, alone = (np.where(A > 0, x[1][at], x[0][at]) for x in clipped_weights(bandit, outside, RULE, factor))
        S, n = bandit.log_ratio[at], bandit.lengths[at]
        inside = np.abs(S) <= factor * RANGE * np.sqrt(n)
        kept = {"band": inside, "update": alone, "weight": weights}[measure]
        whole = np.exp(S) if measure == "weight" else np.ones(S.size)
        some = (A != 0) | (measure == "band")
        return Accepted(mass[some] / mass[some].sum(), kept[some].astype(float), whole[some], n[some])

    @property
    def mean(self) -> float:
        """The acceptance over all lengths."""
        return float(self.mass @ self.kept / (self.mass @ self.whole))

    def by_bin(self, edges: Sequence[float]) -> tuple[Floats, Floats]:
        """Return the share of the responses in each bin of length, and the acceptance there."""
        here = self.mass * (np.digitize(self.lengths, edges) == np.arange(1, len(edges))[:, None])
        return here.sum(axis=1), (here @ self.kept) / (here @ self.whole)

    def trend(self) -> float:
        """Return the slope of acceptance over log2 of the length by least squares, responses weighted by ``whole``."""
        weight, x = self.mass * self.whole, np.log2(self.lengths)
        x = x - weight @ x / weight.sum()
        return float((self.mass * x) @ self.kept / (weight @ x**2))


def matched_factor(bandit: Bandit, at: np.ndarray, A: Floats, outside: str, measure: str, target: float) -> float:
    """Return the factor on the half-widths of `RULE` at which the share ``target`` of n responses is accepted: midway
    between those that the last accepted response and the first other one need. If the share ends between responses that
    need the same factor, all of these are accepted, with a little to spare for rounding.
    """
    values = np.sort(needed_factors(bandit, at, A, outside, measure))
    last = values[round(target * values.size) - 1]
    least, counts = np.unique(values, return_counts=True)
    k = int(np.searchsorted(least, last))
    ends = counts[: k + 1].sum() == round(target * values.size)
    return float((least[k] + least[k + 1]) / 2 if ends and k + 1 < least.size else least[k] * (1 + 1e-9))


def needed_factors(bandit: Bandit, at: np.ndarray, A: Floats, outside: str, measure: str) -> Floats:
    """Return for each response that counts the least factor on the half-widths of `RULE` at which it is accepted."""
    over = bandit.log_ratio[at] / (RANGE * np.sqrt(bandit.lengths[at]))
    return np.abs(over) if measure == "band" else (over if outside == "cap" else over * np.sign(A))[A != 0]


def counted(rng: np.random.Generator, step: float = 0.05) -> tuple[Bandit, np.ndarray]:
    """Return a small policy, of whose responses the last two have A = 0, and counts of its responses (N,), nearly in
    the ratio of their probabilities. Each way to clip changes the update by a hundredth of its length or more.
    """
    while True:
        bandit = small_policy(rng, step)
        bandit = replace(bandit, advantages=np.append(rng.normal(size=bandit.lengths.size - 2), [0.0, 0.0]))
        counts = np.round(600 * bandit.p_old).astype(int) + 5
        true = (counts * bandit.advantages * np.exp(bandit.log_ratio)) @ bandit.psi
        gaps = [clipped_update(bandit, counts, way) - true for way in OF_CLIP_RULES]
        if min(np.linalg.norm(gap) for gap in gaps) > 0.01 * np.linalg.norm(true):
            return bandit, counts


def clipped_update(bandit: Bandit, counts: np.ndarray, outside: str) -> Floats:
    """Return the sum of M w A psi over the responses, each ``counts`` times."""
    weights, _ = clipped_weights(bandit, outside)
    return (counts * bandit.advantages * np.where(bandit.advantages > 0, weights[1], weights[0])) @ bandit.psi


@dataclass(frozen=True)
class Groups:
    """Every group of two responses that a small policy can draw: M groups of its N responses with their rewards."""

    bandit: Bandit
    reward: Floats

    @cached_property
    def members(self) -> np.ndarray:
        """Indices, from 0 to N - 1, of each group's two responses, (M, 2)."""
        return np.indices((self.reward.size,) * 2).reshape(2, -1).T

    def advantage(self) -> Floats:
        """Return the advantages of each group (M, 2) by GRPO's formula of docs/train.md, without ``fspo``."""
        r = self.reward[self.members]
        gap = np.where(np.ptp(r, axis=1, keepdims=True) < 1e-12, 0.0, r - r.mean(axis=1, keepdims=True))
        return gap / (np.std(r, axis=1, ddof=1, keepdims=True) + 1e-4)

    def sums(self, coefficients: Floats, A: Floats) -> Floats:
        """Return the sum of c A psi over each group's responses, (M, D); row 0 of ``coefficients`` (2, N) holds c for
        A < 0, row 1 for A > 0.
        """
        picked = np.where(A > 0, coefficients[1][self.members], coefficients[0][self.members]) * A
        return np.sum(picked[:, :, None] * self.bandit.psi[self.members], axis=1)


def columns(bandit: Bandit, at: np.ndarray, A: Floats) -> dict[str, Any]:
    """Return columns of a gradient log (length, S, score, ...) for the responses ``at`` with the advantages ``A``."""
    s, psi = bandit.token_log_ratios[at], bandit.psi[at]
    norm = np.linalg.norm(psi, axis=1)
    return (
        {"length": bandit.responses.lengths[at], "log_ratio": bandit.log_ratio[at]}
        | {"sum_sq_log_ratio": (s**2).sum(axis=1), "k3_sum": (np.expm1(s) - s).sum(axis=1), "advantage": A}
        | {"score_status": np.where(A != 0, "ok", "not_taken"), "score_norm": np.where(A != 0, norm, np.nan)}
        | {"score_unit": psi / norm[:, None]}
    )


def writer(run: Path, bandit: Bandit) -> GradLogWriter:
    """Return a writer of a gradient log with exact scores (no sketches), whose metadata name the rule ``none``."""
    return GradLogWriter(run, width=bandit.new.size, exact=True, metadata={"rule": preset("none").rule.to_dict()})


def write_groups(run: Path, groups: Groups, at: np.ndarray) -> None:
    """Write a gradient log of one update in each rollout; ``at`` (U, P, 2) holds the responses of its P groups."""
    log, prompts = writer(run, groups.bandit), at.shape[1]
    prompt = np.repeat(np.arange(at.size // 2), 2)
    reward = groups.reward[at].ravel()
    rollout, number = prompt // prompts, np.arange(prompt.size)
    base = {"rollout": rollout, "step": rollout, "prompt_id": prompt, "response_id": number, "reward": reward}
    base |= {"updates_since_rollout": 1, "times_used": 0, "phase": "train"}
    log.append(base | columns(groups.bandit, at.ravel(), advantages(reward, prompt, "grpo")[0]))
    log.flush(0)


def write_counted(run: Path, bandit: Bandit, counts: np.ndarray, log_ratio: Floats | None = None) -> None:
    """Write a gradient log of one update that holds response i ``counts[i]`` times, each time to another prompt. With
    ``counts`` (U, N) there are U updates, each in a rollout of its own. After each there is another one on the same
    responses, whose S has moved: a table about the first epoch is wrong if it counts its rows.

    If ``log_ratio``, of the shape of ``counts``, is given, the log holds it in place of the responses' S.
    """
    log, first = writer(run, bandit), 0
    for update, number in enumerate(np.atleast_2d(counts)):
        at = np.repeat(np.arange(number.size), number)
        base = {"rollout": update, "step": 2 * update, "updates_since_rollout": 1, "times_used": 0, "phase": "train"}
        prompt = first + np.arange(at.size)
        rows = base | columns(bandit, at, bandit.advantages[at]) | {"prompt_id": prompt, "response_id": prompt}
        if log_ratio is not None:
            rows["log_ratio"] = np.atleast_2d(log_ratio)[update][at]
        log.append(rows)
        moved = {"log_ratio": rows["log_ratio"] + 0.05 * np.sign(rows["advantage"]), "step": 2 * update + 1}
        log.append(rows | moved | {"updates_since_rollout": 2, "times_used": 1})
        first += at.size
    log.flush(0)
