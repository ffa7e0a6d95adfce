"""Count how many responses drawn from a log-ratio model a rule accepts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fspo.rules import Rate, Rule
from proofs_check.models.base import JointModel, LogRatioModel, matching_means

CHUNK = 1 << 14
"""Number of draws that are in memory at once."""


def acceptance_counts(
    model: LogRatioModel,
    rule: Rule,
    lengths: Sequence[float] | np.ndarray,
    draws: int,
    seed: int,
    rate: Rate = "band",
) -> np.ndarray:
    """Count how many of ``draws`` responses of each length a rule accepts, (K,). The centre of its band follows from
    the model's mean and variance.

    Parameters
    ----------
    model : LogRatioModel; a JointModel for ``rate="update"``
    lengths : (K,), tokens
    seed : int
        Each length has a random stream of its own, which follows from the seed and the length's index.
    rate : {"band", "update"}
        Which responses count as accepted: those in the band, or those that are not clipped (docs/theory.md section 1;
        T9).
    """
    m = rule.centre(matching_means(model)) if rule.needs_stats else 0.0
    counts = np.zeros(len(lengths), np.int64)
    for i, length in enumerate(np.asarray(lengths, np.float64)):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(i, 0)))
        for start in range(0, draws, CHUNK):
            n = np.full(min(CHUNK, draws - start), length)
            if isinstance(model, JointModel) and rate == "update":
                S, A = model.sample_pair(rng, n)
                counts[i] += np.count_nonzero(rule.apply(S, n, A, m).side == 0)
            else:
                counts[i] += np.count_nonzero(rule.apply(model.sample(rng, n), n, np.ones_like(n), m).in_band)
    return counts


def band_counts(
    rng: np.random.Generator, rule: Rule, model: LogRatioModel, lengths: np.ndarray, draws: int
) -> np.ndarray:
    """Draw S ``draws`` times for each length; return how many of each lie in the band, as ``rule.apply`` says."""
    n = np.broadcast_to(lengths, (draws, lengths.size))
    m = rule.centre(matching_means(model)) if rule.needs_stats else 0.0
    applied = rule.apply(model.sample(rng, n), n, np.ones_like(n), m)
    return applied.in_band.sum(axis=0)
