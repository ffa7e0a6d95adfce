"""The formulas of docs/theory.md, each written once: acceptance laws, LRE, bounds, the cosine lemma, T8's split.

Everything is numpy in float64. Log-ratios are in nats, lengths in tokens, acceptances are probabilities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fspo.bad_input import as_numbers, number, numbers, one_shape
from fspo.errors import UserError
from fspo.rules import DriftStats, Rule

Floats = NDArray[np.float64]
PHI_1 = math.exp(-0.5) / math.sqrt(2 * math.pi)
"""phi(1), the supremum of |t phi(t)|: the constant of T3 and T4."""
BERRY_ESSEEN_IID = 0.4748
"""Shevtsova (2011), independent identically distributed summands (T5)."""
BERRY_ESSEEN_INDEPENDENT = 0.56
"""Independent but not identically distributed summands (T5)."""
_ROUNDING = 1e-9  # sums of probabilities may exceed 1 by this
_MAX_LOG = 709.0  # exp of more overflows
_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(20)


def interval_probability(lo: ArrayLike, hi: ArrayLike) -> Floats:
    """Phi(hi) - Phi(lo) for lo <= hi to nearly full relative precision, far tails and narrow intervals included.

    Intervals right of 0 are mirrored, so nothing is subtracted from 1. Where the two values of Phi would still
    cancel (the density varies by less than a factor e or so between the edges) the density is integrated by
    Gauss-Legendre quadrature, which is exact to rounding there. Below about 1e-308 the result is 0.

    Raises
    ------
    UserError
        For NaN, or lo > hi.
    """
    from scipy.special import ndtr

    lo, hi = numbers("lo", lo, infinite=True), numbers("hi", hi, infinite=True)
    one_shape("lo and hi", lo, hi)
    lo, hi = np.broadcast_arrays(lo, hi)
    if np.any(lo > hi):
        raise UserError("an interval needs lo <= hi; exchange its edges")
    flip = lo > 0
    a, b = np.where(flip, -hi, lo), np.where(flip, -lo, hi)
    with np.errstate(invalid="ignore"):  # infinite edges: never narrow
        mid, half = (a + b) / 2, (b - a) / 2
        narrow = half * np.maximum(1.0, np.abs(mid)) < 1
    mid, half = np.where(narrow, mid, 0.0), np.where(narrow, half, 0.0)
    t = half[..., None] * _NODES
    density = np.exp(-(mid**2) / 2) / math.sqrt(2 * math.pi)
    inside = half * density * (np.exp(-t * (mid[..., None] + t / 2)) @ _NODE_WEIGHTS)
    return np.maximum(np.where(narrow, inside, ndtr(b) - ndtr(a)), 0.0)


def band_acceptance(
    rule: Rule, lengths: ArrayLike, mu: float, sigma: ArrayLike, stats: DriftStats | None = None
) -> Floats:
    """Acceptance a(l) of a rule's band when S given L=l is N(mu l, sigma^2 l) (docs/theory.md section 4).

    Parameters
    ----------
    lengths : array (K,), >= 1
    mu : float, nats per token
    sigma : float or array (K,), nats per root token, > 0
    stats : DriftStats, optional
        For a rule with a drift; ``gaussian_stats`` makes the one that equals the model's.

    Raises
    ------
    UserError
        If sigma <= 0, mu is not finite, or a length < 1.
    """
    lengths, mu = _checked_lengths(lengths), number("mu", mu)
    sigma = numbers("sigma", sigma, 0, above=True, why="nats per root token")
    one_shape("lengths and sigma", lengths, sigma)
    lo, hi = rule.band(lengths, stats)
    scale = sigma * np.sqrt(lengths)
    return interval_probability((lo - mu * lengths) / scale, (hi - mu * lengths) / scale)


def weight_acceptance(
    rule: Rule, lengths: ArrayLike, mu: float, sigma: float, stats: DriftStats | None = None
) -> Floats:
    """Weight acceptance b(l) of a two-sided drop under the Gaussian model (T13).

    Weighting by exp(S) shifts the normal law's mean from mu l to (mu + sigma^2) l.
    """
    sigma = number("sigma", sigma, 0, above=True, why="nats per root token")
    return band_acceptance(rule, lengths, number("mu", mu) + sigma**2, sigma, stats)


def matching_sigma(rule: Rule, lengths: ArrayLike, p: ArrayLike, acceptance: float) -> float | None:
    """The sigma at which a driftless rule accepts the share ``acceptance`` of the model with mu = 0 (section 4).

    Parameters
    ----------
    lengths, p : arrays (K,)
        Lengths (tokens) and their shares, which are normalised.
    acceptance : float
        Wanted mean of a(l), in (0, 1).

    Returns
    -------
    float or None
        Nats per root token; None if no sigma gives it (an unbounded rule).

    Raises
    ------
    UserError
        If ``acceptance`` does not lie in (0, 1), or p is empty or negative.
    """
    from scipy.optimize import brentq

    if not 0 < number("acceptance", acceptance) < 1:
        raise UserError(f"acceptance {acceptance} must lie strictly between 0 and 1")
    lengths = _checked_lengths(lengths)
    share = relative_acceptance(p, np.ones(lengths.shape))[0]

    def excess(log_sigma: float) -> float:
        return float(share @ band_acceptance(rule, lengths, 0.0, math.exp(log_sigma))) - acceptance

    low, high = -20.0, 10.0  # e^-20 accepts everything, e^10 next to nothing
    if excess(low) < 0 or excess(high) > 0:
        return None
    root: Any = brentq(excess, low, high)
    return math.exp(root)


def gaussian_stats(sigma: float, num_tokens: float = 1.0) -> DriftStats:
    """Drift statistics of iid N(-sigma^2/2, sigma^2) tokens to leading order: k3 = sigma^2/2 per token."""
    sigma = number("sigma", sigma, 0, above=True, why="nats per root token")
    num_tokens = number("num_tokens", num_tokens, 0, above=True)
    return DriftStats(num_tokens * sigma**2 / 2, num_tokens * sigma**2, num_tokens)


@dataclass(frozen=True)
class LRE:
    """Length Reweighting Error (docs/theory.md section 3). ``l1 <= l2 <= inf``."""

    inf: float
    l1: float
    l2: float
    mean_acceptance: float


def relative_acceptance(p: ArrayLike, a: ArrayLike) -> tuple[Floats, Floats, float]:
    """Normalised p, r(l) = a(l)/a_bar - 1 and a_bar.

    Raises
    ------
    UserError
        If p is empty, negative or sums to 0, if a is negative, or if a_bar = 0.
    """
    shares, accepted = as_numbers("p", p), as_numbers("a", a)
    if shares.ndim != 1 or shares.shape != accepted.shape or shares.size == 0:
        raise UserError("p and a must be vectors of one length >= 1: one entry for each length or bin")
    if not (np.all(np.isfinite(shares)) and np.all(np.isfinite(accepted))):
        raise UserError("p and a must be finite; drop empty bins before")
    if np.any(shares < 0) or not 0 < shares.sum() < np.inf or np.any(accepted < 0):
        raise UserError("p must be >= 0 with a positive sum, and a >= 0")
    shares = shares / shares.sum()
    mean = float(shares @ accepted)
    if not mean > 0:
        raise UserError("a_bar = 0: nothing is accepted, so LRE is not defined; widen the band")
    above = accepted - mean
    above = above - shares @ above  # takes out the rounding of the mean: a constant a(l) gives r = 0 far below it
    return shares, above / mean, mean


def lre(p: ArrayLike, a: ArrayLike) -> LRE:
    """LRE_inf, LRE_1 and LRE_2 of acceptances ``a`` (K,) under length shares ``p`` (K,); section 3."""
    return _lre(*relative_acceptance(p, a))


def _lre(p: Floats, r: Floats, mean: float) -> LRE:
    return LRE(float(np.max(np.abs(r[p > 0]))), float(p @ np.abs(r)), float(np.sqrt(p @ r**2)), mean)


def accepted_lengths(p: ArrayLike, a: ArrayLike) -> Floats:
    """q(l) = p(l) a(l) / a_bar, the length shares of the accepted responses (section 3)."""
    p, r, _ = relative_acceptance(p, a)
    return p * (1 + r)


def drift_error_bound(u_lo: float, u_hi: float, x: ArrayLike) -> Floats:
    """T3: bound B_l on |a(l) - a_0| for standardised ranges u and drift errors x_l (K,)."""
    u_lo, u_hi = (number(name, u, 0, infinite=True) for name, u in (("u_lo", u_lo), ("u_hi", u_hi)))
    x = numbers("x", x, why="drift errors in standard units")
    slope = abs(_phi(u_hi) - _phi(u_lo))
    return slope * np.abs(x) + PHI_1 * x**2


def scale_error_bound(tau: float) -> float:
    """T4: B = 2 phi(1) tau bounds |a(l) - a_0| when every |log(sigma_l/sigma)| <= tau."""
    return 2 * PHI_1 * number("tau", tau, 0, why="it is the largest |log(sigma_l / sigma)|")


def lre_bound(bound: float, a_0: float, *, one_sided: bool) -> float | None:
    """LRE_inf <= B/(a_0-B) (T3, all drift errors of one sign) or 2B/(a_0-B) (T3, T4); None: no guarantee."""
    bound = number("B", bound, 0, infinite=True, why="it bounds |a(l) - a_0|")
    a_0 = number("a_0", a_0, 0, 1, above=True, why="an acceptance")
    if bound >= a_0:
        return None
    return (1 if one_sided else 2) * bound / (a_0 - bound)


def berry_esseen_bound(rho3: float, lengths: ArrayLike, *, identical: bool = True) -> Floats:
    """T5: bound on |a(l) - a_Gauss(l)| for independent tokens; rho3 = E|s-mu|^3/sigma^3 >= 1."""
    rho3 = number("rho3", rho3, 1, why="E|s-mu|^3/sigma^3 is at least 1 (Jensen); check the moments")
    constant = BERRY_ESSEEN_IID if identical else BERRY_ESSEEN_INDEPENDENT
    return 2 * constant * rho3 / np.sqrt(_checked_lengths(lengths))


def ar1_variance_ratio(ar: float, lengths: ArrayLike) -> Floats:
    """T6: Var S_l / (l sigma^2) for stationary Gaussian AR(1) tokens, sigma^2 their long-run variance.

    Half its absolute logarithm is the scale error tau_l of T4.
    """
    if not -1 < number("ar", ar) < 1:
        raise UserError(f"ar={ar} must lie in (-1, 1) for stationary tokens")
    lengths = _checked_lengths(lengths)
    return 1 - 2 * ar * (1 - ar**lengths) / ((1 - ar) * (1 + ar) * lengths)


def upper_edge_supremum(u_hi: float) -> float:
    """T10: sup over L of exp(m_L + c_hi sqrt(L)) for m_L = -L sigma^2/2, reached at L = (u_hi/sigma)^2."""
    u_hi = number("u_hi", u_hi, 0, above=True, why="c_hi / sigma")
    if u_hi**2 / 2 > _MAX_LOG:
        raise UserError(f"exp(u_hi^2/2) overflows at u_hi={u_hi:g}: take its logarithm, u_hi^2/2 nats")
    return math.exp(u_hi**2 / 2)


def update_acceptance(
    positive: ArrayLike, cut_high: ArrayLike, cut_low: ArrayLike, cut_dual: ArrayLike = 0.0
) -> Floats:
    """T11: a_upd(l) for drop.

    Parameters
    ----------
    positive : array (K,)
        P(A > 0 | l, A != 0).
    cut_high, cut_low, cut_dual : arrays (K,)
        P(S > hi | l, A > 0), P(S < lo | l, A < 0), P(S > dual | l, A < 0).
    """
    positive = numbers("positive", positive, 0, 1, why="P(A > 0) among responses with A != 0")
    high, low, dual = (
        numbers(name, cut, 0, 1 + _ROUNDING, why="a probability")
        for name, cut in (("cut_high", cut_high), ("cut_low", cut_low), ("cut_dual", cut_dual))
    )
    one_shape("positive, cut_high, cut_low and cut_dual", positive, high, low, dual)
    if np.any(low + dual > 1 + _ROUNDING):
        raise UserError("cut_low + cut_dual must be at most 1: they are probabilities of different events")
    negative = 1 - positive
    return 1 - (positive * high + negative * low) - negative * dual


def cosine_bound(rho: float) -> float | None:
    """T7: cos(g_clip, g) >= sqrt(1 - rho^2) if rho < 1; None means "no guarantee"."""
    rho = number("rho", rho, 0, infinite=True, why="it is a ratio of norms")
    return math.sqrt((1 - rho) * (1 + rho)) if rho < 1 else None


@dataclass(frozen=True)
class CosineLemma:
    """Every quantity of T7 and T8 for one set of strata.

    ``bound`` is None where T7 promises nothing. ``identity_residual`` is
    ||g_clip/a_bar - (g + e_len + e_in)|| / ||g||, rounding if code and log are sound.
    """

    cosine: float
    rho: float
    bound: float | None
    kappa: float
    kappa_c: float
    kappa_c2: float
    eta: float
    lre: LRE
    e_len: Floats
    e_in: Floats
    g_norm: float
    identity_residual: float

    @property
    def e_len_ratio(self) -> float:
        """||e_len|| / ||g||: what length reweighting alone costs."""
        return float(np.linalg.norm(self.e_len)) / self.g_norm

    @property
    def e_in_ratio(self) -> float:
        """||e_in|| / ||g||: what clipping inside a length costs."""
        return float(np.linalg.norm(self.e_in)) / self.g_norm


def cosine(u: ArrayLike, v: ArrayLike) -> float:
    """Cosine of two vectors; NaN if one is 0 (the direction of nothing).

    Raises
    ------
    UserError
        If an entry is not finite, or the lengths differ.
    """
    u, v = numbers("u", u), numbers("v", v)
    if u.ndim != 1 or u.shape != v.shape:
        raise UserError(f"a cosine needs two vectors of one length; these have shapes {u.shape} and {v.shape}")
    u_norm, v_norm = float(np.linalg.norm(u)), float(np.linalg.norm(v))
    if not u_norm * v_norm < math.inf:
        raise UserError("the vectors' norms overflow: divide both by a constant")
    return float(u @ v) / (u_norm * v_norm) if u_norm * v_norm > 0 else math.nan


def cosine_lemma(p: ArrayLike, a: ArrayLike, g: ArrayLike, clipped: ArrayLike) -> CosineLemma:
    """T7 and T8 for finite strata (docs/theory.md section 5).

    Parameters
    ----------
    p : array (K,)
        Share of each stratum among responses with A != 0 (normalised here).
    a : array (K,)
        Normaliser of each stratum: a_upd for drop, b for truncate and cap.
    g : array (K, D)
        g_l = E[w A psi | stratum].
    clipped : array (K, D)
        E[M w A psi | stratum] = a(l) (g_l + delta_l); must be 0 where a(l) = 0.

    Raises
    ------
    UserError
        If a_bar = 0, g = 0, an entry is not finite, shapes differ, or a stratum with a = 0 has a clipped gradient.
    """
    p, r, mean = relative_acceptance(p, a)
    a = np.asarray(a, np.float64)
    g, clipped = numbers("g", g), numbers("clipped", clipped)
    if g.ndim != 2 or g.shape != clipped.shape or len(g) != p.size:
        raise UserError(
            f"g and clipped must be matrices with one row for each of the {p.size} strata; "
            f"these have shapes {g.shape} and {clipped.shape}"
        )
    total, total_clipped = p @ g, p @ clipped
    norm = float(np.linalg.norm(total))
    if not norm > 0:
        raise UserError("g = 0: the true update vanishes, so no cosine is defined")
    if np.any(clipped[a == 0] != 0):
        raise UserError("a stratum with a(l) = 0 has a clipped gradient: choose another normaliser (b for truncate)")
    delta = np.divide(clipped, a[:, None], out=g.copy(), where=a[:, None] > 0) - g
    share = p * (1 + r)
    e_len, e_in = (p * r) @ g, share @ delta
    spread = np.linalg.norm(g - total, axis=1)
    kappa = float(p @ np.linalg.norm(g, axis=1)) / norm
    kappa_c = float(p @ spread) / norm
    kappa_c2 = float(np.sqrt(p @ spread**2)) / norm
    eta = float(share @ np.linalg.norm(delta, axis=1)) / norm
    if not (math.isfinite(kappa) and math.isfinite(kappa_c2) and math.isfinite(eta)):
        raise UserError("gradients overflow or g vanishes beside them: divide them by a constant, or look for bad rows")
    error = _lre(p, r, mean)
    rho = min(error.inf * kappa, error.inf * kappa_c, error.l2 * kappa_c2) + eta
    residual = np.linalg.norm(total_clipped / mean - (total + e_len + e_in)) / norm
    return CosineLemma(
        cosine(total_clipped, total),
        rho,
        cosine_bound(rho),
        kappa,
        kappa_c,
        kappa_c2,
        eta,
        error,
        e_len,
        e_in,
        norm,
        float(residual),
    )


def _phi(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _checked_lengths(lengths: ArrayLike) -> Floats:
    return numbers("lengths", lengths, 1, why="tokens")
