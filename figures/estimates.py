"""Arrays of estimates with intervals for one rule, in the form in which several figures draw them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from figures.style import Look, looks
from figures.tables import Frame

ENDS = ("ci_low", "ci_high")


@dataclass(frozen=True)
class Estimates:
    """One rule's estimates with intervals, arrays (K,), and the coordinates ``at`` where they are drawn."""

    rule: str
    look: Look
    at: NDArray[np.float64]
    estimate: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True)
class ComputedLaw:
    """One rule's computed curve, arrays (K,), and simulated points beside it."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    points: Estimates


def estimates_of(
    rows: Frame, rule: str, look: Look, at: str, value: str = "estimate", ends: Sequence[str] = ENDS
) -> Estimates:
    """Return the rows that have a value as `Estimates`, in the order of the column ``at``."""
    rows = rows[rows[value].notna()].sort_values(at)
    return Estimates(rule, look, *(rows[name].to_numpy(float) for name in (at, value, *ends)))


def by_run(rows: Frame, at: str, rule: str = "rule") -> list[Estimates]:
    """Return `Estimates` of each run of each rule, in drawing order; ``rule`` is the column that names the rule."""
    return [
        estimates_of(part, name, look, at)
        for name, look in looks(rows[rule]).items()
        for _, part in rows[rows[rule] == name].groupby("run")
    ]
