"""Ranges matched to a mean acceptance that is known in closed form (logs are matched by ``fspo.rules.calibrate``)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from scipy.optimize import brentq

from fspo.rules import Rule, scaled

_WIDEST = 30.0  # log of the largest factor tried either way


def matched(rule: Rule, mean_acceptance: Callable[[Rule], float], target: float) -> Rule | None:
    """The rule with its range scaled until its mean acceptance, which rises with the range, is ``target``.

    Parameters
    ----------
    mean_acceptance : function of a Rule
        Acceptance in [0, 1], continuous in the range.

    Returns
    -------
    Rule, or None where no range gives the target.

    Raises
    ------
    UserError
        If an eps cannot express a range as wide as the target needs.
    """

    def excess(log_factor: float) -> float:
        return mean_acceptance(scaled(rule, math.exp(log_factor))) - target

    low = high = 0.0
    # outwards in steps, because a far wider range than is needed may be more than an eps can express
    while excess(low) > 0 and low > -_WIDEST:
        low -= 1.0
    while excess(high) < 0 and high < _WIDEST:
        high += 1.0
    if excess(low) > 0 or excess(high) < 0:
        return None
    root: Any = brentq(excess, low, high, xtol=1e-12)
    return scaled(rule, math.exp(root))
