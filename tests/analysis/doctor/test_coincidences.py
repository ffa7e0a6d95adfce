"""Coincidences: what is one, and what chance makes."""

import numpy as np
import pytest

from analysis.doctor.coincidences import advantage_by_length, length_pile
from analysis.log.copies import find_copies
from tests.analysis.doctor.made import rows_of


@pytest.mark.parametrize(("sign", "found"), [(1, True), (0.5, False)])
def test_an_advantage_is_compared_with_the_length_in_groups_of_three_lengths(sign, found):
    """Thirty groups of lengths 1, 2, 4 with A = L, or with noise; in thirty others two lengths stand against it."""
    L = np.tile([1.0, 2, 4, 1, 1, 2], 30)
    noise = np.random.default_rng(2).standard_normal(180)
    A = np.where(np.arange(180) % 6 < 3, sign * L + (1 - sign) * 9 * noise, -50 * L)
    assert advantage_by_length(rows_of(180, group=3, length=L, advantage=A)).found == found


def test_a_minibatch_of_one_prompt_may_have_one_length():
    """Ten minibatches of two prompts with two lengths each, and ten of one prompt with one length."""
    L, prompt = np.tile([8.0, 9, 10, 10], 10) + np.repeat(np.arange(10), 4), np.tile([0, 1, 2, 2], 10)
    rows = rows_of(40, length=L, prompt_id=prompt, step=np.arange(40) // 2, rollout=0 * prompt, truncated=0 * L)
    assert not length_pile(rows, 100).found
    padded = rows_of(40, length=np.repeat(L[::2], 2), prompt_id=np.arange(40), step=np.arange(40) // 2, truncated=0 * L)
    assert "padding" in length_pile(padded, 100).summary


def test_an_advantage_that_is_the_length_within_groups_of_any_spread():
    """A is the length less its group's mean, over its group's deviation; groups differ tenfold in their lengths."""
    L = np.tile([1.0, 2, 4, 9], 30) * np.repeat(np.geomspace(1, 10, 30), 4).round()
    groups = L.reshape(-1, 4)
    A = ((groups - groups.mean(1, keepdims=True)) / groups.std(1, keepdims=True)).ravel()
    assert advantage_by_length(rows_of(120, group=4, length=L, advantage=A)).evidence[0].value == pytest.approx(1)
    turned = np.where(np.arange(120) // 4 % 2, A, -A)  # in half of the groups the other way round
    assert not advantage_by_length(rows_of(120, group=4, length=L, advantage=turned)).found


def test_groups_of_one_text_are_no_copies():
    """A policy that has collapsed gives one text to each prompt; in some groups one response of four differs."""
    i = np.arange(400)
    S = 0.1 + i // 4 / 977
    for numbers in (S, np.where(i % 24 == 0, 1.0 + i, S)):
        assert not find_copies(0 * i, 0 * i, i // 4, i, np.full(400, 60), numbers).again.any()
