"""Read columns of an imported table, from any kind of file, as numbers, lists or text; tell which tokens count."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fspo.base.errors import UserError
from fspo.base.keyed_noise import hashed
from fspo.stats.clusters import Floats, Ints, Mask

Ids = dict[str, int | float | str]
"""The number of a row in its table, from 1, and its ids in the table's own names: {"row": 20, "idx": 19, "step": 7}."""
_ID = re.compile(r"(?:^|_)(?:id|idx|index|uid|step|rank|group|rollout)$")
NUMPY_NUMBER = re.compile(r"np\.(?:float|int)\d+\(([^()]*)\)")
"""Pattern of a number as numpy writes it in a text: ``np.float64(-0.25)``."""
WORDS = {"None": "nan", "null": "nan", "True": "1", "true": "1", "False": "0", "false": "0"}
"""Words that a list written as text may hold in place of numbers, and the number that each stands for."""


@dataclass(frozen=True)
class Values:
    """The N values of one column of an imported table, all of one kind: numbers, lists of numbers, or text.

    ``array`` holds them as read, except that texts of lists (from CSV) are parsed."""

    kind: Literal["number", "list", "text"]
    array: pa.Array

    def numbers(self) -> Floats:
        """Return the numbers (n,), of lists end to end: NaN where null, 1 for True, whole ones of 2^53 and more rounded
        (`ids` reads identifiers). Not for kind "text"."""
        flat = pc.list_flatten(self.array) if self.kind == "list" else self.array  # type: ignore[attr-defined]
        return np.asarray(flat.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)

    def rows(self) -> Ints:
        """Return the row (n,) of each of the `numbers` of lists. Only for kind "list"."""
        return np.asarray(pc.list_parent_indices(self.array), np.int64)  # type: ignore[attr-defined]

    def ids(self, part: re.Pattern[str] | None = None) -> Ints:
        """Return whole numbers (N,) that identify the values: a whole number of 64 bits itself, else a hash of the
        text, in which what the pattern ``part`` matches is replaced by the first group of the match."""
        coded = (pa.array(self.texts()) if self.kind == "list" else self.array).dictionary_encode()
        texts = [_text(value) for value in coded.dictionary.to_pylist()]
        names = np.array([_id(part.sub(r"\1", text) if part else text) for text in [*texts, ""]], np.int64)
        return names[coded.indices.fill_null(len(texts)).to_numpy()]

    def texts(self) -> list[str]:
        """Return the values as strings (N,)."""
        return [_text(value) for value in self.array.to_pylist()]


Chunk = dict[str, Values]
"""Columns of some rows of a table, by name; of an object each value is a column, ``outer.inner``."""


@dataclass(frozen=True)
class ChunkColumns:
    """Columns of one chunk, N rows of the table in the file ``path`` that follow ``before`` other rows.

    ``chunk`` holds all columns, by the table's names, and ``chosen`` the table's name of those that have a name of this
    project, by which they are asked for."""

    chunk: Chunk
    chosen: Mapping[str, str]
    path: Path
    before: int

    def __getitem__(self, name: str) -> Values:
        return self.chunk[self.chosen[name]]

    def ids(self, i: int) -> Ids:
        """Return, by name, the number in the whole table, from 1, of this chunk's row ``i``, and its columns of ids."""
        found: Ids = {"row": self.before + i + 1}
        for name, column in self.chunk.items():
            if _ID.search(name.lower()) and isinstance(value := column.array[i].as_py(), int | str | float):
                found[name] = value
        return found

    def is_list(self, name: str) -> bool:
        """Return whether the chunk has the column ``name`` and it holds lists."""
        return name in self.chosen and self[name].kind == "list"

    def numbers(self, name: str) -> Floats:
        """Return the column ``name`` as numbers (N,); a list of one number is that number. Raise UserError else."""
        column, n = self[name], len(self[name].array)
        if column.kind == "text" or (column.kind == "list" and not np.array_equal(column.rows(), range(n))):
            example = str(self[name].array[0].as_py())[:40]
            raise UserError(
                f"{self.path}: column {self.chosen[name]!r} is read as {name} and must hold numbers, not {example!r}; "
                f"rename it, or name the right one with --columns {name}=COLUMN"
            )
        return column.numbers()

    def lists(self, name: str, like: str) -> tuple[Floats, Ints]:
        """Return the numbers (n,) in the lists of the column ``name``, end to end, and the row of each; raise UserError
        if its lists are not as long as those of the column ``like``."""
        row = self[name].rows()
        if name != like and not np.array_equal(row, self[like].rows()):
            raise UserError(
                f"{self.path}: columns {self.chosen[like]!r} and {self.chosen[name]!r} differ in tokens in some row; "
                "both must hold one number for each response token"
            )
        return self[name].numbers(), row

    def kept(self, name: str) -> tuple[Floats, Ints]:
        """Return the numbers in the lists of the column ``name`` at tokens that count, and the row of each."""
        keep = self.mask(name)
        return self[name].numbers()[keep], self[name].rows()[keep]

    def folded(self, name: str) -> Floats:
        """Return one number for each row (N,) of the column ``name``: its number or, of a list, the sum for rewards,
        else the mean over the tokens that count."""
        n, column = len(self[name].array), self[name]
        if not self.is_list(name) or np.array_equal(column.rows(), range(n)):
            return self.numbers(name)
        flat, row = (column.numbers(), column.rows()) if name == "reward" else self.kept(name)
        count = 1 if name == "reward" else np.maximum(np.bincount(row, minlength=n), 1)
        return np.bincount(row, flat, n) / count

    def mask(self, like: str) -> Mask:
        """Return (n,) whether each token of the column ``like``'s lists counts; all do without a mask."""
        if self.is_list("mask"):
            return self.lists("mask", like)[0] > 0
        if "mask" in self.chosen:
            self.numbers("mask")  # refuses text, in which nothing tells which tokens count
        return np.ones(len(self[like].rows()), bool)

    def within(self, row: Ints) -> Mask:
        """Return whether each token (n,), of the responses ``row`` (n,), lies within its response; later tokens are
        padding."""
        length = self.numbers("length")
        count = np.bincount(row, minlength=len(length))
        short = np.flatnonzero(count < np.nan_to_num(length))
        if len(short):
            raise UserError(
                f"{self.path}: {self.chosen['length']!r} says {length[short[0]]:.0f} tokens where the token columns "
                f"hold {count[short[0]]}; the length must count response tokens alone"
            )
        return np.arange(len(row)) - np.searchsorted(row, row) < length[row]


def padding(values: Collection[Floats], row: Ints) -> Mask:
    """Return which tokens (n,), of the responses ``row`` (n,), are padding: those at the end of a response that are 0
    in all columns ``values`` (each (n,)), if at least a tenth of the responses end in two such tokens or more."""
    zero = np.all(np.equal([*values], 0), axis=0)
    others = np.cumsum(~zero)
    ending = zero & (others == others[np.searchsorted(row, row, side="right") - 1])
    padded = np.bincount(row, ending) >= 2
    return ending & (10 * padded.sum() >= len(np.unique(row)))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, default=str, sort_keys=True)


def _id(text: str) -> int:
    whole = int(text) if re.fullmatch(r"[1-9]\d{0,19}|0", text) else 2**64
    return hashed(text) if whole >= 2**64 else whole - 2**64 * (whole >= 2**63)


def as_values(column: pa.Array | list[Any]) -> Values:
    """Return a column as `Values` of the kind that its values have; texts of lists in brackets (CSV) become lists."""
    if isinstance(column, list):
        column = unpacked(column)
        try:
            array = pa.array(column)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            array = pa.array([_text(value) for value in column])
    else:
        array = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    kind = array.type
    if _is_number(kind):
        return Values("number", array)
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        if pa.types.is_nested(kind.value_type) and not isinstance(column, list):
            return as_values(array.to_pylist())
        if _is_number(kind.value_type):
            return Values("list", array)
        if pa.types.is_string(kind.value_type):
            with suppress(pa.ArrowInvalid):  # slime lists versions as texts
                return Values("list", array.cast(pa.list_(pa.float64())))
    texts = [_text(value) for value in array.to_pylist()]
    lists = _lists(texts)
    return Values("text", pa.array(texts, pa.string())) if lists is None else Values("list", lists)


def unpacked(column: list[Any]) -> list[Any]:
    """Return a column of lists as lists of log-probabilities: where tokens are pairs of a log-probability and a token
    id, as SGLang writes them, or objects, as vLLM's server does, the log-probabilities are taken out; any other column
    is unchanged."""

    def log_probability(token: Any) -> float:
        match token:
            case {"logprob": value} | [float(value) | int(value), int()] | [float(value) | int(value), int(), _]:
                return value
        raise TypeError

    try:
        return [row and [log_probability(token) for token in row] for row in column]
    except TypeError:
        return column


def _is_number(kind: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    return any(test(kind) for test in kinds)


def _lists(texts: list[str]) -> pa.Array | None:
    """Parse lists of numbers that JSON, Python or numpy wrote as text; None if a text is no list, or all are empty."""
    rows: list[list[float] | None] = []
    for text in texts:
        if text and (text[0] + text[-1]) not in ("[]", "()"):
            return None
        words = re.findall(r"[^\s,]+", NUMPY_NUMBER.sub(r"\1", text)[1:-1])
        try:
            rows.append([float(WORDS.get(word) or word) for word in words] if text else None)
        except ValueError:
            return None
    return pa.array(rows, pa.list_(pa.float64())) if any(rows) else None
