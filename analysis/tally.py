"""Sums by group of clusters and bin of what every rule does to the rows: all that the acceptance tables need.

Rows are added window by window and two tallies of different windows can be merged, so a log of any length takes one
pass and the memory of one window. A band is looked at once for what happens outside and for all targets: each row's
standardised excess says which factors on the range accept it, and only the rows that are cut are touched again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from analysis.evaluate import Case
from analysis.layout import Layout
from analysis.rows import SUBSETS, USES, Floats, Ints, Rows, Run
from fspo.errors import UserError
from fspo.rules import MAX_EXPONENT, Rule, excess_factors, scaled

SIDES = {"low": -1, "high": 1, "dual": 2}
SMOOTHED = {"all": "band", "nonzero": "update"}
"""Which acceptance is drawn as a smooth curve, by subset."""
LOGGED = -1
"""Number of the case that a token or prefix rule's logged columns are."""


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
    rejected: Floats  # (P,) rows with y = 0 by (group, cell), or empty

    @staticmethod
    def of(groups: int, bins: int, pairs: int) -> Column:
        """Zeros."""
        return Column(
            np.zeros((groups, bins)), np.zeros(groups), np.zeros(groups), np.zeros(bins), np.zeros(pairs, np.int64)
        )


def _plus(one: Any, other: Any) -> None:
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


class _Part:
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
            xx = np.bincount(self.group, w * self.x * self.x, self.groups)
            total = float(y.sum())
            mean = float(xy.sum()) / total if total > 0 else 0.0
            s = y.sum(1)
            self._bases[kind] = Base(y, squares, xy, xx, xy - mean * s, xx - 2 * mean * xy + mean * mean * s)
        return self._bases[kind]

    def by_key(self, at: Ints, values: Floats | None = None) -> Floats:
        """Sums (G, K) over some rows of their values, or their number."""
        return np.bincount(self.key[at], values, self.groups * self.number).reshape(self.groups, self.number)

    def dense(self, y: Floats) -> tuple[Floats, Floats, Floats]:
        """Sums by group and bin, times x by group, and squares by bin, of all rows."""
        by_key = np.bincount(self.key, y, self.groups * self.number).reshape(self.groups, self.number)
        xy = np.bincount(self.group, self.x * y, self.groups)
        return by_key, xy, np.bincount(self.bins, y * y, self.number)

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


class Tally:
    """Collects windows of rows; :mod:`analysis.acceptance` makes tables of the sums.

    Parameters
    ----------
    run : Run
        For the columns that it logged.
    layout : Layout
    cases : sequence of Case
    """

    def __init__(self, run: Run, layout: Layout, cases: Sequence[Case]) -> None:
        self.layout, self.cases = layout, list(cases)
        logged = not any(c.source == "trained" for c in cases) and {"band_accept", "multiplier"} <= run.logged
        self.logged = logged and run.rule is not None
        self.trained = [(i, case) for i, case in enumerate(cases) if case.source == "trained"]
        bands: dict[str, tuple[Rule, list[tuple[int, Case]]]] = {}
        for i, case in enumerate(cases):
            if case.source != "trained":
                bands.setdefault(case.name, (replace(case.rule, outside="drop"), []))[1].append((i, case))
        self.bands = list(bands.values())
        self.uses: dict[str, Sums] = {}

    def add(self, first: int, rows: Rows) -> None:
        """Use the rows of one whole window, whose first rollout is ``first``."""
        layout = self.layout
        group, bins = layout.group(rows), layout.bins.index(rows.coordinate)
        x, pair = rows.trend - layout.reference, layout.pair(rows.coordinate, group)
        for use in USES:
            at = np.flatnonzero(rows.used == 0 if use == "first" else rows.used > 0)
            if len(at):
                sums = self.uses.setdefault(use, self._empty())
                columns = (group[at], bins[at], x[at], pair[at])
                self._use(first, rows if len(at) == len(rows) else rows.take(at), sums, *columns)

    def _empty(self) -> Sums:
        k = len(self.layout.bins)

        def subset() -> SubsetSums:
            whole = [np.zeros(k + 1, np.int64), np.zeros(k + 1, np.int64)]
            return SubsetSums(*whole, np.zeros(k + 1), np.zeros(self.layout.number, np.int64))

        return Sums({name: subset() for name in SUBSETS}, unlike=np.zeros(self.layout.groups))

    def _use(self, first: int, rows: Rows, sums: Sums, group: Ints, bins: Ints, x: Floats, pair: Ints) -> None:
        nonzero = np.flatnonzero(rows.A != 0)
        whole = _Part(self.layout, rows.S, rows.length, group, bins, x, pair)
        acting = _Part(self.layout, *(v[nonzero] for v in (rows.S, rows.length, group, bins, x, pair)))
        for part, subset, at in ((whole, "all", slice(None)), (acting, "nonzero", nonzero)):
            self._shared(part, sums.subsets[subset], rows.coordinate[at], rows.cluster[at])
        for i, case in self.trained:
            self._trained(i, case, rows, sums, whole, acting, nonzero)
        if self.logged:
            self._logged(rows, sums, whole, acting, nonzero)
        A = rows.A[nonzero]
        for rule, members in self.bands:
            self._band(first, rule, members, rows, sums, whole, acting, nonzero, A)
        kinds = {case.rule.weight for case in self.cases}
        for part, subset in ((whole, "all"), (acting, "nonzero")):
            for kind in ("one", *(sorted(kinds) if subset == "nonzero" else ())):
                empty = Base.of(self.layout.groups, len(self.layout.bins))
                _plus(sums.subsets[subset].bases.setdefault(kind, empty), part.base(kind))

    def _shared(self, part: _Part, found: SubsetSums, coordinate: Floats, cluster: Ints) -> None:
        k, n = part.number, len(part.S)
        if not n:
            return
        found.count += np.append(np.bincount(part.bins, minlength=k), n)
        least = int(cluster.min())
        met = np.zeros((int(cluster.max()) - least + 1) * k, bool)
        met[(cluster - least) * k + part.bins] = True
        met = met.reshape(-1, k)
        found.clusters += np.append(met.sum(0), met.any(1).sum())
        found.coordinate += np.append(np.bincount(part.bins, coordinate, k), coordinate.sum())
        found.pairs += np.bincount(part.pair, minlength=self.layout.number)

    def _column(self, sums: Sums, i: int, measure: str, subset: str) -> Column:
        case = self.cases[i] if i != LOGGED else None
        curve = case is not None and (case.source == "trained" or case.rule.outside == "drop")
        pairs = self.layout.number if curve and SMOOTHED[subset] == measure else 0
        key = (i, measure, subset)
        if key not in sums.columns:
            sums.columns[key] = Column.of(self.layout.groups, len(self.layout.bins), pairs)
        return sums.columns[key]

    def _rejected(self, sums: Sums, i: int, rejected: Ints, whole: _Part, acting: _Part, nonzero: Ints) -> None:
        """Band acceptance of one case in both subsets."""
        whole.binary(self._column(sums, i, "band", "all"), rejected)
        place = np.searchsorted(nonzero, rejected)
        place[place == len(nonzero)] = 0
        some = place[nonzero[place] == rejected] if len(nonzero) else place[:0]
        acting.binary(self._column(sums, i, "band", "nonzero"), some)

    def _cut(self, sums: Sums, i: int, part: _Part, cut: Ints, clipped: Floats, side: Ints | None) -> None:
        """Update and weight acceptance of one case, and its sides where asked for (at the cut rows)."""
        part.binary(self._column(sums, i, "update", "nonzero"), cut)
        part.weighted(self._column(sums, i, "weight", "nonzero"), self.cases[i].rule.weight, cut, clipped)
        if side is not None:
            for name, code in SIDES.items():
                at = cut[side == code]
                empty = np.zeros((part.groups, part.number))
                if len(at) or name != "dual":
                    sums.sides[i, name] = sums.sides.get((i, name), empty) + part.by_key(at)

    def _trained(self, i: int, case: Case, rows: Rows, sums: Sums, whole: _Part, acting: _Part, nonzero: Ints) -> None:
        rule, stats = case.rule, rows.logged_stats(case.rule)
        if self._lacks(rule, stats, sums, [(i, case)]):
            return
        for rate in ("band", "update"):
            sums.ranges[i, rate] = {-1: (rule.range_lo, rule.range_hi)}
        done = rule.apply(rows.S, rows.length, rows.A, stats)
        self._rejected(sums, i, np.flatnonzero(~done.in_band), whole, acting, nonzero)
        cut = np.flatnonzero(done.side[nonzero] != 0)
        at = nonzero[cut]
        self._cut(sums, i, acting, cut, done.clipped_weight[at], done.side[at])

    def _lacks(self, rule: Rule, stats: Any, sums: Sums, members: list[tuple[int, Case]]) -> bool:
        if not rule.needs_stats or np.all(np.isfinite(rule.drift_per_token(stats))):
            return False
        for i, _ in members:
            for rate in ("band", "update"):
                reason = f"the log lacks what drift {rule.drift!r} needs (k3_sum, sum_sq_log_ratio, drift)"
                sums.reasons.setdefault((i, rate), reason)
        return True

    def _logged(self, rows: Rows, sums: Sums, whole: _Part, acting: _Part, nonzero: Ints) -> None:
        """A token or prefix rule that trained, from the logged columns: band = all tokens in band, update = mean M."""
        for part, subset, at in ((whole, "all", slice(None)), (acting, "nonzero", nonzero)):
            part.binary(self._column(sums, LOGGED, "band", subset), np.flatnonzero(~rows.band_accept[at]))
        y = rows.multiplier[nonzero]
        if not np.all(np.isfinite(y)):
            sums.reasons.setdefault((LOGGED, "update"), "multiplier not logged")
            return
        acting.add(self._column(sums, LOGGED, "update", "nonzero"), "one", *acting.dense(y))
        sums.unlike += np.bincount(acting.group, y != 1, acting.groups)

    def _band(
        self,
        first: int,
        rule: Rule,
        members: list[tuple[int, Case]],
        rows: Rows,
        sums: Sums,
        whole: _Part,
        acting: _Part,
        nonzero: Ints,
        A: Floats,
    ) -> None:
        """One band with everything that may happen outside it, at its own range and at every target."""
        stats = rows.drift_stats(rule)
        if self._lacks(rule, stats, sums, members):
            return
        below, above = rule.half_widths(rows.length)
        centre = np.asarray(rule.drift_per_token(stats)) * rows.length if rule.needs_stats else None
        centred = rows.S if centre is None else rows.S - centre
        over, under = centred / above, centred / -below
        excess = np.maximum(over, under)
        drop = [(i, case) for i, case in members if case.rule.outside == "drop"]
        for i, factor in self._factors(first, rule, drop, excess, "band", sums):
            self._rejected(sums, i, np.flatnonzero(excess > factor), whole, acting, nonzero)
        over, up = over[nonzero], A > 0
        active = np.where(up, over, under[nonzero])
        for outsides, excess in ((("drop", "truncate"), active), (("cap",), over)):
            chosen = [(i, case) for i, case in members if case.rule.outside in outsides]
            found: dict[float, tuple[Ints, Floats, Ints]] = {}
            for i, factor in self._factors(first, rule, chosen, excess, "update", sums):
                outside = self.cases[i].rule.outside
                if factor not in found:
                    cut = np.flatnonzero(excess > factor)
                    at, high = nonzero[cut], up[cut] | (outside == "cap")
                    edge = factor * np.where(high, above[at], -below[at])
                    edge = edge if centre is None else edge + centre[at]
                    if rule.weight == "geometric":
                        edge = edge / rows.length[at]
                    found[factor] = cut, np.exp(np.minimum(edge, MAX_EXPONENT)), np.where(high, 1, -1)
                cut, kept, side = found[factor]
                clipped = np.zeros(len(cut)) if outside == "drop" else kept
                self._cut(sums, i, acting, cut, clipped, side if outside == "drop" else None)

    def _factors(
        self, first: int, rule: Rule, members: list[tuple[int, Case]], excess: Floats, rate: str, sums: Sums
    ) -> list[tuple[int, float]]:
        """The factor on the range of each case that can be evaluated; the range and the reason are noted."""
        targets = sorted({case.target for _, case in members if case.source == "matched"})
        factors: dict[float, float | UserError] = {}
        try:
            factors.update(zip(targets, excess_factors(rule, excess, targets), strict=True))
        except UserError:
            for target in targets:
                try:
                    factors[target] = excess_factors(rule, excess, [target])[0]
                except UserError as error:
                    factors[target] = error
        out: list[tuple[int, float]] = []
        for i, case in members:
            ranges = sums.ranges.setdefault((i, rate), {})
            if case.source != "matched":
                ranges[-1] = (rule.range_lo, rule.range_hi)
                out.append((i, 1.0))
                continue
            factor = factors[case.target]
            try:
                if isinstance(factor, UserError):
                    raise factor
                fitted = scaled(rule, factor)
            except UserError as error:
                sums.reasons.setdefault((i, rate), f"window {first}: {error}")
                continue
            ranges[first] = (fitted.range_lo, fitted.range_hi)
            out.append((i, factor))
        return out

    def merge(self, other: Tally) -> None:
        """Add the sums of later windows."""
        for use, theirs in other.uses.items():
            if use not in self.uses:
                self.uses[use] = theirs
                continue
            ours = self.uses[use]
            for name, subset in theirs.subsets.items():
                mine = ours.subsets[name]
                for array in ("count", "clusters", "coordinate", "pairs"):
                    getattr(mine, array).__iadd__(getattr(subset, array))
                _merge(mine.bases, subset.bases)
            _merge(ours.columns, theirs.columns)
            ours.unlike += theirs.unlike
            for side, counts in theirs.sides.items():
                ours.sides[side] = ours.sides[side] + counts if side in ours.sides else counts
            for place, ranges in theirs.ranges.items():
                ours.ranges.setdefault(place, {}).update(ranges)
            for place, reason in theirs.reasons.items():
                ours.reasons.setdefault(place, reason)


def _merge(ours: dict[Any, Any], theirs: dict[Any, Any]) -> None:
    for name, found in theirs.items():
        if name in ours:
            _plus(ours[name], found)
        else:
            ours[name] = found
