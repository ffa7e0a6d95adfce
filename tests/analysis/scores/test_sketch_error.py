"""The sketch's own error against redrawn projections."""

import math

import numpy as np
import pytest

from analysis.log.loading import load_run
from analysis.scores.products import CosineColumns, Products, UpdateGram
from analysis.scores.sketch_error import cosine_covariance, effective_width
from fspo.gradlog.metric_names import COSINE_ERROR


def test_variance_and_covariance_equal_those_of_redrawn_projections():
    """Three updates in 300 dimensions, projected 1,500 times to 64: cosines with one common g, pooled."""
    rng = np.random.default_rng(0)
    updates, dimension, width = 3, 300, 64
    vectors = rng.normal(size=(updates, 3, dimension)) + 1.5 * rng.normal(size=(updates, 1, dimension))
    gram = vectors @ vectors.transpose(0, 2, 1)  # c1, c2, w of each update

    def cosine(gram, i):
        return gram[:, i, 2].sum() / np.sqrt(gram[:, i, i].sum() * gram[:, 2, 2].sum())

    found = []
    for _ in range(1500):
        draws = []
        for u in range(updates):
            sketch = vectors[u] @ rng.normal(size=(dimension, width)) / math.sqrt(width)
            draws.append(sketch @ sketch.T)
        found.append([cosine(np.array(draws), 0), cosine(np.array(draws), 1)])
    measured = np.cov(np.array(found).T)
    terms = [(gram[:, i, 2], gram[:, i, i]) for i in (0, 1)]
    for i in (0, 1):
        for j in (0, 1):
            stated = cosine_covariance(terms[i], terms[j], gram[:, i, j], gram[:, 2, 2], width)
            assert measured[i, j] == pytest.approx(stated, rel=0.15)


def test_one_update_has_the_textbook_error():
    """(1 - rho^2)^2 / D, the variance of a correlation of D Gaussian pairs."""
    n, a, b = np.array([0.6]), np.array([1.0]), np.array([1.0])
    assert cosine_covariance((n, a), (n, a), a, b, 100.0) == pytest.approx((1 - 0.36) ** 2 / 100)
    assert cosine_covariance((n, a), (n, a), a, b, math.inf) == 0


def columns(width, seed=0):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(40, 30)) + 0.5
    gram = UpdateGram(vectors @ vectors.T, np.zeros(40, int), np.repeat(np.arange(10), 4), 1)
    c, w = (rng.random((40, 2)) < 0.8).astype(float), np.ones((40, 1))
    inner, left, right = Products(), Products(), Products()
    inner.add(*gram.products(c, w))
    left.add(*gram.products(c, c))
    right.add(*gram.products(w, w))
    cross = {"other": np.array([gram.products(c, c[:, ::-1])[0]])}
    return CosineColumns.of(inner, left, right, np.zeros(10, int), width, cross)


def test_intervals_widen_by_the_sketch_and_not_for_exact_scores():
    exact, wide, narrow = columns(math.inf), columns(2048.0), columns(64.0)
    spans = [c.interval(1, [0])[2] - c.interval(1, [0])[1] for c in (exact, wide, narrow)]
    assert spans[0] < spans[1] < spans[2]
    gaps = [c.difference(1, 0, 1, "other") for c in (exact, narrow)]
    assert gaps[0][0] == gaps[1][0]
    assert gaps[1][2] - gaps[1][1] > gaps[0][2] - gaps[0][1]
    # what the two rules share cancels: less than if their errors were added
    unpaired = columns(64.0).difference(1, 0, 1, "no such reference")
    assert gaps[1][2] - gaps[1][1] < unpaired[2] - unpaired[1]


def test_effective_width_is_what_training_measured(fspo_run, tmp_path):
    from dataclasses import replace

    run = replace(load_run(fspo_run), path=tmp_path, score_options={"mode": "sketch", "width": 2048})
    assert effective_width(run)[0] == 2048
    lines = [
        f'{{"step": 1, "{COSINE_ERROR}": 0.03}}',
        f'{{"step": 2, "{COSINE_ERROR}": 0.05}}',
        f'{{"{COSINE_ERROR}": broken',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert effective_width(run)[0] == pytest.approx(1 / ((0.03**2 + 0.05**2) / 2))
    assert effective_width(replace(run, score_options={"mode": "exact"}))[0] == math.inf
    unknown = effective_width(replace(run, path=tmp_path / "none", score_options={}))
    assert unknown[0] == math.inf
    assert "unknown" in unknown[1]
