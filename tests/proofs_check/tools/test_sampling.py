"""Counts: exact laws, direct computation on the same draws, and independence of the number of jobs."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scipy import stats

from fspo.base.errors import UserError
from fspo.rules import preset
from proofs_check.models import (
    AdvantageDrift,
    GaussianTokens,
    IndependentAdvantage,
    MarkovTokens,
    ScaledGamma,
    matching_means,
)
from proofs_check.tools import sampling
from proofs_check.tools.sampling import acceptance_counts

MODEL = GaussianTokens(-0.00045, 0.03)
SIGNED = AdvantageDrift(-0.00045, 0.03, pull=1e-4, positive=0.3)
RULE = preset("fspo-kl", range_hi=0.045, dual=2.0).rule
LENGTHS = [16.0, 400.0, 7.0]


def small_blocks(monkeypatch):
    monkeypatch.setattr(sampling, "BLOCK", 1000)
    monkeypatch.setattr(sampling, "CHUNK", 300)


def draws_of(model, seed, lengths, draws, block=1000, chunk=300):
    """The draws of each length, made here from the stated streams, as (S, A) of all blocks."""
    found = []
    for i, length in enumerate(lengths):
        parts = []
        for j in range(-(-draws // block)):
            rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(i, j)))
            size = min(block, draws - j * block)
            while size > 0:
                n = np.full(min(chunk, size), length)
                parts.append(model.sample_pair(rng, n) if model is SIGNED else (model.sample(rng, n), np.ones_like(n)))
                size -= chunk
        found.append([np.concatenate(x) for x in zip(*parts, strict=True)])
    return found


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("rate", ["band", "update"])
def test_counts_equal_rule_apply_on_the_same_draws(monkeypatch, jobs, rate):
    small_blocks(monkeypatch)
    model = SIGNED if rate == "update" else MODEL
    found = acceptance_counts(model, RULE, LENGTHS, 3700, 5, rate=rate, jobs=jobs)
    for count, length, (S, A) in zip(found, LENGTHS, draws_of(model, 5, LENGTHS, 3700), strict=True):
        applied = RULE.apply(S, np.full(S.size, length), A, RULE.centre(matching_means(model)))
        accepted = applied.in_band if rate == "band" else applied.side == 0
        assert S.size == 3700
        assert count == np.count_nonzero(accepted)


def test_counts_follow_the_exact_law():
    model = ScaledGamma(-0.00045, 0.03, shape=0.5)
    draws = 300_000
    found = acceptance_counts(model, RULE, LENGTHS, draws, 1)
    lo, hi = RULE.band(np.array(LENGTHS), RULE.centre(matching_means(model)))
    p = model.cdf(hi, LENGTHS) - model.cdf(lo, LENGTHS)
    # exact binomial test of each: fails by chance with probability 3e-6
    for k, q in zip(found, p, strict=True):
        assert stats.binomtest(int(k), draws, float(q)).pvalue > 1e-6


@pytest.mark.parametrize("model", [MODEL, SIGNED, MarkovTokens(-0.001, 0.03)], ids=lambda m: type(m).__name__)
def test_results_do_not_depend_on_jobs_and_do_on_the_seed(monkeypatch, model):
    small_blocks(monkeypatch)
    joint = model if model is SIGNED else IndependentAdvantage(model, 0.3)
    one, two = (acceptance_counts(joint, RULE, LENGTHS, 5_500, 3, rate="update", jobs=jobs) for jobs in (1, 4))
    np.testing.assert_array_equal(one, two)
    other = acceptance_counts(joint, RULE, LENGTHS, 5_500, 4, rate="update")
    assert np.any(one != other)
    again = acceptance_counts(joint, RULE, LENGTHS, 5_500, np.random.SeedSequence(3), rate="update")
    np.testing.assert_array_equal(one, again)


def test_children_of_one_seed_sequence_differ():
    first, second = np.random.SeedSequence(3).spawn(2)
    counts = [acceptance_counts(MODEL, RULE, LENGTHS, 20_000, seed) for seed in (first, second)]
    assert np.any(counts[0] != counts[1])


def test_memory_does_not_grow_with_the_draws():
    peaks = []
    acceptance_counts(MODEL, RULE, [64.0], 1 << 14, 0)
    for draws in (1 << 20, 1 << 23):
        tracemalloc.start()
        acceptance_counts(MODEL, RULE, [64.0], draws, 0)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] < 4e6  # 2^23 draws at once would be 64 MiB


def test_an_error_in_a_block_reaches_the_caller(monkeypatch):
    small_blocks(monkeypatch)

    def broken(self, rng, lengths):
        raise UserError("broken model: mend it")

    monkeypatch.setattr(GaussianTokens, "sample", broken)
    with pytest.raises(UserError, match="broken model"):
        acceptance_counts(MODEL, RULE, LENGTHS, 100_000, 0, jobs=2)


def test_progress_bar_counts_draws(capsys):
    acceptance_counts(MODEL, RULE, LENGTHS, 1_000, 0, progress=True)
    assert "3.00k/3.00k" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"lengths": []}, "empty"),
        ({"lengths": [0.0]}, ">= 1"),
        ({"lengths": [[1.0, 2.0]]}, "vector"),
        ({"draws": 0}, "draws=0"),
        ({"draws": 2.5}, "draws=2.5"),
        ({"jobs": 0}, "jobs=0"),
        ({"rate": "weight"}, "rate 'weight'"),
        ({"rate": "update"}, "IndependentAdvantage"),
        ({"rule": preset("grpo").rule}, "paths"),
        ({"model": GaussianTokens(0.1, 0.03)}, "mu <= 0"),
        ({"model": MarkovTokens(-0.001, 0.03), "lengths": [2.5]}, "whole"),
    ],
)
def test_bad_input_is_one_line(change, match):
    arguments = {"model": MODEL, "rule": RULE, "lengths": LENGTHS, "draws": 10, "seed": 0} | change
    with pytest.raises(UserError, match=match) as error:
        acceptance_counts(**arguments)
    assert "\n" not in str(error.value)


def test_a_wrapped_model_has_update_acceptance():
    found = acceptance_counts(IndependentAdvantage(MODEL, 0.5), RULE, [64.0], 1_000, 0, rate="update")
    assert 0 < found[0] < 1_000
