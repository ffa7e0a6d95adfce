"""Fit acceptance as a smooth curve of length, without bins, for the table ``smooth``.

The curve is a logistic regression of acceptance (0 or 1) on a cubic spline of log(1 + L), with knots at quantiles. The
number of knots depends on how many prompts have a response of the rarer outcome (accepted or rejected), not on the fit,
because a penalty chosen on the same data made confidence bands too narrow (docs/coverage.md). The confidence band of
the curve holds at all shown lengths together (max-t). The covariance of the curve is a sandwich estimate from the
clusters' gradients of the log-likelihood, each divided by one minus the cluster's share of the information, as in a
delete-one jackknife. The fit needs only the numbers of accepted and of all rows at each length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse, special
from scipy.interpolate import BSpline

from fspo.stats.clusters import MIN_CLUSTERS, TOO_FEW, Floats, Ints, borrowed
from fspo.stats.intervals import CONFIDENCE, simultaneous_half_widths, t_quantile

POINTS = 25
LEAST, MOST = 4, 8
"""Fewest and most coefficients of a smooth curve; their number grows with the number of prompts that have a response of
the rarer outcome (accepted or rejected)."""
FEW = 20
ENOUGH = 20
"""With fewer prompts than this that have a response of the rarer outcome, no curve is fitted."""
INNER = 0.025
"""The smooth curve is shown from this quantile of the lengths to one minus this quantile."""


@dataclass(frozen=True)
class Smooth:
    """A fitted curve of acceptance over length, at P lengths.

    It holds the acceptances, the ends of their simultaneous and pointwise intervals, the number of coefficients of the
    fit, and a text that says why the acceptances are NaN, if they are.
    """

    length: Floats
    estimate: Floats
    low: Floats
    high: Floats
    pointwise_low: Floats
    pointwise_high: Floats
    parameters: float
    reason: str = ""


def smooth_acceptance(y: ArrayLike, length: ArrayLike, cluster: Ints, level: float = CONFIDENCE) -> Smooth:
    """Fit the probability of acceptance as a smooth curve of the length, with simultaneous and pointwise intervals.

    Parameters
    ----------
    y : array (N,), 0 or 1
        Whether the response was accepted.
    length : array (N,)
        Each response's length in tokens, or its coordinate in another partition.
    cluster : int array (N,)
        Number of each row's cluster, from 0 without gaps.
    """
    y, length = np.asarray(y, np.float64), np.asarray(length, np.float64)
    if len(y) == 0:
        return _nothing(np.full(1, np.nan), "no rows")
    values, code = _distinct(length)
    shape = (int(cluster.max()) + 1, len(values))
    rows = sparse.csr_matrix((np.ones(len(y)), (cluster, code)), shape)
    return smooth_cells(values, rows, sparse.csr_matrix((y, (cluster, code)), shape), level)


def smooth_cells(values: Floats, rows: Any, hits: Any, level: float = CONFIDENCE) -> Smooth:
    """Fit the curve of :func:`smooth_acceptance` from counts by cluster and distinct length.

    Parameters
    ----------
    values : array (V,), increasing
        Distinct lengths, or the mean lengths in narrow ranges of length.
    rows, hits : scipy.sparse.csr_matrix (C, V)
        Numbers of rows, and of accepted rows, by cluster and length.
    """
    counts, hit_counts = np.asarray(rows.sum(0)).ravel(), np.asarray(hits.sum(0)).ravel()
    total = float(counts.sum())
    if total == 0:
        return _nothing(np.full(1, np.nan), "no rows")
    if not np.all(counts > 0):
        some = np.flatnonzero(counts > 0)
        values, counts, hit_counts, rows, hits = (
            values[some],
            counts[some],
            hit_counts[some],
            rows[:, some],
            hits[:, some],
        )
    place = (np.cumsum(counts) - 0.5 * counts) / total
    first, last = np.log1p(np.interp([INNER, 1 - INNER], place, values))
    at = np.expm1(np.linspace(first, last, POINTS))
    by_cluster, hits_by_cluster = np.asarray(rows.sum(1)).ravel(), np.asarray(hits.sum(1)).ravel()
    clusters = int(np.count_nonzero(by_cluster))
    if clusters < MIN_CLUSTERS:
        return _nothing(at, TOO_FEW)
    if len(values) < 4:
        return _nothing(at, "fewer than 4 different lengths")
    usual = hit_counts.sum() >= 0.5 * total
    rare = int(np.count_nonzero(by_cluster - hits_by_cluster if usual else hits_by_cluster))
    if rare < ENOUGH:
        return _nothing(at, f"too little data: {ENOUGH - rare} more prompts with the rarer outcome are needed")
    basis = int(np.clip(LEAST + np.floor(np.log(max(rare / FEW, 1)) / np.log(1.5)), LEAST, MOST))
    # Use log(1 + L), not log L: with another partition, its coordinate stands in place of L and may be 0.
    x = np.log1p(values)
    inner = np.unique(np.interp(np.linspace(0, 1, basis - 2)[1:-1], place, x))
    inner = inner[(inner > x[0]) & (inner < x[-1])]
    knots = np.concatenate([[x[0]] * 4, inner, [x[-1]] * 4])
    design = BSpline.design_matrix(x, knots, 3).toarray()
    beta, bread = _fit(design, counts, hit_counts)
    mean = special.expit(design @ beta)
    weight = mean * (1 - mean)
    scores = hits @ design - rows @ (mean[:, None] * design)
    leverage = rows @ (weight * np.einsum("li,ij,lj->l", design, bread, design))
    scores /= 1 - np.minimum(leverage, 0.9)[:, None]
    own = float(borrowed(rare))
    # Few rejections show too little of how much clusters differ. So the observed covariance of the clusters' gradients
    # of the log-likelihood is averaged with the covariance of a binomial model, in which rows are independent.
    meat = own * (scores.T @ scores) + (1 - own) * (design * (counts * weight)[:, None]).T @ design
    shown_design = BSpline.design_matrix(np.clip(np.log1p(at), x[0], x[-1]), knots, 3).toarray()
    lever = shown_design @ bread
    covariance = lever @ meat @ lever.T
    line = shown_design @ beta
    df = min(clusters, rare) - 1  # only clusters with the rarer outcome tell how much acceptance varies over clusters
    together = simultaneous_half_widths(covariance, df, level)
    alone = t_quantile(df, level) * np.sqrt(np.maximum(np.diag(covariance), 0.0))
    curves = [special.expit(line + shift) for shift in (0.0, -together, together, -alone, alone)]
    return Smooth(at, *curves, parameters=float(design.shape[1]))


def _distinct(values: Floats) -> tuple[Floats, Ints]:
    """Return the sorted distinct values and, for each entry of ``values``, the position of its value among them.

    If all values are whole numbers from 0 to 1e7, a count of each number replaces the sorting, which is faster.
    """
    if values.min() >= 0 and values.max() < 1e7 and np.all(values == np.floor(values)):
        whole = values.astype(np.int64)
        present = np.flatnonzero(np.bincount(whole))
        place = np.zeros(int(present[-1]) + 1, np.int64)
        place[present] = np.arange(len(present))
        return present.astype(np.float64), place[whole]
    found, code = np.unique(values, return_inverse=True)
    return found, code.reshape(-1).astype(np.int64)


def _fit(design: Floats, counts: Floats, hits: Floats) -> tuple[Floats, Floats]:
    """Fit a logistic regression to counts of rows and of accepted rows (hits) by length.

    Return the coefficients and the inverse of the information matrix.
    """
    # A small ridge penalty (1/50) pulls the coefficients of the logistic regression towards the logit of the mean
    # acceptance, so that they stay finite where all rows are accepted.
    ridge = 0.02 * np.eye(design.shape[1])
    start = np.full(design.shape[1], special.logit((hits.sum() + 0.5) / (counts.sum() + 1)))
    beta, bread = start, ridge
    for _ in range(100):
        mean = special.expit(design @ beta)
        bread = np.linalg.inv((design * (counts * mean * (1 - mean))[:, None]).T @ design + ridge)
        step = bread @ (design.T @ (hits - counts * mean) - ridge @ (beta - start))
        beta = beta + np.clip(step, -2, 2)
        if np.max(np.abs(step)) < 1e-8:
            break
    return beta, bread


def _nothing(at: Floats, reason: str) -> Smooth:
    nan = np.full(len(at), np.nan)
    return Smooth(at, nan, nan, nan, nan, nan, float("nan"), reason)
