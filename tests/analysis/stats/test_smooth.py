"""The smooth curve against a plain logistic regression, simulated coverage and logs without information."""

import numpy as np
import pytest
from scipy import optimize, sparse, special
from scipy import stats as sps

from analysis.stats import smooth
from analysis.stats.smooth import smooth_acceptance, smooth_cells


def log(rng, curve, prompts=150, group=8):
    place = np.sqrt(0.6) * rng.standard_normal((prompts, 1)) + np.sqrt(0.4) * rng.standard_normal((prompts, group))
    length = np.maximum(np.round(200 * np.exp(0.7 * place.ravel())), 1)
    effect = np.sqrt(0.2) * rng.standard_normal((prompts, 1)) + np.sqrt(0.8) * rng.standard_normal((prompts, group))
    return (effect.ravel() <= special.ndtri(curve(length))).astype(float), length, np.repeat(np.arange(prompts), group)


def test_the_curve_contains_the_maximum_likelihood_cubic_where_there_are_no_inner_knots():
    rng = np.random.default_rng(1)
    y, length, cluster = log(rng, lambda x: np.full_like(x, 0.85), prompts=40)
    found = smooth_acceptance(y, length, cluster)
    assert found.parameters == 4  # a cubic in log(1 + L): an independent fit must agree up to the ridge
    x = np.log1p(length)
    basis = np.vander((x - x.mean()) / x.std(), 4)
    loss = lambda b: np.sum(np.logaddexp(0, basis @ b) - y * (basis @ b))  # noqa: E731
    best = optimize.minimize(loss, np.zeros(4), method="BFGS").x
    at = np.vander((np.log1p(found.length) - x.mean()) / x.std(), 4)
    assert found.estimate == pytest.approx(special.expit(at @ best), abs=0.03)


@pytest.mark.parametrize("slope", [0.0, 0.5])
def test_the_band_holds_at_all_lengths_together(slope):
    rng = np.random.default_rng(2)
    curve = lambda x: special.expit(1.7 + slope * np.log(x / 200))  # noqa: E731
    together = alone = 0
    for _ in range(200):
        found = smooth_acceptance(*log(rng, curve))
        truth = curve(found.length)
        together += np.all((found.low <= truth) & (truth <= found.high))
        alone += np.all((found.pointwise_low <= truth) & (truth <= found.pointwise_high))
    assert together / 200 > 0.95 - 3 * np.sqrt(0.95 * 0.05 / 200)
    assert alone < together - 10  # the control: pointwise intervals do not hold together


def test_the_pointwise_interval_is_that_of_fits_without_each_cluster(monkeypatch):
    """Few prompts with many rows: the fit is made again without each prompt, with the same spline."""
    rng = np.random.default_rng(5)
    cluster = np.repeat(np.arange(30), 60)
    length = np.round(np.exp(rng.uniform(3, 6, 30)[cluster] + 0.5 * rng.normal(size=1800)))
    y = (rng.random(1800) < special.expit(0.5 + rng.normal(size=30))[cluster]).astype(float)
    fit, seen = smooth._fit, []
    monkeypatch.setattr(smooth, "_fit", lambda *data: seen.append(data) or fit(*data))
    found = smooth_acceptance(y, length, cluster)
    (design, counts, hits), values = seen[0], np.unique(length)
    at = [np.searchsorted(values, length[cluster == c]) for c in range(30)]
    each = [np.bincount(place, minlength=len(values)) for place in at]
    accepted = [np.bincount(place, y[cluster == c], len(values)) for c, place in enumerate(at)]
    betas = np.array([fit(design, counts - n, hits - k)[0] for n, k in zip(each, accepted, strict=True)])
    shown = np.array([np.interp(found.length, values, line) for line in betas @ design.T])
    se = np.sqrt(29 / 30 * np.sum((shown - shown.mean(0)) ** 2, axis=0))
    ours = (special.logit(found.pointwise_high) - special.logit(found.pointwise_low)) / 2 / sps.t.ppf(0.975, 29)
    assert 0.95 < np.median(ours / se) < 1.15  # without the correction for leverage 0.83


@pytest.mark.parametrize(("prompts", "parameters"), [(20, 4), (100, 7), (250, 8)])
def test_the_coefficients_grow_with_the_prompts_of_the_rarer_outcome(prompts, parameters):
    """4, and one more for each factor 1.5 above 20 prompts (100 = 20 * 1.5^3.97), at most 8. It does not matter which
    outcome is called 1."""
    cluster = np.repeat(np.arange(300), 4)
    length = np.random.default_rng(7).integers(8, 200, 1200).astype(float)
    y = ((np.arange(1200) % 4 > 0) | (cluster >= prompts)).astype(float)
    found, mirrored = smooth_acceptance(y, length, cluster), smooth_acceptance(1 - y, length, cluster)
    assert found.parameters == mirrored.parameters == parameters
    np.testing.assert_allclose(mirrored.estimate, 1 - found.estimate, atol=1e-9)
    np.testing.assert_allclose(mirrored.low, 1 - found.high, atol=1e-9)


def test_observed_and_binomial_errors_are_averaged(monkeypatch):
    drawn, squares = log(np.random.default_rng(8), lambda x: np.full_like(x, 0.85), prompts=60), []
    for own in (1.0, 0.0, 0.25):
        monkeypatch.setattr(smooth, "borrowed", lambda _, own=own: own)
        found = smooth_acceptance(*drawn)
        squares.append((special.logit(found.pointwise_high) - special.logit(found.pointwise_low)) ** 2)
    np.testing.assert_allclose(squares[2], 0.25 * squares[0] + 0.75 * squares[1])
    assert 0.1 < np.min(squares[1] / squares[0]) < 0.9


def test_too_little_data_is_said():
    rng = np.random.default_rng(3)
    y, length, cluster = log(rng, lambda x: np.full_like(x, 0.7))
    few = np.ones_like(y)
    few[[0, 50, 90]] = 0
    assert "too little data: 17 more prompts" in smooth_acceptance(few, length, cluster).reason
    assert "lengths" in smooth_acceptance(y, np.full_like(length, 9.0), cluster).reason
    assert "clusters" in smooth_acceptance(y[:16], length[:16], cluster[:16]).reason
    assert smooth_acceptance(np.zeros(0), np.zeros(0), np.zeros(0, int)).reason == "no rows"
    assert np.all(np.isnan(smooth_acceptance(few, length, cluster).estimate))


def test_a_coordinate_that_is_no_whole_number_and_reaches_zero():
    rng = np.random.default_rng(4)
    y, length, cluster = log(rng, lambda x: np.full_like(x, 0.7))
    place = length / length.max() - length.min() / length.max()
    found = smooth_acceptance(y, place, cluster)
    assert np.all((found.low < 0.7 + 0.1) & (found.high > 0.7 - 0.1))


def test_the_band_does_not_hang_on_signs_that_a_library_chooses(monkeypatch):
    drawn = log(np.random.default_rng(6), lambda x: np.full_like(x, 0.85))
    before = smooth_acceptance(*drawn)
    real, rng = np.linalg.eigh, np.random.default_rng(1)

    def other_signs(matrix):
        values, vectors = real(matrix)
        return values, vectors * rng.choice([-1.0, 1.0], len(values))

    monkeypatch.setattr(np.linalg, "eigh", other_signs)
    after = smooth_acceptance(*drawn)
    np.testing.assert_allclose(after.low, before.low, rtol=1e-9)
    np.testing.assert_allclose(after.high, before.high, rtol=1e-9)


def test_a_length_without_rows_changes_nothing():
    rng = np.random.default_rng(9)
    y, length, cluster = log(rng, lambda x: np.full_like(x, 0.7), prompts=60)
    values = np.unique(length)
    place = np.searchsorted(values, length)
    rows = sparse.csr_matrix((np.ones(len(y)), (cluster, place)))
    hits = sparse.csr_matrix((y, (cluster, place)), rows.shape)
    empty = sparse.csr_matrix((rows.shape[0], 1))
    found = smooth_cells(values, rows, hits)
    wider = smooth_cells(
        np.append(values, 1e6), sparse.hstack([rows, empty]).tocsr(), sparse.hstack([hits, empty]).tocsr()
    )
    np.testing.assert_array_equal(wider.low, found.low)
    np.testing.assert_array_equal(wider.length, found.length)
