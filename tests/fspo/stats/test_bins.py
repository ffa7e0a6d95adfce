"""Length bins against hand-made cases and properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fspo.base.errors import UserError
from fspo.stats.bins import Bins, make_bins, quantile_bins


def test_edges_are_inclusive_below_and_exclusive_above():
    bins = Bins((1, 4, 10))
    assert bins.index([1, 3, 4, 9, 10, 500, 0]).tolist() == [0, 0, 1, 1, 1, 1, 0]
    assert bins.limits(0) == (1, 4)
    assert bins.limits(-1) == (1, 10)


def test_quantile_bins_by_hand():
    assert quantile_bins(np.arange(1, 13), 3).edges == (1, 5, 9, 13)
    assert quantile_bins([5] * 99 + [9], 6).edges == (5, 10)  # ties make fewer bins
    # numbers that are not whole: the last bin ends just above the greatest of them
    assert quantile_bins([1.2, 2.3, 3.4, 4.4], 2).edges == (1.2, 3.4, np.nextafter(4.4, 5))


def test_a_crowded_length_leaves_the_others_to_the_rest():
    # 1 response of length 4, 60 of length 8, 39 spread out: no bin of one response
    lengths = [4] + [8] * 60 + list(range(10, 49))
    bins = quantile_bins(lengths, 4)
    assert np.bincount(bins.index(lengths)).tolist() == [61, 13, 13, 13]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=200), st.integers(1, 10))
def test_every_bin_holds_a_length_and_covers_it(lengths, number):
    bins = quantile_bins(lengths, number)
    index = bins.index(lengths)
    assert set(index.tolist()) == set(range(len(bins)))
    edges = np.array(bins.edges)
    assert np.all((edges[index] <= lengths) & (np.array(lengths) < edges[index + 1]))


@pytest.mark.parametrize(
    ("edges", "says"),
    [
        ((3,), "at least two"),
        ((5, 5), "increase strictly"),
        ((1, 5), "they reach from 5 to 6"),
        ((7, 9), "they reach from 5 to 6"),
        (range(1002), "1001 bins are too many: give at most 1001 edges"),
        ((1, np.inf), "must be finite"),
    ],
)
def test_bad_edges_are_refused(edges, says):
    with pytest.raises(UserError, match=says):
        make_bins([5, 6], edges=edges)
    assert len(Bins(tuple(range(1001)))) == 1000


def test_many_different_values_have_quantiles_as_edges():
    """24,000 values one apart, in three bins: 8,000 values each; the last edge excludes nothing."""
    values = np.arange(24_000) / 10 + 0.05
    edges = quantile_bins(values, 3).edges
    assert edges[0] == values[0]
    assert values[-1] < edges[3] < values[-1] + 1e-9
    assert np.bincount(Bins(edges).index(values)).tolist() == [8000, 8000, 8000]
    assert quantile_bins(np.arange(24_000), 3).edges == (0, 7999, 15_999, 24_000)  # (24,000 - 1) k / 3, rounded down
