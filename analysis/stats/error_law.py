"""How far estimated acceptances may be from the true ones, for any candidate for the true ones.

Estimates from few rejections have skewed errors, whose size depends on the truth and whose covariance is itself poorly
known. So the covariance is kept in Pearson units (errors over ``sqrt(a (1-a))``), where it depends only on the design
and on dependence within prompts. Bins in which few prompts show a rejection borrow it from a model with one
intra-prompt correlation. The size and the skewness of the errors are those of the candidate. Shares of weight and mean
multipliers in [0, 1] are treated like indicators, of as many rows as their weights are worth.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
from scipy import special
from scipy import stats as sps
from scipy.stats import qmc

from fspo.stats.clusters import Floats, Ratios, borrowed
from fspo.stats.intervals import SEED, symmetric_root

DRAWS = 2048
BIN_CLUSTERS = 10
"""Clusters with rows in a bin below which LRE leaves the bin out: there its interval failed in docs/coverage.md."""
MOST_LEFT_OUT = 0.1
"""Share of the rows in bins that are left out, above which LRE is not estimated."""
PSEUDO_ROWS = 2.0
"""Rows with the mean acceptance that are added to each bin, because an acceptance of exactly 0 or 1 has no logit."""
FULL_CORRELATION = 1.0
"""Imaginary prompts added to the estimate of the intra-prompt correlation, in each of which all rows agree."""
MOST_SKEW = 3.0
LARGEST_RATE = 1e100
"""Largest weight acceptance that is used: squares of larger ones overflow float64. Only collapsed runs reach it."""
ROUNDING = 1e-12


@lru_cache(maxsize=16)
def standard_draws(dimension: int, number: int = DRAWS, seed: int = SEED) -> tuple[Floats, Floats]:
    """Return quasi-random standard normals (number, dimension) and uniforms (number,), the same in every call."""
    points = qmc.Sobol(dimension + 1, rng=seed).random(number)
    points = np.clip(points, 1e-9, 1 - 1e-9)
    normals, uniforms = special.ndtri(points[:, :-1]), points[:, -1]
    normals.setflags(write=False)
    uniforms.setflags(write=False)
    return normals, uniforms


@lru_cache(maxsize=64)
def _t_factor(dimension: int, df: float) -> Floats:
    """Return factors (number, 1) that turn normal draws into multivariate t draws."""
    return np.sqrt(df / sps.chi2.ppf(standard_draws(dimension)[1], df))[:, None]


def skewed(z: Floats, skewness: Floats) -> Floats:
    """Turn standard normal errors into errors with the given skewness, by Wilson and Hilferty's form of a Pearson
    III law."""
    size = np.maximum(np.abs(skewness), 1e-4)
    sign = np.where(skewness < 0, -1.0, 1.0)
    root = z * (size * sign / 6)
    root += 1 - size * size / 36
    np.maximum(root, 0.0, out=root)
    cube = root * root
    cube *= root
    cube -= 1
    cube *= sign * (2 / size)
    return cube


@dataclass(frozen=True)
class ErrorLaw:
    """Estimated acceptances by bin and the law of their errors.

    Attributes
    ----------
    p, a : array (K,)
        Estimated shares of rows, and acceptances, of the usable bins.
    smooth : array (K,)
        Acceptances after adding ``PSEUDO_ROWS`` at the mean; strictly inside (0, 1) for indicators.
    covariance : array (2K, 2K)
        Covariance of the errors of a, in Pearson units, and of p.
    binary : bool
        True for acceptances of indicators and shares of weight. Otherwise errors are normal, whatever the truth.
    df : float
        Degrees of freedom of the covariance, by Satterthwaite's rule; at most the number of clusters less 1.
    showing : int
        Number of prompts that show the rarer outcome.
    noise : float
        Sampling variance contained in the plug-in ``sum p r^2``, estimated from the clusters alone.
    correlation : float
        Intra-prompt correlation of the model; NaN where the model is not used.
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
        """Return the scale of the errors of acceptances: sqrt(a (1-a)) for shares of rows, and 1 otherwise."""
        return np.sqrt(np.maximum(a * (1 - a), 0.0)) if self.binary else np.ones_like(a)

    def covariance_at(self, a: Floats) -> Floats:
        """Return the covariance (2K, 2K) that estimates of a and p would have if ``a`` (K,) were the true
        acceptances."""
        s = np.concatenate([self.scale(a), np.ones_like(a)])
        return self.covariance * np.outer(s, s)

    @cached_property
    def _parts(self) -> tuple[Floats, Floats, Floats]:
        """Return standard deviations (K,), standardised errors of the acceptances (K, M), and simulated shares of rows
        (K, M).
        """
        k = len(self)
        errors = np.ascontiguousarray(self.errors.T)
        shares = np.maximum(self.p[:, None] + errors[k:], 0.0)
        return np.sqrt(np.diag(self.covariance)[:k]), errors[:k], shares / shares.sum(0)

    def _rates(self, a: Floats) -> Floats:
        """Return simulated estimates (K, M) of the acceptances if ``a`` (K,) were the true ones."""
        sd, z, _ = self._parts
        scale = self.scale(a)
        size = (scale * sd)[:, None]
        if not self.binary:
            return a[:, None] + size * z
        # The skewness is that of a share of 1/sd^2 rows: in Pearson units, sd^2 is one over a bin's effective number of
        # rows.
        skewness = np.clip((1 - 2 * a) * sd / np.maximum(scale, 1e-9), -MOST_SKEW, MOST_SKEW)
        found = skewed(z, skewness[:, None])
        found *= size
        found += a[:, None]
        return np.clip(found, 0.0, 1.0, out=found)

    def draws(self, a: Floats) -> tuple[Floats, Floats]:
        """Return simulated estimates of p and a (M, K) that the same design would give if ``a`` (K,) were the truth."""
        return self._parts[2].T, self._rates(a).T

    def plug_ins(self, a: Floats) -> Floats:
        """Return LRE_2^2, without bias correction, of each of the M simulated estimates for the truth ``a``."""
        shares, found = self._parts[2], self._rates(a)
        mean = np.sum(shares * found, axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            found /= mean
            found -= 1
            found *= found
            found *= shares
        return found.sum(0)


def usable(found: Ratios) -> np.ndarray:
    """Return for each bin (K,) whether it has at least ``BIN_CLUSTERS`` clusters."""
    return found.clusters[: found.rows.shape[1]] >= BIN_CLUSTERS


def error_law(found: Ratios) -> tuple[ErrorLaw | None, str]:
    """Return the law of the errors in the bins with enough clusters, or None, and a reason.

    The reason says why there is no law, or which share of the rows was left out.
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
        # No row is cut. The acceptances are all 1 without spread, as if they were shares of rows that are all kept.
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
    """Return how many rows, and accepted rows, (C, K) the shares ``sums / base`` of weight are worth.

    Only the sums of weights by cluster are known, so the weights within a cluster are taken as equal. Indicators keep
    their numbers of rows.
    """
    # Squares of weights near 0 underflow. So scale each bin by a power of two, which is exact, to sums near 1.
    power = -np.frexp(base.max(0))[1]
    sums, base = np.ldexp(sums, power), np.ldexp(base, power)
    with np.errstate(invalid="ignore", divide="ignore"):
        squares = np.where(rows > 0, base**2 / rows, 0.0).sum(0)
        each = np.where(squares > 0, base.sum(0) / squares, 0.0)
    return base * each, np.minimum(sums, base) * each


def cut_size(lost: Floats, showing: int) -> float:
    """Return which share of a row's weight a cut takes: 1 where rows are dropped, less where weights are held at the
    edge.

    Shares of size s vary s times as much as indicators of the same mean. A cell that lost several rows looks like one
    of a larger size, and one prompt of full size is added, so the result is rather too large than too small.
    """
    total = float(lost.sum())
    found = min(float(np.sum(lost**2)) / total, 1.0) if total > 0 else 1.0
    return (found * showing + 1) / (showing + 1)


def degrees(influence: Floats) -> float:
    """Return the degrees of freedom, by Satterthwaite, of a variance estimated by summing squared influences of
    clusters.

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
    """Return simulated errors (M, 2K): standardised errors of a in the first K columns, then errors of p."""
    found = (standard_draws(2 * k)[0] @ symmetric_root(covariance)) * _t_factor(2 * k, df)
    sd = np.sqrt(np.diag(covariance)[:k])
    found[:, :k] /= np.where(sd > 0, sd, 1.0)
    return found


def intra_correlation(accepted: Floats, rows: Floats, a: Floats, showing: int, size: float = 1.0) -> float:
    """Return the correlation of two Pearson residuals of the same prompt, pooled over bins and pairs.

    Parameters
    ----------
    accepted, rows : array (C, K)
        Accepted rows and rows by cluster and bin.
    a : array (K,), strictly inside (0, 1)
        Acceptance by bin.
    showing : int
        Number of prompts that show the rarer outcome. ``FULL_CORRELATION`` prompts in full agreement are added, so that
        a log with few rejections does not claim independence.
    size : float
        Share of a row that a cut takes (:func:`cut_size`); variances are this share of those of indicators.
    """
    variance = a * (1 - a)
    residual = ((accepted - rows * a) / np.sqrt(variance)).sum(1)
    squares = ((accepted * (1 - a) ** 2 + (rows - accepted) * a**2) / variance).sum(1)
    number = rows.sum(1)
    pairs = float(np.sum(number * (number - 1)))
    found = float(np.sum(residual**2 / size - squares)) / pairs if pairs > 0 else 0.0
    found = min(max(found, 0.0), 1.0)
    return (found * showing + FULL_CORRELATION) / (showing + FULL_CORRELATION)
