"""Collect what every rule does to the rows of a log, as sums from which the acceptance tables are made.

For each case and kind of acceptance there is one matrix of sums by cluster and bin (`CaseCounts`). Rows are added
block by block, and tallies of different blocks can be merged. So a log of any length takes one pass and the memory
of one block. Where a log has many clusters, a fixed hash pools them into ``POOLED`` groups, so that memory does not
grow with the log. Groups of independent clusters are independent too, so errors are computed over groups as over
clusters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple, cast

import numpy as np

from analysis.log.loading import Run
from analysis.log.ratio import CORRECTED
from analysis.log.rows import USES, Floats, Ints, Rows
from analysis.rules.evaluate import Band, Case, CaseEffect, lacking, narrow
from fspo.base.errors import UserError
from fspo.rules import Edges, Rate, Weight, exponent, importance_weight
from fspo.stats.bins import Bins
from fspo.stats.clusters import totals

MOST_CLUSTERS = 4096
"""Largest number of clusters of a log in memory that are each a group of their own."""
POOLED = 1024
RATES: tuple[Rate, Rate] = ("band", "update")
LOGGED = -1
"""Key, in place of a case's number, of the sums that are made from logged columns. If a rule on tokens trained the run,
the logged columns say what this rule did; a rule on tokens is no case."""
Place = tuple[int, str, str]
"""Number of a case (or ``LOGGED``), kind of acceptance (band, update, weight) and subset of rows (all, nonzero)."""


@dataclass(frozen=True)
class Grouping:
    """How the rows of a run are divided into groups of clusters and into bins.

    Attributes
    ----------
    groups : int
        Number of groups of clusters.
    pooled : bool
        Whether a group holds several clusters.
    reference : float
        A value near the mean of ``Rows.trend`` (log2 of the length), subtracted before squares are summed, so that
        sums lose no digits.
    """

    bins: Bins
    groups: int
    pooled: bool
    reference: float

    @staticmethod
    def of(run: Run, bins: Bins) -> Grouping:
        """Choose the groups into which a run's clusters are put."""
        pooled = run.clusters > MOST_CLUSTERS or run.streamed
        return Grouping(bins, POOLED if pooled else run.clusters, pooled, float(np.mean(run.rows.trend)))

    def group(self, rows: Rows) -> Ints:
        """Return for each row (N,) the number of the group of clusters to which the row's cluster belongs."""
        return hashed(rows.rollout, rows.prompt, self.groups) if self.pooled else rows.cluster


def hashed(rollout: Ints, prompt: Ints, number: int) -> Ints:
    """Return for each row (N,) a group 0..number-1, hashed from the row's cluster (rollout, prompt).

    The hash spreads clusters evenly over the groups and is the same in every run of the program.
    """
    with np.errstate(over="ignore"):
        mixed = rollout.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed += prompt.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(0xD6E8FEB86659FD93)
        mixed >>= np.uint64(32)
    return (mixed * np.uint64(number) >> np.uint64(32)).astype(np.int64)


@dataclass
class CaseCounts:
    """Sums over rows, by group of clusters and bin, from which one acceptance of one rule is made: sum of y / sum of d.

    Each row has its y (0 or 1, its multiplier M, or its clipped weight), its d (1, or its weight), and its x: log2 of
    the length (``Rows.trend``) less ``Grouping.reference``.

    Attributes
    ----------
    rows, cut : array (G, K)
        Number of rows, and of those that are clipped (band: outside the band), in each of G groups and K bins.
    d, y : array (G, K)
        Sums of d and of y.
    squares : array (K,)
        Sums of y^2.
    slope : array (G, 3)
        Sums of d x, d x^2 and x y over all bins.
    clusters, coordinate : array (K+1,)
        Number of clusters with a row, and sum of the rows' coordinates, in each bin and, last, in all bins.
    """

    rows: Floats
    cut: Floats
    d: Floats
    y: Floats
    squares: Floats
    slope: Floats
    clusters: Ints
    coordinate: Floats

    def plus(self, other: CaseCounts) -> None:
        """Add the sums over other rows to these sums, in place."""
        for name in (f.name for f in fields(self)):
            getattr(self, name).__iadd__(getattr(other, name))


class Denominator(NamedTuple):
    """The sums of a weight w, the denominator of an acceptance, over the rows of a `Part`."""

    w: Floats  # (n,) weight of each row
    d: Floats  # (G, K) sums of w
    x: Floats  # (G,) sums of w x
    xx: Floats  # (G,) sums of w x^2


class Part:
    """The rows (n,) of one subset (all, A != 0) of a block, and their places in the sums."""

    def __init__(self, layout: Grouping, rows: Rows) -> None:
        self.S, self.L, self.A = rows.S, rows.length, rows.A
        self.shape = layout.groups, len(layout.bins)
        self.group, self.bin = layout.group(rows), layout.bins.index(rows.coordinate)
        self.key, self.x = self.group * self.shape[1] + self.bin, rows.trend - layout.reference
        k = self.shape[1]
        cluster = rows.cluster - (rows.cluster.min() if len(rows) else 0)
        met = np.zeros((int(cluster.max(initial=0)) + 1, k), bool)
        met[cluster, self.bin] = True
        self.rows = self.by_key()
        self.clusters = np.append(met.sum(0), met.any(1).sum())
        self.coordinate = np.append(totals(self.bin, k, rows.coordinate), rows.coordinate.sum())
        self._known: dict[str, Denominator] = {}

    def __len__(self) -> int:
        return len(self.S)

    def by_key(self, values: Floats | None = None, at: Ints | slice = slice(None)) -> Floats:
        """Return sums of ``values`` by group of clusters and bin (G, K) over the rows ``at``; without values, count."""
        return totals(self.key[at], self.shape[0] * self.shape[1], values).reshape(self.shape)

    def by_group(self, values: Floats, at: Ints | slice = slice(None)) -> Floats:
        """Return sums of ``values`` by group of clusters (G,) over the rows ``at``."""
        return totals(self.group[at], self.shape[0], values)

    def denominator(self, kind: str) -> Denominator:
        """Return the weights that ``kind`` names and their sums: 1 ("one"), or exp(S) or exp(S/L) with the exponent
        held at MAX_EXPONENT."""
        if kind not in self._known:
            one = kind == "one"
            w = np.ones(len(self)) if one else importance_weight(exponent(self.S, self.L, cast(Weight, kind)))
            wx = w * self.x
            d = self.rows if one else self.by_key(w)
            self._known[kind] = Denominator(w, d, self.by_group(wx), self.by_group(wx * self.x))
        return self._known[kind]

    def accepted(self, cut: Ints) -> CaseCounts:
        """Return the sums where y is 0 in the rows ``cut`` and 1 in all others, and d is 1."""
        of, lost = self.denominator("one"), self.by_key(None, cut)
        y = of.d - lost
        return self._counts(of, lost, y, of.x - self.by_group(self.x[cut], cut), y.sum(0))

    def weighted(self, kind: str, y: Floats, cut: Ints) -> CaseCounts:
        """Return the sums of the numerators ``y`` (n,) over the weights that ``kind`` names."""
        squares, xy = totals(self.bin, self.shape[1], y * y), self.by_group(self.x * y)
        return self._counts(self.denominator(kind), self.by_key(None, cut), self.by_key(y), xy, squares)

    def _counts(self, of: Denominator, cut: Floats, y: Floats, xy: Floats, squares: Floats) -> CaseCounts:
        slope = np.column_stack([of.x, of.xx, xy])
        # Copies, because sums of later blocks are added in place, and these arrays belong to all cases.
        of_bins = self.clusters.copy(), self.coordinate.copy()
        return CaseCounts(self.rows.copy(), cut, of.d.copy(), y, squares, slope, *of_bins)


@dataclass
class Sums:
    """The sums over the rows of one use: `first` or `reused`.

    Attributes
    ----------
    columns : dict of Place -> CaseCounts
        For each case, kind of acceptance and subset: the sums, without the blocks in which the case has no range.
    number : dict of str -> int
        Number of rows of each subset, in all blocks.
    no_range : dict of (case, rate) -> dict
        The blocks (by their first rollout) in which no range gives the case's target, each with the reason.
    reasons : dict of (case, rate) -> str
        Why a case cannot be evaluated.
    """

    columns: dict[Place, CaseCounts] = field(default_factory=dict)
    number: dict[str, int] = field(default_factory=dict)
    no_range: dict[tuple[int, str], dict[int, str]] = field(default_factory=dict)
    reasons: dict[tuple[int, str], str] = field(default_factory=dict)

    def add(self, place: Place, found: CaseCounts) -> None:
        """Add sums over further rows under the name ``place``."""
        if place in self.columns:
            self.columns[place].plus(found)
        else:
            self.columns[place] = found

    def merge(self, other: Sums) -> None:
        """Add the sums of later blocks."""
        for place, found in other.columns.items():
            self.add(place, found)
        for subset, number in other.number.items():
            self.number[subset] = self.number.get(subset, 0) + number
        for key, windows in other.no_range.items():
            self.no_range.setdefault(key, {}).update(windows)
        self.reasons = other.reasons | self.reasons


class Tally:
    """Collects, over blocks of rows, sums of what each case accepts and clips; :mod:`analysis.tables.acceptance` makes
    tables of these sums.

    Parameters
    ----------
    run : Run
        The run that is analysed; its logged columns and its rule are used.
    layout : Grouping
        How rows are sorted into groups of clusters and bins.
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
        self.uses: dict[str, Sums] = {}

    def add(self, first: int, rows: Rows, trained: CaseEffect | None) -> None:
        """Add to the sums the rows of the block that begins with rollout ``first``. ``trained`` says what the rule
        that trained the run did to these rows; it is None if that is not known.
        """
        for use in USES:
            at = np.flatnonzero(rows.used == 0 if use == "first" else rows.used > 0)
            if len(at):
                every = len(at) == len(rows)
                done = trained if every or trained is None else narrow(trained, at)
                self._use(first, rows if every else rows.take(at), self.uses.setdefault(use, Sums()), done)

    def _use(self, first: int, rows: Rows, sums: Sums, done: CaseEffect | None) -> None:
        nonzero = np.flatnonzero(rows.A != 0)
        parts = Part(self.layout, rows), Part(self.layout, rows.take(nonzero))
        for subset, part in zip(("all", "nonzero"), parts, strict=True):
            sums.number[subset] = sums.number.get(subset, 0) + len(part)
        if self.logged:
            self._logged(rows, nonzero, sums, *parts)
        bands: dict[str, tuple[Band, Band] | None] = {}
        for i, case in enumerate(self.cases):
            if case.source == "trained":
                if done is not None:
                    self._done(i, case, done, nonzero, sums, *parts)
                continue
            if case.name not in bands:
                band = Band.of(case, rows)
                bands[case.name] = None if band is None else (band, band.take(nonzero))
            placed = bands[case.name]
            if placed is None:
                sums.reasons |= dict.fromkeys(((i, rate) for rate in RATES), lacking(case))
                continue
            for rate, band, part in zip(RATES, placed, parts, strict=True):
                if rate == "band" and not case.rule.clip.zeroes:
                    continue  # of the cases of one band only the one that drops is asked which rows lie in the band
                try:
                    edges = band.edges(band.factor(case, part.A, rate))
                except UserError as error:
                    sums.no_range.setdefault((i, rate), {})[first] = str(error)
                    continue
                if rate == "band":
                    outside = np.flatnonzero(~((edges.lo <= band.value) & (edges.hi >= band.value)))
                    self._band(i, outside, nonzero, sums, *parts)
                else:
                    self._update(i, case, band.value, edges, sums, part)

    @staticmethod
    def _band(i: int, outside: Ints, nonzero: Ints, sums: Sums, whole: Part, acting: Part) -> None:
        """Add a block's rows to the sums of band acceptance, over all rows and over those with A != 0; ``outside``
        holds the numbers of the rows outside the band."""
        place = np.full(len(whole), -1)
        place[nonzero] = np.arange(len(nonzero))
        some = place[outside]
        sums.add((i, "band", "all"), whole.accepted(outside))
        sums.add((i, "band", "nonzero"), acting.accepted(some[some >= 0]))

    @staticmethod
    def _update(i: int, case: Case, value: Floats, edges: Edges, sums: Sums, part: Part) -> None:
        """Add a block's rows with A != 0 to the sums of update and weight acceptance; the band bounds ``value``."""
        clip, kind = case.rule.clip, case.rule.weight
        side = np.asarray(clip.side(value, part.A, edges))
        cut = np.flatnonzero(side)
        y = part.denominator(kind).w.copy()
        at = Edges(*(x[cut] for x in edges))
        y[cut] = clip.clipped_weight(side[cut], clip.edge_weight(value[cut], part.L[cut], side[cut], at))
        sums.add((i, "update", "nonzero"), part.accepted(cut))
        sums.add((i, "weight", "nonzero"), part.weighted(kind, y, cut))

    def _done(self, i: int, case: Case, done: CaseEffect, nonzero: Ints, sums: Sums, whole: Part, acting: Part) -> None:
        """Add the sums of what the rule that trained did to the rows of a block."""
        if done.reason:
            sums.reasons |= dict.fromkeys(((i, rate) for rate in RATES), done.reason)
            return
        self._band(i, np.flatnonzero(~done.in_band), nonzero, sums, whole, acting)
        cut = np.flatnonzero(done.side[nonzero])
        sums.add((i, "update", "nonzero"), acting.accepted(cut))
        y = done.clipped_weight[nonzero]
        sums.add((i, "weight", "nonzero"), acting.weighted(case.rule.weight, y, cut))

    def _logged(self, rows: Rows, nonzero: Ints, sums: Sums, whole: Part, acting: Part) -> None:
        """Add the sums of the logged multiplier M and of ``band_accept`` (whether all tokens of a row are in the band).

        The sums are added for a run that was trained by a rule on tokens.
        """
        if self.logged_band:
            self._band(LOGGED, np.flatnonzero(~rows.band_accept), nonzero, sums, whole, acting)
        y = rows.multiplier[nonzero]
        if np.all(np.isfinite(y)):
            sums.add((LOGGED, "update", "nonzero"), acting.weighted("one", y, np.flatnonzero(y != 1)))
        else:
            sums.reasons.setdefault((LOGGED, "update"), "multiplier not logged")

    def merge(self, other: Mapping[str, Sums]) -> None:
        """Add the sums of another tally, which was made of later blocks of the log. ``other`` holds these sums by the
        use of the rows, `first` or `reused`.
        """
        for use, theirs in other.items():
            self.uses.setdefault(use, Sums()).merge(theirs)
