"""Moments, shape and the variance exponent against scipy, closed forms and simulated coverage."""

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats as sps

from analysis.tables.moments import exponent, standardized, update_scale, variance_interval


def test_variance_interval_by_hand_and_by_coverage():
    x = np.array([1.0, -1.0, 2.0, -2.0, 3.0, -3.0])
    value, low, high = variance_interval(x, np.arange(6))
    assert value == pytest.approx(28 / 6 * 6 / 5)
    assert low < value < high
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(300):
        sample = np.repeat(rng.normal(size=120), 4) + rng.normal(size=480)
        _, low, high = variance_interval(sample, np.arange(480) // 4)
        hits += low <= 2.0 <= high
    assert hits / 300 > 0.95 - 3 * np.sqrt(0.95 * 0.05 / 300)


def test_exponent_is_statsmodels_gamma_regression():
    rng = np.random.default_rng(7)
    cluster = np.repeat(np.arange(80), 5)
    L = np.exp(rng.uniform(np.log(4), np.log(400), 400))
    y = L**1.2 * rng.gamma(2, size=400) * np.exp(0.4 * rng.normal(size=80))[cluster]
    model = sm.GLM(y, sm.add_constant(np.log(L)), family=sm.families.Gamma(sm.families.links.Log()))
    robust = {"groups": cluster, "use_correction": False}
    theirs = model.fit(method="newton", cov_type="cluster", cov_kwds=robust, tol=1e-12)
    ours, _ = exponent(y, L, cluster)
    half = sps.t.ppf(0.975, 79) * theirs.bse[1] * np.sqrt(80 / 79)
    assert ours == pytest.approx((theirs.params[1], theirs.params[1] - half, theirs.params[1] + half), rel=1e-6)


@pytest.mark.parametrize(
    ("y", "L"),
    [
        (np.ones(20), np.full(20, 7.0)),
        (np.zeros(20), np.arange(1.0, 21)),
        (np.repeat([1.0, 0.0], 10), np.repeat([4.0, 8.0], 10)),  # the slope would be minus infinity
        (np.repeat([1e-33, 1.0], 10), np.repeat([4.0, 8.0], 10)),  # the square of a rounding error is no variance
    ],
)
def test_exponent_without_information_is_nan_with_a_reason(y, L):
    found, reason = exponent(y, L, np.arange(20))
    assert np.isnan(found.value)
    assert reason


def test_scale_and_standardization_by_hand():
    S, L = np.array([2.0, 0.0, 6.0, 6.0]), np.array([1.0, 3.0, 4.0, 4.0])
    scale = update_scale(S, L, np.array([0, 0, 1, 1]))
    assert scale.tolist() == [1.0, 1.0, 3.0, 3.0]
    z = standardized(S, L, scale, np.array([0, 0, 1, 1]))
    assert z.tolist() == [1.0, -1.0, 0.0, 0.0]
