"""The exact worst case, the drift given the length, sharp constants, mixtures, caps and moving lengths."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from fspo import theory
from fspo.rules import preset
from fspo.theory.lemma import length_constants


@pytest.mark.parametrize(
    ("u_lo", "u_hi", "drift", "scale"),
    [
        (1.0, 1.0, (-0.3, 0.3), (1.0, 1.0)),
        (1.5, 0.5, (-1.0, 2.0), (1.0, 1.0)),  # x* lies inside
        (1.0, 2.0, (0.1, 0.2), (0.7, 1.6)),
        (0.3, 0.4, (1.0, 2.0), (0.4, 3.0)),  # the mean is outside the band: the best spread lies inside
        (0.3, 0.4, (-2.0, -1.0), (0.4, 0.5)),
        (0.3, 0.4, (1.0, 2.0), (1.5, 3.0)),
    ],
)
def test_the_worst_case_against_a_grid(u_lo, u_hi, drift, scale):
    x, s = np.meshgrid(*(np.linspace(low, high, 801) for low, high in (drift, scale)))
    a = norm.cdf((u_hi + x) / s) - norm.cdf((x - u_lo) / s)
    found = theory.worst_lre(u_lo, u_hi, drift, scale)
    ratio = a.max() / a.min() - 1
    assert ratio <= found * (1 + 1e-9) + 1e-12
    assert found == pytest.approx(ratio, rel=1e-4, abs=1e-9)


def test_a_least_acceptance_of_zero_is_no_number():
    assert theory.worst_lre(1.0, 1.0, (0.0, 100.0)) == math.inf


def test_the_fair_centre_of_a_normal_law_is_its_mean():
    mean, var = -0.7, 0.9
    assert theory.fair_centre(math.exp(mean + var / 2), var) == pytest.approx(mean)


def test_how_far_a_length_can_move_in_one_rollout():
    low, high = theory.length_shift_bounds(preset("fspo").rule, [256, 4096, 16384])
    np.testing.assert_allclose(high, [math.exp(0.48), math.exp(1.92), math.exp(3.84)])
    np.testing.assert_allclose(low * high, 1)


def test_many_strata_take_the_geometric_median():
    rng = np.random.default_rng(0)
    p, g = rng.dirichlet(np.ones(30)), np.sort(rng.standard_exponential(30))[:, None]
    inf, _ = length_constants(p, g)
    median = g[np.searchsorted(np.cumsum(p), 0.5), 0]
    least = float(p @ np.abs(g[:, 0] - median))
    assert least <= inf <= least * 1.01 < float(p @ np.abs(g[:, 0] - p @ g[:, 0]))


@pytest.mark.parametrize(("nu", "n"), [(1.0, 1), (5.0, 40), (200.0, 40), (200.0, 1e6)])
def test_no_cap_has_a_smaller_error(nu, n):
    rng = np.random.default_rng(0)
    w, p = np.exp(rng.normal(size=30)), rng.dirichlet(np.ones(30))
    best = theory.cap_of_least_error(w, p, nu, n)
    held = np.minimum(w, best)
    assert n * (p @ (w - held)) == pytest.approx(nu * best - p @ held, rel=1e-9, abs=1e-9)

    def error(cap):
        held = np.minimum(w, cap)
        return (p @ (w - held)) ** 2 + (nu * (p @ held**2) - (p @ held) ** 2) / n

    assert all(error(best) <= error(cap) + 1e-12 for cap in np.linspace(0, 1.2 * w.max(), 2_000))
