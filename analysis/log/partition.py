"""The coordinate that divides responses into bins: their length, or another number that the log has for each response.

The theory speaks of lengths, but its statements about strata (T7, T8, the LRE) hold for any partition that does not
depend on what the clipping does. Another partition changes only the bins: a rule still clips by S and L."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fspo.base.errors import UserError, unknown_name
from fspo.gradlog import GradLog
from fspo.gradlog.schema import LOG_COLUMNS, USER_PREFIX

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
NUMERIC = tuple(name for name, column in LOG_COLUMNS.items() if column.kind not in ("string", "list"))
"""The columns of the log that hold one number for each response; so may a user's own columns."""
GONE = {
    "difficulty": "log the number as a column of your own and give --by user.COLUMN",
    "staleness": "log the number as a column of your own and give --by user.COLUMN",
    "position": "no table divides tokens",
    "time": "give --by rollout",
}
"""Names that --by took in older versions, with what replaces each."""


@dataclass(frozen=True)
class Partition:
    """A way to put responses into bins: by the numbers in a column of the log.

    Attributes
    ----------
    column : str
        Column of the log, as it is named on the command line (``--by``).
    label : str
        Text for a figure's axis, with the unit.
    """

    column: str
    label: str

    @property
    def slug(self) -> str:
        """The partition's name as part of names of files and folders: with underscores for dots."""
        return self.column.replace(".", "_")

    def trend_coordinate(self, values: Floats, spread: float | None = None) -> Floats:
        """Return the positions (N,) of the coordinates ``values`` on the axis over which slopes are fitted.

        The position is log2 of a length, and any other coordinate over its standard deviation. If ``values`` are only a
        part of the log, pass the standard deviation in the complete log as ``spread``."""
        if self == LENGTH:
            return np.log2(values)
        spread = float(np.nanstd(values)) if spread is None else spread
        return values / spread if spread > 0 else values


LENGTH = Partition("length", "response length $L$ (tokens)")


def find_partition(name: str) -> Partition:
    """Return the partition by the log's column ``name``, which may be a user's own (``user.X``).

    Raise UserError if no column that holds numbers has this name."""
    if name == LENGTH.column:
        return LENGTH
    if name.startswith(USER_PREFIX) and len(name) > len(USER_PREFIX):
        return Partition(name, name.removeprefix(USER_PREFIX))
    if name in GONE:
        raise UserError(f"--by {name} is gone, because bins are of a column of the log: {GONE[name]}")
    if name not in NUMERIC:
        raise unknown_name("column of numbers", name, [*NUMERIC, f"{USER_PREFIX}COLUMN"])
    return Partition(name, f"{name} ({LOG_COLUMNS[name].unit})")


def coordinates(log: GradLog, partition: Partition) -> Floats:
    """Return for each row (N,) of the log the coordinate by which ``partition`` bins it, NaN where the log has none.

    Raise UserError if the log lacks the column, or the column holds text."""
    name = partition.column
    if name not in log:
        raise UserError(f"--by {name}: the log has no column {name!r}: log it, or choose another --by")
    values = log.column(name)
    if values.dtype == object or values.dtype.kind in "US":
        raise UserError(f"--by {name}: the column holds text, and bins are of numbers: choose another column")
    known = log.table[name].is_valid().to_numpy()
    return np.where(known, values.astype(np.float64), np.nan)
