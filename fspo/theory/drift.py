"""What moves the mean of S and the length of responses (docs/theory.md T6, T12)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fspo.base.number_checks import checked_lengths, number, numbers, one_shape
from fspo.rules import Rule
from fspo.theory.reweighting import Floats


def drift_given_length(length_ratio: ArrayLike, kl: ArrayLike) -> Floats:
    """Return E[S | L] in nats: log(p_new(l) / p_old(l)) - KL(old(.|l) || new(.|l)) (T6).

    It holds for two policies with the same possible responses of length l. ``length_ratio`` (K,) > 0 is
    p_new(l) / p_old(l) = E[e^S | L = l], ``kl`` (K,) is in nats (Cover and Thomas, Information Theory, 2.5.3)."""
    ratio = numbers("length_ratio", length_ratio, 0, above=True, why="a ratio of probabilities")
    kl = numbers("kl", kl, 0, why="a KL divergence")
    one_shape("length_ratio and kl", ratio, kl)
    return np.log(ratio) - kl


def fair_centre(mean_weight: ArrayLike, variance: ArrayLike) -> Floats:
    """Return m_L = log E[e^S | L] - Var(S | L)/2 in nats: the mean of S given L if S is normal given L (T6).

    ``mean_weight`` (K,) > 0 is E[e^S | L = l], ``variance`` (K,) is Var(S | L = l), nats^2."""
    weight = numbers("mean_weight", mean_weight, 0, above=True, why="a mean of e^S")
    variance = numbers("variance", variance, 0)
    one_shape("mean_weight and variance", weight, variance)
    return np.log(weight) - variance / 2


def length_shift_bounds(rule: Rule, lengths: ArrayLike, m: float | None = None) -> tuple[Floats, Floats]:
    """Return the least and largest p_new(l)/p_old(l), (K,) both, if all responses of length l end in the band (T12).

    They are e^lo and e^hi, lo and hi the band's edges: the ratio is E[e^S | L = l] if both policies have the same
    responses of length l. ``m`` is the drift of the band, nats per token; needed if the rule has one."""
    if m is not None:
        number("m", m)
    lo, hi = rule.band(checked_lengths(lengths), m)
    with np.errstate(over="ignore"):
        return np.exp(lo), np.exp(hi)
