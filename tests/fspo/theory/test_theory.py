"""The formulas of docs/theory.md against mpmath at 50 digits, hand-worked numbers, and controls that must fail."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fspo import theory
from fspo.base.errors import UserError
from fspo.rules import Rule, preset
from fspo.theory.lemma import cosine_lemmas

LENGTHS = np.array([1.0, 3.0, 16.0, 250.0, 4000.0, 131_072.0])
SIGMA = 0.03


def exact_interval(lo, hi):
    """Phi(hi) - Phi(lo) at 50 digits, by erfc in the tail."""
    with mpmath.workdps(50):
        lo, hi = mpmath.mpf(lo), mpmath.mpf(hi)
        if lo > 0:
            lo, hi = -hi, -lo
        return (mpmath.erfc(-hi / mpmath.sqrt(2)) - mpmath.erfc(-lo / mpmath.sqrt(2))) / 2


@settings(max_examples=200)
@given(lo=st.floats(-30, 30), width=st.floats(1e-9, 60))
def test_interval_probability_is_exact_in_the_tails(lo, width):
    hi = lo + width
    assert float(theory.interval_probability(lo, hi)) == pytest.approx(
        float(exact_interval(lo, hi)), rel=1e-11, abs=1e-300
    )


def test_interval_probability_of_infinite_ends():
    assert theory.interval_probability([-math.inf, 0.0], [math.inf, math.inf]) == pytest.approx([1.0, 0.5], rel=1e-14)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("rule", "drift"),
    [
        (Rule("linear", 0.011, 4e-4), 0),
        (Rule("sqrt", 0.05, 0.03), 0),
        (Rule("sqrt", 0.05, 0.03, drift="kl"), -1),
        (Rule("sqrt", 0.05, 0.03, drift="tilted"), 1),
    ],
)
def test_acceptance_of_every_band_at_50_digits(rule, drift, weighted):
    mu, m = 2e-4, rule.centre(theory.gaussian_means(SIGMA))
    found = (theory.weight_acceptance if weighted else theory.band_acceptance)(rule, LENGTHS, mu, SIGMA, m)
    for length, a in zip(LENGTHS, found, strict=True):
        with mpmath.workdps(50):
            L, sigma = mpmath.mpf(length), mpmath.mpf(SIGMA)
            lo_range, hi_range = mpmath.mpf(rule.range_lo), mpmath.mpf(rule.range_hi)
            if rule.shape == "linear":
                below, above = -mpmath.log(1 - lo_range) * L, mpmath.log(1 + hi_range) * L
            else:
                below, above = lo_range * mpmath.sqrt(L), hi_range * mpmath.sqrt(L)
            mean = (mpmath.mpf(mu) + (sigma**2 if weighted else 0)) * L
            scale, centre = sigma * mpmath.sqrt(L), drift * sigma**2 / 2 * L
            expected = exact_interval((centre - below - mean) / scale, (centre + above - mean) / scale)
            assert a == pytest.approx(float(expected), rel=1e-9, abs=1e-290)


def test_lre_by_hand():
    # a_bar = .4 + .1 + .2 = .7; r = (1, -3, 1)/7
    found = theory.lre([0.5, 0.25, 0.25], [0.8, 0.4, 0.8])
    np.testing.assert_allclose(
        [found.inf, found.l1, found.l2, found.mean_acceptance], [3 / 7, 1.5 / 7, math.sqrt(3) / 7, 0.7]
    )


def test_t3_bound_of_an_asymmetric_band_by_hand():
    # phi(1) = .241971, phi(2) = .053991: .187980 * .5 + .241971 * .25
    assert theory.drift_error_bound(1.0, 2.0, np.array([-0.5])) == pytest.approx([0.154483], abs=1e-6)


def test_acceptance_bounds_and_the_density_at_1_by_hand():
    assert theory.update_acceptance([0.6], [0.1], [0.2], [0.05])[0] == pytest.approx(1 - 0.06 - 0.08 - 0.02)  # T11
    assert theory.lre_bound(0.1, 0.6, one_sided=True) == pytest.approx(0.2)
    assert theory.lre_bound(0.1, 0.6, one_sided=False) == pytest.approx(0.4)
    assert pytest.approx(0.24197072451914337, rel=1e-15) == theory.PHI_1


def test_an_upper_edge_beyond_float64_is_refused():
    assert theory.upper_edge_supremum(37.65) < math.inf  # exp(708.8)
    with pytest.raises(UserError, match="take its logarithm"):
        theory.upper_edge_supremum(37.68)  # exp(709.9), above the largest float64, exp(709.78)


@pytest.mark.parametrize(("eps", "k"), [(0.3, 0.2), (0.9, 1.0)])
def test_t7s_is_sharp(eps, k):
    g = np.array([1.0, 0.0])
    v = np.array([-eps * k**2, math.sqrt(k**2 - (eps * k**2) ** 2)])  # |v| = k, <v, g + eps v> = 0
    strata, a = np.stack([g + v, g - v]), 0.5 * np.array([1 + eps, 1 - eps])
    found = theory.cosine_lemma([0.5, 0.5], a, strata, a[:, None] * strata)
    assert found.lre.inf == pytest.approx(eps)
    assert (found.kappa_inf, found.kappa_2, found.rho) == pytest.approx((k, k, eps * k))
    assert found.e_len_ratio == pytest.approx(eps * k)
    assert found.e_in_ratio == pytest.approx(0, abs=1e-12)
    assert found.cosine == pytest.approx(math.sqrt(1 - (eps * k) ** 2), rel=1e-12)
    assert found.bound == pytest.approx(found.cosine, rel=1e-12)
    assert found.cosine < theory.cosine_bound(0.99 * found.rho)  # the control: any smaller rho would promise too much


def test_each_of_the_two_terms_of_rho_can_be_the_least():
    """Deviations of norms 3, 1, 1 in one line: E|x - median| = 1 and the root of the variance is the root of 3."""
    p, a = [0.25, 0.25, 0.5], 1 + np.array([0.1, 0.1, -0.1])
    for at in (0, 1):
        g = np.array([[1.0, 0.0]] * 3)
        g[:, at] += np.array([3.0, -1.0, -1.0])
        found = theory.cosine_lemma(p, a, g, a[:, None] * g)
        assert (found.kappa_inf, found.kappa_2) == pytest.approx((1.0, math.sqrt(3)))
        assert found.lre.inf == pytest.approx(0.1)
        assert found.rho == pytest.approx(0.1)
    # one rare bin is reweighted, and another deviates: LRE_2 kappa_2
    g = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, -1.0]])
    found = theory.cosine_lemma([0.02, 0.49, 0.49], [2.0, 1.0, 1.0], g, np.array([2.0, 1.0, 1.0])[:, None] * g)
    assert found.rho == pytest.approx(found.lre.l2 * found.kappa_2)
    assert found.rho < found.lre.inf * found.kappa_inf


def test_cosine_lemma_by_hand():
    # p = (1/2, 1/2), g = (2, 0), (0, 2), total (1, 1), |g| = sqrt 2; a = (.8, .4), a_bar .6, r = (1/3, -1/3)
    g = np.array([[2.0, 0.0], [0.0, 2.0]])
    clipped = np.array([[0.8 * 2, 0.8 * 0.3], [0.0, 0.4 * 2]])  # delta = (0, .3), (0, 0)
    found = theory.cosine_lemma([1, 1], [0.8, 0.4], g, clipped)
    np.testing.assert_allclose(found.e_len, [1 / 3, -1 / 3])
    np.testing.assert_allclose(found.e_in, [0, 0.5 * 4 / 3 * 0.3])
    assert (found.e_len_ratio, found.e_in_ratio) == pytest.approx((1 / 3, 0.2 / math.sqrt(2)))
    assert (found.kappa_inf, found.kappa_2) == pytest.approx((1.0, 1.0))
    assert found.eta == pytest.approx(0.5 * 4 / 3 * 0.3 / math.sqrt(2))
    assert found.rho == pytest.approx(1 / 3 + found.eta)
    assert found.cosine == pytest.approx((0.8 + 0.12 + 0.4) / (math.sqrt(2) * math.hypot(0.8, 0.52)))


def test_a_rule_that_accepts_nothing_is_named_among_several():
    g = np.array([[1.0, 0.0], [0.0, 1.0]])
    nothing, all_ = cosine_lemmas(np.ones(2), np.array([[0.0, 0.0], [1.0, 1.0]]), g, np.stack([0 * g, g]))
    assert "nothing is accepted" in str(nothing)
    assert all_.cosine == pytest.approx(1)


@pytest.mark.parametrize("left", [0.0, 0.5])
def test_a_stratum_with_rate_0_adds_its_clipped_gradient_alone(left):
    # Stratum 2 has share 1/2, rate 0 and clipped gradient (left, 0); a_bar = 1/2, so e_in = 1/2 (left, 0) / a_bar
    found = theory.cosine_lemma([0.5, 0.5], [1.0, 0.0], [[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [left, 0.0]])
    np.testing.assert_array_equal(found.e_in, [left, 0.0])
    assert found.eta == pytest.approx(left / math.sqrt(0.5))
    assert found.identity_residual < 1e-15


def test_cosine_of_nothing_is_nan():
    assert math.isnan(theory.cosine([0.0], [1.0]))
    assert theory.cosine([1.0, 1.0], [1.0, 0.0]) == pytest.approx(math.sqrt(0.5))


def test_matching_sigma_gives_the_acceptance_that_was_asked_for() -> None:
    fspo, rloo = preset("fspo").rule, preset("rloo").rule
    # one length: P(|N(0,1)| <= c/sigma) = .85 at c/sigma = 1.4395314709384563 (tables of the normal law)
    assert theory.matching_sigma(fspo, [64.0], [1.0], 0.85) == pytest.approx(0.03 / 1.4395314709384563, rel=1e-9)
    lengths, p = [8.0, 200.0], [3.0, 1.0]
    sigma = theory.matching_sigma(rloo, lengths, p, 0.9)
    assert sigma is not None
    edges = [math.log(0.8), math.log(1.2)]
    cdf = [[mpmath.ncdf(e / (sigma * math.sqrt(n))) for e in edges] for n in lengths]
    assert float(0.75 * (cdf[0][1] - cdf[0][0]) + 0.25 * (cdf[1][1] - cdf[1][0])) == pytest.approx(0.9, abs=1e-9)
