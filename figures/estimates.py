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
    """One rule's estimates with intervals, arrays (K,), its colour and marker, and the places ``at`` on the axis where
    they are drawn.
    """

    rule: str
    look: Look
    at: NDArray[np.float64]
    estimate: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True)
class ComputedLaw:
    """One rule's curve from a formula, arrays x, y (K,), and simulated points of the same quantity."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    points: Estimates


def estimates_of(
    rows: Frame, rule: str, look: Look, at: str, value: str = "estimate", ends: Sequence[str] = ENDS
) -> Estimates:
    """Return as `Estimates` the table rows that have a value in column ``value``, ordered by the column ``at``, which
    places them on the axis. ``ends``: columns of the interval.
    """
    rows = rows[rows[value].notna()].sort_values(at)
    return Estimates(rule, look, *(rows[name].to_numpy(float) for name in (at, value, *ends)))


def by_run(rows: Frame, at: str, rule: str = "rule") -> list[Estimates]:
    """Return `Estimates` of each run of each rule, in the order of legends. ``at`` is the column of places on the axis,
    ``rule`` the one that names the rule.
    """
    return [
        estimates_of(part, name, look, at)
        for name, look in looks(rows[rule]).items()
        for _, part in rows[rows[rule] == name].groupby("run")
    ]
