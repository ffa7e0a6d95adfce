"""Read a log once, block by block, and collect sums for the acceptance tables, clip rates over time and notes.

Several processes, or the workers of a Dask cluster, share the log's chunks, and their sums are added at the end. A log
in memory is one chunk. A band that follows a target must learn from the chunks in order. So the processes take them in
turn, and for each chunk a process waits for the band's state from the process of the chunk before, and passes it on."""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import NamedTuple

from analysis.log.loading import Run, warnings_of
from analysis.log.notes import Notes
from analysis.log.stream import Chunk
from analysis.log.usable import nothing
from analysis.log.workers import on_workers
from analysis.rules.evaluate import Case, evaluate, trained_case
from analysis.rules.replay import Replay, learn
from analysis.rules.tally import Grouping, Sums, Tally
from analysis.tables.over_time import OverTimeRow, over_time_rows
from fspo.base.processes import cores, in_processes
from fspo.rules import Rule
from fspo.rules.online import OnlineRule
from fspo.stats.bins import Bins


class Share(NamedTuple):
    """What one process found in its chunks of the log: ``uses``, the sums for the acceptance tables of the first
    (`first`) and of later epochs (`reused`); ``parts``, by each chunk's first rollout, its rows of the
    table over_time, and notes; and ``states``, for each replayed band the rule in force at each update."""

    uses: dict[str, Sums]
    parts: dict[int, tuple[list[OverTimeRow], Notes]]
    states: Mapping[str, Mapping[int, Rule]]


class Found(NamedTuple):
    """Rows of the table over_time, and notes, of a complete log."""

    over_time: list[OverTimeRow]
    notes: Notes


@dataclass(frozen=True)
class Pass:
    """What a pass over the log needs: the run, bins, the number of rollouts in a block (``size``), the collector of
    sums for the acceptance tables (``tally``), the rule that trained as a case, and by name the bands to replay."""

    run: Run
    bins: Bins
    size: int
    tally: Tally
    trained: Case | None
    replays: Mapping[str, Replay]

    def share(
        self,
        chunks: Sequence[Chunk],
        step: Callable[[], None] = lambda: None,
        before: Connection | None = None,
        after: Connection | None = None,
    ) -> Share:
        """Read some chunks of the log in this process; return what they hold. ``step`` is called after each chunk. For
        each chunk, what replayed bands have learnt until then is received from ``before``, and what they have learnt
        with the chunk is sent to ``after``; without these, no band is replayed."""
        tally, parts = copy(self.tally), {}
        tally.uses = {}
        for chunk in chunks:
            windows, notes = self.run.source.windows(chunk, self.size)
            if before is not None and after is not None:
                for replayed, state in zip(self.replays.values(), before.recv(), strict=True):
                    replayed.online = OnlineRule(replayed.rule, state)
                learn(self.replays, [rows for _, rows in windows])
                after.send([replayed.online.state for replayed in self.replays.values()])
            over_time: list[OverTimeRow] = []
            for first, rows in windows:
                outcome = None if self.trained is None else evaluate(self.trained, rows, rows.rollout, "update")
                tally.add(first, rows, outcome)
                over_time += over_time_rows(self.run, self.bins, rows, outcome)
            parts[chunk.first] = over_time, notes
            step()
        return Share(tally.uses, parts, {name: replayed.states for name, replayed in self.replays.items()})


def look_through(
    run: Run,
    bins: Bins,
    cases: Sequence[Case],
    size: int,
    progress: Callable[[float], None] = lambda _: None,
    workers: str | None = None,
    replays: Mapping[str, Replay] | None = None,
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
        Number of Dask workers to start, or address of a Dask scheduler (`analysis.log.workers.on_workers`). Without it,
        and for a log in memory, processes that this one starts read the log.
    replays : mapping of str to Replay, optional
        By name, bands without a drift that follow a target and are replayed during the pass. Each has a dict
        ``states``, the band in force at each step, which the pass fills; the band's cases share it.
    """
    trained = trained_case(run)
    tally = Tally(run, Grouping.of(run, bins), cases if trained is None else [trained, *cases])
    replays = replays or {}
    over = Pass(run, bins, size, tally, trained, replays)
    chunks = run.source.chunks(size)
    shares: Iterable[Share]
    if workers is None or run.stream is None:
        number = min(cores(), len(chunks))
        ends = [mp.Pipe(duplex=False) for _ in range(number)]
        ends[0][1].send([replayed.online.state for replayed in replays.values()])
        jobs = [
            partial(over.share, chunks[i::number], before=ends[i][0], after=ends[(i + 1) % number][1])
            for i in range(number)
        ]
        shares = in_processes(jobs, lambda: progress(1 / len(chunks)))
    else:
        # Dask may give a chunk to any worker at any time, so the bands are replayed before.
        for chunk in chunks if replays else ():
            learn(replays, [rows for _, rows in replace(run.stream, recomputed=nothing).windows(chunk, size)[0]])
        # Workers may run in another working directory, so they get absolute paths of the log's files. They do not get
        # ``run.rows``, the rows that were sampled from the log, because a pass over a streamed log does not use them.
        files = tuple(replace(file, path=file.path.resolve()) for file in run.stream.files)
        stream = replace(run.stream, files=files)
        over = replace(over, run=replace(run, rows=run.rows.take(slice(0)), stream=stream), replays={})
        shares = on_workers(workers, over.share, stream.chunks(size), [file.path for file in files], progress)
    parts: dict[int, tuple[list[OverTimeRow], Notes]] = {}
    for share in shares:
        tally.merge(share.uses)
        parts |= share.parts
        for name, states in share.states.items():
            replays[name].states.update(states)
    ordered = [parts[first] for first in sorted(parts)]
    notes = sum((notes for _, notes in ordered), Notes())
    notes += Notes(warnings=tuple(warnings_of(notes.counts, run.partition, run.ratio)))
    return tally, Found([row for rows, _ in ordered for row in rows], notes)
