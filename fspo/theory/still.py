"""Formulas of bands on responses of which, at each length, a part does not move (docs/theory.md T10).

A moving response has a log-ratio that the band may cut; a still response lies at the band's centre and is always
accepted. The share that moves may depend on the length. X is a response's excess: the factor on both half-widths of the
band at length 1 at which the response is just accepted. X/L^H of the moving responses has one law at all lengths L.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from fspo.base.errors import UserError
from fspo.base.number_checks import checked_lengths, number, numbers, one_shape
from fspo.theory.reweighting import LRE, Floats, lre


def acceptance_with_still(
    cdf: Callable[[Floats], ArrayLike], moving: ArrayLike, lengths: ArrayLike, f: float, gamma: float, H: float
) -> Floats:
    """Return the share a(l) of all responses of length l that a band accepts if only a part of them moves (T10 (c)).

    A response is accepted where its excess X is at most f L^gamma, so a(l) = 1 - v(l) (1 - F(f l^(gamma - H))).

    Parameters
    ----------
    cdf : callable
        F, the distribution function of X/L^H of the moving responses; called with an array (K,), returns one.
    moving, lengths : arrays (K,)
        v(l) in (0, 1], the share of the responses of each length that moves, and the lengths, tokens.
    f, gamma, H : float
        Factor (> 0) on the band's half-widths at length 1, their exponent, and that of the spread of the moving
        responses.
    """
    v, n = _shares_by_length(moving, lengths)
    f, gamma, H = number("f", f, 0, above=True), number("gamma", gamma), number("H", H)
    inside = numbers("cdf", cdf(f * n ** (gamma - H)), 0, 1, why="a distribution function")
    return 1 - v * (1 - inside)


def lre_with_still(p: ArrayLike, moving: ArrayLike, cut: float) -> LRE:
    """Return the LRE of a band over all responses if it cuts the same share of the moving ones at every length.

    That is so if gamma = H (T10 (c)). Each of the three errors is (1 - a_bar)/a_bar times that of the moving responses'
    shares taken as an acceptance; a_bar is the share of all responses that the band accepts.

    Parameters
    ----------
    p, moving : arrays (K,)
        Shares of the lengths (normalised here), and v(l) in (0, 1], the share of each length's responses that moves.
    cut : float, in [0, 1]
        Share of the moving responses that the band cuts.
    """
    cut = number("cut", cut, 0, 1, why="share of the moving responses")
    of_moving = lre(p, numbers("moving", moving, 0, 1, above=True, why="the share that moves"))
    mean = 1 - cut * of_moving.mean_acceptance
    if not mean > 0:
        raise UserError("every response is cut, so LRE is not defined; widen the band")
    factor = (1 - mean) / mean
    return LRE(factor * of_moving.inf, factor * of_moving.l1, factor * of_moving.l2, mean)


def fair_exponent_with_still(
    quantile: Callable[[float], float], moving: ArrayLike, lengths: ArrayLike, alpha: float, H: float
) -> float:
    """Return the exponent at which a band accepts the share ``alpha`` of all responses at both of two lengths.

    With F^-1 the quantiles of X/L^H of the moving responses, and v(l) the share of the responses that moves, it is
    H + [log F^-1(1 - (1 - alpha)/v(l2)) - log F^-1(1 - (1 - alpha)/v(l1))] / log(l2/l1): docs/theory.md T10 (c).

    Parameters
    ----------
    quantile : callable
        F^-1; called with a probability in (0, 1), returns the quantile of X/L^H of the moving responses.
    moving, lengths : arrays (2,)
        v(l) in (0, 1] and l, tokens, of two different lengths in any order.
    alpha, H : float
        Share that the band accepts, in (0, 1), and exponent of the spread of the moving responses' log-ratios.

    Returns
    -------
    float
        NaN if no band accepts just the share ``alpha`` at both lengths, because at one of them too few responses move
        towards an edge: 1 - alpha is at least v(l) (1 - F(0)).
    """
    v, n = _shares_by_length(moving, lengths)
    if v.shape != (2,) or n.shape != (2,) or n[0] == n[1]:
        raise UserError("moving and lengths need two entries each, of two different lengths")
    if not 0 < number("alpha", alpha) < 1:
        raise UserError(f"alpha={alpha} must lie strictly between 0 and 1")
    H, level = number("H", H), 1 - (1 - alpha) / v
    if not np.all(level > 0):
        return math.nan
    z = np.array([float(quantile(float(p))) for p in level])
    if not np.all(z > 0):
        return math.nan
    return H + float(np.diff(np.log(z))[0] / np.diff(np.log(n))[0])


def _shares_by_length(moving: ArrayLike, lengths: ArrayLike) -> tuple[Floats, Floats]:
    """Return the shares of moving responses and the lengths as checked arrays that broadcast."""
    v = numbers("moving", moving, 0, 1, above=True, why="the share of the responses that moves")
    n = checked_lengths(lengths)
    one_shape("moving and lengths", v, n)
    return v, n
