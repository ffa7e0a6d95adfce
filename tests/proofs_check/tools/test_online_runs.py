"""Runs of bands that follow a target, against closed forms of the Gaussian laws and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, stats

from proofs_check import models
from proofs_check.tools.online_runs import (
    LENGTHS,
    MODELS,
    MU,
    RULES,
    SIGMA,
    TARGET,
    Learnt,
    learnt,
    lre_row,
    squared_lre,
    survey,
    text_table,
)


def test_every_model_is_there():
    assert set(MODELS) == set(models.MODELS)


def exact_acceptance(growth: np.ndarray) -> np.ndarray:
    """P(|Z| <= u / growth) with u such that the mean over lengths is TARGET: FSPO around the drift, by quantiles."""

    def share(u: float) -> np.ndarray:
        return 2 * stats.norm.cdf(u / growth) - 1

    return share(optimize.brentq(lambda u: share(u).mean() - TARGET, 0.1, 50))


@pytest.mark.parametrize("rule", ["fspo", "learnt range"])
def test_plain_fspo_has_the_lre_of_the_closed_form(rule):
    """Fractional noise, H = .35: sd(S) / sqrt(L) = sigma L^-.15."""
    a = exact_acceptance(LENGTHS**-0.15)
    r = a / a.mean() - 1
    row = lre_row(learnt(np.random.default_rng(1), MODELS["fractional"], [RULES[rule]])[0])
    assert row["lre_inf_low"] < np.abs(r).max() < row["lre_inf_high"]
    assert row["lre_2_low"] < math.sqrt(np.mean(r**2)) < row["lre_2_high"]
    assert row["lre_2_update"] == pytest.approx(math.sqrt(np.mean(r**2)), abs=0.01)
    assert row["acceptance"] == pytest.approx(TARGET, abs=0.01)
    assert row["gamma"] == 0.5


@pytest.mark.parametrize("hurst", [0.35, 0.5, 0.65])
def test_the_learnt_exponent_is_that_of_the_noise(hurst):
    model = models.FractionalNoise(MU, SIGMA, hurst)
    found = learnt(np.random.default_rng(2), model, [RULES["learnt exponent"]])[0]
    error = 4 * found.gamma.std(ddof=1) / math.sqrt(found.gamma.size)
    assert error < 0.06
    assert found.gamma.mean() == pytest.approx(hurst, abs=error)


def test_squared_lre_has_no_noise_left():
    """0 on average where all lengths are accepted alike, where the plug-in is not; .04/.49 for shares .9 and .5."""
    rng = np.random.default_rng(3)
    kept = rng.random((4000, 40, 3)) < 0.8
    found = np.array([squared_lre(one) for one in kept])
    plug_in = np.array([np.var(one.mean(0)) / one.mean() ** 2 for one in kept])
    error = found.std() / math.sqrt(found.size)
    assert abs(found.mean()) < 4 * error
    assert plug_in.mean() > 20 * error
    assert squared_lre(rng.random((100_000, 2)) < [0.9, 0.5]) == pytest.approx(0.04 / 0.49, abs=0.003)


def test_trend_by_hand():
    z = np.log(LENGTHS)
    z = (z - z.mean()) / z.std()
    found = Learnt((0.8 + 0.03 * z)[None], np.zeros(1), np.zeros(1))
    assert found.trend[0] == pytest.approx([0.8, 0.03])


def test_the_text_has_a_line_for_each_model_and_rule():
    few = {name: MODELS[name] for name in ("gaussian", "markov")}
    lines = text_table(dict(survey(np.random.default_rng(4), models=few, runs=4))).splitlines()
    assert [line[:36].rstrip() for line in lines[1:]] == [f"{model:20}{rule}" for model in few for rule in RULES]
