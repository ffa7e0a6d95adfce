"""Check T5 on a simulated policy whose lengths shift, and T9 on one whose drift depends on the advantage."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from scipy import special

from fspo.rules import preset
from proofs_check.frame import Check, Method, Outcome
from proofs_check.models import (
    AdvantageDrift,
    ShiftedLengths,
)
from proofs_check.tools.compare import frequencies, mean_is
from proofs_check.tools.sampling import acceptance_counts
from proofs_check.tools.settings import GRID, MU, SIGMA

POLICY = ShiftedLengths(stop_old=0.02, stop_new=0.022)


def shifted_lengths(rng: np.random.Generator, claim: str = "ratio", draws: int = 200_000) -> Outcome:
    """Check T5 (mean importance weights): for a policy that stops sooner than before, the mean weight of drawn
    responses of length l is p_new(l)/p_old(l), the ratio of the probabilities of that length.
    """
    lengths = np.array([2.0, 20, 80, 200])
    n = np.broadcast_to(lengths, (draws, 4))
    weight = np.asarray(preset("none").rule.apply(POLICY.sample(rng, n), n, np.ones_like(n)).weight)
    old, new = POLICY.stop_old, POLICY.stop_new
    ratio = (1 - new) ** (lengths - 1) * new / ((1 - old) ** (lengths - 1) * old)
    # A control: the mean weight of Gaussian S with the policy's mean and variance. It is wrong, because it would need
    # lengths that do not shift.
    gaussian = np.exp(POLICY.mu * lengths + POLICY.sigma**2 * lengths / 2)
    expected = {"ratio": ratio, "one": np.ones(4), "gaussian": gaussian}[claim]
    return mean_is(weight, expected, wanted=0.02, draws=draws, lengths=lengths.tolist())


def weight_of_all(rng: np.random.Generator, new_lengths: bool = False, draws: int = 400_000) -> Outcome:
    """Check T5 (mean importance weights): the mean of e^S over all drawn responses of the old policy is 1, although the
    mean at a single length is not.
    """
    n = POLICY.sample_lengths(rng, draws, new=new_lengths)
    weight = np.asarray(preset("none").rule.apply(POLICY.sample(rng, n), n, np.ones_like(n)).weight)
    return mean_is(weight[:, None], np.ones(1), wanted=0.01, draws=draws)


def signed_drift(rng: np.random.Generator, claim: str = "exact", draws: int = 200_000) -> Outcome:
    """Check T9 (share not clipped, by the sign of A): if the mean of S is x standard deviations above the band's
    centre for A > 0 and as far below it for A < 0, the clipped share is pi Phi(x - u_hi) + (1 - pi) Phi(x - u_lo). Here
    pi is the share of A > 0, u_lo and u_hi the ranges in standard deviations of S, and Phi the normal distribution
    function.
    """
    model = AdvantageDrift(MU, SIGMA, pull=2e-4, positive=0.3, trend=0.4, l0=64.0)
    rule = preset("fspo-kl", range_lo=0.03, range_hi=0.04).rule
    found = acceptance_counts(model, rule, GRID, draws, int(rng.integers(1 << 62)), rate="update")
    x = (0.0 if claim == "independent" else model.pull) * np.sqrt(GRID) / SIGMA
    odds = model.positive / (1 - model.positive) * (1.0 if claim == "no trend" else (GRID / model.l0) ** model.trend)
    share, root = odds / (1 + odds), math.sqrt(2)
    high, low = (special.erfc((c / SIGMA - x) / root) / 2 for c in (rule.range_hi, rule.range_lo))
    return frequencies(found, draws, 1 - share * high - (1 - share) * low, wanted=0.005, pull=model.pull, draws=draws)


CHECKS = (
    Check(
        "T5",
        Method.SIMULATED,
        "a policy that stops sooner: E_old[exp S | L] = p_new/p_old",
        shifted_lengths,
        {
            "E_old[exp S | L] = 1": partial(shifted_lengths, claim="one"),
            "Gaussian model's mean weight": partial(shifted_lengths, claim="gaussian"),
        },
    ),
    Check(
        "T5",
        Method.SIMULATED,
        "a policy that stops sooner: E_old[exp S] = 1",
        weight_of_all,
        {"lengths of the new policy": partial(weight_of_all, new_lengths=True)},
    ),
    Check(
        "T9",
        Method.SIMULATED,
        "drift that follows the sign of A breaks fairness as stated",
        signed_drift,
        {
            "S independent of A": partial(signed_drift, claim="independent"),
            "share of A > 0 the same at every l": partial(signed_drift, claim="no trend"),
        },
    ),
)
