"""Bounds on the change of acceptance if an assumption fails.

They cover errors of drift and scale (T3), tails that are not Gaussian and dependent tokens (T4)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from fspo.base.errors import UserError
from fspo.base.number_checks import checked_lengths, number, numbers
from fspo.theory.acceptance import interval_probability
from fspo.theory.reweighting import Floats

PHI_1 = math.exp(-0.5) / math.sqrt(2 * math.pi)
"""phi(1), phi the standard normal density, is the supremum of |t phi(t)|: the constant in T3's bounds."""
BERRY_ESSEEN_IID = 0.4748
"""Berry-Esseen constant for independent, identically distributed summands, by Shevtsova (2011) (T4)."""


def drift_error_bound(u_lo: float, u_hi: float, x: ArrayLike) -> Floats:
    """Return a bound (K,) on the change of the acceptance at each length if the centre of a sqrt band is wrong (T3).

    ``u_lo`` and ``u_hi`` are the half-widths and ``x`` (K,) the errors of the centre, in standard deviations of S."""
    u_lo, u_hi = (number(name, u, 0, infinite=True) for name, u in (("u_lo", u_lo), ("u_hi", u_hi)))
    x = numbers("x", x, why="drift errors in standard units")
    slope = abs(_phi(u_hi) - _phi(u_lo))
    return slope * np.abs(x) + PHI_1 * x**2


def scale_error_bound(tau: float) -> float:
    """Return the bound 2 phi(1) tau on the change of a sqrt band's acceptance if the spread of S is wrong (T3); phi is
    the standard normal density.

    At length l the spread is sigma_l sqrt(l), taken as sigma sqrt(l), with |log(sigma_l/sigma)| <= tau."""
    return 2 * PHI_1 * number("tau", tau, 0, why="it is the largest |log(sigma_l / sigma)|")


def lre_bound(bound: float, a_0: float, *, one_sided: bool) -> float | None:
    """Return a bound on LRE_inf if the acceptance at every length is within B (``bound``) of a constant a_0.

    It is B/(a_0 - B) if the errors of the band's centre, or of the spread of S, have one sign at all lengths
    (``one_sided``), else 2B/(a_0 - B); None if B >= a_0 (docs/theory.md T3)."""
    bound = number("B", bound, 0, infinite=True, why="it bounds |a(l) - a_0|")
    a_0 = number("a_0", a_0, 0, 1, above=True, why="an acceptance")
    if bound >= a_0:
        return None
    return (1 if one_sided else 2) * bound / (a_0 - bound)


def worst_lre(
    u_lo: float, u_hi: float, drift: tuple[float, float] = (0.0, 0.0), scale: tuple[float, float] = (1.0, 1.0)
) -> float:
    """Return the supremum of LRE_inf of a sqrt band, over all lengths' errors in the given ranges and all their shares.

    It is the largest acceptance over the least, less 1 (docs/theory.md T3, section 3). A length whose S has its mean
    off the band's centre by x and its spread off by the factor s is accepted with F(x, s) = Phi((u_hi + x)/s) - Phi((x
    - u_lo)/s), Phi the normal distribution function. In x this rises to x* = (u_lo - u_hi)/2 and falls after it; in s
    it falls if |x - x*| is at most h = (u_lo + u_hi)/2, else it rises and then falls. So the least value is at a corner
    of the rectangle; the largest is at the x nearest to x*, and there at the least s if |x - x*| <= h, else at the s
    nearest to the root of its derivative.

    Parameters
    ----------
    u_lo, u_hi : float, >= 0, not both 0
        Half-widths of the band in nominal standard deviations of S.
    drift : two floats
        Least and largest error of the centre (centre less mean of S), in nominal standard deviations of S.
    scale : two floats, > 0
        Least and largest standard deviation of S, over the nominal one.

    Returns
    -------
    float
        Infinite if the least acceptance is below the range of float64.

    Raises
    ------
    UserError
        If the band has no width, or a range is empty."""
    u_lo, u_hi = number("u_lo", u_lo, 0), number("u_hi", u_hi, 0)
    x = numbers("drift", drift, why="least and largest drift error")
    s = numbers("scale", scale, 0, above=True, why="least and largest spread over the nominal one")
    if x.shape != (2,) or s.shape != (2,) or x[0] > x[1] or s[0] > s[1]:
        raise UserError("drift and scale need two numbers each, the least and the largest")
    half = (u_lo + u_hi) / 2
    if not half > 0:
        raise UserError("u_lo = u_hi = 0: the band has no width")

    def acceptance(off: ArrayLike, spread: ArrayLike) -> Floats:
        off, spread = np.asarray(off, np.float64), np.asarray(spread, np.float64)
        return interval_probability((off - half) / spread, (off + half) / spread)

    off = x - (u_lo - u_hi) / 2
    nearest = float(np.clip(0.0, off[0], off[1]))
    best = s[0]
    if abs(nearest) > half:
        away = abs(nearest)
        best = np.clip(math.sqrt(2 * half * away / math.log((away + half) / (away - half))), s[0], s[1])
    least = float(np.min(acceptance(off[:, None], s)))
    return float(acceptance(nearest, best)) / least - 1 if least > 0 else math.inf


def berry_esseen_bound(rho3: float, lengths: ArrayLike) -> Floats:
    """Return a bound (K,), at each of K lengths, on how far the acceptance is from the Gaussian model's if token
    log-ratios are independent and have one distribution.

    ``rho3`` is the third absolute standardised moment of a token log-ratio s: E|s-mu|^3/sigma^3, at least 1 (T4)."""
    rho3 = number("rho3", rho3, 1, why="E|s-mu|^3/sigma^3 is at least 1 (Jensen); check the moments")
    return 2 * BERRY_ESSEEN_IID * rho3 / np.sqrt(checked_lengths(lengths))


def ar1_variance_ratio(ar: float, lengths: ArrayLike) -> Floats:
    """Return Var(S) / (l sigma^2) at each length l if token log-ratios are a stationary Gaussian AR(1) process (T4).

    ``ar`` is its coefficient and sigma^2 its long-run variance. Half the absolute logarithm of this ratio is the error
    of the spread, tau in `scale_error_bound`."""
    if not -1 < number("ar", ar) < 1:
        raise UserError(f"ar={ar} must lie in (-1, 1) for stationary tokens")
    lengths = checked_lengths(lengths)
    return 1 - 2 * ar * (1 - ar**lengths) / ((1 - ar) * (1 + ar) * lengths)


def _phi(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
