"""Length Reweighting Error (LRE) with intervals (docs/theory.md section 3).

For bins with shares of rows p and acceptances a, let r = a / mean a - 1. LRE_2^2 is bias-corrected: the sampling
variance in the plug-in ``sum p r^2`` is subtracted. All errors come from the clusters' influence values
(:mod:`fspo.stats.clusters`), which are those of a jackknife that deletes one cluster at a time.

The interval of LRE_2^2 holds the values that differ from the estimate by at most t times the standard error that the
estimate would have at that value. Its square is T + v LRE_2^2: T, the variance at equal acceptances, is twice the trace
of the squared covariance of sqrt(p) r, and v LRE_2^2 is the variance of the estimate's linear part. LRE_inf and LRE_1
are plug-ins, biased upwards; their intervals come from simultaneous (Bonferroni) limits of r in all bins.

``python -m studies.coverage`` says how often the intervals hold the true value. No interval is given where fewer than
``MIN_SHOWING`` clusters have a clipped response (or, where most are clipped, one that is not)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fspo.stats.clusters import MIN_SHOWING, Floats, Ratios, flat_variance, too_few_showing
from fspo.stats.intervals import CONFIDENCE, t_quantile

NORMS = ("inf", "l1", "l2", "l2_squared")
BIN_CLUSTERS = 10
"""A bin with rows of fewer clusters than this is left out of LRE, because its acceptance has no useful error."""
MOST_LEFT_OUT = 0.1
"""If the bins with fewer than ``BIN_CLUSTERS`` clusters hold more than this share of the rows, LRE is not estimated."""
LARGEST_RATE = 1e100
"""Largest weight acceptance that is used: squares of larger ones overflow float64. Only collapsed runs reach it."""
ROUNDING = 1e-12


@dataclass(frozen=True)
class LreEstimate:
    """The estimate of LRE in one norm, the ends of its interval, and its value without bias correction (``plug_in``).

    ``reason`` says why these numbers are NaN, or which share of the rows they leave out."""

    norm: str
    estimate: float
    ci_low: float
    ci_high: float
    plug_in: float
    reason: str


def lre_estimates(found: Ratios, level: float = CONFIDENCE) -> list[LreEstimate]:
    """Return the LRE in each norm of ``NORMS``, with ``level`` intervals; ``found`` holds the acceptances of K bins and
    how much each cluster moves them."""
    k = found.rows.shape[1]
    used, reason = usable(found), _unusable(found)
    if reason:
        nan = float("nan")
        return [LreEstimate(norm, nan, nan, nan, nan, reason) for norm in NORMS]
    rows, a, z = found.rows[:, used], found.value[:k][used], found.influence[:, :k][:, used]
    some = rows.sum(1) > 0
    rows, z = rows[some], z[some]
    total, clusters = float(rows.sum()), len(rows)
    p = rows.sum(0) / total
    mean = float(p @ a)
    r = a / mean - 1
    # Influence of each cluster on the shares p, and on r.
    share = (rows - p * rows.sum(1, keepdims=True)) / total
    factor = clusters / (clusters - 1)

    def on_r(z: Floats) -> Floats:
        return z / mean - np.outer(z @ p + share @ a, a / mean**2)

    of_r = on_r(z)
    plug_in, noise = float(p @ r**2), factor * float(p @ np.sum(of_r**2, axis=0))
    corrected = plug_in - noise
    l1, inf = float(p @ np.abs(r)), float(np.max(np.abs(r)))
    dropped = float(1 - found.count[:k][used].sum() / found.count[k])
    said = [f"bins with fewer than {BIN_CLUSTERS} clusters left out: {dropped:.1%} of the rows"] if dropped > 0 else []
    showing = number_showing(found)
    ends: dict[str, tuple[float, float]] = dict.fromkeys(NORMS, (float("nan"), float("nan")))
    if showing < MIN_SHOWING:
        said.append(too_few_showing(showing))
    else:
        # The errors of a share a vary as a (1 - a). A bin that by chance was clipped less than the others would seem
        # too certain, so it gets the errors that it would have at the mean acceptance. A bin in which every row is
        # accepted shows no error at all and gets that of `flat_variance`.
        shown = np.sum(z**2, axis=0) * factor > ROUNDING**2
        spread = np.where(shown & found.shares, np.maximum(a * (1 - a), ROUNDING), np.inf)
        fair = on_r(z * np.sqrt(np.maximum(mean * (1 - mean) / spread, 1.0)))
        lever = (np.eye(len(p)) - np.outer(1 + r, p)) / mean
        flat = np.where(shown | (not found.shares), 0.0, flat_variance(found.clusters[:k][used]))
        covariance = factor * fair.T @ fair + (lever * flat) @ lever.T
        df = showing - 1
        half = t_quantile(df, 1 - (1 - level) / len(p)) * np.sqrt(np.diag(covariance))
        low, high = np.maximum(r - half, -1.0), r + half
        nearest = np.where((low <= 0) & (high >= 0), 0.0, np.minimum(np.abs(low), np.abs(high)))
        farthest = np.maximum(np.abs(low), np.abs(high))
        root = np.sqrt(p)
        at_0 = 2 * float(np.sum((covariance * np.outer(root, root)) ** 2))
        line = 2 * of_r @ (p * r) + share @ r**2
        slope = factor * float(line @ line) / plug_in if plug_in > 0 else 0.0
        two = squared_interval(corrected, at_0, slope, t_quantile(min(df, degrees(line)), level))
        ends = {
            "inf": (float(np.max(nearest)), float(np.max(farthest))),
            "l1": (float(p @ nearest), min(float(p @ farthest), 2.0)),  # LRE_1 is below 2, as no acceptance is below 0
            "l2": (np.sqrt(max(two[0], 0.0)), np.sqrt(max(two[1], 0.0))),
            "l2_squared": two,
        }
    values = {
        "inf": (inf, inf), "l1": (l1, l1), "l2": (np.sqrt(max(corrected, 0.0)), np.sqrt(plug_in)),
        "l2_squared": (corrected, plug_in),
    }  # fmt: skip
    reason = "; ".join(said)
    return [
        LreEstimate(norm, estimate, ends[norm][0], ends[norm][1], plain, reason)
        for norm, (estimate, plain) in values.items()
    ]


def squared_interval(estimate: float, at_0: float, slope: float, t: float) -> tuple[float, float]:
    """Return the ends of the interval of LRE_2^2: the x with (estimate - x)^2 <= t^2 (at_0 + slope x).

    Parameters
    ----------
    estimate : float
        LRE_2^2, bias-corrected.
    at_0, slope : float
        Variance of the estimate at equal acceptances, and by how much it grows with LRE_2^2.
    t : float
        Half-width of the interval in standard errors.
    """
    middle = estimate + t * t * slope / 2
    half = float(np.sqrt(max(t * t * (at_0 + slope * estimate + (t * slope) ** 2 / 4), 0.0)))
    return min(middle - half, estimate), max(middle + half, estimate)


def degrees(influence: Floats) -> float:
    """Return the degrees of freedom (Satterthwaite) of a variance, the sum of squares of ``influence`` (C,), one for
    each cluster: few if few clusters make most of the sum. They are at least 4."""
    squares = influence**2
    total = float(squares.sum())
    spread = float(squares @ squares) / total**2 - 1 / len(squares) if total > 0 else 0.0
    return max(2 / max(spread, 1e-12), 4.0)


def usable(found: Ratios) -> np.ndarray:
    """Return for each bin (K,) of ``found`` whether it has rows of at least 10 clusters."""
    return found.clusters[: found.rows.shape[1]] >= BIN_CLUSTERS


def number_showing(found: Ratios) -> int:
    """Return the smaller of two numbers of clusters: those with a clipped row, and those of which something is kept."""
    lost = np.abs(found.base - found.sums) > ROUNDING * found.base
    kept = found.sums > ROUNDING * found.base
    return int(min(lost.any(1).sum(), kept.any(1).sum()))


def _unusable(found: Ratios) -> str:
    """Say why no LRE can be estimated from ``found``; "" if one can."""
    bins, used = found.rows.shape[1], usable(found)
    if used.sum() < 2:
        return f"too little data: fewer than 2 bins with {BIN_CLUSTERS} clusters"
    dropped = float(1 - found.count[:bins][used].sum() / found.count[bins])
    if dropped > MOST_LEFT_OUT:
        return f"too little data: bins with fewer than {BIN_CLUSTERS} clusters left out: {dropped:.1%} of the rows"
    a = found.value[:bins][used]
    flat = np.all(np.abs(found.influence) <= ROUNDING * np.abs(np.nan_to_num(found.value)))
    if not found.binary and flat and np.any(np.abs(a - 1) > ROUNDING):
        return "no cluster differs from another, so nothing shows how far the rates may be from the truth"
    if np.any(np.isnan(a)):
        return "the weights of all responses of a bin are 0: exp(S) is below the smallest float64"
    if np.any(a > LARGEST_RATE):
        return f"clipped weights are more than {LARGEST_RATE:g} times the unclipped ones: exp(S) is all but 0"
    if not float(found.count[:bins][used] @ a) > 0:
        return "nothing is accepted: a_bar = 0"
    return ""
