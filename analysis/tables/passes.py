"""The one pass over the windows of a log: sums for the acceptance tables, clip rates over time, checks and counts.

A log in memory is walked through here; a large one by several processes, each over its share of the log's chunks, whose
sums are then added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from analysis.log.loading import Run, warnings_of
from analysis.log.rows import Rows
from analysis.log.stream import Chunk
from analysis.rules.evaluate import Case, evaluate, trained_case
from analysis.rules.layout import Layout
from analysis.rules.tally import Sums, Tally
from analysis.tables.over_time import over_time_rows
from analysis.tables.summary import SideCheck
from fspo.base.processes import cores, in_processes
from fspo.stats.bins import Bins


@dataclass
class Found:
    """What the pass collects."""

    uses: dict[str, Sums] = field(default_factory=dict)
    over_time: list[dict[str, Any]] = field(default_factory=list)
    sides: SideCheck = field(default_factory=SideCheck)
    counts: dict[str, int] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)


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
        """Some chunks of a large log, in this process."""
        found = Found()
        assert self.run.stream is not None
        for chunk in chunks:
            windows, counts, damage = self.run.stream.windows(chunk, self.size)
            for name, count in counts.items():
                found.counts[name] = found.counts.get(name, 0) + count
            found.damage += damage
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
    """Sums and findings of a whole log; counts, damage and warnings of a streamed run are completed.

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
    if run.stream is None:
        found = Found()
        for first, rows in run.windows(size):
            over.window(found, first, rows)
        return tally, found
    chunks = run.stream.chunks(size)
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
        found.over_time += other.over_time
        found.sides.merge(other.sides)
        found.damage += other.damage
        for name, count in other.counts.items():
            found.counts[name] = found.counts.get(name, 0) + count
    run.counts.clear()
    run.counts.update(found.counts)
    run.damage.extend(dict.fromkeys(found.damage))
    run.warnings.extend(warnings_of(run.counts, run.partition))
    return tally, found
