"""Intervals of cosines where the updates are parallel: nothing but rounding error differs from 1."""

import math

import numpy as np
import pytest
from scipy import stats as sps

from analysis.scores.products import CosineColumns, Products, UpdateGram

BINS, CLUSTERS = 2, 6


def columns(angle: float, width: float, seed: int, negate: bool = False) -> CosineColumns:
    """Return cosines of random positive weights with equal weights, of vectors that lie ``angle`` off one line."""
    rng = np.random.default_rng(seed)
    along = rng.uniform(0.1, 1.0, size=24)
    vectors = np.stack([along * math.cos(angle), rng.normal(size=24) * math.sin(angle)], 1)
    bins, cluster = np.arange(24) % BINS, np.arange(24) % CLUSTERS
    gram = UpdateGram(vectors @ vectors.T, bins, cluster, BINS)
    left = (-1 if negate else 1) * rng.uniform(0.3, 1.0, size=(24, 1))
    right = np.full((24, 1), 1.7)
    inner, of_left, of_right = Products(), Products(), Products()
    inner.add(*gram.products(left, right))
    of_left.add(*gram.products(left, left))
    of_right.add(*gram.products(right, right))
    return CosineColumns.of(inner, of_left, of_right, np.zeros(CLUSTERS, np.int64), width)


@pytest.mark.parametrize("negate", [False, True])
@pytest.mark.parametrize("width", [math.inf, 24.0])
def test_parallel_updates_have_an_interval_of_one_point(width: float, negate: bool) -> None:
    """On one line every update is a multiple of every other: its cosine is 1 or -1 without any error."""
    exact = -1.0 if negate else 1.0
    for seed in range(20):
        found = columns(0.0, width, seed, negate)
        for k in range(BINS + 1):
            assert found.interval(k, [0]) == pytest.approx((exact, exact, exact), abs=1e-14)


def test_a_difference_of_cosines_has_the_jackknifes_interval() -> None:
    """Leave out one cluster after the other, compute both cosines anew, and take Student's t on C - 1 degrees."""
    rng = np.random.default_rng(5)
    vectors, cluster = rng.normal(size=(24, 3)) + 1, np.arange(24) % CLUSTERS
    left, right = rng.uniform(0.3, 1.0, size=(24, 2)), np.ones((24, 1))
    gram = UpdateGram(vectors @ vectors.T, np.zeros(24, np.int64), cluster, 1)
    products = []
    for a, b in ((left, right), (left, left), (right, right)):
        products.append(Products())
        products[-1].add(*gram.products(a, b))
    inner, own, true = products
    found = CosineColumns.of(inner, own, true, np.zeros(CLUSTERS, np.int64)).difference(1, 0, 1)

    def gap(keep: np.ndarray) -> float:
        g = vectors[keep].sum(0)
        clipped = left[keep].T @ vectors[keep]
        one, two = clipped @ g / np.linalg.norm(clipped, axis=1) / np.linalg.norm(g)
        return one - two

    without = np.array([gap(cluster != c) for c in range(CLUSTERS)])
    half = sps.t.ppf(0.975, CLUSTERS - 1) * np.sqrt((CLUSTERS - 1) * without.var())
    value = gap(np.full(24, True))
    assert found == pytest.approx((value, value - half, value + half))


def test_a_bin_of_which_nothing_is_left_is_the_worst() -> None:
    """Bin 1 has no cosine; among the bins it counts as 0, below the cosine of bin 0."""
    rng = np.random.default_rng(2)
    vectors, bins, cluster = rng.normal(size=(24, 3)) + 1, np.arange(24) % BINS, np.arange(24) // 4
    left = np.where(bins[:, None] == 1, 0.0, rng.uniform(0.3, 1.0, size=(24, 1)))
    gram, whole = UpdateGram(vectors @ vectors.T, bins, cluster, BINS), np.ones((24, 1))

    def products(a: np.ndarray, b: np.ndarray) -> Products:
        sums = Products()
        sums.add(*gram.products(a, b))
        return sums

    found = CosineColumns.of(
        products(left, whole), products(left, left), products(whole, whole), np.zeros(CLUSTERS, np.int64)
    )
    assert found.value[0, 0] > 0.5
    assert np.isnan(found.value[1, 0])
    assert found.interval(BINS + 1, [0]) == (0.0, 0.0, 0.0)
    assert list(found.of_bins([0])[:, 0]) == [found.value[0, 0], 0.0]


def test_updates_that_are_not_parallel_have_an_interval() -> None:
    value, low, high = columns(1e-2, 24.0, 3).interval(BINS, [0])
    assert low < value < high <= 1
    assert high - low > 1e-8
