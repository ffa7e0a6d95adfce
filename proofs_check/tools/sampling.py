"""Count how many responses drawn from a log-ratio model a rule accepts."""

from __future__ import annotations

import numpy as np

from fspo.rules import Rule
from proofs_check.models.base import LogRatioModel, matching_means


def band_counts(
    rng: np.random.Generator, rule: Rule, model: LogRatioModel, lengths: np.ndarray, draws: int
) -> np.ndarray:
    """Draw S ``draws`` times for each length; return how many of each lie in the band, as ``rule.apply`` says."""
    n = np.broadcast_to(lengths, (draws, lengths.size))
    m = rule.centre(matching_means(model)) if rule.needs_stats else 0.0
    applied = rule.apply(model.sample(rng, n), n, np.ones_like(n), m)
    return applied.in_band.sum(axis=0)
