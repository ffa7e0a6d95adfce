"""Checks of numeric arguments: a value that a formula cannot take raises a UserError that names the argument and its
allowed range."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fspo.base.errors import UserError


def as_numbers(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """Return ``value`` as a float64 array, NaN and infinities kept; raise UserError, whose message names it ``name``,
    if it is no regular array of numbers."""
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name} must be a number or a regular array of numbers: {error}") from None


def numbers(
    name: str,
    value: ArrayLike,
    low: float = -np.inf,
    high: float = np.inf,
    *,
    above: bool = False,
    infinite: bool = False,
    why: str = "",
) -> NDArray[np.float64]:
    """Return ``value`` as a float64 array after checking that every entry lies within [low, high].

    Parameters
    ----------
    name, why : str
        Name of the argument in the error message, and a reason to add to that message.
    above : bool
        Whether ``low`` itself is refused.
    infinite : bool
        Whether infinite values are allowed; NaN never is.

    Raises
    ------
    UserError
        If there is no entry, or an entry is not a number, is NaN or lies outside the range.
    """
    array = as_numbers(name, value)
    good = (array > low) if above else (array >= low)
    good &= array <= high
    if not infinite:
        good &= np.isfinite(array)
    if array.size == 0 or not np.all(good):
        kind = "numbers" if infinite else "finite numbers"
        wanted = f"{kind} in {'(' if above else '['}{low:g}, {high:g}]{why and ': ' + why}"
        raise UserError(f"{name} must be {wanted}; got {f'{array[~good].flat[0]:g}' if array.size else 'nothing'}")
    return array


def number(name: str, value: Any, low: float = -np.inf, high: float = np.inf, **options: Any) -> float:
    """Return ``value`` as a float after checking that it is one number, not NaN, within [low, high]. ``name`` names it
    in the message of the UserError; ``options`` are ``above``, ``infinite`` and ``why``, as in `numbers`."""
    array = numbers(name, value, low, high, **options)
    if array.ndim:
        raise UserError(f"{name} must be one number, not an array of shape {array.shape}")
    return float(array)


def checked_count(name: str, value: int, low: int, high: int, why: str) -> int:
    """Return the whole number ``value`` if it lies in [low, high]; else raise UserError, whose message begins with
    ``name`` and ends with ``why``, a reason or a fix."""
    if not low <= value <= high:
        raise UserError(f"{name} {value} must be at least {low} and at most {high}: {why}")
    return value


def checked_seed(name: str, seed: int) -> int:
    """Return the seed if it lies in [0, 2**63), the range that all our random generators take; else raise UserError."""
    return checked_count(name, seed, 0, 2**63 - 1, "give another whole number")


def checked_lengths(lengths: ArrayLike) -> NDArray[np.float64]:
    """Return lengths (tokens) as float64; raise UserError if one is below 1."""
    return numbers("lengths", lengths, 1, why="tokens")


def one_shape(names: str, *arrays: NDArray[np.float64]) -> None:
    """Raise UserError, with the arrays' ``names`` (one text) and shapes, unless they can be broadcast together."""
    try:
        np.broadcast_shapes(*(array.shape for array in arrays))
    except ValueError:
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise UserError(f"{names} have shapes {shapes}: give one entry for each length or bin") from None
