"""Runs of bands that follow a target, against closed forms of the Gaussian laws and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, stats

from proofs_check import models
from proofs_check.tools.online_runs import LENGTHS, MODELS, MU, RULES, SIGMA, TARGET, Learnt, learnt


def exact_acceptance(growth: np.ndarray) -> np.ndarray:
    """P(|Z| <= u / growth) with u such that the mean over lengths is TARGET: FSPO around the drift, by quantiles."""

    def share(u: float) -> np.ndarray:
        return 2 * stats.norm.cdf(u / growth) - 1

    return share(optimize.brentq(lambda u: share(u).mean() - TARGET, 0.1, 50))


@pytest.mark.parametrize("rule", ["fspo", "learnt range"])
def test_plain_fspo_has_the_lre_of_the_closed_form(rule):
    """Fractional noise, H = .35: sd(S) / sqrt(L) = sigma L^-.15."""
    a = exact_acceptance(LENGTHS**-0.15)
    found = learnt(np.random.default_rng(1), MODELS["fractional"], [RULES[rule]])[0]
    np.testing.assert_allclose(found.accepted.mean(axis=0), a, atol=0.02)
    assert found.accepted.mean() == pytest.approx(TARGET, abs=0.01)
    assert set(found.gamma) == {0.5}


@pytest.mark.parametrize("hurst", [0.35, 0.5, 0.65])
def test_the_learnt_exponent_is_that_of_the_noise(hurst):
    model = models.FractionalNoise(MU, SIGMA, hurst)
    found = learnt(np.random.default_rng(2), model, [RULES["learnt exponent"]])[0]
    error = 4 * found.gamma.std(ddof=1) / math.sqrt(found.gamma.size)
    assert error < 0.06
    assert found.gamma.mean() == pytest.approx(hurst, abs=error)


def test_trend_by_hand():
    z = np.log(LENGTHS)
    z = (z - z.mean()) / z.std()
    found = Learnt((0.8 + 0.03 * z)[None], np.zeros(1))
    assert found.trend[0] == pytest.approx([0.8, 0.03])
