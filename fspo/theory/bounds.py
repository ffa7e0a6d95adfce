"""Bounds on the change of acceptance if an assumption fails.

They cover drift errors (T3), scale errors (T4), tails that are not Gaussian (T5) and dependent tokens (T6).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from fspo.base.arguments import checked_lengths, number, numbers
from fspo.base.errors import UserError
from fspo.theory.reweighting import Floats

PHI_1 = math.exp(-0.5) / math.sqrt(2 * math.pi)
"""phi(1), the supremum of |t phi(t)|: the constant in the bounds T3 and T4."""
BERRY_ESSEEN_IID = 0.4748
"""Berry-Esseen constant for independent, identically distributed summands, by Shevtsova (2011) (T5)."""
BERRY_ESSEEN_INDEPENDENT = 0.56
"""Berry-Esseen constant for independent summands with different distributions (T5)."""


def drift_error_bound(u_lo: float, u_hi: float, x: ArrayLike) -> Floats:
    """Return the bound B_l (K,) on |a(l) - a_0| for standardised ranges u and drift errors x_l (K,) (T3)."""
    u_lo, u_hi = (number(name, u, 0, infinite=True) for name, u in (("u_lo", u_lo), ("u_hi", u_hi)))
    x = numbers("x", x, why="drift errors in standard units")
    slope = abs(_phi(u_hi) - _phi(u_lo))
    return slope * np.abs(x) + PHI_1 * x**2


def scale_error_bound(tau: float) -> float:
    """Return B = 2 phi(1) tau, which bounds |a(l) - a_0| if every |log(sigma_l/sigma)| <= tau (T4)."""
    return 2 * PHI_1 * number("tau", tau, 0, why="it is the largest |log(sigma_l / sigma)|")


def lre_bound(bound: float, a_0: float, *, one_sided: bool) -> float | None:
    """Return the bound on LRE_inf that follows from |a(l) - a_0| <= B; None if there is none (B >= a_0).

    It is B/(a_0 - B) if all drift errors have one sign (T3), else 2B/(a_0 - B) (T3, T4).
    """
    bound = number("B", bound, 0, infinite=True, why="it bounds |a(l) - a_0|")
    a_0 = number("a_0", a_0, 0, 1, above=True, why="an acceptance")
    if bound >= a_0:
        return None
    return (1 if one_sided else 2) * bound / (a_0 - bound)


def berry_esseen_bound(rho3: float, lengths: ArrayLike, *, identical: bool = True) -> Floats:
    """Return the bound on |a(l) - a_Gauss(l)| for independent tokens with rho3 = E|s-mu|^3/sigma^3 >= 1 (T5)."""
    rho3 = number("rho3", rho3, 1, why="E|s-mu|^3/sigma^3 is at least 1 (Jensen); check the moments")
    constant = BERRY_ESSEEN_IID if identical else BERRY_ESSEEN_INDEPENDENT
    return 2 * constant * rho3 / np.sqrt(checked_lengths(lengths))


def ar1_variance_ratio(ar: float, lengths: ArrayLike) -> Floats:
    """Return Var S_l / (l sigma^2) for stationary Gaussian AR(1) tokens with long-run variance sigma^2 (T6).

    Half the absolute logarithm of this ratio is the scale error tau_l of T4.
    """
    if not -1 < number("ar", ar) < 1:
        raise UserError(f"ar={ar} must lie in (-1, 1) for stationary tokens")
    lengths = checked_lengths(lengths)
    return 1 - 2 * ar * (1 - ar**lengths) / ((1 - ar) * (1 + ar) * lengths)


def _phi(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
