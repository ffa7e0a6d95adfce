import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy import optimize, stats

from fspo.base.errors import UserError
from fspo.rules import Rule
from proofs_check.maps import price
from proofs_check.maps.models import MODELS
from proofs_check.maps.policies import LocationPolicy, SoftmaxPolicy
from proofs_check.maps.tables import MAP_COLUMNS, to_frame

LENGTHS = np.array([50.0, 300.0, 900.0])
P = np.array([0.5, 0.3, 0.2])
NONE = Rule("none")


def location(**options) -> LocationPolicy:
    fields = {"headers": np.array([1.0, 1.2, 0.8]), "positive": np.array([0.7, 0.5, 0.2]), "overlap": 0.6, "dims": 5}
    return LocationPolicy("test", LENGTHS, p=P, **(fields | options))


def test_without_clipping_the_bias_is_0_and_the_sample_size_is_known():
    policy = LocationPolicy("one", np.array([700.0]), np.ones(1), np.ones(1), np.array([0.4]), overlap=0.3)
    rows = list(price._price(policy.moments(NONE, 0.0), "none"))
    assert [row["n"] for row in rows] == list(price.PROMPTS)
    for row in rows:
        assert row["ess_share"] == pytest.approx(math.exp(-(0.03**2) * 700), rel=1e-10)
        assert row["bias2"] == 0
        assert row["mse"] == row["variance"] == row["mse_direction"]
        assert row["cosine"] == pytest.approx(1)
        assert row["weight_acceptance"] == pytest.approx(1, abs=1e-12)


@hypothesis_settings(max_examples=20)
@given(st.floats(0.01, 0.08), st.floats(-0.9, 0.9))
def test_the_true_update_is_the_gradient_of_the_mean_reward(sigma, overlap):
    policy = location(sigma=sigma, overlap=overlap)
    g = policy.moments(NONE, 0.0).g
    # mean reward of the new policy: <v, Z> is N(h sqrt(L) <v, Delta>, 1)
    size = policy.headers * np.sqrt(LENGTHS)
    slope = P @ (size * stats.norm.pdf(size * overlap * sigma - stats.norm.isf(policy.positive)))
    np.testing.assert_allclose(g, slope * np.array([overlap, math.sqrt(1 - overlap**2)]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("outside", ["drop", "truncate", "cap"])
@pytest.mark.parametrize("centre", [-1.0, 1.0])
@pytest.mark.parametrize("blind", [False, True])
def test_quadrature_agrees_with_simulation(outside, centre, blind):
    policy = location(blind=blind)
    rule, drift = price.rule_for(policy, 0.5, centre, outside)
    rule = policy.calibrated(rule, drift, 0.6)
    found = policy.moments(rule, drift)
    S, n, A, psi = policy.sample(np.random.default_rng(11), 200_000)
    applied = rule.apply(S, n, A, drift)
    terms = (applied.clipped_weight * A)[:, None] * psi
    squares = (terms**2).sum(axis=1)
    across = np.zeros((len(S), 3))
    g_clip = np.zeros(psi.shape[1])
    g_clip[:2] = found.g_clip
    for exact, values in ((g_clip, terms), (found.second, squares[:, None]), (0.0, across[:, :1])):
        error = np.abs(values.mean(axis=0) - exact)
        assert np.all(error <= 4.5 * values.std(axis=0) / math.sqrt(len(S)))
    for length, band, kept, clipped, square in zip(
        found.lengths, found.band, found.kept, found.clipped, found.clipped_square, strict=True
    ):
        rows = n == length
        w = applied.clipped_weight[rows]
        for exact, values in (
            (band, applied.in_band[rows]),
            (kept, applied.side[rows] == 0),
            (clipped, w),
            (square, w**2),
        ):
            assert abs(values.mean() - exact) <= 4.5 * values.std() / math.sqrt(rows.sum())
    assert float(found.p @ found.band) == pytest.approx(0.6, abs=1e-9)


def test_cap_in_closed_form_where_the_advantage_is_independent():
    # T13's hypothesis: E[M w A psi | l] = b(l) g_l, with E[min(w, e^hi)] the Black-Scholes integral
    policy = location(overlap=0.0, blind=True)
    rule, drift = price.rule_for(policy, 0.5, 0.0, "cap")
    rule = policy.calibrated(rule, drift, 0.7)
    m = policy.moments(rule, drift)
    tau, hi = policy.tau, rule.band(LENGTHS, drift)[1]
    b = stats.norm.cdf(hi / tau - tau / 2) + np.exp(hi) * stats.norm.sf(hi / tau + tau / 2)
    np.testing.assert_allclose(m.clipped, b, rtol=1e-10)
    slope = policy.headers * np.sqrt(LENGTHS) * stats.norm.pdf(stats.norm.isf(policy.positive))
    np.testing.assert_allclose(m.g_clip, [0, P @ (b * slope)], atol=1e-12)


def test_a_symmetric_band_around_plus_kl_is_fair_in_weight_for_a_two_sided_drop():
    # with one-sided cuts: rewards independent and even, so both tails count a half; b = 1 - (tails of the tilted law)/2
    policy = LocationPolicy("t", LENGTHS, np.ones(3), P, np.full(3, 0.5))
    rates = {}
    for centre in (-1.0, 1.0):
        rule, drift = price.rule_for(policy, 0.5, centre, "drop")
        m = policy.moments(policy.calibrated(rule, drift, 0.7), drift)
        rates[centre] = m.clipped / m.weight
    assert np.ptp(rates[1.0]) < 1e-12
    assert np.ptp(rates[-1.0]) > 0.01


def test_the_scaled_error_is_the_least_over_step_sizes():
    policy = location()
    rule, drift = price.rule_for(policy, 0.25, -0.5, "truncate")
    m = policy.moments(policy.calibrated(rule, drift, 0.5), drift)
    for row in price._price(m, "truncate"):
        trace = (m.second - m.g_clip @ m.g_clip) / row["n"]
        error = optimize.minimize_scalar(lambda c, t=trace: np.sum((c * m.g_clip - m.g) ** 2) + c**2 * t).fun
        assert row["mse_scaled"] == pytest.approx(error / (m.g @ m.g), rel=1e-6)
        assert row["mse_scaled"] <= min(row["mse"], row["mse_direction"], 1)


def test_softmax_moments_agree_with_sampled_updates():
    policy = MODELS["softmax"][1]()
    assert isinstance(policy, SoftmaxPolicy)
    assert policy.mass.sum() == pytest.approx(1)
    assert -float(policy.mass @ policy.S) == pytest.approx(0.3, rel=1e-6)
    rule, drift = price.rule_for(policy, 0.5, -1.0, "truncate")
    rule = policy.calibrated(rule, drift, 0.7)
    m = policy.moments(rule, drift)
    assert float(m.p @ m.band) == pytest.approx(0.7, abs=0.02)
    rng, n, repeats = np.random.default_rng(2), 8, 4000
    f = rule.apply(policy.S, policy.n, policy.A, drift).clipped_weight
    terms = (f * policy.A)[:, None] * policy.psi
    drawn = rng.choice(policy.mass.size, (repeats, n), p=policy.mass)
    # E |mean of n terms - g|^2 against bias^2 + variance/n
    error = np.array([np.sum((terms[rows].mean(axis=0) - m.g) ** 2) for rows in drawn])
    exact = np.sum((m.g_clip - m.g) ** 2) + (m.second - m.g_clip @ m.g_clip) / n
    assert abs(error.mean() - exact) <= 4.5 * error.std() / math.sqrt(repeats)


@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("softmax")])
def test_location_models_are_calibrated_and_kept_on_an_importance_ratio(name):
    policy = MODELS[name][1]()
    assert policy.p.sum() == pytest.approx(1)
    m = policy.moments(NONE, 0.0)
    np.testing.assert_allclose(m.weight, 1, rtol=1e-9)
    for gamma in price.GAMMAS:
        rule, drift = price.rule_for(policy, gamma, -1.0, "drop")
        for target in (0.1, 0.99):
            assert float(
                policy.p @ policy.band_acceptance(policy.calibrated(rule, drift, target), drift)
            ) == pytest.approx(target, abs=1e-8)


def test_best_rows_by_hand():
    base = {"model": "m", "n": 32}
    rows = [
        base | {"outside": "none", "gamma": math.nan, "centre": math.nan, "acceptance": 1.0, "mse": 3.0},
        base | {"outside": "drop", "gamma": 0.5, "centre": 0.0, "acceptance": 0.5, "mse": 2.0},
        base | {"outside": "truncate", "gamma": 0.0, "centre": -1.0, "acceptance": 0.9, "mse": 1.0},
        base | {"outside": "cap", "gamma": 0.5, "centre": 1.0, "acceptance": 0.9, "mse": 4.0},
    ]
    frame = to_frame("mse_map", [r | {"mse_direction": r["mse"], "mse_scaled": 9 - r["mse"]} for r in rows])
    best = pd.DataFrame(price.best_rows(frame)).set_index(["outside", "criterion"])
    top = best.loc[("any", "mse")]
    assert (top.gamma, top.centre, top.acceptance, top.value, top.outside_best) == (0.0, -1.0, 0.9, 1.0, "truncate")
    assert (top.value_unclipped, top.value_gamma_half, top.value_centre_zero, top.value_centre_plus) == (3, 2, 2, 4)
    assert best.loc[("cap", "mse")].value == 4
    assert best.loc[("any", "mse_scaled")].outside_best == "cap"
    assert set(best.reset_index()) == set(MAP_COLUMNS["mse_best"])


def test_bad_policies():
    with pytest.raises(UserError, match="overlap"):
        location(overlap=1.0)
    with pytest.raises(UserError, match="positive rewards"):
        replace(location(), positive=np.array([0.0, 0.5, 0.5]))
