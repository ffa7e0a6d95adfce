"""The coordinate that divides responses into bins: their length, or another number that the log has for each response.

The theory speaks of lengths, but its statements about strata (T7, T8, the LRE) hold for any partition that does not
depend on what the clipping does. Another partition changes only the bins: a rule still clips by S and L.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fspo.base.errors import UserError, unknown_name
from fspo.gradlog import GradLog
from fspo.gradlog.schema import USER_PREFIX

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
MAX_CATEGORIES = 24
"""Largest number of different texts in a column that can serve as bins. A column with more texts is refused, because
its texts are probably names and not categories."""


@dataclass(frozen=True)
class Partition:
    """A way to put responses into bins: a coordinate, and the log's columns that the coordinate is computed from.

    Attributes
    ----------
    name : str
        Name on the command line (``--by``).
    label : str
        Text for a figure's axis, with the unit.
    column : str
        Column of the log that holds the coordinate, or from which it is computed.
    also : tuple of str
        Further columns that the coordinate is computed from.
    logarithmic : bool
        True if a trend is the change for each doubling of the coordinate, False if for each standard deviation.
    categories : tuple of str
        The texts of a text column, in order. The coordinate is the position of a row's text in this tuple.
    """

    name: str
    label: str
    column: str
    logarithmic: bool = False
    also: tuple[str, ...] = ()
    categories: tuple[str, ...] = field(default=(), compare=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the log that the coordinate is computed from."""
        return (self.column, *self.also)

    @property
    def slug(self) -> str:
        """The partition's name with underscores for dots, fit for names of files and folders."""
        return self.name.replace(".", "_")

    def trend_coordinate(self, values: Floats, spread: float | None = None) -> Floats:
        """Return the positions (N,) of the coordinates ``values`` on the axis of a trend.

        The position is log2 of the coordinate if ``logarithmic``, else the coordinate over its standard deviation. If
        ``values`` are only a part of the log, pass the standard deviation in the complete log as ``spread``.
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
        Partition(
            "staleness",
            "updates from the sampling to the old weights",
            "behaviour_version",
            also=("policy_version", "updates_since_rollout"),
        ),
    )
}


def find_partition(name: str) -> Partition:
    """Return the partition with this name; ``user.X`` is a partition by the log's column ``user.X``.

    Raises
    ------
    UserError
        If no partition has this name.
    """
    if name.startswith(USER_PREFIX) and len(name) > len(USER_PREFIX):
        return Partition(name, name.removeprefix(USER_PREFIX), name)
    if name == "position":
        raise UserError(
            "--by divides responses, and position divides their tokens: read positions.csv, which fspo analyse writes "
            "for a log with token log-ratios (--log.tokens true)"
        )
    if name not in PARTITIONS:
        raise unknown_name("partition", name, [*PARTITIONS, f"{USER_PREFIX}COLUMN"])
    return PARTITIONS[name]


def coordinates(
    log: GradLog, partition: Partition, cluster: np.ndarray, categories: Sequence[str] = ()
) -> tuple[Floats, tuple[str, ...]]:
    """Return each row's coordinate (N,), and the texts (categories) of a text column; () for a column of numbers.

    The coordinate is NaN where a column of floating-point numbers has no value. In a text column, the empty text is a
    category like any other.

    Parameters
    ----------
    cluster : int array (N,)
        Number of each row's cluster (rollout, prompt), without gaps. The partition ``difficulty`` needs it, because its
        coordinate is the mean reward over a cluster.
    categories : sequence of str
        Categories of the complete log, where ``log`` is only a part of it and the column holds text.

    Raises
    ------
    UserError
        If the log lacks the column, or the column holds too many different texts to be bins.
    """
    for column in partition.columns:
        if column not in log:
            raise UserError(f"--by {partition.name}: the log has no column {column!r}: log it, or choose another --by")
    values = log.column(partition.column)
    if partition.name == "staleness":
        # Staleness is the number of updates from the weights that sampled the response to the old weights. Before this
        # row, policy_version updates were made. Of these, ``updates`` came after the old weights, and ``sampled``
        # (behaviour_version) came before the weights that sampled the response.
        sampled, now, updates = (log.column(name).astype(np.float64) for name in partition.columns)
        known = log.table[partition.column].is_valid().to_numpy()
        return np.where(known, now - updates - sampled, np.nan), ()
    if values.dtype == object or values.dtype.kind in "US":
        import pandas as pd  # imported here, because --help loads this module and should not wait for pandas

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
        # All responses to a prompt have the same number of rows (one for each use), so the mean over rows is the mean
        # over responses.
        known = np.isfinite(numbers)
        count = np.bincount(cluster, known)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.bincount(cluster, np.where(known, numbers, 0.0)) / count
        return mean[cluster], ()
    return numbers, ()
