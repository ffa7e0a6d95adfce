"""Bands on responses of which a part does not move (docs/theory.md T10): by hand, and by searches of mpmath."""

import math

import mpmath
import numpy as np
import pytest
from scipy import special

from fspo.theory import acceptance_with_still, fair_exponent_with_still, lre_with_still


def uniform(x):
    return np.clip(x, 0, 1)


def exponential(p):
    """Quantiles of the exponential law."""
    return -math.log1p(-p)


def half_normal(p):
    """Quantiles of |Z|, Z standard normal."""
    return float(special.ndtri((1 + p) / 2))


# ---- (a)


def test_acceptance_by_hand():
    # the band reaches the middle of the uniform law at both lengths: 1 - .5 * .5, 1 - .8 * .5
    found = acceptance_with_still(uniform, [0.5, 0.8], [1, 16], 0.5, 0.5, 0.5)
    np.testing.assert_allclose(found, [0.75, 0.6], rtol=1e-15)
    # half-widths .5 l^(3/4) on a spread l^(1/4) reach .5 and 2, beyond the law's end
    np.testing.assert_allclose(acceptance_with_still(uniform, [0.5, 0.8], [1, 16], 0.5, 0.75, 0.25), [0.75, 1.0])
    # and the other way round: .5 and .125
    np.testing.assert_allclose(acceptance_with_still(uniform, [0.5, 0.8], [1, 16], 0.5, 0.25, 0.75), [0.75, 0.3])


def test_lre_of_all_responses_by_hand():
    # v_bar = .5, r = (-.2, .6, -.2); a_bar = 1 - .4 * .5 = .8, so the factor is .25
    found = lre_with_still([2, 1, 1], [0.4, 0.8, 0.4], 0.4)
    assert (found.inf, found.l1, found.mean_acceptance) == pytest.approx((0.15, 0.075, 0.8))
    assert found.l2 == pytest.approx(0.25 * math.sqrt(0.12))
    assert lre_with_still([1, 1], [0.3, 0.9], 0.0).inf == 0  # nothing is cut
    assert lre_with_still([1, 1], [0.7, 0.7], 0.5).l2 == 0  # the same share moves everywhere


# ---- (b), (c)


def test_fair_exponent_by_hand():
    # exponential law: z = log(v / (1 - alpha)) = log 2 and log 4, twice as far at four times the length
    assert fair_exponent_with_still(exponential, [0.5, 1.0], [16, 64], 0.75, 0.5) == pytest.approx(1.0, rel=1e-12)
    assert fair_exponent_with_still(exponential, [1.0, 0.5], [16, 64], 0.75, 0.5) == pytest.approx(0.0, abs=1e-12)
    # where the same share moves it is H
    assert fair_exponent_with_still(exponential, [0.6, 0.6], [16, 64], 0.75, 0.3) == 0.3


@pytest.mark.parametrize("alpha", [0.7, 0.85, 0.99])
@pytest.mark.parametrize(("moving", "lengths", "H"), [((0.4, 0.8), (16, 128), 0.5), ((0.9, 0.35), (700, 3), 0.65)])
def test_fair_exponent_by_a_search_of_gamma(alpha, moving, lengths, H):
    """At the gamma found here the range that accepts alpha at one length does so at the other."""
    with mpmath.workdps(30):

        def cut(v, edge):
            return v * mpmath.erfc(edge / mpmath.sqrt(2))

        f_at_one = mpmath.findroot(lambda x: cut(moving[0], x) - (1 - alpha), (0.01, 9), solver="bisect")
        ratio = mpmath.mpf(lengths[1]) / lengths[0]
        gamma = mpmath.findroot(
            lambda g: cut(moving[1], f_at_one * ratio ** (g - H)) - (1 - alpha), (H - 3, H + 3), solver="bisect"
        )
    found = fair_exponent_with_still(half_normal, moving, lengths, alpha, H)
    assert found == pytest.approx(float(gamma), abs=1e-10)
    swapped = fair_exponent_with_still(half_normal, moving[::-1], lengths[::-1], alpha, H)
    assert swapped == pytest.approx(found, rel=1e-12)


def test_the_limit_of_a_tail_that_is_a_power():
    def pareto(p):  # 1 - F(x) = 1 / (1 + x)^2
        return 1 / math.sqrt(1 - p) - 1

    found = [fair_exponent_with_still(pareto, [0.4, 0.8], [1, 8], a, 0.5) for a in (0.99, 1 - 1e-6, 1 - 1e-10)]
    # H + log(2) / (2 log 8) = 1/2 + 1/6
    assert found[0] > found[1] > found[2]
    assert found[2] == pytest.approx(2 / 3, abs=1e-5)


def test_no_exponent_where_too_few_responses_move():
    assert math.isnan(fair_exponent_with_still(half_normal, [0.2, 0.8], [16, 64], 0.79, 0.5))
    assert math.isnan(fair_exponent_with_still(half_normal, [0.8, 0.2], [16, 64], 0.79, 0.5))
    assert fair_exponent_with_still(half_normal, [0.2, 0.8], [16, 64], 0.81, 0.5) > 0.5

    def logit(p):  # half of the moving responses move away from the edge
        return float(special.logit(p))

    assert math.isnan(fair_exponent_with_still(logit, [0.4, 0.8], [16, 64], 0.79, 0.5))
    assert fair_exponent_with_still(logit, [0.4, 0.8], [16, 64], 0.81, 0.5) > 0.5
