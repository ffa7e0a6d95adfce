"""Ranges of the options that are numbers: how an option declares its range, and how the range is checked."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import inf
from typing import Any

from fspo.base.errors import UserError

MOST = 10**9
"""Largest count that an option may have; a larger one is taken for a typing error."""
SEEDS = 2**32 - 1
"""Largest seed that all random generators of a run accept; NumPy's generator has the smallest limit."""


@dataclass(frozen=True)
class Range:
    """The values that an option may have.

    Attributes
    ----------
    low, high : float
        Least and greatest value.
    above, below : bool
        Whether the value must be above ``low``; whether it must be below ``high``.
    also : tuple of float
        Values outside [low, high] that are allowed as well.
    """

    low: float
    high: float
    above: bool = False
    below: bool = False
    also: tuple[float, ...] = ()

    def cure(self, value: float) -> str | None:
        """Return words that say which values are allowed ("use 1 or more"); None if ``value`` is one of them."""
        if value in self.also:
            return None
        low, high = _text(self.low), _text(self.high)
        if not (value > self.low if self.above else value >= self.low):  # false for NaN, which is thus refused
            wanted = f"a number above {low}" if self.above else f"{low} or more"
        elif not (value < self.high if self.below else value <= self.high):
            wanted = f"a number below {high}" if self.below else f"{high} or less"
        else:
            return None
        return "use " + "".join(f"{_text(one)}, or " for one in self.also) + wanted

    def __str__(self) -> str:
        """Write the range of a number's allowed values as an interval: ``(0, 1]``, ``[1, 1000000000]``."""
        left, right = "(" if self.above else "[", ")" if self.below else "]"
        others = "".join(f" or {_text(one)}" for one in self.also)
        return f"{left}{_text(self.low)}, {_text(self.high)}{right}{others}"


def _text(value: float) -> str:
    if value == inf:
        return ".inf"  # YAML writes infinity as .inf
    return str(value) if isinstance(value, int) else f"{value:.12g}"


def number(
    default: float | None,
    low: float,
    high: float = MOST,
    *,
    above: bool = False,
    below: bool = False,
    also: tuple[float, ...] = (),
) -> Any:
    """Make a dataclass field for a number with a range; with the default None the option may be left out."""
    return field(default=default, metadata={"range": Range(low, high, above, below, also)})


def check_ranges(config: Any, group: str) -> None:
    """Raise UserError if a number in ``config`` is outside the range that its field declares.

    Parameters
    ----------
    group : str
        Name of the group of options; "" for options that belong to no group.

    Raises
    ------
    UserError
        The message names the option, its value and the bound that it breaks.
    """
    for one in fields(config):
        value = getattr(config, one.name)
        allowed: Range | None = one.metadata.get("range")
        if allowed is None or value is None:
            continue
        if cure := allowed.cure(value):
            raise UserError(f"{group + '.' if group else ''}{one.name} is {value}: {cure}")
