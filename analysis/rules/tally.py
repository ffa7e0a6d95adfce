"""Collect what every rule does to the rows of a log, as sums from which the acceptance tables are made.

Rows are added window by window, and tallies of different windows can be merged. So a log of any length takes one pass
and the memory of one window. The centre and the half-widths of a band are computed once for all cases that use the
band: each row's excess says by which factor the half-widths must grow to accept the row. For each case only the rows
that the case cuts are then visited again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from analysis.log.loading import Run
from analysis.log.ratio import CORRECTED
from analysis.log.rows import SUBSETS, USES, Floats, Ints, Rows
from analysis.rules.bands import Band, Candidates, CutRows, Factors, Member, Placed
from analysis.rules.evaluate import Case, CaseEffect, lacking, narrow
from analysis.rules.layout import Grouping
from analysis.rules.sums import Cuts, Part, SubsetSums, Sums, ValueSums, merge
from fspo.rules import CUTTING_ALIKE, Rate

SIDES = {"low": -1, "high": 1, "dual": 2}
SMOOTHED = {"all": "band", "nonzero": "update"}
"""The kind of acceptance that is fitted as a smooth curve, by subset of rows: all, or those with A != 0 ("nonzero")."""
RATES: tuple[Rate, Rate] = ("band", "update")
LOGGED = -1
"""Key, in place of a case's number, of the sums that are made from logged columns. If a rule on tokens or prefixes
trained the run, the logged columns say what this rule did; a rule on tokens or prefixes is no case."""


class Tally:
    """Collects, over windows of rows, sums of what each case accepts and cuts; :mod:`analysis.tables.acceptance` makes
    tables of these sums.

    Parameters
    ----------
    run : Run
        The run that is analysed; its logged columns and its rule are used.
    layout : Grouping
        How rows are sorted into groups of clusters, bins and cells.
    cases : sequence of Case
        The rules that are evaluated.
    """

    def __init__(self, run: Run, layout: Grouping, cases: Sequence[Case]) -> None:
        self.layout, self.cases = layout, list(cases)
        logged = not any(c.source == "trained" for c in cases) and "multiplier" in run.logged
        # Whether the logged M of the run's rule is summed. It is not for a correction: of that the log holds only the
        # factor M w, from which neither M nor an acceptance follows.
        self.logged = logged and run.rule is not None and run.ratio.on not in CORRECTED
        self.logged_band = "band_accept" in run.logged
        self.trained = [(i, case) for i, case in enumerate(cases) if case.source == "trained"]
        self.bands = Band.of(self.cases)
        self.twins = {i: twin for band in self.bands for i, case in band.all if (twin := band.twin(case)) is not None}
        """By number of a case that truncates: the number of the case that drops the same rows (`Band.twin`). The two
        cases have the same update acceptance."""
        self.uses: dict[str, Sums] = {}

    def add(self, first: int, rows: Rows, trained: CaseEffect | None) -> None:
        """Add to the sums the rows of the window that begins with rollout ``first``. ``trained`` says what the rule
        that trained the run did to these rows; it is None if that is not known.
        """
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
        return Sums({name: SubsetSums.of(self.layout) for name in SUBSETS}, unlike=np.zeros(self.layout.groups))

    def _use(
        self,
        first: int,
        rows: Rows,
        sums: Sums,
        done: CaseEffect | None,
        group: Ints,
        bins: Ints,
        x: Floats,
        pair: Ints,
    ) -> None:
        nonzero = np.flatnonzero(rows.A != 0)
        whole = Part(self.layout, rows.S, rows.length, group, bins, x, pair)
        some = [v[nonzero] for v in (rows.S, rows.length, x)], [v[nonzero] for v in (group, bins, pair)]
        acting = Part(self.layout, some[0][0], some[0][1], some[1][0], some[1][1], some[0][2], some[1][2])
        shared = {name: SubsetSums.of(self.layout) for name in SUBSETS}
        for part, subset, at in ((whole, "all", slice(None)), (acting, "nonzero", nonzero)):
            self._shared(part, shared[subset], rows.coordinate[at], rows.cluster[at])
        if done is not None:
            for i, _ in self.trained:
                self._done(i, done, sums, whole, acting, nonzero)
        if self.logged:
            self._logged(rows, sums, whole, acting, nonzero)
        for band in self.bands:
            self._band(first, band, rows, sums, whole, acting, nonzero)
        kinds = {"sequence", *(case.rule.weight for case in self.cases)}
        for part, subset in ((whole, "all"), (acting, "nonzero")):
            for kind in ("one", *(sorted(kinds) if subset == "nonzero" else ())):
                shared[subset].bases[kind] = part.base(kind)
        for subset, found in shared.items():
            sums.subsets[subset].add(found)
            for (i, rate), windows in sums.no_range.items():
                if first in windows and found.count[-1] and (rate == "band" or subset == "nonzero"):
                    sums.left_out.setdefault((i, rate, subset), SubsetSums.of(self.layout)).add(found)

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

    def _column(self, sums: Sums, i: int, measure: str, subset: str) -> ValueSums:
        case = self.cases[i] if i != LOGGED else None
        curve = case is not None and (case.source == "trained" or case.rule.clip.zeroes)
        pairs = self.layout.number if curve and SMOOTHED[subset] == measure else 0
        key = (i, measure, subset)
        if key not in sums.columns:
            sums.columns[key] = ValueSums.of(self.layout.groups, len(self.layout.bins), pairs, measure == "weight")
        return sums.columns[key]

    def _rejected(
        self, sums: Sums, cases: Sequence[int], rejected: Sequence[Ints], whole: Part, acting: Part, nonzero: Ints
    ) -> None:
        """Add a window's rows to ``sums``, the sums from which the band acceptance of the cases numbered ``cases`` is
        computed, over all rows and over rows with A != 0. ``rejected`` holds for each of these cases the numbers of the
        rows outside its band.
        """
        place = np.full(len(whole.S), -1)
        place[nonzero] = np.arange(len(nonzero))
        some = [found[found >= 0] for found in (place[at] for at in rejected)]
        for part, subset, cuts in ((whole, "all", rejected), (acting, "nonzero", some)):
            part.binary([self._column(sums, i, "band", subset) for i in cases], Cuts(part, cuts))

    def _weights(self, sums: Sums, cases: Sequence[int], part: Part, cuts: Cuts, clipped: Floats) -> None:
        """Add the sums of update and weight acceptance for some cases: ``cuts`` holds the rows that each case cuts, and
        ``clipped`` the weights that the case leaves these rows.
        """
        if cases[0] not in self.twins:
            part.binary([self._column(sums, i, "update", "nonzero") for i in cases], cuts)
        columns = [self._column(sums, i, "weight", "nonzero") for i in cases]
        part.weighted(columns, self.cases[cases[0]].rule.weight, cuts, clipped)

    def _sides(self, sums: Sums, cases: Sequence[int], cuts: Cuts, side: Ints) -> None:
        high, dual = (
            cuts.by_key(where=which) if np.any(which := side == SIDES[name]) else np.zeros_like(cuts.counts)
            for name in ("high", "dual")
        )
        for name, cut in (("low", cuts.counts - high - dual), ("high", high), ("dual", dual)):
            for i, count in zip(cases, cut, strict=True):
                if name != "dual" or np.any(count):
                    sums.sides[i, name] = sums.sides[i, name] + count if (i, name) in sums.sides else count

    def _done(self, i: int, done: CaseEffect, sums: Sums, whole: Part, acting: Part, nonzero: Ints) -> None:
        """Add the sums of what the rule that trained did to the rows of a window."""
        for rate in RATES:
            if done.reason:
                sums.reasons.setdefault((i, rate), done.reason)
            else:
                sums.ranges.setdefault((i, rate), {}).update(done.ranges)
        if done.reason:
            return
        self._rejected(sums, [i], [np.flatnonzero(~done.in_band)], whole, acting, nonzero)
        cut = np.flatnonzero(done.side[nonzero] != 0)
        cuts = Cuts(acting, [cut])
        self._weights(sums, [i], acting, cuts, done.clipped_weight[nonzero[cut]])
        self._sides(sums, [i], cuts, done.side[nonzero[cut]])

    def _logged(self, rows: Rows, sums: Sums, whole: Part, acting: Part, nonzero: Ints) -> None:
        """Add the sums of the logged multiplier M and of ``band_accept`` (whether all tokens of a row are in the band).

        The sums are added for a run that was trained by a rule on tokens or prefixes.
        """
        both = ((whole, "all", slice(None)), (acting, "nonzero", nonzero))
        for part, subset, at in both if self.logged_band else ():
            cuts = Cuts(part, [np.flatnonzero(~rows.band_accept[at])])
            part.binary([self._column(sums, LOGGED, "band", subset)], cuts)
        y = rows.multiplier[nonzero]
        if not np.all(np.isfinite(y)):
            sums.reasons.setdefault((LOGGED, "update"), "multiplier not logged")
            return
        by_key, xy, _ = acting.dense(y)
        column = self._column(sums, LOGGED, "update", "nonzero")
        acting.add([column], "one", by_key[None], by_key.sum(1)[None], xy[None])
        sums.unlike += np.bincount(acting.group, y != 1, acting.groups)

    def _band(self, first: int, band: Band, rows: Rows, sums: Sums, whole: Part, acting: Part, nonzero: Ints) -> None:
        """Add the sums of all cases of one band: each treatment of rows outside it, at the preset's range and at the
        range matched to each target.
        """
        placed = Placed.of(band, first, rows)
        if placed is None:
            for i, _ in band.all:
                for rate in RATES:
                    sums.reasons.setdefault((i, rate), lacking(band.rule))
            return
        drop = band.zeroing
        if chosen := Factors(placed, first, drop, placed.excess).note(drop, "band", sums):
            cases, factors = zip(*chosen, strict=True)
            self._rejected(sums, cases, placed.rejected(factors), whole, acting, nonzero)
        for outsides in CUTTING_ALIKE:
            members = [member for outside in outsides for member in band.members.get(outside, [])]
            if members:
                self._cut(first, placed, members, sums, acting, nonzero)

    def _cut(
        self, first: int, placed: Placed, members: Sequence[Member], sums: Sums, acting: Part, nonzero: Ints
    ) -> None:
        """For cases that share a band and cut the same rows, such as drop and truncate, add the rows of the window to
        the sums of update and weight acceptance.
        """
        clip, A = members[0][1].rule.clip, placed.rows.A[nonzero]
        excess = clip.excess(placed.over[nonzero], placed.under[nonzero], A)
        factors = Factors(placed, first, members, excess)
        known: dict[tuple[float, ...], CutRows] = {}
        for outside in dict.fromkeys(case.rule.outside for _, case in members):
            chosen = factors.note([member for member in members if member[1].rule.outside == outside], "update", sums)
            if not chosen:
                continue
            cases, sizes = zip(*chosen, strict=True)
            if sizes not in known:
                known[sizes] = Candidates(placed, nonzero, excess, sizes).cut(clip, acting)
            cut = known[sizes]
            self._weights(sums, cases, acting, cut.cuts, cut.clipped_weight(clip._replace(outside=outside)))
            if self.cases[cases[0]].rule.clip.zeroes:
                self._sides(sums, cases, cut.cuts, cut.side)

    def merge(self, other: Mapping[str, Sums]) -> None:
        """Add the sums of another tally, which was made of later windows of the log. ``other`` holds these sums by the
        use of the rows, "first" or "reused".
        """
        for use, theirs in other.items():
            if use not in self.uses:
                self.uses[use] = theirs
                continue
            ours = self.uses[use]
            for name, subset in theirs.subsets.items():
                ours.subsets[name].add(subset)
            for place, left_out in theirs.left_out.items():
                ours.left_out.setdefault(place, SubsetSums.of(self.layout)).add(left_out)
            for place, why in theirs.no_range.items():
                ours.no_range.setdefault(place, {}).update(why)
            merge(ours.columns, theirs.columns)
            ours.unlike += theirs.unlike
            for side, counts in theirs.sides.items():
                ours.sides[side] = ours.sides[side] + counts if side in ours.sides else counts
            for place, ranges in theirs.ranges.items():
                ours.ranges.setdefault(place, {}).update(ranges)
            for place, reason in theirs.reasons.items():
                ours.reasons.setdefault(place, reason)
