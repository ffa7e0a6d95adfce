"""Make the sums over the rows of a log, by group of clusters and by bin, from which acceptances are computed.

The sums in denominators and the numbers of rows are the same for all rules. The sums in numerators are made for each
rule from what the rule accepts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from analysis.log.rows import Floats, Ints
from analysis.rules.layout import Grouping
from fspo.rules import Weight, exponent, importance_weight
from fspo.stats.clusters import totals

SMALL = 1e-3
"""If a rule leaves less than this share of some bin's sum of squared weights, the clipped weights of all rows are added
up. Otherwise the sums of clipped weights are computed as a difference: the sums of unclipped weights less the sums of
the weight that the rule removes. The difference loses digits where little weight is left.
"""


@dataclass
class Base:
    """Sums over rows of a weight w (1, exp(S) or exp(S/L)), for each of G groups of clusters. An acceptance has the sum
    of w as its denominator.

    Sums of w and of w^2 are kept for each of K bins. Sums of w x and w x^2 are over all bins; x is log2 of the length
    (``Rows.trend``) less ``Grouping.reference``. In ``within_x`` and ``within_xx`` the weighted mean of x in the window
    is subtracted from x.
    """

    d: Floats  # by group of clusters and bin (G, K): sums of the weight w, the denominator of an acceptance
    squares: Floats  # by group of clusters and bin (G, K): sums of w^2, w the weight of a row
    x: Floats  # by group of clusters (G,): sums of w x, with the weight w and x = log2 of the length less a reference
    xx: Floats
    within_x: Floats
    within_xx: Floats

    @staticmethod
    def of(groups: int, bins: int) -> Base:
        """Return sums over no rows: every sum is 0."""
        by_bin = (np.zeros((groups, bins)) for _ in range(2))
        return Base(*by_bin, *(np.zeros(groups) for _ in range(4)))


@dataclass
class ValueSums:
    """Sums over rows of y, for each of G groups of clusters.

    y is what a row adds to the numerator of an acceptance: 0 or 1, its multiplier M, or its clipped weight. Sums of y
    and of y^2 are kept for each of K bins. The sum of x y is over all bins; x is log2 of the length (``Rows.trend``)
    less ``Grouping.reference``.
    """

    y: Floats  # by group of clusters and bin (G, K): sums of y, what a row adds to an acceptance's numerator
    # By group of clusters (G,): sums of x y, where x is log2 of the length less a reference, and y is what a row adds
    # to the numerator.
    xy: Floats
    # By group of clusters (G,): sums of (x - mean of x) (y - mean of y), with means over the window's rows. x is log2
    # of the length less a reference, and y is what a row adds to the numerator of an acceptance.
    within: Floats
    # By group of clusters and bin (G, K): sums of y^2, y what a row adds to the numerator of an acceptance. They are
    # kept for weight acceptance, whose y is a clipped weight; else the array is empty.
    squares: Floats
    # For each of P pairs of a group of clusters and a cell (a coordinate, or a narrow range of coordinates): number of
    # rows that add 0 to the numerator of an acceptance; empty where not needed.
    rejected: Ints

    @staticmethod
    def of(groups: int, bins: int, pairs: int, weights: bool) -> ValueSums:
        """Return sums that are all 0, to which rows will be added. ``weights`` says whether the summed value y is a
        clipped weight; y^2 is then summed too.
        """
        by_group = np.zeros(groups), np.zeros(groups)
        squares = np.zeros((groups if weights else 0, bins))
        return ValueSums(np.zeros((groups, bins)), *by_group, squares, np.zeros(pairs, np.int64))


def plus(one: Any, other: Any) -> None:
    """Add every array field of ``other`` to the field of the same name of ``one``, in place."""
    for name, values in vars(other).items():
        getattr(one, name).__iadd__(values)


@dataclass
class SubsetSums:
    """Sums that do not depend on a rule, over the rows of one use (first, reused) and subset (all, A != 0)."""

    count: Ints  # (K+1,) number of rows in each of K bins; the last entry is the number in all bins
    clusters: Ints  # (K+1,) number of clusters with a row in each of K bins; last, in all bins
    coordinate: Floats  # (K+1,) sum of the rows' coordinates in each of K bins; last, in all bins
    # (P,) number of rows for each pair of a group of clusters and a cell (one coordinate, or a narrow range of them)
    pairs: Ints
    bases: dict[str, Base] = field(default_factory=dict)

    @staticmethod
    def of(layout: Grouping) -> SubsetSums:
        """Return sums over no rows, all 0, for the bins and the groups of clusters of ``layout``."""
        count, clusters, pairs = (np.zeros(n, np.int64) for n in (len(layout.bins) + 1,) * 2 + (layout.number,))
        return SubsetSums(count, clusters, np.zeros(len(layout.bins) + 1), pairs)

    def add(self, other: SubsetSums) -> None:
        """Add to these sums, in place, the same sums over other rows."""
        for name in ("count", "clusters", "coordinate", "pairs"):
            getattr(self, name).__iadd__(getattr(other, name))
        for kind, base in other.bases.items():
            plus(self.bases.setdefault(kind, Base.of(*base.d.shape)), base)

    def without(self, other: SubsetSums) -> SubsetSums:
        """Return these sums less the sums ``other`` over a part of the rows: the sums over the remaining rows."""
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
    """All sums from which acceptances are computed, over the rows of one use: "first" or "reused"."""

    subsets: dict[str, SubsetSums]
    # For each case, kind of acceptance and subset of rows: sums over rows of the acceptance's numerator.
    columns: dict[tuple[int, str, str], ValueSums] = field(default_factory=dict)
    # By case and side (low, high, dual): number of rows that are cut on that side, by group of clusters and bin.
    sides: dict[tuple[int, str], Floats] = field(default_factory=dict)
    # By group of clusters: number of rows whose logged M is not 1.
    unlike: Floats = field(default_factory=lambda: np.zeros(0))
    # By case and kind of acceptance: the range (lo, hi) in each window, by its first rollout (-1: all windows).
    ranges: dict[tuple[int, str], dict[int, tuple[float, float]]] = field(default_factory=dict)
    no_range: dict[tuple[int, str], dict[int, str]] = field(default_factory=dict)
    """By case and kind of acceptance: the windows (named by their first rollout) in which no range gives the target,
    with the reason.
    """
    left_out: dict[tuple[int, str, str], SubsetSums] = field(default_factory=dict)
    """Sums over the rows of windows in which a case found no range, by case, kind of acceptance and subset."""
    reasons: dict[tuple[int, str], str] = field(default_factory=dict)

    def counted(self, i: int, rate: str, subset: str) -> SubsetSums:
        """Return the sums over the rows of a subset (all, A != 0), without the windows in which case ``i`` has no range
        that gives its target of the acceptance ``rate``.
        """
        found = self.left_out.get((i, rate, subset))
        return self.subsets[subset] if found is None else self.subsets[subset].without(found)


class Part:
    """The rows of one subset (all, A != 0) in one window, and sums over them of a weight: 1, exp(S) or exp(S/L)."""

    def __init__(self, layout: Grouping, S: Floats, L: Floats, group: Ints, bins: Ints, x: Floats, pair: Ints) -> None:
        self.groups, self.number = layout.groups, len(layout.bins)
        self.S, self.L, self.group, self.bins, self.x, self.pair = S, L, group, bins, x, pair
        self.key = group * self.number + bins
        self._weights: dict[str, Floats] = {}
        self._bases: dict[str, tuple[Base, Floats]] = {}

    def weight(self, kind: str) -> Floats:
        """Return the weight w (n,) that ``kind`` names: 1 ("one"), or exp(S) or exp(S/L) with the exponent held at
        MAX_EXPONENT.
        """
        if kind not in self._weights:
            if kind == "one":
                self._weights[kind] = np.ones(len(self.S))
            else:
                self._weights[kind] = importance_weight(exponent(self.S, self.L, cast(Weight, kind)))
        return self._weights[kind]

    def base(self, kind: str) -> Base:
        """Return the sums `Base` of the weight that ``kind`` names: 1 ("one"), exp(S) or exp(S/L)."""
        return self._summed(kind)[0]

    def _summed(self, kind: str) -> tuple[Base, Floats]:
        """Return two things about the weight that ``kind`` names (1, exp(S) or exp(S/L)): its sums by group of clusters
        and bin, as a `Base`, and its sums by group of clusters over all bins, (G,)."""
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
        """Return sums over the n rows: of y by group of clusters and bin (G, K), of x y by group (G,), and of y^2 by
        group and bin (G, K).

        ``y`` is an array (n,). x is the coordinate along which slopes are fitted: log2 of the length less a reference.
        """
        by_key, squares = (
            totals(self.key, self.groups * self.number, v).reshape(self.groups, self.number) for v in (y, y * y)
        )
        return by_key, totals(self.group, self.groups, self.x * y), squares

    def add(self, columns: Sequence[ValueSums], kind: str, y: Floats, by_group: Floats, xy: Floats) -> None:
        """Add to each of M ``ValueSums`` its sums over the rows of this `Part`.

        Each of the ``ValueSums`` has its own y, the number of a row that the numerator of an acceptance adds up: for
        example what one rule, at one of M ranges, leaves of the row's weight. x is log2 of the length less a reference.

        Parameters
        ----------
        kind : str
            The weight that the denominator adds up: 1 ("one"), exp(S) or exp(S/L), see ``weight``.
        y : array (M, G, K)
            Sums of y by group of clusters and bin.
        by_group, xy : array (M, G)
            Sums of y and of x y by group of clusters.
        """
        base, s = self._summed(kind)
        total = float(s.sum())
        within = np.zeros_like(xy)
        if total > 0:
            mean_x, mean_y = float(base.x.sum()) / total, by_group.sum(1, keepdims=True) / total
            # Sum of (x - mean x)(y - mean y), with the mean of y subtracted first: if y is the same in all rows, the
            # result is then exactly 0.
            within = (xy - mean_y * base.x) - mean_x * (by_group - mean_y * s)
        for j, column in enumerate(columns):
            column.y += y[j]
            column.xy += xy[j]
            column.within += within[j]

    def binary(self, columns: Sequence[ValueSums], cuts: Cuts) -> None:
        """Add sums of y over the rows of this `Part` to M ``ValueSums``. For the j-th of them, y is 0 in a row of the
        j-th set of ``cuts`` (the rows that one band cuts), and 1 in every other row.
        """
        base, s = self._summed("one")
        self.add(columns, "one", base.d - cuts.counts, s - cuts.by_group(), base.x - cuts.by_group(cuts.x))
        for column, cut in zip(columns, cuts.cuts, strict=True):
            if len(column.rejected):
                np.add.at(column.rejected, self.pair[cut], 1)

    def weighted(self, columns: Sequence[ValueSums], kind: str, cuts: Cuts, clipped: Floats) -> None:
        """Add to M ``ValueSums`` the sums of the weights that M clips leave to the rows of this `Part`.

        The j-th clip cuts the rows in the j-th set of ``cuts`` and leaves them the weights given in ``clipped`` (R,),
        which holds those of all M sets. Every other row keeps its unclipped weight, which ``kind`` names.
        """
        (base, s), w = self._summed(kind), self.weight(kind)
        before = w[cuts.at]
        lost = before - clipped
        y, by_group = base.d - cuts.by_key(lost), s - cuts.by_group(lost)
        xy = base.x - cuts.by_group(cuts.x * lost)
        squares = base.squares - cuts.by_key(before * before - clipped * clipped)
        # The sums of squared clipped weights are those of all rows less what the cut took away. Where little is left,
        # this difference of two nearly equal sums loses digits, so add up the clipped weights of all rows instead.
        small = np.any(squares.sum(1) < SMALL * base.squares.sum(0), axis=1)
        for j in np.flatnonzero(small):
            left = w.copy()
            left[cuts.cuts[j]] = clipped[cuts.place == j]
            y[j], xy[j], squares[j] = self.dense(left)
            by_group[j] = y[j].sum(1)
        self.add(columns, kind, y, by_group, xy)
        for column, found in zip(columns, squares, strict=True):
            column.squares += found


class Cuts:
    """M sets of rows, for example the rows that a band cuts at each of M widths.

    The sets, all from one `Part`, are joined in one array (R,), so that one pass makes the sums over every set.

    Attributes
    ----------
    at, place : int array (R,)
        Index of each row in the `Part`, and the number of the set that it belongs to.
    sizes : int array (M,)
        Number of rows of each set.
    counts : array (M, G, K)
        Number of rows of each set by group of clusters and bin.
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
        """Return sums over the rows of each of M sets (the rows that one band cuts), (M, G, K): by group of clusters
        and by bin.

        The sums are of ``values``, one for each row of the sets; without values they count rows. The mask ``where``
        (R,) selects the rows that are counted.
        """
        m, g, k = len(self.cuts), self.part.groups, self.part.number
        return totals(self._key if where is None else self._key[where], m * g * k, values).reshape(m, g, k)

    def by_group(self, values: Floats | None = None) -> Floats:
        """Return the sum of ``values`` (R,) over the rows of each of the M sets (cuts) in each of the G groups of
        clusters, (M, G). Without ``values``, return the number of these rows.
        """
        return totals(self._group, len(self.cuts) * self.part.groups, values).reshape(-1, self.part.groups)


def merge(ours: dict[Any, Any], theirs: dict[Any, Any]) -> None:
    """Add the sums of ``theirs`` to the sums of ``ours`` under the same name; copy those that only ``theirs`` has."""
    for name, found in theirs.items():
        if name in ours:
            plus(ours[name], found)
        else:
            ours[name] = found
