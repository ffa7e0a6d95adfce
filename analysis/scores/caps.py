"""The cap on weights of least error in each bin, and how the bins' updates are aligned (docs/theory.md T11)."""

from __future__ import annotations

import numpy as np

from analysis.log.rows import Floats
from analysis.scores.products import UpdateGram
from fspo.stats.clusters import totals
from fspo.stats.intervals import t_quantile
from fspo.theory import cap_of_least_error

QUANTITIES = ("alignment", "log_cap")


class CapSums:
    """Sums from which the caps of least error (T11) are estimated, for K = ``number`` bins. ``sums`` has by update
    four arrays: by the two responses' bins (K, K), the sum of <A psi, A' psi'> over pairs of responses to different
    prompts and the number of pairs; by bin (K,), the sum of |A psi|^2 and the number of responses. ``weights`` holds
    the weights w: for each bin, an array for each update."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sums: list[tuple[Floats, Floats, Floats, Floats]] = []
        self.weights: list[list[Floats]] = [[] for _ in range(number)]

    def add(self, gram: UpdateGram, weight: Floats) -> None:
        """Add an update: the inner products of its n vectors A psi, and the weights w of its responses (n,)."""
        k, bins = self.number, gram.bins
        member = (bins[:, None] == np.arange(k)).astype(np.float64)
        count = member.sum(0)
        across = member.T @ gram.across @ member
        pairs = np.outer(count, count) - gram.rows[:, :k].T @ gram.rows[:, :k]
        self.sums.append((across, pairs, totals(bins, k, np.diagonal(gram.gram)), count))
        for b in range(k):
            self.weights[b].append(weight[bins == b])

    def estimates(self) -> dict[str, list[tuple[float, ...]]]:
        """Return by name (``alignment``, ``log_cap``) the estimate of each bin with the ends of its interval; NaN where
        the squared norm of an expected update cannot be told from 0, as with one update.
        ``alignment`` is the cosine of the bin's E[A psi] with that of all other bins. ``log_cap`` is the log, nats, of
        T11's cap on w, for an update with as many responses with a score in the bin as the mean update has. The
        interval comes from a jackknife over updates; it leaves out the error of the distribution of w."""
        parts = [np.stack(part) for part in zip(*self.sums, strict=True)]
        whole = [part.sum(0) for part in parts]
        updates = len(self.sums)
        weights = [np.concatenate(found) for found in self.weights]
        value = self._of(whole, updates, weights)
        without = np.stack([
            self._of([total - part[u] for total, part in zip(whole, parts, strict=True)], updates - 1, weights)
            for u in range(updates)
        ]) if updates > 1 else np.full((1, *value.shape), np.nan)  # fmt: skip
        with np.errstate(invalid="ignore"):  # a log cap may be infinite: the distribution of w then asks for none
            se = np.sqrt((updates - 1) / updates * np.sum((without - without.mean(0)) ** 2, axis=0))
        half = t_quantile(max(updates - 1, 1)) * se
        # The squared norms of the bin's update and of the others' must lie above 0, their intervals too.
        unsure = ~(value[2:] > half[2:])
        value[1, unsure[0]] = value[0, unsure.any(0)] = np.nan
        ends = np.stack([value, value - half, value + half], axis=-1)
        return {name: [tuple(map(float, bin_)) for bin_ in ends[i]] for i, name in enumerate(QUANTITIES)}

    def _of(self, sums: list[Floats], updates: int, weights: list[Floats]) -> Floats:
        """Return (4, K): alignment, log_cap, |E[A psi]|^2 in the bin and in all others, of ``sums`` over updates."""
        across, pairs, squares, count = sums
        with np.errstate(invalid="ignore", divide="ignore"):
            product = np.where(pairs > 0, across / pairs, np.nan)  # without pairs of prompts, rounding over 0
            share, square = count / count.sum(), squares / count
        out = np.full((4, self.number), np.nan)
        for k in range(self.number):
            others = (np.arange(self.number) != k) & (count > 0)
            out[2, k] = norm = product[k, k]
            out[3, k] = rest = share[others] @ product[np.ix_(others, others)] @ share[others]
            if norm > 0 and rest > 0:
                out[0, k] = share[others] @ product[k, others] / np.sqrt(norm * rest)
            if norm > 0:
                noise, n = max(float(square[k] / norm), 1.0), max(float(count[k]) / updates, 1.0)
                out[1, k] = np.log(cap_of_least_error(weights[k], np.ones(len(weights[k])), noise, n))
        return out
