"""Cluster statistics against hand-worked numbers, plain loops and simulated coverage."""

from dataclasses import replace

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats as sps

from fspo.stats.clusters import TOO_FEW, ratios, too_few_showing
from fspo.stats.intervals import CONFIDENCE, PERCENT, mean_interval, proportion_interval, sample_interval, t_quantile
from fspo.stats.slopes import cluster_slope


@pytest.mark.parametrize("by_length", [False, True])
def test_the_variance_of_a_ratio_is_the_delete_one_jackknifes(by_length):
    """Clusters of 1 to 30 rows, two bins and both together: leave each cluster out and divide again."""
    rng = np.random.default_rng(8)
    cluster = np.repeat(np.arange(12), np.arange(12) ** 2 // 4 + 1)
    bins, y = rng.integers(0, 2, len(cluster)), rng.normal(1, 1, len(cluster)) + rng.normal(0, 1, 12)[cluster]
    d = rng.uniform(1, 9, len(cluster)) if by_length else np.ones(len(cluster))
    found = ratios(y, cluster, bins, 2, d)
    for k in range(3):
        at = bins == k if k < 2 else np.full(len(y), True)
        without = np.array([y[at & (cluster != c)].sum() / d[at & (cluster != c)].sum() for c in range(12)])
        assert found.value[k] == pytest.approx(y[at].sum() / d[at].sum())
        assert found.variance[k] == pytest.approx(11 / 12 * np.sum((without - y[at].sum() / d[at].sum()) ** 2))
        assert (found.count[k], found.clusters[k]) == (at.sum(), np.unique(cluster[at]).size)


def test_a_bin_without_a_row_has_no_ratio():
    assert np.isnan(ratios([2.0, 3.0], np.array([0, 1]), np.array([0, 0]), 2).value[1])


def test_all_accepted_keeps_an_uncertainty():
    found = ratios(np.ones(40), np.repeat(np.arange(10), 4), np.zeros(40, int), 1, binary=True)
    low, high = proportion_interval(found.value, found.variance, found.count, found.clusters)
    assert high[0] == 1
    t2 = sps.t.ppf(0.975, 9) ** 2
    assert low[0] == pytest.approx(10 / (10 + t2))  # Wilson's lower end at p = 1 with ten clusters
    assert found.variance[0] == pytest.approx(2 / 14 * 12 / 14 / 10)


def test_wilson_by_hand_where_clusters_do_not_matter():
    # p = 1/2, effective size 100 = rows, many clusters: Wilson's interval with t on 99 degrees
    t = sps.t.ppf(0.975, 99)
    low, high = proportion_interval(0.5, 0.0025, 100, 100)
    half = t * np.sqrt(0.25 / 100 + t**2 / 40000) / (1 + t**2 / 100)
    assert (float(low), float(high)) == pytest.approx((0.5 - half, 0.5 + half))
    # a smaller variance does not make the effective size exceed the number of rows
    np.testing.assert_allclose(proportion_interval(0.5, 0.001, 100, 100), [low, high])


def test_few_clusters_are_nan():
    assert np.isnan(proportion_interval(0.5, 0.01, 32, 4)[0])
    for clusters in range(5, 200, 7):  # at 0 and at 1 an end is exact, however the rest rounds
        assert proportion_interval(0.0, 0.0, 999, clusters)[0] == 0
        assert proportion_interval(1.0, 0.0, 999, clusters)[1] == 1
    assert np.isnan(mean_interval(0.5, 0.01, 4)[1])


@pytest.mark.parametrize("weighted", [False, True])
def test_slope_and_ratio_are_those_of_statsmodels(weighted):
    rng = np.random.default_rng(9)
    cluster = np.repeat(np.arange(30), 6)
    x, w = rng.normal(size=180), rng.uniform(0.5, 2, 180) if weighted else np.ones(180)
    y = 0.3 * x + rng.normal(size=30)[cluster] + rng.normal(size=180)
    robust = {"cov_type": "cluster", "cov_kwds": {"groups": cluster, "use_correction": False}}
    theirs = sm.WLS(y, sm.add_constant(x), weights=w).fit(**robust, use_t=True)
    ours = cluster_slope(y, x, cluster, w)
    se = theirs.bse[1] * np.sqrt(30 / 29)  # CR1
    assert (ours.slope, ours.se) == pytest.approx((theirs.params[1], se))
    half = sps.t.ppf(0.975, 29) * se
    assert (ours.ci_low, ours.ci_high) == pytest.approx((theirs.params[1] - half, theirs.params[1] + half))
    found = ratios(y, cluster, np.zeros(180, int), 1)  # clusters of one size, so that leverage changes nothing
    mean = sm.OLS(y, np.ones(180)).fit(**robust)
    assert (found.value[0], found.variance[0]) == pytest.approx((mean.params[0], mean.bse[0] ** 2 * 30 / 29))


def test_a_slope_needs_five_clusters_and_its_error_ten_that_differ():
    rng = np.random.default_rng(0)
    slopes = []
    for clusters in (4, 5, 9, 10):
        y, x = rng.normal(size=(2, 2 * clusters))
        slopes.append(cluster_slope(y, x, np.repeat(np.arange(clusters), 2)))
    assert [np.isnan(found.slope) for found in slopes] == [True, False, False, False]
    assert [np.isnan(found.se) for found in slopes] == [True, True, True, False]
    assert [found.reason for found in slopes] == [TOO_FEW, too_few_showing(5), too_few_showing(9), ""]


@pytest.mark.parametrize(("cuts", "given"), [(9, False), (10, True)])
def test_a_slope_has_an_interval_from_ten_clusters_with_a_cut_on(cuts, given):
    cluster, x = np.repeat(np.arange(40), 2), np.random.default_rng(3).uniform(3, 8, 80)
    y = np.ones(80)
    y[: 2 * cuts : 2] = 0
    found = cluster_slope(y, x, cluster)
    assert np.isfinite(found.slope)
    assert np.isfinite(found.ci_low) == np.isfinite(found.ci_high) == given
    assert (found.reason == "") == given
    if given:  # nine degrees of freedom, for the ten clusters with a cut alone show the error
        assert (found.ci_high - found.slope) / found.se == pytest.approx(2.26216, rel=1e-5)


def test_slope_without_information_is_nan_with_a_reason():
    found = cluster_slope(np.ones(30), np.ones(30), np.arange(30))
    assert np.isnan(found.slope)
    assert found.reason


def test_the_t_interval_of_independent_values_is_the_textbook_one():
    # 1, 2, 3: mean 2, standard deviation 1, and t(2 degrees, 97.5 %) = 4.30265 from a printed table
    half = 4.30265 / 3**0.5
    assert sample_interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2 - half, 2 + half), rel=1e-5)
    assert t_quantile(2) == pytest.approx(4.30265, rel=1e-5)
    assert t_quantile(np.inf) == pytest.approx(1.959964, rel=1e-6)
    assert t_quantile(10, 0.9) == pytest.approx(1.81246, rel=1e-5)
    assert mean_interval(1.0, 0.04, 5) == pytest.approx((1 - 2.77645 * 0.2, 1 + 2.77645 * 0.2), abs=1e-4)
    assert float(PERCENT.removesuffix(" %")) == pytest.approx(100 * CONFIDENCE)
    assert np.isnan(sample_interval([3.0])[1])  # one value has a mean and no interval


def test_a_ratio_that_rounding_lifts_above_1_is_a_share():
    for weights, shares in (([0.2, 0.9], True), ([0.2, 1.1], False), ([-0.1, 0.9], False)):
        assert ratios(np.array(weights), np.arange(2), np.zeros(2, int), 1, np.ones(2)).shares is shares
    found = ratios([0.5, 0.25], np.array([0, 1]), np.zeros(2, int), 1, [0.5, 0.25])
    assert found.shares
    assert replace(found, sums=found.base * (1 + 1e-12)).shares
    assert not replace(found, sums=found.base * (1 + 1e-6)).shares
