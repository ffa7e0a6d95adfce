"""Moments and distributions of the log-ratio models against theory, enumeration and independent samplers.

Seeds are fixed. A bound of five standard errors on one number fails by chance with probability 6e-7; a
Kolmogorov-Smirnov p-value above 1e-5 does so with probability 1e-5.
"""

import math
from itertools import pairwise, product

import numpy as np
import pytest
from scipy import integrate, linalg, stats

from fspo.rules import preset
from proofs_check import models

LENGTHS = np.array([1.0, 5, 40])
EACH = {
    "gaussian": models.GaussianTokens(-0.01, 0.2),
    "ar1": models.AutoregressiveTokens(-0.01, 0.2, 0.6),
    "ar1, negative": models.AutoregressiveTokens(-0.01, 0.2, -0.7),
    "markov": models.MarkovTokens(-0.01, 0.2, 0.7, 0.3, 0.6, 3.0),
    "student-tokens": models.StudentTokens(-0.01, 0.2, df=9.0),
    "scaled-student": models.ScaledStudent(-0.01, 0.2, df=9.0),
    "exponential-tokens": models.ExponentialTokens(-0.01, 0.2),
    "scaled-gamma": models.ScaledGamma(-0.01, 0.2, shape=0.5),
    "scaled-gamma, right": models.ScaledGamma(-0.01, 0.2, shape=2.0, sign=1),
    "heteroscedastic": models.Heteroscedastic(-0.01, 0.2, beta=0.2),
    "fractional": models.FractionalNoise(-0.01, 0.2, hurst=0.3),
    "stopped-chain": models.CHAIN,
}
DISTRIBUTIONS = {name: model for name, model in EACH.items() if hasattr(model, "cdf")}
PATHS = {name: model for name, model in EACH.items() if hasattr(model, "paths")}


def each(models):
    return pytest.mark.parametrize("model", models.values(), ids=models.keys())


def assert_moments(S, mean, variance):
    """Mean and variance of the columns of S within five standard errors, and the rounding of 1e5 additions."""
    draws, rounding = len(S), 1e-10
    assert np.all(np.abs(S.mean(axis=0) - mean) <= 5 * S.std(axis=0) / math.sqrt(draws) + rounding)
    fourth = ((S - S.mean(axis=0)) ** 4).mean(axis=0)
    error = np.sqrt(np.maximum(fourth - S.var(axis=0) ** 2, 0) / draws)
    assert np.all(np.abs(S.var(axis=0) - variance) <= 5 * error + rounding)


@each(EACH)
def test_mean_and_variance_of_draws(model):
    S = model.sample(np.random.default_rng(0), np.broadcast_to(LENGTHS, (100_000, 3)))
    assert_moments(S, model.mean(LENGTHS), model.variance(LENGTHS))


@each(PATHS)
def test_token_paths_have_the_moments_and_distribution_of_the_sum(model):
    rng = np.random.default_rng(1)
    for length in (1, 7, 30):
        S = model.paths(rng, 40_000, length).sum(axis=1)
        assert_moments(S[:, None], model.mean([length]), model.variance([length]))
        direct = model.sample(rng, np.full(20_000, float(length)))
        # distributions with few values meet the same value in two roundings
        assert stats.ks_2samp(S[:20_000].round(9), direct.round(9)).pvalue > 1e-5


@each(DISTRIBUTIONS)
def test_cdf_is_the_distribution_of_the_draws_and_increases_from_0_to_1(model):
    rng = np.random.default_rng(2)
    for length in LENGTHS:
        S = model.sample(rng, np.full(4_000, length))
        assert stats.kstest(S, lambda s, n=length: model.cdf(s, n)).pvalue > 1e-5
        scale = math.sqrt(float(model.variance([length])[0]))
        grid = model.cdf(float(model.mean([length])[0]) + scale * np.linspace(-50, 50, 41), length)
        assert np.all(np.diff(grid) >= -1e-12)
        assert grid[0] == pytest.approx(0, abs=1e-7)
        assert grid[-1] == pytest.approx(1, abs=1e-7)


SETTLING = {k: EACH[k] for k in EACH if k not in ("heteroscedastic", "fractional", "stopped-chain")}


@each(SETTLING)
def test_long_run_scale(model):
    assert model.variance([1e7])[0] / 1e7 == pytest.approx(model.sigma**2, rel=1e-5)
    assert model.mean([1e7])[0] / 1e7 == pytest.approx(model.mu, rel=1e-4)


@each(EACH)
def test_same_generator_same_draws_in_any_shape(model):
    one, two = (model.sample(np.random.default_rng(5), np.full((2, 3, 4), 5)) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert one.shape == (2, 3, 4)
    assert np.shape(model.sample(np.random.default_rng(5), 5.0)) == ()


def test_scaled_gamma_is_skewed_to_the_left():
    assert stats.skew(EACH["scaled-gamma"].sample(np.random.default_rng(1), np.full(50_000, 5.0))) < -2.0  # -2.83


def test_rho3_by_quadrature():
    third = integrate.quad(lambda x: abs(x - 1) ** 3 * math.exp(-x), 0, 80, points=[1])[0]
    assert third == pytest.approx(models.ExponentialTokens.RHO3, rel=1e-9)
    for df in (3.5, 6.0):
        scale = math.sqrt((df - 2) / df)
        third = 2 * integrate.quad(lambda t, d=df, c=scale: (c * t) ** 3 * stats.t.pdf(t, d), 0, np.inf)[0]
        assert models.StudentTokens(0, 1, df).rho3 == pytest.approx(third, rel=1e-6)
    assert models.StudentTokens(0, 1, 3.0).rho3 == math.inf


@pytest.mark.parametrize("hurst", [0.05, 0.2, 0.5, 0.85, 0.95])
def test_fractional_noise_has_its_autocovariance_and_their_double_sum_as_variance(hurst):
    model, draws = models.FractionalNoise(0.01, 0.2, hurst), 60_000
    covariance = linalg.toeplitz(model.autocovariance(np.arange(60)))
    assert np.min(np.linalg.eigvalsh(covariance)) > 0
    for length in (1, 2, 60):
        assert covariance[:length, :length].sum() == pytest.approx(float(model.variance(length)), rel=1e-8)
    tokens = model.paths(np.random.default_rng(7), draws, 12)
    # covariance of two entries has variance (g0^2 + g_k^2)/draws at most 2 g0^2/draws
    error = 5 * covariance[0, 0] * math.sqrt(2 / draws)
    assert np.max(np.abs(np.cov(tokens, rowvar=False) - covariance[:12, :12])) < error


def test_student_inversion_at_two_tokens_is_the_convolution():
    df, scale = 4.0, math.sqrt(0.5)
    for z in (-2.0, 0.3, 1.5):
        exact = integrate.quad(
            lambda x, z=z: stats.t.pdf(x, df) * stats.t.cdf((z * math.sqrt(2) - scale * x) / scale, df), -np.inf, np.inf
        )[0]
        assert float(models.StudentTokens(0.0, 1.0, df).cdf(z * math.sqrt(2), 2)) == pytest.approx(exact, abs=1e-7)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_stopped_chain_by_enumeration_of_its_paths(length):
    chain, weights = models.CHAIN, []
    for path in product(range(2), repeat=length):
        moved = [chain.moves[:, i, j] for i, j in pairwise(path)]
        weights.append(chain.start[path[0]] * np.prod(moved, axis=0) * chain.ends[:, path[-1]])
    old, new = np.transpose(weights)
    S, given = np.log(new / old), old / old.sum()
    (found,) = chain.given([length])
    mean = given @ S
    stated = (old.sum(), mean, given @ (S - mean) ** 2, new.sum() / old.sum())
    assert found == pytest.approx(stated, rel=1e-12)
    assert chain.kl_given(length) == pytest.approx(given @ np.log(given / (new / new.sum())), abs=1e-14)


def test_whole_responses_of_a_stopped_chain():
    S, n = models.CHAIN.sample_all(np.random.default_rng(9), 40_000)
    visits = np.linalg.solve(np.eye(2) - models.CHAIN.moves[0].T, models.CHAIN.start).sum()  # the mean length
    assert abs(n.mean() - visits) < 5 * n.std() / 200
    assert abs(S.mean() + models.CHAIN.kl_per_token() * visits) < 5 * S.std() / 200
    for length, one in zip((1, 20), models.CHAIN.given([1, 20]), strict=True):
        assert abs(np.mean(n == length) - one.probability) < 5 * math.sqrt(one.probability / 40_000)


def test_token_by_token_fills_each_length_whatever_the_order():
    lengths = np.array([[3.0, 1], [1, 200]])
    S = models.TokenByToken(models.GaussianTokens(100.0, 1e-3)).sample(np.random.default_rng(0), lengths)
    np.testing.assert_allclose(S, 100 * lengths, atol=0.1)


def test_matching_means_centre_the_kl_band_on_the_model():
    model = models.GaussianTokens(-0.003, 0.2)
    rule = preset("fspo-kl").rule
    lo, hi = rule.band(LENGTHS, rule.centre(models.matching_means(model)))
    np.testing.assert_allclose((lo + hi) / 2, model.mu * LENGTHS)
    with pytest.raises(AssertionError, match="mu <= 0"):
        models.matching_means(models.GaussianTokens(0.1, 0.2))
