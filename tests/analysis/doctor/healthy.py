"""Healthy runs, simulated and trained, on which the doctor should find nothing.

A simulated run really trains a small policy: a table of logits of the next token, with a row for each kind of prompt
and last token. The policy samples responses, gets rewards and follows the clipped gradient. So every law of
docs/theory.md holds by construction, and no log-ratio is drawn from a distribution that somebody chose.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fspo.advantages import advantages
from fspo.gradlog import GradLogWriter
from fspo.rules import PRESETS, Preset, preset, token_k3
from tests.analysis.doctor.planted import update_rows

KINDS, TOKENS = 6, 12
"""Number of kinds of prompts in a simulated run; number of tokens in its vocabulary, of which token 0 ends a
response."""
END = 0


@dataclass(frozen=True)
class SimulatedRun:
    """Settings of a run to simulate.

    An update moves the policy's table of logits along the gradient; by the gradient's sign, as Adam does; or by that
    sign times the absolute value of Student's t with 2 degrees of freedom ("heavy"), which moves a few entries far and
    gives S heavy tails.
    """

    rule: str = "fspo"  # preset of the clip rule; its range is replaced by the one in `RANGES`
    changes: tuple[tuple[str, Any], ...] = ()  # fields of the rule that differ from the preset, with their values
    steps: str = "sign"  # "gradient", "sign" or "heavy"
    peaked: bool = False  # whether the first policy has few likely tokens and many rare ones, with large log-ratios
    lengths: tuple[int, int] = (20, 150)  # mean length of the kinds of prompt with the shortest and longest responses
    group: int = 8
    prompts: int = 32
    minibatches: int = 4
    epochs: int = 2
    rollouts: int = 12
    engine: float = 0.0  # standard deviation of the sampler's logits around the trainer's; .02 as of lower precision
    selected: bool = False  # whether groups with equal rewards are dropped and others drawn (DAPO's dynamic sampling)
    graded: bool = False  # whether the reward is a share in [0, 1], not 0 or 1 alone
    fresh: bool = False  # whether prompt ids grow over the run; if not, all rollouts have the same ids

    @property
    def preset(self) -> Preset:
        """The preset of the run's clip rule, with the range in ``RANGES`` and the run's own changes."""
        return preset(self.rule, **RANGES.get(self.rule, {}) | dict(self.changes))


def ranged(value: float) -> dict[str, float]:
    """Return the fields of a rule that give it a symmetric range."""
    return {"range_lo": value, "range_hi": value}


RANGES = {name: ranged(0.1) for name in PRESETS if name.startswith("fspo")}
RANGES |= {"gspo": ranged(0.03), "rloo": ranged(0.5)}
"""Ranges of rules in the healthy runs; a rule that is not named keeps its preset's range. Published ranges would clip
too much in these runs, because S of a small model is larger."""
RATES = {"gradient": 0.1, "sign": 0.15, "heavy": 0.25}
"""For each value of ``SimulatedRun.steps``: how far the updates of one rollout together move the entries of the table
of logits at most, as a root mean square, nats."""
OPTIONS = (
    {"rollouts": 10, "threads": 1, "batch.prompts": 12, "batch.responses": 8, "batch.minibatches": 4}
    | {"batch.epochs": 2, "sampling.max_new_tokens": 256, "optim.learning_rate": 1e-4, "optim.warmup_updates": 2}
    | {"log.score_every": 0, "log.samples": 0, "eval.every": 0}
)
"""Options of the trained runs, whose model is the embedded one and whose task is chain-add."""


def train_run(run: Path, rule: str, seed: int, precision: str = "bfloat16", **changes: Any) -> None:
    """Train a healthy run with ``OPTIONS`` and ``changes``, or resume it if its folder exists; ``precision`` is that of
    the program that samples."""
    options = OPTIONS | {"rule.preset": rule, "seed": seed, "sampling.precision": precision}
    options |= {f"rule.{key}": value for key, value in RANGES.get(rule, {}).items()}
    options |= {"output": run, "resume": str(run.exists()).lower()} | changes
    command = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    subprocess.run([sys.executable, "-m", "fspo.train", *command], check=True, stdout=subprocess.DEVNULL)


@dataclass(frozen=True)
class Drawn:
    """N responses of one rollout, with the T tokens of all responses joined in one array."""

    state: np.ndarray  # (T,) the row of the policy's table of logits that each token was drawn from
    token: np.ndarray  # (T,)
    starts: np.ndarray  # (N,) the place of each response's first token
    length: np.ndarray  # (N,)
    truncated: np.ndarray  # (N,) whether the length limit cut it off

    def sums(self, x: np.ndarray) -> np.ndarray:
        """Return the sums (N,), over each response's tokens, of numbers x (T,) given for every token."""
        return np.add.reduceat(x, self.starts)

    def logprobs(self, table: np.ndarray) -> np.ndarray:
        """Return the log-probabilities (T,) of the tokens under the policy whose table of logits is given."""
        return log_softmax(table)[self.state, self.token]


def log_softmax(table: np.ndarray) -> np.ndarray:
    """Return log-probabilities from a table of logits, both (rows, tokens)."""
    x = table - table.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def draw(table: np.ndarray, kinds: np.ndarray, limit: int, rng: np.random.Generator) -> Drawn:
    """Sample a response to each of N prompts of the given kinds from a table of logits: a row for each kind and last
    token, a column for each next token."""
    n, edges = len(kinds), np.exp(log_softmax(table)).cumsum(-1)
    tokens, states = np.zeros((n, limit), np.int64), np.zeros((n, limit), np.int64)
    length, last, alive = np.full(n, limit), np.zeros(n, np.int64), np.arange(n)
    for t in range(limit):
        row = kinds[alive] * TOKENS + last[alive]
        token = np.minimum((rng.random(len(alive))[:, None] > edges[row]).sum(1), TOKENS - 1)
        states[alive, t], tokens[alive, t], last[alive] = row, token, token
        length[alive[token == END]] = t + 1
        alive = alive[token != END]
        if not len(alive):
            break
    truncated = np.isin(np.arange(n), alive)
    within = np.arange(limit) < length[:, None]
    return Drawn(states[within], tokens[within], np.cumsum(length) - length, length, truncated)


def first_table(plan: SimulatedRun, rng: np.random.Generator) -> np.ndarray:
    """Return the first policy's table of logits (a row for each kind and last token, a column for each next token),
    under which the responses to each kind of prompt have the mean length that ``plan.lengths`` asks for."""
    table = (2.5 if plan.peaked else 1.0) * rng.standard_normal((KINDS, TOKENS, TOKENS))
    means = np.geomspace(*plan.lengths, KINDS)[:, None]
    table[..., END] = np.log(np.exp(table[..., 1:]).sum(-1) / (means - 1))
    return table.reshape(KINDS * TOKENS, TOKENS)


def rewards(plan: SimulatedRun, drawn: Drawn) -> np.ndarray:
    """Return rewards (N,): 1 for a response in which tokens of the vocabulary's first half (end token left out)
    outnumber those of its second half, else 0. With ``plan.graded`` the reward is (1 + d / L) / 2, where d is the
    difference of the two counts and L the length. A truncated response gets 0."""
    good = drawn.sums(np.where(drawn.token == END, 0.0, np.where(drawn.token <= TOKENS // 2, 1.0, -1.0)))
    share = (1 + good / drawn.length) / 2
    return np.where(drawn.truncated, 0.0, share if plan.graded else (good > 0).astype(float))


def gradient(drawn: Drawn, table: np.ndarray, each: np.ndarray) -> np.ndarray:
    """Return the gradient with respect to the table of logits, in its shape: the sum over responses of the response's
    coefficient in ``each`` (N,) times its score."""
    weights = np.repeat(each, drawn.length)
    seen = np.bincount(drawn.state * TOKENS + drawn.token, weights, table.size).reshape(table.shape)
    return seen - np.exp(log_softmax(table)) * seen.sum(1, keepdims=True)


def move(plan: SimulatedRun, slope: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the change of a simulated policy's table of logits in one update, made from the gradient ``slope`` as
    ``plan.steps`` says; `RATES` says how far it goes."""
    step = slope if plan.steps == "gradient" else np.sign(slope)
    if plan.steps == "heavy":
        step = step * np.abs(rng.standard_t(2, step.shape))
    size = np.sqrt(np.mean(step**2))
    rate = RATES[plan.steps] / (plan.minibatches * plan.epochs)
    return rate * step / size if size > 0 else step


def rollout_of(
    plan: SimulatedRun, sampler: np.ndarray, rng: np.random.Generator
) -> tuple[Drawn, np.ndarray, np.ndarray, np.ndarray]:
    """Sample the groups of a rollout and return the responses, their prompts, rewards and advantages (N,)."""
    asked = plan.prompts * (4 if plan.selected else 1)
    kinds = rng.integers(0, KINDS, asked)
    prompt = np.repeat(np.arange(asked), plan.group)
    drawn = draw(sampler, kinds[prompt], 4 * plan.lengths[1], rng)
    reward = rewards(plan, drawn)
    if plan.selected:
        mixed = np.flatnonzero(reward.reshape(asked, -1).std(1) > 0)[: plan.prompts]
        mixed = mixed[: len(mixed) // plan.minibatches * plan.minibatches]
        kept = np.isin(prompt, mixed)
        tokens = np.repeat(kept, drawn.length)
        length = drawn.length[kept]
        starts = np.cumsum(length) - length
        drawn = Drawn(drawn.state[tokens], drawn.token[tokens], starts, length, drawn.truncated[kept])
        prompt, reward = np.unique(prompt[kept], return_inverse=True)[1], reward[kept]
    return drawn, prompt, reward, advantages(reward, prompt, plan.preset.advantage)[0]


def write_simulated_run(run: Path, plan: SimulatedRun, seed: int) -> Path:
    """Simulate a run and write its gradient log into the run folder."""
    rng = np.random.default_rng(seed)
    rule, aggregation = plan.preset.rule, plan.preset.aggregation
    writer = GradLogWriter(run, metadata={"rule": rule.to_dict(), "seed": seed, "aggregation": aggregation})
    table, step, responses = first_table(plan, rng), 0, 0
    for rollout in range(plan.rollouts):
        sampler = table + plan.engine * rng.standard_normal(table.shape)
        drawn, prompt, reward, A = rollout_of(plan, sampler, rng)
        old = drawn.logprobs(table)
        mismatch = old - drawn.logprobs(sampler)
        count = int(prompt.max()) + 1
        for update in range(plan.minibatches * plan.epochs):
            part = update % plan.minibatches
            at = np.flatnonzero(prompt * plan.minibatches // count == part)
            tokens = drawn.logprobs(table) - old
            sums = [drawn.sums(x)[at] for x in (tokens, tokens**2, token_k3(tokens))]
            L = drawn.length[at].astype(float)
            rows = update_rows(rule, sums[0], L, A[at], sums[1], sums[2], rollout, step, update, plan.minibatches)
            rows |= by_engine(drawn, tokens, mismatch, at, plan.engine > 0)
            rows |= {"policy_version": step, "behaviour_version": step - update, "response_id": responses + at}
            rows |= {"prompt_id": prompt[at] + plan.fresh * rollout * 4 * plan.prompts, "length": drawn.length[at]}
            writer.append(rows | {"truncated": drawn.truncated[at], "reward": reward[at]})
            each = np.zeros(len(prompt))
            each[at] = rows["multiplier"] * rows["weight"] * A[at]
            each /= drawn.length if rule.weight == "geometric" else 1
            table = table + move(plan, gradient(drawn, table, each), rng)
            step += 1
        writer.flush(rollout)
        responses += len(prompt)
    return run


def by_engine(
    drawn: Drawn, tokens: np.ndarray, mismatch: np.ndarray, at: np.ndarray, differs: bool
) -> dict[str, np.ndarray]:
    """Return the gradient log's columns about the mismatch (engine, staleness, behaviour, total) for the responses with
    the indices ``at``, whose token log-ratios ``tokens`` (T,) add up to S and ``mismatch`` (T,) to E; {} if the sampler
    does not differ from the trainer."""
    if not differs:
        return {}
    out = {"engine_log_ratio": drawn.sums(mismatch)[at], "staleness_log_ratio": np.zeros(len(at))}
    out["behaviour_log_ratio"] = out["engine_log_ratio"]
    for name, x in (("engine", mismatch), ("behaviour", mismatch), ("total", tokens + mismatch)):
        out[f"{name}_sum_sq"], out[f"{name}_k3_sum"] = drawn.sums(x**2)[at], drawn.sums(token_k3(x))[at]
    return out
