"""Advantages against numbers worked by hand, and what does not change them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fspo.advantages import ESTIMATORS, advantages
from fspo.base.errors import UserError


@st.composite
def grouped_rewards(draw):
    sizes = draw(st.lists(st.integers(2, 6), min_size=1, max_size=5))
    groups = draw(st.permutations([g for g, size in enumerate(sizes) for _ in range(size)]))
    values = draw(hnp.arrays(np.float64, len(groups), elements=st.integers(-8, 8).map(float)))
    return values, np.array(groups)


def test_values_by_hand():
    # Group 7: 1, 0, 0, 1 (mean 1/2). Group 3: 3, 0, 0 (mean 1, ddof-1 variance (4 + 1 + 1)/2 = 3).
    rewards = np.array([1, 3, 0, 0, 0, 1, 0])
    groups = np.array([7, 3, 7, 3, 7, 7, 3])
    rloo, stats = advantages(rewards, groups, "rloo")
    np.testing.assert_allclose(rloo, [2 / 3, 3, -2 / 3, -1.5, -2 / 3, 2 / 3, -1.5], rtol=1e-15)
    assert rloo.dtype == np.float64
    assert (stats.num_groups, stats.num_zero_std_groups) == (2, 0)
    dr_grpo, _ = advantages(rewards, groups, "dr_grpo")
    np.testing.assert_allclose(dr_grpo, [0.5, 2, -0.5, -1, -0.5, 0.5, -1], rtol=1e-15)
    grpo, _ = advantages(rewards, groups, "grpo")
    s7, s3 = 3**-0.5 + 1e-4, 3**0.5 + 1e-4
    expected = [0.5 / s7, 2 / s3, -0.5 / s7, -1 / s3, -0.5 / s7, 0.5 / s7, -1 / s3]
    np.testing.assert_allclose(grpo, expected, rtol=1e-14)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    "values", [(0.3, 0.1 + 0.2), (1.0, 1 - 1e-15), (-1e9 / 7, np.nextafter(-1e9 / 7, 0)), (0, -0.0)]
)
def test_rewards_that_differ_by_rounding_are_equal(estimator, values):
    rewards, groups = np.array([*values, values[0], 0.0, 1.0]), np.array([0, 0, 0, 1, 1])
    out, stats = advantages(rewards, groups, estimator)
    assert (out[:3] == 0).all()
    assert (out[3:] != 0).all()
    assert stats.num_zero_std_groups == 1


@given(grouped_rewards(), st.sampled_from(ESTIMATORS), st.integers(-100, 100))
def test_shift_of_a_group_and_order_of_rows_do_not_matter(data, estimator, shift):
    rewards, groups = data
    out, stats = advantages(rewards, groups, estimator)
    shifted, _ = advantages(rewards + shift * (groups + 1), groups, estimator)
    np.testing.assert_array_equal(shifted, out)  # small integers: no rounding
    order = np.random.default_rng(0).permutation(len(rewards))
    permuted, permuted_stats = advantages(rewards[order], groups[order] * 5 - 3, estimator)
    np.testing.assert_allclose(permuted, out[order], atol=1e-12)
    assert permuted_stats == stats


def test_groups_of_one():
    with pytest.raises(UserError, match=r"group 4 has one response.*at least 2"):
        advantages(np.array([1.0, 0.0, 1.0]), np.array([2, 2, 4]), "rloo")
    for estimator in ("grpo", "dr_grpo"):
        out, stats = advantages(np.array([1.0, 0.0, 1.0]), np.array([2, 2, 4]), estimator)
        assert out[2] == 0
        assert stats.num_zero_std_groups == 1


@pytest.mark.parametrize(
    ("rewards", "groups", "estimator", "message"),
    [
        ([1.0, np.nan], [0, 0], "rloo", "reward 1 is nan"),
        ([0.0, -1.5e100], [0, 0], "rloo", "make the reward function return finite numbers up to 1e\\+100"),
        ([1.0, 2.0], [0], "grpo", "one length"),
        ([[1.0, 2.0]], [[0, 0]], "grpo", "two vectors"),
        ([1.0, 2.0], [0, 0], "dr-grpo", "did you mean 'dr_grpo'"),
    ],
)
def test_bad_input(rewards, groups, estimator, message):
    with pytest.raises(UserError, match=message):
        advantages(np.array(rewards), np.array(groups), estimator)
