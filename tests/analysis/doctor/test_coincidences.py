"""Coincidences: what is one, and what chance makes."""

import numpy as np
import pytest

from analysis.doctor.coincidences import advantage_by_length, counted_twice, length_pile, sorted_minibatches
from tests.analysis.doctor.made import rows_of


@pytest.mark.parametrize("rollouts", [5, 8, 9, 16, 23, 30])
@pytest.mark.parametrize("in_order", [True, False])
def test_minibatches_of_two_prompts_differ_by_chance_and_are_sorted_only_in_order(in_order, rollouts):
    """Of 8 prompts in 4 minibatches chance puts 3/7 of the variance between minibatches, more than the threshold."""
    rng, n = np.random.default_rng(1), 32 * rollouts
    L, i = rng.uniform(2, 6, (rollouts, 32)), np.arange(n)
    L = np.exp(np.sort(L) if in_order else L).ravel()
    rows = rows_of(n, group=4, length=L, step=i // 8, rollout=i // 32)
    assert sorted_minibatches(rows).found == in_order


@pytest.mark.parametrize(("sign", "found"), [(1, True), (0.5, False)])
def test_an_advantage_is_compared_with_the_length_in_groups_of_three_lengths(sign, found):
    """Thirty groups of lengths 1, 2, 4 with A = L, or with noise; in thirty others two lengths stand against it."""
    L = np.tile([1.0, 2, 4, 1, 1, 2], 30)
    noise = np.random.default_rng(2).standard_normal(180)
    A = np.where(np.arange(180) % 6 < 3, sign * L + (1 - sign) * 9 * noise, -50 * L)
    assert advantage_by_length(rows_of(180, group=3, length=L, advantage=A)).found == found


@pytest.mark.parametrize(("copied", "found"), [(1, False), (8, True)])
def test_a_rollout_copies_another_if_half_of_its_rows_do(copied, found):
    """Ten rollouts of 16 rows; the last one has one row, or eight, of the first one's."""
    S = np.random.default_rng(3).standard_normal(160)
    S[144 : 144 + copied] = S[:copied]
    assert counted_twice(rows_of(160, length=np.full(160, 30.0), log_ratio=S)).found == found


def test_a_minibatch_of_one_prompt_may_have_one_length():
    """Ten minibatches of two prompts with two lengths each, and ten of one prompt with one length."""
    L, prompt = np.tile([8.0, 9, 10, 10], 10) + np.repeat(np.arange(10), 4), np.tile([0, 1, 2, 2], 10)
    rows = rows_of(40, length=L, prompt_id=prompt, step=np.arange(40) // 2, rollout=0 * prompt, truncated=0 * L)
    assert not length_pile(rows, 100).found
    padded = rows_of(40, length=np.repeat(L[::2], 2), prompt_id=np.arange(40), step=np.arange(40) // 2, truncated=0 * L)
    assert "padding" in length_pile(padded, 100).summary
