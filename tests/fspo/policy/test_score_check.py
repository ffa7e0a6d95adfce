"""The check of the sketch against the exact gradient."""

from __future__ import annotations

import numpy as np
import torch
from score_models import BARE, batch_of, build

from fspo.policy.score_check import coverage
from fspo.policy.scores import ScoreConfig, exact_scores


def test_coverage_measures_the_missing_share():
    model, batch = build(), batch_of(5)
    full = coverage(model, batch, config=ScoreConfig(**BARE))
    np.testing.assert_allclose(full.share, 1.0)
    np.testing.assert_allclose(full.norm_ratio, 1.0, rtol=1e-4)
    assert full.pair_cosine_rmse < 1e-3
    assert full.subset_cosine_rmse < 1e-3

    class Scaled(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.gain = inner, torch.nn.Parameter(torch.ones(16))

        def forward(self, x):
            return self.inner(x) * self.gain

    model.model.layers[0].mlp = Scaled(model.model.layers[0].mlp)
    part = coverage(model, batch, config=ScoreConfig(**BARE))
    exact, _ = exact_scores(model, batch)
    names, start = dict(model.named_parameters()), 0
    for name, parameter in names.items():
        if name == "model.layers.0.mlp.gain":
            missing = exact[:, start : start + 16].square().sum(1) / exact.square().sum(1)
            np.testing.assert_allclose(part.share, 1 - missing.numpy(), rtol=1e-4)
        start += parameter.numel()
    assert set(part.uncovered_share) == {"model.layers.0.mlp.gain"}
    assert 0 < part.uncovered_share["model.layers.0.mlp.gain"] < 1
    np.testing.assert_allclose(part.norm_ratio, np.sqrt(part.share), rtol=1e-4)


def test_sketch_error_falls_with_the_projection():
    model, batch = build(), batch_of(6)

    def error(k: int) -> float:
        taken = [coverage(model, batch, config=ScoreConfig(projection=k), rollout=r) for r in range(4)]
        return float(np.mean([found.pair_cosine_rmse for found in taken]))

    assert error(8) < 0.6 * error(2)
