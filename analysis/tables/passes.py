"""The one pass over the windows of a log: sums for the acceptance tables, clip rates over time, checks and counts.

Several processes each take their share of the log's chunks (a log in memory is one), and their sums are then added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from analysis.log.loading import Run, warnings_of
from analysis.log.notes import Notes
from analysis.log.rows import Rows
from analysis.log.stream import Chunk
from analysis.rules.evaluate import Case, evaluate, trained_case
from analysis.rules.layout import Layout
from analysis.rules.tally import Sums, Tally
from analysis.tables.over_time import OverTimeRow, over_time_rows
from analysis.tables.summary import SideCheck
from fspo.base.processes import cores, in_processes
from fspo.stats.bins import Bins


@dataclass
class Found:
    """What the pass collects."""

    uses: dict[str, Sums] = field(default_factory=dict)
    over_time: list[OverTimeRow] = field(default_factory=list)
    sides: SideCheck = field(default_factory=SideCheck)
    notes: Notes = field(default_factory=Notes)

    def add(self, other: Found) -> None:
        """Add what was found in later chunks, but for the sums."""
        self.over_time += other.over_time
        self.sides.merge(other.sides)
        self.notes += other.notes


@dataclass(frozen=True)
class Pass:
    """How windows are looked at."""

    run: Run
    bins: Bins
    size: int
    tally: Tally
    trained: Case | None

    def window(self, found: Found, first: int, rows: Rows) -> None:
        """One window's rows."""
        outcome = None if self.trained is None else evaluate(self.trained, rows, rows.rollout, "update")
        self.tally.add(first, rows, outcome)
        found.over_time += over_time_rows(self.run, self.bins, rows, outcome)
        if outcome is not None:
            found.sides.add(rows, outcome)

    def share(self, chunks: Sequence[Chunk], step: Callable[[], None]) -> Found:
        """Some chunks of the log, in this process."""
        found = Found()
        for chunk in chunks:
            windows, notes = self.run.source.windows(chunk, self.size)
            found.notes += notes
            for first, rows in windows:
                self.window(found, first, rows)
            step()
        found.uses = self.tally.uses
        return found


def look_through(
    run: Run,
    bins: Bins,
    cases: Sequence[Case],
    size: int,
    progress: Callable[[float], None] = lambda _: None,
) -> tuple[Tally, Found]:
    """Sums and findings of a whole log, with notes of its counts, what of it is damaged, and what the counts warn of.

    Parameters
    ----------
    cases : sequence of Case
        The rules to evaluate, besides the one that trained.
    size : int
        Rollouts in a window.
    progress : callable
        Told the share of the log that each step went through.
    """
    trained = trained_case(run)
    tally = Tally(run, Layout.of(run, bins), cases if trained is None else [trained, *cases])
    over = Pass(run, bins, size, tally, trained)
    chunks = run.source.chunks(size)
    number = min(cores(), len(chunks))
    shares = in_processes(
        [
            partial(over.share, chunks[i * len(chunks) // number : (i + 1) * len(chunks) // number])
            for i in range(number)
        ],
        lambda: progress(1 / len(chunks)),
    )
    found = shares[0]
    tally.uses = found.uses
    for other in shares[1:]:
        tally.merge(other.uses)
        found.add(other)
    found.notes += Notes(warnings=tuple(warnings_of(found.notes.counts, run.partition)))
    return tally, found
