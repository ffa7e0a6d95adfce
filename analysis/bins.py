"""Length bins: quantile bins by default, edges on request; fixed once for all rules and runs compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fspo.errors import UserError

DEFAULT_BINS = 6


@dataclass(frozen=True)
class Bins:
    """Bins ``[edges[k], edges[k+1])`` in tokens; lengths beyond the outer edges fall into the outer bins.

    Parameters
    ----------
    edges : tuple of int, strictly increasing, at least two
    """

    edges: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.edges) < 2:
            raise UserError(f"length edges {list(self.edges)}: give at least two, for example --edges 1 16 64 257")
        if any(b <= a for a, b in zip(self.edges, self.edges[1:], strict=False)):
            raise UserError(f"length edges {list(self.edges)} must increase strictly")
        if self.edges[0] < 0:
            raise UserError(f"length edges {list(self.edges)} must not be negative: a length is a number of tokens")

    def __len__(self) -> int:
        return len(self.edges) - 1

    def index(self, lengths: ArrayLike) -> NDArray[np.int64]:
        """Bin of each length (N,), in 0..K-1."""
        inner = np.asarray(self.edges[1:-1])
        return np.searchsorted(inner, np.asarray(lengths), side="right").astype(np.int64)

    def columns(self, k: int) -> dict[str, int]:
        """Key columns of bin ``k``; -1 stands for all lengths."""
        lo, hi = (self.edges[0], self.edges[-1]) if k < 0 else (self.edges[k], self.edges[k + 1])
        return {"bin": k, "length_lo": lo, "length_hi": hi}


def quantile_bins(lengths: ArrayLike, number: int = DEFAULT_BINS) -> Bins:
    """Bins with about equal counts; ties make fewer bins, never an empty one.

    From the shortest length on, a bin is closed where its count is nearest to an equal share of what is left: a
    length that many responses have fills a bin of its own and the others share the rest. No bin has less than
    about a quarter of an equal share.

    Parameters
    ----------
    lengths : array (N,), tokens, >= 1
    number : int
        Wanted number of bins, >= 1.

    Raises
    ------
    UserError
        If ``number`` < 1 or there are no lengths.
    """
    lengths = np.asarray(lengths)
    if number < 1:
        raise UserError(f"--bins {number}: at least 1 bin is needed")
    if lengths.size == 0:
        raise UserError("no responses to make length bins from: the log has no row after an update")
    values, counts = np.unique(lengths, return_counts=True)
    edges, inside, left = [int(values[0])], 0, int(counts.sum())
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        bins_left = number - len(edges) + 1
        target = (left + inside) / bins_left
        if bins_left > 1 and inside > target / 4 and inside + count - target > target - inside:
            edges.append(int(value))
            inside = 0
        inside += count
        left -= count
    if len(edges) > 1 and inside < lengths.size / number / 4:
        edges.pop()
    return Bins((*edges, int(values[-1]) + 1))


def make_bins(lengths: ArrayLike, number: int = DEFAULT_BINS, edges: Sequence[int] | None = None) -> Bins:
    """The requested edges, or quantile bins of ``lengths``."""
    return Bins(tuple(int(e) for e in edges)) if edges else quantile_bins(lengths, number)
