"""Ranges of the options that are numbers: how an option declares its range, and how the range is checked."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, NamedTuple

from fspo.base.errors import UserError

MOST = 10**9
"""Largest count that an option may have; a larger one is taken for a typing error."""
SEEDS = 2**32 - 1
"""Largest seed that all random generators of a run accept; NumPy's generator has the smallest limit."""


class Range(NamedTuple):
    """The values that a number may have: from ``low`` to ``high``, and those in ``also``. ``above`` and ``below`` say
    whether ``low`` and ``high`` themselves are excluded."""

    low: float
    high: float
    above: bool
    below: bool
    also: tuple[float, ...]

    def fix(self, value: float) -> str | None:
        """Return words that say which values are allowed ("use 1 or more"); None if ``value`` is one of them."""
        low, high = _text(self.low), _text(self.high)
        if value in self.also:
            return None
        if not (value > self.low if self.above else value >= self.low):  # false for NaN, which is thus refused
            wanted = f"a number above {low}" if self.above else f"{low} or more"
        elif not (value < self.high if self.below else value <= self.high):
            wanted = f"a number below {high}" if self.below else f"{high} or less"
        else:
            return None
        return "use " + "".join(f"{_text(one)}, or " for one in self.also) + wanted


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
    """Make a dataclass field for a number with the default ``default`` (None: the option may be left out) that must lie
    from ``low`` to ``high``, without ``low`` itself if ``above`` and ``high`` if ``below``, or be one of ``also``."""
    return field(default=default, metadata={"range": Range(low, high, above, below, also)})


def check_ranges(config: Any, group: str) -> None:
    """Raise UserError if a number in ``config`` is outside the range that its field declares.

    The message names the option, its group of options (``group``; "" for none), its value and the bound that it breaks.
    """
    for one in fields(config):
        value, allowed = getattr(config, one.name), one.metadata.get("range")
        if allowed is not None and value is not None and (fix := allowed.fix(value)):
            raise UserError(f"{group + '.' if group else ''}{one.name} is {value}: {fix}")


@dataclass(frozen=True)
class Ranged:
    """Base class of groups of options. A group is a dataclass, and its numbers must lie in the ranges of their fields
    when it is made, else a UserError is raised. It names the option and the group (``class C(Ranged, group=NAME)``)."""

    _group = ""

    def __init_subclass__(cls, group: str) -> None:
        cls._group = group

    def __post_init__(self) -> None:
        check_ranges(self, self._group)
