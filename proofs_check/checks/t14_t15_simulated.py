"""Check T14 and T15 by simulation under every log-ratio model: do bands that learn their range or exponent accept all
lengths alike?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from scipy import stats

from fspo.rules import Rule
from fspo.rules.online import EACH_ROLLOUT, MEMORY, OnlineRule
from fspo.theory import Floats, relative_acceptance
from proofs_check.frame import Check, Method, Outcome
from proofs_check.models import matching_means
from proofs_check.tools.compare import bonferroni, mean_is, together
from proofs_check.tools.online_runs import (
    FAIR,
    LENGTHS,
    MODELS,
    POWER,
    RULES,
    RUNS,
    TIES,
    Learnt,
    learnt,
    survey,
    template,
    text_table,
)
from proofs_check.tools.settings import TARGET

TOLERANCE = 0.01
"""Largest |acceptance at a length over the mean acceptance, less 1| that counts as fair. It is not 0, because the band
of a rule that goes on learning is never quite the fair one.
"""
BINS: Floats = np.unique(np.floor(np.log2(LENGTHS)))
UPDATES, ROWS = 8, 48
"""Number of updates of a rollout, and of rows of an update, in the check `random_update`."""
PAST = MEMORY // EACH_ROLLOUT
"""Number of rollouts after which the conformal rule's memory is full."""


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


def at_least(samples: Floats, expected: Floats, wanted: float) -> Outcome:
    """Test that the mean of each column of ``samples`` (N, K) is at least its entry of ``expected``, by one-sided
    t-tests, Bonferroni-corrected over columns.
    """
    error = samples.std(axis=0, ddof=1) / math.sqrt(len(samples))
    tails = stats.t.cdf((samples.mean(axis=0) - expected) / error, len(samples) - 1)
    resolution = 4 * float(error.max()) / float(np.linalg.norm(expected))
    return Outcome(p_value=bonferroni(tails), resolution=resolution, wanted=wanted)


def one_model(
    rng: np.random.Generator, rule: str, model: str, claim: Callable[[Learnt], Outcome], runs: int = RUNS
) -> Outcome:
    """Let one rule learn its band from simulated responses of one log-ratio model in ``runs`` runs, and return the
    outcome of ``claim``, a function that tests what T14 or T15 says about such a band.
    """
    return claim(learnt(rng, MODELS[model], [template(rule)], runs)[0])


def surveyed(rng: np.random.Generator, models: Sequence[str], claim: Callable[[Learnt], Outcome]) -> Outcome:
    """Test what T14 says (``claim``) about fspo-adaptive under each of ``models`` (log-ratio models), and that
    fspo-auto's mean acceptance is the target. The report's details list the LRE of every rule under these models, also
    of rules about which T14 says nothing.
    """
    found = dict(survey(rng, models={name: MODELS[name] for name in models}))
    claims = [
        outcome for one in found.values() for outcome in (claim(one["fspo-adaptive"]), at_target(one["fspo-auto"]))
    ]
    worst = {rule: max(math.sqrt(max(float(one[rule].squares.mean()), 0)) for one in found.values()) for rule in RULES}
    note = "largest LRE_2 of one update's band: " + ", ".join(f"{rule} {value:.3f}" for rule, value in worst.items())
    return together(claims, note, text_table(found))


def conformal_bins(
    rng: np.random.Generator, models: Sequence[str] = tuple(MODELS), rule: str = "fspo-conformal", runs: int = 40
) -> Outcome:
    """Check T15 (conformal bands): after n past responses of each bin of lengths, new responses of each bin are
    accepted with probability k/(n+1), k = ceil((n+1) target), or with at least that probability if S has ties. n is the
    number of responses of a bin that the rule remembers. A ``rule`` without bins (a control) learns from the same
    responses.
    """
    k, outcomes, gaps = math.ceil((MEMORY + 1) * TARGET), [], []
    for name in models:
        model, accepted = MODELS[name], np.empty((runs, BINS.size))
        means = matching_means(model)
        for run in range(runs):
            online = OnlineRule(template(rule))
            for _ in range(PAST):
                n = np.concatenate([rng.choice(LENGTHS[np.floor(np.log2(LENGTHS)) == b], EACH_ROLLOUT) for b in BINS])
                online.observe(model.sample(rng, n), n, np.ones_like(n), online.template.centre(means))
                online.end_rollout()
            n = np.tile(LENGTHS, 48)
            kept = online.rule.apply(model.sample(rng, n), n, np.ones_like(n), online.rule.centre(means)).in_band
            accepted[run] = kept.reshape(48, BINS.size, 2).mean(axis=(0, 2))
        promised = k / (MEMORY + 1)
        outcomes.append((at_least if name in TIES else mean_is)(accepted, np.full(BINS.size, promised), wanted=0.03))
        gaps.append(float(np.abs(accepted.mean(axis=0) - promised).max()))
    return together(outcomes, f"largest gap of a bin {max(gaps):.4f} over {len(models)} models")


def random_update(rng: np.random.Generator, learnt: int = UPDATES * ROWS, runs: int = 60) -> Outcome:
    """Check T15 where S spreads more at each of the eight updates of a rollout: the mean acceptance over all updates of
    a new rollout is k/(n+1), with n the number of past responses that the rule remembers and k = ceil((n+1) target).

    The rule remembers fewer rows than a rollout has, so it must choose them from all its updates. A control sets
    ``learnt``, the number of rows that the rule is shown, lower: it then sees only the first rows of a rollout.
    """
    accepted = np.empty((runs, 1))
    lengths, scale = np.full(UPDATES * ROWS, 64.0), np.sqrt(np.repeat(np.arange(UPDATES) + 1.0, ROWS))
    for run in range(runs):
        online = OnlineRule(Rule("sqrt", 0.03, 0.03, adapt="bins", target=TARGET))
        kept = []
        for rollout in range(PAST + 4):
            S = 0.02 * scale * np.sqrt(lengths) * rng.standard_normal(lengths.size)
            if rollout < PAST:
                online.observe(S[:learnt], lengths[:learnt], np.ones(learnt))
                online.end_rollout()
            else:
                kept.append(online.rule.apply(S, lengths, np.ones_like(S)).in_band.mean())
        accepted[run] = np.mean(kept)
    promised = math.ceil((MEMORY + 1) * TARGET) / (MEMORY + 1)
    return mean_is(accepted, [promised], wanted=0.03, runs=runs)


OTHERS = tuple(name for name in MODELS if name not in (*FAIR, *POWER))

CHECKS = (
    Check(
        "T14",
        Method.SIMULATED,
        "exponent: every length alike where one law scales with a power of L",
        partial(surveyed, models=(*FAIR, *POWER), claim=unfairness),
        {
            "plain FSPO, scale grows like l^.15": partial(
                one_model, rule="fspo", model="heteroscedastic", claim=unfairness
            ),
            "plain FSPO, fractional noise": partial(one_model, rule="fspo", model="fractional", claim=unfairness),
            "no power of L: Markov": partial(
                one_model, rule="fspo-adaptive", model="markov", claim=unfairness, runs=4 * RUNS
            ),
            "no power of L: AR(1)": partial(one_model, rule="fspo-adaptive", model="ar1", claim=unfairness),
        },
    ),
    Check(
        "T14",
        Method.SIMULATED,
        "exponent: no trend with log L is left where no power of L fits",
        partial(surveyed, models=OTHERS, claim=untrended),
        {
            "range alone, Markov": partial(one_model, rule="fspo-auto", model="markov", claim=untrended),
            "range alone, drift by the sign of A": partial(
                one_model, rule="fspo-auto", model="advantage-drift", claim=untrended
            ),
            "a trend of .02, Markov": partial(
                one_model, rule="fspo-adaptive", model="markov", claim=partial(untrended, trend=0.02)
            ),
            "range alone, another target by .02": partial(
                one_model, rule="fspo-auto", model="gaussian", claim=partial(at_target, target=TARGET + 0.02)
            ),
        },
    ),
    Check(
        "T15",
        Method.SIMULATED,
        "each bin at k/(n+1) under every log-ratio model",
        conformal_bins,
        {
            "learnt exponent, Markov": partial(conformal_bins, models=("markov",), rule="fspo-adaptive"),
            "learnt exponent, AR(1)": partial(conformal_bins, models=("ar1",), rule="fspo-adaptive"),
            "one range, scale grows like l^.15": partial(conformal_bins, models=("heteroscedastic",), rule="fspo-auto"),
        },
    ),
    Check(
        "T15",
        Method.SIMULATED,
        "a row of a random update at k/(n+1) although S grows over a rollout",
        random_update,
        {"the first rows of a rollout alone": partial(random_update, learnt=EACH_ROLLOUT)},
    ),
)
