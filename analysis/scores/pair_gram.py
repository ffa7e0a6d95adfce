"""Estimate inner products of updates, and an update's variance, without bias from pairs of different prompts (T11)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.log.rows import Floats, Ints


class PairGram:
    """Inner products of score vectors over pairs of responses to different prompts, by bin and overall.

    Parameters
    ----------
    vectors : array (n, D)
        The responses' vectors A psi.
    bins, cluster : int arrays (n,)
        Bin (0..number-1) and prompt (0..clusters-1) of each response.
    """

    def __init__(self, vectors: Floats, bins: Ints, cluster: Ints, number: int, clusters: int) -> None:
        gram = vectors @ vectors.T
        same = cluster[:, None] == cluster[None, :]
        self._between, self._within = np.where(same, 0.0, gram), np.where(same, gram, 0.0)
        places = [np.flatnonzero(bins == k) for k in range(number)] + [np.arange(len(bins))]
        # The responses of each bin, and last those of all bins together.
        self._groups = [
            _Group(at, cluster[at], np.bincount(cluster[at], minlength=clusters).astype(np.float64)) for at in places
        ]

    def between(self, left: Floats, right: Floats) -> tuple[Floats, Floats]:
        """Return the mean inner product over pairs of responses to different prompts, by bin and overall.

        The vectors are first multiplied by the coefficients ``left`` (n, R) and ``right`` (n, R or 1), such as the
        factors that R rules give the responses. A pair counts for a bin if both responses are in the bin.

        Returns
        -------
        total (K+1, R), without (C, K+1, R)
            The mean, and the mean without each of the C prompts; NaN where no pair is left. Row K is over all bins.
        """
        total, without = [], []
        for a in self._groups:
            gram = self._between[np.ix_(a.at, a.at)]
            rows = a.sums(left[a.at] * (gram @ right[a.at]))
            cols = a.sums(right[a.at] * (gram.T @ left[a.at]))
            whole = rows.sum(0)
            n, squares = a.rows.sum(), float(a.rows @ a.rows)
            pairs = n * n - squares
            fewer = (n - a.rows) ** 2 - (squares - a.rows**2)
            total.append(whole / pairs if pairs > 0 else np.full(whole.shape, np.nan))
            with np.errstate(invalid="ignore", divide="ignore"):
                without.append(np.where(fewer[:, None] > 0, (whole - rows - cols) / fewer[:, None], np.nan))
        return np.stack(total), np.stack(without, axis=1)

    def variance(self, left: Floats, between: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        """Return the variance (trace of the covariance) of the update mean_i left_i v_i over the n vectors v_i, for R
        rules, which differ in the coefficients left_i.

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
        total, without = [], []
        for k, a in enumerate(self._groups):
            own = a.sums(left[a.at] * (self._within[np.ix_(a.at, a.at)] @ left[a.at]))
            n, squares = a.rows.sum(), float(a.rows @ a.rows)
            with np.errstate(invalid="ignore", divide="ignore"):
                total.append(own.sum(0) / n**2 - squares / n**2 * between[0][k])
                fewer, less = (n - a.rows)[:, None], (squares - a.rows**2)[:, None]
                without.append((own.sum(0) - own) / fewer**2 - less / fewer**2 * between[1][:, k])
        return np.stack(total), np.stack(without, axis=1)


@dataclass(frozen=True)
class _Group:
    """The responses of a bin: their indices and prompts, and the number of responses to each prompt."""

    at: Ints
    cluster: Ints
    rows: Floats

    def sums(self, values: Floats) -> Floats:
        out = np.zeros((len(self.rows), values.shape[1]))
        np.add.at(out, self.cluster, values)
        return out
