"""Tables acceptance, clip_sides, lre, trend, smooth: how often a rule accepts, by length (theory.md, 1-3).

Made from sums by group of clusters and bin (:mod:`analysis.rules.tally`), so their cost does not grow with the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from analysis.log.loading import Run
from analysis.log.rows import SUBSETS, USES, Ints, Rows
from analysis.rules.bands import NO_ADVANTAGE
from analysis.rules.evaluate import Case, rate_of
from analysis.rules.sums import Base, Column, SubsetSums, Sums
from analysis.rules.tally import LOGGED, SIDES, Tally
from analysis.stats.error_law import ROUNDING
from analysis.stats.lre import lre_estimates
from analysis.stats.smooth import smooth_cells, smooth_rows
from fspo.stats.bins import Bins
from fspo.stats.clusters import MIN_CLUSTERS, TOO_FEW, Ratios, dense, ratios_of_sums
from fspo.stats.intervals import mean_interval, proportion_interval
from fspo.stats.slopes import Slope, no_slope, slope_of_sums

MEASURES = ("band", "update", "weight")
TREND_MARGIN = 0.01
"""C1's equivalence margin: change of a(l) for each doubling of L."""
Table = list[dict[str, Any]]


@dataclass(frozen=True)
class View:
    """Rows of one use, with their bins, windows and dense clusters; ``subset`` narrows it."""

    rows: Rows
    bins: Ints
    window: Ints
    cluster: Ints
    mean_length: np.ndarray  # (K+1,) of the partition's coordinate, last: all

    @staticmethod
    def of(rows: Rows, bins: Bins, window: Ints) -> View:
        """Rows put into their bins."""
        index = bins.index(rows.coordinate)
        k = len(bins)
        count = np.append(np.bincount(index, minlength=k), len(rows)).astype(float)
        total = np.append(np.bincount(index, rows.coordinate, k), rows.coordinate.sum())
        mean = np.divide(total, count, out=np.full(k + 1, np.nan), where=count > 0)
        return View(rows, index, window, dense(rows.cluster), mean)

    def take(self, keep: np.ndarray, bins: Bins) -> View:
        """The rows of a mask."""
        return View.of(self.rows.take(keep), bins, self.window[keep])


def bin_columns(bins: Bins, view: View | Means, k: int) -> dict[str, Any]:
    """Key columns of one bin; k = K means all lengths."""
    return {**bins.columns(-1 if k == len(bins) else k), "length_mean": view.mean_length[k]}


def tables_of(run: Run, tally: Tally, uses: Sequence[str] = USES) -> dict[str, Table]:
    """The tables acceptance, clip_sides, lre, trend, smooth and ranges, from the sums over all windows.

    Band acceptance does not depend on what happens outside, so counterfactual band rows carry outside = "drop".
    """
    tables: dict[str, Table] = {name: [] for name in ("acceptance", "clip_sides", "lre", "trend", "smooth", "ranges")}
    for use in uses:
        if use not in tally.uses:
            continue
        sums = tally.uses[use]
        views = {name: Means.of(found) for name, found in sums.subsets.items()}
        made: dict[tuple[int, str, str], dict[str, Table]] = {}
        for i, case in enumerate(tally.cases):
            drop = case.source == "trained" or case.rule.outside == "drop"
            key = {**run.key, **case.key, "use": use}
            for measure in MEASURES if drop else MEASURES[1:]:
                rate = rate_of(measure)
                if measure != "weight":
                    _ranges(tables["ranges"], key, rate, sums, i)
                for subset in SUBSETS if measure == "band" else SUBSETS[1:]:  # a_upd and b are defined over A != 0
                    _measure(tables, key, measure, subset, tally, sums, i, views[subset], made)
            if drop and (i, "update") not in sums.reasons:
                mean = Means.of(sums.counted(i, "update", "nonzero"))
                _sides(tables["clip_sides"], {**key, "subset": "nonzero"}, tally, sums, i, mean)
        if tally.logged and run.rule is not None:
            key = {**run.key, **Case(run.rule, run.trained_rule, "trained").key, "use": use}
            for subset, measure in (("all", "band"), ("nonzero", "band"), ("nonzero", "update")):
                _measure(tables, key, measure, subset, tally, sums, LOGGED, views[subset], made)
    return tables


@dataclass(frozen=True)
class Means:
    """Mean coordinate by bin and overall (K+1,)."""

    mean_length: np.ndarray

    @staticmethod
    def of(found: SubsetSums) -> Means:
        """Of one subset."""
        k = np.full(len(found.count), np.nan)
        return Means(np.divide(found.coordinate, found.count, out=k, where=found.count > 0))


def _ranges(table: Table, key: dict[str, Any], rate: str, sums: Sums, i: int) -> None:
    if (i, rate) in sums.reasons:
        return
    key = {**key, "rate": rate}
    for window, (low, high) in sums.ranges.get((i, rate), {}).items():
        table.append({**key, "window": window, "range_lo": low, "range_hi": high, "reason": ""})
    for window, why in sums.no_range.get((i, rate), {}).items():
        table.append({**key, "window": window, "range_lo": np.nan, "range_hi": np.nan, "reason": why})


def _measure(
    tables: dict[str, Table],
    key: dict[str, Any],
    measure: str,
    subset: str,
    tally: Tally,
    sums: Sums,
    i: int,
    view: Means,
    made: dict[tuple[int, str, str], dict[str, Table]],
) -> None:
    """Rows of one case and measure; ``made`` holds those of earlier cases without their keys."""
    key = {**key, "subset": subset, "measure": measure}
    counted = tally.twins.get(i, i) if measure == "update" else i
    column = sums.columns.get((counted, measure, subset))
    rate = rate_of(measure)
    reason, left_out = sums.reasons.get((i, rate), ""), _left_out(sums, i, rate, subset)
    if reason or column is None or sums.counted(i, rate, subset).count[-1] == 0:
        _nothing(tables, key, tally.layout.bins, reason or left_out or "no rows")
        return
    if left_out:
        view = Means.of(sums.counted(i, rate, subset))
    place = counted, measure, subset
    if place not in made:
        made[place] = _estimates(tally, sums, counted, measure, subset, column, view)
    for name, rows in made[place].items():
        if name != "smooth" or counted == i:  # a curve that is the same is drawn once
            tables[name] += [
                {**key, **row, "reason": "; ".join(filter(None, (row["reason"], left_out)))} for row in rows
            ]


def _left_out(sums: Sums, i: int, rate: str, subset: str) -> str:
    """Which windows are missing from the rows of a case, and why the first of them is; empty if none is."""
    windows, found = sums.no_range.get((i, rate), {}), sums.left_out.get((i, rate, subset))
    if found is None:
        return ""
    first = min(window for window, why in windows.items() if why != str(NO_ADVANTAGE))
    share = found.count[-1] / sums.subsets[subset].count[-1]
    return f"{share:.1%} of the rows left out, where no range gives the target; window {first}: {windows[first]}"


def _estimates(
    tally: Tally, sums: Sums, i: int, measure: str, subset: str, column: Column, view: Means
) -> dict[str, Table]:
    """Rows of one case and measure without their keys."""
    bins, shared = tally.layout.bins, sums.counted(i, rate_of(measure), subset)
    weighted = measure == "weight"
    rows, base = shared.bases["one"], shared.bases[tally.cases[i].rule.weight if weighted else "one"]
    some = rows.d.sum(1) > 0
    binary = not weighted and not (i == LOGGED and measure == "update")
    found = ratios_of_sums(rows.d[some], column.y[some], base.d[some], clusters=shared.clusters, binary=binary)
    unusual = _unusual(tally, sums, i, measure, column, rows, some)
    made = {
        "acceptance": acceptance_rows({}, found, view, bins, column if weighted else None),
        "lre": [dict(e.__dict__) for e in lre_estimates(found)],
        "trend": [trend_row({}, *_slopes(column, base, some, unusual))],
    }
    if len(column.rejected):
        groups, cells = tally.layout.codes()
        shape = (tally.layout.groups, len(tally.layout.values))
        counts, hits = (
            sparse.csr_matrix((x.astype(np.float64), (groups, cells)), shape)
            for x in (shared.pairs, shared.pairs - column.rejected)
        )
        made["smooth"] = smooth_rows({}, smooth_cells(tally.layout.values, counts, hits))
    return made


def _unusual(tally: Tally, sums: Sums, i: int, measure: str, column: Column, rows: Base, some: np.ndarray) -> int:
    """Groups with another value than the usual one: 1 or 0 or, if most multipliers lie between, neither."""
    if measure == "weight":
        column = sums.columns[tally.twins.get(i, i), "update", "nonzero"]
    count = rows.d[some].sum(1)
    if i == LOGGED and measure == "update":
        usual = count - sums.unlike[some]
    else:
        usual = column.y[some].sum(1)
    if 2 * usual.sum() >= count.sum():
        return int(np.count_nonzero(count - usual))
    between = measure == "weight" and tally.cases[i].rule.outside != "drop"
    return len(count) if between or (i == LOGGED and measure == "update") else int(np.count_nonzero(usual))


def _slopes(column: Column, base: Base, some: np.ndarray, unusual: int) -> tuple[Slope, Slope]:
    """Trend over all rows, and within windows."""
    s, y = base.d[some].sum(1), column.y[some].sum(1)
    total = float(s.sum())
    if not total > 0:
        return no_slope("all weights are 0"), no_slope("all weights are 0")
    x, xx, xy = base.x[some], base.xx[some], column.xy[some]
    mean_x, mean_y = float(x.sum()) / total, float(y.sum()) / total
    # in this order the sums vanish exactly where y does not vary
    centred = (xy - mean_y * x) - mean_x * (y - mean_y * s)
    over = (x - mean_x * s, xx - 2 * mean_x * x + mean_x**2 * s, centred)
    within = (base.within_x[some], base.within_xx[some], column.within[some])
    whole, inside = (slope_of_sums(*sums, total, unusual, margin=TREND_MARGIN) for sums in (over, within))
    return whole, inside


def trend_row(key: dict[str, Any], slope: Any, within: Any) -> dict[str, Any]:
    """One row of the trend table; ``within_*`` compares only responses of the same window."""
    row = {**key, "slope_per_doubling": slope.slope}
    names = ("se", "ci_low", "ci_high", "ci90_low", "ci90_high", "p_value", "tost_p", "clusters", "reason")
    row |= {name: getattr(slope, name) for name in names}
    return row | {"within_slope": within.slope, "within_ci_low": within.ci_low, "within_ci_high": within.ci_high}


def _nothing(tables: dict[str, Table], key: dict[str, Any], bins: Bins, reason: str) -> None:
    nan = float("nan")
    empty = {"count": 0, "clusters": 0, "estimate": nan, "ci_low": nan, "ci_high": nan, "reason": reason}
    for k in range(-1, len(bins)):
        tables["acceptance"].append({**key, **bins.columns(k), "length_mean": nan, **empty, "ess_share": nan})
    for norm in ("inf", "l1", "l2", "l2_squared"):
        blank = dict.fromkeys(("estimate", "ci_low", "ci_high", "plug_in", "wald_p", "detectable"), nan)
        tables["lre"].append({**key, "norm": norm, **blank, "reason": reason})
    tables["trend"].append(trend_row(key, no_slope(reason), no_slope(reason)))


def acceptance_rows(
    key: dict[str, Any], found: Ratios, view: View | Means, bins: Bins, weights: Column | None = None
) -> Table:
    """Rows of the acceptance table by bin and overall.

    ``weights``, for weight acceptance, adds ``ess_share``: (sum x)^2 / (n sum x^2) of the clipped weights (T10).
    """
    low, high = proportion_interval(found.value, found.variance, found.count, found.clusters)
    if not found.binary:
        # a mean that may exceed 1, unless weights are shared out; where nothing is cut no more certain than a share
        cut = ~found.shares & ((found.variance > ROUNDING) | (np.abs(found.value - 1) > ROUNDING))
        means = mean_interval(found.value, found.variance, found.clusters)
        low, high = np.where(cut, np.maximum(means[0], 0.0), low), np.where(cut, means[1], high)
    rows: Table = []
    for k in range(len(bins) + 1):
        few = found.clusters[k] < MIN_CLUSTERS
        row = {**key, **bin_columns(bins, view, k), "count": int(found.count[k]), "clusters": int(found.clusters[k])}
        row |= {"estimate": np.nan if few else found.value[k], "ci_low": low[k], "ci_high": high[k]}
        row |= {"reason": TOO_FEW if few else "", "ess_share": np.nan}
        if weights is not None and not few:
            at = slice(None) if k == len(bins) else k
            total, square = float(weights.y[:, at].sum()), float(np.sum(weights.squares[at]))
            row["ess_share"] = total**2 / (int(found.count[k]) * square) if square > 0 else np.nan
        rows.append(row)
    return rows


def _sides(table: Table, key: dict[str, Any], tally: Tally, sums: Sums, i: int, view: Means) -> None:
    bins, shared = tally.layout.bins, sums.counted(i, "update", "nonzero")
    if shared.count[-1] == 0:
        return
    rows = shared.bases["one"].d
    some = rows.sum(1) > 0
    for side in SIDES:
        if (i, side) not in sums.sides:
            continue
        y = sums.sides[i, side]
        found = ratios_of_sums(rows[some], y[some], rows[some], clusters=shared.clusters, binary=True)
        low, high = proportion_interval(found.value, found.variance, found.count, found.clusters)
        cut = np.append(y.sum(0), y.sum())
        for k in range(len(bins) + 1):
            few = found.clusters[k] < MIN_CLUSTERS
            row = {**key, **bin_columns(bins, view, k), "side": side, "numerator": int(cut[k])}
            row |= {"count": int(found.count[k]), "estimate": np.nan if few else found.value[k]}
            table.append(row | {"ci_low": low[k], "ci_high": high[k], "reason": TOO_FEW if few else ""})
