"""Length Reweighting Error: what an acceptance that depends on the length does to the lengths (section 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fspo.base.arguments import as_numbers
from fspo.base.errors import UserError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LRE:
    """Length Reweighting Error (docs/theory.md section 3). ``l1 <= l2 <= inf``."""

    inf: float
    l1: float
    l2: float
    mean_acceptance: float

    @classmethod
    def of(cls, p: Floats, r: Floats, mean: float) -> LRE:
        """From what ``relative_acceptance`` gives."""
        return cls(float(np.max(np.abs(r[p > 0]))), float(p @ np.abs(r)), float(np.sqrt(p @ r**2)), mean)


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
    return LRE.of(*relative_acceptance(p, a))


def accepted_lengths(p: ArrayLike, a: ArrayLike) -> Floats:
    """q(l) = p(l) a(l) / a_bar, the length shares of the accepted responses (section 3)."""
    p, r, _ = relative_acceptance(p, a)
    return p * (1 + r)
