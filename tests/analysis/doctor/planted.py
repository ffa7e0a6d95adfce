"""Simulate runs with one defect each, which the doctor must find, and healthy runs, for which it must report nothing.

Each token's log-ratio is a random walk. Each update adds a normal step of variance sigma^2 and mean -sigma^2 / 2 to it,
so that E[e^S] = 1 in the first epoch. It also shifts S of each response in its minibatch in proportion to A. The
responses of a group share length and difficulty. Rewards are 0 or 1 and rise as the run learns; advantages are
standardised in the group, as in GRPO. The metrics are those that a check of the rows reads, one line an update.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fspo.gradlog import GradLogWriter
from fspo.gradlog import metric_names as metric
from fspo.gradlog.metrics_file import MetricsFile
from fspo.rules import DriftStats, Rule, preset, token_k3


@dataclass(frozen=True)
class Plan:
    """A run to simulate. The defaults make a healthy run."""

    rule: Rule = field(default_factory=lambda: preset("fspo").rule)
    rollouts: int = 16
    prompts: int = 32
    group: int = 8
    minibatches: int = 4
    epochs: int = 2
    lengths: tuple[int, int] = (16, 512)
    sigma: float = 0.008  # standard deviation of the change of S by one update, divided by sqrt(L), nats
    pull: float = 0.02  # change of S by an update on the response itself, for each unit of its A, nats
    noise: float = 0.0  # standard deviation of the noise of S, divided by sqrt(L), nats; there before any update too
    recomputed: str = ""  # when old log-probs are wrongly computed again: never, at each "update", at each "epoch"
    limit: int = 2048  # longer responses are cut off and get reward 0
    drop_above: int | None = None  # longer responses are discarded after the advantages were computed
    broken_verifier: bool = False  # whether every reward is 0
    not_finite: float = 0.0  # share of rows whose S is NaN
    uncounted: int = 0  # tokens that the logged length of each response leaves out, as the end-of-sequence token
    aggregation: str = "response"  # how the loss is averaged, as the log's header says


DEFECTS: dict[str, Plan] = {
    "s_zero": Plan(minibatches=1, epochs=1),
    "old_recomputed": Plan(recomputed="update"),
    "old_recomputed-epoch": Plan(recomputed="epoch"),
    "old_recomputed-noise": Plan(recomputed="update", noise=0.004),
    "not_finite": Plan(not_finite=0.01),
    "numerics": Plan(sigma=0.004, pull=0.005, noise=0.025),
    "advantages_zero": Plan(broken_verifier=True),
    "truncation": Plan(limit=256),
    "dropped_sequences": Plan(drop_above=384),
    "length_weighted": Plan(aggregation="token"),
    "mean_length": Plan(uncounted=1),
    "acceptance-drift": Plan(sigma=0.06, lengths=(16, 2048), rule=preset("fspo", range_lo=0.1, range_hi=0.1).rule),
    "acceptance": Plan(rule=preset("fspo", range_lo=0.008, range_hi=0.008).rule),
}
"""Runs with a defect, by the name of the issue that it causes. "X-Y" is a second way to cause the issue X."""


def write_run(run: Path, plan: Plan, seed: int) -> Path:
    """Simulate the run that ``plan`` describes, and write its gradient log and metrics.jsonl."""
    rng = np.random.default_rng(seed)
    metadata = {"rule": plan.rule.to_dict(), "seed": seed, "aggregation": plan.aggregation}
    writer = GradLogWriter(run, metadata=metadata)
    n, lines, step = plan.prompts * plan.group, [], 0
    prompt = np.repeat(np.arange(plan.prompts), plan.group)
    for rollout in range(plan.rollouts):
        shortest, longest = np.log(plan.lengths)
        wanted = np.exp(rng.uniform(shortest, longest, plan.prompts)[prompt] + 0.3 * rng.standard_normal(n))
        length = np.clip(np.round(wanted), 2, plan.limit).astype(int)
        truncated = wanted > plan.limit
        # Progress of the simulated training, 0 to 1. With it the mean probability of a right response rises from .4 to
        # .7.
        learned = rollout / max(plan.rollouts - 1, 1)
        solved = rng.beta(0.8 + 0.6 * learned, 1.2 - 0.6 * learned, plan.prompts)[prompt]
        reward = ((rng.random(n) < solved) & ~truncated).astype(float) * (not plan.broken_verifier)
        groups = reward.reshape(plan.prompts, plan.group)
        A = ((groups - groups.mean(1, keepdims=True)) / (groups.std(1, ddof=1, keepdims=True) + 1e-4)).ravel()
        kept = np.ones(n, bool) if plan.drop_above is None else length <= plan.drop_above
        starts = np.cumsum(length) - length  # index of each response's first token
        walk = np.zeros(int(length.sum()))
        old, noise = walk.copy(), np.zeros_like(walk)
        for update in range(plan.minibatches * plan.epochs):
            size = plan.prompts // plan.minibatches * plan.group
            first = update % plan.minibatches * size
            if plan.recomputed == "update" or (plan.recomputed == "epoch" and first == 0):
                old = walk.copy()
            at = np.arange(first, first + size)
            at = at[kept[at]]
            L = length[at].astype(float) - plan.uncounted
            if plan.noise:
                noise = plan.noise * rng.standard_normal(len(walk))
            tokens = walk - old + noise
            S, square, k3 = (np.add.reduceat(x, starts)[at] for x in (tokens, tokens**2, token_k3(tokens)))
            S[rng.random(len(at)) < plan.not_finite] = np.nan
            rows = update_rows(plan.rule, S, L, A[at], square, k3, rollout, step, update, plan.minibatches)
            rows |= {"policy_version": step, "behaviour_version": step - update, "prompt_id": prompt[at]}
            rows |= {"response_id": rollout * n + at, "length": length[at] - plan.uncounted}
            writer.append(rows | {"truncated": truncated[at], "reward": reward[at]})
            line = {"rollout": rollout, "step": step, "phase": "train", metric.MEAN_LENGTH: float(length.mean())}
            lines.append(line | {metric.GRAD_NORM: 1.0, metric.LEARNING_RATE: 1e-6})
            step += 1
            walk += plan.sigma * rng.standard_normal(len(walk)) - plan.sigma**2 / 2
            pull = np.zeros(n)
            pull[at] = plan.pull * A[at] / length[at]
            walk += np.repeat(pull, length)
        writer.flush(rollout)
    MetricsFile(run).write_all(lines)
    return run


def update_rows(
    rule: Rule,
    S: np.ndarray,
    L: np.ndarray,
    A: np.ndarray,
    square: np.ndarray,
    k3: np.ndarray,
    rollout: int,
    step: int,
    update: int,
    minibatches: int,
) -> dict[str, Any]:
    """Return the log's columns of one update: its place, S, and what ``rule`` does to responses of lengths L (N,).

    ``square`` and ``k3`` (N,) are sums over each response's tokens: of the squared token log-ratio, and of k3. The
    update is the rollout's number ``update``, from 0.
    """
    m = rule.centre(DriftStats.of(k3, square, L))
    with np.errstate(invalid="ignore"):
        done = rule.apply(S, L, A, m)
    place = {"rollout": rollout, "step": step, "updates_since_rollout": update, "times_used": update // minibatches}
    rows = {"phase": "train", "log_ratio": S, "sum_sq_log_ratio": square, "k3_sum": k3, "advantage": A}
    rows |= {"rule": rule.label, "lo": done.lo, "hi": done.hi, "band_accept": done.in_band, "side": done.side}
    rows |= {"drift": m, "drift_source": "two_pass" if rule.needs_stats else "none"}
    return place | rows | {"multiplier": done.multiplier, "weight": done.weight}
