"""Random projections and signed hashing: a fixed-width sketch that keeps inner products in expectation.

A gradient is a list of named parts. A matrix part G becomes P_row^T G P_col with entries of P +-1/sqrt(k);
a vector part is kept as it is. All parts are then hashed with random signs into one vector of `width`
buckets (a count sketch). For any two gradients u, v under the same draw,

    E <sketch(u), sketch(v)> = <u, v>,

because E[P P^T] = I on either side and two different entries meet in a bucket with independent signs.
Where all parts together have no more than `width` entries they are laid side by side, without collisions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache

import numpy as np
import torch


def random_words(seed: int, rollout: int, name: str, count: int) -> np.ndarray:
    """Draw `count` uint64 words that depend on (seed, rollout, name) alone.

    Philox is counter-based and its raw stream is fixed by NumPy's stability policy (NEP 19), so every
    process, device and version draws the same words.

    Parameters
    ----------
    seed, rollout : int
        The run's seed and the rollout's number.
    name : str
        What the words are for; other names give independent words.
    count : int
        Number of words.

    Returns
    -------
    ndarray of uint64, shape (count,)
    """
    digest = hashlib.blake2b(f"{seed}/{rollout}/{name}".encode(), digest_size=16).digest()
    return np.random.Philox(key=int.from_bytes(digest, "little")).random_raw(count).astype(np.uint64)


def random_signs(seed: int, rollout: int, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draw independent signs, +1 or -1 with probability 1/2 each.

    Returns
    -------
    ndarray of int8, shape `shape`
    """
    count = int(np.prod(shape))
    words = random_words(seed, rollout, name, -(-count // 64)).astype("<u8")
    bits = np.unpackbits(words.view(np.uint8), count=count, bitorder="little")
    return (1 - 2 * bits.astype(np.int8)).reshape(shape)


class Sketcher:
    """The draw of one rollout: projections, buckets and signs for every part, made when first asked for.

    Parameters
    ----------
    shapes : mapping of str to tuple of int
        Name and shape of each part; two-dimensional parts are projected, all others kept entry by entry.
    width : int or None
        Buckets of the sketch; None lays the parts side by side whatever their number of entries.
    projection : int or None
        k, the columns of each projection; a side with at most k entries is not projected. None projects
        nothing, and the sketch is the gradient itself, hashed or (width None) bare.
    seed, rollout : int
        What the draw depends on, beside the names.
    device : torch.device or str
        Where the tables live.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        width: int | None,
        projection: int | None,
        seed: int,
        rollout: int,
        device: torch.device | str = "cpu",
    ):
        self.shapes = dict(shapes)
        self.projection = projection
        self.seed, self.rollout, self.device = seed, rollout, torch.device(device)
        sizes = {name: int(np.prod([self.side(n) for n in s] if len(s) == 2 else s)) for name, s in shapes.items()}
        total = sum(sizes.values())
        self.hashed = width is not None and total > width
        self.width = width if width is not None else total
        starts = np.cumsum([0, *sizes.values()])[:-1]
        self._spans = {name: (int(start), size) for start, (name, size) in zip(starts, sizes.items(), strict=True)}
        self.matrix = cache(self._matrix)
        self._table = cache(self._make_table)

    def side(self, length: int) -> int:
        """Entries that a side of `length` keeps: k, or all of them where there are no more than k."""
        return length if self.projection is None else min(length, self.projection)

    def _matrix(self, key: str, length: int, dtype: torch.dtype) -> torch.Tensor | None:
        """Projection P * sqrt(k), entries +-1 (exact in every dtype), shape (length, k); None: do not project."""
        if self.side(length) == length:
            return None
        signs = random_signs(self.seed, self.rollout, key, (length, self.side(length)))
        return torch.from_numpy(signs).to(self.device, dtype)

    def project(self, x: torch.Tensor, key: str) -> torch.Tensor:
        """Multiply the last axis of `x`, (..., length), by P * sqrt(k) of `key`; gives (..., k)."""
        matrix = self.matrix(key, x.shape[-1], x.dtype)
        return x if matrix is None else x @ matrix

    def _make_table(self, name: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Bucket and signed scale of each entry of a part."""
        start, size = self._spans[name]
        shape = self.shapes[name]
        scale = 1.0
        if len(shape) == 2:
            scale = float(np.prod([self.side(n) ** -0.5 if self.side(n) < n else 1.0 for n in shape]))
        if not self.hashed:
            buckets, signs = np.arange(start, start + size), np.ones(size)
        else:
            words = random_words(self.seed, self.rollout, f"{name}/bucket", size)
            buckets = (words % np.uint64(self.width)).astype(np.int64)
            signs = random_signs(self.seed, self.rollout, f"{name}/sign", (size,)).astype(np.float64)
        return (
            torch.from_numpy(buckets.astype(np.int64)).to(self.device),
            torch.from_numpy(scale * signs).to(self.device, dtype),
        )

    def zeros(self, rows: int, dtype: torch.dtype) -> torch.Tensor:
        """An empty sketch of `rows` gradients, shape (rows, width)."""
        return torch.zeros(rows, self.width, dtype=dtype, device=self.device)

    def add(self, total: torch.Tensor, name: str, part: torch.Tensor) -> None:
        """Hash one part, already projected, into `total` in place.

        Parameters
        ----------
        total : Tensor, shape (B, width)
        name : str
        part : Tensor, shape (B, ...)
            For a matrix part P_row^T G P_col * k, shape (B, rows kept, columns kept); else the part itself.
        """
        buckets, scale = self._table(name, total.dtype)
        flat = part.reshape(part.shape[0], -1).to(total.dtype) * scale
        if self.hashed:
            total.index_add_(1, buckets, flat)
        else:
            start, size = self._spans[name]
            total[:, start : start + size] += flat
