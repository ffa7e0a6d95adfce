"""Compute inner products of updates, once from all prompts and again with each prompt deleted in turn. From these inner
products, compute cosines with jackknife intervals.

For the cosine of a block or a run, inner products and squared norms are summed over its updates before the division."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from analysis.log.rows import Floats, Ints
from analysis.scores.sketch_error import cosine_variance
from fspo.stats.clusters import TOO_FEW, dense
from fspo.stats.intervals import CONFIDENCE, t_quantile

_LARGEST = 1 - 1e-15
ROUNDING = 1e-12
"""If a squared norm without one cluster is at most this share of the squared norm of all clusters, it is rounding error
and counts as 0. A cosine that differs from 1 or -1 by at most this number counts as 1 or -1: the two updates are
parallel."""


@dataclass
class Products:
    """A quantity of each of U updates, such as the inner product of clipped and unclipped gradient: computed once from
    all clusters, and again with each cluster of the update deleted in turn.

    Attributes
    ----------
    total : list of arrays (K+1, ...)
        For each update, the quantity in each of K bins, and last over all bins.
    without : list of arrays (C_u, K+1, ...)
        For each update u, the same with each of its C_u clusters deleted. `UpdateGram.products` has scaled its products
        up by (C_u/(C_u-1))^2, because they are products of sums over C_u - 1 clusters.
    """

    total: list[Floats] = field(default_factory=list)
    without: list[Floats] = field(default_factory=list)

    def add(self, total: Floats, without: Floats) -> None:
        """Append a quantity of one update: ``total``, computed from all its clusters, and ``without``, computed again
        with each cluster deleted in turn."""
        self.total.append(total)
        self.without.append(without)

    def replicates(self) -> tuple[Floats, Floats]:
        """Return the sums of inner products over updates (K+1, ...), and their replicates (C, K+1, ...).

        The first K sums are of the bins, the last is over all bins. There is a replicate for each pair of an update and
        one of its clusters, C pairs in all: the sums without the cluster's responses in that update."""
        total = np.sum(self.total, axis=0)
        return total, np.concatenate([total - t + w for t, w in zip(self.total, self.without, strict=True)])


class UpdateGram:
    """Inner products of sums of one update's n vectors A psi, by bin and over all bins, and without each prompt.

    The products of all pairs of responses come from `products`, those of pairs of responses to different prompts from
    `between`; the latter are unbiased estimates of the inner products of expected updates (T11).

    Parameters
    ----------
    gram : array (n, n)
        Inner products of the responses' vectors A psi.
    bins, cluster : int arrays (n,)
        Bin (0..number-1) and prompt (from 0 without gaps) of each response; ``number`` is that of the bins, K.
    """

    def __init__(self, gram: Floats, bins: Ints, cluster: Ints, number: int) -> None:
        self.gram, self.bins, self.cluster = gram, bins, cluster
        self.clusters, self.number = int(cluster.max()) + 1, number
        code = cluster * number + bins
        self._order = np.argsort(code, kind="stable")
        self._codes, self._starts = np.unique(code[self._order], return_index=True)
        rows = self._places(np.ones((len(bins), 1)))[..., 0]
        self.rows = np.column_stack([rows, rows.sum(1)])  # (C, K+1)
        within = cluster[:, None] == cluster
        same = bins[:, None] == bins
        # Pairs of responses in one bin, and all pairs: to different prompts, and to the same prompt.
        self._pairs = [(np.where(within, 0.0, part), np.where(within, part, 0.0)) for part in (gram * same, gram)]
        self.across = self._pairs[1][0]

    def _places(self, values: Floats) -> Floats:
        """Return the sums of ``values`` (n, R) over the responses to each of C prompts in each of K bins, (C, K, R)."""
        out = np.zeros((self.clusters * self.number, values.shape[1]))
        out[self._codes] = np.add.reduceat(values[self._order], self._starts, axis=0)
        return out.reshape(self.clusters, self.number, -1)

    def _sums(self, left: Floats, right: Floats) -> tuple[Floats, Floats, Floats]:
        """Return three arrays (C, K+1, R): for each of C prompts, sums of left_i right_j <v_i, v_j> over pairs (i, j)
        of responses, v_i being A psi of i: only i answers the prompt; only j does; both do. Row K is over all bins."""
        found = []
        for place, (between, within) in enumerate(self._pairs):
            rows = left * (between @ right)
            cols = rows if left is right else right * (between @ left)
            parts = [self._places(part) for part in (rows, cols, left * (within @ right))]
            found.append([part.sum(1, keepdims=True) for part in parts] if place else parts)
        rows, cols, own = (np.concatenate(part, axis=1) for part in zip(*found, strict=True))
        return rows, cols, own

    def products(self, left: Floats, right: Floats) -> tuple[Floats, Floats]:
        """Return the inner products of R pairs of gradients, each a weighted sum of the vectors A psi of n responses.

        ``left`` (n, R) holds the weights of the first sum of each pair, ``right`` (n, R or 1) those of the second.

        The two results are the products in each of K bins and over all (K+1, R), and those with each of the update's C
        prompts deleted in turn (C, K+1, R), times (C/(C-1))^2 to allow for the smaller sums."""
        rows, cols, own = self._sums(left, right)
        total = (rows + own).sum(0)
        grow = (self.clusters / (self.clusters - 1)) ** 2 if self.clusters > 1 else 1.0
        return total, (total - rows - cols - own) * grow

    def between(self, left: Floats, right: Floats) -> tuple[Floats, Floats]:
        """Return the mean inner product over pairs of responses to different prompts, in each of K bins and over all.

        The vectors are first multiplied by the coefficients ``left`` (n, R) and ``right`` (n, R or 1), such as the
        factors that R rules give the responses. A pair counts for a bin if both responses are in the bin.

        The two results are the mean (K+1, R), and the mean without each of the C prompts (C, K+1, R); NaN where no pair
        is left. Row K is over all bins."""
        rows, cols, _ = self._sums(left, right)
        n, squares, fewer, less = self._numbers()
        whole = rows.sum(0)
        with np.errstate(invalid="ignore", divide="ignore"):
            total = np.where(n**2 > squares, whole / (n**2 - squares), np.nan)
            without = np.where(fewer**2 > less, (whole - rows - cols) / (fewer**2 - less), np.nan)
        return total, without

    def variance(self, left: Floats, between: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        """Return the variance (trace of the covariance) of the update mean_i left_i v_i over the n vectors v_i = A psi,
        for R rules, which differ in the coefficients left_i.

        The estimate is unbiased for independent prompts (T11). The prompts that have vectors are taken as given: a
        prompt whose rewards are all equal has no vectors, and the variance of the number of such prompts is left out.

        Parameters
        ----------
        left : array (n, R)
            Coefficient of each vector under each of the R rules.
        between : pair of arrays
            The result of ``between(left, left)``.

        Returns
        -------
        total (K+1, R), without (C, K+1, R)
            The variance in each of K bins and (last) over all bins; the same without each of the C prompts.
        """
        own = self._sums(left, left)[2]
        n, squares, fewer, less = self._numbers()
        with np.errstate(invalid="ignore", divide="ignore"):
            total = own.sum(0) / n**2 - squares / n**2 * between[0]
            without = (own.sum(0) - own) / fewer**2 - less / fewer**2 * between[1]
        return total, without

    def _numbers(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Return, for each bin and over all (K+1, 1), the number of responses and the sum over prompts of the squared
        number of responses to the prompt; then both without each of the C prompts (C, K+1, 1)."""
        rows = self.rows[..., None]
        n, squares = rows.sum(0), (rows**2).sum(0)
        return n, squares, n - rows, squares - rows**2


def pooled_cosines(inner: Products, left: Products, right: Products) -> tuple[list[Floats], list[NDArray[np.bool_]]]:
    """Compute the cosine of clipped and unclipped gradient for each of R rules, in each of K bins and over all bins.

    Inner products and squared norms are summed over a run's updates before they are divided. Each cosine is computed
    once from all clusters, and C times with one cluster of one update deleted (`Products.replicates`). It is NaN where
    a squared norm is not positive. With a cluster deleted, a squared norm counts as 0 if it is at most 1e-12 times the
    one from all clusters. A cosine within 1e-12 of 1 or -1 becomes 1 or -1.

    Parameters
    ----------
    inner : Products
        Inner products of the rules' clipped gradients with the unclipped gradient.
    left, right : Products
        Squared norms of the clipped gradients, and of the unclipped gradient.

    Returns
    -------
    cosines : [array (K+1, R), array (C, K+1, R)]
        From all clusters, and with each cluster of each update deleted.
    nothing_left : [bool array (K+1, R), bool array (C, K+1, R)]
        True where the clipped gradient is 0 and the unclipped gradient is not: the rule left no gradient.
    """
    cosines: list[Floats] = []
    nothing_left: list[NDArray[np.bool_]] = []
    lefts, rights = left.replicates(), right.replicates()
    for i, num in enumerate(inner.replicates()):
        a, b = lefts[i], rights[i]
        # ``a`` and ``b`` are the squared norms of the clipped and of the unclipped gradient, by which a cosine is
        # divided. Over all clusters (i = 0) they must be above 0, and with one cluster deleted (i = 1) above
        # ROUNDING times the same norm over all clusters. Else the cosine is NaN.
        some_left, some_right = a > i * ROUNDING * lefts[0], b > i * ROUNDING * rights[0]
        with np.errstate(invalid="ignore", divide="ignore"):
            square = a * b
            cosine = np.where(some_left & some_right, num / np.sqrt(np.where(square > 0, square, np.nan)), np.nan)
        cosines.append(np.where(_parallel(cosine), np.sign(cosine), cosine))
        nothing_left.append(some_right & ~some_left)
    return cosines, nothing_left


def _parallel(cosine: Floats) -> NDArray[np.bool_]:
    """Return where a cosine is 1 or -1 up to rounding error, so that the two updates are parallel."""
    return np.abs(cosine) >= 1 - ROUNDING


def collapsed(update: Ints) -> Ints:
    """Return for each jackknife replicate (C,) the number of its stratum; ``update`` (C,) is the update from which the
    replicate deletes a cluster.

    The replicates of one update are a stratum. A stratum of one would show no variance, so all updates with a single
    cluster form one stratum together. If there is just one such update, its cluster joins the largest stratum."""
    update = dense(update)
    count = np.bincount(update)
    alone = np.flatnonzero(count == 1)
    if len(alone) and len(count) > 1:
        update = np.where(count[update] == 1, alone[0] if len(alone) > 1 else np.argmax(count), update)
    return dense(update)


def jackknife_se(replicates: Floats, stratum: Ints, cluster: Ints | None = None) -> float:
    """Return the jackknife's standard error of a statistic from its replicates (C,).

    Each replicate is the statistic with one cluster of one update deleted, and ``stratum`` (C,) numbers the update's
    stratum (`collapsed`). If a cluster has responses in several updates, pass as ``cluster`` (C,) the number of the
    cluster that each replicate deletes: deviations of one cluster are added before they are squared. Without
    ``cluster``, no two replicates may delete the same cluster. NaN for a single replicate."""
    count = np.bincount(stratum).astype(np.float64)
    if len(count) == 1 and count[0] < 2:
        return math.nan
    deviation = replicates - (np.bincount(stratum, replicates) / count)[stratum]
    deviation *= np.sqrt((count - 1) / count)[stratum]
    if cluster is not None:
        deviation = np.bincount(cluster, deviation)
    return math.sqrt(float(np.sum(deviation**2)))


@dataclass(frozen=True)
class Judge:
    """Computes intervals of ratios of sums over updates from C jackknife replicates, one for each pair of an update and
    a prompt: the sums without that update's responses to it. ``prompt`` (C,) numbers the prompts (the same number in
    all updates), ``stratum`` (C,) the strata (`collapsed`). A half-width is ``quantile`` times the standard error."""

    stratum: Ints
    prompt: Ints
    quantile: float

    def positive(self, value: float, replicates: Floats, what: str) -> str:
        """Return why a squared norm may not serve as a denominator (it is not clearly above 0), or "" if it may.
        ``value`` is its estimate, ``replicates`` (C,) are its replicates, and ``what`` names the vector in the text."""
        half = self.quantile * jackknife_se(replicates, self.stratum, self.prompt)
        if not value > 0:
            return f"the squared norm of {what} is estimated as {value:.2g}, not positive: too few responses"
        if not half < value:
            more = (half / value) ** 2
            return f"the squared norm of {what} cannot be told from 0: about {more:.1f} times the responses are needed"
        return ""

    def ratio(
        self, above: tuple[float, Floats], below: tuple[float, Floats], noise: float
    ) -> tuple[tuple[float, float, float], str]:
        """Return the ratio ``above / below`` with the ends of its interval, and a text that says why the ratio is NaN,
        or "".

        ``above`` and ``below`` are pairs: a value, and its replicates (C,). ``noise`` is a standard error that the
        ratio has for another reason than the choice of prompts, such as sketching. Its square is added to the square
        of the jackknife's standard error."""
        nothing = (float("nan"), float("nan"), float("nan"))
        with np.errstate(invalid="ignore", divide="ignore"):
            value, replicates = above[0] / below[0], above[1] / below[1]
        if not np.isfinite(value) or not np.all(np.isfinite(replicates)):
            return nothing, "without some prompt a pooled squared norm is not positive: too few responses"
        half = self.quantile * math.hypot(jackknife_se(replicates, self.stratum, self.prompt), noise)
        if not np.isfinite(half):
            return nothing, TOO_FEW
        return (float(value), float(value - half), float(value + half)), ""


@dataclass
class SketchTerms:
    """The numbers from which the error that sketching adds to cosines is computed.

    They are arrays (U, K+1, R): for each of U updates, for each of K bins and last for all bins together, and for each
    of R rules. ``inner`` holds the inner product of the clipped and the unclipped gradient, ``left`` the squared norm
    of the clipped gradient and ``right`` (R may be 1) that of the unclipped gradient. ``width`` is the effective number
    of the sketch's entries (`effective_width`)."""

    inner: Floats
    left: Floats
    right: Floats
    width: float

    def error(self, k: int, column: int) -> float:
        """Return the standard deviation that sketching adds to the cosine of bin ``k`` (K: all bins) under the rule of
        index ``column``; 0 for exact scores and for parallel gradients."""
        n, a = self.inner[:, k, column], self.left[:, k, column]
        b = self.right[:, k, column if self.right.shape[2] > 1 else 0]
        with np.errstate(invalid="ignore", divide="ignore"):
            if _parallel(n.sum() / np.sqrt(a.sum() * b.sum())):
                return 0.0
        return math.sqrt(max(float(cosine_variance(n, a, b, self.width)), 0.0))


@dataclass
class CosineColumns:
    """Cosines of R rules, or of draws of a control that drops responses at random.

    ``value`` (K+2, R) holds the cosine in each of K bins, then over all bins, then the smallest of the K.
    ``replicates`` (C, K+2, R) holds the same cosines, each time with one cluster of one update deleted: the cluster in
    ``cluster`` (C,), of an update in the stratum ``stratum`` (C,) (`collapsed`). ``degrees`` are an interval's degrees
    of freedom, ``sketch`` gives the error of sketching, ``nothing_left`` says where a rule left no gradient.
    """

    value: Floats
    replicates: Floats
    stratum: Ints
    cluster: Ints
    degrees: int
    sketch: SketchTerms
    nothing_left: list[NDArray[np.bool_]]  # where the clipped gradient is 0 but not the true one: `pooled_cosines`

    @staticmethod
    def of(
        inner: Products,
        left: Products,
        right: Products,
        update: Ints,
        width: float = math.inf,
        cluster: Ints | None = None,
    ) -> CosineColumns:
        """Compute the cosines of each bin and of all bins together from the clipped gradients' inner products with the
        unclipped one (``inner``) and the squared norms of both (``left``, ``right``); append the smallest of the bins'
        cosines. ``width`` is the effective number of a sketch's entries (`effective_width`).

        A bin in which the rule leaves no gradient has the cosine NaN, but counts as 0 in the search for the smallest,
        since nothing of the unclipped gradient's direction is left there.

        ``update`` and ``cluster`` (C,) say which cluster of which update each replicate deletes. Leave ``cluster`` out
        if no cluster has responses in two updates."""
        (value, replicates), nothing_left = pooled_cosines(inner, left, right)
        with np.errstate(invalid="ignore"):
            worst = np.fmin.reduce(np.where(nothing_left[0], 0.0, value)[:-1], axis=0)
            worst_replicates = np.fmin.reduce(np.where(nothing_left[1], 0.0, replicates)[:, :-1], axis=1)
        value = np.concatenate([value, worst[None]])
        replicates = np.concatenate([replicates, worst_replicates[:, None]], axis=1)
        cluster, stratum = np.arange(len(update)) if cluster is None else dense(cluster), collapsed(update)
        degrees = max(int(cluster.max()) - int(stratum.max()), 1)
        sketch = SketchTerms(np.array(inner.total), np.array(left.total), np.array(right.total), width)
        return CosineColumns(value, replicates, stratum, cluster, degrees, sketch, nothing_left)

    def interval(self, k: int, columns: Sequence[int], level: float = CONFIDENCE) -> tuple[float, float, float]:
        """Return the mean over ``columns`` of the cosine in row ``k`` of `value`, and its Fisher z interval.

        ``columns`` are indices (0 to R-1) of one rule, or of all draws of the random drop. The cosine is NaN
        where a squared norm, summed over updates, is 0. The interval is NaN where a squared norm is 0 with some prompt
        deleted (:meth:`undefined` gives the reason)."""
        z = np.arctanh(np.clip(self.value[k, columns], -_LARGEST, _LARGEST)).mean()
        replicates = np.arctanh(np.clip(self.replicates[:, k, columns], -_LARGEST, _LARGEST)).mean(1)
        slope = 1 / (1 - min(float(np.tanh(z)) ** 2, _LARGEST))
        noise = slope * self.sketch.error(self._bin(k, columns[0]), columns[0])
        se = math.hypot(jackknife_se(replicates, self.stratum, self.cluster), noise)
        half = t_quantile(self.degrees, level) * se
        value = float(self.value[k, columns].mean())
        if not np.isfinite(half):
            return value, float("nan"), float("nan")
        low, high = np.tanh(z - half), np.tanh(z + half)
        # Widen the interval so that it holds the cosine: a cosine of 1 was cut to a number just below 1 for arctanh, so
        # the upper end could be below 1.
        return value, min(value, float(low)), max(value, float(high))

    def undefined(self, k: int, columns: Sequence[int]) -> str:
        """Say why bin ``k`` (K: all bins) has no cosine, or no interval, under one of the rules or draws ``columns``
        (indices from 0 to R-1, as for `interval`); "" if it has both under each."""
        gone, gone_without = self.nothing_left[0][k, columns], self.nothing_left[1][:, k, columns]
        some = f" in some of the {len(columns)} draws" if len(columns) > 1 else ""
        if not np.all(np.isfinite(self.value[k, columns])):
            what = "nothing of these responses is kept" if np.any(gone) else "the weights of these responses are 0"
            return f"a pooled norm is 0: {what}{some}"
        if not np.all(np.isfinite(self.replicates[:, k, columns])):
            what = "is kept" if np.any(gone_without) else "has a weight above 0"
            return f"no interval: without one of the prompts nothing of these responses {what}{some}"
        return ""

    def _bin(self, k: int, column: int) -> int:
        """Return the row of the cosines (K bins, all bins together, the smallest of the bins) that row ``k`` copies:
        ``k`` itself, or for the last row the bin with the smallest cosine."""
        if k < len(self.value) - 1:
            return k
        found = self.of_bins([column])[:, 0]
        return int(np.nanargmin(found)) if np.isfinite(found).any() else 0

    def of_bins(self, columns: Sequence[int]) -> Floats:
        """Return the cosines in each of the K bins under each of the rules ``columns``, (K, len(columns)).

        A cosine is 0 where the rule leaves no gradient."""
        return np.where(self.nothing_left[0][:-1, columns], 0.0, self.value[:-2, columns])
