"""A tabular policy whose responses were drawn by another distribution, and its four log-ratios of docs/theory.md
section 1, computed for every possible response. Shapes: N responses, T positions, V symbols beside the end symbol."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fspo.theory import Floats
from proofs_check.tools.policy import SmallPolicy, all_responses, next_symbol, token_log_probs

SAMPLERS: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.7}, {"top_p": 0.8}, {"top_k": 2, "temperature": 1.3})
"""Sampling options (temperature, top-p, top-k) of the distribution that draws the responses in the enumerated checks,
as arguments of `make_chain`."""


def truncated(theta: Floats, top_p: float = 1.0, top_k: int | None = None) -> Floats:
    """Return the logits ``theta`` (T, V + 1, V + 1) with -inf for each next symbol that truncated sampling leaves out.
    Top-p keeps the fewest most likely symbols that sum to ``top_p`` in (0, 1] or more; top-k, ``top_k`` of them."""
    order = np.argsort(-theta, axis=-1, kind="stable")
    ranked = np.take_along_axis(next_symbol(theta), order, axis=-1)
    keep = np.cumsum(ranked, axis=-1) - ranked < top_p - 1e-12
    if top_k is not None:
        keep[..., top_k:] = False
    kept = np.zeros_like(keep)
    np.put_along_axis(kept, order, keep, axis=-1)
    return np.where(kept, theta, -np.inf)


@dataclass(frozen=True)
class Chain(SmallPolicy):
    """A `SmallPolicy` whose responses another distribution drew, with other weights: four distributions of a response.

    Attributes
    ----------
    sampling, draw : arrays (T, V + 1, V + 1)
        Logits of the weights that sampled, and of the distribution that draws: the same after the sampler's numerics,
        temperature, top-p and top-k, -inf for a symbol that the sampler cannot draw."""

    sampling: Floats
    draw: Floats

    @cached_property
    def p_draw(self) -> Floats:
        """Probability of each response under the distribution that draws, (N,)."""
        return self.probability(self.draw)

    @property
    def drawn(self) -> np.ndarray:
        """Whether each response has a probability above 0 under the distribution that draws, (N,) bool."""
        return self.p_draw > 0

    @property
    def lengths(self) -> np.ndarray:
        """Lengths L in tokens, (N,), the end symbol counted."""
        return self.responses.lengths

    def token_log_ratios(self, theta: Floats, reference: Floats) -> Floats:
        """Return each token's log-probability under ``theta`` less that under ``reference``, nats, (N, T). The entries
        of responses that cannot be drawn are 0."""
        with np.errstate(invalid="ignore"):
            found = token_log_probs(theta, self.responses) - token_log_probs(reference, self.responses)
        return np.where(self.drawn[:, None], found, 0.0)

    @cached_property
    def update(self) -> Floats:
        """Log-ratios S, (N,): log-probability under the new weights less that under the old ones, nats."""
        return self.token_log_ratios(self.new, self.old).sum(axis=1)

    @cached_property
    def staleness(self) -> Floats:
        """Policy lags D, (N,): log-probability under the old weights less that under the sampling weights, nats."""
        return self.token_log_ratios(self.old, self.sampling).sum(axis=1)

    @cached_property
    def engine(self) -> Floats:
        """Engine log-ratios E, (N,): log-probability under the sampling weights less that under what draws, nats."""
        return self.token_log_ratios(self.sampling, self.draw).sum(axis=1)


def make_chain(
    rng: np.random.Generator,
    *,
    vocabulary: int = 3,
    max_length: int = 5,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int | None = None,
    noise: float = 0.2,
    step: float = 0.3,
) -> Chain:
    """Return a `Chain` with random logits of the sampling weights. The old weights' logits are ``step`` times random
    numbers away from them, the new weights' so far away from the old ones'. It has ``vocabulary`` symbols beside the
    end and responses up to ``max_length`` tokens. The logits of the distribution that draws are those of the sampling
    weights plus ``noise`` times standard normal numbers, divided by the temperature and then truncated."""
    shape = (max_length, vocabulary + 1, vocabulary + 1)
    sampling = rng.standard_normal(shape)
    draw = truncated((sampling + noise * rng.standard_normal(shape)) / temperature, top_p, top_k)
    old = sampling + step * rng.standard_normal(shape)
    responses = all_responses(vocabulary, max_length)
    advantages = rng.standard_normal(responses.lengths.size) + 0.2 * (responses.lengths - max_length / 2)
    return Chain(old, old + step * rng.standard_normal(shape), responses, advantages, sampling, draw)
