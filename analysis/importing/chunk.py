"""Read one chunk (some rows) of another trainer's table: columns under this project's names, and which tokens count."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from analysis.importing.values import Floats, Ints, Values
from fspo.base.errors import UserError

TOKENS = ("log_ratio", "new", "old", "sampler")
"""Columns, by this project's names, in which a table may hold a list with one number for each token of a response."""


class ChunkColumns(NamedTuple):
    """Columns of one chunk, N rows of a table of responses that is imported.

    Parameters
    ----------
    values : dict
        Values of each column that the chunk has, by this project's name of the column.
    chosen : mapping
        For this project's name of a column, the table's name of it, for error messages.
    path : path
        The table's file, for error messages.
    """

    values: dict[str, Values]
    chosen: Mapping[str, str]
    path: Path

    def is_list(self, name: str) -> bool:
        """Whether this chunk of the table has the column ``name``, with a list in each row."""
        return name in self.values and self.values[name].kind == "list"

    def numbers(self, name: str) -> Floats:
        """Return a column of numbers (N,).

        Raises
        ------
        UserError
            If the column holds no numbers.
        """
        found = self.values[name]
        if found.kind != "number":
            example = found.array[0].as_py() if len(found) else None
            raise UserError(
                f"{self.path}: column {self.chosen[name]!r} is read as {name} and must hold numbers"
                f"{', or lists such as [-0.5, -0.1]' * (name in TOKENS)}, not {str(example)[:40]!r}; "
                f"rename it, or name the right one with --columns {name}=COLUMN"
            )
        return found.numbers()

    def sums(self, name: str, *, mean: bool = False) -> Floats:
        """Return a column as numbers (N,). A list is summed or, with ``mean``, averaged over its tokens that count."""
        if not self.is_list(name):
            return self.numbers(name)
        flat, row = self.values[name].lists()
        if mean:
            keep = self.mask(flat)
            flat, row = flat[keep], row[keep]
        total = np.bincount(row, flat, len(self.values[name])).astype(np.float64)
        return total / np.maximum(np.bincount(row, minlength=len(total)), 1) if mean else total

    def mask(self, flat: Floats) -> np.ndarray:
        """Return for each token whether it counts; all count if the chunk has no mask.

        ``flat`` holds a number for each token of all rows.
        """
        if not self.is_list("mask"):
            return np.ones(len(flat), bool)
        mask, _ = self.values["mask"].lists()
        if len(mask) != len(flat):
            raise UserError(
                f"{self.path}: column {self.chosen['mask']!r} and the token columns differ in tokens; both must cover "
                "the response"
            )
        return mask > 0

    def within(self, row: Ints) -> np.ndarray:
        """Return for each token whether its position is below its response's length; later tokens are padding.

        ``row`` says for each token to which response it belongs.
        """
        length = self.numbers("length")
        count = np.bincount(row, minlength=len(length))
        short = np.flatnonzero(count < np.nan_to_num(length))
        if len(short):
            raise UserError(
                f"{self.path}: {self.chosen['length']!r} says {length[short[0]]:.0f} tokens where the token columns "
                f"hold {count[short[0]]}; the length must count response tokens alone"
            )
        start = np.concatenate([[0], np.cumsum(count)[:-1]])
        return np.arange(len(row)) - start[row] < length[row]
