"""A rollout as plain arrays, and the plan that divides it into minibatches and microbatches.

Every process holds all responses of the rollout (token ids are small) and makes the same plan from (seed, rollout). Old
and new log-probs of a response come from the same microbatch, so that a batch's shape adds no noise to S."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fspo.base.errors import UserError


@dataclass
class RolloutBatch:
    """N responses to P prompts, in prompt order.

    Attributes
    ----------
    rollout, behaviour_version : int
        Number of the rollout; version of the weights that sampled it, the number of updates made before that version.
    prompts, responses : list of N int64 arrays
        Token ids.
    sampler_log_probs : list of N float arrays
        Log-probability of each token under the sampler, nats; NaN where the sampler gave none.
    truncated : (N,) bool
        Whether the response was cut at the length limit.
    rewards, advantages : (N,) float64, one of each for each response
    reward_status : (N,) str
        How the verification ended: ok, timeout or error.
    prompt_ids, response_ids : (N,) int64
        Numbers of the prompt and of the response that are unique over the run.
    info : dict of (N,) object arrays
        Further columns for the log, which the task adds: name -> one value for each response, None if its example has
        none.
    """

    rollout: int
    behaviour_version: int
    prompts: list[np.ndarray]
    responses: list[np.ndarray]
    sampler_log_probs: list[np.ndarray]
    truncated: np.ndarray
    rewards: np.ndarray
    advantages: np.ndarray
    reward_status: np.ndarray
    prompt_ids: np.ndarray
    response_ids: np.ndarray
    info: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.responses)

    @property
    def lengths(self) -> np.ndarray:
        """Response lengths L in tokens, (N,)."""
        return np.array([len(r) for r in self.responses], np.int64)

    @property
    def total_lengths(self) -> np.ndarray:
        """Lengths of prompt and response together in tokens, (N,)."""
        return np.array([len(p) + len(r) for p, r in zip(self.prompts, self.responses, strict=True)], np.int64)


def plan_minibatches(batch: RolloutBatch, count: int, seed: int) -> list[np.ndarray]:
    """Divide the responses into ``count`` minibatches at random and return the rows of each.

    The responses to a prompt stay together, so that minibatches are independent of each other in their first epoch.

    Raises UserError if there are fewer prompts than minibatches."""
    groups = np.unique(batch.prompt_ids)
    if len(groups) < count:
        raise UserError(
            f"{len(groups)} usable prompts cannot fill {count} minibatches: raise task.max_prompt_tokens or lower "
            "batch.minibatches"
        )
    noise = np.random.Philox(seed=np.random.SeedSequence([seed, batch.rollout])).random_raw(len(groups))
    order = groups[np.argsort(noise, kind="stable")]
    return [np.flatnonzero(np.isin(batch.prompt_ids, part)) for part in np.array_split(order, count)]


@dataclass(frozen=True)
class Microbatch:
    """Responses that pass through the model together: ``rows`` are their numbers in the rollout, and ``trains`` says
    whether their gradient is computed.

    A ``dummy`` microbatch adds 0 to the loss. It gives a process without work as many passes as the other processes."""

    rows: np.ndarray
    trains: bool
    dummy: bool = False


MICROBATCH_COST = 100
"""Fixed cost of a microbatch in a single process, in tokens: the time that a microbatch takes beside the time of its
tokens equals the time of this many tokens."""


def _borders(lengths: np.ndarray, tokens: int, cost: int) -> list[int]:
    """Divide n rows, sorted by their ``lengths`` (n,) in tokens, into parts; return where each but the first begins.

    A part costs as much as it has tokens, padding included, plus ``cost``. The parts are those with the least cost of
    all parts together. A part holds at most ``tokens`` tokens, padding included, unless it is a single row."""
    # Entry n of ``least`` is the least cost (sum over parts) of dividing the first n rows into parts; entry n of
    # ``begins`` is the row with which the last of these parts begins.
    least, begins = np.zeros(len(lengths) + 1), [0]
    for end, longest in enumerate(lengths, 1):
        starts = np.arange(max(end - max(tokens // longest, 1), 0), end)
        costs = least[starts] + (end - starts) * longest + cost
        least[end] = costs.min()
        begins.append(int(starts[costs.argmin()]))
    borders, end = [], begins[-1]
    while end:
        borders.append(end)
        end = begins[end]
    return borders[::-1]


def plan_microbatches(
    rows: np.ndarray, total_lengths: np.ndarray, trains: np.ndarray, tokens: int, *, rank: int = 0, world: int = 1
) -> list[Microbatch]:
    """Return this process's microbatches: rows of similar length, at most ``tokens`` tokens with padding, or one row.

    The rows are sorted by length, and divided into microbatches so that there is little padding and few microbatches. A
    single process takes one microbatch more to cost as much as 100 tokens of padding. Several processes make nearly the
    least possible number of microbatches, because sharded weights are gathered again for each.

    Rows without a gradient (``trains`` False) get separate microbatches, which need no backward pass. Every process
    gets the same number of microbatches with and without a gradient, so that collective operations match. To reach that
    number the biggest microbatches are halved, and if that is not enough, dummies are added.

    Parameters
    ----------
    rows : (n,) int
        Rows of one minibatch.
    total_lengths, trains : (N,)
        Length of prompt and response in tokens, and whether the row has a gradient.
    rank, world : int
        Number of this process, and number of processes.
    """
    found: list[Microbatch] = []
    for kind in (True, False):
        chosen = rows[trains[rows] == kind]
        chosen = chosen[np.argsort(total_lengths[chosen], kind="stable")]
        cost = MICROBATCH_COST if world == 1 else tokens
        parts = np.split(chosen, _borders(total_lengths[chosen], tokens, cost)) if len(chosen) else []
        # While processes would get unequal numbers of microbatches (parts of the rows), halve the biggest one.
        while len(parts) % world and max(map(len, parts)) > 1:
            i = int(np.argmax([len(part) * total_lengths[part[-1]] * (len(part) > 1) for part in parts]))
            parts[i : i + 1] = np.array_split(parts[i], 2)
        # Sort the microbatches (parts) by size, so that at any time all processes work on microbatches of similar size.
        parts.sort(key=lambda part: len(part) * total_lengths[part[-1]])
        for i in range(0, len(parts), world):
            mine = i + rank
            dummy = mine >= len(parts)
            found.append(Microbatch(parts[-1][:1] if dummy else parts[mine], kind, dummy))
    return found
