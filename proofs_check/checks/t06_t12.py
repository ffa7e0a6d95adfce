"""Check T6, the mean of S given the length, and T12 (a), how far a length can move in one rollout."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import mpmath as mp
import numpy as np

from fspo import theory
from fspo.rules import preset
from proofs_check.frame import Check, Method, Outcome
from proofs_check.tools.compare import close, holds, worst
from proofs_check.tools.policy import make_bandit


def length_drift(rng: np.random.Generator, shift: bool = True) -> Outcome:
    """Check T6 (a) over all responses of policies whose lengths shift; a control leaves the shift of lengths out."""
    outcomes = []
    for _ in range(10):
        bandit = make_bandit(rng, step=0.6)
        old, new = bandit.p_old, bandit.p_new
        for length in np.unique(bandit.lengths):
            at = bandit.lengths == length
            p, q = old[at].sum(), new[at].sum()
            kl = max(float(old[at] @ np.log(old[at] / p / (new[at] / q)) / p), 0.0)
            stated = float(theory.drift_given_length(q / p if shift else 1.0, kl))
            outcomes.append(close(stated, float(old[at] @ bandit.log_ratio[at] / p), 1e-10))
    return worst(*outcomes)


def stopped_chain(rng: np.random.Generator, minus_kl: bool = False, allowed: float = 0.01) -> Outcome:
    """Check T6 (b) on a chain of two states that stops sooner under the new policy, by forward sums of the mass, first
    and second moment of S by state: the centre is within ``allowed`` standard deviations of the mean at 10 to 1,000
    tokens. A control takes -KL per token, of all responses, times the length.
    """
    del rng
    moves = np.array([[0.90, 0.10], [0.20, 0.80]]), np.array([[0.892, 0.108], [0.21, 0.79]])
    stops = np.array([0.004, 0.006]), np.array([0.020, 0.024])
    P, Q = (move * (1 - stop)[:, None] for move, stop in zip(moves, stops, strict=True))
    start, last, step = np.array([0.5, 0.5]), np.log(stops[1] / stops[0]), np.log(Q / P)
    visits = np.linalg.solve(np.eye(2) - P.T, start)
    k = float(visits @ (np.sum(P * -step, axis=1) - stops[0] * last) / visits.sum())
    mass, first, second, weight = start, np.zeros(2), np.zeros(2), start
    off = 0.0
    for length in range(1, 1_001):
        m0 = mass @ stops[0]
        mean = (first + mass * last) @ stops[0] / m0
        var = (second + 2 * first * last + mass * last**2) @ stops[0] / m0 - mean**2
        if length in (10, 100, 1_000):
            centre = -k * length if minus_kl else float(theory.fair_centre(weight @ stops[1] / m0, var))
            off = max(off, abs(centre - mean) / math.sqrt(var))
        second = second @ P + 2 * first @ (P * step) + mass @ (P * step**2)
        first = first @ P + mass @ (P * step)
        mass, weight = mass @ P, weight @ Q
    return Outcome(math.log10(allowed / off), "decades", note=f"centre off by at most {off:.2g} standard deviations")


def moved_lengths(rng: np.random.Generator, share: float = 1.0) -> Outcome:
    """Check T12 (a) over all responses of policies, with the narrowest sqrt band that holds all of them; a control
    takes the bounds of a band of ``share`` times its width. Margin: relative room in the bounds.
    """
    least = math.inf
    for _ in range(20):
        bandit = make_bandit(rng, step=0.05)
        scaled = bandit.log_ratio / np.sqrt(bandit.lengths)
        width = share * float(np.abs(scaled).max())
        rule = replace(preset("fspo").rule, range_lo=width, range_hi=width)
        lengths = np.unique(bandit.lengths)
        low, high = theory.length_shift_bounds(rule, lengths)
        at = bandit.lengths == lengths[:, None]
        ratio = np.log((at @ bandit.p_new) / (at @ bandit.p_old))
        least = min(least, float(np.min(1 + 1e-9 - np.abs(ratio) / np.where(ratio > 0, np.log(high), -np.log(low)))))
    return Outcome(least, "1 - |log ratio|/edge")


def stated_numbers(rng: np.random.Generator, exponent: float = 0.5) -> Outcome:
    """Check the numbers beside T12 with 30 digits, through the preset's band; a control takes another exponent."""
    del rng
    lengths = [256, 4_096, 16_384]
    with mp.workdps(30):
        exact = [float(mp.exp(mp.mpf(3) / 100 * mp.mpf(n) ** exponent)) for n in lengths]
    _, high = theory.length_shift_bounds(preset("fspo").rule, lengths)
    rounded = np.abs(high - [1.6, 6.8, 47.0]) - [0.05, 0.05, 0.5]
    agree = worst(*(close(float(a), b, 1e-12) for a, b in zip(high, exact, strict=True)))
    return worst(agree, holds(-rounded, "half a digit"))


CHECKS = (
    Check(
        "T6",
        Method.ENUMERATED,
        "mean of S at each length: shift of lengths less KL",
        length_drift,
        {"the shift of lengths left out": partial(length_drift, shift=False)},
    ),
    Check(
        "T6",
        Method.CLOSED,
        "a chain that stops: log mean weight less half the variance is the mean of S",
        stopped_chain,
        {"-KL per token times the length": partial(stopped_chain, minus_kl=True)},
    ),
    Check(
        "T12",
        Method.ENUMERATED,
        "all S within a band: the ratio of each length's probabilities lies between its edges' exponentials",
        moved_lengths,
        {"a quarter of the band": partial(moved_lengths, share=0.25)},
    ),
    Check(
        "T12",
        Method.CLOSED,
        "the default range: 1.6, 6.8 and 47 times at 256, 4,096 and 16,384 tokens",
        stated_numbers,
        {"exponent .51": partial(stated_numbers, exponent=0.51)},
    ),
)
