"""Examine a run rollout by rollout. The memory that the checks need does not grow with the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis.doctor import band, batch, ratios
from analysis.doctor.coincidences import ON_ROWS, length_pile
from analysis.doctor.first_epoch import FirstEpoch
from analysis.doctor.issues import Diagnosis
from analysis.doctor.mismatch import Mismatch, correction, staleness, weight_left
from analysis.doctor.patient import KEPT, READ, Kept, Patient, Rows, columns_of, metrics_of
from analysis.doctor.recomputed import USUAL, Recomputed
from analysis.doctor.scalars import ON_SCALARS
from analysis.doctor.selection import by_rewards
from analysis.doctor.tokens import TokenSums
from analysis.importing.watch import digest_of
from analysis.log.partition import LENGTH
from analysis.log.stream import Stream
from fspo.base.errors import UserError
from fspo.gradlog import GradLog
from fspo.gradlog.files import LogFile, log_files, log_paths, rollout_of
from fspo.gradlog.run_folder import saved_config
from fspo.gradlog.schema import RATIO_COLUMNS, TOKEN_COLUMNS
from fspo.rules import PRESETS, Rule

ON_KEPT_ROWS = {
    "s_zero": ratios.s_zero,
    "old_recomputed": ratios.old_recomputed,
    "not_finite": ratios.not_finite,
    "numerics": ratios.numerics,
    "advantages_zero": batch.advantages_zero,
    "truncation": batch.truncation,
    "dropped_sequences": batch.dropped_sequences,
    "length_weighted": batch.length_weighted,
    "mean_length": batch.mean_length,
    "drift": band.drift,
    "heavy_weights": band.heavy_weights,
    "acceptance": band.acceptance,
}
"""The checks of the kept rows and the metrics, by name."""
ON_ALL_ROWS = (
    *("band", "clip", "sums", "uses", "estimator", "counters", "log"),
    *("before_update", "mean_weight", "k1_k3", "spread_of_s", "direction"),
    *(*ON_ROWS, "length_pile", "mismatch", "correction", "staleness", "selection", "tokens"),
)
"""Names of the other checks of rows."""
CHECKS = (*ON_KEPT_ROWS, *ON_ALL_ROWS, *ON_SCALARS)
NO_RATIO = (
    "the clip cannot be judged: no row has a log-ratio; log one, or import again with --columns new=COLUMN,old=COLUMN "
    "(docs/diagnose.md)"
)


@dataclass
class Doctor:
    """What all checks have gathered from the rows of one run so far. Its size in memory does not grow with the log.

    >>> doctor = Doctor.of("RUN")
    >>> doctor.read()                 # reads the files that the log has now; later calls read new files alone
    >>> doctor.diagnosis().issues    # what is wrong so far

    Attributes
    ----------
    aggregation : str, optional
        How the loss was averaged.
    target : float, optional
        The band acceptance that the rule was meant to have.
    files : dict of str to int
        Defects of the log's files, each with the first rollout that has it.
    """

    path: Path
    kept: Kept
    recomputed: Recomputed
    config: Mapping[str, Any]
    aggregation: str | None = None
    tokens: TokenSums = field(default_factory=TokenSums)
    target: float | None = None
    notes: list[str] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    read_files: set[str] = field(default_factory=set)
    ranks: Counter[int] = field(default_factory=Counter)  # number of log files of each rollout, one from each process
    header: Mapping[str, Any] | None = None
    scalars: bool = False  # whether metrics.jsonl held a number at the last call of diagnosis

    @staticmethod
    def of(
        run: str | Path, metadata: Mapping[str, Any] | None = None, target: float | None = None, most: int = KEPT
    ) -> Doctor:
        """Make the doctor of a run folder from the header of its log (``metadata``) and a stated target acceptance.

        Parameters
        ----------
        most : int
            Largest number of rows kept for the checks that need many rows at once (`analysis.doctor.patient.KEPT`).

        Raises
        ------
        UserError
            If the header's rule or the configuration cannot be read.
        """
        path, metadata = Path(run), metadata or {}
        rule = _rule(metadata, "rule")
        config = saved_config(path)
        imported = "imported_from" in metadata
        recomputed = Recomputed(rule, _rule(metadata, "correction"), _of_preset(config, "advantage"), imported)
        named = metadata.get("aggregation")
        aggregation = named if isinstance(named, str) else _of_preset(config, "aggregation")
        return Doctor(path, Kept(imported, most=most), recomputed, config, aggregation, target=target)

    def read(self, *, complete: bool = True) -> None:
        """Read the log's files that were not read before, and add their rows.

        Parameters
        ----------
        complete : bool
            If False, the newest rollout is left for the next call, because its files may still be written.
        """
        if not log_paths(self.path):
            return
        files, damage = log_files(self.path)
        new = [file for file in files if file.path.name not in self.read_files]
        newest = max((rollout_of(file.path) for file in new), default=0)
        self.read_these([file for file in new if complete or rollout_of(file.path) < newest], damage)

    def read_these(self, new: Sequence[LogFile], damage: Sequence[str] = ()) -> None:
        """Read the log files ``new`` and add their rows to the doctor's sums.

        The rollouts in these files must be complete, and later than all rollouts that were read before.

        ``damage`` are messages about files that could not be read; they are added to the doctor's notes.
        """
        self._note(*(f"damaged: {line}" for line in damage))
        if not new:
            return
        self._headers(new)
        stream = Stream.of(new, LENGTH)
        for chunk in stream.chunks(1):
            try:
                self.add(stream.read(chunk, (*READ, *TOKEN_COLUMNS), None))
            except UserError as error:
                self._note(f"damaged: {error}")
        self.read_files |= {file.path.name for file in new}

    def add(self, log: GradLog) -> None:
        """Add the rows of complete rollouts, all later than those added before."""
        self._note(*(f"damaged: {line}" for line in log.damage))
        notes: list[str] = []
        columns = columns_of(log, notes)
        self._note(*notes)
        phase = log.column("phase") if "phase" in log else np.full(len(log), "train")
        everything, train = Rows(columns), np.isin(phase, ("train", ""))
        rows = everything if train.all() else Rows({name: x[train] for name, x in columns.items()})
        self.kept.add(rows, everything.take(phase == "noise"), {name for name in READ if name in log})
        if len(rows):
            self.recomputed.add(rows)
            self.tokens.add(log if train.all() else log.where(train), rows, by_rewards(rows)[0])

    def diagnosis(self) -> Diagnosis:
        """Return the answer of every check about the rows so far."""
        rows, noise = self.kept.joined()
        notes = [*self.notes, *self.kept.notes()]
        metrics, rule = metrics_of(self.path, notes), self.recomputed.correction
        aggregation, logged = self.aggregation, frozenset(self.kept.valued)
        patient = Patient(self.recomputed.rule, aggregation, rows, noise, logged, metrics, self.target)
        self.scalars = bool(metrics)
        fair, groups = by_rewards(rows)
        selection, limit = groups.answer(), _setting(self.config, "sampling", "max_new_tokens")
        float32 = _setting(self.config, "model", "dtype") == "float32"
        found = {name: check(patient) for name, check in ON_KEPT_ROWS.items()}
        found |= self.recomputed.answers(self._files(), selected=selection.found)
        found |= FirstEpoch(rows, fair, noise.take(np.isfinite(noise.S)), float32=float32).answers()
        found |= {name: check(rows) for name, check in ON_ROWS.items()}
        found |= {
            "length_pile": length_pile(rows, limit if isinstance(limit, int) else None),
            "mismatch": Mismatch.of(rows, fair).answer(same=_one_program(self.config), tokens=digest_of(self.path)),
            "correction": correction(weight_left(rows, rule), rule),
            "staleness": staleness(rows, rule is not None, imported=self.kept.imported),
            "selection": selection,
            "tokens": self.tokens.answer(),
        }
        found |= {name: check(patient) for name, check in ON_SCALARS.items()}
        answers = tuple(replace(answer, id=name) for name, answer in found.items())
        label = patient.rule.label if patient.rule else "unknown"
        ratios = [on for on in ("update", "engine", "behaviour") if rows.has(RATIO_COLUMNS[on].log_ratio)]
        notes += [NO_RATIO] if self.kept.rows and not ratios else []
        moved = np.isfinite(rows["log_ratio"]) & (rows["updates_since_rollout"] >= 1)
        told = [on for on in ratios if (rows["length"] >= 1).any() and (on != "update" or moved.any())]
        return Diagnosis(str(self.path), label, self.kept.rows, answers, tuple(notes), bool(ratios), (*told, "")[0])

    def _note(self, *lines: str) -> None:
        self.notes += [line for line in lines if line not in self.notes]

    def _headers(self, files: Sequence[LogFile]) -> None:
        """Compare each new file of the gradient log with the run: its header with the run's first header, and the
        rollout of its rows with the rollout in the file's name. Add each difference to ``self.files``.
        """
        for file in files:
            number = rollout_of(file.path)
            self.ranks[number] += 1
            header = {name: file.metadata.get(name) for name in ("rule", "seed", "correction", "trainer")}
            self.header = header if self.header is None else self.header
            for name, value in header.items():
                if value != self.header[name]:
                    self.files.setdefault(f"files whose header has another {name}", number)
            if any(group.rows and (group.first, group.last) != (number, number) for group in file.groups):
                self.files.setdefault("files whose rows are of another rollout than their name", number)

    def _files(self) -> dict[str, int]:
        """Return the defects of the log's files, each with its first rollout. A missing file of a process is a defect
        too.
        """
        if not self.ranks:
            return self.files
        counts = Counter(self.ranks.values())
        usual, times = counts.most_common(1)[0]
        last = max(self.ranks)  # The last rollout is not judged, because the run may have been stopped in it.
        lacking = sorted(number for number, count in self.ranks.items() if count < usual and number < last)
        if not lacking or times < USUAL * len(self.ranks):
            return self.files
        return self.files | {f"{len(lacking)} rollouts without the file of some process": lacking[0]}


def _rule(metadata: Mapping[str, Any], name: str) -> Rule | None:
    if not isinstance(metadata.get(name), Mapping):
        return None
    return GradLog(None, {"rule": metadata[name]}).rule


def _setting(config: Any, *names: str) -> Any:
    """Return a value of the configuration by the names of its section and of the value; None where it lacks."""
    for name in names:
        config = config.get(name) if isinstance(config, Mapping) else None
    return config


def _of_preset(config: Mapping[str, Any], name: str) -> str | None:
    """Return the advantage estimator or the aggregation that the configuration names, directly or by its preset."""
    given = PRESETS.get(str(_setting(config, "rule", "preset")))
    named = _setting(config, "rule", name) or getattr(given, name, None)
    return str(named) if named else None


def _one_program(config: Mapping[str, Any]) -> bool:
    """Return whether the configuration says that the trainer sampled with its own program in float32, at a temperature
    above 0, without top-p and without policy lag.
    """
    engine, precision, top_p, temperature = (
        _setting(config, "sampling", name) for name in ("engine", "precision", "top_p", "temperature")
    )
    plain = precision in (None, "same") and top_p in (None, 1) and (temperature or 0) > 0
    own = engine in ("auto", "fast", "generate") and _setting(config, "model", "dtype") == "float32"
    return own and plain and not _setting(config, "batch", "staleness")
