"""Comparisons: closed-form p-values and calibration under true claims."""

import math

import numpy as np
import pytest
from scipy import stats

from proofs_check.frame import Verdict, judge, worst
from proofs_check.tools.compare import close, frequencies, holds, homogeneous, mean_is, within


def test_close_margin_is_decades_below_the_tolerance():
    outcome = close([1.0, 2.0], [1.0, 2.0 * (1 + 1e-6)], 1e-4)
    assert outcome.margin == pytest.approx(2.0, abs=1e-3)
    assert close([1.01], [1.0], 1e-4).margin == pytest.approx(-2.0, abs=1e-3)
    assert math.isnan(close([math.nan], [1.0], 1e-4).margin)


def test_holds_takes_the_least_slack_and_worst_the_least_margin_and_nan_first():
    assert holds([3.0, -0.5, 1.0], "u").margin == -0.5
    assert holds([-1e-9], "u", rounding=1e-8).margin > 0
    a, b, nan = holds([1.0], "u"), holds([0.5], "u"), holds([1.0, math.nan], "u")
    assert worst(a, b).margin == 0.5
    assert math.isnan(worst(a, nan, b).margin)


def test_frequencies_is_the_binomial_test_with_bonferroni():
    tail = stats.binom.sf(59, 100, 0.5)
    assert frequencies([60, 50], 100, [0.5, 0.5]).p_value == pytest.approx(2 * 2 * tail)
    assert within([60], 100, 0.0, 0.5).p_value == pytest.approx(2 * tail)
    assert frequencies([50], 100, [0.5]).p_value == 1.0
    assert frequencies([0], 1000, [0.5]).p_value < 1e-100


def test_homogeneous_is_pearsons_chi_square():
    counts, trials = np.array([30, 50, 45]), np.array([100, 120, 110])
    expected = stats.chi2_contingency(np.stack([counts, trials - counts]))[1]
    assert homogeneous(counts, trials).p_value == pytest.approx(expected)
    assert math.isnan(homogeneous([0, 0], 10).p_value)
    assert homogeneous([90, 90], 100, [1.0, 0.5]).p_value == 0.0


def test_mean_is_hotellings_test():
    rng = np.random.default_rng(0)
    x = rng.normal(0.3, 1.0, (9, 1))
    assert mean_is(x, [0.0]).p_value == pytest.approx(stats.ttest_1samp(x[:, 0], 0.0).pvalue)
    for rows in (300, 8):  # p-values are uniform under a true claim
        p = [mean_is(rng.standard_normal((rows, 3)), np.zeros(3)).p_value for _ in range(400)]
        assert np.mean(np.array(p) < 0.05) < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 400)


def test_what_is_no_probability_never_passes():
    nan = frequencies([50, 50], 100, [0.5, math.nan])
    assert math.isnan(nan.p_value)
    assert judge(nan) is Verdict.UNDECIDED
    for wrong in (1.2, -0.1):
        assert judge(frequencies([50, 50], 100, [0.5, wrong])) is Verdict.FAIL
    assert judge(frequencies([100], 100, [1 + 1e-15])) is Verdict.PASS
    assert judge(within([50, 50], 100, [0.1, math.nan], [0.9, math.nan])) is Verdict.UNDECIDED
