"""Assign the rows of a log to groups of clusters, to bins, and to cells: single lengths (or values of another
coordinate), or narrow ranges of them. Other modules make sums over the rows of each group, bin and cell.

A group is here a set of clusters, not the responses to one prompt. In a log in memory with at most ``MOST_CLUSTERS``
clusters, each cluster is a group. Otherwise a fixed hash pools the clusters into ``POOLED`` groups, so that memory does
not grow with the log. Groups of independent clusters are independent too, so covariances and the jackknife are computed
over groups as over clusters, with ``POOLED`` - 1 degrees of freedom.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.log.loading import Run
from analysis.log.rows import Floats, Ints, Rows
from fspo.stats.bins import Bins

MOST_CLUSTERS = 4096
POOLED = 1024
CELLS = 64
"""Largest number of narrow cells into which lengths are divided where clusters are pooled. Smooth curves of acceptance
are fitted to counts of rows by cell, not to single rows."""


@dataclass(frozen=True)
class Grouping:
    """How the rows of a run are divided into groups of clusters, into bins, and into pairs of a group and a cell.

    A cell is a single coordinate (such as one length), or, where clusters are pooled, a narrow range of coordinates. A
    pair holds those rows of its group whose coordinate lies in its cell.

    Attributes
    ----------
    bins : Bins
        Bins of length, or of another coordinate.
    groups : int
        Number of groups of clusters.
    pooled : bool
        Whether a group holds several clusters.
    reference : float
        A value near the mean of ``Rows.trend`` (log2 of the length), subtracted before squares are summed, so that
        sums lose no digits.
    values : array (V,)
        Distinct coordinates; where clusters are pooled, the mean coordinate of each cell.
    edges : array (V-1,)
        Inner edges of the cells; empty where clusters are not pooled.
    pairs : int array (P,)
        Sorted codes ``group * V + cell`` of the pairs that hold a row. Empty where clusters are pooled: there every
        pair is numbered, whether it holds a row or not.
    """

    bins: Bins
    groups: int
    pooled: bool
    reference: float
    values: Floats
    edges: Floats
    pairs: Ints

    @staticmethod
    def of(run: Run, bins: Bins, *, grows: bool = False) -> Grouping:
        """Choose the groups into which a run's clusters are put, and the cells (narrow ranges) into which its
        coordinates are cut, from those of its rows that are in memory.

        ``grows`` says that rows of further clusters will be added later; a group then holds several clusters.
        """
        rows = run.rows
        reference = float(np.mean(rows.trend))
        if run.clusters <= MOST_CLUSTERS and not run.streamed and not grows:
            values, code = np.unique(rows.coordinate, return_inverse=True)
            pairs = np.unique(rows.cluster * len(values) + code.reshape(-1))
            return Grouping(bins, int(rows.cluster.max()) + 1, False, reference, values, np.zeros(0), pairs)
        ordered = np.sort(rows.coordinate)
        edges = np.unique(ordered[(np.arange(1, CELLS) * len(ordered)) // CELLS])
        edges = edges[edges > ordered[0]]
        code = np.searchsorted(edges, rows.coordinate, side="right")
        count = np.bincount(code, minlength=len(edges) + 1)
        values = np.bincount(code, rows.coordinate, len(edges) + 1) / np.maximum(count, 1)
        return Grouping(bins, POOLED, True, reference, values, edges, np.zeros(0, np.int64))

    @property
    def number(self) -> int:
        """The number P of pairs of a group of clusters and a cell (one coordinate, or a narrow range of them)."""
        return self.groups * len(self.values) if self.pooled else len(self.pairs)

    def group(self, rows: Rows) -> Ints:
        """Return for each row (N,) the number of the group of clusters to which the row's cluster belongs."""
        return hashed(rows.rollout, rows.prompt, self.groups) if self.pooled else rows.cluster

    def pair(self, coordinate: Floats, group: Ints) -> Ints:
        """Return for each row (N,) the number of the pair that it belongs to. A pair is a group of clusters and a cell,
        which is one coordinate or a range of coordinates."""
        if self.pooled:
            return group * len(self.values) + np.searchsorted(self.edges, coordinate, side="right")
        return np.searchsorted(self.pairs, group * len(self.values) + np.searchsorted(self.values, coordinate))

    def codes(self) -> tuple[Ints, Ints]:
        """Return for each pair of a group of clusters and a cell (P,) the number of the group and that of the cell.

        A cell is a coordinate, such as one length, or a narrow range of coordinates.
        """
        codes = np.arange(self.number) if self.pooled else self.pairs
        return codes // len(self.values), codes % len(self.values)


def hashed(rollout: Ints, prompt: Ints, number: int) -> Ints:
    """Return for each row (N,) a group 0..number-1, hashed from the row's cluster (rollout, prompt).

    The hash spreads clusters evenly over the groups and is the same in every run of the program.
    """
    with np.errstate(over="ignore"):
        mixed = rollout.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed += prompt.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(0xD6E8FEB86659FD93)
        mixed >>= np.uint64(32)
    return (mixed * np.uint64(number) >> np.uint64(32)).astype(np.int64)
