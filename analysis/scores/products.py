"""Inner products of updates, their delete-one-prompt replicates, and intervals of cosines made from them.

Windows and runs pool the updates' inner products and squared norms before dividing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from analysis.log.rows import Floats, Ints
from analysis.scores.sketch_error import cosine_covariance
from fspo.stats.clusters import TOO_FEW, dense
from fspo.stats.intervals import CONFIDENCE, t_quantile

_LARGEST = 1 - 1e-15
ROUNDING = 1e-12
"""Share of a pooled squared norm below which what is left of it without a prompt is rounding, and counts as 0."""


@dataclass
class Products:
    """Pooled products of one column (a rule or a random draw), with what remains when a cluster is deleted.

    Attributes
    ----------
    total : array (U, K+1)
        One row an update, last column all bins.
    without : list of arrays (C_u, K+1)
        The same with one cluster deleted, scaled up by (C/(C-1))^2.
    """

    total: list[Floats] = field(default_factory=list)
    without: list[Floats] = field(default_factory=list)

    def add(self, total: Floats, without: Floats) -> None:
        """Append one update."""
        self.total.append(total)
        self.without.append(without)

    def replicates(self) -> tuple[Floats, Floats]:
        """Pooled value (K+1, ...) and its delete-one replicates (sum C_u, K+1, ...)."""
        total = np.sum(self.total, axis=0)
        return total, np.concatenate([total - t + w for t, w in zip(self.total, self.without, strict=True)])


class UpdateGram:
    """Inner products of one update's A psi, by bin and cluster."""

    def __init__(self, vectors: Floats, bins: Ints, cluster: Ints, number: int) -> None:
        self.number = number
        self.clusters = int(cluster.max()) + 1
        gram = vectors @ vectors.T
        same_bin = bins[:, None] == bins[None, :]
        same_cluster = cluster[:, None] == cluster[None, :]
        self._grams = (gram, gram * same_cluster, gram * same_bin, gram * (same_bin & same_cluster))
        n = len(bins)
        self._by_cluster = np.zeros((self.clusters, n))
        self._by_cluster[cluster, np.arange(n)] = 1.0
        self._by_both = np.zeros((self.clusters * number, n))
        self._by_both[cluster * number + bins, np.arange(n)] = 1.0

    def products(self, left: Floats, right: Floats) -> tuple[Floats, Floats]:
        """Inner products of the updates with coefficients ``left`` (n, R) and ``right`` (n, R or 1).

        Returns
        -------
        total (K+1, R), without (C, K+1, R)
        """
        gram, gram_c, gram_b, gram_bc = self._grams
        symmetric = left is right
        forward, back = self._pair(gram, left, right, symmetric)
        own = self._by_cluster @ (left * (gram_c @ right))
        rows, cols = self._by_cluster @ forward, self._by_cluster @ back
        overall = rows.sum(0)
        overall_without = overall - rows - cols + own
        forward, back = self._pair(gram_b, left, right, symmetric)
        shape = (self.clusters, self.number, left.shape[1])
        own = (self._by_both @ (left * (gram_bc @ right))).reshape(shape)
        rows, cols = (self._by_both @ forward).reshape(shape), (self._by_both @ back).reshape(shape)
        by_bin = rows.sum(0)
        by_bin_without = by_bin - rows - cols + own
        total = np.concatenate([by_bin, overall[None]])
        without = np.concatenate([by_bin_without, overall_without[:, None]], axis=1)
        grow = (self.clusters / (self.clusters - 1)) ** 2 if self.clusters > 1 else 1.0
        return total, without * grow

    def inner(self, left: Floats, right: Floats) -> Floats:
        """Inner products (K+1, R) of the updates with coefficients ``left`` and ``right`` (n, R), nothing deleted."""
        gram, _, gram_b, _ = self._grams
        by_bin = (self._by_both @ (left * (gram_b @ right))).reshape(self.clusters, self.number, -1).sum(0)
        return np.concatenate([by_bin, np.sum(left * (gram @ right), axis=0)[None]])

    @staticmethod
    def _pair(gram: Floats, left: Floats, right: Floats, symmetric: bool) -> tuple[Floats, Floats]:
        forward = left * (gram @ right)
        return forward, forward if symmetric else right * (gram @ left)


def pooled_cosines(inner: Products, left: Products, right: Products) -> tuple[list[Floats], list[NDArray[np.bool_]]]:
    """Cosines (K+1, R) and their replicates (C, K+1, R); NaN where a pooled squared norm is not positive.

    A replicate's squared norm that is a share of at most ``ROUNDING`` of the pooled one is 0.

    Returns
    -------
    cosines : [array (K+1, R), array (C, K+1, R)]
    nothing_left : [bool array (K+1, R), bool array (C, K+1, R)]
        Where the norm of ``left`` is 0 and that of ``right`` is not.
    """
    cosines: list[Floats] = []
    nothing_left: list[NDArray[np.bool_]] = []
    lefts, rights = left.replicates(), right.replicates()
    for i, num in enumerate(inner.replicates()):
        a, b = lefts[i], rights[i]
        some_left, some_right = a > i * ROUNDING * lefts[0], b > i * ROUNDING * rights[0]  # i = 0: the pooled norms
        with np.errstate(invalid="ignore", divide="ignore"):
            square = a * b
            cosine = np.where(some_left & some_right, num / np.sqrt(np.where(square > 0, square, np.nan)), np.nan)
        cosines.append(np.clip(cosine, -1.0, 1.0))
        nothing_left.append(some_right & ~some_left)
    return cosines, nothing_left


def collapsed(update: Ints) -> Ints:
    """Strata (C,) of the jackknife: updates, those of a single cluster put together.

    A stratum of one shows no variance, though it has some; a lone one joins the largest stratum.
    """
    update = dense(update)
    count = np.bincount(update)
    alone = np.flatnonzero(count == 1)
    if len(alone) and len(count) > 1:
        update = np.where(count[update] == 1, alone[0] if len(alone) > 1 else np.argmax(count), update)
    return dense(update)


def jackknife_se(replicates: Floats, update: Ints, cluster: Ints | None = None) -> Floats:
    """Standard error (...) from delete-one-cluster replicates (C, ...), stratified by update (C,).

    ``cluster`` (C,) says which replicates of different updates delete the same cluster; by default none do.
    """
    update = collapsed(update)
    count = np.bincount(update).astype(np.float64)
    if len(count) == 1 and count[0] < 2:
        return np.full(replicates.shape[1:], np.nan)
    shape = (len(count), *replicates.shape[1:])
    sums = np.zeros(shape)
    np.add.at(sums, update, replicates)
    wide = count.reshape(-1, *[1] * (replicates.ndim - 1))
    deviation = replicates - (sums / wide)[update]
    deviation *= np.sqrt((count - 1) / count)[update].reshape(-1, *[1] * (replicates.ndim - 1))
    if cluster is not None:
        if replicates.ndim == 1:
            deviation = np.bincount(cluster, deviation)
        else:
            together = np.zeros((int(cluster.max()) + 1, *replicates.shape[1:]))
            np.add.at(together, cluster, deviation)
            deviation = together
    return np.sqrt(np.sum(deviation**2, axis=0))


@dataclass(frozen=True)
class Judge:
    """Intervals of pooled ratios from their delete-one-prompt replicates."""

    update: Ints
    prompt: Ints
    quantile: float

    def positive(self, value: float, replicates: Floats, what: str) -> str:
        """Why a squared norm cannot stand below a line; empty if it can."""
        half = self.quantile * float(jackknife_se(replicates, self.update, self.prompt))
        if not value > 0:
            return f"the squared norm of {what} is estimated as {value:.2g}, not positive: too few responses"
        if not half < value:
            more = (half / value) ** 2
            return f"the squared norm of {what} cannot be told from 0: about {more:.1f} times the responses are needed"
        return ""

    def ratio(
        self, above: tuple[float, Floats], below: tuple[float, Floats], noise: float
    ) -> tuple[tuple[float, float, float], str]:
        """Estimate and interval of ``above / below``; ``noise`` is a further standard error."""
        nothing = (float("nan"), float("nan"), float("nan"))
        with np.errstate(invalid="ignore", divide="ignore"):
            value, replicates = above[0] / below[0], above[1] / below[1]
        if not np.isfinite(value) or not np.all(np.isfinite(replicates)):
            return nothing, "without some prompt a pooled squared norm is not positive: too few responses"
        half = self.quantile * math.hypot(float(jackknife_se(replicates, self.update, self.prompt)), noise)
        if not np.isfinite(half):
            return nothing, TOO_FEW
        return (float(value), float(value - half), float(value + half)), ""


@dataclass
class SketchTerms:
    """The sketch's own error in each column's cosine: products by update (U, K+1, R) and the sketch's width."""

    inner: Floats
    left: Floats
    right: Floats
    width: float
    cross: dict[str, Floats] = field(default_factory=dict)  # <c1, c2> with each column's reference (U, K+1, R)

    def _at(self, k: int, column: int) -> tuple[Floats, Floats, Floats]:
        right = self.right[:, k, column if self.right.shape[2] > 1 else 0]
        return self.inner[:, k, column], self.left[:, k, column], right

    def error(self, k: int, column: int) -> float:
        """Standard deviation of one cosine; 0 for exact scores."""
        n, a, b = self._at(k, column)
        return math.sqrt(max(float(cosine_covariance((n, a), (n, a), a, b, self.width)), 0.0))

    def difference_error(self, k: int, column: int, other_k: int, other: int, name: str) -> float:
        """Standard deviation of a column's cosine minus its reference's; at most that for two different bins."""
        one, two = self.error(k, column), self.error(other_k, other)
        if k != other_k or name not in self.cross:
            return one + two
        (n1, a1, b), (n2, a2, _) = self._at(k, column), self._at(k, other)
        shared = float(cosine_covariance((n1, a1), (n2, a2), self.cross[name][:, k, column], b, self.width))
        return math.sqrt(max(one**2 + two**2 - 2 * shared, 0.0))


@dataclass
class Columns:
    """Cosines of several columns over one use: values (K+2, R), replicates (C, K+2, R); last entry: the worst bin."""

    value: Floats
    replicates: Floats
    update: Ints
    cluster: Ints
    degrees: int
    sketch: SketchTerms
    nothing_left: list[NDArray[np.bool_]]  # from pooled_cosines

    @staticmethod
    def of(
        inner: Products,
        left: Products,
        right: Products,
        update: Ints,
        width: float = math.inf,
        cross: dict[str, Floats] | None = None,
        cluster: Ints | None = None,
    ) -> Columns:
        """Append the worst bin to the bins and the total; ``width`` is the sketch's, infinite for exact scores.

        ``update`` and ``cluster`` (C,) are each replicate's; by default no cluster is in two updates.
        """
        (value, replicates), nothing_left = pooled_cosines(inner, left, right)
        with np.errstate(invalid="ignore"):
            worst = _nanmin(value[:-1], 0)
            worst_replicates = _nanmin(replicates[:, :-1], 1)
        value = np.concatenate([value, worst[None]])
        replicates = np.concatenate([replicates, worst_replicates[:, None]], axis=1)
        cluster = np.arange(len(update)) if cluster is None else dense(cluster)
        degrees = max(int(cluster.max()) + 1 - len(np.unique(collapsed(update))), 1)
        sketch = SketchTerms(np.array(inner.total), np.array(left.total), np.array(right.total), width, cross or {})
        return Columns(value, replicates, update, cluster, degrees, sketch, nothing_left)

    def interval(self, k: int, columns: Sequence[int], level: float = CONFIDENCE) -> tuple[float, float, float]:
        """Mean cosine over ``columns`` (one rule, or draws of the control) and its Fisher z interval.

        The cosine is NaN where a pooled norm is 0, the interval where one is without some prompt (``undefined``).
        """
        z = np.arctanh(np.clip(self.value[k, columns], -_LARGEST, _LARGEST)).mean()
        replicates = np.arctanh(np.clip(self.replicates[:, k, columns], -_LARGEST, _LARGEST)).mean(1)
        slope = 1 / (1 - min(float(np.tanh(z)) ** 2, _LARGEST))
        noise = slope * self.sketch.error(self._bin(k, columns[0]), columns[0])
        se = math.hypot(float(jackknife_se(replicates, self.update, self.cluster)), noise)
        half = t_quantile(self.degrees, level) * se
        value = float(self.value[k, columns].mean())
        if not np.isfinite(half):
            return value, float("nan"), float("nan")
        low, high = np.tanh(z - half), np.tanh(z + half)
        return value, min(value, float(low)), max(value, float(high))  # z is held just below cosine 1

    def undefined(self, k: int, columns: Sequence[int]) -> str:
        """Why bin ``k`` (or K, all bins) of some columns has no cosine, or no interval; empty if it has both."""
        gone, gone_without = self.nothing_left[0][k, columns], self.nothing_left[1][:, k, columns]
        some = f" in some of the {len(columns)} draws" if len(columns) > 1 else ""
        if not np.all(np.isfinite(self.value[k, columns])):
            what = "nothing of these responses is kept" if np.any(gone) else "the weights of these responses are 0"
            return f"a pooled norm is 0: {what}{some}"
        if not np.all(np.isfinite(self.replicates[:, k, columns])):
            what = "is kept" if np.any(gone_without) else "has a weight above 0"
            return f"no interval: without one of the prompts nothing of these responses {what}{some}"
        return ""

    def difference(
        self, k: int, one: int, other: int, name: str = "", level: float = CONFIDENCE
    ) -> tuple[float, float, float]:
        """Cosine of column ``one`` minus ``other``, its reference ``name``, with the paired jackknife interval."""
        gap = float(self.value[k, one] - self.value[k, other])
        replicates = self.replicates[:, k, one] - self.replicates[:, k, other]
        noise = self.sketch.difference_error(self._bin(k, one), one, self._bin(k, other), other, name)
        se = math.hypot(float(jackknife_se(replicates, self.update, self.cluster)), noise)
        half = t_quantile(self.degrees, level) * se
        if not np.isfinite(gap) or not np.isfinite(half):
            return float("nan"), float("nan"), float("nan")
        return gap, gap - half, gap + half

    def _bin(self, k: int, column: int) -> int:
        """Row of the products behind entry ``k``: of the worst bin, the bin that it is."""
        if k < len(self.value) - 1:
            return k
        found = self.value[:-2, column]
        return int(np.nanargmin(found)) if np.isfinite(found).any() else 0


def _nanmin(x: Floats, axis: int) -> Floats:
    filled = np.where(np.isnan(x), np.inf, x)
    low = filled.min(axis=axis)
    return np.where(np.isinf(low), np.nan, low)
