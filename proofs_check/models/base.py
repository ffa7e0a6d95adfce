"""The interface of log-ratio models, and functions that refuse bad input to them (docs/theory.md section 4)."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from fspo.base.errors import UserError
from fspo.rules import TokenMeans
from fspo.theory import Floats


class LogRatioModel(Protocol):
    """A law of S given L, with a drift ``mu`` per token and a long-run scale ``sigma``. Unless the model says
    otherwise, the mean of S is ``mu * L``, and its variance over L tends to ``sigma**2`` as L grows.
    """

    @property
    def mu(self) -> float:
        """Drift of the model: mean token log-ratio, nats per token."""
        ...

    @property
    def sigma(self) -> float:
        """Scale of the model, nats per root token: S has about the standard deviation sigma sqrt(L)."""
        ...

    def sample(self, rng: np.random.Generator, lengths: ArrayLike) -> Floats:
        """Draw one S for each entry of ``lengths``; the result has the shape of ``lengths``.

        Raises
        ------
        UserError
            If ``lengths`` is empty, below 1 or not finite, or not an integer where the model counts tokens.
        """
        ...


class TokenModel(LogRatioModel, Protocol):
    """A log-ratio model that can draw each token log-ratio."""

    def paths(self, rng: np.random.Generator, draws: int, length: int) -> Floats:
        """Draw the token log-ratios s_t of ``draws`` responses of ``length`` tokens, (draws, length)."""
        ...


def matching_means(model: LogRatioModel) -> TokenMeans:
    """Return -mu of a model as its mean k3 per token and sigma^2 as its mean s^2 per token: the two means from which a
    rule's drift is computed. So the band of a rule with drift ``kl`` is centred at the model's own drift, mu <= 0.
    """
    if not model.mu <= 0:
        raise UserError("drift 'kl' is -k3 <= 0: it can match only a model with mu <= 0")
    return TokenMeans(-model.mu, model.sigma**2)


def check_moments(mu: float, sigma: float) -> None:
    """Raise UserError for a drift mu that is not finite, or a scale sigma that is not positive and finite."""
    if not math.isfinite(mu):
        raise UserError(f"mu={mu} must be finite, in nats per token")
    if not (sigma > 0 and math.isfinite(sigma)):
        raise UserError(f"sigma={sigma} must be > 0 and finite, in nats per root token")


def check_open(name: str, value: float, low: float, high: float, why: str) -> None:
    """Raise UserError unless the parameter lies in the open interval (low, high)."""
    if not low < value < high:
        raise UserError(f"{name}={value} must lie strictly between {low:g} and {high:g}: {why}")


def checked_lengths(lengths: ArrayLike, whole: bool = False) -> Floats:
    """Check response lengths and return them as float64. Along an axis on which the given array only repeats its
    entries (by np.broadcast_to), the result has one entry; it broadcasts to the given shape.

    Parameters
    ----------
    lengths : array of any shape, tokens
    whole : bool
        Whether the model counts tokens, so that lengths must be integers.

    Raises
    ------
    UserError
        If ``lengths`` is empty, below 1, not finite, or not an integer where it must be.
    """
    given = np.asarray(lengths)
    if given.size == 0:
        raise UserError("lengths are empty: give at least one length")
    # Repeated axes, as np.broadcast_to makes them, have stride 0; one entry of each is enough to compute with.
    n = given[tuple(slice(None) if stride else slice(0, 1) for stride in given.strides)].astype(np.float64, copy=False)
    if not (n.min() >= 1 and n.max() < math.inf):
        raise UserError("lengths must be finite and >= 1 token; the end of sequence counts")
    if whole and np.any(n != np.floor(n)):
        raise UserError("lengths must be whole numbers here: the model counts tokens")
    return n


def checked_paths(draws: int, length: int) -> tuple[int, int]:
    """Return the shape of an array of token log-ratios, (draws, length), as integers; raise UserError unless both are
    integers >= 1.
    """
    if not (draws >= 1 and length >= 1 and draws == int(draws) and length == int(length)):
        raise UserError(f"paths of {draws} draws and {length} tokens: both must be whole numbers >= 1")
    return int(draws), int(length)
