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
)
from proofs_check.tools.compare import frequencies
from proofs_check.tools.sampling import acceptance_counts
from proofs_check.tools.settings import GRID, MU, SIGMA


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
