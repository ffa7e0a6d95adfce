"""Make the tables `acceptance`, `lre` and `trend` (docs/theory.md sections 1-3).

The tables say how often a rule accepts responses, by length. They are made from sums over the log's rows, one sum for
each bin and group of clusters (:mod:`analysis.rules.tally`), not from the rows themselves. So the time to make the
tables from the sums does not grow with the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import numpy as np

from analysis.log.loading import Run
from analysis.log.ratio import CORRECTED
from analysis.log.rows import SUBSETS, USES, Floats, Ints, Rows
from analysis.rules.evaluate import NO_ADVANTAGE, Case, rate_of
from analysis.rules.tally import LOGGED, CaseCounts, Sums, Tally
from analysis.stats.lre import NORMS, ROUNDING, lre_estimates
from analysis.tables.typed_rows import UNKNOWN, BinKey, CaseKey, Interval, RuleKey, RunKey
from fspo.stats.bins import Bins
from fspo.stats.clusters import MIN_CLUSTERS, TOO_FEW, Ratios, dense, ratios, ratios_of_sums, sum_by, totals
from fspo.stats.intervals import mean_interval, proportion_interval
from fspo.stats.slopes import Slope, slope_of_sums

MEASURES = ("band", "update", "weight")
FACTOR = "factor"
"""Name of the measure that is the mean of the factors which the run's own correction on tokens left the responses."""
Measure = Annotated[
    str,
    "band: a_band, share in the band; update: a_upd, share that is not clipped; weight: b, sum of M w over sum of w; "
    "factor (table acceptance): mean factor that the run's correction on tokens left",
    "text",
]
Reason = Annotated[str, "why there is no number, or which rows it leaves out; else empty", "text"]
Count = Annotated[int, "rows: one for each response and update", "rows"]
Clusters = Annotated[int, "clusters, prompts of one rollout, with a row", "clusters"]


class AcceptanceRow(NamedTuple):
    """How often a rule accepts: one row for each rule, set of rows, kind of acceptance (measure) and bin.

    Written for every run. It is explained in docs/theory.md, sections 1 and 2, T1, T2, T11."""

    case: CaseKey
    place: BinKey
    measure: Measure
    count: Count
    clusters: Clusters
    estimate: Annotated[Interval, "acceptance of the measure", "share"]
    reason: Reason
    ess_share: Annotated[
        float, "(sum of M w)^2 over n sum of (M w)^2 (T11); of factors, theirs; measures weight and factor", "share"
    ]


class LreRow(NamedTuple):
    """Length Reweighting Error of a rule: one row for each rule, set of rows, kind of acceptance (measure) and norm.

    Written for every run. It is explained in docs/theory.md, section 3."""

    case: CaseKey
    measure: Measure
    norm: Annotated[str, f"{', '.join(NORMS)}; l2_squared is the square of LRE_2", "text"]
    estimate: Annotated[Interval, "LRE; of l2 and l2_squared bias-corrected, of inf and l1 the plug-in", "share"]
    plug_in: Annotated[float, "LRE of the estimated acceptances, noise included", "share"]
    reason: Reason


class TrendRow(NamedTuple):
    """Straight-line fit of acceptance over length: one row for each rule, set of rows and kind of acceptance (measure).

    Written for every run. It is explained in docs/theory.md, section 3. A slope is the change of the acceptance for
    each doubling of the length; with another partition (``--by``), for each standard deviation of its coordinate."""

    case: CaseKey
    measure: Measure
    slope: Annotated[Interval, "change of the acceptance", "share for each doubling", ""]
    clusters: Annotated[int, "groups of clusters that the error is estimated from", "clusters"]
    reason: Reason

    @staticmethod
    def of(case: CaseKey, measure: str, found: Slope) -> TrendRow:
        """Make a row of the table `trend` of the slope ``found`` of an acceptance (``measure``) on length."""
        return TrendRow(case, measure, Interval(found.slope, found.ci_low, found.ci_high), found.clusters, found.reason)


@dataclass
class AcceptanceTables:
    """Rows of the tables `acceptance`, `lre` and `trend`."""

    acceptance: list[AcceptanceRow] = field(default_factory=list)
    lre: list[LreRow] = field(default_factory=list)
    trend: list[TrendRow] = field(default_factory=list)


@dataclass(frozen=True)
class BinnedRows:
    """Rows of the first or of later epochs, with the number of each row's bin and cluster and the first rollout of its
    block, arrays (N,); ``mean`` holds the mean coordinate of each bin and, last, of all rows."""

    rows: Rows
    bins: Ints
    window: Ints
    cluster: Ints
    mean: np.ndarray  # (K+1,) mean length (or other coordinate) of each of the K bins, and last of all rows

    @staticmethod
    def of(rows: Rows, bins: Bins, window: Ints) -> BinnedRows:
        """Find the bin of each row and the mean coordinate of each bin; ``window`` (N,) is the first rollout of each
        row's block."""
        index = bins.index(rows.coordinate)
        k = len(bins)
        count = np.append(np.bincount(index, minlength=k), len(rows)).astype(float)
        total = np.append(np.bincount(index, rows.coordinate, k), rows.coordinate.sum())
        mean = np.divide(total, count, out=np.full(k + 1, np.nan), where=count > 0)
        return BinnedRows(rows, index, window, dense(rows.cluster), mean)

    def take(self, keep: np.ndarray, bins: Bins) -> BinnedRows:
        """Return the rows that the mask ``keep`` (N,) selects. The bins' mean coordinates and the cluster numbers are
        made anew, from the selected rows alone."""
        return BinnedRows.of(self.rows.take(keep), bins, self.window[keep])


def tables_of(run: Run, tally: Tally, uses: Sequence[str] = USES) -> AcceptanceTables:
    """Make the tables `acceptance`, `lre` and `trend` from the sums over the log's rows.

    ``tally`` holds the sums, for each rule and each of ``uses`` (`first`, `reused`).

    What happens outside the band does not change band acceptance. So of the counterfactual cases with the same band,
    only the case with outside = "drop" (for corrections "mask") gets rows of band acceptance."""
    tables, run_key = AcceptanceTables(), RunKey.of(run)
    for use in uses:
        if use not in tally.uses:
            continue
        sums = tally.uses[use]
        of_cases: list[tuple[int, Case, Sequence[str]]] = [(i, case, MEASURES) for i, case in enumerate(tally.cases)]
        if tally.logged and run.rule is not None:
            measures = MEASURES[:2] if tally.logged_band else MEASURES[1:2]
            of_cases.append((LOGGED, Case(run.rule, run.rule.label, "trained"), measures))
        for i, case, measures in of_cases:
            for measure in measures:
                if measure == "band" and case.source != "trained" and not case.rule.clip.zeroes:
                    continue
                # Update and weight acceptance are defined only for rows with A != 0.
                for subset in SUBSETS if measure == "band" else SUBSETS[1:]:
                    key = CaseKey(RuleKey.of(run_key, case), subset, use)
                    _measure(tables, key, measure, tally, sums, i)
    return tables


@dataclass(frozen=True)
class Means:
    """Mean coordinate (length, or another column) of the rows in each of K bins; the last of K+1 entries is the mean
    over all rows."""

    mean: np.ndarray

    @staticmethod
    def of(found: CaseCounts) -> Means:
        """Compute each bin's mean coordinate from the sum and the number of its rows in ``found``; NaN without rows."""
        count = np.append(found.rows.sum(0), found.rows.sum())
        return Means(np.divide(found.coordinate, count, out=np.full(len(count), np.nan), where=count > 0))


def _measure(tables: AcceptanceTables, case: CaseKey, measure: str, tally: Tally, sums: Sums, i: int) -> None:
    """Add the rows of case number ``i`` and one acceptance (``measure``: band, update or weight) to the tables."""
    bins, rate = tally.layout.bins, rate_of(measure)
    column, reason = sums.columns.get((i, measure, case.subset)), sums.reasons.get((i, rate), "")
    left_out = _left_out(sums, i, rate, case.subset, 0.0 if column is None else float(column.rows.sum()))
    if reason or column is None or not column.rows.any():
        _nothing(tables, case, measure, bins, reason or left_out or "no rows")
        return

    def said(reason: str) -> str:
        return "; ".join(filter(None, (reason, left_out)))

    some = column.rows.sum(1) > 0
    between = measure == "weight" or (i == LOGGED and measure == "update")  # y may lie between 0 and d
    found = ratios_of_sums(
        column.rows[some], column.y[some], column.d[some], clusters=column.clusters, binary=not between
    )
    weights = (column.y, column.squares) if measure == "weight" else None
    rows = acceptance_rows(case, measure, found, Means.of(column), bins, weights)
    tables.acceptance += [row._replace(reason=said(row.reason)) for row in rows]
    zeroes = i != LOGGED and tally.cases[i].rule.clip.zeroes
    unusual = _unusual(column.rows[some].sum(1), column.cut[some].sum(1), between and not zeroes)
    trend = TrendRow.of(case, measure, _slope(column, some, unusual))
    tables.trend.append(trend._replace(reason=said(trend.reason)))
    for e in lre_estimates(found):
        estimate = Interval(e.estimate, e.ci_low, e.ci_high)
        tables.lre.append(LreRow(case, measure, e.norm, estimate, e.plug_in, said(e.reason)))


def _left_out(sums: Sums, i: int, rate: str, subset: str, counted: float) -> str:
    """Return a text that says which share of the rows case number ``i`` leaves out; "" if it leaves out none.

    Rows are left out if no range gives the target ``rate`` (band or update acceptance) in their block. The text also
    says why not, in the first such block. ``counted`` is the number of rows of ``subset`` that are not left out."""
    windows, number = sums.no_range.get((i, rate), {}), sums.number[subset]
    if not windows or counted == number:
        return ""
    first = min(window for window, why in windows.items() if why != str(NO_ADVANTAGE))
    share = 1 - counted / number
    left = f"{share:.1%} of the rows left out, where no range gives the target"
    return f"{left}; block of rollouts {first}: {windows[first]}"


def _unusual(count: Floats, cut: Floats, between: bool) -> int:
    """Count the clusters with a row of the rarer outcome: clipped if most rows are accepted, else accepted.

    ``count`` and ``cut`` (C,) are the numbers of rows and of clipped rows by cluster. If most rows are clipped, but a
    clipped row may keep a part of its weight (``between``), every cluster is counted."""
    if 2 * cut.sum() <= count.sum():
        return int(np.count_nonzero(cut))
    return len(count) if between else int(np.count_nonzero(count - cut))


def _slope(column: CaseCounts, some: np.ndarray, unusual: int) -> Slope:
    """Return the slope of acceptance on log2 of the length over the groups of clusters that ``some`` (G,) marks.

    ``unusual`` is the number of clusters with a row of the rarer outcome, as `_unusual` counts them."""
    d, y = column.d[some].sum(1), column.y[some].sum(1)
    total = float(d.sum())
    if not total > 0:
        return Slope(reason="all weights are 0")
    x, xx, xy = column.slope[some].T
    mean_x, mean_y = float(x.sum()) / total, float(y.sum()) / total
    # The sums of d (x - mean x)^2 and of (x - mean x) (y - d mean y) by group. The mean of y is subtracted before that
    # of x: if y / d is the same in all rows, the last sum is then exactly 0.
    products = (xy - mean_y * x) - mean_x * (y - mean_y * d)
    return slope_of_sums(xx - 2 * mean_x * x + mean_x**2 * d, products, total, unusual)


def _nothing(tables: AcceptanceTables, case: CaseKey, measure: str, bins: Bins, reason: str) -> None:
    nan = float("nan")
    for k in range(-1, len(bins)):
        row = AcceptanceRow(case, BinKey.of(bins, k, nan), measure, 0, 0, UNKNOWN, reason, nan)
        tables.acceptance.append(row)
    tables.lre += [LreRow(case, measure, norm, UNKNOWN, nan, reason) for norm in NORMS]
    tables.trend.append(TrendRow.of(case, measure, Slope(reason=reason)))


def acceptance_rows(
    case: CaseKey,
    measure: str,
    found: Ratios,
    view: BinnedRows | Means,
    bins: Bins,
    weights: tuple[Floats, Floats] | None = None,
) -> list[AcceptanceRow]:
    """Make the rows of the table acceptance, by bin and overall, for one case and one ``measure``; ``found`` holds the
    acceptances of the K bins and ``view`` the bins' mean lengths.

    For weight acceptance, ``weights`` holds the sums of the clipped weights x = M w by group of clusters and bin (G, K)
    and of their squares by bin (K,). Only then the column ``ess_share`` is filled: (sum x)^2 / (n sum x^2) over the n
    rows of the bin (T11)."""
    low, high = proportion_interval(found.value, found.variance, found.count, found.clusters)
    if not found.binary:
        # A weight acceptance can exceed 1, so it gets the interval of a mean, not of a share. If no row of a bin is
        # clipped, the bin's weight acceptance is 1 and does not vary, so the interval of a share is kept.
        cut = ~found.shares & ((found.variance > ROUNDING) | (np.abs(found.value - 1) > ROUNDING))
        means = mean_interval(found.value, found.variance, found.clusters)
        low, high = np.where(cut, np.maximum(means[0], 0.0), low), np.where(cut, means[1], high)
    rows: list[AcceptanceRow] = []
    for k in range(len(bins) + 1):
        few = found.clusters[k] < MIN_CLUSTERS
        ess_share = np.nan
        if weights is not None and not few:
            at = slice(None) if k == len(bins) else k
            total, square = float(weights[0][:, at].sum()), float(weights[1][at].sum())
            ess_share = total**2 / (int(found.count[k]) * square) if square > 0 else np.nan
        estimate = Interval(np.nan if few else found.value[k], low[k], high[k])
        counts = int(found.count[k]), int(found.clusters[k])
        place = BinKey.of(bins, k, view.mean[k])
        rows.append(AcceptanceRow(case, place, measure, *counts, estimate, TOO_FEW if few else "", ess_share))
    return rows


def factor_rows(run: Run, bins: Bins) -> list[AcceptanceRow]:
    """Return the rows of the table acceptance, by bin, for the measure "factor": the mean of the factors that the run's
    own correction on tokens left the responses, which the log's column ``correction_weight`` holds.

    The result is empty if the run's correction acts on sequences, or if it has none on the analysed ratio. The factor
    of a correction on sequences follows from a response's log-ratio and length, so other measures evaluate it."""
    if run.rule is None or run.rule.level == "sequence" or run.ratio.on not in CORRECTED:
        return []
    rows = run.rows.take(np.flatnonzero(np.isfinite(run.rows.multiplier)))
    if len(rows) == 0:
        return []
    view, x, number = BinnedRows.of(rows, bins, rows.rollout), rows.multiplier, len(bins)
    case = CaseKey(RuleKey.of(RunKey.of(run), Case(run.rule, run.rule.label, "trained")), "all", "first")
    sums = sum_by(view.cluster, view.bins, number, x), totals(view.bins, number, x**2)
    return acceptance_rows(case, FACTOR, ratios(x, view.cluster, view.bins, number), view, bins, sums)
