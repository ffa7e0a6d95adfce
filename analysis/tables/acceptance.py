"""Make the tables acceptance, lre and trend (docs/theory.md sections 1-3).

The tables say how often a rule accepts responses, by length. They are made from sums over the log's rows, one sum for
each bin and group of clusters (:mod:`analysis.rules.tally`), not from the rows themselves. So the time to make the
tables from the sums does not grow with the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import numpy as np

from analysis.log.loading import Run
from analysis.log.ratio import CORRECTED
from analysis.log.rows import SUBSETS, USES, Floats, Ints, Rows
from analysis.rules.bands import NO_ADVANTAGE
from analysis.rules.evaluate import Case, rate_of
from analysis.rules.sums import Base, SubsetSums, Sums, ValueSums
from analysis.rules.tally import LOGGED, Tally
from analysis.stats.error_law import ROUNDING
from analysis.stats.lre import NORMS, lre_estimates
from analysis.tables.columns import UNKNOWN, BinKey, CaseKey, Interval, RuleKey, RunKey
from fspo.stats.bins import Bins
from fspo.stats.clusters import MIN_CLUSTERS, TOO_FEW, Ratios, dense, ratios, ratios_of_sums, sum_by
from fspo.stats.intervals import EQUIVALENCE, mean_interval, proportion_interval
from fspo.stats.slopes import Slope, no_slope, slope_of_sums

MEASURES = ("band", "update", "weight")
TREND_MARGIN = 0.01
"""Equivalence margin of claim C1: a change of the acceptance of at most this for each doubling of the length counts as
no change."""
FACTOR = "factor"
"""Name of the measure that is the mean of the factors which the run's own correction on tokens left the responses."""
Measure = Annotated[
    str,
    "band: a_band, share in the band; update: a_upd, share that is not cut; weight: b, sum of M w over sum of w; "
    "factor (table acceptance): mean factor that the run's correction on tokens left",
    "text",
]
Reason = Annotated[str, "why there is no number, or which rows it leaves out; else empty", "text"]
Count = Annotated[int, "rows: one for each response and update", "rows"]
Clusters = Annotated[int, "clusters, prompts of one rollout, with a row", "clusters"]


class AcceptanceRow(NamedTuple):
    """How often a rule accepts: one row for each rule, set of rows, kind of acceptance (measure) and bin.

    Written for every run. docs/theory.md sections 1 and 2, T1, T2, T10.
    """

    case: CaseKey
    place: BinKey
    measure: Measure
    count: Count
    clusters: Clusters
    estimate: Annotated[Interval, "acceptance of the measure", "share"]
    reason: Reason
    ess_share: Annotated[
        float, "(sum of M w)^2 over n sum of (M w)^2 (T10); of factors, theirs; measures weight and factor", "share"
    ]


class LreRow(NamedTuple):
    """Length Reweighting Error of a rule: one row for each rule, set of rows, kind of acceptance (measure) and norm.

    Written for every run. docs/theory.md section 3.
    """

    case: CaseKey
    measure: Measure
    norm: Annotated[str, f"{', '.join(NORMS)}; l2_squared is the square of LRE_2", "text"]
    estimate: Annotated[Interval, "LRE; of l2 and l2_squared bias-corrected, of inf and l1 the plug-in", "share"]
    plug_in: Annotated[float, "LRE of the estimated acceptances, noise included", "share"]
    wald_p: Annotated[float, "p value of a constant acceptance over the bins; the same for every norm", "probability"]
    detectable: Annotated[float, "LRE_2 from which on that test at 5 % rejects with probability 80 %", "share"]
    reason: Reason


class TrendRow(NamedTuple):
    """Straight-line trend of acceptance over length: one row for each rule, set of rows and kind of acceptance
    (measure).

    Written for every run. docs/theory.md section 3. A slope is the change of the acceptance for each doubling of the
    length; with another partition (``--by``), for each standard deviation of its coordinate.
    """

    case: CaseKey
    measure: Measure
    slope: Annotated[Interval, "change of the acceptance", "share for each doubling", ""]
    ci90_low: Annotated[float, f"lower end of the {100 * EQUIVALENCE:g} % interval of slope", "share for each doubling"]
    ci90_high: Annotated[float, "upper end of it", "share for each doubling"]
    p_value: Annotated[float, "two-sided p value of slope = 0", "probability"]
    tost_p: Annotated[float, f"p value of |slope| >= {TREND_MARGIN} (two one-sided tests)", "probability"]
    se: Annotated[float, "cluster-robust standard error of slope", "share for each doubling"]
    clusters: Annotated[int, "groups of clusters that the error is estimated from", "clusters"]
    reason: Reason
    within_slope: Annotated[
        Interval, "slope among responses of the same window only", "share for each doubling", "within_"
    ]

    @staticmethod
    def of(case: CaseKey, measure: str, over: Slope, within: Slope) -> TrendRow:
        """Make a row of the table trend from two slopes of acceptance on length: ``over`` is the slope over all rows,
        ``within`` that among rows of the same window."""
        slope, inside = (Interval(s.slope, s.ci_low, s.ci_high) for s in (over, within))
        ninety = (over.ci90_low, over.ci90_high, over.p_value, over.tost_p, over.se)
        return TrendRow(case, measure, slope, *ninety, over.clusters, over.reason, inside)


@dataclass
class AcceptanceTables:
    """Rows of the tables acceptance, lre and trend."""

    acceptance: list[AcceptanceRow] = field(default_factory=list)
    lre: list[LreRow] = field(default_factory=list)
    trend: list[TrendRow] = field(default_factory=list)


@dataclass(frozen=True)
class BinnedRows:
    """Rows of one use (first or reused) with their bins, windows and cluster numbers, arrays (N,)."""

    rows: Rows
    bins: Ints
    window: Ints
    cluster: Ints
    mean: np.ndarray  # (K+1,) mean length (or other coordinate) of each of the K bins, and last of all rows

    @staticmethod
    def of(rows: Rows, bins: Bins, window: Ints) -> BinnedRows:
        """Find the bin of each row and the mean coordinate of each bin; ``window`` (N,) is the window of each row."""
        index = bins.index(rows.coordinate)
        k = len(bins)
        count = np.append(np.bincount(index, minlength=k), len(rows)).astype(float)
        total = np.append(np.bincount(index, rows.coordinate, k), rows.coordinate.sum())
        mean = np.divide(total, count, out=np.full(k + 1, np.nan), where=count > 0)
        return BinnedRows(rows, index, window, dense(rows.cluster), mean)

    def take(self, keep: np.ndarray, bins: Bins) -> BinnedRows:
        """Return the rows that a mask selects. The bins' mean coordinates and the cluster numbers are made anew, from
        the selected rows alone."""
        return BinnedRows.of(self.rows.take(keep), bins, self.window[keep])


def tables_of(run: Run, tally: Tally, uses: Sequence[str] = USES) -> AcceptanceTables:
    """Make the tables acceptance, lre and trend from the sums over the log's rows.

    ``tally`` holds the sums, for each rule and each of ``uses`` (first, reused).

    What happens outside the band does not change band acceptance. So of the counterfactual cases with the same band,
    only the case with outside = "drop" (for corrections "mask") gets rows of band acceptance.
    """
    tables, run_key = AcceptanceTables(), RunKey.of(run)
    for use in uses:
        if use not in tally.uses:
            continue
        sums = tally.uses[use]
        views = {name: Means.of(found) for name, found in sums.subsets.items()}
        made: dict[tuple[int, str, str], AcceptanceTables] = {}
        for i, case in enumerate(tally.cases):
            drop = case.source == "trained" or case.rule.clip.zeroes
            band = RuleKey.of(run_key, case)
            for measure in MEASURES if drop else MEASURES[1:]:
                # Update and weight acceptance are defined only for rows with A != 0.
                for subset in SUBSETS if measure == "band" else SUBSETS[1:]:
                    key = CaseKey(band, subset, use)
                    _measure(tables, key, measure, tally, sums, i, views[subset], made)
        if tally.logged and run.rule is not None:
            band = RuleKey.of(run_key, Case(run.rule, run.rule.label, "trained"))
            band_too = (("all", "band"), ("nonzero", "band")) if tally.logged_band else ()
            for subset, measure in (*band_too, ("nonzero", "update")):
                _measure(tables, CaseKey(band, subset, use), measure, tally, sums, LOGGED, views[subset], made)
    return tables


@dataclass(frozen=True)
class Means:
    """Mean coordinate (length, or another column) of the rows in each of K bins; the last of K+1 entries is the mean
    over all rows."""

    mean: np.ndarray

    @staticmethod
    def of(found: SubsetSums) -> Means:
        """Compute each bin's mean coordinate from the sum and the number of its rows in ``found``; NaN without rows."""
        k = np.full(len(found.count), np.nan)
        return Means(np.divide(found.coordinate, found.count, out=k, where=found.count > 0))


def _measure(
    tables: AcceptanceTables,
    case: CaseKey,
    measure: str,
    tally: Tally,
    sums: Sums,
    i: int,
    view: Means,
    made: dict[tuple[int, str, str], AcceptanceTables],
) -> None:
    """Add the rows of one case and one kind of acceptance (``measure``: band, update or weight) to the tables that are
    made of acceptances.

    ``made`` holds the rows that earlier calls made, so that they can be used again: a case with outside = "truncate"
    clips the same responses as the case with the same band and outside = "drop" (``Tally.twins``), so both get the same
    rows of update acceptance.
    """
    counted = tally.twins.get(i, i) if measure == "update" else i
    place = counted, measure, case.subset
    column = sums.columns.get(place)
    rate = rate_of(measure)
    reason, left_out = sums.reasons.get((i, rate), ""), _left_out(sums, i, rate, case.subset)
    if reason or column is None or sums.counted(i, rate, case.subset).count[-1] == 0:
        _nothing(tables, case, measure, tally.layout.bins, reason or left_out or "no rows")
        return
    if left_out:
        view = Means.of(sums.counted(i, rate, case.subset))
    if place not in made:
        made[place] = _estimates(case, tally, sums, counted, measure, column, view)

    def of_case(rows: Sequence[Any]) -> list[Any]:
        return [row._replace(case=case, reason="; ".join(filter(None, (row.reason, left_out)))) for row in rows]

    rows = made[place]
    tables.acceptance += of_case(rows.acceptance)
    tables.lre += of_case(rows.lre)
    tables.trend += of_case(rows.trend)


def _left_out(sums: Sums, i: int, rate: str, subset: str) -> str:
    """Return a text that says which share of the rows the case leaves out; "" if it leaves out none.

    Rows are left out if no range gives the case's target acceptance in their window. The text also says why no range
    does in the first of these windows.
    """
    windows, found = sums.no_range.get((i, rate), {}), sums.left_out.get((i, rate, subset))
    if found is None:
        return ""
    first = min(window for window, why in windows.items() if why != str(NO_ADVANTAGE))
    share = found.count[-1] / sums.subsets[subset].count[-1]
    return f"{share:.1%} of the rows left out, where no range gives the target; window {first}: {windows[first]}"


def _estimates(
    case: CaseKey, tally: Tally, sums: Sums, i: int, measure: str, column: ValueSums, view: Means
) -> AcceptanceTables:
    """Make the table rows of one case and kind of acceptance (``measure``: band, update or weight).

    ``column`` holds the sums of the acceptance's numerator: numbers of accepted rows, or sums of M or of M w.
    """
    bins, shared = tally.layout.bins, sums.counted(i, rate_of(measure), case.subset)
    weighted = measure == "weight"
    rows, base = shared.bases["one"], shared.bases[tally.cases[i].rule.weight if weighted else "one"]
    some = rows.d.sum(1) > 0
    binary = not weighted and not (i == LOGGED and measure == "update")
    found = ratios_of_sums(rows.d[some], column.y[some], base.d[some], clusters=shared.clusters, binary=binary)
    unusual = _unusual(tally, sums, i, measure, column, rows, some)
    return AcceptanceTables(
        acceptance_rows(case, measure, found, view, bins, (column.y, column.squares) if weighted else None),
        lre=_lre_rows(case, measure, found),
        trend=[TrendRow.of(case, measure, *_slopes(column, base, some, unusual))],
    )


def _lre_rows(case: CaseKey, measure: str, found: Ratios) -> list[LreRow]:
    return [
        LreRow(
            *(case, measure, e.norm, Interval(e.estimate, e.ci_low, e.ci_high)),
            *(e.plug_in, e.wald_p, e.detectable, e.reason),
        )
        for e in lre_estimates(found)
    ]


def _unusual(tally: Tally, sums: Sums, i: int, measure: str, column: ValueSums, rows: Base, some: np.ndarray) -> int:
    """Count the clusters in which some row has the rarer outcome: cut if most rows are accepted, else accepted.

    If most rows are cut, and a cut row may keep part of its weight, every cluster is counted.
    """
    if measure == "weight":
        column = sums.columns[tally.twins.get(i, i), "update", "nonzero"]
    count = rows.d[some].sum(1)
    if i == LOGGED and measure == "update":
        usual = count - sums.unlike[some]
    else:
        usual = column.y[some].sum(1)
    if 2 * usual.sum() >= count.sum():
        return int(np.count_nonzero(count - usual))
    between = measure == "weight" and not tally.cases[i].rule.clip.zeroes
    return len(count) if between or (i == LOGGED and measure == "update") else int(np.count_nonzero(usual))


def _slopes(column: ValueSums, base: Base, some: np.ndarray, unusual: int) -> tuple[Slope, Slope]:
    """Return two slopes of acceptance on log2 of the length: over all rows, and among rows of the same window.

    ``column`` holds the sums of the acceptance's numerator, ``base`` those of its denominator. ``unusual`` is the
    number of clusters with a row of the rarer outcome (accepted or cut), as `_unusual` counts them.
    """
    s, y = base.d[some].sum(1), column.y[some].sum(1)
    total = float(s.sum())
    if not total > 0:
        return no_slope("all weights are 0"), no_slope("all weights are 0")
    x, xx, xy = base.x[some], base.xx[some], column.xy[some]
    mean_x, mean_y = float(x.sum()) / total, float(y.sum()) / total
    # Subtract the mean of y (a row's acceptance) before that of x (log2 of its length): if y is the same in all rows,
    # the slope's numerator, the sum of (x - mean x)(y - mean y), is then exactly 0.
    centred = (xy - mean_y * x) - mean_x * (y - mean_y * s)
    over = (x - mean_x * s, xx - 2 * mean_x * x + mean_x**2 * s, centred)
    within = (base.within_x[some], base.within_xx[some], column.within[some])
    whole, inside = (slope_of_sums(*sums, total, unusual, margin=TREND_MARGIN) for sums in (over, within))
    return whole, inside


def _nothing(tables: AcceptanceTables, case: CaseKey, measure: str, bins: Bins, reason: str) -> None:
    nan = float("nan")
    for k in range(-1, len(bins)):
        row = AcceptanceRow(case, BinKey.of(bins, k, nan), measure, 0, 0, UNKNOWN, reason, nan)
        tables.acceptance.append(row)
    tables.lre += [LreRow(case, measure, norm, UNKNOWN, nan, nan, nan, reason) for norm in NORMS]
    tables.trend.append(TrendRow.of(case, measure, no_slope(reason), no_slope(reason)))


def acceptance_rows(
    case: CaseKey,
    measure: str,
    found: Ratios,
    view: BinnedRows | Means,
    bins: Bins,
    weights: tuple[Floats, Floats] | None = None,
) -> list[AcceptanceRow]:
    """Make the rows of the table acceptance, by bin and overall.

    For weight acceptance, ``weights`` holds the sums of the clipped weights x = M w and of their squares by group of
    clusters and bin, two arrays (G, K). Only then the column ``ess_share`` is filled: (sum x)^2 / (n sum x^2) over the
    n rows of the bin (T10).
    """
    low, high = proportion_interval(found.value, found.variance, found.count, found.clusters)
    if not found.binary:
        # A weight acceptance can exceed 1, so it gets the interval of a mean, not of a share. If no row of a bin is
        # cut, the bin's weight acceptance is 1 and does not vary, so the interval of a share is kept.
        cut = ~found.shares & ((found.variance > ROUNDING) | (np.abs(found.value - 1) > ROUNDING))
        means = mean_interval(found.value, found.variance, found.clusters)
        low, high = np.where(cut, np.maximum(means[0], 0.0), low), np.where(cut, means[1], high)
    rows: list[AcceptanceRow] = []
    for k in range(len(bins) + 1):
        few = found.clusters[k] < MIN_CLUSTERS
        ess_share = np.nan
        if weights is not None and not few:
            at = slice(None) if k == len(bins) else k
            total, square = (float(x[:, at].sum()) for x in weights)
            ess_share = total**2 / (int(found.count[k]) * square) if square > 0 else np.nan
        estimate = Interval(np.nan if few else found.value[k], low[k], high[k])
        counts = int(found.count[k]), int(found.clusters[k])
        place = BinKey.of(bins, k, view.mean[k])
        rows.append(AcceptanceRow(case, place, measure, *counts, estimate, TOO_FEW if few else "", ess_share))
    return rows


def factor_rows(run: Run, bins: Bins) -> list[AcceptanceRow]:
    """Make rows of the table acceptance, measure `FACTOR`, for the factors that the run's own correction on tokens left
    the responses, which are read from the log's column ``correction_weight``.

    The result is empty if the run has no correction on the analysed ratio, and if its correction acts on sequences: the
    factors of such a correction follow from a response's log-ratio and length, as those of the other rules do.
    """
    if run.rule is None or run.rule.level == "sequence" or run.ratio.on not in CORRECTED:
        return []
    rows = run.rows.take(np.flatnonzero(np.isfinite(run.rows.multiplier)))
    if len(rows) == 0:
        return []
    view, x, number = BinnedRows.of(rows, bins, rows.rollout), rows.multiplier, len(bins)
    case = CaseKey(RuleKey.of(RunKey.of(run), Case(run.rule, run.rule.label, "trained")), "all", "first")
    sums = tuple(sum_by(view.cluster, view.bins, number, values) for values in (x, x**2))
    return acceptance_rows(case, FACTOR, ratios(x, view.cluster, view.bins, number), view, bins, sums)
