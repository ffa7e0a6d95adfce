"""pass@k against enumeration of every subset; intervals, differences and length bins against numbers by hand."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as sps

from fspo.base.errors import UserError
from fspo.evaluate.accuracy import Answers, budgets, by_length, difference, length_bins, measures, pass_at_k, rate
from fspo.stats.bins import Bins


def answers(correct: list[list[int]], length: list[list[int]] | None = None) -> Answers:
    marks = np.array([mark for row in correct for mark in row], bool)
    prompt = np.repeat(np.arange(len(correct)), [len(row) for row in correct])
    tokens = np.array([n for row in length for n in row]) if length else np.full(len(marks), 7)
    return Answers(prompt, marks, tokens, tokens >= 100, np.zeros(len(marks), bool))


@settings(max_examples=60)
@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_response(marks: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(marks)))
    subsets = list(combinations(marks, k))
    exact = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k([len(marks)], [sum(marks)], k)[0] == pytest.approx(exact, abs=1e-12)


def test_pass_at_k_is_unbiased() -> None:
    """Mean over every outcome of n = 5 responses with success rate p, weighted by its chance, is 1 - (1-p)^k."""
    p, n = 0.3, 5
    for k in (1, 2, 5):
        chance = sps.binom.pmf(np.arange(n + 1), n, p)
        assert chance @ pass_at_k(np.full(n + 1, n), np.arange(n + 1), k) == pytest.approx(1 - (1 - p) ** k, abs=1e-12)


def test_pass_at_k_of_large_numbers() -> None:
    # 1 - prod_{i<k} (n-c-i)/(n-i), the stable form of the paper, in exact rational arithmetic
    from fractions import Fraction

    n, c, k = 1000, 3, 128
    none = Fraction(1)
    for i in range(k):
        none *= Fraction(n - c - i, n - i)
    assert pass_at_k([n], [c], k)[0] == pytest.approx(float(1 - none), rel=1e-9)
    assert pass_at_k([n, n], [0, n], k).tolist() == [0, 1]


@pytest.mark.parametrize(("n", "c", "k"), [([4, 2], [1, 1], 3), ([4], [5], 1), ([4], [-1], 1), ([4], [1], 0)])
def test_impossible_counts_are_refused(n: list[int], c: list[int], k: int) -> None:
    with pytest.raises(UserError):
        pass_at_k(n, c, k)


def test_budgets() -> None:
    assert budgets(1) == [1]
    assert budgets(8) == [1, 2, 4, 8]
    assert budgets(12) == [1, 2, 4, 8, 12]


def test_measures_by_hand() -> None:
    found = measures(answers([[1, 1], [1, 0], [0, 0], [0, 0], [1, 0]]))
    assert [row["measure"] for row in found] == ["avg@2", "pass@2"]
    assert [row["value"] for row in found] == pytest.approx([0.4, 0.6])
    # Wilson at the effective size: the prompts' rates (1, .5, 0, 0, .5) have s^2 = .175, and .175 / 5 is .24 / n
    t2, p, n = sps.t.ppf(0.975, 4) ** 2, 0.4, 0.24 * 5 / 0.175
    centre, half = (p + t2 / 2 / n) / (1 + t2 / n), np.sqrt(t2 * (p * (1 - p) / n + t2 / 4 / n**2)) / (1 + t2 / n)
    assert (found[0]["ci_lo"], found[0]["ci_hi"]) == pytest.approx((centre - half, centre + half))
    with pytest.raises(UserError, match="no response"):
        measures(answers([]))


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


def test_interval_covers() -> None:
    """600 benchmarks of 30 prompts, 4 responses each, difficulty from a beta law: the rate is .3."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(600):
        p = rng.beta(0.6, 1.4, 30)
        row = rate(rng.random((30, 4)).ravel() < np.repeat(p, 4), np.repeat(np.arange(30), 4))
        hits += row["ci_lo"] <= 0.3 <= row["ci_hi"]
    assert 0.925 < hits / 600 < 0.985


def test_differences_are_paired() -> None:
    one, other = answers([[1, 1], [1, 0], [0, 0], [1, 0], [1, 0]]), answers([[1, 0], [1, 0], [0, 0], [0, 0], [1, 0]])
    gap = np.array([0.5, 0, 0, 0.5, 0])
    found = difference(one, other)
    expected = sps.ttest_1samp(gap, 0).confidence_interval(0.95)
    assert found["difference"] == pytest.approx(0.2)
    assert (found["difference_lo"], found["difference_hi"]) == pytest.approx((expected.low, expected.high))
    assert difference(one, other, k=2)["difference"] == pytest.approx(1 / 5)  # one prompt in five is newly solved
    same = difference(one, one)  # five prompts without a difference: as 2 of 9 on a scale from 0 to 1
    half = sps.t.ppf(0.975, 4) * np.sqrt(2 / 9 * 7 / 9 / 5)
    assert (same["difference"], same["difference_lo"], same["difference_hi"]) == pytest.approx((0, -half, half))
    elsewhere = Answers(one.prompt + 50, one.correct, one.length, one.truncated, one.failed)
    assert np.isnan(difference(one, elsewhere)["difference"])


def test_accuracy_by_length() -> None:
    found = by_length(
        answers([[1, 0], [1, 1], [0, 0], [1, 0]], [[5, 100], [6, 50], [0, 0], [5, 100]]), Bins((1, 20, 101))
    )
    assert [(row["responses"], row["prompts"], row["truncated"]) for row in found] == [(3, 3, 0), (3, 3, 2)]
    assert [row["accuracy"] for row in found] == pytest.approx([1, 1 / 3])
    nothing = answers([[0, 0]], [[0, 0]])
    assert length_bins([nothing]) is None
    assert by_length(nothing, Bins((1, 2))) == []
    common = length_bins([answers([[1]], [[3]]), answers([[1]], [[30]])])
    assert common is not None
    assert common.edges[0] <= 3
    assert common.edges[-1] >= 30
