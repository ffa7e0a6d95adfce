"""The cosine lemma: how clipping turns the update, by lengths and inside lengths (docs/theory.md T7, T8)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fspo.base.arguments import number, numbers
from fspo.base.errors import UserError
from fspo.theory.reweighting import LRE, Floats, relative_acceptance


def cosine_bound(rho: float) -> float | None:
    """Return the least possible cosine sqrt(1 - rho^2) between clipped and true update; None if rho >= 1 (T7).

    rho bounds the norm of the error that clipping makes, relative to the true update.
    """
    rho = number("rho", rho, 0, infinite=True, why="it is a ratio of norms")
    return math.sqrt((1 - rho) * (1 + rho)) if rho < 1 else None


@dataclass(frozen=True)
class CosineLemma:
    """The quantities of docs/theory.md T7 and T8 for one set of strata: cosine, its bound, and the error by cause.

    T8 says g_clip = a_bar (g + e_len + e_in): clipped update, mean acceptance, true update, error by length reweighting
    and error inside lengths. ``identity_residual`` is the norm of the difference of both sides, relative to ||g||; if
    it exceeds rounding, code or log have an error. ``bound`` is None if T7 gives no guarantee.
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
        """||e_len|| / ||g||: error of the clipped update by length reweighting alone, relative to the true update."""
        return float(np.linalg.norm(self.e_len)) / self.g_norm

    @property
    def e_in_ratio(self) -> float:
        """||e_in|| / ||g||: error that clipping makes among responses of one length, relative to the true update."""
        return float(np.linalg.norm(self.e_in)) / self.g_norm


def cosine(u: ArrayLike, v: ArrayLike) -> float:
    """Return the cosine of two vectors; NaN if one is 0, because a zero vector has no direction.

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
    """Compute the quantities of T7 and T8 for a finite number of strata (docs/theory.md section 5).

    Parameters
    ----------
    p : array (K,)
        Share of each stratum among responses with A != 0 (normalised here).
    a : array (K,)
        Acceptance of each stratum, by which its clipped gradient is normalised: the update acceptance for drop, the
        weight acceptance for truncate and cap.
    g : array (K, D)
        Mean gradient of each stratum, g_l = E[w A psi | stratum].
    clipped : array (K, D)
        Mean clipped gradient of each stratum, E[M w A psi | stratum]; must be 0 where the acceptance a is 0.

    Raises
    ------
    UserError
        If nothing is accepted, the mean of g is 0, an entry is not finite, shapes differ, or a stratum with a = 0 has
        a clipped gradient.
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
    error = LRE.of(p, r, mean)
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
