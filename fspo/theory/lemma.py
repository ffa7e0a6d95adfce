"""The cosine lemma: how far clipping turns the update's direction (docs/theory.md T7, T8).

Clipping turns it by changing the shares of the lengths, and by its choice among responses of one length."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike

from fspo.base.errors import UserError
from fspo.base.number_checks import number, numbers
from fspo.theory.reweighting import LRE, Floats, relative, relative_acceptance

_ENUMERATED = 10  # largest number of strata whose r are enumerated: 10 * 2^9 vertices
OVERFLOW = "the vectors' norms overflow: divide both by a constant"


def cosine_bound(rho: float) -> float | None:
    """Return the least possible cosine sqrt(1 - rho^2) between clipped and unclipped gradient; None if rho >= 1 (T7).

    rho bounds the norm of the error that clipping makes, relative to the unclipped gradient."""
    rho = number("rho", rho, 0, infinite=True, why="it is a ratio of norms")
    return math.sqrt((1 - rho) * (1 + rho)) if rho < 1 else None


@dataclass(frozen=True)
class CosineLemma:
    """For one set of strata, the cosine of clipped and unclipped gradient, its bound (T7), and the error by cause (T8).

    ``lre`` is the strata's LRE and ``g_norm`` the norm of the unclipped gradient. ``rho`` bounds the error relative to
    it: the smaller of LRE_inf ``kappa_inf`` and LRE_2 ``kappa_2`` (how far unequal acceptances can move the gradient),
    plus ``eta``, the loss inside strata. ``bound`` is the least cosine that rho allows, None if rho >= 1.

    T8 says g_clip = a_bar (g + e_len + e_in), where g_clip is the clipped gradient, a_bar the mean acceptance, g the
    unclipped gradient, e_len the error by length reweighting and e_in the error inside lengths. ``identity_residual``
    is the norm of g_clip / a_bar - (g + e_len + e_in), relative to ||g||. If it exceeds rounding, code or log have an
    error."""

    cosine: float
    rho: float
    bound: float | None
    kappa_inf: float
    kappa_2: float
    eta: float
    lre: LRE
    e_len: Floats
    e_in: Floats
    g_norm: float
    identity_residual: float

    @property
    def e_len_ratio(self) -> float:
        """||e_len|| / ||g||: how far unequal acceptances of the strata alone move the gradient, relative to the
        unclipped one."""
        return float(np.linalg.norm(self.e_len)) / self.g_norm

    @property
    def e_in_ratio(self) -> float:
        """||e_in|| / ||g||: error that clipping makes among responses of one stratum, relative to the unclipped
        gradient."""
        return float(np.linalg.norm(self.e_in)) / self.g_norm


def length_constants(shares: Floats, means: Floats) -> tuple[float, float]:
    """Return T7's constants times ||g||: the largest ||e_len|| over LRE_inf, and over LRE_2, for strata of these means.

    e_len = sum p r g is the error by unequal acceptances, r the acceptance over its mean, less 1. If LRE_2 is at most x
    its largest norm is x kappa_2, kappa_2^2 the largest eigenvalue of Cov_p(g); if all |r| <= x it is x kappa_inf, the
    largest E|<g, u> - median| over unit u. Both are reached if x is so small that no acceptance is negative.

    kappa_inf is a maximum over vertices of the set of allowed r, enumerated for up to 10 strata. For more strata it is
    an upper bound, E|g - c| with c near the geometric median, by Weiszfeld's iteration.

    Parameters
    ----------
    shares : array (K,), sum 1
        p, the share of each stratum.
    means : array (K, D)
        g, the mean gradient of each stratum.

    Returns
    -------
    kappa_inf, kappa_2 : float
        In the unit of g, not divided by its norm; NaN where an entry of g is not finite."""
    means, shares = means[shares > 0], shares[shares > 0]
    means = means - shares @ means
    if not np.all(np.isfinite(means)):
        return math.nan, math.nan
    scale = float(np.max(np.abs(means), initial=0.0))
    if scale == 0:
        return 0.0, 0.0
    means = means / scale  # squares neither overflow nor vanish
    kappa_2 = float(np.linalg.norm(np.sqrt(shares)[:, None] * means, 2))
    if len(shares) > _ENUMERATED:
        return scale * _nearest_centre(shares, means), scale * kappa_2
    gram, best = means @ means.T, 0.0
    signs = np.array(list(product((-1.0, 1.0), repeat=len(shares) - 1))).reshape(-1, len(shares) - 1)
    for free in range(len(shares)):  # at a vertex all r but one are -1 or 1
        rest = shares[np.arange(len(shares)) != free]
        moved = np.insert(signs * rest, free, -(signs @ rest), axis=1)
        moved = moved[np.abs(moved[:, free]) <= shares[free] * (1 + 1e-12)]
        best = float(np.max(np.sum((moved @ gram) * moved, axis=1), initial=best))
    return scale * math.sqrt(best), scale * kappa_2


def _nearest_centre(p: Floats, g: Floats, steps: int = 50) -> float:
    """Return nearly the least mean distance sum p |g - c| over all c, from above; sum p g = 0."""
    centre, least = np.zeros(g.shape[1]), math.inf
    for _ in range(steps):
        distance = np.linalg.norm(g - centre, axis=1)
        least = min(least, float(p @ distance))
        pull = p / np.maximum(distance, 1e-12 * np.max(distance))
        centre = pull @ g / pull.sum()
    return least


def cosine(u: ArrayLike, v: ArrayLike) -> float:
    """Return the cosine of the angle between two vectors; NaN if one is 0, because a zero vector has no direction."""
    u, v = numbers("u", u), numbers("v", v)
    if u.ndim != 1 or u.shape != v.shape:
        raise UserError(f"a cosine needs two vectors of one length; these have shapes {u.shape} and {v.shape}")
    with np.errstate(over="ignore"):
        u_norm, v_norm = float(np.linalg.norm(u)), float(np.linalg.norm(v))
    if not u_norm * v_norm < math.inf:
        raise UserError(OVERFLOW)
    return float(u @ v) / (u_norm * v_norm) if u_norm * v_norm > 0 else math.nan


def cosine_lemma(p: ArrayLike, a: ArrayLike, g: ArrayLike, clipped: ArrayLike) -> CosineLemma:
    """Compute the quantities of T7 and T8 for a finite number of strata (docs/theory.md section 5).

    Parameters
    ----------
    p, a : arrays (K,)
        Share of each stratum among responses with A != 0 (normalised here), and the acceptance by which its clipped
        gradient is normalised: the update acceptance for drop, the weight acceptance for truncate and cap.
    g, clipped : arrays (K, D)
        Mean gradient of each stratum, E[w A psi | stratum], and mean clipped gradient, E[M w A psi | stratum].

    Raises
    ------
    UserError
        If nothing is accepted, the mean of g is 0, an entry is not finite, or shapes differ.
    """
    a, (g, clipped) = _checked(p, a, g, clipped)
    (found,) = cosine_lemmas(np.asarray(p, np.float64), a[None], g, clipped[None])
    if isinstance(found, UserError):
        raise found
    return found


def _checked(p: ArrayLike, a: ArrayLike, g: ArrayLike, clipped: ArrayLike) -> tuple[Floats, list[Floats]]:
    relative_acceptance(p, a)
    g, clipped = numbers("g", g), numbers("clipped", clipped)
    if g.ndim != 2 or g.shape != clipped.shape or len(g) != np.size(p):
        raise UserError(
            f"g and clipped must be matrices with one row for each of the {np.size(p)} strata; "
            f"these have shapes {g.shape} and {clipped.shape}"
        )
    return np.asarray(a, np.float64), [g, clipped]


def cosine_lemmas(p: Floats, a: Floats, g: Floats, clipped: Floats) -> Iterator[CosineLemma | UserError]:
    """Yield the `CosineLemma` of each of B rules on the same strata, or the error that says why there is none.

    Parameters
    ----------
    p : array (K,), >= 0
        Share of each stratum, or its number of responses.
    a : array (B, K)
        Acceptance of each stratum by each rule.
    g : array (K, D)
        Mean gradient of each stratum.
    clipped : array (B, K, D)
        Mean clipped gradient of each stratum by each rule.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        shares, r, mean = relative(p, a)
        total, total_clipped = shares @ g, shares @ clipped
        norm, clipped_norm = np.linalg.norm(total), np.linalg.norm(total_clipped, axis=1)
        lost = shares[:, None] * (clipped - a[..., None] * g) / mean[:, None, None]
        e_len, e_in = (shares * r) @ g, lost.sum(axis=1)
        kappa_inf, kappa_2 = length_constants(shares, g)
        kappa_inf, kappa_2 = kappa_inf / norm, kappa_2 / norm
        eta = np.linalg.norm(lost, axis=2).sum(axis=1) / norm
        residual = np.linalg.norm(total_clipped / mean[:, None] - (total + e_len + e_in), axis=1) / norm
        size = np.abs(r)
        errors = np.max(size[:, shares > 0], axis=1, initial=0.0), size @ shares, np.sqrt(r**2 @ shares), mean
        norms = clipped_norm * norm
        cosines = np.where(norms > 0, total_clipped @ total / norms, np.nan)
    sound = np.all(np.isfinite(r), axis=1) & np.isfinite(norms)
    for i in range(len(a)):
        try:
            if not sound[i]:
                _checked(p, a[i], g, clipped[i])
            if not norm > 0:
                raise UserError("g = 0: the unclipped gradient vanishes, so no cosine is defined")
            if not (math.isfinite(kappa_inf) and math.isfinite(kappa_2) and math.isfinite(eta[i])):
                raise UserError(
                    "gradients overflow or g vanishes beside them: divide them by a constant, or look for bad rows"
                )
            if not norms[i] < math.inf:
                raise UserError(OVERFLOW)
        except UserError as error:
            yield error
            continue
        error = LRE(*(float(x[i]) for x in errors))
        rho = float(min(error.inf * kappa_inf, error.l2 * kappa_2) + eta[i])
        yield CosineLemma(
            *(float(cosines[i]), rho, cosine_bound(rho), float(kappa_inf), float(kappa_2), float(eta[i]), error),
            *(e_len[i], e_in[i], float(norm), float(residual[i])),
        )
