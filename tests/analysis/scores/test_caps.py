"""T11's cap and the alignment of bins, on draws of a known law and by hand."""

from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from analysis.scores.caps import CapSums
from analysis.scores.products import UpdateGram


def added(sums, vectors, bins, cluster, weight):
    sums.add(UpdateGram(vectors @ vectors.T, bins, cluster, sums.number), weight)


def drawn(direction, updates=150, n=96, noise=2.0, seed=1):
    """Updates of two bins with E[A psi] = (1, 0) and ``direction``, normal noise, and weights e^N(0, .3^2)."""
    rng, sums = np.random.default_rng(seed), CapSums(2)
    for _ in range(updates):
        bins, cluster = np.arange(n) % 2, np.arange(n) // 4
        vectors = np.where(bins[:, None] == 0, [1.0, 0.0], direction) + noise * rng.standard_normal((n, 2))
        added(sums, vectors, bins, cluster, np.exp(0.3 * rng.standard_normal(n)))
    return sums.estimates()


@pytest.mark.parametrize(("direction", "cosine"), [([2.0, 0.0], 1), ([0.0, 1.0], 0), ([-0.6, 0.8], -0.6)])
def test_alignment_is_the_cosine_of_the_expected_updates(direction, cosine):
    for value, low, high in drawn(direction)["alignment"]:
        assert value == pytest.approx(cosine, abs=0.06)
        assert low - 0.02 < cosine < high + 0.02


def test_the_cap_is_the_root_of_the_theory_for_the_law_that_was_drawn():
    """R = (1 + 2 2^2) / 1 and 48 responses a bin; the expectations are integrals over the normal law."""
    z = stats.norm.ppf((np.arange(200_000) + 0.5) / 200_000)
    w, noise, n = np.exp(0.3 * z), 9.0, 48

    def excess(cap: float) -> float:
        return float(n * np.mean(np.maximum(w - cap, 0)) - noise * cap + np.mean(np.minimum(w, cap)))

    root: Any = optimize.brentq(excess, 0.1, 20)
    for value, low, high in drawn([0.0, 1.0])["log_cap"]:
        assert value == pytest.approx(np.log(root), abs=0.03)
        assert low < np.log(root) < high
        assert high - low < 0.2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", range(5))
def test_a_bin_of_one_prompt_has_no_estimate(seed):
    """Its products across prompts are what rounding leaves, a little above or below 0, over no pairs."""
    rng, sums = np.random.default_rng(seed), CapSums(3)
    cluster = np.repeat(np.arange(6), 8)
    for _ in range(4):
        added(sums, rng.standard_normal((48, 5)) * 0.1 + 1 / 3, np.minimum(cluster, 2), cluster, np.ones(48))
    for found in sums.estimates().values():
        assert np.isnan(found[0]).all()
        assert np.isnan(found[1]).all()


def test_two_prompts_by_hand():
    """Means over pairs across the prompts: (1 + 1) 2 / 2 in bin 0, 2 + 1.75 in bin 1; between the bins the three pairs
    have the products 1 2, 1 2 and 2 1."""
    sums = CapSums(2)
    vectors = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [2.0, 0.0], [2.0, 1.75]])
    for _ in range(2):
        added(sums, vectors, np.array([0, 0, 1, 0, 1]), np.array([0, 0, 0, 1, 1]), np.ones(5))
    assert sums.estimates()["alignment"][0][0] == pytest.approx(2 / np.sqrt(2 * (2 + 1.75)))


def test_what_noise_may_have_made_is_not_shown():
    """No response has an expected update; the squared norms are as often above 0 as below."""
    found = [drawn([0.0, 0.0], updates=20, noise=3.0, seed=seed)["log_cap"][1][0] for seed in range(40)]
    assert sum(np.isfinite(found)) <= 4  # 1 of 40 is due to chance
