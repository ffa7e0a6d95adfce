"""Read columns of an imported table, from any kind of file, as numbers, lists or text; tell which tokens count."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.importing.names import CUT
from fspo.base.errors import UserError
from fspo.base.keyed_noise import hashed
from fspo.stats.clusters import Floats, Ints, Mask

Ids = dict[str, int | float | str]
"""The number of a row in its table, from 1, and its ids in the table's own names: {"row": 20, "idx": 19, "step": 7}."""
TOKENS = ("log_ratio", "new", "old", "sampler")
"""Columns, by this project's names, in which a table may hold a list with one number for each token of a response."""
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

    def __len__(self) -> int:
        return len(self.array)

    def numbers(self) -> Floats:
        """Return the values as numbers (N,), NaN where null and 1 for True. Call it only if ``kind`` is "number"."""
        return _floats(self.array)

    def lists(self) -> tuple[Floats, Ints]:
        """Return the numbers of all lists in one array, list after list, and the row of each. Only for kind "list"."""
        rows = pc.list_parent_indices(self.array)  # type: ignore[attr-defined]
        return _floats(pc.list_flatten(self.array)), np.asarray(rows, np.int64)  # type: ignore[attr-defined]

    def below_0(self) -> bool:
        """Whether these are numbers, or lists of them, some below 0 and none above, as log-probabilities are."""
        if self.kind == "text":
            return False
        values = self.numbers() if self.kind == "number" else self.lists()[0]
        return bool(np.any(values < 0) and not np.any(values > 0))

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


class ChunkColumns(NamedTuple):
    """Columns of one chunk, N rows of the table in the file ``path`` that follow ``before`` other rows.

    ``values`` holds, by this project's names, the columns that have one, and ``chosen`` the table's name of each;
    ``chunk`` holds all columns, by the table's names."""

    values: Chunk
    chosen: Mapping[str, str]
    path: Path
    chunk: Chunk
    before: int

    def ids(self, i: int) -> Ids:
        """Return, by name, the number in the whole table, from 1, of this chunk's row ``i``, and its columns of ids."""
        found: Ids = {"row": self.before + i + 1}
        for name, column in self.chunk.items():
            if _ID.search(name.lower()) and isinstance(value := column.array[i].as_py(), int | str | float):
                found[name] = value
        return found

    def is_list(self, name: str) -> bool:
        """Return whether the table's chunk has the column ``name`` and it holds a list in each row."""
        return name in self.values and self.values[name].kind == "list"

    def numbers(self, name: str) -> Floats:
        """Return the column ``name`` as numbers (N,). Raise UserError if it holds no numbers."""
        found = self.values[name]
        if found.kind != "number":
            example = found.array[0].as_py() if len(found) else None
            raise UserError(
                f"{self.path}: column {self.chosen[name]!r} is read as {name} and must hold numbers, not "
                f"{str(example)[:40]!r}; rename it, or name the right one with --columns {name}=COLUMN"
            )
        return found.numbers()

    def truncated(self) -> Floats:
        """Return 1 for each response (N,) that the token limit cut off and 0 for others; NaN where a flag is null."""
        if (found := self.values["truncated"]).kind != "text":
            return self.numbers("truncated")
        return np.array([float(bool(CUT.fullmatch(text))) for text in found.texts()])

    def padding(self, names: Collection[str]) -> Mask:
        """Return a mask of the tokens in the lists ``names`` that are padding: those at the end of a list that are 0 in
        all of the columns, if at least a tenth of the rows end in two such tokens or more."""
        flat, row = zip(*(self.values[name].lists() for name in names), strict=True)
        zero, row = np.all(np.equal(flat, 0), axis=0), row[0]
        if not len(row):
            return zero
        ends = np.append(np.flatnonzero(np.diff(row)), len(row) - 1)  # the last token of each list
        last = np.maximum.accumulate(np.where(zero, -1, np.arange(len(row))))[ends]  # the last one that is not 0
        begins = np.maximum(last, np.append(-1, ends[:-1])) + 1
        if np.mean(ends - begins >= 1) < 0.1:
            return np.zeros(len(row), bool)
        return np.arange(len(row)) >= begins[np.searchsorted(ends, np.arange(len(row)))]

    def lists(self, name: str, like: str) -> tuple[Floats, Ints]:
        """Return the numbers in the lists of the column ``name``, one after the other, and the row of each; raise
        UserError if its lists are not as long as those of the column ``like``."""
        flat, row = self.values[name].lists()
        if name != like and not np.array_equal(row, self.values[like].lists()[1]):
            raise UserError(
                f"{self.path}: columns {self.chosen[like]!r} and {self.chosen[name]!r} differ in tokens in some row; "
                "both must hold one number for each response token"
            )
        return flat, row

    def kept(self, name: str) -> tuple[Floats, Ints]:
        """Return the numbers in the lists of the column ``name`` at tokens that count, and the row of each."""
        (flat, row), keep = self.values[name].lists(), self.mask(name)
        return flat[keep], row[keep]

    def folded(self, name: str) -> Floats:
        """Return one number for each row (N,) of the column ``name``: its number or, of a list, the sum for rewards,
        else the mean over the tokens that count."""
        if not self.is_list(name):
            return self.numbers(name)
        flat, row = self.values[name].lists() if name == "reward" else self.kept(name)
        n = len(self.values[name])
        count = np.bincount(row, minlength=n) if name != "reward" else np.ones(n)
        return np.bincount(row, flat, n) / np.maximum(count, 1)

    def mask(self, like: str) -> Mask:
        """Return, end to end, whether each token of the column ``like``'s lists counts; all do without a mask."""
        if self.is_list("mask"):
            return self.lists("mask", like)[0] > 0
        if "mask" in self.values:
            self.numbers("mask")  # refuses text, in which nothing tells which tokens count
        return np.ones(len(self.values[like].lists()[0]), bool)

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
        return np.arange(len(row)) - (np.cumsum(count) - count)[row] < length[row]


def _floats(array: pa.Array) -> Floats:
    """Return numbers, NaN where null. Whole numbers of 2^53 and more are rounded; identifiers are read by `ids`."""
    return np.asarray(array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)


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
            return Values("text", pa.array([_text(value) for value in column]))
    else:
        array = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    kind = array.type
    if _is_number(kind):
        return Values("number", array)
    if _is_list(kind):
        if pa.types.is_nested(kind.value_type) and not isinstance(column, list):
            return as_values(array.to_pylist())
        if _is_number(kind.value_type):
            return Values("list", array)
        if pa.types.is_string(kind.value_type):
            with suppress(pa.ArrowInvalid):  # slime lists versions as texts
                return Values("list", array.cast(pa.list_(pa.float64())))
    texts = pa.array([_text(value) for value in array.to_pylist()], pa.string())
    parsed = _lists(texts)
    return Values("text", texts) if parsed is None else Values("list", parsed)


def unpacked(column: list[Any]) -> list[Any]:
    """Return a column of lists as lists of log-probabilities: where tokens are pairs of a log-probability and a token
    id, as SGLang writes them, or objects, as vLLM's server does, the log-probabilities are taken out; any other column
    is unchanged."""

    def number(token: Any) -> float:
        if isinstance(token, dict):
            return token["logprob"]
        value, token_id = token[:2]
        if len(token) > 3 or not isinstance(value, (int, float)) or not isinstance(token_id, int):
            raise TypeError
        return value

    try:
        return [row and [number(token) for token in row] for row in column]
    except (KeyError, TypeError, ValueError):
        return column


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _is_number(kind: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    return any(test(kind) for test in kinds)


def _lists(texts: pa.Array) -> pa.Array | None:
    """Parse lists of numbers that JSON, Python or numpy wrote as text; None if a text is no list, or all are empty."""
    rows: list[list[float] | None] = []
    for text in map(str, texts.to_pylist()):
        if text and (text[0] + text[-1]) not in ("[]", "()"):
            return None
        words = re.findall(r"[^\s,]+", NUMPY_NUMBER.sub(r"\1", text)[1:-1])
        try:
            rows.append([float(WORDS.get(word) or word) for word in words] if text else None)
        except ValueError:
            return None
    return pa.array(rows, pa.list_(pa.float64())) if any(rows) else None
