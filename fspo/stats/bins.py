"""Bins of length, or of another coordinate: quantile bins by default, or edges that the user gives.

All rules and runs that are compared use the same bins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64
from numpy.typing import ArrayLike

from fspo.base.errors import UserError
from fspo.base.number_checks import checked_count

DEFAULT_BINS = 6
MOST_BINS = 1000
MANY = 20_000
"""Number of different values above which bin edges are plain quantiles of the values.

With so many values few responses share one, so ties do not unbalance the bins."""


@dataclass(frozen=True)
class Bins:
    """Bins of a coordinate, ``[edges[k], edges[k+1])`` for k = 0, 1, ...; values beyond the outer edges fall into the
    outer bins. ``edges``, in tokens for lengths, are strictly increasing and at least two."""

    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.edges) < 2:
            raise UserError(f"edges {list(self.edges)}: give at least two, for example --edges 1,16,64,257")
        if len(self) > MOST_BINS:
            raise UserError(f"{len(self)} bins are too many: give at most {MOST_BINS + 1} edges")
        if not all(a < b for a, b in zip(self.edges, self.edges[1:], strict=False)):
            raise UserError(f"edges {list(self.edges)} must increase strictly: sort them, and name each once")

    def __len__(self) -> int:
        return len(self.edges) - 1

    def index(self, values: ArrayLike) -> Int64[np.ndarray, "*N"]:
        """Return the number of each value's bin, int (N,), counted from 0."""
        inner = np.asarray(self.edges[1:-1])
        return np.searchsorted(inner, np.asarray(values), side="right").astype(np.int64)

    def limits(self, k: int) -> tuple[float, float]:
        """Return the lower and upper edge of bin ``k``, or, if k is -1, of all bins together."""
        return (self.edges[0], self.edges[-1]) if k < 0 else (self.edges[k], self.edges[k + 1])


def quantile_bins(values: ArrayLike, number: int = DEFAULT_BINS) -> Bins:
    """Return bins with about equal counts; ties can make fewer bins, but never an empty one.

    Values are taken in rising order. A bin is closed where its count is nearest to an equal share of the values that
    are left, so a value that many responses have fills one bin alone and the other bins share the rest. No bin has
    less than about a quarter of an equal share. Above 20,000 different values the edges are plain quantiles.

    Parameters
    ----------
    values : array (N,)
        Lengths in tokens, or another coordinate. Whole numbers make whole edges.
    number : int
        Wanted number of bins, >= 1.

    Raises
    ------
    UserError
        If ``number`` < 1 or there are no values.
    """
    data = np.asarray(values)
    checked_count("--bins", number, 1, MOST_BINS, f"{DEFAULT_BINS} are the default")
    if data.size == 0:
        raise UserError("no responses to make bins from: the log has no row after an update")
    whole = bool(np.all(data == np.round(data)))
    end = np.floor(np.max(data)) + 1 if whole else np.nextafter(np.max(data), np.inf)
    distinct, counts = np.unique(data, return_counts=True)
    if len(distinct) > MANY:
        inner = np.quantile(data, np.arange(1, number) / number)
        return Bins(tuple(_plain(e, whole) for e in np.unique([distinct[0], *inner, end])))
    edges, inside, left = [distinct[0]], 0, int(counts.sum())
    for value, count in zip(distinct.tolist(), counts.tolist(), strict=True):
        bins_left = number - len(edges) + 1
        target = (left + inside) / bins_left
        if bins_left > 1 and inside > target / 4 and inside + count - target > target - inside:
            edges.append(value)
            inside = 0
        inside += count
        left -= count
    if len(edges) > 1 and inside < data.size / number / 4:
        edges.pop()
    return Bins(tuple(_plain(e, whole) for e in (*edges, end)))


def _plain(edge: float, whole: bool) -> float:
    return int(edge) if whole else float(edge)


def make_bins(values: ArrayLike, number: int = DEFAULT_BINS, edges: Sequence[float] | None = None) -> Bins:
    """Return bins with the requested ``edges``, or without them ``number`` quantile bins of ``values``.

    Raises UserError if the edges are infinite, do not increase or have none of ``values`` between them. Without edges
    the errors are those of :func:`quantile_bins`."""
    if edges is None:
        return quantile_bins(values, number)
    if not np.all(np.isfinite(edges)):
        raise UserError(f"edges {list(edges)} must be finite: give the least and the greatest value as ends")
    bins = Bins(tuple(_plain(e, float(e).is_integer()) for e in edges))
    data = np.asarray(values)
    if data.size and not np.any((data >= bins.edges[0]) & (data < bins.edges[-1])):
        raise UserError(
            f"--edges {list(bins.edges)}: no response lies between them; they reach from {np.min(data):g} to "
            f"{np.max(data):g}, so give edges around these"
        )
    return bins
