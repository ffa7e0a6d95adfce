"""Check T14 by simulation under every log-ratio model: do bands that learn their range or exponent accept all
lengths alike?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from scipy import stats

from fspo.theory import relative_acceptance
from proofs_check.frame import Check, Method, Outcome
from proofs_check.tools.compare import bonferroni, mean_is, together
from proofs_check.tools.online_runs import (
    FAIR,
    MODELS,
    POWER,
    RULES,
    RUNS,
    Learnt,
    learnt,
)
from proofs_check.tools.settings import TARGET

TOLERANCE = 0.01
"""Largest |acceptance at a length over the mean acceptance, less 1| that counts as fair. It is not 0, because the band
of a rule that goes on learning is never quite the fair one.
"""


def unfairness(found: Learnt) -> Outcome:
    """Test that a band that has learnt is fair: at every length, the ratio of its acceptance to the mean of the
    acceptances at all lengths differs from 1 by at most TOLERANCE.

    Each length has a one-sided t-test over independent runs; the p-values are Bonferroni-corrected over lengths.
    """
    count, k = found.accepted.shape
    _, r, mean = relative_acceptance(np.full(k, 1 / k), found.accepted.mean(axis=0))
    # A length's relative acceptance is its acceptance over the mean acceptance at all lengths. ``own`` holds, for each
    # run and length, the acceptance less the one that the run would have with the relative acceptance of all runs
    # together. Its spread over the runs gives the standard error.
    own = found.accepted - (1 + r) * found.accepted.mean(axis=1, keepdims=True)
    error = own.std(axis=0, ddof=1) / math.sqrt(count) / mean
    tails = stats.t.sf((np.abs(r) - TOLERANCE) / error, count - 1)
    return Outcome(p_value=bonferroni(tails), resolution=4 * float(error.max()), wanted=0.04)


def untrended(found: Learnt, trend: float = 0.0) -> Outcome:
    """Test two numbers of a band that has learnt: its mean acceptance is the target, and the covariance of acceptance
    and log length is ``trend`` (with 0, acceptance has no trend over lengths).
    """
    return mean_is(found.trend, [TARGET, trend], wanted=0.03)


def at_target(found: Learnt, target: float = TARGET) -> Outcome:
    """Test that a band that has learnt accepts, on the mean over all lengths, the share ``target`` of responses."""
    return mean_is(found.trend[:, :1], [target], wanted=0.03)


def one_model(
    rng: np.random.Generator, rule: str, model: str, claim: Callable[[Learnt], Outcome], runs: int = RUNS
) -> Outcome:
    """Let one rule learn its band from simulated responses of one log-ratio model in ``runs`` runs, and return the
    outcome of ``claim``, a function that tests what T14 says about such a band.
    """
    return claim(learnt(rng, MODELS[model], [RULES[rule]], runs)[0])


def each_model(rng: np.random.Generator, models: Sequence[str], claim: Callable[[Learnt], Outcome]) -> Outcome:
    """Test what T14 says (``claim``) about the learnt exponent under each of ``models`` (log-ratio models), and that
    the learnt range's mean acceptance is the target.
    """
    claims, gaps = [], []
    for name in models:
        by_range, by_exponent = learnt(rng, MODELS[name], [RULES["learnt range"], RULES["learnt exponent"]])
        claims += [claim(by_exponent), at_target(by_range)]
        a = by_exponent.accepted.mean(axis=0)
        gaps.append(f"{name} {np.abs(a / a.mean() - 1).max():.3f}")
    return together(claims, "LRE_inf with a learnt exponent: " + ", ".join(gaps))


OTHERS = tuple(name for name in MODELS if name not in (*FAIR, *POWER))

CHECKS = (
    Check(
        "T14",
        Method.SIMULATED,
        "exponent: every length alike where one law scales with a power of L",
        partial(each_model, models=(*FAIR, *POWER), claim=unfairness),
        {
            "plain FSPO, scale grows like l^.15": partial(
                one_model, rule="fspo", model="heteroscedastic", claim=unfairness
            ),
            "plain FSPO, fractional noise": partial(one_model, rule="fspo", model="fractional", claim=unfairness),
            "no power of L: Markov": partial(
                one_model, rule="learnt exponent", model="markov", claim=unfairness, runs=4 * RUNS
            ),
            "no power of L: AR(1)": partial(one_model, rule="learnt exponent", model="ar1", claim=unfairness),
        },
    ),
    Check(
        "T14",
        Method.SIMULATED,
        "exponent: no trend with log L is left where no power of L fits",
        partial(each_model, models=OTHERS, claim=untrended),
        {
            "range alone, Markov": partial(one_model, rule="learnt range", model="markov", claim=untrended),
            "range alone, drift by the sign of A": partial(
                one_model, rule="learnt range", model="advantage-drift", claim=untrended
            ),
            "a trend of .02, Markov": partial(
                one_model, rule="learnt exponent", model="markov", claim=partial(untrended, trend=0.02)
            ),
            "range alone, another target by .02": partial(
                one_model, rule="learnt range", model="gaussian", claim=partial(at_target, target=TARGET + 0.02)
            ),
        },
    ),
)
