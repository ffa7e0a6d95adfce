"""The cap on importance weights of least error (docs/theory.md T11)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fspo.base.errors import UserError
from fspo.base.number_checks import number, numbers


def cap_of_least_error(weights: ArrayLike, probabilities: ArrayLike, nu: float, n: float) -> float:
    """Return the cap K with the least mean squared error of the mean of min(w, K) A psi over n responses (T11).

    It is the only root of n E[(w - K)_+] = nu K - E[min(w, K)], for every distribution of w (docs/proofs.md T11). The
    difference of the two sides is linear in K between two weights, so the root is exact.

    Parameters
    ----------
    weights : array (N,), >= 0
        Values of the importance weight w, for example those of N responses of one length, in any order.
    probabilities : array (N,)
        Their probabilities (normalised here).
    nu : float, >= 1
        E|A psi|^2 / |E[A psi]|^2, how much noise a response has for its part of the update.
    n : float, >= 1
        Number of responses in the update, whatever N is."""
    w, p = numbers("weights", weights, 0), numbers("probabilities", probabilities, 0)
    if w.ndim != 1 or w.shape != p.shape or not p.sum() > 0 or not w @ p > 0:
        raise UserError("weights and probabilities need one entry for each value, and a positive mean weight")
    p, nu, n = p / p.sum(), number("nu", nu, 1, why="E|A psi|^2 over |E[A psi]|^2"), number("n", n, 1)
    order = np.argsort(w)
    w, p = w[order], p[order]
    at = np.concatenate([[0.0], w])
    beyond = 1 - np.concatenate([[0.0], np.cumsum(p)])  # P(w > K), up to ties, where the next entry counts
    held = np.concatenate([[0.0], np.cumsum(p * w)]) + at * np.maximum(beyond, 0.0)
    excess = n * (w @ p - held) - nu * at + held
    last = int(np.flatnonzero(excess >= 0)[-1])
    if last == len(w):
        return float(w[-1])
    above = float(p[w > at[last]].sum())  # between two weights E[min(w, K)] rises with this slope
    return float(at[last] + excess[last] / ((n - 1) * above + nu))
