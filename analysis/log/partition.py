"""What responses are binned by: length, or any other number that a log has for each response.

The theory speaks of lengths, and its statements about strata (T7, T8, the reweighting error) hold for any partition
that does not depend on what the clipping does. Rules still see S and L; only the strata change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from fspo.base.errors import UserError, unknown_name
from fspo.gradlog import GradLog
from fspo.gradlog.schema import USER_PREFIX

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
MAX_CATEGORIES = 24
"""A column of text with more values than this is a name, not a partition."""


@dataclass(frozen=True)
class Partition:
    """A coordinate of responses.

    Attributes
    ----------
    name : str
        As on the command line.
    label : str
        For an axis, with the unit.
    column : str
        Column of the log that it needs.
    logarithmic : bool
        Whether trends are in doublings rather than in standard deviations.
    categories : tuple of str
        Of a column of text: the coordinate is the place of its value here.
    """

    name: str
    label: str
    column: str
    logarithmic: bool = False
    categories: tuple[str, ...] = field(default=(), compare=False)

    @property
    def slug(self) -> str:
        """Name without the dot of user columns, for names of files and folders."""
        return self.name.replace(".", "_")

    def trend_coordinate(self, values: Floats, spread: float | None = None) -> Floats:
        """Abscissa of a trend: log2 of the coordinate, or the coordinate over its standard deviation.

        ``spread`` is that deviation, where ``values`` (N,) are a part of the whole.
        """
        if self.logarithmic:
            return np.log2(values)
        spread = float(np.std(values)) if spread is None else spread
        return values / spread if spread > 0 else values


LENGTH = Partition("length", "response length $L$ (tokens)", "length", logarithmic=True)
PARTITIONS = {
    p.name: p
    for p in (
        LENGTH,
        Partition("difficulty", "mean reward of the prompt's responses", "reward"),
        Partition("entropy", "mean entropy of the policy (nats)", "entropy"),
        Partition("reward", "reward of the response", "reward"),
        Partition("time", "rollout", "rollout"),
    )
}


def find_partition(name: str) -> Partition:
    """A partition by name; ``user.X`` is the log's own column X.

    Raises
    ------
    UserError
        For an unknown name.
    """
    if name.startswith(USER_PREFIX) and len(name) > len(USER_PREFIX):
        return Partition(name, name.removeprefix(USER_PREFIX), name)
    if name not in PARTITIONS:
        raise unknown_name("partition", name, [*PARTITIONS, f"{USER_PREFIX}COLUMN"])
    return PARTITIONS[name]


def coordinates(
    log: GradLog, partition: Partition, cluster: np.ndarray, categories: Sequence[str] = ()
) -> tuple[Floats, tuple[str, ...]]:
    """Each row's coordinate (N,), NaN where it has none, and the categories of a column of text.

    Parameters
    ----------
    cluster : int array (N,)
        (rollout, prompt) of each row, numbered densely: what ``difficulty`` averages over.
    categories : sequence of str
        Of a column of text, where ``log`` is a part of the whole.

    Raises
    ------
    UserError
        If the log does not have the column, or the column is no partition.
    """
    if partition.column not in log:
        raise UserError(
            f"--by {partition.name}: the log has no column {partition.column!r}: log it, or choose another --by"
        )
    values = log.column(partition.column)
    if values.dtype == object or values.dtype.kind in "US":
        texts = pd.Series(values).astype(str)
        names = list(categories) or sorted(texts.unique())
        if len(names) > MAX_CATEGORIES:
            raise UserError(
                f"--by {partition.name}: {len(names)} different texts, of which at most "
                f"{MAX_CATEGORIES} can be bins: choose another column"
            )
        return texts.map({name: i for i, name in enumerate(names)}).to_numpy(np.float64), tuple(names)
    numbers = values.astype(np.float64)
    if partition.name == "difficulty":
        # a row is one response and update: each of a prompt's responses is used equally often
        known = np.isfinite(numbers)
        count = np.bincount(cluster, known)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.bincount(cluster, np.where(known, numbers, 0.0)) / count
        return mean[cluster], ()
    return numbers, ()
