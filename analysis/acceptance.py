"""Tables acceptance, clip_sides, lre, trend, smooth: how often a rule accepts, by length (theory.md, 1-3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.bins import Bins
from analysis.evaluate import Case, Outcome, evaluate, measured, rate_of
from analysis.lre import lre_estimates
from analysis.rows import SUBSETS, USES, Ints, Rows, Run, windows
from analysis.smooth import smooth_rows
from analysis.stats import (
    MIN_CLUSTERS,
    TOO_FEW,
    Ratios,
    cluster_slope,
    dense,
    mean_interval,
    no_slope,
    proportion_interval,
    ratios,
)

MEASURES = ("band", "update", "weight")
SIDES = {"low": -1, "high": 1, "dual": 2}
TREND_MARGIN = 0.01
"""C1's equivalence margin: change of a(l) for each doubling of L."""
SMOOTHED = {"all": "band", "nonzero": "update"}
"""Which acceptance is drawn as a smooth curve, by subset."""
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
        index = bins.index(rows.coordinate)
        k = len(bins)
        count = np.append(np.bincount(index, minlength=k), len(rows)).astype(float)
        total = np.append(np.bincount(index, rows.coordinate, k), rows.coordinate.sum())
        mean = np.divide(total, count, out=np.full(k + 1, np.nan), where=count > 0)
        return View(rows, index, window, dense(rows.cluster), mean)

    def take(self, keep: np.ndarray, bins: Bins) -> View:
        """The rows of a mask."""
        return View.of(self.rows.take(keep), bins, self.window[keep])


def bin_columns(bins: Bins, view: View, k: int) -> dict[str, Any]:
    """Key columns of one bin; k = K means all lengths."""
    return {**bins.columns(-1 if k == len(bins) else k), "length_mean": view.mean_length[k]}


def acceptance_tables(
    run: Run, bins: Bins, cases: list[Case], trained: Case | None, window_size: int
) -> dict[str, Table]:
    """The tables acceptance, clip_sides, lre, trend, smooth and ranges of one run.

    Band acceptance does not depend on what happens outside, so counterfactual band rows carry outside = "drop".
    """
    tables: dict[str, Table] = {name: [] for name in ("acceptance", "clip_sides", "lre", "trend", "smooth", "ranges")}
    window = windows(run.rows.rollout, window_size)
    for use in USES:
        keep = run.rows.used == 0 if use == "first" else run.rows.used > 0
        if not keep.any():
            continue
        everyone = View.of(run.rows.take(keep), bins, window[keep])
        nonzero = everyone.rows.A != 0
        views = {"all": everyone, "nonzero": everyone.take(nonzero, bins)}
        for case in cases if trained is None else [trained, *cases]:
            for rate in ("band", "update"):
                if rate == "band" and case.source != "trained" and case.rule.outside != "drop":
                    continue
                # a_upd is calibrated on A != 0 and then applied to every row of the same window
                outcome = evaluate(case, everyone.rows, everyone.window, rate)
                _ranges(tables["ranges"], run, case, use, rate, outcome)
                for measure in MEASURES:
                    if rate_of(measure) != rate:
                        continue
                    for subset in SUBSETS:
                        if measure != "band" and subset == "all":
                            continue  # a_upd and b are defined over A != 0
                        here = _narrow(outcome, nonzero) if subset == "nonzero" else outcome
                        key = {**run.key, **case.key, "subset": subset, "use": use}
                        _measure(tables, key, measure, here, views[subset], bins)
            if case.source == "trained" or case.rule.outside == "drop":
                outcome = evaluate(case, everyone.rows, everyone.window, "update")
                key = {**run.key, **case.key, "subset": "nonzero", "use": use}
                _sides(tables["clip_sides"], key, _narrow(outcome, nonzero), views["nonzero"], bins)
        if trained is None and run.rule is not None:
            _logged_token_rule(tables, run, views, bins, use)
    return tables


def _narrow(outcome: Outcome, keep: np.ndarray) -> Outcome:
    names = ("side", "in_band", "weight", "clipped_weight", "multiplier")
    return Outcome(**{f: getattr(outcome, f)[keep] for f in names}, ranges=outcome.ranges, reason=outcome.reason)


def _ranges(table: Table, run: Run, case: Case, use: str, rate: str, outcome: Outcome) -> None:
    for window, (low, high) in outcome.ranges.items():
        table.append(
            {**run.key, **case.key, "use": use, "rate": rate, "window": window, "range_lo": low, "range_hi": high}
        )


def _measure(
    tables: dict[str, Table], key: dict[str, Any], measure: str, outcome: Outcome, view: View, bins: Bins
) -> None:
    key = {**key, "measure": measure}
    if outcome.reason or len(view.rows) == 0:
        reason = outcome.reason or "no rows"
        _nothing(tables, key, bins, reason)
        return
    y, d = measured(outcome, measure)
    found = ratios(y, view.cluster, view.bins, len(bins), d, binary=measure != "weight")
    tables["acceptance"] += acceptance_rows(key, found, view, bins, weights=y if measure == "weight" else None)
    tables["lre"] += [{**key, **e.__dict__} for e in lre_estimates(found)]
    weighted = measure == "weight"
    value = np.divide(y, d, out=np.zeros_like(y), where=d > 0) if weighted else y
    weight = d if weighted else None
    slope = cluster_slope(value, view.rows.trend, view.cluster, weight, margin=TREND_MARGIN)
    within = cluster_slope(value, view.rows.trend, view.cluster, weight, strata=view.window, margin=TREND_MARGIN)
    tables["trend"].append(trend_row(key, slope, within))
    if measure == SMOOTHED.get(key["subset"]) and (key["source"] == "trained" or key["outside"] == "drop"):
        tables["smooth"] += smooth_rows(key, y, view.rows.coordinate, view.cluster)


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
        blank = {"estimate": nan, "ci_low": nan, "ci_high": nan, "plug_in": nan, "wald_p": nan, "reason": reason}
        tables["lre"].append({**key, "norm": norm, **blank})
    tables["trend"].append(trend_row(key, no_slope(reason), no_slope(reason)))


def acceptance_rows(
    key: dict[str, Any], found: Ratios, view: View, bins: Bins, weights: np.ndarray | None = None
) -> Table:
    """Rows of the acceptance table by bin and overall.

    ``weights`` (N,), for weight acceptance, adds ``ess_share``: (sum x)^2 / (n sum x^2) of the clipped weights (T10).
    """
    if weights is None:
        low, high = proportion_interval(found.value, found.variance, found.count, found.clusters)
    else:
        low, high = mean_interval(found.value, found.variance, found.clusters)
        low = np.maximum(low, 0.0)
    rows: Table = []
    for k in range(len(bins) + 1):
        few = found.clusters[k] < MIN_CLUSTERS
        row = {**key, **bin_columns(bins, view, k), "count": int(found.count[k]), "clusters": int(found.clusters[k])}
        row |= {"estimate": np.nan if few else found.value[k], "ci_low": low[k], "ci_high": high[k]}
        row |= {"reason": TOO_FEW if few else "", "ess_share": np.nan}
        if weights is not None and not few:
            x = weights if k == len(bins) else weights[view.bins == k]
            square = float(np.sum(x * x))
            row["ess_share"] = float(np.sum(x)) ** 2 / (len(x) * square) if square > 0 else np.nan
        rows.append(row)
    return rows


def _sides(table: Table, key: dict[str, Any], outcome: Outcome, view: View, bins: Bins) -> None:
    if outcome.reason or len(view.rows) == 0:
        return
    for side, code in SIDES.items():
        y = (outcome.side == code).astype(np.float64)
        if side == "dual" and not y.any():
            continue
        found = ratios(y, view.cluster, view.bins, len(bins), binary=True)
        low, high = proportion_interval(found.value, found.variance, found.count, found.clusters)
        for k in range(len(bins) + 1):
            few = found.clusters[k] < MIN_CLUSTERS
            at = view.bins == k if k < len(bins) else np.ones(len(y), bool)
            row = {**key, **bin_columns(bins, view, k), "side": side, "numerator": int(y[at].sum())}
            row |= {"count": int(found.count[k]), "estimate": np.nan if few else found.value[k]}
            table.append(row | {"ci_low": low[k], "ci_high": high[k], "reason": TOO_FEW if few else ""})


def _logged_token_rule(tables: dict[str, Table], run: Run, views: dict[str, View], bins: Bins, use: str) -> None:
    """A token or prefix rule that trained, from the logged columns: band = all tokens in band, update = mean M."""
    rule = run.rule
    if rule is None or not {"band_accept", "multiplier"} <= run.logged:
        return
    case = Case(rule, run.trained_rule, "trained")
    for subset, view in views.items():
        rows = view.rows
        for measure, y in (("band", rows.band_accept.astype(np.float64)), ("update", rows.multiplier)):
            if measure == "update" and subset == "all":
                continue
            key = {**run.key, **case.key, "subset": subset, "use": use, "measure": measure}
            if len(rows) == 0 or not np.all(np.isfinite(y)):
                _nothing(tables, key, bins, "multiplier not logged")
                continue
            found = ratios(y, view.cluster, view.bins, len(bins), binary=measure == "band")
            tables["acceptance"] += acceptance_rows(key, found, view, bins)
            tables["lre"] += [{**key, **e.__dict__} for e in lre_estimates(found)]
            slope = cluster_slope(y, rows.trend, view.cluster, margin=TREND_MARGIN)
            within = cluster_slope(y, rows.trend, view.cluster, strata=view.window, margin=TREND_MARGIN)
            tables["trend"].append(trend_row(key, slope, within))
