"""What a log-ratio model is, and the checks of its input (docs/theory.md section 4)."""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from fspo.base.errors import UserError
from fspo.rules import TokenMeans
from fspo.theory import Floats


class LogRatioModel(Protocol):
    """A law of S given L, sampled in one call; ``mu`` and ``sigma`` are its drift and long-run scale per token.

    The mean is ``mu * L`` and the variance tends to ``sigma**2 * L``, unless the model says otherwise.
    """

    @property
    def mu(self) -> float:
        """Drift, nats per token."""
        ...

    @property
    def sigma(self) -> float:
        """Scale, nats per root token."""
        ...

    def sample(self, rng: np.random.Generator, lengths: ArrayLike) -> Floats:
        """One S for each entry of ``lengths``, in its shape.

        Raises
        ------
        UserError
            If ``lengths`` is empty, below 1 or not finite, or not whole where the model counts tokens.
        """
        ...


@runtime_checkable
class JointModel(LogRatioModel, Protocol):
    """A law of (S, A) given L (T11); ``sample`` gives S alone. A is +1 or -1: rules use its sign alone.

    ``mu`` is the drift without the part that depends on A, and ``sigma`` the scale given A.
    """

    def sample_pair(self, rng: np.random.Generator, lengths: ArrayLike) -> tuple[Floats, Floats]:
        """One (S, A) for each entry of ``lengths``, in its shape."""
        ...

    def positive_share(self, lengths: ArrayLike) -> Floats:
        """P(A > 0 | L) in the shape of ``lengths``."""
        ...


class TokenModel(LogRatioModel, Protocol):
    """A model whose tokens can be drawn one by one, for rules that see tokens or prefixes."""

    def paths(self, rng: np.random.Generator, draws: int, length: int) -> Floats:
        """Log-ratios s_t of ``draws`` responses of ``length`` tokens, (draws, length)."""
        ...


def matching_means(model: LogRatioModel) -> TokenMeans:
    """Means for which drift ``kl`` gives exactly mu (mu <= 0): k3 = -mu; sigma^2 per token beside it."""
    if not model.mu <= 0:
        raise UserError("drift 'kl' is -k3 <= 0: it can match only a model with mu <= 0")
    return TokenMeans(-model.mu, model.sigma**2)


def check_moments(mu: float, sigma: float) -> None:
    """Refuse a drift or a scale that no model can have."""
    if not math.isfinite(mu):
        raise UserError(f"mu={mu} must be finite, in nats per token")
    if not (sigma > 0 and math.isfinite(sigma)):
        raise UserError(f"sigma={sigma} must be > 0 and finite, in nats per root token")


def check_open(name: str, value: float, low: float, high: float, why: str) -> None:
    """Refuse a parameter outside the open interval (low, high)."""
    if not low < value < high:
        raise UserError(f"{name}={value} must lie strictly between {low:g} and {high:g}: {why}")


def checked_lengths(lengths: ArrayLike, whole: bool = False) -> Floats:
    """Lengths as float64, in a view that keeps one entry of each repeated axis (it broadcasts to the given shape).

    Parameters
    ----------
    lengths : array of any shape, tokens
    whole : bool
        Whether the model counts tokens, so that lengths must be whole numbers.

    Raises
    ------
    UserError
        If ``lengths`` is empty, below 1, not finite, or not whole where it must be.
    """
    given = np.asarray(lengths)
    if given.size == 0:
        raise UserError("lengths are empty: give at least one length")
    # np.broadcast_to marks repeated axes by stride 0: nothing is computed twice for them
    n = given[tuple(slice(None) if stride else slice(0, 1) for stride in given.strides)].astype(np.float64, copy=False)
    if not (n.min() >= 1 and n.max() < math.inf):
        raise UserError("lengths must be finite and >= 1 token; the end of sequence counts")
    if whole and np.any(n != np.floor(n)):
        raise UserError("lengths must be whole numbers here: the model counts tokens")
    return n


def checked_paths(draws: int, length: int) -> tuple[int, int]:
    """The shape of token paths, refused unless both are whole and >= 1."""
    if not (draws >= 1 and length >= 1 and draws == int(draws) and length == int(length)):
        raise UserError(f"paths of {draws} draws and {length} tokens: both must be whole numbers >= 1")
    return int(draws), int(length)
