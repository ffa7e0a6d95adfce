"""Sums by group of clusters and bin of what every rule does to the rows: all that the acceptance tables need.

Rows are added window by window and two tallies of different windows can be merged, so a log of any length takes one
pass and the memory of one window. A band is looked at once for what happens outside and for all targets: each row's
standardised excess says which factors on the range accept it, and only the rows that are cut are touched again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from analysis.evaluate import Case, Outcome, evaluate, narrow
from analysis.layout import Layout
from analysis.loading import Run
from analysis.rows import SUBSETS, USES, Floats, Ints, Rows
from analysis.sums import Base, Column, Part, SubsetSums, Sums, merge, plus
from fspo.errors import UserError
from fspo.rules import MAX_EXPONENT, Rate, Rule, excess_quantiles, scaled

SIDES = {"low": -1, "high": 1, "dual": 2}
SMOOTHED = {"all": "band", "nonzero": "update"}
"""Which acceptance is drawn as a smooth curve, by subset."""
RATES: tuple[Rate, Rate] = ("band", "update")
NOT_REPLAYED = "the log is too large to replay a band that follows a target: analyse fewer rollouts"
LOGGED = -1
"""Number of the case that a token or prefix rule's logged columns are."""


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
            if case.source != "trained" and case.rule.adapt == "none":
                bands.setdefault(case.name, (replace(case.rule, outside="drop"), []))[1].append((i, case))
        self.bands = list(bands.values())
        self.following = [(i, c) for i, c in enumerate(cases) if c.source != "trained" and c.rule.adapt != "none"]
        self.uses: dict[str, Sums] = {}

    def add(self, first: int, rows: Rows, trained: Outcome | None) -> None:
        """Use the rows of one whole window, whose first rollout is ``first``, and what the rule that trained did."""
        layout = self.layout
        group, bins = layout.group(rows), layout.bins.index(rows.coordinate)
        x, pair = rows.trend - layout.reference, layout.pair(rows.coordinate, group)
        for use in USES:
            at = np.flatnonzero(rows.used == 0 if use == "first" else rows.used > 0)
            if len(at):
                sums = self.uses.setdefault(use, self._empty())
                columns = (group[at], bins[at], x[at], pair[at])
                here = rows if len(at) == len(rows) else rows.take(at)
                done = None if trained is None else narrow(trained, at)
                self._use(first, here, sums, done, *columns)

    def _empty(self) -> Sums:
        k = len(self.layout.bins)

        def subset() -> SubsetSums:
            count, clusters, pairs = (np.zeros(n, np.int64) for n in (k + 1, k + 1, self.layout.number))
            return SubsetSums(count, clusters, np.zeros(k + 1), pairs)

        return Sums({name: subset() for name in SUBSETS}, unlike=np.zeros(self.layout.groups))

    def _use(
        self,
        first: int,
        rows: Rows,
        sums: Sums,
        done: Outcome | None,
        group: Ints,
        bins: Ints,
        x: Floats,
        pair: Ints,
    ) -> None:
        nonzero = np.flatnonzero(rows.A != 0)
        whole = Part(self.layout, rows.S, rows.length, group, bins, x, pair)
        some = [v[nonzero] for v in (rows.S, rows.length, x)], [v[nonzero] for v in (group, bins, pair)]
        acting = Part(self.layout, some[0][0], some[0][1], some[1][0], some[1][1], some[0][2], some[1][2])
        for part, subset, at in ((whole, "all", slice(None)), (acting, "nonzero", nonzero)):
            self._shared(part, sums.subsets[subset], rows.coordinate[at], rows.cluster[at])
        if done is not None:
            for i, _ in self.trained:
                self._done(i, RATES, done, sums, whole, acting, nonzero)
        if self.logged:
            self._logged(rows, sums, whole, acting, nonzero)
        A = rows.A[nonzero]
        for i, case in self.following:
            self._follow(first, i, case, rows, sums, whole, acting, nonzero)
        for rule, members in self.bands:
            self._band(first, rule, members, rows, sums, whole, acting, nonzero, A)
        kinds = {case.rule.weight for case in self.cases}
        for part, subset in ((whole, "all"), (acting, "nonzero")):
            for kind in ("one", *(sorted(kinds) if subset == "nonzero" else ())):
                empty = Base.of(self.layout.groups, len(self.layout.bins))
                plus(sums.subsets[subset].bases.setdefault(kind, empty), part.base(kind))

    def _shared(self, part: Part, found: SubsetSums, coordinate: Floats, cluster: Ints) -> None:
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

    def _rejected(self, sums: Sums, i: int, rejected: Ints, whole: Part, acting: Part, nonzero: Ints) -> None:
        """Band acceptance of one case in both subsets."""
        whole.binary(self._column(sums, i, "band", "all"), rejected)
        place = np.searchsorted(nonzero, rejected)
        place[place == len(nonzero)] = 0
        some = place[nonzero[place] == rejected] if len(nonzero) else place[:0]
        acting.binary(self._column(sums, i, "band", "nonzero"), some)

    def _cut(self, sums: Sums, i: int, part: Part, cut: Ints, clipped: Floats, side: Ints | None) -> None:
        """Update and weight acceptance of one case, and its sides where asked for (at the cut rows)."""
        part.binary(self._column(sums, i, "update", "nonzero"), cut)
        part.weighted(self._column(sums, i, "weight", "nonzero"), self.cases[i].rule.weight, cut, clipped)
        if side is not None:
            for name, code in SIDES.items():
                at = cut[side == code]
                empty = np.zeros((part.groups, part.number))
                if len(at) or name != "dual":
                    sums.sides[i, name] = sums.sides.get((i, name), empty) + part.by_key(at)

    def _done(
        self, i: int, rates: Sequence[Rate], done: Outcome, sums: Sums, whole: Part, acting: Part, nonzero: Ints
    ) -> None:
        """One case's outcome on the rows, for band acceptance, update acceptance or both."""
        for rate in rates:
            if done.reason:
                sums.reasons.setdefault((i, rate), done.reason)
                continue
            sums.ranges.setdefault((i, rate), {}).update(done.ranges)
            if rate == "band":
                self._rejected(sums, i, np.flatnonzero(~done.in_band), whole, acting, nonzero)
                continue
            cut = np.flatnonzero(done.side[nonzero] != 0)
            at, case = nonzero[cut], self.cases[i]
            sided = case.source == "trained" or case.rule.outside == "drop"
            self._cut(sums, i, acting, cut, done.clipped_weight[at], done.side[at] if sided else None)

    def _follow(
        self, first: int, i: int, case: Case, rows: Rows, sums: Sums, whole: Part, acting: Part, nonzero: Ints
    ) -> None:
        """A band that follows a target, at its rule of each step."""
        rates: Sequence[Rate] = RATES if case.rule.outside == "drop" else RATES[1:]
        if case.states is None:
            for rate in rates:
                sums.reasons.setdefault((i, rate), NOT_REPLAYED)
        elif case.source == "given":
            self._done(
                i, rates, evaluate(case, rows, np.full(len(rows), first), "update"), sums, whole, acting, nonzero
            )
        else:
            for rate in rates:
                done = evaluate(case, rows, np.full(len(rows), first), rate)
                self._done(i, [rate], done, sums, whole, acting, nonzero)

    def _lacks(self, rule: Rule, rows: Rows, sums: Sums, members: list[tuple[int, Case]]) -> bool:
        if not rule.needs_stats or np.all(np.isfinite(rule.drift_per_token(rows.drift_stats(rule), rows.A))):
            return False
        for i, _ in members:
            for rate in RATES:
                reason = f"the log lacks what drift {rule.drift!r} needs (k3_sum, sum_sq_log_ratio, drift)"
                sums.reasons.setdefault((i, rate), reason)
        return True

    def _logged(self, rows: Rows, sums: Sums, whole: Part, acting: Part, nonzero: Ints) -> None:
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
        whole: Part,
        acting: Part,
        nonzero: Ints,
        A: Floats,
    ) -> None:
        """One band with everything that may happen outside it, at its own range and at every target."""
        stats = rows.drift_stats(rule)
        if self._lacks(rule, rows, sums, members):
            return
        below, above = rule.half_widths(rows.length)
        centre = np.asarray(rule.drift_per_token(stats, rows.A)) * rows.length if rule.needs_stats else None
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
            factors.update(zip(targets, excess_quantiles(excess, targets, rule.label), strict=True))
        except UserError:
            for target in targets:
                try:
                    factors[target] = excess_quantiles(excess, [target], rule.label)[0]
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

    def merge(self, other: Mapping[str, Sums]) -> None:
        """Add the sums by use of later windows."""
        for use, theirs in other.items():
            if use not in self.uses:
                self.uses[use] = theirs
                continue
            ours = self.uses[use]
            for name, subset in theirs.subsets.items():
                mine = ours.subsets[name]
                for array in ("count", "clusters", "coordinate", "pairs"):
                    getattr(mine, array).__iadd__(getattr(subset, array))
                merge(mine.bases, subset.bases)
            merge(ours.columns, theirs.columns)
            ours.unlike += theirs.unlike
            for side, counts in theirs.sides.items():
                ours.sides[side] = ours.sides[side] + counts if side in ours.sides else counts
            for place, ranges in theirs.ranges.items():
                ours.ranges.setdefault(place, {}).update(ranges)
            for place, reason in theirs.reasons.items():
                ours.reasons.setdefault(place, reason)
