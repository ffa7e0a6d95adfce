"""Read one column of a chunk as numbers, lists of numbers or text, from any kind of file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fspo.base.keyed_noise import hashed

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NUMPY_NUMBER = re.compile(r"np\.(?:float|int)\d+\(([^()]*)\)")
"""Pattern of a number as numpy writes it in the text of a list: ``np.float64(-0.25)``."""


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
        import pyarrow as pa

        array = self.array
        if pa.types.is_boolean(array.type) or pa.types.is_null(array.type):
            array = array.cast(pa.float64()) if not pa.types.is_boolean(array.type) else array.cast(pa.int8())
        # Whole numbers of 2^53 and more are rounded; identifiers are read by `ids`.
        return np.asarray(array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)

    def lists(self) -> tuple[Floats, Ints]:
        """Return the numbers of all rows' lists in one array, list after list, and for each number its row. Only for
        the kind "list".
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = pc.list_parent_indices(self.array)  # type: ignore[attr-defined]
        flat = pc.list_flatten(self.array).cast(pa.float64())  # type: ignore[attr-defined]
        return (
            np.asarray(flat.to_numpy(zero_copy_only=False), np.float64),
            np.asarray(rows.to_numpy(zero_copy_only=False), np.int64),
        )

    def ids(self, part: re.Pattern[str] | None = None) -> Ints:
        """Return whole numbers (N,) that identify the values: integers of 64 bits, signed or not, by these bits, others
        by a hash of their text, or of the group of ``part`` in it.
        """
        import pyarrow as pa

        if pa.types.is_integer(self.array.type) and self.array.null_count == 0:
            kind = np.uint64 if pa.types.is_uint64(self.array.type) else np.int64
            return self.array.to_numpy(zero_copy_only=False).astype(kind).view(np.int64)
        values = self.array.dictionary_encode() if pa.types.is_string(self.array.type) else None
        texts = [_text(v) for v in (self.array if values is None else values.dictionary).to_pylist()]
        texts = [part.sub(r"\1", text) for text in texts] if part else texts
        names = np.array([_id(text) for text in texts], np.int64)
        return (
            names if values is None else np.append(names, hashed(""))[values.indices.fill_null(len(names)).to_numpy()]
        )

    def texts(self) -> list[str]:
        """Return the values as strings (N,)."""
        return [_text(value) for value in self.array.to_pylist()]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, default=str, sort_keys=True)


def _id(text: str) -> int:
    whole = int(text) if re.fullmatch(r"[1-9]\d{0,19}|0", text) else 2**64
    return hashed(text) if whole >= 2**64 else whole - 2**64 * (whole >= 2**63)


def as_values(column: pa.Array | list[Any], *, listed: bool = False) -> Values:
    """Return a column as `Values` of the kind that its values have; texts of lists in brackets (CSV) become lists, and
    with ``listed`` texts of several numbers without brackets too.
    """
    import pyarrow as pa

    if isinstance(column, list):
        key = 0 if paired(column) else "logprob"  # a token of vLLM's server is an object
        if key == 0 or _all_tokens(column, lambda token: isinstance(token, dict) and key in token):
            column = [row and [token[key] for token in row] for row in column]
        try:
            array = pa.array(column)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            return Values("text", pa.array([_text(value) for value in column]))
    else:
        array = column
    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if _is_number(kind) or pa.types.is_null(kind):
        return Values("number", array)
    if _is_list(kind) and _is_list(kind.value_type) and not isinstance(column, list):
        return as_values(array.to_pylist())
    if _is_list(kind) and pa.types.is_string(kind.value_type):
        with suppress(pa.ArrowInvalid):  # slime lists versions as texts
            return Values("list", array.cast(pa.list_(pa.float64())))
    if _is_list(kind) and (_is_number(kind.value_type) or pa.types.is_null(kind.value_type)):
        return Values("list", array)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        parsed = _lists(array, listed)
        return Values("text", array.cast(pa.string())) if parsed is None else Values("list", parsed)
    return Values("text", pa.array([_text(value) for value in array.to_pylist()], pa.string()))


def paired(column: list[Any]) -> bool:
    """Whether each token of each row is a pair of log-probability and token id, as SGLang writes them."""

    def pair(p: Any) -> bool:
        two = isinstance(p, list) and 2 <= len(p) <= 3
        return two and isinstance(p[0], (int, float)) and isinstance(p[1], int)

    return _all_tokens(column, pair)


def _all_tokens(column: list[Any], kind: Callable[[Any], bool]) -> bool:
    """Whether there are tokens, and each token of each row is of a kind; the first that is not ends the search."""
    tokens = [row for row in column if isinstance(row, list) and row]
    return bool(tokens) and all(kind(token) for row in tokens for token in row)


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return any(
        test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    )


def _lists(array: pa.Array, listed: bool) -> pa.Array | None:
    """Parse texts of lists of numbers, as JSON, Python or numpy writes them; None if one of the texts is no list."""
    import pyarrow as pa

    values = array.to_pylist()
    first = next((value for value in values if value), "")
    if not listed and not first.startswith(("[", "(")):
        return None
    try:
        return pa.array([None if not value else _list(value) for value in values], pa.list_(pa.float64()))
    except (ValueError, TypeError, pa.ArrowInvalid, pa.ArrowTypeError):
        return None


def _list(text: str) -> list[float | None]:
    text = NUMPY_NUMBER.sub(r"\1", text)
    try:
        if isinstance(found := json.loads(text), list):
            return found
    except ValueError:
        # The list is not JSON: numpy writes blanks between the numbers, Python writes None and nan.
        pass
    inside = text.strip()
    inside = inside[1:-1] if inside[:1] + inside[-1:] in ("[]", "()") else inside
    return [float("nan" if word in ("None", "null") else word) for word in re.split(r"[\s,;|]+", inside) if word]
