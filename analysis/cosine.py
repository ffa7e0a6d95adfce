"""Table cosine: alignment of the clipped and the true update, same batch (docs/theory.md section 5).

Every rule is a vector of coefficients on the same A psi, so all of them share one matrix of inner products an
update: ``<g_clip, g> = c' K w``. Windows and runs pool the updates' inner products and squared norms before dividing.

Intervals are a delete-one-cluster jackknife within updates (cluster = prompt), on Fisher's z for a cosine and on the
plain scale for differences between rules on the same log. They are about the *same-batch* cosine at this number of
responses an update: g_clip and g share their noise, which flatters it against a population's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats as sps

from analysis.bins import Bins
from analysis.evaluate import Case, common_weight, evaluate
from analysis.rows import Floats, Ints
from analysis.sketches import ScoredWindow
from analysis.stats import MIN_CLUSTERS, TOO_FEW, dense

REFERENCE_BAND = "fspo"
_LARGEST = 1 - 1e-15


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

    @staticmethod
    def _pair(gram: Floats, left: Floats, right: Floats, symmetric: bool) -> tuple[Floats, Floats]:
        forward = left * (gram @ right)
        return forward, forward if symmetric else right * (gram @ left)


def pooled_cosines(inner: Products, left: Products, right: Products) -> tuple[Floats, Floats]:
    """Cosines (K+1, R) and their replicates (C, K+1, R); NaN where a pooled squared norm is not positive."""
    values = []
    for num, a, b in zip(inner.replicates(), left.replicates(), right.replicates(), strict=True):
        with np.errstate(invalid="ignore", divide="ignore"):
            square = a * b
            cosine = np.where((a > 0) & (b > 0), num / np.sqrt(np.where(square > 0, square, np.nan)), np.nan)
        values.append(np.clip(cosine, -1.0, 1.0))
    return values[0], values[1]


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


def jackknife_se(replicates: Floats, update: Ints) -> Floats:
    """Standard error (...) from delete-one-cluster replicates (C, ...), stratified by update (C,)."""
    update = collapsed(update)
    count = np.bincount(update).astype(np.float64)
    if len(count) == 1 and count[0] < 2:
        return np.full(replicates.shape[1:], np.nan)
    shape = (len(count), *replicates.shape[1:])
    sums = np.zeros(shape)
    np.add.at(sums, update, replicates)
    wide = count.reshape(-1, *[1] * (replicates.ndim - 1))
    deviation = replicates - (sums / wide)[update]
    factor = ((count - 1) / count)[update].reshape(-1, *[1] * (replicates.ndim - 1))
    return np.sqrt(np.sum(factor * deviation**2, axis=0))


@dataclass
class Columns:
    """Cosines of several columns over one use: values (K+2, R), replicates (C, K+2, R); last entry: the worst bin."""

    value: Floats
    replicates: Floats
    update: Ints
    degrees: int

    @staticmethod
    def of(inner: Products, left: Products, right: Products, update: Ints) -> Columns:
        """Append the worst bin to the bins and the total."""
        value, replicates = pooled_cosines(inner, left, right)
        with np.errstate(invalid="ignore"):
            worst = _nanmin(value[:-1], 0)
            worst_replicates = _nanmin(replicates[:, :-1], 1)
        value = np.concatenate([value, worst[None]])
        replicates = np.concatenate([replicates, worst_replicates[:, None]], axis=1)
        return Columns(value, replicates, update, max(len(update) - len(np.unique(collapsed(update))), 1))

    def interval(self, k: int, columns: Sequence[int], level: float = 0.95) -> tuple[float, float, float]:
        """Mean cosine over ``columns`` (one rule, or draws of the control) and its Fisher z interval."""
        z = np.arctanh(np.clip(self.value[k, columns], -_LARGEST, _LARGEST)).mean()
        replicates = np.arctanh(np.clip(self.replicates[:, k, columns], -_LARGEST, _LARGEST)).mean(1)
        half = sps.t.ppf((1 + level) / 2, self.degrees) * float(jackknife_se(replicates, self.update))
        if not np.isfinite(z) or not np.isfinite(half):
            return float("nan"), float("nan"), float("nan")
        low, high = np.tanh(z - half), np.tanh(z + half)
        value = float(self.value[k, columns].mean())
        return value, min(value, float(low)), max(value, float(high))  # z is held just below cosine 1

    def difference(self, k: int, one: int, other: int, level: float = 0.95) -> tuple[float, float, float]:
        """Cosine of column ``one`` minus ``other`` with the paired jackknife interval."""
        gap = float(self.value[k, one] - self.value[k, other])
        replicates = self.replicates[:, k, one] - self.replicates[:, k, other]
        half = float(sps.t.ppf((1 + level) / 2, self.degrees)) * float(jackknife_se(replicates, self.update))
        if not np.isfinite(gap) or not np.isfinite(half):
            return float("nan"), float("nan"), float("nan")
        return gap, gap - half, gap + half


def _nanmin(x: Floats, axis: int) -> Floats:
    filled = np.where(np.isnan(x), np.inf, x)
    low = filled.min(axis=axis)
    return np.where(np.isinf(low), np.nan, low)


class CosineTable:
    """Collects windows, then gives the rows of the table cosine.

    Parameters
    ----------
    key : dict
        Key columns of the run.
    bins : Bins
    cases : list of Case
        With the rule that trained among them, if it is defined on sequences.
    targets : sequence of float
        Acceptances at which the random control drops, besides the trained rule's own.
    draws : int
        Draws of the random control.
    seed : int
        Of the random control.
    """

    def __init__(
        self, key: dict[str, Any], bins: Bins, cases: list[Case], targets: Sequence[float], draws: int, seed: int
    ) -> None:
        self.key, self.bins, self.draws = key, bins, draws
        self.cases = [common_weight(case) for case in cases]
        self.own = [case for case in cases if case.rule.weight != "sequence"]
        self.targets = list(targets)
        self.trained = [case for case in cases if case.source == "trained" and case.rule.outside == "drop"]
        self._rng = np.random.default_rng(seed)
        self._uses: dict[str, _Use] = {}

    def add(self, window: ScoredWindow) -> None:
        """Use one window's scores."""
        use = self._uses.setdefault(window.use, _Use(len(self.bins)))
        rows, n = window.rows, len(window.rows)
        one_window = np.zeros(n, np.int64)
        columns: list[Floats] = []
        weight = rows_weight(window)
        kept: dict[float, int] = {}
        for i, case in enumerate(self.cases):
            found = evaluate(case, rows, one_window, "update")
            if found.reason:
                use.reasons.setdefault(i, found.reason)
            columns.append(np.where(np.isfinite(found.clipped_weight), found.clipped_weight, 0.0))
            if case.source == "trained":
                kept[float("nan")] = int(np.sum(found.side == 0))
        dropped = [round(target * n) for target in self.targets]
        dropped += list(kept.values()) if self.trained else []
        for keep in dropped:
            order = np.argsort(self._rng.random((n, self.draws)), axis=0)
            columns.append(np.where(order < keep, weight[:, None], 0.0))
        own = [evaluate(case, rows, one_window, "update") for case in self.own]
        for i, found in enumerate(own):
            if found.reason:
                use.own_reasons.setdefault(i, found.reason)
        use.add(window, np.column_stack(columns), weight[:, None], own)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the table."""
        out: list[dict[str, Any]] = []
        for name, use in self._uses.items():
            update = np.concatenate(use.cluster_update)
            columns = Columns.of(use.inner, use.left, use.right, update)
            place = {(c.name, c.rule.outside, c.source, c.target): i for i, c in enumerate(self.cases)}
            base = {**self.key, "subset": "nonzero", "use": name, "reference": "same_batch"}
            for i, case in enumerate(self.cases):
                key = {**base, **case.key, "weight": "sequence", "control": False}
                references = {
                    "diff_fspo": place.get((REFERENCE_BAND, case.rule.outside, case.source, case.target)),
                    "diff_drop": place.get((case.name, "drop", case.source, case.target)),
                }
                out += self._rows(key, columns, [i], use, use.reasons.get(i, ""), references)
            start = len(self.cases)
            controls = [("matched", t) for t in self.targets]
            controls += [("trained", float("nan"))] if self.trained else []
            for source, target in controls:
                key = {**base, "rule": "random", "outside": "drop", "source": source, "target": target}
                draws = list(range(start, start + self.draws))
                out += self._rows({**key, "weight": "sequence", "control": True}, columns, draws, use, "", {})
                start += self.draws
            if self.own:
                columns = Columns.of(use.own_inner, use.own_left, use.own_right, update)
                for i, case in enumerate(self.own):
                    key = {**base, **case.key, "weight": "own", "control": False}
                    out += self._rows(key, columns, [i], use, use.own_reasons.get(i, ""), {})
        return out

    def _rows(
        self,
        key: dict[str, Any],
        columns: Columns,
        at: list[int],
        use: _Use,
        reason: str,
        references: dict[str, int | None],
    ) -> list[dict[str, Any]]:
        number = len(self.bins)
        out: list[dict[str, Any]] = []
        nan = float("nan")
        blank = dict.fromkeys(("worst_bin", "worst_ci_low", "worst_ci_high", "worst_index"), nan)
        for k in [number, *range(number)]:
            clusters, count, total = use.cluster_count[k], use.count[k], use.length[k]
            why = reason or (TOO_FEW if clusters < MIN_CLUSTERS else "")
            row = {**key, **self.bins.columns(-1 if k == number else k)}
            row |= {"length_mean": total / count if count else nan, "count": int(count), "clusters": int(clusters)}
            row |= {"updates": len(use.inner.total)}
            low = high = value = nan
            if not why:
                value, low, high = columns.interval(k, at)
                why = "" if np.isfinite(value) else "a pooled norm is 0: nothing of these responses is kept"
            row |= {"estimate": value, "ci_low": low, "ci_high": high, "reason": why} | blank
            for name, other in references.items():
                gap = columns.difference(k, at[0], other) if other is not None and not why else (nan, nan, nan)
                row |= dict(zip((name, f"{name}_ci_low", f"{name}_ci_high"), gap, strict=True))
            if k == number and not why:
                worst = columns.interval(number + 1, at)
                row |= dict(zip(("worst_bin", "worst_ci_low", "worst_ci_high"), worst, strict=True))
                means = columns.value[:number][:, at].mean(1)
                row["worst_index"] = float(np.nanargmin(means)) if np.isfinite(means).any() else nan
                for name, other in references.items():
                    if other is not None:
                        gap = columns.difference(number + 1, at[0], other)
                        row |= dict(
                            zip((f"{name}_worst", f"{name}_worst_ci_low", f"{name}_worst_ci_high"), gap, strict=True)
                        )
            out.append(row)
        return out


class _Use:
    """Products of all columns over the updates of one use."""

    def __init__(self, number: int) -> None:
        self.inner, self.left, self.right = Products(), Products(), Products()
        self.own_inner, self.own_left, self.own_right = Products(), Products(), Products()
        self.cluster_update: list[Ints] = []
        self.count, self.cluster_count, self.length = np.zeros(number + 1), np.zeros(number + 1), np.zeros(number + 1)
        self.reasons: dict[int, str] = {}
        self.own_reasons: dict[int, str] = {}
        self.number = number
        self.updates = 0

    def add(self, window: ScoredWindow, coefficients: Floats, weight: Floats, own: list[Any]) -> None:
        """Add every update of a window; ``coefficients`` (n, R) are M w, ``weight`` (n, 1) is w."""
        k = self.number
        own_left = np.column_stack([f.clipped_weight for f in own]) if own else None
        own_right = np.column_stack([f.weight for f in own]) if own else None
        for number in range(window.updates):
            at = np.flatnonzero(window.update == number)
            cluster, bins, length = dense(window.rows.cluster[at]), window.bins[at], window.rows.length[at]
            gram = UpdateGram(window.vectors[at], bins, cluster, k)
            c, w = coefficients[at], weight[at]
            self.inner.add(*gram.products(c, w))
            self.left.add(*gram.products(c, c))
            self.right.add(*gram.products(w, w))
            if own_left is not None and own_right is not None:
                # the gradient of exp(S/L) carries 1/L (docs/theory.md section 2)
                a, b = np.nan_to_num(own_left[at]) / length[:, None], np.nan_to_num(own_right[at]) / length[:, None]
                self.own_inner.add(*gram.products(a, b))
                self.own_left.add(*gram.products(a, a))
                self.own_right.add(*gram.products(b, b))
            self.cluster_update.append(np.full(gram.clusters, self.updates))
            self.updates += 1
            self.count += np.append(np.bincount(bins, minlength=k), len(at))
            self.length += np.append(np.bincount(bins, length, k), length.sum())
            pairs = np.unique(cluster * k + bins) % k
            self.cluster_count += np.append(np.bincount(pairs, minlength=k), gram.clusters)


def rows_weight(window: ScoredWindow) -> Floats:
    """The common weight exp(S) (n,), the exponent capped as everywhere."""
    from fspo.rules import MAX_EXPONENT

    return np.exp(np.minimum(window.rows.S, MAX_EXPONENT))
