"""Read a log once, block by block, and collect sums for the acceptance tables, clip rates over time and notes.

Several processes, or the workers of a Dask cluster, share the log's chunks, and their sums are added at the end. A log
in memory is one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial

from analysis.log.loading import Run, warnings_of
from analysis.log.notes import Notes
from analysis.log.rows import Rows
from analysis.log.stream import Chunk
from analysis.log.workers import on_workers
from analysis.rules.evaluate import Case, evaluate, trained_case
from analysis.rules.tally import Grouping, Sums, Tally
from analysis.tables.over_time import OverTimeRow, over_time_rows
from fspo.base.processes import cores, in_processes
from fspo.stats.bins import Bins


@dataclass
class Found:
    """Results of one pass over the log: sums for the acceptance tables by epoch (`first`, `reused`), rows of the
    table over_time, and notes."""

    uses: dict[str, Sums] = field(default_factory=dict)
    over_time: list[OverTimeRow] = field(default_factory=list)
    notes: Notes = field(default_factory=Notes)

    def add(self, other: Found) -> None:
        """Append the table rows and notes from later chunks of the log; ``Tally.merge`` adds the sums in ``uses``."""
        self.over_time += other.over_time
        self.notes += other.notes


@dataclass(frozen=True)
class Pass:
    """What a pass over the log needs: run, bins, block size, tally (sums for the acceptance tables), and the rule that
    trained as a case."""

    run: Run
    bins: Bins
    size: int
    tally: Tally
    trained: Case | None

    def window(self, found: Found, tally: Tally, first: int, rows: Rows) -> None:
        """Add the rows of the block that begins with rollout ``first`` to the sums of ``tally``, and the block's rows
        of the table over_time to ``found``.
        """
        outcome = None if self.trained is None else evaluate(self.trained, rows, rows.rollout, "update")
        tally.add(first, rows, outcome)
        found.over_time += over_time_rows(self.run, self.bins, rows, outcome)

    def share(self, chunks: Sequence[Chunk], step: Callable[[], None] = lambda: None) -> Found:
        """Read some chunks of the log in this process; return their sums, rows of the table over_time and notes.

        ``step`` is called after each chunk.
        """
        found, tally = Found(), copy(self.tally)
        tally.uses = {}
        for chunk in chunks:
            windows, notes = self.run.source.windows(chunk, self.size)
            found.notes += notes
            for first, rows in windows:
                self.window(found, tally, first, rows)
            step()
        found.uses = tally.uses
        return found


def look_through(
    run: Run,
    bins: Bins,
    cases: Sequence[Case],
    size: int,
    progress: Callable[[float], None] = lambda _: None,
    workers: str | None = None,
) -> tuple[Tally, Found]:
    """Read the complete log once; return its sums for the acceptance tables (tally), and the other results with notes
    (damage, counts, warnings).

    Parameters
    ----------
    cases : sequence of Case
        The rules to evaluate, besides the one that trained.
    size : int
        Number of rollouts in a block.
    progress : callable
        Called with the share of the log that was read since the last call.
    workers : str, optional
        Number of Dask workers to start, or address of a Dask scheduler (`analysis.log.workers.on_workers`). Without
        it, and for a log in memory, processes that this one starts read the log.
    """
    trained = trained_case(run)
    tally = Tally(run, Grouping.of(run, bins), cases if trained is None else [trained, *cases])
    over = Pass(run, bins, size, tally, trained)
    chunks = run.source.chunks(size)
    shares: Iterable[Found]
    if workers is None or run.stream is None:
        number = min(cores(), len(chunks))
        parts = [chunks[i * len(chunks) // number : (i + 1) * len(chunks) // number] for i in range(number)]
        shares = in_processes([partial(over.share, part) for part in parts], lambda: progress(1 / len(chunks)))
    else:
        # Workers may run in another working directory, so they get absolute paths of the log's files. They do not get
        # ``run.rows``, the rows that were sampled from the log, because a pass over a streamed log does not use them.
        files = tuple(replace(file, path=file.path.resolve()) for file in run.stream.files)
        stream = replace(run.stream, files=files)
        over = replace(over, run=replace(run, rows=run.rows.take(slice(0)), stream=stream))
        shares = on_workers(workers, over.share, stream.chunks(size), [file.path for file in files], progress)
    found = Found()
    for share in shares:
        tally.merge(share.uses)
        found.add(share)
    found.notes += Notes(warnings=tuple(warnings_of(found.notes.counts, run.partition, run.ratio)))
    return tally, found
