"""Follow a run's log as it grows. The rows of each rollout are read once and added to sums over all rollouts.

The page of ``fspo watch`` shows the numbers that a `Follower` computes. A series over time has for each rollout a value
computed from that rollout's rows alone, and an acceptance is computed from the sums over all rollouts. The cost of a
new rollout therefore does not grow with the run. Rewards and staleness are means over a rollout's rows at first use,
all other values are computed as in the tables of `analysis.tables`, and findings come from ``fspo doctor``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from analysis.doctor.admit import READ, columns_of
from analysis.doctor.doctor import Doctor
from analysis.doctor.findings import Diagnosis
from analysis.log.loading import Run, load_run
from analysis.log.partition import LENGTH
from analysis.log.rows import Floats, numbered
from analysis.rules.evaluate import evaluate, trained_case
from analysis.rules.layout import Grouping
from analysis.rules.tally import Tally
from analysis.scores.sketches import ScoredWindows
from analysis.tables.acceptance import AcceptanceRow, tables_of
from analysis.tables.columns import RunKey
from analysis.tables.cosine import CosineTable
from analysis.tables.moments import variance_interval
from analysis.tables.over_time import OverTimeRow
from analysis.tables.passes import Found, Pass
from fspo.base.errors import UserError
from fspo.gradlog import read_files
from fspo.gradlog.files import LogFile, log_files, log_paths, rollout_of
from fspo.rules import Ratio
from fspo.stats.bins import Bins, quantile_bins
from fspo.stats.clusters import MIN_CLUSTERS, dense, ratios

SETTLED = 10.0
"""Seconds without a change of its files after which the newest rollout is read even if a file is missing or damaged."""
PAUSED = 300.0
"""Seconds without a change of the newest rollout's files, after which the doctor answers on all rollouts read so far.

Before that, the doctor answers again once at least a hundredth of the rollouts read is new to it.
"""
DOCTOR_ROWS = 20_000
"""Largest number of rows that the doctor keeps for the checks that need many rows at once."""
VERSIONS = ("policy_version", "updates_since_rollout", "behaviour_version")
"""Columns that give a response's staleness: updates before the row, those of them after the rollout, and those before
the weights that sampled the response."""
SHOWN = 1500
"""Largest number of rows of the newest rollout that the page shows as points of length and S."""
Signature = tuple[tuple[str, int, int], ...]
"""Name, size in bytes and time of the last change (ns) of each file of a rollout."""


@dataclass(frozen=True)
class RolloutView:
    """What the page of ``fspo watch`` shows of the rows of one rollout.

    Attributes
    ----------
    rows : int
        Number of the rollout's rows in the log that were trained on (phase train, not audit or noise).
    seconds : float
        CPU time of reading and analysing the rollout, seconds.
    panels : dict of str to array (K+1,)
        By name of the panel: a value for each of the K bins of lengths and, last, for all lengths; NaN if unknown.
    over_time : list of OverTimeRow
        The rows that the rollout has in the table over_time.
    """

    rollout: int
    rows: int
    seconds: float
    panels: dict[str, Floats]
    over_time: list[OverTimeRow] = field(default_factory=list)


@dataclass(frozen=True)
class Points:
    """Rows of the newest rollout, as arrays (N,): length, S, the band's edges, whether the rule cuts the gradient."""

    length: Floats
    S: Floats
    lo: Floats
    hi: Floats
    cut: np.ndarray


class Follower:
    """Follower of the log of one run, which reads new rollouts as they are written.

    >>> follower = Follower("RUN")
    >>> follower.poll()                  # reads the rollouts that are new, and says whether anything changed
    >>> follower.seen[-1].panels["clip"]

    Parameters
    ----------
    path : path
        Run folder; it need not exist yet.
    bins : list of Bins
        A list that several followers share, so that they use the same bins of lengths. The list is empty at first. The
        first follower that reads a rollout with a row logged after an update on this rollout appends the quantile bins
        of the rollout's lengths.

    Attributes
    ----------
    seen : list of RolloutView
        The rollouts that were read, in order. A new list replaces this one when reading starts again.
    starts : int
        Number of times that reading started at the log's first rollout: 1, and 1 more each time that :meth:`poll` found
        that the log must be read again.
    diagnosis : Diagnosis, optional
        The last answers of ``fspo doctor``. The attribute ``asked`` is the number of rollouts that they are about.
    first_found : dict of str to int
        For each finding in the doctor's last answers, the number of the newest rollout when the finding appeared.
    """

    def __init__(self, path: str | Path, bins: list[Bins] | None = None) -> None:
        self.path = Path(path)
        self._bins = [] if bins is None else bins
        self.starts = 0
        self.rows_read = 0
        self._restart()

    def _restart(self) -> None:
        self.starts += 1
        self.seen: list[RolloutView] = []
        self.notes: list[str] = []
        self.waiting = 0
        self.run: Run | None = None
        self.diagnosis: Diagnosis | None = None
        self.asked = 0
        self.first_found: dict[str, int] = {}
        self._done: dict[int, Signature] = {}
        self._tally: Tally | None = None
        self._doctor: Doctor | None = None

    @property
    def bins(self) -> Bins | None:
        """The bins of lengths. They are None until this follower, or one that shares its bins, has read a rollout with
        a row that was logged after an update.
        """
        return self._bins[0] if self._bins else None

    def poll(self, budget: float = 0.5) -> bool:
        """Read new rollouts for about ``budget`` seconds, at least one, and return whether anything changed.

        The log is read again from its first rollout if files that were read have changed or are gone (because a run was
        resumed or a file repaired), or if a new rollout has a lower number than a rollout already read.
        """
        until = time.monotonic() + budget
        parts = self._parts()
        changed = False
        new = sorted(parts.keys() - self._done.keys())
        late = bool(new and self._done) and new[0] < max(self._done)
        if late or any(parts.get(number) != signature for number, signature in self._done.items()):
            self._restart()
            changed, new = True, sorted(parts)
        self.waiting = len(new)
        for number in new:
            newest = number == max(parts)
            if newest and not self._complete(parts[number]):
                break
            if not self._read(number, fresh=newest and _age(parts[number]) < SETTLED):
                break
            self._done[number] = parts[number]
            self.waiting -= 1
            changed = True
            if time.monotonic() > until:
                break
        backlog = len(self.seen) - self.asked
        paused = bool(parts) and _age(parts[max(parts)]) > PAUSED
        if self._doctor is not None and backlog and (backlog >= len(self.seen) // 100 or paused):
            self._ask()
            changed = True
        return changed

    def acceptance(self) -> list[AcceptanceRow]:
        """Return the table acceptance of the rule that trained, computed from the sums over all rollouts read."""
        return [] if self._tally is None or self.run is None else tables_of(self.run, self._tally).acceptance

    def points(self) -> Points | None:
        """Return the points of the chart of S over length: up to `SHOWN` rows of the newest rollout that has a row
        after an update. Return None if no such rollout was read.
        """
        if self.run is None:
            return None
        rows = self.run.rows
        if len(rows) > SHOWN:
            rows = rows.take(np.linspace(0, len(rows) - 1, SHOWN).astype(np.int64))
        case = trained_case(self.run)
        outcome = None if case is None else evaluate(case, rows, rows.rollout, "update")
        if case is None or outcome is None or outcome.reason:
            return Points(rows.length, rows.S, rows.lo, rows.hi, rows.multiplier < 1)
        return Points(rows.length, rows.S, *rows.edges(case.rule), outcome.side != 0)

    def _parts(self) -> dict[int, Signature]:
        """Return for each rollout of the log the signature of its files: names, sizes and times of the last change."""
        found: dict[int, list[tuple[str, int, int]]] = {}
        for path in log_paths(self.path):
            try:
                stat = path.stat()
            except OSError:  # the file was removed after log_paths listed it
                continue
            found.setdefault(rollout_of(path), []).append((path.name, stat.st_size, stat.st_mtime_ns))
        return {number: tuple(files) for number, files in found.items()}

    def _complete(self, files: Signature) -> bool:
        """Return whether the newest rollout may be read.

        It may be read if it has as many files as any rollout read so far, or if its files have not changed for
        `SETTLED` seconds.
        """
        usual = max(map(len, self._done.values()), default=0)
        return 0 < usual <= len(files) or _age(files) >= SETTLED

    def _read(self, number: int, *, fresh: bool) -> bool:
        """Read a rollout and return True, also if parts of it are damaged; the damage is noted.

        If a file cannot be read and the rollout is ``fresh`` (the newest one, changed less than `SETTLED` seconds ago),
        the file may still be being written: then add nothing and return False, and a later call reads the rollout.
        """
        began = time.process_time()
        try:
            files, damage = log_files(self.path, (number, number))
        except UserError as error:
            if not fresh:
                self._note(str(error))
            return not fresh
        if damage and fresh:
            return False
        self._note(*(f"damaged: {line}" for line in damage))
        try:
            rows, panels, over_time = self._look(number, files)
            if self._doctor is None:
                metadata = next((file.metadata for file in files if file.metadata), {})
                self._doctor = Doctor.of(self.path, metadata, most=DOCTOR_ROWS)
            self._doctor.read_these(files, damage)
        except UserError as error:
            self._note(f"rollout {number}: {error}")
            return True
        self.seen.append(RolloutView(number, rows, time.process_time() - began, panels, over_time))
        return True

    def _look(self, number: int, files: Sequence[LogFile]) -> tuple[int, dict[str, Floats], list[OverTimeRow]]:
        """Read one rollout of the log. Return its number of rows, the rollout's values in the panels of ``fspo watch``
        (by name and bin), and its rows of the table over_time.
        """
        log = read_files([(file, None) for file in files], READ, ("train",))
        self.rows_read += len(log)
        run = self._load(number)
        if run is not None:
            if not self._bins:
                self._bins.append(quantile_bins(run.rows.coordinate))
            self.run = run
        if self.bins is None:
            return len(log), {}, []
        bins, panels, over_time = self.bins, {}, []
        columns = columns_of(log, [])
        first = (columns["times_used"] == 0) & (columns["length"] >= 1)
        place = bins.index(columns["length"][first])
        cluster = numbered(columns["rollout"], columns["prompt_id"])
        values = {"reward": columns["reward"]}
        if all(name in log for name in VERSIONS):
            now, updates, sampled = (log.column(name).astype(np.float64) for name in VERSIONS)
            known = log.table["behaviour_version"].is_valid().to_numpy()
            values["staleness"] = np.where(known, now - updates - sampled, np.nan)
        for name, value in values.items():
            known = np.isfinite(value[first])
            if known.any():
                here = numbered(cluster[first][known])
                panels[name] = ratios(value[first][known], here, place[known], len(bins)).value
        if run is not None:
            over_time = self._add(run, number)
            share = {row.place.bin: row.cut / row.count if row.count else np.nan for row in over_time}
            if share:
                panels["clip"] = np.array([share[k] for k in (*range(len(bins)), -1)])
            panels["spread"] = self._spread(run)
            panels |= dict(self._cosine(run))
        for on in ("behaviour", "engine"):
            other = self._load(number, on)
            if other is not None:
                panels[on] = self._spread(other)
        return len(log), panels, over_time

    def _load(self, number: int, on: Ratio = "update") -> Run | None:
        """Return a rollout's rows for the analysis of the log-ratio ``on``; None if `load_run` finds no row for it."""
        try:
            return load_run(self.path, LENGTH, on, (number, number))
        except UserError:
            return None

    def _add(self, run: Run, number: int) -> list[OverTimeRow]:
        """Add a rollout to the sums over all rollouts, and return the rollout's rows in the table over_time."""
        assert self.bins is not None
        trained, found = trained_case(run), Found()
        if self._tally is None:
            self._tally = Tally(run, Grouping.of(run, self.bins, grows=True), [trained] if trained else [])
        Pass(run, self.bins, 1, self._tally, trained).window(found, self._tally, number, run.rows)
        return found.over_time

    def _spread(self, run: Run) -> Floats:
        """Return the standard deviation of the log-ratio, over rows at first use, by bin and for all lengths (K+1,).

        A bin with fewer than `MIN_CLUSTERS` clusters gets NaN.
        """
        assert self.bins is not None
        rows, number = run.rows.use("first"), len(self.bins)
        place = self.bins.index(rows.coordinate)
        parts = [np.flatnonzero(place == k) for k in range(number)] + [np.arange(len(rows))]
        found = np.full(number + 1, np.nan)
        for k, at in enumerate(parts):
            cluster = dense(rows.cluster[at])
            if len(at) and cluster.max() + 1 >= MIN_CLUSTERS:
                found[k] = np.sqrt(variance_interval(rows.S[at], cluster).value)
        return found

    def _cosine(self, run: Run) -> Iterator[tuple[str, Floats]]:
        """Yield "cosine" with the cosine of the clipped and the unclipped update, by bin and for all lengths (K+1,).

        Yield nothing if no response at first use has a score, if the log names no rule, or if its rule clips tokens or
        prefixes and not whole responses.
        """
        trained = trained_case(run)
        if trained is None or not run.counts.get("scores_taken"):
            return
        assert self.bins is not None
        table = CosineTable(RunKey.of(run), self.bins, [trained], (), 1, 0)
        for window in ScoredWindows(run, self.bins, 1):
            table.add(window)
        found = {
            row.place.bin: row.estimate.value
            for row in table.rows()
            if row.case.use == "first" and not row.control and row.weight == "sequence"
        }
        if found:
            yield "cosine", np.array([found[k] for k in (*range(len(self.bins)), -1)])

    def _ask(self) -> None:
        assert self._doctor is not None
        self.diagnosis, self.asked = self._doctor.findings(), len(self.seen)
        now = self.seen[-1].rollout
        found = [answer.id for answer in self.diagnosis.findings]
        self.first_found = {name: self.first_found.get(name, now) for name in found}

    def _note(self, *lines: str) -> None:
        self.notes += [line for line in lines if line not in self.notes]


def _age(files: Signature) -> float:
    """Return the seconds since the last change of a rollout's files."""
    return time.time() - max(changed for _, _, changed in files) / 1e9
