"""Read one chunk (some rows) of another trainer's table: columns under this project's names, and which tokens count."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from analysis.importing.tables import Chunk
from analysis.importing.values import Floats, Ints, Values
from analysis.importing.watch import Ids
from fspo.base.errors import UserError

TOKENS = ("log_ratio", "new", "old", "sampler")
"""Columns, by this project's names, in which a table may hold a list with one number for each token of a response."""
_ID = re.compile(r"(?:^|_)(?:id|idx|index|uid|step|rank|group|rollout)$")


class ChunkColumns(NamedTuple):
    """Columns of one chunk, N rows of the table ``path``, under this project's names.

    ``chosen`` maps these to the table's names; ``before`` rows of the table came in earlier chunks.
    """

    values: dict[str, Values]
    chosen: Mapping[str, str]
    path: Path
    chunk: Chunk
    before: int

    def ids(self, i: int) -> Ids:
        """Return the number of row i in the table, from 1, and its ids and step in the table's own names."""
        found: Ids = {"row": self.before + i + 1}
        for name, column in self.chunk.items():
            if _ID.search(str(name).lower()):
                value = column.array[i].as_py()
                if isinstance(value, int | str | float):
                    found[str(name)] = value
        return found

    def is_list(self, name: str) -> bool:
        """Whether this chunk of the table has the column ``name``, with a list in each row."""
        return name in self.values and self.values[name].kind == "list"

    def numbers(self, name: str) -> Floats:
        """Return a column of numbers (N,). Raise UserError if the column holds no numbers."""
        found = self.values[name]
        if found.kind != "number":
            example = found.array[0].as_py() if len(found) else None
            raise UserError(
                f"{self.path}: column {self.chosen[name]!r} is read as {name} and must hold numbers"
                f"{', or lists such as [-0.5, -0.1]' * (name in TOKENS)}, not {str(example)[:40]!r}; "
                f"rename it, or name the right one with --columns {name}=COLUMN"
            )
        return found.numbers()

    def kept(self, name: str) -> tuple[Floats, Ints]:
        """Return the numbers of a column of lists at tokens that count, and the row of each."""
        flat, row = self.values[name].lists()
        keep = self.mask(flat)
        return flat[keep], row[keep]

    def folded(self, name: str) -> Floats:
        """Return one number for each row (N,): that in the column or, of its lists, the sum of rewards, else the mean
        over the tokens that count.
        """
        if not self.is_list(name):
            return self.numbers(name)
        flat, row = self.values[name].lists() if name == "reward" else self.kept(name)
        n = len(self.values[name])
        count = np.bincount(row, minlength=n) if name != "reward" else np.ones(n)
        return np.bincount(row, flat, n) / np.maximum(count, 1)

    def mask(self, flat: Floats) -> np.ndarray:
        """Return whether each token of all rows counts; all do without a mask. ``flat`` holds a number for each."""
        if not self.is_list("mask"):
            if "mask" in self.values:
                self.numbers("mask")  # refuses text, in which nothing tells which tokens count
            return np.ones(len(flat), bool)
        mask, _ = self.values["mask"].lists()
        if len(mask) != len(flat):
            raise UserError(
                f"{self.path}: column {self.chosen['mask']!r} and the token columns differ in tokens; both must cover "
                "the response"
            )
        return mask > 0

    def within(self, row: Ints) -> np.ndarray:
        """Return whether each token, of response ``row``, lies within its response; later tokens are padding."""
        length = self.numbers("length")
        count = np.bincount(row, minlength=len(length))
        short = np.flatnonzero(count < np.nan_to_num(length))
        if len(short):
            raise UserError(
                f"{self.path}: {self.chosen['length']!r} says {length[short[0]]:.0f} tokens where the token columns "
                f"hold {count[short[0]]}; the length must count response tokens alone"
            )
        return np.arange(len(row)) - (np.cumsum(count) - count)[row] < length[row]
