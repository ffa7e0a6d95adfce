"""Counts: exact laws, and direct computation on the same draws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fspo.rules import preset
from proofs_check.models import AdvantageDrift, GaussianTokens, ScaledGamma, matching_means
from proofs_check.tools import sampling
from proofs_check.tools.sampling import acceptance_counts, band_counts

MODEL = GaussianTokens(-0.00045, 0.03)
SIGNED = AdvantageDrift(-0.00045, 0.03, pull=1e-4, positive=0.3)
RULE = preset("fspo-kl", range_hi=0.045, dual=2.0).rule
LENGTHS = [16.0, 400.0, 7.0]


@pytest.mark.parametrize("rate", ["band", "update"])
def test_counts_equal_the_rule_on_the_stated_streams(monkeypatch, rate):
    monkeypatch.setattr(sampling, "CHUNK", 300)
    model = SIGNED if rate == "update" else MODEL
    found = acceptance_counts(model, RULE, LENGTHS, 700, 5, rate=rate)
    for i, (count, length) in enumerate(zip(found, LENGTHS, strict=True)):
        rng, kept = np.random.default_rng(np.random.SeedSequence(5, spawn_key=(i, 0))), 0
        for size in (300, 300, 100):
            n = np.full(size, length)
            S, A = SIGNED.sample_pair(rng, n) if rate == "update" else (MODEL.sample(rng, n), np.ones(size))
            applied = RULE.apply(S, n, A, RULE.centre(matching_means(model)))
            kept += np.count_nonzero(applied.in_band if rate == "band" else applied.side == 0)
        assert count == kept


def test_counts_follow_the_exact_law():
    model = ScaledGamma(-0.00045, 0.03, shape=0.5)
    draws = 100_000
    lo, hi = RULE.band(np.array(LENGTHS), RULE.centre(matching_means(model)))
    p = model.cdf(hi, LENGTHS) - model.cdf(lo, LENGTHS)
    by_count = acceptance_counts(model, RULE, LENGTHS, draws, 1)
    at_once = band_counts(np.random.default_rng(2), RULE, model, np.array(LENGTHS), draws)
    for found in (by_count, at_once):
        # exact binomial test of each: fails by chance with probability 3e-6
        for k, q in zip(found, p, strict=True):
            assert stats.binomtest(int(k), draws, float(q)).pvalue > 1e-6
