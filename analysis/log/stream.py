"""Read the rows of a run, either from a log in memory, which is one chunk, or from files too large for memory.

A large log is read in chunks. A chunk is a few successive blocks of rollouts, and no block is split, so all rows of a
block, of a cluster and of a minibatch are in one chunk. Results that need the rows of all blocks at the same time are
made from a sample of rollouts. Beside the current chunk, a :class:`Stream` holds only the files' footers and the list
of rollouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.log.notes import Notes
from analysis.log.partition import Partition
from analysis.log.ratio import UPDATE, LoggedRatio
from analysis.log.rows import Ints, Rows, windows
from analysis.log.usable import Recompute, columns_of, nothing, usable
from fspo.base.errors import UserError
from fspo.gradlog import GradLog, read_files
from fspo.gradlog.files import LogFile

CHUNK = 200_000
"""Approximate number of rows in a chunk of the log. A chunk is larger where one block has more rows."""
SAMPLE = 200_000
"""About how many rows are sampled, as complete rollouts, for results that need all rows at the same time."""
LAST = int(np.iinfo(np.int64).max)
"""Greatest possible number of a rollout."""
UNUSED = ("reward", "rule")
"""Columns that sums over blocks do not need. `Stream.windows` reads them only if the partition needs them."""


@dataclass(frozen=True)
class Chunk:
    """The successive rollouts ``first`` to ``last`` of the log, and ``parts``: the files that hold them, each with the
    numbers of its row groups (parts of a Parquet file) to read."""

    first: int
    last: int
    parts: tuple[tuple[LogFile, tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class InMemory:
    """A log that is held in memory. Its methods ``chunks`` and ``windows`` are used like those of a :class:`Stream`.

    Attributes
    ----------
    rows : Rows
        The log's rows that can be analysed.
    counts : mapping of str to int
        Numbers of the log's rows that can be analysed, and of those left out for each reason, by the names of the
        counts in ``summary.json``.
    """

    rows: Rows
    counts: Mapping[str, int]

    def chunks(self, size: int) -> list[Chunk]:
        """Return one chunk that holds the complete log, whatever the number ``size`` of rollouts in a block."""
        del size
        return [Chunk(0, LAST)]

    def windows(self, chunk: Chunk, size: int) -> tuple[list[tuple[int, Rows]], Notes]:
        """Return the first rollout and the rows of each block of ``size`` rollouts of the complete log, whatever
        ``chunk`` is; and notes with the log's ``counts``: how many of its rows can be analysed, and how many were left
        out for each reason."""
        del chunk
        return list(split(self.rows, windows(self.rows.rollout, size))), Notes(counts=self.counts)


@dataclass(frozen=True)
class Stream:
    """The files of a run whose log is too large for memory.

    Attributes
    ----------
    rollouts : int array (R,)
        Numbers of the log's rollouts, increasing.
    rows : array (R,)
        Approximate number of rows in each rollout.
    spread : float, optional
        Standard deviation of the partition's coordinate, the unit of slopes; None until `sample` was read.
    """

    files: tuple[LogFile, ...]
    partition: Partition
    rollouts: Ints
    rows: np.ndarray
    spread: float | None = None
    ratio: LoggedRatio = UPDATE
    recomputed: Recompute = nothing

    @staticmethod
    def of(
        files: Sequence[LogFile], partition: Partition, ratio: LoggedRatio = UPDATE, recomputed: Recompute = nothing
    ) -> Stream:
        """Make the stream of a log's files for an analysis of one log-ratio and partition; ``recomputed`` compares the
        logged columns of rows that are read with recomputed ones, and counts those that differ.

        The footers of the files say which rollouts the log holds. Where a row group of a Parquet file holds several
        rollouts, the column ``rollout`` is read instead."""
        rows: dict[int, float] = {}
        for file in files:
            for number, group in enumerate(file.groups):
                inside = [group.first]
                if group.first != group.last and "rollout" in file.columns:
                    try:
                        column = read_files([(file, (number,))], ["rollout"], None).column("rollout")
                    except UserError:  # skip a damaged row group: `windows` reports it on reading its chunk
                        continue
                    inside = np.unique(column).tolist()
                for rollout in inside:
                    rows[int(rollout)] = rows.get(int(rollout), 0.0) + group.rows / len(inside)
        numbers = sorted(rows)
        counts = np.array([rows[n] for n in numbers])
        return Stream(tuple(files), partition, np.array(numbers), counts, ratio=ratio, recomputed=recomputed)

    def chunks(self, size: int) -> list[Chunk]:
        """Return the log's chunks in order; each is made of blocks of ``size`` rollouts, none of them split.

        A chunk ends just before the first rollout of the next chunk; the last has no end. So every row group of the
        files belongs to a chunk. This holds even for a damaged row group whose rollouts are not listed in ``rollouts``:
        its chunk is read, so the damage is reported."""
        found: list[Chunk] = []
        start, held = 0, 0.0
        for stop in range(size, len(self.rollouts) + size, size):
            held += float(self.rows[stop - size : stop].sum())
            if held >= CHUNK or stop >= len(self.rollouts):
                last = int(self.rollouts[stop]) - 1 if stop < len(self.rollouts) else LAST
                found.append(self._chunk(int(self.rollouts[start]) if start else 0, last))
                start, held = stop, 0.0
        return found

    @property
    def _columns(self) -> tuple[str, ...]:
        return columns_of(self.partition, self.ratio)

    def _chunk(self, first: int, last: int) -> Chunk:
        parts = []
        for file in self.files:
            groups = tuple(i for i, g in enumerate(file.groups) if g.first <= last and g.last >= first)
            if groups:
                parts.append((file, groups))
        return Chunk(first, last, tuple(parts))

    def read(self, chunk: Chunk, columns: Sequence[str], phases: Sequence[str] | None = ("train",)) -> GradLog:
        """Read ``columns`` of the chunk's rows in the given ``phases`` (such as train), or in any phase if None."""
        log = read_files(chunk.parts, columns, phases)
        if any(
            file.groups[g].first < chunk.first or file.groups[g].last > chunk.last
            for file, gs in chunk.parts
            for g in gs
        ):
            rollout = log.column("rollout")
            log = log.where((rollout >= chunk.first) & (rollout <= chunk.last))
        return log

    def windows(self, chunk: Chunk, size: int) -> tuple[list[tuple[int, Rows]], Notes]:
        """Return the first rollout and the usable rows of each block of ``size`` rollouts of a chunk. The notes count
        the rows that are usable or left out, and name damaged files."""
        columns = [c for c in self._columns if c not in UNUSED or c == self.partition.column]
        try:
            log = self.read(chunk, columns)
        except UserError as error:
            return [], Notes(damage=(str(error),))
        rows, counts = usable(log, self.partition, self.spread, self.ratio, self.recomputed)
        inside = self.rollouts[(self.rollouts >= chunk.first) & (self.rollouts <= chunk.last)]
        found = list(split(rows, inside[(np.searchsorted(inside, rows.rollout) // size) * size]))
        return found, Notes(damage=tuple(log.damage), counts=counts)

    def sample(self) -> tuple[GradLog, int]:
        """Read about 200,000 rows of evenly spaced complete rollouts; return them and the number of these rollouts."""
        share = min(SAMPLE / max(float(self.rows.sum()), 1.0), 1.0)
        number = min(max(round(share * len(self.rollouts)), 1), len(self.rollouts))
        chosen = self.rollouts[((np.arange(number) + 0.5) * len(self.rollouts) / number).astype(np.int64)]
        logs: list[GradLog] = []
        for rollout in chosen.tolist():
            try:
                logs.append(self.read(self._chunk(rollout, rollout), self._columns))
            except UserError:  # not reported here: `windows` meets and reports the same damage
                continue
        if not logs:
            raise UserError(
                f"{self.files[0].path.parent}: none of {number} rollouts drawn from the log can be read: copy "
                "the log again, or remove its damaged files"
            )
        return GradLog.joined(logs), number


def split(rows: Rows, window: Ints) -> Iterator[tuple[int, Rows]]:
    """Yield each block's first rollout and rows, in order; ``window`` (N,) is the first rollout of a row's block."""
    if np.any(window[1:] < window[:-1]):
        order = np.argsort(window, kind="stable")
        rows, window = rows.take(order), window[order]
    starts = np.flatnonzero(np.diff(window, prepend=window[:1] - 1))
    for start, stop in zip(starts, [*starts[1:], len(window)], strict=True):
        yield int(window[start]), rows.take(slice(int(start), int(stop)))
