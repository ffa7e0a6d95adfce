"""Sketches of gradients by random projection and signed hashing: fixed width, inner products kept in expectation.

A gradient is a list of named parts. A matrix part G becomes P_row^T G P_col, where P_row and P_col are random matrices
of k columns with entries +-1/sqrt(k); a vector part is kept as it is. All parts are then hashed with random signs into
one vector of `width` buckets (a count sketch). For any two gradients u, v under the same draw,

    E <sketch(u), sketch(v)> = <u, v>,

because E[P P^T] = I for P_row and for P_col, and two different entries in one bucket have independent signs.
If all parts together have at most `width` entries, they are laid side by side and no two share a bucket."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache

import numpy as np
import torch
from jaxtyping import Float, Int8, Int64, UInt64


def random_words(seed: int, rollout: int, name: str, count: int) -> UInt64[np.ndarray, " {count}"]:
    """Return ``count`` uint64 words that depend on (seed, rollout, name) alone.

    Philox is counter-based and its raw stream is fixed by NumPy's stability policy (NEP 19), so every process, device
    and version draws the same words."""
    digest = hashlib.blake2b(f"{seed}/{rollout}/{name}".encode(), digest_size=16).digest()
    return np.random.Philox(key=int.from_bytes(digest, "little")).random_raw(count).astype(np.uint64)


def random_signs(seed: int, rollout: int, name: str, shape: tuple[int, ...]) -> Int8[np.ndarray, " ..."]:
    """Return independent signs, +1 or -1 with probability 1/2 each, as int8 of the shape ``shape``; they depend on
    seed, rollout, name and shape alone."""
    count = int(np.prod(shape))
    words = random_words(seed, rollout, name, -(-count // 64)).astype("<u8")
    bits = np.unpackbits(words.view(np.uint8), count=count, bitorder="little")
    return (1 - 2 * bits.astype(np.int8)).reshape(shape)


class Sketcher:
    """The random projections, buckets and signs by which one rollout's gradients are sketched, made for each part (the
    gradient of one parameter) when it is first used.

    Parameters
    ----------
    shapes : mapping of str to tuple of int
        Name and shape of each part; two-dimensional parts are projected, all others kept entry by entry.
    width : int or None
        Number of buckets of the sketch; None lays all parts side by side, however many entries they have.
    projection : int or None
        k, the columns of each projection. The rows (or columns) of a part are not projected if there are at most k.
        With None nothing is projected: the gradient itself is hashed. If ``width`` is None too, the sketch is the
        gradient itself.
    seed, rollout : int
        The random numbers depend on seed, rollout and the parts' names.
    device : torch.device or str
        Device of the projections, buckets and signs.
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
        """Return how many of a matrix's ``length`` rows (or columns) are left by the projection: the smaller of
        ``length`` and k, the number of columns of a random projection; all ``length`` if nothing is projected."""
        return length if self.projection is None else min(length, self.projection)

    def _matrix(self, key: str, length: int, dtype: torch.dtype) -> Float[torch.Tensor, "{length} k"] | None:
        """Return the projection matrix times sqrt(k), (length, k), with entries +-1; None if ``length`` <= k, because
        then nothing is projected."""
        if self.side(length) == length:
            return None
        signs = random_signs(self.seed, self.rollout, key, (length, self.side(length)))
        return torch.from_numpy(signs).to(self.device, dtype)

    def project(self, x: Float[torch.Tensor, "*rows _"], key: str) -> Float[torch.Tensor, "*rows _"]:
        """Return ``x`` (..., length) times the matrix (length, k) of random signs that ``key`` names, (..., k): sqrt(k)
        times the projection, which `add` divides out. Without a projection, or if length <= k, return ``x``."""
        matrix = self.matrix(key, x.shape[-1], x.dtype)
        return x if matrix is None else x @ matrix

    def _make_table(
        self, name: str, dtype: torch.dtype
    ) -> tuple[Int64[torch.Tensor, " entries"], Float[torch.Tensor, " entries"]]:
        """Return for each entry of the part ``name``, projected if it is a matrix and flattened, its bucket in the
        sketch, and the factor with which the entry is added there.

        The factor is a random sign (1 if all parts are laid side by side). It is divided by sqrt(k) if the rows of the
        part are projected to k, and again if its columns are, because `project` multiplies by sqrt(k) each time."""
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

    def zeros(self, rows: int, dtype: torch.dtype) -> Float[torch.Tensor, "{rows} D"]:
        """Return zeros (rows, D), the sketches of ``rows`` responses with D entries, to which `add` adds the parts of a
        gradient."""
        return torch.zeros(rows, self.width, dtype=dtype, device=self.device)

    def add(self, total: Float[torch.Tensor, "B D"], name: str, part: Float[torch.Tensor, " B *part"]) -> None:
        """Hash one part of the gradient of each of B responses, and add it in place to the responses' sketches.

        Parameters
        ----------
        total : Tensor, shape (B, width)
            The sketches.
        name : str
            Name of the part, one of ``shapes``.
        part : Tensor, shape (B, ...)
            For a matrix G its projection P_row^T G P_col, shape (B, kept rows, kept columns), each projection times
            sqrt(k) as in `project`; for a vector the vector itself.
        """
        buckets, scale = self._table(name, total.dtype)
        flat = part.reshape(part.shape[0], -1).to(total.dtype) * scale
        if self.hashed:
            total.index_add_(1, buckets, flat)
        else:
            start, size = self._spans[name]
            total[:, start : start + size] += flat
