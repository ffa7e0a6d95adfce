"""Where the rows of a run come from: a log in memory, which is one chunk, or one that is too large for memory.

A large log is read in chunks of whole windows, and what needs all rows together is made of a sample of whole rollouts.
A chunk is a few successive windows, so that calibration, clusters and minibatches are whole in it. Nothing else of the
log is held but its files' footers and the numbers of its rollouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.log.notes import Notes
from analysis.log.partition import Partition
from analysis.log.rows import Ints, Learnt, Rows, windows
from analysis.log.usable import LEARNT, ROW_COLUMNS, Scale, learnt, usable
from fspo.base.errors import UserError
from fspo.gradlog import GradLog, read_files
from fspo.gradlog.files import LogFile

CHUNK = 200_000
"""Rows that are read at once, where windows are not larger."""
SAMPLE = 200_000
"""Rows of whole rollouts for what needs all rows together."""
UNUSED = ("reward", "rule")
"""Columns that sums by window do without."""


@dataclass(frozen=True)
class Chunk:
    """Successive rollouts first..last of the log, and the parts of files that hold them."""

    first: int
    last: int
    parts: tuple[tuple[LogFile, tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class InMemory:
    """A log that was read whole: its usable rows, and how many rows of each kind it has."""

    rows: Rows
    counts: Mapping[str, int]

    def chunks(self, size: int) -> list[Chunk]:
        """The whole log, whatever the number ``size`` of rollouts in a window."""
        del size
        return [Chunk(0, np.iinfo(np.int64).max)]  # every rollout

    def windows(self, chunk: Chunk, size: int) -> tuple[list[tuple[int, Rows]], Notes]:
        """As :meth:`Stream.windows`."""
        del chunk
        return list(split(self.rows, windows(self.rows.rollout, size))), Notes(counts=self.counts)


@dataclass(frozen=True)
class Stream:
    """The files of one run.

    Attributes
    ----------
    rollouts : int array
        Their numbers, increasing.
    rows : array
        About how many rows each has.
    """

    files: tuple[LogFile, ...]
    partition: Partition
    rollouts: Ints
    rows: np.ndarray
    scale: Scale | None = None

    @staticmethod
    def of(files: Sequence[LogFile], partition: Partition) -> Stream:
        """Rollouts from the files' statistics; where a row group holds several, from its column."""
        rows: dict[int, float] = {}
        for file in files:
            for number, group in enumerate(file.groups):
                inside = [group.first]
                if group.first != group.last and "rollout" in file.columns:
                    try:
                        column = read_files([(file, (number,))], ["rollout"], None).column("rollout")
                    except UserError:  # counted when its rows are asked for
                        continue
                    inside = np.unique(column).tolist()
                for rollout in inside:
                    rows[int(rollout)] = rows.get(int(rollout), 0.0) + group.rows / len(inside)
        numbers = sorted(rows)
        return Stream(tuple(files), partition, np.array(numbers), np.array([rows[n] for n in numbers]))

    def chunks(self, size: int) -> list[Chunk]:
        """The log in order; each chunk is whole windows of ``size`` rollouts."""
        found: list[Chunk] = []
        start, held = 0, 0.0
        for stop in range(size, len(self.rollouts) + size, size):
            held += float(self.rows[stop - size : stop].sum())
            if held >= CHUNK or stop >= len(self.rollouts):
                last = min(stop, len(self.rollouts)) - 1
                found.append(self._chunk(int(self.rollouts[start]), int(self.rollouts[last])))
                start, held = stop, 0.0
        return found

    def _chunk(self, first: int, last: int) -> Chunk:
        parts = []
        for file in self.files:
            groups = tuple(i for i, g in enumerate(file.groups) if g.first <= last and g.last >= first)
            if groups:
                parts.append((file, groups))
        return Chunk(first, last, tuple(parts))

    def read(self, chunk: Chunk, columns: Sequence[str]) -> GradLog:
        """The chunk's rows of the phase train."""
        log = read_files(chunk.parts, columns, ("train",))
        if any(
            file.groups[g].first < chunk.first or file.groups[g].last > chunk.last
            for file, gs in chunk.parts
            for g in gs
        ):
            rollout = log.column("rollout")
            log = log.where((rollout >= chunk.first) & (rollout <= chunk.last))
        return log

    def windows(self, chunk: Chunk, size: int) -> tuple[list[tuple[int, Rows]], Notes]:
        """Usable rows of each window of a chunk with the window's first rollout; counts of all rows, and damage."""
        columns = [c for c in dict.fromkeys([*ROW_COLUMNS, self.partition.column]) if c not in UNUSED]
        columns += [self.partition.column] if self.partition.column in UNUSED else []
        try:
            log = self.read(chunk, columns)
        except UserError as error:
            return [], Notes(damage=(str(error),))
        rows, counts = usable(log, self.partition, self.scale)
        inside = self.rollouts[(self.rollouts >= chunk.first) & (self.rollouts <= chunk.last)]
        found = list(split(rows, inside[(np.searchsorted(inside, rows.rollout) // size) * size]))
        return found, Notes(damage=tuple(log.damage), counts=counts)

    def learnt(self, chunk: Chunk) -> Learnt:
        """What a rule that follows a target is shown of a chunk; nothing where it cannot be read."""
        try:
            log = self.read(chunk, [*dict.fromkeys([*LEARNT, self.partition.column])])
        except UserError:  # counted in the pass over the whole log
            none, nothing = np.zeros(0, np.int64), np.zeros(0)
            return Learnt(none, none, nothing, nothing, nothing)
        return learnt(log, self.partition, self.scale)

    def sample(self) -> tuple[GradLog, int]:
        """About ``SAMPLE`` rows, of evenly spaced whole rollouts, and the number of these rollouts."""
        share = min(SAMPLE / max(float(self.rows.sum()), 1.0), 1.0)
        number = min(max(round(share * len(self.rollouts)), 1), len(self.rollouts))
        chosen = self.rollouts[((np.arange(number) + 0.5) * len(self.rollouts) / number).astype(np.int64)]
        logs: list[GradLog] = []
        for rollout in chosen.tolist():
            try:
                logs.append(self.read(self._chunk(rollout, rollout), [*ROW_COLUMNS, self.partition.column]))
            except UserError:  # counted in the pass over the whole log
                continue
        if not logs:
            raise UserError(
                f"{self.files[0].path.parent}: none of {number} rollouts drawn from the log can be read: copy "
                "the log again, or remove its damaged files"
            )
        return GradLog.joined(logs), number

    def categories(self) -> tuple[str, ...]:
        """Distinct values of the partition's column, where it holds text."""
        seen: set[str] = set()
        for file in self.files:
            try:
                values = read_files([(file, None)], [self.partition.column], ("train",)).column(self.partition.column)
            except UserError:
                continue
            seen |= set(np.unique(values.astype(str)).tolist())
        return tuple(sorted(seen))


def split(rows: Rows, window: Ints) -> Iterator[tuple[int, Rows]]:
    """The rows of each window, increasing; ``window`` (N,) is the first rollout of each row's."""
    if np.any(window[1:] < window[:-1]):
        order = np.argsort(window, kind="stable")
        rows, window = rows.take(order), window[order]
    starts = np.flatnonzero(np.diff(window, prepend=window[:1] - 1))
    for start, stop in zip(starts, [*starts[1:], len(window)], strict=True):
        yield int(window[start]), rows.take(slice(int(start), int(stop)))
