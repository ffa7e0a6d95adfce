"""Truncated sampling by hand, and the chain of the four distributions against direct sampling rules."""

from __future__ import annotations

import numpy as np
import pytest

from proofs_check.tools.chain import make_chain, truncated
from proofs_check.tools.policy import next_symbol


@pytest.mark.parametrize(
    ("top_p", "top_k", "kept"),
    [
        (1.0, None, [1, 1, 1]),
        (0.81, None, [1, 1, 1]),
        (0.8, None, [1, 1, 0]),
        (0.51, None, [1, 1, 0]),
        (0.5, None, [1, 0, 0]),
        (1.0, 2, [1, 1, 0]),
        (0.5, 2, [1, 0, 0]),
    ],
)
def test_truncation_keeps_the_most_likely_symbols_up_to_top_p(top_p, top_k, kept):
    order = [1, 2, 0]  # probabilities .2, .5, .3
    theta = np.log([[[0.2, 0.5, 0.3]]])
    found = next_symbol(truncated(theta, top_p, top_k))[0, 0]
    expected = np.array([0.5, 0.3, 0.2]) * kept
    np.testing.assert_allclose(found[order], expected / expected.sum(), rtol=1e-14)


def test_the_parts_of_a_chain_add_up_to_new_less_draw():
    chain = make_chain(np.random.default_rng(0), top_p=0.8, temperature=0.9)
    on = chain.drawn
    assert 0 < on.sum() < on.size
    assert chain.p_draw.sum() == pytest.approx(1, abs=1e-12)
    total = np.log(chain.probability(chain.new)[on]) - np.log(chain.p_draw[on])
    np.testing.assert_allclose((chain.update + chain.staleness + chain.engine)[on], total, rtol=1e-9, atol=1e-12)
