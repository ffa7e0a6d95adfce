import math

import numpy as np
import pytest
from scipy import integrate, stats

from proofs_check.maps.laws import Normal, Student, Switching
from proofs_check.maps.settings import MIDDLE, SIGMA, setting
from proofs_check.models import StudentTokens


def test_sums_of_cauchy_tokens_are_cauchy():
    lengths = np.array([1.0, 4.0, 500.0])
    law = Student(0 * lengths, lengths, 1.0, 1.0, 4.0)
    # quartiles at length 4 are those of N(0, 4): the sum there is Cauchy with scale 2 * 0.67449
    scale = lengths / 4 * 2 * stats.norm.ppf(0.75)
    for width in (0.01, 0.5, 3.0, 200.0, 1e5):
        exact = 1 - 2 * stats.cauchy.sf(width)
        np.testing.assert_allclose(law.probability(-width * scale, width * scale), exact, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("df", [1.25, 2.0, 3.0, 10.0])
def test_one_student_token_has_its_own_law(df):
    law = Student(np.zeros(1), np.ones(1), 1.0, df, 1.0)
    s = np.array([0.1, 1.0, 4.0, 40.0, 400.0]) * law.token_scale
    found = [float(law.probability(np.array([v]), np.array([math.inf]))[0]) for v in s]
    np.testing.assert_allclose(found, stats.t.sf(s / law.token_scale, df), rtol=1e-4, atol=2e-9)


def test_student_sums_agree_with_their_sample():
    law = setting("tail", 0.5).positive
    S = law.sample(np.random.default_rng(0), 4000)
    half = 0.03 * np.sqrt(setting("tail", 0.5).lengths)
    exact = law.probability(-half, half)
    error = ((np.abs(S) <= half).mean(axis=0) - exact) / np.sqrt(exact * (1 - exact) / len(S))
    assert np.abs(error).max() < 4.5
    assert law.weighted(-half, half) is None


def test_switching_without_persistence_is_a_binomial_mixture():
    lengths, low, high = np.array([1.0, 7.0, 300.0]), 1e-4, 9e-4
    law = Switching(lengths, low, high, 0.0)
    lo, hi = np.array([-0.03, -0.05, -0.2]), np.array([0.02, 0.04, 0.3])
    for i, n in enumerate(lengths.astype(int)):
        k = np.arange(n + 1)
        share, total = stats.binom.pmf(k, n, 0.5), k * high + (n - k) * low
        for found, sign in ((law.probability(lo, hi), -1), (law.weighted(lo, hi), 1)):
            part = stats.norm(sign * total / 2, np.sqrt(total))
            assert found[i] == pytest.approx(share @ (part.cdf(hi[i]) - part.cdf(lo[i])), abs=1e-6)


def test_switching_agrees_with_its_own_token_paths():
    point = setting("switching", 0.98)
    S = point.positive.sample(np.random.default_rng(1), 4000)
    half = SIGMA * np.sqrt(point.lengths)
    exact = point.positive.probability(-half, half)
    error = ((np.abs(S) <= half).mean(axis=0) - exact) / np.sqrt(exact * (1 - exact) / len(S))
    assert np.abs(error).max() < 4.5


def test_weighted_mass_of_a_normal_law_is_its_integral():
    law = Normal(np.array([-0.3, 0.1]), np.array([0.8, 1.5]))
    lo, hi = np.array([-1.0, 0.2]), np.array([0.5, 2.0])
    for i in range(2):
        density = stats.norm(law.mean[i], law.scale[i]).pdf
        exact = integrate.quad(lambda s, f=density: math.exp(s) * f(s), lo[i], hi[i])[0]
        assert law.weighted(lo, hi)[i] == pytest.approx(exact, rel=1e-9)


def test_student_quartiles_are_the_gaussian_ones_at_the_middle():
    law = Student(np.zeros(1), np.array([MIDDLE]), SIGMA, 1.5, MIDDLE)
    quartile = np.array([stats.norm.ppf(0.75) * SIGMA * math.sqrt(MIDDLE)])
    assert law.probability(-quartile, quartile)[0] == pytest.approx(0.5, abs=1e-7)


def test_student_sums_agree_with_the_other_inversion():
    lengths = np.array([3.0, 40.0, 700.0])
    law = Student(-0.001 * lengths, lengths, SIGMA, 3.0, MIDDLE)
    other = StudentTokens(-0.001, law.token_scale * math.sqrt(3.0), 3.0)  # its sigma is a standard deviation
    for width in (0.1, 1.0, 5.0, 30.0):
        edge = -0.001 * lengths + width * law.token_scale * np.sqrt(lengths)
        found = law.probability(np.full(3, -math.inf), edge)
        np.testing.assert_allclose(found, other.cdf(edge, lengths), atol=1e-8)
