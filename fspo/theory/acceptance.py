"""Formulas of acceptances by length (docs/theory.md T1, T2, T9, T11).

Band and weight acceptance are computed under the Gaussian model of section 4."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fspo.base.errors import UserError
from fspo.base.number_checks import checked_lengths, number, numbers, one_shape
from fspo.rules import Rule, TokenMeans
from fspo.theory.reweighting import Floats, relative_acceptance

_ROUNDING = 1e-9  # a computed probability, or sum of probabilities, may exceed 1 by this much, because of rounding
_MAX_LOG = 709.0  # largest exponent, because exp of a larger number overflows float64
_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(20)


def interval_probability(lo: ArrayLike, hi: ArrayLike) -> Floats:
    """Return Phi(hi) - Phi(lo), Phi the normal distribution function, to nearly full relative precision.

    The precision holds far from 0 and for narrow intervals too. ``lo`` must not exceed ``hi``.

    Intervals right of 0 are mirrored, so that two values near 1 are never subtracted. In narrow intervals, where the
    two values of Phi would still cancel (the density varies by less than a factor of about e between the edges), the
    density is integrated by Gauss-Legendre quadrature, which is exact to rounding there. A result below about 1e-308
    becomes 0.

    Raises UserError if an edge is NaN, or lo > hi."""
    from scipy.special import ndtr

    lo, hi = numbers("lo", lo, infinite=True), numbers("hi", hi, infinite=True)
    one_shape("lo and hi", lo, hi)
    lo, hi = np.broadcast_arrays(lo, hi)
    if np.any(lo > hi):
        raise UserError("an interval needs lo <= hi; exchange its edges")
    flip = lo > 0
    a, b = np.where(flip, -hi, lo), np.where(flip, -lo, hi)
    # An interval with an infinite edge has an infinite half-width, or none (NaN), and so does not count as narrow. The
    # warning that numpy gives for NaN is switched off.
    with np.errstate(invalid="ignore"):
        mid, half = (a + b) / 2, (b - a) / 2
        narrow = half * np.maximum(1.0, np.abs(mid)) < 1
    mid, half = np.where(narrow, mid, 0.0), np.where(narrow, half, 0.0)
    t = half[..., None] * _NODES
    density = np.exp(-(mid**2) / 2) / math.sqrt(2 * math.pi)
    inside = half * density * (np.exp(-t * (mid[..., None] + t / 2)) @ _NODE_WEIGHTS)
    return np.maximum(np.where(narrow, inside, ndtr(b) - ndtr(a)), 0.0)


def band_acceptance(rule: Rule, lengths: ArrayLike, mu: float, sigma: ArrayLike, m: float | None = None) -> Floats:
    """Return the probability a(l) that S of a response of length l lies in a rule's band, if S is N(mu l, sigma^2 l).

    This is the Gaussian model of docs/theory.md section 4: ``mu`` in nats per token, ``sigma`` (one, or one for each of
    K lengths) in nats per root token. ``m`` is the drift of the band, nats per token; needed if the rule has one, for
    example ``rule.centre(gaussian_means(sigma))``."""
    lengths, mu = checked_lengths(lengths), number("mu", mu)
    sigma = numbers("sigma", sigma, 0, above=True, why="nats per root token")
    one_shape("lengths and sigma", lengths, sigma)
    lo, hi = rule.band(lengths, m)
    scale = sigma * np.sqrt(lengths)
    return interval_probability((lo - mu * lengths) / scale, (hi - mu * lengths) / scale)


def weight_acceptance(rule: Rule, lengths: ArrayLike, mu: float, sigma: float, m: float | None = None) -> Floats:
    """Return the weight acceptance b(l): the mean of the weight w = exp(S), counted as 0 where S is outside the band,
    over its mean everywhere, if S is N(mu l, sigma^2 l).

    A mask, which drops responses on both sides, leaves this share. ``mu`` is in nats per token, ``sigma`` in nats per
    root token, ``m`` the drift of the band, nats per token. Weighting by w shifts the mean of S from mu l to (mu +
    sigma^2) l (docs/theory.md T9)."""
    sigma = number("sigma", sigma, 0, above=True, why="nats per root token")
    return band_acceptance(rule, lengths, number("mu", mu) + sigma**2, sigma, m)


def matching_sigma(rule: Rule, lengths: ArrayLike, p: ArrayLike, acceptance: float) -> float | None:
    """Return the sigma, nats per root token, at which a rule without drift has the given mean ``acceptance`` over
    lengths with shares ``p`` (K,), in the Gaussian model with mu = 0 (docs/theory.md section 4); None if none does."""
    from scipy.optimize import brentq

    if not 0 < number("acceptance", acceptance) < 1:
        raise UserError(f"acceptance {acceptance} must lie strictly between 0 and 1")
    lengths = checked_lengths(lengths)
    share = relative_acceptance(p, np.ones(lengths.shape))[0]

    def excess(log_sigma: float) -> float:
        return float(share @ band_acceptance(rule, lengths, 0.0, math.exp(log_sigma))) - acceptance

    # Search log sigma, sigma the scale of S, between these ends: with sigma = e^-20 nearly every response lies in the
    # band, with sigma = e^10 nearly none.
    low, high = -20.0, 10.0
    if excess(low) < 0 or excess(high) > 0:
        return None
    root: Any = brentq(excess, low, high)
    return math.exp(root)


def gaussian_means(sigma: float) -> TokenMeans:
    """Return the means over tokens of k3 and of s_t^2, if the token log-ratios s_t are independent N(-sigma^2/2,
    sigma^2): sigma^2/2, which is exact, and sigma^2, which is the leading order of sigma^2 + sigma^4/4. From them a
    rule's drift is made. ``sigma`` is in nats per root token."""
    sigma = number("sigma", sigma, 0, above=True, why="nats per root token")
    return TokenMeans(sigma**2 / 2, sigma**2)


def update_acceptance(
    positive: ArrayLike, clipped_high: ArrayLike, clipped_low: ArrayLike, clipped_dual: ArrayLike = 0.0
) -> Floats:
    """Return the update acceptance a_upd(l) of a rule that drops, from the probability of a clip at each edge (T9).

    Parameters
    ----------
    positive : array (K,)
        At each length l, the share of responses with A > 0 among those with A != 0: P(A > 0 | l, A != 0).
    clipped_high, clipped_low, clipped_dual : arrays (K,)
        Probabilities that the rule clips a response of length l at the upper, the lower and the dual edge:
        P(S > hi | l, A > 0), P(S < lo | l, A < 0) and P(S > dual | l, A < 0).
    """
    positive = numbers("positive", positive, 0, 1, why="P(A > 0) among responses with A != 0")
    high, low, dual = (
        numbers(name, share, 0, 1 + _ROUNDING, why="a probability")
        for name, share in (
            ("clipped_high", clipped_high),
            ("clipped_low", clipped_low),
            ("clipped_dual", clipped_dual),
        )
    )
    one_shape("positive, clipped_high, clipped_low and clipped_dual", positive, high, low, dual)
    if np.any(low + dual > 1 + _ROUNDING):
        raise UserError("clipped_low + clipped_dual must be at most 1: they are probabilities of different events")
    negative = 1 - positive
    return 1 - (positive * high + negative * low) - negative * dual


def upper_edge_supremum(u_hi: float) -> float:
    """Return exp(u_hi^2/2), a bound over all lengths on the weight at the upper edge of a sqrt band (T11, remark i).

    ``u_hi`` is the upper half-width in standard deviations of S, and S has the standard deviation sigma sqrt(L).
    The band's centre is -L sigma^2/2, so the weight at the edge is exp(-L sigma^2/2 + u_hi sigma sqrt(L)). The
    bound is reached at L = (u_hi/sigma)^2 if that is a whole number from 1."""
    u_hi = number("u_hi", u_hi, 0, above=True, why="c_hi / sigma")
    if u_hi**2 / 2 > _MAX_LOG:
        raise UserError(f"exp(u_hi^2/2) overflows at u_hi={u_hi:g}: take its logarithm, u_hi^2/2 nats")
    return math.exp(u_hi**2 / 2)
