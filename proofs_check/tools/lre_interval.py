"""Estimate LRE from independent draws of the acceptance at each length, with simultaneous intervals (docs/theory.md
section 3).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fspo.stats.intervals import CONFIDENCE, t_quantile
from fspo.theory import Floats, lre, relative_acceptance


def simulated_lre(p: Floats, kept: Floats, weight: Floats) -> dict[str, Any]:
    """Estimate LRE over K lengths from N independent draws, with simultaneous intervals. A draw gives a weight at each
    length and the part of it that a rule accepts. The acceptance at a length is the mean of the accepted parts over the
    draws, divided by the mean of the weights.

    Let r be the acceptance at a length over the mean acceptance, less 1. Each length has Student's interval of r, by
    the delta method; Sidak's correction for K lengths makes the K intervals hold together. The intervals of LRE_inf and
    LRE_2 are computed from these K intervals, so those two hold together with at least the stated confidence.

    Parameters
    ----------
    p : array (K,)
        Shares of the lengths.
    kept, weight : arrays (N, K)
        ``weight``: each draw's weight at each length, 1 if responses are counted. ``kept``: the part of that weight
        that the rule accepts. Rows are independent; the entries of a row need not be.
    """
    n, k = kept.shape
    mean_weight = weight.mean(axis=0)
    a = kept.mean(axis=0) / mean_weight
    _, r, mean = relative_acceptance(p, a)
    influence = (kept - a * weight) / mean_weight
    influence = (influence - (1 + r) * (influence @ p)[:, None]) / mean
    error = t_quantile(n - 1, CONFIDENCE ** (1 / k)) * influence.std(axis=0, ddof=1) / math.sqrt(n)
    low, high = np.maximum(np.abs(r) - error, 0.0), np.abs(r) + error
    found = lre(p, a)
    return {
        "acceptance": found.mean_acceptance,
        "lre_inf": found.inf,
        "lre_2": found.l2,
        "lre_inf_low": float(low.max()),
        "lre_inf_high": float(high.max()),
        "lre_2_low": math.sqrt(p @ low**2),
        "lre_2_high": math.sqrt(p @ high**2),
        "method": "simulated",
    }
