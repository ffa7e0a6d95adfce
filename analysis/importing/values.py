"""Read one column of a chunk as numbers, lists of numbers or text, from any kind of file."""

from __future__ import annotations

import json
import re
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

    Attributes
    ----------
    kind : {"number", "list", "text"}
    array : pyarrow.Array
        The values as read, except that texts of lists (from CSV) are parsed.
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
        return np.asarray(array.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)

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

    def ids(self) -> Ints:
        """Return whole numbers (N,) that identify the values: integers unchanged, others by a hash of their text."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_integer(self.array.type) and self.array.null_count == 0:
            return np.asarray(self.array.cast(pa.int64()).to_numpy(zero_copy_only=False), np.int64)
        texts = (
            self.array if pa.types.is_string(self.array.type) else pa.array([_text(v) for v in self.array.to_pylist()])
        )
        coded = pc.fill_null(texts, "").dictionary_encode()
        names = np.array([hashed(name) for name in coded.dictionary.to_pylist()], np.int64)
        return names[coded.indices.to_numpy(zero_copy_only=False)]

    def texts(self) -> list[str]:
        """Return the values as strings (N,)."""
        return [_text(value) for value in self.array.to_pylist()]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, default=str, sort_keys=True)


def as_values(column: pa.Array | list[Any], *, listed: bool = False) -> Values:
    """Return a column as `Values` of the kind that its values have; texts of lists in brackets (CSV) become lists.

    Parameters
    ----------
    listed : bool
        Whether texts of several numbers without brackets become lists too.
    """
    import pyarrow as pa

    if isinstance(column, list):
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
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return Values("number", array)
    if _is_list(kind) and (_is_number(kind.value_type) or pa.types.is_null(kind.value_type)):
        return Values("list", array)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        parsed = _lists(array, listed)
        return Values("text", array.cast(pa.string())) if parsed is None else Values("list", parsed)
    return Values("text", pa.array([_text(value) for value in array.to_pylist()], pa.string()))


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


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
