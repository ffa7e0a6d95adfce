"""Judge what a table says about a log whose truth is known, and the same with the truth made false."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from proofs_check.frame import Outcome, Verdict, judge
from proofs_check.tools.compare import TINY, close

FAMILY = 50
"""The p-value of a near miss is multiplied by this number before it is judged: it fails by far, or not."""
Function = Callable[[np.random.Generator], Outcome]


def verdict(run: Function, near_miss: bool = False) -> Verdict:
    """The verdict on one outcome, with random numbers of its own."""
    found = run(np.random.default_rng(11))
    return judge(found, None if found.p_value is None else found.p_value * (FAMILY if near_miss else 1))


ROUNDING = 1e-5
"""Largest relative error that the float32 numbers of a log may leave in a number of a table."""
COSINE = 0.1
"""Cosines below this number are compared by their absolute error over it. In a small cosine larger products cancel, and
the rounding of these products is left.
"""


class Pairs:
    """Numbers of a table, each with the exact number that it must be."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.exact: list[float] = []
        self.units: list[float] = []

    def add(self, value: Any, exact: Any, unit: float = 0.0) -> None:
        """Add a number, or several, with what it must be, or what each must be. The error of a number below ``unit`` is
        taken over ``unit``: for numbers that may be 0, and for sums in which larger numbers cancel.
        """
        for numbers, one in zip((self.values, self.exact), np.broadcast_arrays(value, exact), strict=True):
            numbers += one.ravel().tolist()
        self.units += [unit] * (len(self.values) - len(self.units))

    def outcome(self, note: str) -> Outcome:
        """Compare the numbers by their relative error."""
        values, exact = np.array(self.values), np.array(self.exact)
        size = np.maximum(np.abs(exact), np.maximum(self.units, TINY))
        return close(1 + (values - exact) / size, 1, ROUNDING, f"{values.size} numbers of {note}")
