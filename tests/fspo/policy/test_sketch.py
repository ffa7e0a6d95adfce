"""Sketches: inner products without bias over redraws, draws that follow their keys."""

from __future__ import annotations

import numpy as np
import pytest
from score_models import batch_of, build, exact_scores, sketches

from fspo.policy import sketch
from fspo.policy.scores import score


def z_scores(model, batch, draws: int = 96, **options) -> np.ndarray:
    exact = exact_scores(model, batch).double()
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
