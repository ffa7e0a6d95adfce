"""Set ranges to a mean acceptance that a formula gives. (For logs, ``fspo.rules.calibrate`` does this.)"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from scipy.optimize import brentq

from fspo.rules import Rule, scaled

_WIDEST = 30.0  # log of the largest factor tried in each direction


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
        If the target needs a range that is wider than an eps can express.
    """

    def excess(log_factor: float) -> float:
        return mean_acceptance(scaled(rule, math.exp(log_factor))) - target

    low = high = 0.0
    # Widen in steps: a range far wider than needed may be more than an eps can express.
    while excess(low) > 0 and low > -_WIDEST:
        low -= 1.0
    while excess(high) < 0 and high < _WIDEST:
        high += 1.0
    if excess(low) > 0 or excess(high) < 0:
        return None
    root: Any = brentq(excess, low, high, xtol=1e-12)
    return scaled(rule, math.exp(root))
