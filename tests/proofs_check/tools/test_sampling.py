"""Counts follow the exact law."""

from __future__ import annotations

import numpy as np
from scipy import stats

from fspo.rules import preset
from proofs_check.models import ScaledGamma, matching_means
from proofs_check.tools.sampling import band_counts


def test_counts_follow_the_exact_law():
    model, lengths, draws = ScaledGamma(-0.00045, 0.03, shape=0.5), np.array([16.0, 400.0, 7.0]), 100_000
    rule = preset("fspo-kl", range_hi=0.045).rule
    lo, hi = rule.band(lengths, rule.centre(matching_means(model)))
    p = model.cdf(hi, lengths) - model.cdf(lo, lengths)
    # exact binomial test of each: fails by chance with probability 3e-6
    for k, q in zip(band_counts(np.random.default_rng(2), rule, model, lengths, draws), p, strict=True):
        assert stats.binomtest(int(k), draws, float(q)).pvalue > 1e-6
