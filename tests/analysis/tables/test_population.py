"""Pairs of different prompts against double loops, exact policies and planted truths."""

from dataclasses import fields

import numpy as np
import pytest
from scipy import stats as sps

from analysis.log.rows import Rows
from analysis.rules.evaluate import Case
from analysis.scores.products import UpdateGram
from analysis.scores.sketches import ScoredWindow
from analysis.tables.population import PopulationRow, PopulationTable
from analysis.tables.typed_rows import RunKey
from fspo.rules import Rule
from fspo.stats.bins import Bins
from fspo.stats.clusters import dense
from tests.analysis.rows import held, records

CUTS_1 = Case(Rule("fixed", 0.2, 0.2), "x", "given")
"""With A = 1 it keeps S = 0 and cuts S = 1."""


def rows_of(windows, case=CUTS_1, width=np.inf):
    """The rows of the table over all lengths, by rule and quantity."""
    table = PopulationTable(RunKey("", "", float("nan")), Bins((1, 400)), [case], width)
    for window in windows:
        table.add(window)
    return {(row["rule"], row["quantity"]): row for row in records(PopulationRow, table.rows()) if row["bin"] == -1}


def window(S, vectors, prompt, update=0):
    """A window of one update, A = 1 and L = 1 in each row."""
    n = len(S)
    values = {field.name: np.full(n, np.nan) for field in fields(Rows)}
    values |= {name: np.full(n, update) for name in ("rollout", "step")}
    values |= {name: np.ones(n) for name in ("A", "length", "coordinate")}
    rows = Rows(**values | {"S": S, "cluster": dense(prompt), "prompt": prompt})
    return ScoredWindow(update, "first", rows, held(vectors), np.zeros(n, int), np.zeros(n, int))


def data(seed=0, n=24, width=5, number=3, prompts=6):
    rng = np.random.default_rng(seed)
    cluster = rng.permutation(np.arange(n) % prompts)
    return rng.normal(size=(n, width)), rng.integers(0, number, n), cluster, rng.random((n, 2)), rng.random((n, 1))


def brute_between(vectors, cluster, a, b, at):
    pairs = [a[i] * b[j] * (vectors[i] @ vectors[j]) for i in at for j in at if cluster[i] != cluster[j]]
    return np.mean(pairs) if pairs else np.nan


def gram_of(vectors, bins, cluster, number):
    return UpdateGram(vectors @ vectors.T, bins, cluster, number)


def test_between_is_the_mean_over_pairs_of_different_prompts():
    vectors, bins, cluster, left, right = data()
    total, without = gram_of(vectors, bins, cluster, 3).between(left, right)
    for k, r in np.ndindex(4, 2):
        at = np.flatnonzero(bins == k) if k < 3 else np.arange(24)
        assert total[k, r] == pytest.approx(brute_between(vectors, cluster, left[:, r], right[:, 0], at))
        for c in range(6):
            expected = brute_between(vectors, cluster, left[:, r], right[:, 0], at[cluster[at] != c])
            assert without[c, k, r] == pytest.approx(expected, nan_ok=True)
    assert np.isnan(gram_of(vectors, bins, 0 * cluster, 3).between(left, right)[0]).all()  # a lone prompt has no pair


KEPT, CUT = np.array([1.0, 0.25, 0, 0]), np.array([0.4, 1.0, 0, 0])
"""Gradients of kept and of cut responses."""
EFFECT, NOISE = 0.3, 0.5
"""Their spread between prompts and between single responses."""
OFTEN = np.array([0.1, 0.5])  # a prompt's own share of cut responses, either with probability 1/2
PROMPTS, GROUP, UPDATES = 24, 2, 6


def truth():
    """T11 by hand: moments of a prompt's mean of M w A psi and of w A psi."""
    width, e, q = len(KEPT), np.e, OFTEN.mean()
    shared = width * EFFECT**2
    own = shared + width * NOISE**2
    clip, true = (1 - q) * KEPT, (1 - q) * KEPT + q * e * CUT

    def spread(square, pair, mean):
        return (square / GROUP + pair * (GROUP - 1) / GROUP - mean @ mean) / PROMPTS

    kept_square, cut_square = (1 - q) * (KEPT @ KEPT + own), q * e**2 * (CUT @ CUT + own)
    means = [(1 - s) * KEPT + s * e * CUT for s in OFTEN]
    pairs = np.mean([m @ m + shared * ((1 - s) + s * e) ** 2 for m, s in zip(means, OFTEN, strict=True)])
    clipped = spread(kept_square, np.mean((1 - OFTEN) ** 2) * (KEPT @ KEPT + shared), clip)
    unclipped = spread(kept_square + cut_square, pairs, true)
    bias, variance = float(np.sum((clip / (1 - q) - true) ** 2)), clipped / (1 - q) ** 2
    found = {"bias2_direction": bias, "variance_direction": variance, "mse_direction": bias + variance}
    return {name: value / unclipped for name, value in found.items()}


def drawn(rng):
    prompt = np.repeat(np.arange(PROMPTS), GROUP)
    for u in range(UPDATES):
        S = (rng.random(len(prompt)) < rng.choice(OFTEN, PROMPTS)[prompt]).astype(float)
        vectors = np.where(S[:, None] > 0, CUT, KEPT) + NOISE * rng.normal(size=(len(prompt), len(KEPT)))
        yield window(S, vectors + EFFECT * rng.normal(size=(PROMPTS, len(KEPT)))[prompt], prompt, u)


def test_errors_of_the_direction_have_intervals_of_the_right_width():
    """With a_bar held fixed in the jackknife, the variance's interval would be 1.2 to 2 times too wide."""
    rng, runs = np.random.default_rng(11), 100
    found = [rows_of(drawn(rng)) for _ in range(runs)]
    for name, value in truth().items():
        rows = (f["x", name] for f in found)
        estimate, low, high = np.array([[r[c] for c in ("estimate", "ci_low", "ci_high")] for r in rows]).T
        assert np.mean((low <= value) & (value <= high)) > 0.95 - 3 * np.sqrt(0.95 * 0.05 / runs), name
        # the mean interval is about as wide as one made of the estimates' own standard deviation
        assert 0.85 < np.mean(high - low) / 2 / (1.98 * estimate.std()) < 1.2, name
        assert abs(np.mean(estimate - value)) < 3 * estimate.std() / np.sqrt(runs), name


def test_an_update_of_which_nothing_is_left_has_no_direction():
    rng = np.random.default_rng(0)
    windows = [
        window((rng.random(24) < cut).astype(float), 1 + 0.1 * rng.normal(size=(24, 3)), np.arange(24) // 2, u)
        for u, cut in enumerate((0.2, 1.1))
    ]
    found = rows_of(windows)
    assert np.isnan(found["x", "mse_direction"]["estimate"])
    assert "nothing is accepted in 1 of 2 updates" in found["x", "mse_direction"]["reason"]
    assert np.isfinite(found["x", "mse"]["estimate"])


def test_the_sketch_is_in_the_interval_of_the_bias():
    windows = list(drawn(np.random.default_rng(3)))
    sketched, exact = (rows_of(windows, width=width)["x", "bias2"] for width in (50.0, np.inf))
    quantile = sps.t.ppf(0.975, UPDATES * PROMPTS - UPDATES)
    half = np.hypot((exact["ci_high"] - exact["estimate"]) / quantile, exact["estimate"] * np.sqrt(2 / 50 / UPDATES))
    assert sketched["ci_high"] - sketched["estimate"] == pytest.approx(quantile * half)


def test_too_little_data_is_said_and_not_a_number():
    vectors = np.random.default_rng(0).normal(size=(16, 50))
    found = rows_of([window(np.zeros(16), vectors, np.arange(16) // 2)])["none", "cosine"]
    assert np.isnan(found["estimate"])
    assert "squared norm" in found["reason"]
