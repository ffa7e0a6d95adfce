"""Sums by group of clusters and bin: what all rules share, and what one of them does to the rows of a window."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.layout import Layout
from analysis.rows import Floats, Ints
from analysis.stats import totals
from fspo.rules import MAX_EXPONENT


@dataclass
class Base:
    """Sums of a weight w by group: of w by bin, of w x and w x^2, and of x less its mean in the window."""

    d: Floats  # (G, K)
    squares: Floats  # (K,) of w^2
    x: Floats  # (G,)
    xx: Floats
    within_x: Floats
    within_xx: Floats

    @staticmethod
    def of(groups: int, bins: int) -> Base:
        """Zeros."""
        return Base(np.zeros((groups, bins)), np.zeros(bins), *(np.zeros(groups) for _ in range(4)))


@dataclass
class Column:
    """Sums of a numerator y by group: by bin, times x, and about the window's means; y^2 by bin; y by pair."""

    y: Floats  # (G, K)
    xy: Floats  # (G,)
    within: Floats  # (G,)
    squares: Floats  # (K,)
    rejected: Ints  # (P,) rows with y = 0 by (group, cell), or empty

    @staticmethod
    def of(groups: int, bins: int, pairs: int) -> Column:
        """Zeros."""
        return Column(
            np.zeros((groups, bins)), np.zeros(groups), np.zeros(groups), np.zeros(bins), np.zeros(pairs, np.int64)
        )


def plus(one: Any, other: Any) -> None:
    """Add the arrays of one record to another's."""
    for name, values in vars(other).items():
        getattr(one, name).__iadd__(values)


@dataclass
class SubsetSums:
    """What all rules share in one use and subset."""

    count: Ints  # (K+1,)
    clusters: Ints  # (K+1,)
    coordinate: Floats  # (K+1,)
    pairs: Ints  # (P,) rows by (group, cell)
    bases: dict[str, Base] = field(default_factory=dict)


@dataclass
class Sums:
    """Everything of one use."""

    subsets: dict[str, SubsetSums]
    columns: dict[tuple[int, str, str], Column] = field(default_factory=dict)  # case, measure, subset
    sides: dict[tuple[int, str], Floats] = field(default_factory=dict)  # case, side
    unlike: Floats = field(default_factory=lambda: np.zeros(0))  # rows by group with a logged multiplier other than 1
    ranges: dict[tuple[int, str], dict[int, tuple[float, float]]] = field(default_factory=dict)  # case, rate
    reasons: dict[tuple[int, str], str] = field(default_factory=dict)


class Part:
    """The rows of one subset in one window, and the sums of each weight over them."""

    def __init__(self, layout: Layout, S: Floats, L: Floats, group: Ints, bins: Ints, x: Floats, pair: Ints) -> None:
        self.groups, self.number = layout.groups, len(layout.bins)
        self.S, self.L, self.group, self.bins, self.x, self.pair = S, L, group, bins, x, pair
        self.key = group * self.number + bins
        self._weights: dict[str, Floats] = {}
        self._bases: dict[str, Base] = {}

    def weight(self, kind: str) -> Floats:
        """w (n,): 1, exp(S) or exp(S/L), the exponent capped."""
        if kind not in self._weights:
            if kind == "one":
                self._weights[kind] = np.ones(len(self.S))
            else:
                exponent = self.S if kind == "sequence" else self.S / self.L
                self._weights[kind] = np.exp(np.minimum(exponent, MAX_EXPONENT))
        return self._weights[kind]

    def base(self, kind: str) -> Base:
        """Sums of a weight."""
        if kind not in self._bases:
            w, (y, xy, squares) = self.weight(kind), self.dense(self.weight(kind))
            xx = totals(self.group, self.groups, w * self.x * self.x)
            total = float(y.sum())
            mean = float(xy.sum()) / total if total > 0 else 0.0
            s = y.sum(1)
            self._bases[kind] = Base(y, squares, xy, xx, xy - mean * s, xx - 2 * mean * xy + mean * mean * s)
        return self._bases[kind]

    def by_key(self, at: Ints, values: Floats | None = None) -> Floats:
        """Sums (G, K) over some rows of their values, or their number."""
        return totals(self.key[at], self.groups * self.number, values).reshape(self.groups, self.number)

    def dense(self, y: Floats) -> tuple[Floats, Floats, Floats]:
        """Sums by group and bin, times x by group, and squares by bin, of all rows."""
        by_key = totals(self.key, self.groups * self.number, y).reshape(self.groups, self.number)
        return by_key, totals(self.group, self.groups, self.x * y), totals(self.bins, self.number, y * y)

    def add(self, column: Column, kind: str, y: Floats, xy: Floats, squares: Floats) -> None:
        """Add sums of y to a column; within the window x and y are centred on their means."""
        base = self.base(kind)
        total = float(base.d.sum())
        column.y += y
        column.xy += xy
        column.squares += squares
        if total > 0:
            mean_x, mean_y = float(base.x.sum()) / total, float(y.sum()) / total
            column.within += (xy - mean_y * base.x) - mean_x * (y.sum(1) - mean_y * base.d.sum(1))

    def binary(self, column: Column, rejected: Ints) -> None:
        """Add an indicator that is 0 in the rows ``rejected`` and 1 in the others."""
        base = self.base("one")
        y = base.d - self.by_key(rejected)
        group = self.group[rejected]
        xy = base.x - np.bincount(group, self.x[rejected], self.groups)
        self.add(column, "one", y, xy, y.sum(0))
        if len(column.rejected):
            np.add.at(column.rejected, self.pair[rejected], 1)

    def weighted(self, column: Column, kind: str, cut: Ints, clipped: Floats) -> None:
        """Add the clipped weight: ``clipped`` in the rows ``cut``, the weight in the others."""
        base, w = self.base(kind), self.weight(kind)
        before = w[cut]
        if 2 * len(cut) > len(w) or 2 * float(np.sum(before * before)) > float(base.squares.sum()):
            # what is left is small beside what is cut: a difference would lose its digits
            y = w.copy()
            y[cut] = clipped
            self.add(column, kind, *self.dense(y))
            return
        lost = before - clipped
        xy = base.x - np.bincount(self.group[cut], self.x[cut] * lost, self.groups)
        squares = base.squares - np.bincount(self.bins[cut], before * before - clipped * clipped, self.number)
        self.add(column, kind, base.d - self.by_key(cut, lost), xy, squares)


def merge(ours: dict[Any, Any], theirs: dict[Any, Any]) -> None:
    for name, found in theirs.items():
        if name in ours:
            plus(ours[name], found)
        else:
            ours[name] = found
