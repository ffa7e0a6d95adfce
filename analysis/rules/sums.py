"""Sums by group of clusters and bin: what all rules share, and what one of them does to the rows of a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from analysis.log.rows import Floats, Ints
from analysis.rules.layout import Layout
from fspo.rules import Weight, exponent, importance_weight
from fspo.stats.clusters import totals

SMALL = 1e-3
"""Share of a bin's sum of squared weights below which what a cut leaves of them is summed anew."""


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
    squares: Floats  # (K,), of weights
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

    @staticmethod
    def of(layout: Layout) -> SubsetSums:
        """Zeros."""
        count, clusters, pairs = (np.zeros(n, np.int64) for n in (len(layout.bins) + 1,) * 2 + (layout.number,))
        return SubsetSums(count, clusters, np.zeros(len(layout.bins) + 1), pairs)

    def add(self, other: SubsetSums) -> None:
        """Add the sums over other rows."""
        for name in ("count", "clusters", "coordinate", "pairs"):
            getattr(self, name).__iadd__(getattr(other, name))
        for kind, base in other.bases.items():
            plus(self.bases.setdefault(kind, Base.of(*base.d.shape)), base)

    def without(self, other: SubsetSums) -> SubsetSums:
        """The sums without those over some of the rows."""
        bases = {
            kind: Base(**{name: values - getattr(other.bases[kind], name) for name, values in vars(base).items()})
            for kind, base in self.bases.items()
        }
        return SubsetSums(
            self.count - other.count,
            self.clusters - other.clusters,
            self.coordinate - other.coordinate,
            self.pairs - other.pairs,
            bases,
        )


@dataclass
class Sums:
    """Everything of one use."""

    subsets: dict[str, SubsetSums]
    columns: dict[tuple[int, str, str], Column] = field(default_factory=dict)  # case, measure, subset
    sides: dict[tuple[int, str], Floats] = field(default_factory=dict)  # case, side
    unlike: Floats = field(default_factory=lambda: np.zeros(0))  # rows by group with a logged multiplier other than 1
    ranges: dict[tuple[int, str], dict[int, tuple[float, float]]] = field(default_factory=dict)  # case, rate
    no_range: dict[tuple[int, str], dict[int, str]] = field(default_factory=dict)
    """By case and rate: the windows in which no range gives the target, and why."""
    left_out: dict[tuple[int, str, str], SubsetSums] = field(default_factory=dict)
    """By case, rate and subset: the rows of those windows."""
    reasons: dict[tuple[int, str], str] = field(default_factory=dict)

    def counted(self, i: int, rate: str, subset: str) -> SubsetSums:
        """The sums over the windows in which a case can be evaluated."""
        found = self.left_out.get((i, rate, subset))
        return self.subsets[subset] if found is None else self.subsets[subset].without(found)


class Part:
    """The rows of one subset in one window, and the sums of each weight over them."""

    def __init__(self, layout: Layout, S: Floats, L: Floats, group: Ints, bins: Ints, x: Floats, pair: Ints) -> None:
        self.groups, self.number = layout.groups, len(layout.bins)
        self.S, self.L, self.group, self.bins, self.x, self.pair = S, L, group, bins, x, pair
        self.key = group * self.number + bins
        self._weights: dict[str, Floats] = {}
        self._bases: dict[str, tuple[Base, Floats]] = {}

    def weight(self, kind: str) -> Floats:
        """w (n,): 1, exp(S) or exp(S/L), the exponent capped."""
        if kind not in self._weights:
            if kind == "one":
                self._weights[kind] = np.ones(len(self.S))
            else:
                self._weights[kind] = importance_weight(exponent(self.S, self.L, cast(Weight, kind)))
        return self._weights[kind]

    def base(self, kind: str) -> Base:
        """Sums of a weight."""
        return self._summed(kind)[0]

    def _summed(self, kind: str) -> tuple[Base, Floats]:
        """Sums of a weight, and by group alone (G,)."""
        if kind not in self._bases:
            w, (y, xy, squares) = self.weight(kind), self.dense(self.weight(kind))
            xx = totals(self.group, self.groups, w * self.x * self.x)
            s = y.sum(1)
            total = float(s.sum())
            mean = float(xy.sum()) / total if total > 0 else 0.0
            base = Base(y, squares, xy, xx, xy - mean * s, xx - 2 * mean * xy + mean * mean * s)
            self._bases[kind] = base, s
        return self._bases[kind]

    def dense(self, y: Floats) -> tuple[Floats, Floats, Floats]:
        """Sums by group and bin, times x by group, and squares by bin, of all rows."""
        by_key = totals(self.key, self.groups * self.number, y).reshape(self.groups, self.number)
        return by_key, totals(self.group, self.groups, self.x * y), totals(self.bins, self.number, y * y)

    def add(self, columns: Sequence[Column], kind: str, y: Floats, by_group: Floats, xy: Floats) -> None:
        """Add sums of M numerators to a column each; within the window x and y are centred on their means.

        Parameters
        ----------
        y : array (M, G, K)
        by_group, xy : array (M, G)
            Sums of y, and of x y.
        """
        base, s = self._summed(kind)
        total = float(s.sum())
        within = np.zeros_like(xy)
        if total > 0:
            mean_x, mean_y = float(base.x.sum()) / total, by_group.sum(1, keepdims=True) / total
            # in this order the sums vanish exactly where y does not vary
            within = (xy - mean_y * base.x) - mean_x * (by_group - mean_y * s)
        for j, column in enumerate(columns):
            column.y += y[j]
            column.xy += xy[j]
            column.within += within[j]

    def binary(self, columns: Sequence[Column], cuts: Cuts) -> None:
        """Add indicators that are 0 in the rows of a cut each and 1 in the others."""
        base, s = self._summed("one")
        self.add(columns, "one", base.d - cuts.counts, s - cuts.by_group(), base.x - cuts.by_group(cuts.x))
        for column, cut in zip(columns, cuts.cuts, strict=True):
            if len(column.rejected):
                np.add.at(column.rejected, self.pair[cut], 1)

    def weighted(self, columns: Sequence[Column], kind: str, cuts: Cuts, clipped: Floats) -> None:
        """Add the clipped weight: ``clipped`` in the stacked rows of the cuts, the weight in the others."""
        (base, s), w, m = self._summed(kind), self.weight(kind), len(cuts.cuts)
        before = w[cuts.at]
        lost = before - clipped
        y, by_group = base.d - cuts.by_key(lost), s - cuts.by_group(lost)
        xy = base.x - cuts.by_group(cuts.x * lost)
        code = cuts.place * self.number + self.bins[cuts.at]
        squares = base.squares - totals(code, m * self.number, before * before - clipped * clipped).reshape(m, -1)
        # what is left of a bin is small beside what is cut: a difference would lose its digits
        small = np.any(squares < SMALL * base.squares, axis=1)
        for j in np.flatnonzero(small):
            left = w.copy()
            left[cuts.cuts[j]] = clipped[cuts.place == j]
            y[j], xy[j], squares[j] = self.dense(left)
            by_group[j] = y[j].sum(1)
        self.add(columns, kind, y, by_group, xy)
        for column, found in zip(columns, squares, strict=True):
            column.squares += found


class Cuts:
    """Several sets of rows of a part, M cuts, one behind the other: what rejects them costs one pass for all.

    Attributes
    ----------
    at, place : int array (R,)
        Rows, and which cut each belongs to.
    sizes : int array (M,)
    counts : array (M, G, K)
        Rows by group and bin.
    """

    def __init__(self, part: Part, cuts: Sequence[Ints]) -> None:
        self.part, self.cuts = part, list(cuts)
        self.sizes = np.array([len(cut) for cut in cuts])
        self.at, self.place = np.concatenate(self.cuts), np.repeat(np.arange(len(self.cuts)), self.sizes)
        self._key = self.place * (part.groups * part.number) + part.key[self.at]
        self._group = self.place * part.groups + part.group[self.at]
        self.x = part.x[self.at]
        self.counts = self.by_key()

    def by_key(self, values: Floats | None = None, where: np.ndarray | None = None) -> Floats:
        """Sums (M, G, K) of values (R,), or numbers of rows, over those of a mask."""
        m, g, k = len(self.cuts), self.part.groups, self.part.number
        return totals(self._key if where is None else self._key[where], m * g * k, values).reshape(m, g, k)

    def by_group(self, values: Floats | None = None) -> Floats:
        """The same by group alone (M, G)."""
        return totals(self._group, len(self.cuts) * self.part.groups, values).reshape(-1, self.part.groups)


def merge(ours: dict[Any, Any], theirs: dict[Any, Any]) -> None:
    """Add another part's sums to ours, in place; names that we lack are taken over."""
    for name, found in theirs.items():
        if name in ours:
            plus(ours[name], found)
        else:
            ours[name] = found
