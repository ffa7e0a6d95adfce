"""Sketches: inner products without bias over redraws, draws that follow their keys."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from score_models import batch_of, build, sketches

from fspo.policy import sketch
from fspo.policy.scores import exact_scores, score


def z_scores(model, batch, draws: int = 96, **options) -> np.ndarray:
    exact = exact_scores(model, batch)[0].double()
    truth = (exact @ exact.T).numpy()
    grams = []
    for rollout in range(draws):
        taken = sketches(model.eval(), batch, rollout=rollout, **options).double()
        grams.append((taken @ taken.T).numpy())
    grams = np.stack(grams)
    error = grams.std(0, ddof=1) / np.sqrt(draws)
    return ((grams.mean(0) - truth) / error)[np.triu_indices(len(truth))]


@pytest.mark.parametrize("name", ["qwen3-tied", "gpt2"])
def test_inner_products_are_unbiased_over_redraws(name):
    model, batch = build(name), batch_of(4, longest=8)
    assert np.abs(z_scores(model, batch, width=128, projection=4)).max() < 4.5


def sketcher_error(draws: int = 300) -> float:
    """Standard errors between the mean sketched inner product and the true one, for two fixed gradients."""
    rng = np.random.default_rng(5)
    shapes = {"matrix": (12, 10), "vector": (200,)}
    parts = {name: torch.from_numpy(rng.uniform(0.5, 1.5, (2, *shape))) for name, shape in shapes.items()}
    truth = sum(float((part[0] * part[1]).sum()) for part in parts.values())
    found = []
    for rollout in range(draws):
        sketcher = sketch.Sketcher(shapes, 64, 4, 0, rollout)
        total = sketcher.zeros(2, torch.float64)
        columns = sketcher.project(parts["matrix"], "columns")
        rows = sketcher.project(columns.transpose(1, 2), "rows").transpose(1, 2)
        sketcher.add(total, "matrix", rows)
        sketcher.add(total, "vector", parts["vector"])
        found.append(float(total[0] @ total[1]))
    return abs(np.mean(found) - truth) / (np.std(found, ddof=1) / np.sqrt(draws))


def test_a_sketch_of_given_gradients_is_unbiased():
    assert sketcher_error() < 4.5


@pytest.mark.parametrize("broken", ["vector/sign", "columns", "rows"])
def test_control_the_test_above_sees_correlated_draws(monkeypatch, broken):
    """A hash without signs; a projection whose entries are all 1."""
    honest = sketch.random_signs
    monkeypatch.setattr(
        sketch, "random_signs", lambda *key: np.ones(key[3], np.int8) if key[2] == broken else honest(*key)
    )
    assert sketcher_error() > 4.5


def test_signs_are_fair_and_keyed():
    words = sketch.random_words(7, 3, "layer", 5)
    np.testing.assert_array_equal(words, sketch.random_words(7, 3, "layer", 9)[:5])
    signs = sketch.random_signs(7, 3, "layer", (200, 16))
    assert set(np.unique(signs)) == {-1, 1}
    assert abs(signs.mean()) < 4.5 / np.sqrt(signs.size)
    for other in [(8, 3, "layer"), (7, 4, "layer"), (7, 3, "player")]:
        overlap = (signs * sketch.random_signs(*other, (200, 16))).mean()
        assert abs(overlap) < 4.5 / np.sqrt(signs.size)
    # Pinned: a log written today must be comparable with one written tomorrow.
    assert sketch.random_signs(0, 0, "a", (8,)).tolist() == [1, -1, 1, 1, 1, -1, -1, -1]


def test_draws_follow_seed_and_rollout():
    model, batch = build(), batch_of(2)
    first, again, later = (score(model, batch, rollout=r).unit for r in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, later)
    assert not np.array_equal(first, score(model, batch, seed=1).unit)
