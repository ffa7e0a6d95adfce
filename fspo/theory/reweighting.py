"""Length Reweighting Error: how an acceptance that depends on length changes the shares of the lengths.

docs/theory.md section 3 defines it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fspo.base.errors import UserError
from fspo.base.number_checks import as_numbers

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LRE:
    """The three Length Reweighting Errors LRE_inf, LRE_1 and LRE_2 (docs/theory.md section 3), ``l1 <= l2 <= inf``, and
    the mean acceptance over the shares of the lengths."""

    inf: float
    l1: float
    l2: float
    mean_acceptance: float

    @classmethod
    def of(cls, p: Floats, r: Floats, mean: float) -> LRE:
        """Compute the LRE from the shares p (K,) of the lengths, relative acceptances r (K,) and the mean
        acceptance."""
        return cls(float(np.max(np.abs(r[p > 0]))), float(p @ np.abs(r)), float(np.sqrt(p @ r**2)), mean)


def relative_acceptance(p: ArrayLike, a: ArrayLike) -> tuple[Floats, Floats, float]:
    """Return the shares p of the lengths (sum 1), each length's acceptance relative to the mean, and the mean a_bar.

    The relative acceptance of a length l is a(l)/a_bar - 1.

    Raises UserError if p is empty, negative or sums to 0, if a is negative, or if a_bar = 0."""
    shares, accepted = as_numbers("p", p), as_numbers("a", a)
    if shares.ndim != 1 or shares.shape != accepted.shape or shares.size == 0:
        raise UserError("p and a must be vectors of one length >= 1: one entry for each length or bin")
    if not (np.all(np.isfinite(shares)) and np.all(np.isfinite(accepted))):
        raise UserError("p and a must be finite; drop empty bins before")
    if np.any(shares < 0) or not 0 < shares.sum() < np.inf or np.any(accepted < 0):
        raise UserError("p must be >= 0 with a positive sum, and a >= 0")
    shares, r, mean = relative(shares, accepted)
    if not mean > 0:
        raise UserError("a_bar = 0: nothing is accepted, so LRE is not defined; widen the band")
    return shares, r, float(mean)


def relative(p: Floats, a: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the lengths' shares (sum 1), their relative acceptances a/a_bar - 1, and the mean acceptance a_bar.

    ``a`` (..., K) holds one or many vectors of acceptances. Unlike `relative_acceptance`, this does not check p and a.
    """
    shares = p / p.sum()
    mean = a @ shares
    above = a - mean[..., None]
    above = above - (above @ shares)[..., None]  # without the rounding error of the mean, equal acceptances give 0
    with np.errstate(divide="ignore", invalid="ignore"):
        return shares, above / mean[..., None], mean


def lre(p: ArrayLike, a: ArrayLike) -> LRE:
    """Return LRE_inf, LRE_1 and LRE_2 of acceptances ``a`` (K,) of lengths whose shares of responses are ``p`` (K,)."""
    return LRE.of(*relative_acceptance(p, a))
