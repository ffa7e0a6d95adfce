"""The smooth curve against a plain logistic regression, simulated coverage and logs without information."""

import numpy as np
import pytest
from scipy import optimize, sparse, special
from scipy import stats as sps
from scipy.interpolate import BSpline

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


def by_definition(y, length, cluster):
    """Return the shown lengths, the curve in logits, its standard errors there and their covariance, row by row."""
    x, values = np.log1p(length), np.unique(np.log1p(length))
    counts = np.array([np.sum(x == value) for value in values])
    below = (np.cumsum(counts) - counts / 2) / len(y)  # share of rows below a length, half of its own included
    rarer = np.unique(cluster[y == (np.mean(y) < 0.5)])  # prompts with a response of the rarer outcome
    number = 4 + int(np.floor(np.log(len(rarer) / 20) / np.log(1.5)))
    inner = np.interp(np.arange(1, number - 3) / (number - 3), below, values)
    knots = np.concatenate([np.full(4, values[0]), inner, np.full(4, values[-1])])
    basis = BSpline(knots, np.eye(number), 3)
    design = basis(x)
    start = special.logit((np.sum(y) + 0.5) / (len(y) + 1))

    def loss(beta):
        line = design @ beta
        return np.sum(np.logaddexp(0, line) - y * line) + 0.01 * np.sum((beta - start) ** 2)

    def slope(beta):
        return design.T @ (special.expit(design @ beta) - y) + 0.02 * (beta - start)

    beta = optimize.minimize(loss, np.full(number, start), jac=slope, method="BFGS", options={"gtol": 1e-8}).x
    chance = special.expit(design @ beta)
    information = sum(c * (1 - c) * np.outer(row, row) for c, row in zip(chance, design, strict=True))
    inverse = np.linalg.inv(information + 0.02 * np.eye(number))
    observed = np.zeros((number, number))
    for c in np.unique(cluster):
        at = cluster == c
        weight = chance[at] * (1 - chance[at])
        share = np.sum(weight * np.sum((design[at] @ inverse) * design[at], axis=1))
        gradient = design[at].T @ (y[at] - chance[at]) / (1 - share)
        observed += np.outer(gradient, gradient)
    own = len(rarer) / (len(rarer) + 10)
    first, last = np.log1p(np.interp([0.025, 0.975], below, np.expm1(values)))
    shown = np.linspace(first, last, 25)
    lever = basis(shown) @ inverse
    covariance = lever @ (own * observed + (1 - own) * information) @ lever.T
    return np.expm1(shown), basis(shown) @ beta, covariance, min(len(rarer), len(np.unique(cluster))) - 1


@pytest.mark.parametrize("level", [0.5, 0.85])
def test_the_curve_and_both_bands_by_their_definition(level):
    y, length, cluster = log(np.random.default_rng(11), lambda x: np.clip(level + 0.05 * np.log(x / 200), 0.1, 0.97))
    found = smooth_acceptance(y, length, cluster)
    at, line, covariance, df = by_definition(y, length, cluster)
    assert found.parameters > 6
    np.testing.assert_allclose(found.length, at)
    np.testing.assert_allclose(special.logit(found.estimate), line, atol=1e-5)
    se = np.sqrt(np.diag(covariance))
    half = sps.t.ppf(0.975, df) * se
    np.testing.assert_allclose(special.logit(found.pointwise_low), line - half, atol=1e-4)
    np.testing.assert_allclose(special.logit(found.pointwise_high), line + half, atol=1e-4)
    rng = np.random.default_rng(0)
    normal = rng.multivariate_normal(np.zeros(len(se)), covariance, 20_000, method="svd")
    largest = np.max(np.abs(normal / se), axis=1) * np.sqrt(df / rng.chisquare(df, 20_000))
    widths = (special.logit(found.high) - special.logit(found.low)) / 2 / se
    np.testing.assert_allclose(widths, np.quantile(largest, 0.95), rtol=0.04)
    np.testing.assert_allclose(special.logit(found.high) + special.logit(found.low), 2 * line, atol=1e-4)


def test_counts_by_length_are_those_of_the_rows():
    """Half lengths take another way to their distinct values than whole ones."""
    y, length, cluster = log(np.random.default_rng(12), lambda x: np.full_like(x, 0.7), prompts=60)
    whole, doubled = (smooth_acceptance(y, values, cluster) for values in (2 * length, 2 * length + 1e-9))
    np.testing.assert_allclose(whole.length, doubled.length, rtol=1e-6)
    np.testing.assert_allclose(whole.high, doubled.high, atol=1e-6)
