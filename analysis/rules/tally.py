"""Collect what every rule does to the rows of a log, as sums from which the acceptance tables are made.

For each case and kind of acceptance there is one matrix of sums by cluster and bin (`CaseCounts`). Rows are added
block by block, and tallies of different blocks can be merged. So a log of any length takes one pass and the memory
of one block. Where a log has many clusters, a fixed hash pools them into ``POOLED`` groups, so that memory does not
grow with the log. Groups of independent clusters are independent too, so errors are computed over groups as over
clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np

from analysis.log.loading import Run
from analysis.log.ratio import CORRECTED
from analysis.log.rows import USES, Floats, Ints, Rows
from analysis.rules.evaluate import Band, Case, CaseEffect, lacking, narrow, rate_of
from fspo.base.errors import UserError
from fspo.rules import Rate, Weight, exponent, importance_weight
from fspo.rules.clip import WAYS
from fspo.stats.bins import Bins
from fspo.stats.clusters import totals

MOST_CLUSTERS = 4096
"""Largest number of clusters of a log in memory that are each a group of their own."""
POOLED = 1024
RATES: tuple[Rate, Rate] = ("band", "update")
EVERY = slice(None)
ROUNDING = 1e-9
"""A row lies in the band if its excess is below the case's factor on the half-widths by more than this share of the
factor. Whether any other row is clipped is computed, because rounding may decide it."""
LOGGED = -1
"""Key, in place of a case's number, of the sums that are made from logged columns. If a rule on tokens trained the run,
the logged columns say what this rule did; a rule on tokens is no case."""
Place = tuple[int, str, str]
"""Number of a case (or ``LOGGED``), kind of acceptance (band, update, weight) and subset of rows (all, nonzero)."""


@dataclass(frozen=True)
class Grouping:
    """How the rows of a run are divided into ``groups`` groups of clusters, each a single cluster unless ``pooled``,
    and into ``bins``. Slopes are fitted over a place x of each row: log2 of its length (or another coordinate over
    its standard deviation), less ``reference``, a number near the rows' mean."""

    bins: Bins
    groups: int  # number of groups
    pooled: bool  # whether a group holds several clusters
    # A value near the mean of ``Rows.trend`` (log2 of the length), subtracted before squares are summed, so that sums
    # lose no digits.
    reference: float

    @staticmethod
    def of(run: Run, bins: Bins) -> Grouping:
        """Give each cluster a group; put them into 1024 groups if the log is streamed or has over 4096 clusters."""
        pooled = run.clusters > MOST_CLUSTERS or run.streamed
        return Grouping(bins, POOLED if pooled else run.clusters, pooled, float(np.mean(run.rows.trend)))

    def group(self, rows: Rows) -> Ints:
        """Return for each row (N,) the number of the group of clusters to which the row's cluster belongs."""
        return hashed(rows.rollout, rows.prompt, self.groups) if self.pooled else rows.cluster


def hashed(rollout: Ints, prompt: Ints, number: int) -> Ints:
    """Return for each row (N,) a group 0..number-1, hashed from the row's cluster (rollout, prompt).

    The hash spreads clusters evenly over the groups and is the same in every run of the program."""
    with np.errstate(over="ignore"):
        mixed = rollout.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed += prompt.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(0xD6E8FEB86659FD93)
        mixed >>= np.uint64(32)
    return (mixed * np.uint64(number) >> np.uint64(32)).astype(np.int64)


class CaseCounts(NamedTuple):
    """Sums over rows, by group of clusters and bin, from which one acceptance is made: sum of y over sum of d.

    y is what a row adds to the numerator (0 or 1, its multiplier M, or its clipped weight), d what it adds to the
    denominator (1, or its weight). x is log2 of the length (``Rows.trend``) less ``Grouping.reference``. There are G
    groups and K bins; an array of K+1 entries has a last entry for all bins together. ``rows`` (G, K) counts rows and
    ``cut`` (G, K) clipped ones; the fields ``d`` and ``y`` (G, K) are the sums of d and of y, ``squares`` (K,) that of
    y^2; ``slope`` (G, 3) holds the sums of d x, d x^2 and x y over all bins; ``clusters`` (K+1,) counts clusters, and
    ``coordinate`` (K+1,) sums coordinates."""

    rows: Floats  # (G, K) number of rows
    cut: Floats  # (G, K) number of rows that are clipped (band: outside the band)
    d: Floats  # (G, K) sums of d
    y: Floats  # (G, K) sums of y
    squares: Floats  # (K,) sums of y^2
    slope: Floats  # (G, 3) sums of d x, d x^2 and x y over all bins
    clusters: Ints  # (K+1,) number of clusters with a row
    coordinate: Floats  # (K+1,) sum of the rows' coordinates


class Denominators(NamedTuple):
    """Sums over the rows of a subset (all, or A != 0), the same for all cases, by G groups of clusters and K bins. d is
    what a row adds to an acceptance's denominator, x its place on the axis of slopes (`CaseCounts`).

    Attributes
    ----------
    rows, d : arrays (G, K)
        Number of rows, and sums of d.
    x, xx : arrays (G,)
        Sums of d x, and of d x^2, over all bins.
    clusters, coordinate : arrays (K+1,)
        Number of clusters with a row, and sum of the rows' coordinates, by bin and last over all bins.
    """

    rows: Floats  # (G, K)
    d: Floats  # (G, K)
    x: Floats  # (G,) sums of d x
    xx: Floats  # (G,) sums of d x^2
    clusters: Any  # (K+1,), integers
    coordinate: Floats


class Numerators(NamedTuple):
    """Sums over the rows of a subset (all, or A != 0) for one case and acceptance, by G groups of clusters and K bins.
    y is what a row adds to the acceptance's numerator, x its place on the axis of slopes (`CaseCounts`).

    Attributes
    ----------
    cut : array (G, K)
        Number of clipped rows; of the band acceptance, of rows outside the band.
    xy : array (G,)
        Sums of x y over all bins.
    y, squares : arrays (G, K), (K,)
        Sums of y, and of y^2. Both are empty where every row adds 1 to the denominator and y is 0 if clipped, else 1.
    """

    cut: Floats  # (G, K) number of clipped rows
    xy: Floats  # (G,) sums of x y
    y: Floats  # (G, K) sums of y; like squares empty if d is 1, and y is 0 in the clipped rows and else 1
    squares: Floats  # (K,) sums of y^2


class Part:
    """The rows (n,) of one subset (all, A != 0) of a block of rollouts, and their groups of clusters and bins."""

    def __init__(self, layout: Grouping, rows: Rows, at: Ints | slice = EVERY) -> None:
        self.S, self.L, coordinate = rows.S[at], rows.length[at], rows.coordinate[at]
        self.shape = layout.groups, len(layout.bins)
        self.group, self.bin = layout.group(rows)[at], layout.bins.index(coordinate)
        self.key, self.x = self.group * self.shape[1] + self.bin, rows.trend[at] - layout.reference
        k, cluster = self.shape[1], rows.cluster[at]
        cluster = cluster - (cluster.min() if len(cluster) else 0)
        met = np.zeros((int(cluster.max(initial=0)) + 1, k), bool)
        met[cluster, self.bin] = True
        self.rows = self.by_key(EVERY)
        self.clusters = np.append(met.sum(0), met.any(1).sum())
        self.coordinate = np.append(totals(self.bin, k, coordinate), coordinate.sum())
        self.known: dict[str, tuple[Floats, Denominators]] = {}

    def by_key(self, at: Ints | slice, values: Floats | None = None) -> Floats:
        """Return the sums of ``values`` by group of clusters and bin, (G, K), over the rows with the indices ``at``;
        without values, count those rows."""
        return totals(self.key[at], self.shape[0] * self.shape[1], values).reshape(self.shape)

    def by_group(self, at: Ints | slice, values: Floats) -> Floats:
        """Return the sums of ``values``, one for each row in ``at``, by group of clusters, (G,)."""
        return totals(self.group[at], self.shape[0], values)

    def denominators(self, kind: str) -> tuple[Floats, Denominators]:
        """Return what each row adds to an acceptance's denominator (n,), and its sums over rows. A row adds 1 if
        ``kind`` is "one" or "none", exp(S) if "sequence", exp(S/L) if "geometric", with the exponent held at 20."""
        if kind not in self.known:
            one = kind == "one"
            w = np.ones(len(self.S)) if one else importance_weight(exponent(self.S, self.L, cast(Weight, kind)))
            wx = w * self.x
            d = self.rows if one else self.by_key(EVERY, w)
            x, xx = self.by_group(EVERY, wx), self.by_group(EVERY, wx * self.x)
            self.known[kind] = w, Denominators(self.rows, d, x, xx, self.clusters, self.coordinate)
        return self.known[kind]

    def kept(self, cut: Ints) -> Numerators:
        """Return sums over the part's rows of an acceptance's numerator, to which the rows with indices ``cut`` add 0
        and all others 1. Denominators are not in the result; each row adds 1 to them."""
        xy = self.denominators("one")[1].x - self.by_group(cut, self.x[cut])
        return Numerators(self.by_key(cut), xy, np.zeros(0), np.zeros(0))

    def weighed(self, cut: Ints, number: Floats, kind: str, y: Floats) -> Numerators:
        """Return sums over the part's rows of an acceptance's numerator, to which the rows with indices ``cut`` add
        ``y`` and all others their weight of ``kind``. ``number`` (G, K) counts the rows ``cut``, as `by_key` does."""
        w, _ = self.denominators(kind)
        values = w.copy()
        values[cut] = y
        squares = totals(self.bin, self.shape[1], values**2)
        return Numerators(number, self.by_group(EVERY, self.x * values), self.by_key(EVERY, values), squares)


@dataclass
class Sums:
    """The sums from which acceptances are made, over the rows of the first epoch (`first`) or later ones (`reused`).

    Attributes
    ----------
    of_cases : dict of (case, acceptance, subset, kind) -> Numerators
        Sums of numerators, by the case's number, acceptance (band, update, weight) and subset of rows; ``kind`` says
        what the denominators sum: "one" (so they count rows) or a weight.
    of_all : dict of (subset, kind) -> Denominators
        Sums of denominators over all rows.
    left_out : dict of (case, rate, subset, kind) -> Denominators
        The part of ``of_all`` from the blocks in which no range gives the case's target of the acceptance ``rate``.
    number : dict of str -> int
        Number of rows of each subset, in all blocks.
    no_range : dict of (case, rate) -> dict
        The blocks (by their first rollout) in which no range gives the case's target, each with the reason.
    reasons : dict of (case, rate) -> str
        Why a case cannot be evaluated.
    """

    of_cases: dict[tuple[int, str, str, str], Numerators] = field(default_factory=dict)
    of_all: dict[tuple[str, str], Denominators] = field(default_factory=dict)
    left_out: dict[tuple[int, str, str, str], Denominators] = field(default_factory=dict)
    number: dict[str, int] = field(default_factory=dict)
    no_range: dict[tuple[int, str], dict[int, str]] = field(default_factory=dict)
    reasons: dict[tuple[int, str], str] = field(default_factory=dict)

    @cached_property
    def columns(self) -> dict[Place, CaseCounts]:
        """The sums from which each acceptance is made, by the case's number, kind of acceptance and subset of rows,
        without the blocks in which the case has no range. Read it only after the last block was added."""
        return {place[:3]: self._counts(*place) for place in self.of_cases}

    def _counts(self, i: int, measure: str, subset: str, kind: str) -> CaseCounts:
        of, found = self.of_all[subset, kind], self.of_cases[i, measure, subset, kind]
        absent = self.left_out.get((i, rate_of(measure), subset, kind))
        if absent is not None:
            of = Denominators._make(every - some for every, some in zip(of, absent, strict=True))
        y = found.y if found.y.size else of.d - found.cut
        squares = found.squares if found.squares.size else y.sum(0)
        slope = np.column_stack((of.x, of.xx, found.xy))
        return CaseCounts(of.rows, found.cut, of.d, y, squares, slope, of.clusters, of.coordinate)

    def merge(self, other: Sums) -> None:
        """Add the sums ``other`` of later blocks to these."""
        for mine, theirs in (
            (self.of_cases, other.of_cases),
            (self.of_all, other.of_all),
            (self.left_out, other.left_out),
        ):
            for key, found in theirs.items():
                add(mine, key, found)
        for subset, number in other.number.items():
            self.number[subset] = self.number.get(subset, 0) + number
        for key, windows in other.no_range.items():
            self.no_range.setdefault(key, {}).update(windows)
        self.reasons = other.reasons | self.reasons


def add(sums: dict[Any, Any], key: Any, found: Denominators | Numerators) -> None:
    """Add ``found``, sums over further rows, to the sums that the dict ``sums`` holds under ``key``."""
    if key not in sums:
        sums[key] = found._make(x.copy() for x in found)  # copies, because later blocks are added in place
        return
    for mine, theirs in zip(sums[key], found, strict=True):
        np.add(mine, theirs, out=mine)


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
        that trained the run did to these rows; it is None if that is not known."""
        for use in USES:
            at = np.flatnonzero(rows.used == 0 if use == "first" else rows.used > 0)
            if len(at):
                every = len(at) == len(rows)
                done = trained if every or trained is None else narrow(trained, at)
                self._use(first, rows if every else rows.take(at), self.uses.setdefault(use, Sums()), done)

    def _use(self, first: int, rows: Rows, sums: Sums, done: CaseEffect | None) -> None:
        nonzero = np.flatnonzero(rows.A != 0)
        whole, acting = Part(self.layout, rows), Part(self.layout, rows, nonzero)
        parts, place = {"all": whole, "nonzero": acting}, np.full(len(rows), -1)
        place[nonzero] = np.arange(len(nonzero))

        def banded(i: int, outside: Ints) -> None:
            """Add the block to the sums of case ``i``'s band acceptance; the rows ``outside`` lie outside the band."""
            some = place[outside]
            add(sums.of_cases, (i, "band", "all", "one"), whole.kept(outside))
            add(sums.of_cases, (i, "band", "nonzero", "one"), acting.kept(some[some >= 0]))

        def updated(i: int, cut: Ints, kind: str, y: Floats) -> None:
            """Add the block to the sums of case ``i``'s update and weight acceptance. Its weight is ``kind``; ``cut``
            holds the clipped rows' indices among the rows with A != 0, and ``y`` what is left of their weights."""
            kept = acting.kept(cut)
            add(sums.of_cases, (i, "update", "nonzero", "one"), kept)
            add(sums.of_cases, (i, "weight", "nonzero", kind), acting.weighed(cut, kept.cut, kind, y))

        if self.logged:
            if self.logged_band:
                banded(LOGGED, np.flatnonzero(~rows.band_accept))
            y = rows.multiplier[nonzero]
            if np.all(np.isfinite(y)):
                cut = np.flatnonzero(y != 1)
                add(
                    sums.of_cases,
                    (LOGGED, "update", "nonzero", "one"),
                    acting.weighed(cut, acting.by_key(cut), "one", y[cut]),
                )
            else:
                sums.reasons.setdefault((LOGGED, "update"), "multiplier not logged")
        bands: dict[str, Band | None] = {}
        known: dict[tuple[str, ...], Floats] = {}
        for i, case in enumerate(self.cases):
            clip, kind = case.rule.clip, case.rule.weight
            if case.source == "trained":
                if done is not None and done.reason:
                    sums.reasons |= dict.fromkeys(((i, rate) for rate in RATES), done.reason)
                elif done is not None:
                    banded(i, np.flatnonzero(~done.in_band))
                    cut = np.flatnonzero(done.side[nonzero])
                    updated(i, cut, kind, done.clipped_weight[nonzero[cut]])
                continue
            if case.name not in bands:
                bands[case.name] = Band.of(case, rows)
            band = bands[case.name]
            if band is None:
                sums.reasons |= dict.fromkeys(((i, rate) for rate in RATES), lacking(case))
                continue
            # Of the cases of one band only the one that drops is asked which rows lie in the band.
            for rate in RATES if clip.zeroes else RATES[1:]:
                name = case.name, rate, WAYS[clip.outside].cuts
                if name not in known:
                    known[name] = band.excess(clip, rows.A, rate, EVERY if rate == "band" else nonzero)
                try:
                    factor = band.factor(case, known[name])
                except UserError as error:
                    sums.no_range.setdefault((i, rate), {})[first] = str(error)
                    for subset, part in parts.items():
                        for d in ("one", kind):
                            add(sums.left_out, (i, rate, subset, d), part.denominators(d)[1])
                    continue
                near = np.flatnonzero(~(known[name] <= factor * (1 - ROUNDING)))  # of NaN too, which no band holds
                if rate == "band":
                    edges = band.edges(factor, near)
                    banded(i, near[~((edges.lo <= band.value[near]) & (edges.hi >= band.value[near]))])
                    continue
                here = nonzero[near]
                edges, value = band.edges(factor, here), band.value[here]
                side = np.asarray(clip.side(value, rows.A[here], edges))
                y = clip.clipped_weight(side, clip.edge_weight(value, rows.length[here], side, edges))
                updated(i, near[side != 0], kind, y[side != 0])
        for subset, part in parts.items():
            sums.number[subset] = sums.number.get(subset, 0) + len(part.S)
            for kind, (_, found) in part.known.items():
                add(sums.of_all, (subset, kind), found)

    def merge(self, other: Mapping[str, Sums]) -> None:
        """Add the sums of another tally, which was made of later blocks of the log. ``other`` holds them under `first`
        (first epoch) and `reused` (later epochs)."""
        for use, theirs in other.items():
            self.uses.setdefault(use, Sums()).merge(theirs)
