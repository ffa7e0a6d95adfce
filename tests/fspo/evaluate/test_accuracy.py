"""pass@k against enumeration of every subset; intervals against numbers by hand."""

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as sps

from fspo.base.errors import UserError
from fspo.evaluate.accuracy import measures, pass_at_k, rate


@settings(max_examples=60)
@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_response(marks: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(marks)))
    subsets = list(combinations(marks, k))
    exact = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k(len(marks), [sum(marks)], k)[0] == pytest.approx(exact, abs=1e-12)


def test_pass_at_k_of_large_numbers() -> None:
    n, c, k = 1000, 3, 128
    # 1 - prod_{i<k} (n-c-i)/(n-i), the stable form of the paper, in exact rational arithmetic
    none = math.prod(Fraction(n - c - i, n - i) for i in range(k))
    assert pass_at_k(n, [c], k)[0] == pytest.approx(float(1 - none), rel=1e-9)
    assert pass_at_k(n, [0, n], k).tolist() == [0, 1]


def test_measures_by_hand() -> None:
    found = measures([[1, 1], [1, 0], [0, 0], [0, 0], [1, 0]])
    assert [row["measure"] for row in found] == ["avg@2", "pass@2"]
    assert [row["value"] for row in found] == pytest.approx([0.4, 0.6])
    # Wilson at the effective size: the prompts' rates (1, .5, 0, 0, .5) have s^2 = .175, and .175 / 5 is .24 / n
    t2, p, n = sps.t.ppf(0.975, 4) ** 2, 0.4, 0.24 * 5 / 0.175
    centre, half = (p + t2 / 2 / n) / (1 + t2 / n), np.sqrt(t2 * (p * (1 - p) / n + t2 / 4 / n**2)) / (1 + t2 / n)
    assert (found[0]["ci_lo"], found[0]["ci_hi"]) == pytest.approx((centre - half, centre + half))
    with pytest.raises(UserError, match="no response"):
        measures([])


def test_prompts_are_the_clusters() -> None:
    """Sixteen equal responses to a prompt tell no more than one."""
    once = rate([1, 0, 1, 1, 0, 1, 0, 0], np.arange(8))
    often = rate(np.repeat([1, 0, 1, 1, 0, 1, 0, 0], 16), np.repeat(np.arange(8), 16))
    assert often["value"] == once["value"] == 0.5
    assert often["ci_hi"] - often["ci_lo"] == pytest.approx(once["ci_hi"] - once["ci_lo"], rel=0.1)
    sure = rate(np.ones(30), np.arange(30))
    assert sure["value"] == sure["ci_hi"] == 1
    assert 0.8 < sure["ci_lo"] < 0.95
    assert np.isnan(rate([1, 0], [0, 1])["ci_lo"])
