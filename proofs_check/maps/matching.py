"""Scale a rule's range until its mean acceptance, given by a formula, is the target.

``fspo.rules.calibrate`` does the same for the acceptance of logged responses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from scipy.optimize import brentq

from fspo.rules import Rule, scaled

_WIDEST = 30.0  # log of the largest factor by which the search widens or narrows the range


def matched(rule: Rule, mean_acceptance: Callable[[Rule], float], target: float) -> Rule | None:
    """Return the rule with its range scaled so that its mean acceptance, which rises with the range, is ``target``.

    Parameters
    ----------
    mean_acceptance : function of a Rule
        Returns the mean acceptance, in [0, 1] and continuous in the range.

    Returns
    -------
    Rule, or None where no range gives the target.

    Raises
    ------
    UserError
        If the range is an ``eps`` (the edges are log(1 - eps) and log(1 + eps)) and no eps gives a band wide enough for
        the target.
    """

    def excess(log_factor: float) -> float:
        return mean_acceptance(scaled(rule, math.exp(log_factor))) - target

    low = high = 0.0
    # Widen or narrow the range by steps of a factor e until it brackets the target. If the range is an ``eps``, one
    # large step could make 1 + eps overflow.
    while excess(low) > 0 and low > -_WIDEST:
        low -= 1.0
    while excess(high) < 0 and high < _WIDEST:
        high += 1.0
    if excess(low) > 0 or excess(high) < 0:
        return None
    root: Any = brentq(excess, low, high, xtol=1e-12)
    return scaled(rule, math.exp(root))
