"""Numbers that a formula may take: everything else is a UserError that names the argument and its range."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fspo.base.errors import UserError


def as_numbers(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """``value`` as float64, NaN and all.

    Raises
    ------
    UserError
        For anything that is no number or no regular array of numbers.
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
    """``value`` as float64 within [low, high].

    Parameters
    ----------
    name, why : str
        How the message calls the argument, and what it adds.
    above : bool
        ``low`` itself is refused.
    infinite : bool
        Infinite values are allowed; NaN never is.

    Raises
    ------
    UserError
        For anything that is no number, NaN, or outside the range.
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
    """The same for one number."""
    array = numbers(name, value, low, high, **options)
    if array.ndim:
        raise UserError(f"{name} must be one number, not an array of shape {array.shape}")
    return float(array)


def checked_seed(name: str, seed: int) -> int:
    """A seed in [0, 2**63), the range that every random generator of the suite takes.

    Raises
    ------
    UserError
        For any other number.
    """
    if not 0 <= seed < 2**63:
        raise UserError(f"{name} {seed} must be >= 0 and < 2**63: give another whole number")
    return seed


def checked_count(name: str, value: int, low: int, high: int, why: str) -> int:
    """A whole number in [low, high].

    Raises
    ------
    UserError
        For any other number, with ``why``.
    """
    if not low <= value <= high:
        raise UserError(f"{name} {value} must be at least {low} and at most {high}: {why}")
    return value


def checked_lengths(lengths: ArrayLike) -> NDArray[np.float64]:
    """Lengths in tokens as float64, none below 1."""
    return numbers("lengths", lengths, 1, why="tokens")


def one_shape(names: str, *arrays: NDArray[np.float64]) -> None:
    """Refuse arrays that cannot be broadcast against each other.

    Raises
    ------
    UserError
        With their names and shapes.
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
