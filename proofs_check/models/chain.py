"""A policy that is a chain of a few states and stops at random, so that its lengths shift (T4 (c), T5, T6)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fspo.theory import Floats
from proofs_check.models.base import SummedTokens, numbers_of


class GivenLength(NamedTuple):
    """Exact numbers of one length: its ``probability`` under the old policy, the mean (nats) and variance (nats
    squared) of S given it, and ``ratio``, its probability under the new policy over that under the old one."""

    probability: float
    mean: float
    variance: float
    ratio: float


@dataclass(frozen=True, eq=False)
class StoppedChain(SummedTokens):
    """A policy whose tokens are the states of a Markov chain that stops at random, before and after a training step.
    The first token has a state drawn from ``start``. From state i the response ends with the probability ``ends[i]`` or
    goes on with a token of state j with the probability ``moves[i][j]``.

    Attributes
    ----------
    start : array (K,)
        Probabilities of the first token's K states, the same for the old and the new policy.
    moves, ends : arrays (2, K, K), (2, K)
        The old (0) and the new (1) policy's; of each, row i of moves and ends[i] sum to 1. Both have the same zeros."""

    start: Floats
    moves: Floats
    ends: Floats

    @classmethod
    def of(cls, start: ArrayLike, going_on: ArrayLike, stops: ArrayLike) -> StoppedChain:
        """Return a chain from the distributions of the next state if the response goes on, (2, K, K), and the
        probabilities to stop in each state, (2, K), both of the old and the new policy."""
        ends = np.asarray(stops, np.float64)
        return cls(np.asarray(start, np.float64), np.asarray(going_on) * (1 - ends[..., None]), ends)

    @cached_property
    def steps(self) -> tuple[Floats, Floats]:
        """Log-ratios, new over old, nats, of each move (K, K) and of the end in each state (K,); 0 where both are 0."""
        (P, Q), (e, f) = (np.where(both > 0, both, 1.0) for both in (self.moves, self.ends))
        return np.log(Q / P), np.log(f / e)

    def given(self, lengths: ArrayLike) -> list[GivenLength]:
        """Return the `GivenLength` of each of ``lengths`` (N,), in this order, by exact sums over the states."""
        wanted = numbers_of(lengths).astype(int).tolist()
        (P, Q), (e, f), (step, last) = self.moves, self.ends, self.steps
        mass, weight = self.start, self.start
        first = second = np.zeros_like(mass)
        scale = ratio_scale = 0.0  # logarithms of what mass and weight were divided by
        found: dict[int, GivenLength] = {}
        for length in range(1, max(wanted) + 1):
            if length in wanted:
                m0, w0 = mass @ e, weight @ f
                mean = (first + mass * last) @ e / m0
                square = (second + 2 * first * last + mass * last**2) @ e / m0
                ratio = float(w0 / m0 * np.exp(ratio_scale - scale))
                found[length] = GivenLength(float(m0 * np.exp(scale)), float(mean), float(square - mean**2), ratio)
            second = second @ P + 2 * first @ (P * step) + mass @ (P * step**2)
            first, mass, weight = first @ P + mass @ (P * step), mass @ P, weight @ Q
            size, other = mass.sum(), weight.sum()
            mass, first, second, weight = mass / size, first / size, second / size, weight / other
            scale, ratio_scale = scale + np.log(size), ratio_scale + np.log(other)
        return [found[length] for length in wanted]

    def mean(self, lengths: ArrayLike) -> Floats:
        """Return the mean of S given each length under the old policy, nats."""
        return np.reshape([one.mean for one in self.given(np.ravel(lengths))], np.shape(lengths))

    def variance(self, lengths: ArrayLike) -> Floats:
        """Return the variance of S given each length under the old policy, nats squared."""
        return np.reshape([one.variance for one in self.given(np.ravel(lengths))], np.shape(lengths))

    def kl_per_token(self) -> float:
        """Return KL(old || new) per token, nats: that of a whole response divided by the mean length."""
        (P, _), (e, _), (step, last) = self.moves, self.ends, self.steps
        visits = np.linalg.solve(np.eye(len(e)) - P.T, self.start)
        return float(-visits @ ((P * step).sum(axis=1) + e * last) / visits.sum())

    def paths_given(self, which: int, length: int) -> tuple[Floats, list[Floats]]:
        """Return the distributions of the states given the length: of the first (K,), and for each further token the
        distribution of its state given the state before, (K, K) each. ``which`` is 0 for the old policy, 1 for the new.
        """
        ahead = [self.ends[which]]
        for _ in range(length - 1):
            before = self.moves[which] @ ahead[-1]
            ahead.append(before / before.sum())
        dists = [self.moves[which] * b for b in ahead[-2::-1]]
        start = self.start * ahead[-1]
        return start / start.sum(), [dist / dist.sum(axis=1, keepdims=True) for dist in dists]

    def kl_given(self, length: int) -> float:
        """Return KL(old || new) of the responses of one length, nats, by the chain rule over their tokens."""
        (at, old), (first, new) = self.paths_given(0, length), self.paths_given(1, length)
        total = float(np.sum(at * np.log(np.where(at > 0, at, 1) / np.where(at > 0, first, 1))))
        for P, Q in zip(old, new, strict=True):
            inner = P * np.log(np.where(P > 0, P, 1) / np.where(P > 0, Q, 1))
            total, at = total + float(at @ inner.sum(axis=1)), at @ P
        return total

    def paths(self, rng: np.random.Generator, draws: int, length: int) -> Floats:
        """Draw token log-ratios of responses of one length by the old policy, (draws, length), with the end's in the
        last."""
        step, last = self.steps
        start, dists = self.paths_given(0, length)
        state, s = np.searchsorted(np.cumsum(start)[:-1], rng.random(draws), side="right"), np.zeros((draws, length))
        for t, dist in enumerate(dists, 1):
            moved = (rng.random(draws)[:, None] >= np.cumsum(dist, axis=1)[state, :-1]).sum(axis=1)
            s[:, t] = step[state, moved]
            state = moved
        s[:, -1] += last[state]
        return s

    def sample_all(self, rng: np.random.Generator, draws: int) -> tuple[Floats, Floats]:
        """Draw whole responses of the old policy until they end; return S and the length of each, (draws,) both."""
        step, last = self.steps
        state = rng.choice(self.start.size, draws, p=self.start)
        S, n, live = np.zeros(draws), np.ones(draws), np.arange(draws)
        while live.size:
            ends = rng.random(live.size) < self.ends[0][state[live]]
            S[live[ends]] += last[state[live[ends]]]
            live = live[~ends]
            dist = self.moves[0] / self.moves[0].sum(axis=1, keepdims=True)
            moved = (rng.random(live.size)[:, None] >= np.cumsum(dist, axis=1)[state[live], :-1]).sum(axis=1)
            S[live] += step[state[live], moved]
            state[live] = moved
            n[live] += 1
        return S, n


CHAIN = StoppedChain.of(
    [0.5, 0.5], [[[0.90, 0.10], [0.20, 0.80]], [[0.892, 0.108], [0.21, 0.79]]], [[0.004, 0.006], [0.020, 0.024]]
)
"""A chain of two states whose new policy stops sooner: docs/theory.md T6."""
