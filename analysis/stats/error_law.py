"""Find the distribution of the errors of estimated acceptances, for any candidate (acceptances by bin that might be the
true ones).

An acceptance a that is estimated from few rejections has a skewed error. The size of the error depends on the true a,
and the covariance of the errors of different bins is poorly known. So the covariance is kept in Pearson units (errors
over ``sqrt(a (1-a))``), in which it depends only on the numbers of rows and on the dependence within prompts. The fewer
prompts of a bin show the rarer outcome (accepted or rejected), the more the observed covariance is replaced by that of
a model in which all pairs of responses to one prompt have the same correlation. Size and skewness of the errors follow
from the candidate. Shares of weight and mean multipliers in [0, 1] are treated as shares of rows with an effective
number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
from scipy import special

from fspo.stats.clusters import Floats, Ratios, borrowed
from fspo.stats.intervals import SEED, symmetric_root

DRAWS = 2048
BIN_CLUSTERS = 10
"""A bin with rows of fewer clusters than this is left out of LRE, because with such bins the interval of LRE held the
true LRE too rarely in the simulations of docs/coverage.md."""
MOST_LEFT_OUT = 0.1
"""If the bins with fewer than ``BIN_CLUSTERS`` clusters hold more than this share of the rows, LRE is not estimated."""
PSEUDO_ROWS = 2.0
"""Number of imaginary rows, accepted at the mean rate, that are added to each bin, because the logit of an
acceptance of 0 or 1 is infinite."""
FULL_CORRELATION = 1.0
"""Number of imaginary prompts, with all their rows accepted or all rejected, that are added to the estimate of the
correlation between responses to one prompt, so that few rejections do not suggest independence."""
MOST_SKEW = 3.0
LARGEST_RATE = 1e100
"""Largest weight acceptance that is used: squares of larger ones overflow float64. Only collapsed runs reach it."""
ROUNDING = 1e-12


@lru_cache(maxsize=16)
def standard_draws(dimension: int, number: int = DRAWS, seed: int = SEED) -> tuple[Floats, Floats]:
    """Return quasi-random (Sobol) standard normal numbers (number, dimension) and uniform numbers (number,). They are
    the same in every call."""
    from scipy.stats import qmc  # imported here, because only LRE needs it and it takes half a second

    points = qmc.Sobol(dimension + 1, rng=seed).random(number)
    points = np.clip(points, 1e-9, 1 - 1e-9)
    normals, uniforms = special.ndtri(points[:, :-1]), points[:, -1]
    normals.setflags(write=False)
    uniforms.setflags(write=False)
    return normals, uniforms


@lru_cache(maxsize=1024)
def _t_factor(dimension: int, df: float) -> Floats:
    """Return factors (number, 1) that turn normal draws into multivariate t draws with ``df`` degrees of freedom."""
    return np.sqrt(df / (2 * special.gammaincinv(df / 2, standard_draws(dimension)[1])))[:, None]


def skewed(z: Floats, skewness: Floats, size: Floats | float = 1.0, centre: Floats | float = 0.0) -> Floats:
    """Transform standard normal errors ``z`` so that they have the given skewness, nearly the mean ``centre`` and
    nearly the standard deviation ``size``.

    The cube of a normal variable (Wilson and Hilferty) has nearly a Pearson III (shifted gamma) distribution.
    """
    skew = np.maximum(np.abs(skewness), 1e-4)
    sign = np.where(skewness < 0, -1.0, 1.0)
    root = z * (skew * sign / 6)
    root += 1 - skew * skew / 36
    np.maximum(root, 0.0, out=root)
    cube = root * root
    cube *= root
    widen = size * sign * (2 / skew)
    cube *= widen
    cube += centre - widen
    return cube


@dataclass(frozen=True)
class ErrorLaw:
    """Estimated acceptances by bin and the distribution of their errors.

    Attributes
    ----------
    p, a : array (K,)
        Share of the rows in each usable bin (enough clusters), and the bin's acceptance, as estimated.
    smooth : array (K,)
        Acceptances after adding ``PSEUDO_ROWS`` rows of mean acceptance to each bin; strictly inside (0, 1) for shares.
    covariance : array (2K, 2K)
        Covariance of the errors of a, in Pearson units (for shares, errors over sqrt(a (1-a))), and of the errors of p.
    binary : bool
        True for shares of rows and of weight, whose errors depend on the true share. Otherwise errors are normal and
        do not depend on the true values.
    df : float
        Degrees of freedom of the covariance, by Satterthwaite's rule; at most the number of clusters less 1.
    showing : int
        Number of prompts with a response of the rarer outcome (accepted or rejected); the number of all prompts for
        acceptances that are no shares.
    noise : float
        Bias of the plug-in LRE_2^2, ``sum p r^2`` with r = a / mean a - 1. The bias is what sampling variance adds to
        the plug-in on average; it is estimated from the spread over clusters.
    correlation : float
        Correlation of the outcomes of two responses to one prompt; NaN for acceptances that are no shares.
    errors : array (M, 2K)
        Simulated errors of a, over their standard deviations, and of p.
    """

    p: Floats
    a: Floats
    smooth: Floats
    covariance: Floats
    binary: bool
    df: float
    showing: int
    noise: float
    correlation: float
    errors: Floats = field(repr=False)

    def __len__(self) -> int:
        return len(self.p)

    def scale(self, a: Floats) -> Floats:
        """Return the factors (K,) to which the errors of K estimated acceptances are proportional, given the true
        acceptances ``a``: sqrt(a (1 - a)) if the acceptances are shares of rows (``binary``), else 1."""
        return np.sqrt(np.maximum(a * (1 - a), 0.0)) if self.binary else np.ones_like(a)

    def covariance_at(self, a: Floats) -> Floats:
        """Return the covariance (2K, 2K) that the estimates of K bins' acceptances and shares of rows would have if
        ``a`` (K,) were the true acceptances."""
        s = np.concatenate([self.scale(a), np.ones_like(a)])
        return self.covariance * np.outer(s, s)

    @cached_property
    def _parts(self) -> tuple[Floats, Floats, Floats]:
        """Return three arrays for K bins and M simulations: the standard deviations of the errors of the bins'
        acceptances (K,); simulated errors of each acceptance, over its standard deviation (K, M); and simulated shares
        of the rows that lie in each bin (K, M).
        """
        k = len(self)
        errors = np.ascontiguousarray(self.errors.T)
        shares = np.maximum(self.p[:, None] + errors[k:], 0.0)
        return np.sqrt(np.diag(self.covariance)[:k]), errors[:k], shares / shares.sum(0)

    def _rates(self, a: Floats) -> Floats:
        """Return M simulated estimates of each of K acceptances, (K, M), as if ``a`` (K,) were the true acceptances."""
        sd, z, _ = self._parts
        scale = self.scale(a)
        size = (scale * sd)[:, None]
        if not self.binary:
            return a[:, None] + size * z
        # Take the skewness that an accepted share of n rows has. n = 1/sd^2 is the bin's effective number of rows,
        # because sd is the standard deviation of the error in Pearson units.
        skewness = np.clip((1 - 2 * a) * sd / np.maximum(scale, 1e-9), -MOST_SKEW, MOST_SKEW)
        found = skewed(z, skewness[:, None], size, a[:, None])
        return np.clip(found, 0.0, 1.0, out=found)

    def draws(self, a: Floats) -> tuple[Floats, Floats]:
        """Return M simulated estimates of the bins' shares of rows, and M of their acceptances if ``a`` (K,) were the
        true acceptances; both are arrays (M, K).
        """
        return self._parts[2].T, self._rates(a).T

    def plug_ins(self, a: Floats) -> Floats:
        """Return LRE_2^2 of each of M simulated estimates of the bins' acceptances, (M,), not bias-corrected.

        The estimates are simulated as if ``a`` (K,) were the true acceptances.
        """
        shares, found = self._parts[2], self._rates(a)
        mean = np.einsum("km,km->m", shares, found)
        found -= mean
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.einsum("km,km,km->m", shares, found, found) / mean**2


def usable(found: Ratios) -> np.ndarray:
    """Return for each bin (K,) whether it has at least ``BIN_CLUSTERS`` clusters."""
    return found.clusters[: found.rows.shape[1]] >= BIN_CLUSTERS


def error_law(found: Ratios) -> tuple[ErrorLaw | None, str]:
    """Return the `ErrorLaw` of the acceptances of bins with enough clusters, or None if none can be computed.

    The second value is a text. It says why there is no law, or which share of the rows was left out, and is else empty.
    """
    bins = found.rows.shape[1]
    used = usable(found)
    dropped = float(1 - found.count[:bins][used].sum() / max(found.count[bins], 1))
    reason = f"bins with fewer than {BIN_CLUSTERS} clusters left out: {dropped:.1%} of the rows" if dropped > 0 else ""
    if used.sum() < 2:
        return None, f"too little data: fewer than 2 bins with {BIN_CLUSTERS} clusters"
    if dropped > MOST_LEFT_OUT:
        return None, f"too little data: {reason}"
    if not found.binary and bool(np.all(np.abs(found.influence) <= ROUNDING * np.abs(np.nan_to_num(found.value)))):
        # No row is cut, so every acceptance is 1 without spread. Treat each acceptance as a share of rows that are all
        # kept, because a share of 1 still has an interval.
        if not np.all(np.abs(found.value[found.count > 0] - 1) <= ROUNDING):
            return None, "no cluster differs from another, so nothing shows how far the rates may be from the truth"
        value = np.where(found.count > 0, 1.0, np.nan)
        found = replace(found, binary=True, sums=found.rows, base=found.rows, value=value)
    rows, a, z = found.rows[:, used], found.value[:bins][used], found.influence[:, :bins][:, used]
    if np.any(np.isnan(a)):
        return None, "the weights of all responses of a bin are 0: exp(S) is below the smallest float64"
    if np.any(a > LARGEST_RATE):
        return None, f"clipped weights are more than {LARGEST_RATE:g} times the unclipped ones: exp(S) is all but 0"
    some = rows.sum(1) > 0
    rows, z = rows[some], z[some]
    total, clusters = float(rows.sum()), len(rows)
    counts = rows.sum(0)
    p = counts / total
    mean = float(p @ a)
    if not mean > 0:
        return None, "nothing is accepted: a_bar = 0"
    share = (rows - p * rows.sum(1, keepdims=True)) / total
    factor = clusters / (clusters - 1)
    of_r = z / mean - np.outer(z @ p + share @ a, a / mean**2)
    noise = float(p @ np.sum(of_r**2, axis=0)) * factor
    smooth, own, model, correlation = a, np.ones(len(p)), np.zeros((len(p), len(p))), float("nan")
    scale, showing, shares = np.ones(len(p)), clusters, found.shares
    if shares:
        cells, accepted = worth(rows, found.sums[some][:, used], found.base[some][:, used])
        worths = cells.sum(0)
        centre = (float(accepted.sum()) + 0.5) / (float(worths.sum()) + 1)
        smooth = (accepted.sum(0) + PSEUDO_ROWS * centre) / (worths + PSEUDO_ROWS)
        scale = np.sqrt(smooth * (1 - smooth))
        rare = np.where(smooth >= 0.5, cells - accepted, accepted) > 1e-9 * cells
        own = borrowed(rare.sum(0))
        showing = int(rare.any(1).sum())
        size = cut_size(cells - accepted, showing)
        correlation = intra_correlation(accepted, cells, smooth, showing, size)
        alone = np.diag(worths)
        model = factor * size * (alone + correlation * (cells.T @ cells - alone)) / np.outer(worths, worths)
    joint = np.hstack([z / scale, share])
    weight = np.sqrt(np.concatenate([own, np.ones(len(p))]))
    covariance = factor * (joint.T @ joint) * np.outer(weight, weight)
    covariance[: len(p), : len(p)] += model * np.sqrt(np.outer(1 - own, 1 - own))
    df = degrees(of_r @ (p * (a / mean - 1)))
    errors = _errors(covariance, df, len(p))
    return ErrorLaw(p, a, smooth, covariance, shares, df, showing, noise, correlation, errors), reason


def worth(rows: Floats, sums: Floats, base: Floats) -> tuple[Floats, Floats]:
    """Return the effective number of rows, and of accepted rows, in each cluster and bin, two arrays (C, K).

    A weight acceptance ``sums / base`` (sum of the clipped weights over sum of the unclipped ones) has the variance of
    a share of that many rows of weight 1. Each cluster's sums are known, but not its weights, which are taken as equal.
    If all weights are 1, the effective numbers are the numbers of rows and of accepted rows.
    """
    # Scale the weights of each bin so that the largest sum over a cluster lies near 1, because squares of small sums
    # underflow. The factor is a power of two, so that the scaling is exact.
    power = -np.frexp(base.max(0))[1]
    sums, base = np.ldexp(sums, power), np.ldexp(base, power)
    with np.errstate(invalid="ignore", divide="ignore"):
        squares = np.where(rows > 0, base**2 / rows, 0.0).sum(0)
        each = np.where(squares > 0, base.sum(0) / squares, 0.0)
    return base * each, np.minimum(sums, base) * each


def cut_size(lost: Floats, showing: int) -> float:
    """Return the share s of a row's weight that a cut takes: 1 where rows are dropped, less where weights are held at
    the edge.

    ``lost`` (C, K) holds the effective number of rows that each cluster loses in each bin.

    An acceptance whose cuts take the share s has s times the variance of an acceptance with the same mean whose cuts
    take all the weight. s is estimated rather too large than too small: a cluster that lost several rows in a bin looks
    like a cluster with a larger s, and one imaginary prompt with s = 1 is added.
    """
    total = float(lost.sum())
    found = min(float(np.sum(lost**2)) / total, 1.0) if total > 0 else 1.0
    return (found * showing + 1) / (showing + 1)


def degrees(influence: Floats) -> float:
    """Return the degrees of freedom (Satterthwaite) of a variance that is estimated as the sum of squared influences,
    one for each cluster.

    The result is rounded, at least 4, and at most the number of clusters less 1.
    """
    squares = influence**2
    total = float(squares.sum())
    most = len(squares) - 1
    if not total > 0:
        return most
    spread = float(np.sum(squares**2)) / total**2 - 1 / len(squares)
    return float(np.clip(round(2 / max(spread, 1e-12)), 4, most))


def _errors(covariance: Floats, df: float, k: int) -> Floats:
    """Return M simulated errors (M, 2K): first the errors of the K acceptances, divided by their standard deviations,
    then the errors of the K bins' shares of rows."""
    found = (standard_draws(2 * k)[0] @ symmetric_root(covariance)) * _t_factor(2 * k, df)
    sd = np.sqrt(np.diag(covariance)[:k])
    found[:, :k] /= np.where(sd > 0, sd, 1.0)
    return found


def intra_correlation(accepted: Floats, rows: Floats, a: Floats, showing: int, size: float = 1.0) -> float:
    """Return the correlation of the outcomes (accepted or not) of two responses to one prompt, over all pairs and bins.

    Each outcome is centred at the acceptance of its bin and divided by its standard deviation.

    Parameters
    ----------
    accepted, rows : array (C, K)
        Accepted rows and rows by cluster and bin.
    a : array (K,), strictly inside (0, 1)
        Acceptance by bin.
    showing : int
        Number of prompts with a response of the rarer outcome. ``FULL_CORRELATION`` imaginary prompts whose responses
        all have the same outcome are added, so that a log with few rejections does not suggest independence.
    size : float
        Share s of a row's weight that a cut takes (:func:`cut_size`); variances are s times those of cuts that take
        all the weight.
    """
    variance = a * (1 - a)
    residual = ((accepted - rows * a) / np.sqrt(variance)).sum(1)
    squares = ((accepted * (1 - a) ** 2 + (rows - accepted) * a**2) / variance).sum(1)
    number = rows.sum(1)
    pairs = float(np.sum(number * (number - 1)))
    found = float(np.sum(residual**2 / size - squares)) / pairs if pairs > 0 else 0.0
    found = min(max(found, 0.0), 1.0)
    return (found * showing + FULL_CORRELATION) / (showing + FULL_CORRELATION)
