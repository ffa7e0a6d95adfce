"""Gradient logs of a small policy's responses, and sums over all responses and all groups that the policy can draw,
from which the expected values of an analysis's tables follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fspo.advantages import advantages
from fspo.gradlog import GradLogWriter
from fspo.rules import Estimator, preset
from fspo.theory import Floats
from proofs_check.tools import defined
from proofs_check.tools.policy import Bandit

RULE = "fspo"
"""The preset under whose rule the simulated logs are analysed; its half-width is `RANGE` times sqrt(L)."""
RANGE = 0.03
LENGTHS = (1, 2, 3)
GROUP = 3
"""Number of responses to one prompt."""


def clipped_weights(bandit: Bandit, outside: str) -> tuple[Floats, Floats]:
    """Return the clipped weight M w of each of the N responses, and whether the rule leaves the response alone. Both
    are arrays (2, N): row 0 holds the values for A < 0 and row 1 those for A > 0.
    """
    n = bandit.lengths
    rows = list(zip(bandit.log_ratio, -RANGE * np.sqrt(n), RANGE * np.sqrt(n), strict=True))
    M = np.array([[defined.multiplier(outside, None, S, A, lo, hi, 0.0) for S, lo, hi in rows] for A in (-1.0, 1.0)])
    return M * np.exp(bandit.log_ratio), M == 1


@dataclass(frozen=True)
class Groups:
    """Every group of ``GROUP`` responses that a small policy (`Bandit`) can draw: M groups, made of its N responses.

    Attributes
    ----------
    bandit : Bandit
    reward : array (N,)
        Reward of each response.
    offset : array (GROUP,)
        A number for each place in a group, added to the reward of the response that stands there. Different numbers
        make sure that no two rewards of a group are equal.
    """

    bandit: Bandit
    reward: Floats
    offset: Floats

    @cached_property
    def members(self) -> np.ndarray:
        """For each of the M possible groups, the indices (0 to N - 1) of its GROUP responses, (M, GROUP)."""
        return np.indices((self.reward.size,) * GROUP).reshape(GROUP, -1).T

    def mass(self, law: Floats) -> Floats:
        """Return the probability of each of the M possible groups of GROUP independent responses, (M,). ``law`` (N,)
        holds a number in proportion to the probability of each response.
        """
        return (law / law.sum())[self.members].prod(axis=1)

    def advantage(self, estimator: str, members: np.ndarray | None = None) -> Floats:
        """Return the advantages of each group (M, GROUP), by the formulas of docs/train.md, without ``fspo``.

        ``members``: indices of the responses of each group; all groups unless given.
        """
        r = self.reward[self.members if members is None else members] + self.offset
        mean = r.mean(axis=1, keepdims=True)
        gap = np.where(np.ptp(r, axis=1, keepdims=True) < 1e-12, 0.0, r - mean)
        if estimator == "rloo":
            return gap * GROUP / (GROUP - 1)
        return gap / (np.std(r, axis=1, ddof=1, keepdims=True) + 1e-4) if estimator == "grpo" else gap

    def sums(self, coefficients: Floats, A: Floats, by: Floats | None = None) -> Floats:
        """Return the sum of c A psi over each group's responses, (M, D), with c a coefficient of the response and D the
        number of the policy's parameters.

        ``coefficients`` (2, N) holds c: row 0 for responses with A < 0, row 1 for those with A > 0. If ``by`` is given,
        its sign chooses the row in place of that of A.
        """
        positive = (A if by is None else by) > 0
        picked = np.where(positive, coefficients[1][self.members], coefficients[0][self.members]) * A
        return sum(picked[:, [i]] * self.bandit.psi[self.members[:, i]] for i in range(GROUP))  # type: ignore[return-value]


def columns(bandit: Bandit, at: np.ndarray, A: Floats, with_scores: bool = True) -> dict[str, Any]:
    """Return columns of a gradient log (length, S, score, ...) for responses of the policy. ``at`` (N,): the responses'
    indices; ``A`` (N,): their advantages.
    """
    s, psi = bandit.token_log_ratios[at], bandit.psi[at]
    norm = np.linalg.norm(psi, axis=1)
    scored = (A != 0) & with_scores
    return {
        "length": bandit.responses.lengths[at],
        "log_ratio": bandit.log_ratio[at],
        "sum_sq_log_ratio": (s**2).sum(axis=1),
        "k3_sum": (np.expm1(s) - s).sum(axis=1),
        "advantage": A,
        "score_status": np.where(scored, "ok", "not_taken"),
        "score_norm": np.where(scored, norm, np.nan),
        "score_unit": psi / norm[:, None],
    }


def writer(run: Path, bandit: Bandit) -> GradLogWriter:
    """Return a writer of a gradient log with exact scores (no sketches), whose metadata name the rule ``none``."""
    return GradLogWriter(run, width=bandit.new.size, exact=True, metadata={"rule": preset("none").rule.to_dict()})


def write_drawn(
    run: Path,
    groups: Groups,
    estimator: Estimator,
    rng: np.random.Generator,
    prompts: int,
    rollouts: int,
    scored: bool = True,
) -> None:
    """Write a gradient log of groups drawn from the policy.

    Each rollout of the log has one update on responses at first use, rows of responses freshly drawn from the new
    policy (phase ``audit``), and one update on responses that were trained on. In the rows of this last update S has
    another law, so a table about first use is wrong if it counts them.
    """
    bandit, log = groups.bandit, writer(run, groups.bandit)
    laws = [law / law.sum() for law in (bandit.p_old, bandit.p_new)]
    prompt = np.repeat(np.arange(prompts), GROUP)
    number = np.arange(prompts * GROUP)
    for rollout in range(rollouts):
        base = {"rollout": rollout, "prompt_id": rollout * prompts + prompt}
        drawn, fresh = (rng.choice(law.size, number.size, p=law) for law in laws)
        rewards = [groups.reward[at] + np.tile(groups.offset, prompts) for at in (drawn, fresh)]
        A = advantages(rewards[0], prompt, estimator)[0]
        first = (
            base
            | columns(bandit, drawn, A, scored)
            | {"reward": rewards[0], "response_id": rollout * number.size + number}
        )
        step = {"step": 2 * rollout, "updates_since_rollout": 1, "times_used": 0, "phase": "train"}
        log.append(first | step)
        moved = {"log_ratio": first["log_ratio"] + 0.05 * np.sign(A), "step": 2 * rollout + 1}
        log.append(first | step | moved | {"updates_since_rollout": 2, "times_used": 1})
        audit = base | columns(bandit, fresh, advantages(rewards[1], prompt, "rloo")[0], scored)
        audit |= {"log_ratio": np.zeros(number.size), "reward": rewards[1], "response_id": number, "phase": "audit"}
        log.append(audit | {"step": 2 * rollout, "updates_since_rollout": 1, "times_used": 0})
        log.flush(rollout)


def write_counted(run: Path, bandit: Bandit, counts: np.ndarray) -> None:
    """Write a gradient log of one update that holds response i ``counts[i]`` times, each time to another prompt."""
    at = np.repeat(np.arange(counts.size), counts)
    number, log = np.arange(at.size), writer(run, bandit)
    base = {"rollout": 0, "step": 1, "updates_since_rollout": 1, "times_used": 0, "phase": "train"}
    log.append(base | columns(bandit, at, bandit.advantages[at]) | {"prompt_id": number, "response_id": number})
    log.flush(0)
