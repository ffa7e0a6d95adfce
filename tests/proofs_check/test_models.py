"""Moments and laws of the log-ratio models against theory and an independent sampler."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fspo.errors import UserError
from fspo.rules import preset
from fspo.theory import ar1_variance_ratio
from proofs_check.models import (
    AutoregressiveTokens,
    ExponentialTokens,
    GaussianTokens,
    ScaledGamma,
    matching_stats,
)

LENGTHS = np.array([1.0, 5, 40])
MODELS = [
    GaussianTokens(-0.01, 0.2),
    ScaledGamma(-0.01, 0.2, shape=0.5),
    ExponentialTokens(-0.01, 0.2),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
def test_mean_and_variance_are_mu_l_and_sigma2_l(model):
    draws = 100_000
    S = model.sample(np.random.default_rng(0), np.broadcast_to(LENGTHS, (draws, 3)))
    error = S.std(axis=0) / math.sqrt(draws)
    assert np.all(np.abs(S.mean(axis=0) - model.mu * LENGTHS) < 5 * error)
    fourth = ((S - S.mean(axis=0)) ** 4).mean(axis=0)
    variance_error = np.sqrt((fourth - S.var(axis=0) ** 2) / draws)
    assert np.all(np.abs(S.var(axis=0) - model.sigma**2 * LENGTHS) < 5 * variance_error)


def test_scaled_gamma_has_one_skewed_law_at_every_length():
    model = ScaledGamma(-0.01, 0.2, shape=0.5)
    S = model.sample(np.random.default_rng(1), np.broadcast_to(LENGTHS, (50_000, 3)))
    z = (S - model.mu * LENGTHS) / np.sqrt(LENGTHS)
    assert stats.ks_2samp(z[:, 0], z[:, 2]).pvalue > 1e-4
    assert np.all(stats.skew(z) < -2.0)  # -2/sqrt(.5) = -2.83


def test_exponential_tokens_match_explicit_sums_and_their_cdf():
    model, rng = ExponentialTokens(-0.01, 0.2), np.random.default_rng(2)
    explicit = (model.mu + model.sigma * (rng.standard_exponential((20_000, 6)) - 1)).sum(axis=1)
    assert stats.kstest(explicit, lambda s: model.cdf(s, 6.0)).pvalue > 1e-4
    assert stats.ks_2samp(explicit, model.sample(rng, np.full(20_000, 6.0))).pvalue > 1e-4


def test_rho3_of_the_exponential_by_quadrature():
    from scipy.integrate import quad

    third = (
        quad(lambda x: abs(x - 1) ** 3 * math.exp(-x), 0, 1)[0] + quad(lambda x: (x - 1) ** 3 * math.exp(-x), 1, 80)[0]
    )
    assert third == pytest.approx(ExponentialTokens.RHO3, rel=1e-10)


@pytest.mark.parametrize("ar", [-0.7, 0.0, 0.6])
def test_autoregressive_variance(ar):
    model, draws = AutoregressiveTokens(0.0, 0.2, ar), 40_000
    S = model.sample(np.random.default_rng(3), np.broadcast_to(LENGTHS, (draws, 3)))
    expected = model.sigma**2 * LENGTHS * ar1_variance_ratio(ar, LENGTHS)
    # Var of a Gaussian sample variance is 2 sigma^4 / n
    assert np.all(np.abs(S.var(axis=0) / expected - 1) < 5 * math.sqrt(2 / draws))


def test_same_generator_same_draws():
    for model in MODELS:
        one, two = (model.sample(np.random.default_rng(5), LENGTHS) for _ in range(2))
        np.testing.assert_array_equal(one, two)


def test_matching_stats_centre_the_kl_band_on_the_model():
    model = GaussianTokens(-0.003, 0.2)
    rule = preset("fspo-kl").rule
    lo, hi = rule.band(LENGTHS, matching_stats(model))
    np.testing.assert_allclose((lo + hi) / 2, model.mu * LENGTHS)
    with pytest.raises(UserError, match="mu <= 0"):
        matching_stats(GaussianTokens(0.1, 0.2))


@pytest.mark.parametrize(
    "make", [GaussianTokens, ScaledGamma, ExponentialTokens, lambda m, s: AutoregressiveTokens(m, s, 0)]
)
def test_sigma_must_be_positive(make):
    for sigma in (0.0, -1.0, math.nan):
        with pytest.raises(UserError, match="sigma"):
            make(0.0, sigma)
    with pytest.raises(UserError, match="ar="):
        AutoregressiveTokens(0.0, 0.1, 1.0)
