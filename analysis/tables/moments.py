"""The tables moments and scaling: mean and variance of S by length (assumptions of docs/theory.md).

The rows of several updates and blocks are pooled, and the variance of S changes as training goes on. So the exponent H
is measured on z, which is S / (scale_s sqrt(L)) less its mean in the bin, where ``scale_s`` is the root
of sum S^2 / sum L over the rows of the same update. The division by ``scale_s`` removes differences between updates
and leaves differences between lengths."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numpy as np

from analysis.log.loading import Run
from analysis.log.rows import SUBSETS, USES, Floats, Ints, windows
from analysis.stats.fair_exponent import Fair, fair_by_sign, fair_exponents
from analysis.tables.acceptance import BinnedRows, Clusters, Count, Reason
from analysis.tables.typed_rows import UNKNOWN, BinKey, Interval, RunKey, mean_at
from fspo.rules import MAX_EXPONENT, importance_weight
from fspo.stats.bins import Bins
from fspo.stats.clusters import MIN_CLUSTERS, TOO_FEW, dense, ratios
from fspo.stats.intervals import CONFIDENCE, t_quantile

SIGNS = {"all": 0, "positive": 1, "negative": -1}
FAIR_SHARES = (0.95, 0.85)
"""Shares of the responses that a band does not clip, at which the table scaling gives the fair exponent."""

Subset = Annotated[str, "all: every response; nonzero: responses whose advantage A is not 0", "text"]
Use = Annotated[
    str, "`first`: in the first epoch, no update has used the response before; `reused`: in a later one", "text"
]


class MomentRow(NamedTuple):
    """Moments of the log-ratio S, nats, in a bin: one row for each bin, subset (all, A != 0) and epoch (first, later).

    Written for every run. docs/theory.md, T1, T5, T6, says what they ought to be."""

    run: RunKey
    subset: Subset
    use: Use
    place: BinKey
    count: Count
    clusters: Clusters
    mean_S: Annotated[Interval, "mean of S", "nats"]
    var_S: Annotated[Interval, "variance of S about the bin's mean", "nats squared"]
    k3_per_token: Annotated[float, "sum of k3 over sum of L: the estimate of KL(old||new)", "nats per token"]
    mean_weight: Annotated[
        Interval, f"mean of exp(S), the exponent at most {MAX_EXPONENT:g}; 1 in the first epoch (T5)", "number"
    ]
    reason: Reason


FairExponent = Annotated[
    Interval,
    "fair exponent at this share not clipped (T10): of all responses where subset is all; where it is nonzero, clipped "
    "at the edge of the active side, of both signs, and of each at its own share not clipped",
    "number",
]
FairWeight = Annotated[float, "weight of this sign's exponent in that of both signs (T10)", "share"]
FairShift = Annotated[float, "what the change of this sign's share with the length adds to that of both", "number"]


class ScalingRow(NamedTuple):
    """How Var(S|L) grows with length, the drift, and the exponent of a fair band: one row for each set of rows and sign
    of the advantage A.

    Written for every run. It is explained in docs/theory.md, T1, T9, T10. The fair exponents are of responses in the
    first epoch."""

    run: RunKey
    subset: Subset
    use: Use
    sign: Annotated[str, "sign of A of the rows: all, positive or negative", "text"]
    slope_2H: Annotated[Interval, "2H: slope of log Var(S|L) on log L; 1 for independent tokens", "number", ""]
    intercept: Annotated[float, "log of Var(S|L) / L^(2H)", "log nats squared"]
    drift_per_token: Annotated[Interval, "sum of S over sum of L", "nats per token", "drift_"]
    count: Count
    clusters: Clusters
    reason: Reason
    k3_per_token: Annotated[float, "sum of k3 over sum of L", "nats per token"]
    fair_95: FairExponent = UNKNOWN
    weight_95: FairWeight = math.nan
    of_shares_95: FairShift = math.nan
    fair_85: FairExponent = UNKNOWN
    weight_85: FairWeight = math.nan
    of_shares_85: FairShift = math.nan


def update_scale(S: Floats, length: Floats, step: Ints) -> Floats:
    """Return for each row (N,) the root of sum S^2 / sum L over the rows of its update, nats per root token; 1 where S
    is 0 in the whole update, so that dividing by it is safe."""
    code = dense(step)
    scale = np.sqrt(np.bincount(code, S * S) / np.bincount(code, length))
    return np.where(scale > 0, scale, 1.0)[code]


def moment_tables(run: Run, bins: Bins, window_size: int) -> tuple[list[MomentRow], list[ScalingRow]]:
    """Make two tables of one run: moments (mean, variance, ... of S in each bin) and scaling (how Var(S|L) grows with
    the length, and the drift). A block has ``window_size`` rollouts."""
    moments: list[MomentRow] = []
    scaling: list[ScalingRow] = []
    window = windows(run.rows.rollout, window_size)
    for use in USES:
        keep = run.rows.used == 0 if use == "first" else run.rows.used > 0
        if not keep.any():
            continue
        everyone = BinnedRows.of(run.rows.take(keep), bins, window[keep])
        scale = update_scale(everyone.rows.S, everyone.rows.length, everyone.rows.step)
        for subset in SUBSETS:
            chosen = np.ones(len(scale), bool) if subset == "all" else everyone.rows.A != 0
            view = everyone.take(chosen, bins)
            key = RunKey.of(run), subset, use
            if len(view.rows):
                moments += _moments(key, view, bins)
                scaling += _scaling(key, view, scale[chosen], window_size)
    return moments, scaling


def _moments(key: tuple[RunKey, str, str], view: BinnedRows, bins: Bins) -> list[MomentRow]:
    rows, number = view.rows, len(bins)
    S, L = rows.S, rows.length
    mean = ratios(S, view.cluster, view.bins, number)
    k3 = ratios(rows.k3_sum, view.cluster, view.bins, number, L)
    out: list[MomentRow] = []
    for k in range(number + 1):
        place = BinKey.of(bins, k, view.mean[k])
        counts = int(mean.count[k]), int(mean.clusters[k])
        at = view.bins == k if k < number else np.ones(len(S), bool)
        if mean.clusters[k] < MIN_CLUSTERS:
            nothing = (UNKNOWN, UNKNOWN, np.nan, UNKNOWN)
            out.append(MomentRow(*key, place, *counts, *nothing, TOO_FEW))
            continue
        cluster = dense(view.cluster[at])
        weight = ratios(importance_weight(S[at]), cluster, np.zeros(at.sum(), np.int64), 1)
        row = MomentRow(
            *(*key, place, *counts, mean_at(mean, k), variance_interval(S[at], cluster)),
            *(k3.value[k], mean_at(weight, 0), ""),
        )
        out.append(row)
    return out


def standardized(S: Floats, L: Floats, scale: Floats, bins: Ints) -> Floats:
    """Return z (N,), standardised S: S / (scale sqrt(L)) less the mean of this number in the row's bin.

    ``scale`` (N,) is the scale of S in each row's update, from `update_scale`."""
    z = S / (scale * np.sqrt(L))
    count = np.bincount(bins)
    mean = np.divide(np.bincount(bins, z), count, out=np.zeros(len(count)), where=count > 0)
    return z - mean[bins]


def variance_interval(x: Floats, cluster: Ints, level: float = CONFIDENCE) -> Interval:
    """Return the variance of x (N,) with an interval that is computed for the variance's logarithm; the clusters, not
    the rows, count as independent."""
    cluster = dense(cluster)
    clusters = int(cluster.max()) + 1
    deviation = (x - x.mean()) ** 2
    variance = float(deviation.mean()) * clusters / max(clusters - 1, 1)
    if not variance > 0 or clusters < MIN_CLUSTERS:
        return Interval(variance)
    scores = np.bincount(cluster, deviation - deviation.mean()) / len(x)
    se = np.sqrt(np.sum(scores**2) * clusters / (clusters - 1)) / deviation.mean()
    half = t_quantile(clusters - 1, level) * se
    return Interval(variance, variance * float(np.exp(-half)), variance * float(np.exp(half)))


def _scaling(key: tuple[RunKey, str, str], view: BinnedRows, scale: Floats, window_size: int) -> list[ScalingRow]:
    """Make the rows of the table scaling, for all rows and by sign of A: the slope 2H of log Var(S|L) on log L, sum S /
    sum L and the fair exponents. ``key`` is run, subset and use; ``scale`` (N,) comes from `update_scale`."""
    out: list[ScalingRow] = []
    fair: list[dict[str, Fair]] = []
    if key[2] == "first":
        moved = view.rows.take(view.rows.updates > 0)
        if key[1] == "nonzero":
            fair = [fair_by_sign(moved, share, window_size) for share in FAIR_SHARES]
        else:
            fair = [
                {"all": Fair(of, math.nan, math.nan)} for of in fair_exponents(moved, FAIR_SHARES, "all", window_size)
            ]
    for sign, code in SIGNS.items():
        at = np.ones(len(view.rows), bool) if code == 0 else np.sign(view.rows.A) == code
        if key[1] == "nonzero" and code == 0:
            at = view.rows.A != 0
        rows, bins = view.rows.take(at), view.bins[at]
        cluster = dense(rows.cluster) if len(rows) else np.zeros(0, np.int64)
        clusters = len(np.unique(cluster))
        nan = float("nan")
        if clusters < MIN_CLUSTERS:
            ends = UNKNOWN, len(rows), clusters, TOO_FEW, nan
            out.append(ScalingRow(*key, sign, UNKNOWN, nan, *ends))
            continue
        z = standardized(rows.S, rows.length, scale[at], bins)
        slope, reason = exponent(z**2 * rows.length, rows.length, cluster)
        residual = z * scale[at] * np.sqrt(rows.length)
        with np.errstate(divide="ignore", invalid="ignore"):
            intercept = float(np.log(np.sum(residual**2) / np.sum(rows.length**slope.value)))
        one = np.zeros(len(rows), np.int64)
        drift = mean_at(ratios(rows.S, cluster, one, 1, rows.length), 0)
        k3 = float(np.sum(rows.k3_sum) / np.sum(rows.length))
        ends = len(rows), clusters, reason, k3
        of_sign = [of[sign] for of in fair if sign in of]
        exponents: list[Any] = [x for of in of_sign for x in (Interval(*of.exponent), of.weight, of.of_shares)]
        out.append(ScalingRow(*key, sign, slope, intercept, drift, *ends, *exponents))
    return out


def exponent(y: Floats, L: Floats, cluster: Ints) -> tuple[Interval, str]:
    """Estimate the slope of log E[y|L] on log L by gamma quasi-likelihood, with a cluster-robust interval. The second
    value is a text that says why there is no slope, or "".

    With x = log L and a model ``log mu = b0 + b1 x`` of the mean mu of y, the equation ``sum (1, x) (y / mu - 1) = 0``
    is solved for b0 and the slope b1. So every row has equal weight whatever its length, and no distribution of y is
    assumed beyond the model of its mean.

    Parameters
    ----------
    y : array (N,), >= 0
        z^2 L, z from `standardized`: squared deviation of S from its mean, over the update's squared scale; tokens.
    L : array (N,)
        Lengths, tokens.
    cluster : int array (N,)
        Number of each row's cluster, from 0 without gaps.
    """
    x = np.log(L)
    centre = x.mean()
    x = x - centre
    if not x.std() > 1e-9:
        return UNKNOWN, "all responses have one length"
    if not y.mean() > 0:
        return UNKNOWN, "S does not vary"
    # A squared deviation y that is smaller than this is a rounding error: all rows of that length have the same S.
    varies = x[y > 1e-20 * y.mean()]
    # If S varies only at lengths below the mean, or only above it, no finite slope solves the equation of the fit.
    if not varies.min() < 0 < varies.max():
        return UNKNOWN, "S varies only at lengths on one side of their mean"
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
        return UNKNOWN, "the fit of the exponent did not converge"
    scores = design * (y * np.exp(-(design @ b)) - 1)[:, None]
    clusters = int(cluster.max()) + 1
    sums = np.stack([np.bincount(cluster, s) for s in scores.T], axis=1)
    bread = np.linalg.inv((design * (y * np.exp(-(design @ b)))[:, None]).T @ design)
    se = float(np.sqrt((bread @ (sums.T @ sums) @ bread)[1, 1] * clusters / (clusters - 1)))
    half, slope = t_quantile(clusters - 1) * se, float(b[1])
    return Interval(slope, slope - half, slope + half), ""
