"""Products and cosines of updates against brute force, and their intervals: jackknife, parallel updates, sketches."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as sps

from analysis.log.loading import load_run
from analysis.scores.products import CosineColumns, Products, UpdateGram, collapsed, jackknife_se
from analysis.scores.sketch_error import cosine_variance, effective_width
from fspo.gradlog.metric_names import COSINE_ERROR

CLUSTERS = 6


def cosines(*updates, number=1, width=math.inf) -> CosineColumns:
    """Cosines over updates, each of vectors, bins, clusters, and the weights of the two sides."""
    found, of = (Products(), Products(), Products()), []
    for u, (vectors, bins, cluster, left, right) in enumerate(updates):
        gram = UpdateGram(vectors @ vectors.T, bins, cluster, number)
        for products, sides in zip(found, ((left, right), (left, left), (right, right)), strict=True):
            products.add(*gram.products(*sides))
        of += [u] * gram.clusters
    return CosineColumns.of(*found, np.array(of), width)


def data(seed=0, n=24, width=7, number=3):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, width))
    bins, cluster = rng.integers(0, number, n), np.repeat(np.arange(n // 4), 4)
    return vectors, bins, cluster, rng.random((n, 2)), rng.random((n, 1))


def brute(vectors, bins, left, right, number=3):
    parts = [np.flatnonzero(bins == k) for k in range(number)] + [np.arange(len(bins))]
    return np.array([(vectors[at].T @ left[at]).T @ (vectors[at].T @ right[at]) for at in parts])[..., 0]  # (K+1, R)


def test_products_are_inner_products_of_the_sums():
    vectors, bins, cluster, left, right = data()
    total, without = UpdateGram(vectors @ vectors.T, bins, cluster, 3).products(left, right)
    assert total == pytest.approx(brute(vectors, bins, left, right))
    for c in range(CLUSTERS):
        keep = cluster != c
        assert without[c] == pytest.approx(brute(vectors[keep], bins[keep], left[keep], right[keep]) * (6 / 5) ** 2)


def test_updates_of_one_cluster_are_not_without_error():
    """Twenty updates with one prompt each: a mean over them is as uncertain as over one update's twenty prompts."""
    x = np.random.default_rng(0).normal(size=20)
    replicates = (x.sum() - x) / 19
    for update in (np.arange(20), np.append(np.zeros(19, int), 1)):
        assert jackknife_se(replicates, collapsed(update)) == pytest.approx(x.std(ddof=1) / np.sqrt(20))
    assert np.isnan(jackknife_se(replicates[:1], np.zeros(1, int)))
    # Two updates with the same twenty prompts: their errors add up, those of unlike prompts add up in squares.
    twice, update, one = np.tile(replicates, 2), np.repeat([0, 1], 20), x.std(ddof=1) / np.sqrt(20)
    assert jackknife_se(twice, update, np.tile(np.arange(20), 2)) == pytest.approx(2 * one)
    assert jackknife_se(twice, update) == pytest.approx(np.sqrt(2) * one)
    assert collapsed(np.array([5, 5, 5, 7, 7, 8, 9])).tolist() == [0, 0, 0, 1, 1, 2, 2]


def near_a_line(angle, width, seed, sign=1):
    """Cosines of random positive weights with equal weights, of vectors that lie ``angle`` off one line."""
    rng = np.random.default_rng(seed)
    along = rng.uniform(0.1, 1.0, size=24)
    vectors = np.stack([along * math.cos(angle), rng.normal(size=24) * math.sin(angle)], 1)
    left = sign * rng.uniform(0.3, 1.0, size=(24, 1))
    sides = left, np.full((24, 1), 1.7)
    return cosines((vectors, np.arange(24) % 2, np.arange(24) % CLUSTERS, *sides), number=2, width=width)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("width", [math.inf, 24.0])
def test_parallel_updates_have_an_interval_of_one_point(width, sign):
    """On one line every update is a multiple of every other: its cosine is 1 or -1 but for rounding. Off it is not."""
    for seed in range(20):
        found = near_a_line(0.0, width, seed, sign)
        for k in range(3):
            assert found.interval(k, [0]) == pytest.approx((sign, sign, sign), abs=1e-14)
    value, low, high = near_a_line(1e-2, 24.0, 3).interval(2, [0])
    assert low < value < high <= 1
    assert high - low > 1e-8


def test_a_cosine_has_the_jackknifes_interval():
    """Leave out one cluster after the other, compute Fisher's z anew, and take Student's t on C - 1 degrees."""
    rng = np.random.default_rng(5)
    vectors, cluster = rng.normal(size=(24, 3)) + 1, np.arange(24) % CLUSTERS
    left = rng.uniform(0.3, 1.0, size=(24, 1))
    found = cosines((vectors, np.zeros(24, np.int64), cluster, left, np.ones((24, 1)))).interval(1, [0])

    def fisher(keep):
        g, clipped = vectors[keep].sum(0), left[keep, 0] @ vectors[keep]
        return np.arctanh(clipped @ g / np.linalg.norm(clipped) / np.linalg.norm(g))

    without = np.array([fisher(cluster != c) for c in range(CLUSTERS)])
    half = sps.t.ppf(0.975, CLUSTERS - 1) * np.sqrt((CLUSTERS - 1) * without.var())
    z = fisher(np.full(24, True))
    assert found == pytest.approx(tuple(np.tanh([z, z - half, z + half])))


def test_a_bin_of_which_nothing_is_left_is_the_worst():
    """Bin 1 has no cosine; among the bins it counts as 0, below the cosine of bin 0."""
    rng = np.random.default_rng(2)
    vectors, bins = rng.normal(size=(24, 3)) + 1, np.arange(24) % 2
    left = np.where(bins[:, None] == 1, 0.0, rng.uniform(0.3, 1.0, size=(24, 1)))
    found = cosines((vectors, bins, np.arange(24) // 4, left, np.ones((24, 1))), number=2)
    assert found.value[0, 0] > 0.5
    assert np.isnan(found.value[1, 0])
    assert found.interval(3, [0]) == (0.0, 0.0, 0.0)
    assert list(found.of_bins([0])[:, 0]) == [found.value[0, 0], 0.0]


# -- the sketch's own error -----------------------------------------------------------------------------------------


def test_the_variance_equals_that_of_redrawn_projections():
    """Three updates in 300 dimensions, projected 1,500 times to 64: cosines with one common g, pooled."""
    rng = np.random.default_rng(0)
    updates, dimension, width = 3, 300, 64
    vectors = rng.normal(size=(updates, 2, dimension)) + 1.5 * rng.normal(size=(updates, 1, dimension))
    gram = vectors @ vectors.transpose(0, 2, 1)  # c, w of each update

    def cosine(gram):
        return gram[:, 0, 1].sum() / np.sqrt(gram[:, 0, 0].sum() * gram[:, 1, 1].sum())

    found = []
    for _ in range(1500):
        sketch = np.stack([v @ rng.normal(size=(dimension, width)) / math.sqrt(width) for v in vectors])
        found.append(cosine(sketch @ sketch.transpose(0, 2, 1)))
    assert np.var(found) == pytest.approx(cosine_variance(gram[:, 0, 1], gram[:, 0, 0], gram[:, 1, 1], width), rel=0.15)
    # of one update the textbook's variance of a correlation of D Gaussian pairs: (1 - rho^2)^2 / D
    n, a = np.array([0.6]), np.array([1.0])
    assert cosine_variance(n, a, a, 100.0) == pytest.approx((1 - 0.36) ** 2 / 100)
    assert cosine_variance(n, a, a, math.inf) == 0


def test_intervals_widen_by_the_sketch_and_not_for_exact_scores():
    rng = np.random.default_rng(0)
    vectors, bins, cluster = rng.normal(size=(40, 30)) + 0.5, np.zeros(40, int), np.repeat(np.arange(10), 4)
    c, w = (rng.random((40, 2)) < 0.8).astype(float), np.ones((40, 1))
    of = (vectors, bins, cluster, c, w)
    found = [cosines(of, width=width).interval(1, [0]) for width in (math.inf, 2048.0, 64.0)]
    spans = [high - low for _, low, high in found]
    assert spans[0] < spans[1] < spans[2]


def test_effective_width_is_what_training_measured(fspo_run, tmp_path):
    run = replace(load_run(fspo_run), path=tmp_path, score_options={"mode": "sketch", "width": 2048})
    assert effective_width(run)[0] == 2048
    lines = [f'{{"step": {i}, "{COSINE_ERROR}": {error}}}' for i, error in enumerate((0.03, 0.05, "broken"))]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert effective_width(run)[0] == pytest.approx(1 / ((0.03**2 + 0.05**2) / 2))
    assert effective_width(replace(run, score_options={"mode": "exact"}))[0] == math.inf
    unknown = effective_width(replace(run, path=tmp_path / "none", score_options={}))
    assert unknown[0] == math.inf
    assert "unknown" in unknown[1]
