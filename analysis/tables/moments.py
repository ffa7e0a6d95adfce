"""Tables moments and scaling: what section 7 of docs/theory.md assumes about S given L, with intervals.

Rows of several updates and windows are pooled, and S spreads as training goes on. So normality and the exponent H
are measured on ``z = (S - mean of its bin) / (scale_s sqrt(L))``, where ``scale_s`` is the root of
sum S^2 / sum L over the rows of the same update: only the shape over lengths within an update is left.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from analysis.log.loading import Run
from analysis.log.rows import SUBSETS, USES, Floats, Ints, windows
from analysis.tables.acceptance import View, bin_columns
from fspo.stats.bins import Bins
from fspo.stats.clusters import MIN_CLUSTERS, TOO_FEW, dense, ratios
from fspo.stats.intervals import CONFIDENCE, EQUIVALENCE, mean_interval, simultaneous_half_widths, t_quantile

Table = list[dict[str, Any]]
SIGNS = {"all": 0, "positive": 1, "negative": -1}
GRID = special.ndtri(np.arange(1, 20) / 20)
"""Points at which the law of z is compared with the normal law: its twentieths."""


def update_scale(S: Floats, length: Floats, step: Ints) -> Floats:
    """Root of sum S^2 / sum L over each row's update (N,), nats per root token; 1 where it is 0."""
    code = dense(step)
    scale = np.sqrt(np.bincount(code, S * S) / np.bincount(code, length))
    return np.where(scale > 0, scale, 1.0)[code]


def moment_tables(run: Run, bins: Bins, window_size: int) -> dict[str, Table]:
    """The tables moments and scaling of one run."""
    tables: dict[str, Table] = {"moments": [], "scaling": []}
    window = windows(run.rows.rollout, window_size)
    for use in USES:
        keep = run.rows.used == 0 if use == "first" else run.rows.used > 0
        if not keep.any():
            continue
        everyone = View.of(run.rows.take(keep), bins, window[keep])
        scale = update_scale(everyone.rows.S, everyone.rows.length, everyone.rows.step)
        for subset in SUBSETS:
            chosen = np.ones(len(scale), bool) if subset == "all" else everyone.rows.A != 0
            view = everyone.take(chosen, bins)
            key = {**run.key, "subset": subset, "use": use}
            if len(view.rows):
                tables["moments"] += _moments(key, view, scale[chosen], bins)
                tables["scaling"] += _scaling(key, view, scale[chosen])
    return tables


def _moments(key: dict[str, Any], view: View, scale: Floats, bins: Bins) -> Table:
    rows, number = view.rows, len(bins)
    S, L = rows.S, rows.length
    mean = ratios(S, view.cluster, view.bins, number)
    drift = ratios(S, view.cluster, view.bins, number, L)
    k3 = ratios(rows.k3_sum, view.cluster, view.bins, number, L)
    z = standardized(S, L, scale, view.bins)
    out: Table = []
    for k in range(number + 1):
        row = {**key, **bin_columns(bins, view, k), "count": int(mean.count[k]), "clusters": int(mean.clusters[k])}
        at = view.bins == k if k < number else np.ones(len(S), bool)
        if mean.clusters[k] < MIN_CLUSTERS:
            out.append(row | dict.fromkeys(VALUE_COLUMNS, np.nan) | {"reason": TOO_FEW})
            continue
        for name, found in (("mean_S", mean), ("drift_per_token", drift)):
            low, high = mean_interval(found.value[k], found.variance[k], found.clusters[k])
            row |= {name: found.value[k], f"{name}_ci_low": float(low), f"{name}_ci_high": float(high)}
        variance, low, high = variance_interval(S[at], view.cluster[at])
        row |= {"var_S": variance, "var_S_ci_low": low, "var_S_ci_high": high, "k3_per_token": k3.value[k]}
        weight = ratios(np.exp(np.minimum(S[at], 20.0)), dense(view.cluster[at]), np.zeros(at.sum(), np.int64), 1)
        low, high = mean_interval(weight.value[0], weight.variance[0], weight.clusters[0])
        row |= {"mean_weight": weight.value[0], "mean_weight_ci_low": float(low), "mean_weight_ci_high": float(high)}
        row |= shape_of(z[at], dense(view.cluster[at])) | {"reason": ""}
        out.append(row)
    return out


SHAPE_COLUMNS = (
    *("skew", "skew_ci_low", "skew_ci_high", "excess_kurtosis", "excess_kurtosis_ci_low", "excess_kurtosis_ci_high"),
    *("ks_distance", "ks_ci_low", "ks_ci_high", "var_z"),
)
VALUE_COLUMNS = (
    *("mean_S", "mean_S_ci_low", "mean_S_ci_high"),
    *("drift_per_token", "drift_per_token_ci_low", "drift_per_token_ci_high"),
    *("var_S", "var_S_ci_low", "var_S_ci_high", "k3_per_token"),
    *("mean_weight", "mean_weight_ci_low", "mean_weight_ci_high"),
    *SHAPE_COLUMNS,
)


def standardized(S: Floats, L: Floats, scale: Floats, bins: Ints) -> Floats:
    """z (N,): S / (scale sqrt(L)) less its mean in the bin."""
    z = S / (scale * np.sqrt(L))
    count = np.bincount(bins)
    mean = np.divide(np.bincount(bins, z), count, out=np.zeros(len(count)), where=count > 0)
    return z - mean[bins]


def variance_interval(x: Floats, cluster: Ints, level: float = CONFIDENCE) -> tuple[float, float, float]:
    """Variance about the mean and its cluster-aware interval, built on the logarithm."""
    cluster = dense(cluster)
    clusters = int(cluster.max()) + 1
    deviation = (x - x.mean()) ** 2
    variance = float(deviation.mean()) * clusters / max(clusters - 1, 1)
    if not variance > 0 or clusters < MIN_CLUSTERS:
        return variance, np.nan, np.nan
    scores = np.bincount(cluster, deviation - deviation.mean()) / len(x)
    se = np.sqrt(np.sum(scores**2) * clusters / (clusters - 1)) / deviation.mean()
    half = t_quantile(clusters - 1, level) * se
    return variance, variance * float(np.exp(-half)), variance * float(np.exp(half))


def shape_of(z: Floats, cluster: Ints) -> dict[str, float]:
    """Skewness, excess kurtosis (influence-based intervals) and distance of the law of z from a normal law.

    ``ks_distance`` is the largest |F(t) - Phi(t)| over the normal law's twentieths after z is given unit variance;
    it bounds how far acceptance of any one-sided edge can be from the Gaussian model's. Its interval comes from
    simultaneous bands; 0 lies below it when normality is refuted.
    """
    empty: dict[str, float] = dict.fromkeys(SHAPE_COLUMNS, float("nan"))
    clusters = int(cluster.max()) + 1
    sd = float(z.std())
    if clusters < MIN_CLUSTERS or not sd > 0:
        return empty
    u = (z - z.mean()) / sd
    m3, m4 = float(np.mean(u**3)), float(np.mean(u**4))
    # influence functions of the standardized moments, mean and variance estimated
    influences = {
        "skew": (m3, u**3 - m3 - 3 * u - 1.5 * m3 * (u**2 - 1)),
        "excess_kurtosis": (m4 - 3, u**4 - m4 - 4 * m3 * u - 2 * m4 * (u**2 - 1)),
    }
    t = t_quantile(clusters - 1)
    out: dict[str, float] = {}
    for name, (value, influence) in influences.items():
        scores = np.bincount(cluster, influence) / len(u)
        half = t * float(np.sqrt(np.sum(scores**2) * clusters / (clusters - 1)))
        out |= {name: value, f"{name}_ci_low": value - half, f"{name}_ci_high": value + half}
    below = (u[:, None] <= GRID).astype(np.float64)
    law = below.mean(0)
    density = np.exp(-(GRID**2) / 2) / np.sqrt(2 * np.pi)
    # standardizing moves the law too: -phi(t) times the errors of mean and sd, at the normal law
    influence = below - law + density * u[:, None] + density * GRID * (u[:, None] ** 2 - 1) / 2
    sums = np.zeros((clusters, len(GRID)))
    np.add.at(sums, cluster, influence)
    covariance = sums.T @ sums * clusters / (clusters - 1) / len(u) ** 2
    half_widths = simultaneous_half_widths(covariance, clusters - 1)
    distance = np.abs(law - special.ndtr(GRID))
    out |= {"ks_distance": float(distance.max()), "ks_ci_low": float(np.max(np.maximum(distance - half_widths, 0)))}
    return out | {"ks_ci_high": float(np.max(distance + half_widths)), "var_z": sd**2}


def _scaling(key: dict[str, Any], view: View, scale: Floats) -> Table:
    """Slope 2H of log Var(S|L) on log L, and the drift per token, overall and by sign of A."""
    out: Table = []
    for sign, code in SIGNS.items():
        at = np.ones(len(view.rows), bool) if code == 0 else np.sign(view.rows.A) == code
        if key["subset"] == "nonzero" and code == 0:
            at = view.rows.A != 0
        rows, bins = view.rows.take(at), view.bins[at]
        row: dict[str, Any] = {**key, "sign": sign, "count": len(rows)}
        cluster = dense(rows.cluster) if len(rows) else np.zeros(0, np.int64)
        clusters = len(np.unique(cluster))
        row["clusters"] = clusters
        if clusters < MIN_CLUSTERS:
            names = ("slope_2H", "ci_low", "ci_high", "ci90_low", "ci90_high", "intercept", "drift_per_token")
            names += ("drift_ci_low", "drift_ci_high", "k3_per_token", "drift_minus_kl", "drift_minus_kl_ci_low")
            out.append(row | dict.fromkeys((*names, "drift_minus_kl_ci_high"), np.nan) | {"reason": TOO_FEW})
            continue
        z = standardized(rows.S, rows.length, scale[at], bins)
        row |= exponent(z**2 * rows.length, rows.length, cluster)
        residual = z * scale[at] * np.sqrt(rows.length)
        with np.errstate(divide="ignore", invalid="ignore"):
            row["intercept"] = float(np.log(np.sum(residual**2) / np.sum(rows.length ** row["slope_2H"])))
        one = np.zeros(len(rows), np.int64)
        drift = ratios(rows.S, cluster, one, 1, rows.length)
        excess = ratios(rows.S + rows.k3_sum, cluster, one, 1, rows.length)
        for name, found in (("drift", drift), ("drift_minus_kl", excess)):
            low, high = mean_interval(found.value[0], found.variance[0], clusters)
            row |= {f"{name}_ci_low": float(low), f"{name}_ci_high": float(high)}
        row |= {"drift_per_token": drift.value[0], "drift_minus_kl": excess.value[0]}
        row["k3_per_token"] = float(np.sum(rows.k3_sum) / np.sum(rows.length))
        out.append(row)
    return out


def exponent(y: Floats, L: Floats, cluster: Ints) -> dict[str, Any]:
    """Slope of log E[y|L] on log L by gamma quasi-likelihood, cluster-robust.

    Solves ``sum (1, x) (y / mu - 1) = 0`` with ``log mu = b0 + b1 x``: every row counts alike whatever its length,
    and only the mean model is assumed.

    Parameters
    ----------
    y : array (N,), >= 0
        Squared deviations.
    L : array (N,), tokens
    cluster : int array (N,), dense
    """
    nan = float("nan")
    names = ("slope_2H", "ci_low", "ci_high", "ci90_low", "ci90_high")
    x = np.log(L)
    centre = x.mean()
    x = x - centre
    if not x.std() > 1e-9:
        return dict.fromkeys(names, nan) | {"reason": "all responses have one length"}
    if not y.mean() > 0:
        return dict.fromkeys(names, nan) | {"reason": "S does not vary"}
    b = np.array([np.log(y.mean()), 0.0])
    design = np.column_stack([np.ones_like(x), x])
    for _ in range(100):
        ratio = y * np.exp(-(design @ b))
        hessian = (design * ratio[:, None]).T @ design
        step = np.linalg.solve(hessian + 1e-12 * np.eye(2), design.T @ (ratio - 1))
        b = b + np.clip(step, -1, 1)
        if np.max(np.abs(step)) < 1e-10:
            break
    else:
        return dict.fromkeys(names, nan) | {"reason": "the fit of the exponent did not converge"}
    scores = design * (y * np.exp(-(design @ b)) - 1)[:, None]
    clusters = int(cluster.max()) + 1
    sums = np.stack([np.bincount(cluster, s) for s in scores.T], axis=1)
    bread = np.linalg.inv((design * (y * np.exp(-(design @ b)))[:, None]).T @ design)
    se = float(np.sqrt((bread @ (sums.T @ sums) @ bread)[1, 1] * clusters / (clusters - 1)))
    t95, t90 = t_quantile(clusters - 1), t_quantile(clusters - 1, EQUIVALENCE)
    slope = float(b[1])
    values = (slope, slope - t95 * se, slope + t95 * se, slope - t90 * se, slope + t90 * se)
    return dict(zip(names, values, strict=True)) | {"reason": ""}
