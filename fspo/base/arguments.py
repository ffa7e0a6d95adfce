"""Checks of numeric arguments: a value that a formula cannot take raises a UserError that names the argument and its
allowed range.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fspo.base.errors import UserError


def as_numbers(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """Return ``value`` as a float64 array; NaN and infinities are kept.

    Raises
    ------
    UserError
        If ``value`` is not a number and not a regular array of numbers.
    """
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
        raise UserError(
            f"{name} must be {_range(low, high, above, infinite)}{why and ': ' + why}; got {_shown(array, good)}"
        )
    return array


def number(name: str, value: Any, low: float = -np.inf, high: float = np.inf, **options: Any) -> float:
    """Return ``value`` as a float after checking that it is one number, not NaN, within [low, high].

    ``options`` are the further options of `numbers`, the same check for arrays.
    """
    array = numbers(name, value, low, high, **options)
    if array.ndim:
        raise UserError(f"{name} must be one number, not an array of shape {array.shape}")
    return float(array)


def checked_seed(name: str, seed: int) -> int:
    """Return a seed after checking that it lies in [0, 2**63), the range that all our random generators take.

    Raises
    ------
    UserError
        If the seed lies outside this range.
    """
    if not 0 <= seed < 2**63:
        raise UserError(f"{name} {seed} must be >= 0 and < 2**63: give another whole number")
    return seed


def checked_count(name: str, value: int, low: int, high: int, why: str) -> int:
    """Return a whole number after checking that it lies in [low, high].

    Raises
    ------
    UserError
        If the number lies outside the range; the message ends with ``why``, a reason or a cure in words.
    """
    if not low <= value <= high:
        raise UserError(f"{name} {value} must be at least {low} and at most {high}: {why}")
    return value


def checked_lengths(lengths: ArrayLike) -> NDArray[np.float64]:
    """Return lengths (tokens) as float64; raise UserError if one is below 1."""
    return numbers("lengths", lengths, 1, why="tokens")


def one_shape(names: str, *arrays: NDArray[np.float64]) -> None:
    """Raise UserError unless the arrays can be broadcast against each other.

    Raises
    ------
    UserError
        If the shapes do not fit; the message holds the shapes and ``names``, one text that names the arrays.
    """
    try:
        np.broadcast_shapes(*(array.shape for array in arrays))
    except ValueError:
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise UserError(f"{names} have shapes {shapes}: give one entry for each length or bin") from None


def _range(low: float, high: float, above: bool, infinite: bool) -> str:
    kind = "numbers" if infinite else "finite numbers"
    if np.isfinite(low) and np.isfinite(high):
        return f"in {'(' if above else '['}{low:g}, {high:g}]"
    if np.isfinite(low):
        return f"{kind} {'>' if above else '>='} {low:g}"
    return f"{kind} <= {high:g}" if np.isfinite(high) else kind


def _shown(array: NDArray[np.float64], good: NDArray[np.bool_]) -> str:
    return f"{array[~good].flat[0]:g}" if array.size else "nothing"
