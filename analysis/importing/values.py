"""Read one column of a table as numbers, lists of numbers or text, from any kind of file."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fspo.base.keyed_noise import hashed

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NUMPY_NUMBER = re.compile(r"np\.(?:float|int)\d+\(([^()]*)\)")
"""Pattern of a number as numpy writes it in a text: ``np.float64(-0.25)``."""
WORDS = {"None": "nan", "null": "nan", "True": "1", "true": "1", "False": "0", "false": "0"}
"""Words that a list written as text may hold in place of numbers, and the number that each stands for."""


@dataclass(frozen=True)
class Values:
    """The N values of one column of an imported table, all of one kind: numbers, lists of numbers, or text.

    ``array`` holds them as read, except that texts of lists (from CSV) are parsed.
    """

    kind: Literal["number", "list", "text"]
    array: pa.Array

    def __len__(self) -> int:
        return len(self.array)

    def numbers(self) -> Floats:
        """Return the values as numbers (N,), NaN where null and 1 for True. Call it only if ``kind`` is "number"."""
        array = self.array.cast(pa.int8()) if pa.types.is_boolean(self.array.type) else self.array
        # Whole numbers of 2^53 and more are rounded; identifiers are read by `ids`.
        return np.asarray(array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)

    def lists(self) -> tuple[Floats, Ints]:
        """Return the numbers of all rows' lists in one array, list after list, and for each number its row. Only for
        the kind "list".
        """
        rows = pc.list_parent_indices(self.array)  # type: ignore[attr-defined]
        flat = pc.list_flatten(self.array).cast(pa.float64())  # type: ignore[attr-defined]
        return (
            np.asarray(flat.to_numpy(zero_copy_only=False), np.float64),
            np.asarray(rows.to_numpy(zero_copy_only=False), np.int64),
        )

    def below_0(self) -> bool:
        """Whether these are numbers, or lists of them, some below 0 and none above, as log-probabilities are."""
        if self.kind == "text":
            return False
        values = self.numbers() if self.kind == "number" else self.lists()[0]
        return bool(np.any(values < 0) and not np.any(values > 0))

    def ids(self, part: re.Pattern[str] | None = None) -> Ints:
        """Return whole numbers (N,) that identify the values: whole numbers of 64 bits by these bits, others by a hash
        of their text, or of the group of ``part`` in it.
        """
        coded = (pa.array(self.texts()) if self.kind == "list" else self.array).dictionary_encode()
        texts = [_text(value) for value in coded.dictionary.to_pylist()]
        names = np.array([_id(part.sub(r"\1", text) if part else text) for text in [*texts, ""]], np.int64)
        return names[coded.indices.fill_null(len(texts)).to_numpy()]

    def texts(self) -> list[str]:
        """Return the values as strings (N,)."""
        return [_text(value) for value in self.array.to_pylist()]


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
    """Return the log-probabilities of tokens that are pairs of it and a token id, as SGLang writes them, or objects, as
    vLLM's server does; any other column as it is.
    """

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
    """Parse texts of lists of numbers, as JSON, Python or numpy writes them; None if one of the texts is no list."""
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
