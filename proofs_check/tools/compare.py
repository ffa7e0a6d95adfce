"""Compare two computations of one quantity: as a check's outcome, or as the test of a statement that can be made false
by a number x (`frame.Test`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from proofs_check.frame import Outcome, Parts, Test, worst

TINY = 1e-300


def close(value: ArrayLike, exact: ArrayLike, tolerance: float, note: str = "") -> Outcome:
    """Return the outcome of comparing values with exact ones, entry by entry. The margin is log10 of ``tolerance``, the
    largest relative error that passes, over the largest relative error found."""
    value, exact = np.asarray(value, np.float64), np.asarray(exact, np.float64)
    error = float(np.max(np.abs(value - exact) / np.maximum(np.abs(exact), TINY)))
    if math.isnan(error):
        return Outcome(math.nan, "decades of error", note="a compared value is NaN")
    margin = math.log10(tolerance / max(error, 1e-17))
    return Outcome(margin, "decades of error", note=note or f"max relative error {error:.1e}")


def holds(slack: ArrayLike, unit: str, rounding: float = 0.0, note: str = "") -> Outcome:
    """Return the outcome of a check of an inequality, given its slack (larger side less smaller side) at several
    points. The margin is the least slack plus ``rounding``, an allowance; ``unit`` is that of the slack."""
    return Outcome(float(np.min(slack)) + rounding, unit, note=note)


def frequencies(counts: ArrayLike, trials: ArrayLike, expected: ArrayLike) -> Outcome:
    """Return the outcome of binomial tests of counts (K,) of events among trials (K,) against stated probabilities
    (K,). Its p-value, with Bonferroni's correction, is NaN where a number is NaN, and 0 where a stated probability lies
    outside [0, 1] by more than rounding: that is false whatever the counts are."""
    from scipy.stats import binom

    counts, trials, expected = (np.asarray(x, np.float64) for x in np.broadcast_arrays(counts, trials, expected))
    inside = np.clip(expected, 0, 1)
    tails = np.minimum(binom.cdf(counts, trials, inside), binom.sf(counts - 1, trials, inside))
    p_value = bonferroni(2 * tails)
    if np.any(np.abs(expected - inside) > 1e-12):
        p_value = 0.0
    gap = float(np.max(np.abs(counts / trials - expected)))
    return Outcome(p_value=p_value, note=f"largest gap {gap:.4f} over {counts.size} frequencies")


def within(counts: ArrayLike, trials: int, low: ArrayLike, high: ArrayLike) -> Outcome:
    """Return the outcome of a test that each of K events, with ``counts`` (K,) among ``trials``, has a probability
    between ``low`` and ``high``: binomial tests against both ends, Bonferroni-corrected."""
    from scipy.stats import binom

    k, low, high = np.broadcast_arrays(np.asarray(counts, np.float64), np.clip(low, 0, 1), np.clip(high, 0, 1))
    tails = np.concatenate([binom.cdf(k, trials, low), binom.sf(k - 1, trials, high)])
    share = k / trials
    room = float(np.min(np.minimum(share - low, high - share)))
    return Outcome(p_value=bonferroni(tails), note=f"least room {room:+.4f} over {k.size} frequencies")


def bonferroni(p_values: ArrayLike) -> float:
    """Return the least of several p-values, multiplied by their number; NaN if one of them is NaN."""
    p_values = np.asarray(p_values, np.float64)
    return float(np.minimum(1.0, p_values.size * np.min(p_values)))


def homogeneous(counts: ArrayLike, trials: ArrayLike, pattern: ArrayLike = 1.0) -> Outcome:
    """Return the outcome of Pearson's chi-square test that the probabilities of K events are proportional to
    ``pattern`` (K,), whatever they are. Event k happened ``counts[k]`` times in ``trials[k]`` draws."""
    from scipy.stats import chi2

    counts, trials = (np.asarray(x, np.float64) for x in np.broadcast_arrays(counts, trials))
    observed = counts / trials
    if counts.sum() in (0, trials.sum()):
        return Outcome(p_value=math.nan, note="all or none accepted")
    shape = np.asarray(pattern, np.float64)
    pooled = counts.sum() / np.sum(trials * shape) * shape
    if np.max(pooled) > 1:
        return Outcome(p_value=0.0, note="the pattern asks for a probability above 1")
    statistic = float(np.sum((counts - pooled * trials) ** 2 / (pooled * (1 - pooled) * trials)))
    note = f"frequencies {observed.min():.4f} to {observed.max():.4f}"
    return Outcome(p_value=float(chi2.sf(statistic, counts.size - 1)), note=note)


def mean_is(samples: np.ndarray, expected: ArrayLike) -> Outcome:
    """Return the outcome of a test of the means of K columns of N independent rows (N, K) against stated values (K,),
    by Hotelling's T^2 with its F distribution."""
    from scipy.stats import f

    count, width = samples.shape
    gap = samples.mean(axis=0) - np.asarray(expected, np.float64)
    covariance = np.atleast_2d(np.cov(samples, rowvar=False)) / count
    statistic = float(gap @ np.linalg.solve(covariance, gap))
    p_value = float(f.sf(statistic * (count - width) / (width * (count - 1)), width, count - width))
    return Outcome(p_value=p_value, note=f"T^2 = {statistic:.1f} on {width} degrees of freedom")


def equal(stated: ArrayLike, exact: ArrayLike, tolerance: float, note: str = "") -> Test:
    """Test stated values against exact ones, to a relative ``tolerance``. Falsified by x, the test multiplies the
    stated ones by 1 + x."""
    stated = np.asarray(stated, np.float64)
    return lambda x: close(stated * (1 + x), exact, tolerance, note)


def at_most(values: ArrayLike, bounds: ArrayLike, rounding: float = 0.0, kind: ArrayLike = "") -> Parts:
    """Test that values are at most their bounds > 0, both (N,). Falsified by x, the test multiplies the bounds by 1 -
    x. The margin is the least 1 - value/bound plus the allowance ``rounding``. Values that have the same ``kind`` (N,)
    are one part of the test."""
    part, kinds = np.asarray(values, np.float64) / np.asarray(bounds, np.float64), np.asarray(kind)

    def test(part: np.ndarray) -> Test:
        note = f"largest value {float(np.max(part)):.9f} of its bound"
        return lambda x: holds(1 - part / max(1 - x, TINY), "part of the bound", rounding, note)

    return Parts(tuple(test(part[kinds == one]) for one in np.unique(kinds)))


def vectors(found: Sequence[ArrayLike], stated: Sequence[ArrayLike], tolerance: ArrayLike, unit: str) -> Test:
    """Test that each vector found is the stated one of the same place, up to the distance ``tolerance`` (one number, or
    one for each pair); ``unit`` names what is measured. Falsified by x, it multiplies the stated vectors by 1 + x."""
    pairs = [(np.atleast_1d(one), np.atleast_1d(other)) for one, other in zip(found, stated, strict=True)]

    def test(x: float) -> Outcome:
        return holds(np.asarray(tolerance) - [np.linalg.norm(a - (1 + x) * b) for a, b in pairs], unit)

    return test


def unbroken(breaks: Callable[..., bool], cases: Sequence[tuple[Any, ...]], of: str) -> Test:
    """Test that no case is a counterexample of a statement. ``breaks(x, *case)`` says in exact counts whether a case is
    one if the statement is made false by x. Minus their number is the margin; ``of`` names the cases in the note."""

    def test(x: float) -> Outcome:
        found = sum(breaks(x, *case) for case in cases)
        return Outcome(float(-found), "cases that break it", note=f"{found} of {len(cases)} {of} break it")

    return test


def shares(counts: ArrayLike, trials: ArrayLike, stated: ArrayLike) -> Test:
    """Test counts (K,) of events in trials against stated probabilities (K,) (`frequencies`). Falsified by x, the test
    multiplies the stated ones by 1 - x."""
    stated = np.asarray(stated, np.float64)
    return lambda x: frequencies(counts, trials, stated * (1 - x))


def alike(counts: ArrayLike, trials: ArrayLike) -> Test:
    """Test that K events, with ``counts`` (K,) among ``trials``, have the same probability (`homogeneous`). Falsified
    by x, the test states probabilities that fall evenly, for the last event to 1 - x times that of the first."""
    return lambda x: homogeneous(counts, trials, pattern=np.linspace(1, 1 - x, np.size(counts)))


def means(samples: np.ndarray, stated: ArrayLike) -> Test:
    """Test the means of K columns of ``samples`` (N, K) against stated ones (K,). Falsified by x, the test multiplies
    the stated ones by 1 + x."""
    stated = np.asarray(stated, np.float64)
    return lambda x: mean_is(samples, stated * (1 + x))


def all_of(*tests: Test) -> Parts:
    """Return one test of several parts: its outcome is the worst margin or the least p-value times their number."""
    return Parts(tuple(part for one in tests for part in (one.tests if isinstance(one, Parts) else (one,))))


def beside(test: Test, *fixed: Outcome) -> Parts:
    """Return a test of the parts of ``test`` and of ``fixed``: outcomes that have no x and must hold too."""
    first, *rest = all_of(test).tests
    return Parts((lambda x: worst(first(x), *fixed), *rest))
