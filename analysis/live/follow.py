"""Follow a run's log as it grows. Each rollout is read once; of its rows only sums are kept, and some for the doctor.

The page of ``fspo watch`` shows the numbers that a `Follower` computes. A series over time has for each rollout a value
computed from that rollout's rows alone; an acceptance is that of all rollouts. Issues come from ``fspo doctor``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from analysis.doctor.examine import Doctor
from analysis.doctor.issues import Diagnosis
from analysis.log.loading import Run, load_run
from analysis.log.partition import LENGTH
from analysis.log.rows import Floats, Rows
from analysis.rules.evaluate import evaluate, trained_case
from analysis.tables.moments import variance_interval
from fspo.base.errors import UserError
from fspo.gradlog import read_files
from fspo.gradlog.files import LogFile, log_files, log_paths, rollout_of
from fspo.rules import Ratio
from fspo.stats.bins import Bins, quantile_bins
from fspo.stats.clusters import MIN_CLUSTERS, Ratios, dense, ratios_of_sums, sum_by, totals

SETTLED = 10.0
"""Seconds without a change of its files after which the newest rollout is read even if a file is missing or damaged."""
PAUSED = 300.0
"""Seconds without a change of the newest rollout's files, after which the doctor answers on all rollouts read so far.
Before that, the doctor answers again once at least a hundredth of the rollouts read is new to it."""
DOCTOR_ROWS = 100_000
"""Largest number of rows that the doctor keeps for the checks that need many rows at once."""
COLUMNS = ("times_used", "length", "reward")
Signature = tuple[tuple[str, int, int], ...]
"""Name, size in bytes and time of the last change (ns) of each file of a rollout."""


class RolloutView(NamedTuple):
    """What the page of ``fspo watch`` shows of the rows of one rollout.

    Attributes
    ----------
    rows : int
        Number of the rollout's rows of the phase train in the log.
    panels : dict of str to array (K+1,)
        By name of the panel: a value for each of the K bins of lengths and, last, for all lengths; NaN if unknown.
    """

    rollout: int
    rows: int
    panels: dict[str, Floats]


class Follower:
    """Reads the log of one run while it grows: each rollout once, when it is written. It keeps what the page shows.

    >>> follower = Follower("RUN")
    >>> follower.poll()                  # reads the rollouts that are new, and says whether anything changed
    >>> follower.seen[-1].panels["clip"]

    Parameters
    ----------
    path : path
        Run folder; it need not exist yet.
    bins : Bins, optional
        Bins of lengths; by default quantiles of the first rollout with a row logged after an update.

    Attributes
    ----------
    seen : list of RolloutView
        The rollouts that were read, in order. A new list replaces this one when reading starts again.
    starts, waiting : int
        How often reading began at the log's first rollout; number of rollouts that are written and not read yet.
    run : Run, optional
        The last rollout that was read and has rows to analyse.
    diagnosis : Diagnosis, optional
        The last answers of ``fspo doctor``. The attribute ``asked`` is the number of rollouts that they are about.
    first_found : dict of str to int
        For each issue in the doctor's last answers, the number of the newest rollout when the issue appeared.
    """

    def __init__(self, path: str | Path, bins: Bins | None = None) -> None:
        self.path, self.bins = Path(path), bins
        self.starts = 0
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
        self._sums: list[tuple[Floats, Floats, Floats]] = []
        self._doctor: Doctor | None = None

    def poll(self, budget: float = 0.5) -> bool:
        """Read new rollouts for about ``budget`` seconds, at least one, and return whether anything changed.

        The log is read again from its first rollout if files that were read have changed or are gone (because a run was
        resumed or a file repaired), or if a new rollout has a lower number than a rollout already read."""
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
            self._ask(self._doctor)
            changed = True
        return changed

    def until(self, threshold: str, wait: float = 2.0) -> Diagnosis:
        """Read rollouts as they are written until the doctor reports ``threshold``, and return its answers then.

        Ctrl-C returns the last answers, if a rollout was read.

        Parameters
        ----------
        threshold : str
            A severity or the name of a check, as ``--fail-on`` takes it.
        wait : float
            Seconds between two looks at the files of a log without new rollouts.
        """
        try:
            while True:
                changed = self.poll()
                if changed and self.diagnosis is not None and self.diagnosis.fails(threshold):
                    return self.diagnosis
                if not changed:
                    time.sleep(wait)
        except KeyboardInterrupt:
            if self.diagnosis is None:
                raise
            return self.diagnosis

    def acceptance(self) -> tuple[Ratios, Floats] | None:
        """Return the share of responses with A != 0 that the rule that trained did not clip in their first epoch, by
        bin of lengths over all rollouts read, and the mean length in each of the K bins (K,); None if the log does not
        say."""
        if not self._sums:
            return None
        rows, kept, lengths = (np.concatenate(part) for part in zip(*self._sums, strict=True))
        with np.errstate(invalid="ignore"):
            return ratios_of_sums(rows, kept, rows, binary=True), lengths.sum(0) / rows.sum(0)

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
        """Return whether the newest rollout may be read: it has as many files as any rollout read so far, or its files
        have not changed for `SETTLED` seconds."""
        usual = max(map(len, self._done.values()), default=0)
        return 0 < usual <= len(files) or _age(files) >= SETTLED

    def _read(self, number: int, *, fresh: bool) -> bool:
        """Read a rollout and return True, also if parts of it are damaged; the damage is noted.

        If a file cannot be read and the rollout is ``fresh`` (the newest one, changed less than `SETTLED` seconds ago),
        the file may still be being written: then add nothing and return False, and a later call reads the rollout."""
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
            view = self._look(number, files)
            if self._doctor is None:
                metadata = next((file.metadata for file in files if file.metadata), {})
                self._doctor = Doctor.of(self.path, metadata, most=DOCTOR_ROWS)
            self._doctor.read(files, damage)
        except UserError as error:
            self._note(f"rollout {number}: {error}")
            return True
        self.seen.append(view)
        return True

    def _look(self, number: int, files: Sequence[LogFile]) -> RolloutView:
        """Read rollout ``number`` from its files, and add its responses to the sums over all rollouts."""
        log = read_files([(file, None) for file in files], COLUMNS, ("train",))
        run, panels = self._load(number), dict[str, Floats]()
        if run is not None:
            self.run = run
            self.bins = self.bins or quantile_bins(run.rows.coordinate)
        if self.bins is None:
            return RolloutView(number, len(log), panels)
        if "reward" in log:
            used, length, reward = (log.column(name).astype(np.float64) for name in COLUMNS)
            first = (used == 0) & (length >= 1) & np.isfinite(reward)
            panels["reward"] = self._means(length[first], reward[first])
        if run is not None:
            panels["spread"] = self._spread(run)
            cut = _cut(run, run.rows)
            if cut is not None:
                panels["clip"] = self._means(run.rows.length, cut)
                self._add(run.rows, cut)
        for on in ("behaviour", "engine"):
            other = self._load(number, on)
            if other is not None:
                panels[on] = self._spread(other)
        return RolloutView(number, len(log), panels)

    def _load(self, number: int, on: Ratio = "update") -> Run | None:
        """Return rollout ``number``, read for the log-ratio ``on``; None if `load_run` finds no row for it."""
        try:
            return load_run(self.path, LENGTH, on, (number, number))
        except UserError:
            return None

    def _means(self, length: Floats, values: np.ndarray) -> Floats:
        """Return the mean of ``values`` (N,) in each of K bins of ``length`` and in all (K+1,); NaN where there is
        none."""
        assert self.bins is not None
        place, number = self.bins.index(length), len(self.bins)
        sums, rows = totals(place, number, values), totals(place, number)
        with np.errstate(invalid="ignore"):
            return np.append(sums, sums.sum()) / np.append(rows, rows.sum())

    def _add(self, rows: Rows, cut: np.ndarray) -> None:
        """Keep, for each of C clusters and K bins (C, K), three sums over responses of the first epoch with A != 0:
        their number, the number not clipped (``cut`` (N,) is False), and their lengths."""
        assert self.bins is not None
        at = np.flatnonzero((rows.used == 0) & np.isfinite(rows.A) & (rows.A != 0))
        cluster, place = dense(rows.cluster[at]), self.bins.index(rows.length[at])
        values = (np.ones(len(at)), ~cut[at], rows.length[at])
        count, kept, length = (sum_by(cluster, place, len(self.bins), x) for x in values)
        self._sums.append((count, kept, length))

    def _spread(self, run: Run) -> Floats:
        """Return the standard deviation of the log-ratio, over rows in the first epoch, in each of K bins of lengths
        and for all lengths (K+1,). A bin with fewer than `MIN_CLUSTERS` clusters gets NaN."""
        assert self.bins is not None
        rows, number = run.rows.use("first"), len(self.bins)
        place = self.bins.index(rows.coordinate)
        found = np.full(number + 1, np.nan)
        for k, at in enumerate([*(place == k for k in range(number)), place >= 0]):
            if len(np.unique(rows.cluster[at])) >= MIN_CLUSTERS:
                found[k] = np.sqrt(variance_interval(rows.S[at], rows.cluster[at]).value)
        return found

    def _ask(self, doctor: Doctor) -> None:
        self.diagnosis, self.asked = doctor.diagnosis(), len(self.seen)
        now = self.seen[-1].rollout
        found = [answer.id for answer in self.diagnosis.issues]
        self.first_found = {name: self.first_found.get(name, now) for name in found}

    def _note(self, *lines: str) -> None:
        self.notes += [line for line in lines if line not in self.notes]


def _cut(run: Run, rows: Rows) -> np.ndarray | None:
    """Return which of a run's rows (N,) the rule that trained clipped; None if the log does not say."""
    case = trained_case(run)
    if case is not None:
        outcome = evaluate(case, rows, rows.rollout, "update")
        return None if outcome.reason else outcome.side != 0
    return rows.multiplier < 1 if "multiplier" in run.logged else None


def _age(files: Signature) -> float:
    """Return the seconds since the last change of a rollout's files."""
    return time.time() - max(changed for _, _, changed in files) / 1e9
