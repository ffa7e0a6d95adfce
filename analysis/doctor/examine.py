"""Examine a run with every check, rollout by rollout. The memory that the checks need does not grow with the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from analysis.doctor import batch, issues, ratios
from analysis.doctor.coincidences import advantage_by_length, length_pile, values_of_s
from analysis.doctor.first_epoch import FirstEpoch, by_rewards
from analysis.doctor.issues import Diagnosis
from analysis.doctor.mismatch import Mismatch, staleness
from analysis.doctor.patient import KEPT, READ, Kept, Patient, metrics_of
from analysis.doctor.recomputed import FIXES, estimator, of_columns, succession
from analysis.doctor.scalars import ON_SCALARS, by_rldoctor, from_metrics, records
from analysis.importing.run import import_run
from analysis.importing.sources import find_sources
from analysis.importing.watch import TokenDigest, digest_of
from analysis.log.partition import LENGTH
from analysis.log.stream import Stream
from analysis.log.usable import tells_updates
from fspo.base.errors import UserError
from fspo.gradlog import GradLog
from fspo.gradlog.files import LogFile, log_files, log_paths
from fspo.gradlog.run_folder import METRICS, check_run, saved_config
from fspo.gradlog.schema import RATIO_COLUMNS
from fspo.rules import PRESETS, Rule

OF_RATIOS = (ratios.s_zero, ratios.old_recomputed, ratios.not_finite, ratios.numerics)
OF_BATCH = (batch.advantages_zero, batch.truncation, batch.dropped_sequences, batch.length_weighted, batch.mean_length)
ON_KEPT_ROWS = {check.__name__: check for check in (*OF_RATIOS, *OF_BATCH, ratios.acceptance)}
"""The checks of the rows and the metrics, by name."""
CHECKS = (
    *(*ON_KEPT_ROWS, "values_of_s", "advantage_by_length", *ON_SCALARS, *FIXES, "estimator", "log"),
    *("before_update", "mean_weight", "spread_of_s", "length_pile", "mismatch", "staleness"),
)
"""The names of all checks."""
OF_SUMS = (
    *("s_zero", "old_recomputed", "numerics", "acceptance", "values_of_s", "before_update", "mean_weight"),
    *("spread_of_s", "mismatch", "staleness"),
)
"""The checks that need log-ratios that are sums over tokens."""
SUMS_WANTED = "import the mean times the length, or lists with a number for each token"


@dataclass
class Doctor:
    """What was read of one run so far, and what examines it. Its size in memory does not grow with the log.

    >>> doctor = Doctor.of("RUN")
    >>> doctor.read()                 # reads the files that the log has now; later calls read new files alone
    >>> doctor.diagnosis().issues    # what is wrong so far
    """

    path: Path
    kept: Kept  # the rows for the checks
    rule: Rule | None  # the clip rule that the log's header names
    correction: Rule | None
    config: Mapping[str, Any]
    aggregation: str | None  # how the loss was averaged
    notes: list[str] = field(default_factory=list)  # on what could not be read
    read_files: set[str] = field(default_factory=set)

    @staticmethod
    def of(run: str | Path, metadata: Mapping[str, Any] | None = None, most: int = KEPT) -> Doctor:
        """Return a doctor that has read nothing yet of the run folder ``run``, whose log has the header ``metadata``.
        It will keep at most ``most`` rows in memory.

        Raise UserError if the header's rule or the configuration cannot be read."""
        path, metadata = Path(run), metadata or {}
        config, named = saved_config(path), metadata.get("aggregation")
        aggregation = named if isinstance(named, str) else _of_preset(config, "aggregation")
        named_rules = (metadata.get(name) for name in ("rule", "correction"))
        rule, correction = (GradLog(None, {"rule": x}).rule if isinstance(x, Mapping) else None for x in named_rules)
        return Doctor(path, Kept("imported_from" in metadata, most=most), rule, correction, config, aggregation)

    def read(self, files: Sequence[LogFile] | None = None, damage: Sequence[str] = ()) -> None:
        """Read ``files``, by default the log's files that were not read before, and keep of their rows what the checks
        need. Their rollouts must be complete and later than all that were read before. ``damage`` are messages about
        files that could not be read; they are added to the doctor's notes."""
        if files is None:
            files, damage = log_files(self.path) if log_paths(self.path) else ([], [])
            files = [file for file in files if file.path.name not in self.read_files]
        self._note(*(f"damaged: {line}" for line in damage))
        stream = Stream.of(files, LENGTH)
        for chunk in stream.chunks(1) if files else ():
            try:
                log = stream.read(chunk, READ)
            except UserError as error:
                self._note(f"damaged: {error}")
            else:
                self._note(*(f"damaged: {line}" for line in log.damage), *self.kept.add(log))
        self.read_files |= {file.path.name for file in files}

    def diagnosis(self) -> Diagnosis:
        """Return the answers of all checks about the rows that were read so far."""
        rows = self.kept.joined()
        notes, imported = [*self.notes, *self.kept.notes()], self.kept.imported
        metrics, tokens = metrics_of(self.path, notes), digest_of(self.path) or TokenDigest()
        patient = Patient(self.rule, self.aggregation, rows, frozenset(self.kept.valued), metrics, tokens)
        fair, selected = by_rewards(rows)
        limit = _setting(self.config, "sampling", "max_new_tokens")
        rollouts = np.array(self.kept.rollouts, np.int64).reshape(-1, 7)
        found = {name: check(patient) for name, check in ON_KEPT_ROWS.items()}
        found |= of_columns(rows, self.rule, self.correction, imported=imported)
        found |= FirstEpoch(rows, fair, float32=_setting(self.config, "model", "dtype") == "float32").answers()
        found |= {
            "values_of_s": values_of_s(rows),
            "advantage_by_length": advantage_by_length(rows),
            "estimator": estimator(rows, _of_preset(self.config, "advantage"), imported=imported),
            "log": succession(rollouts, imported=imported, selected=selected),
            "length_pile": length_pile(rows, limit if isinstance(limit, int) else None),
            "mismatch": Mismatch.of(rows, fair).answer(self.correction, same=_one_program(self.config), tokens=tokens),
            "staleness": staleness(rows, self.correction is not None, imported=imported),
        }
        if tokens.means:
            of_sums = OF_SUMS if np.any(patient.finite.S) else ("mismatch",)
            found |= dict.fromkeys(of_sums, issues.not_checked(tokens.means))
            found["sums"] = issues.found(f"{tokens.means}, so no statement on a ratio holds", SUMS_WANTED)
        found |= {name: check(patient) for name, check in ON_SCALARS.items()}
        found |= {} if self.kept.rows else from_metrics(patient)
        answers = tuple(replace(a, id=n, since=a.since if len(rollouts) != 1 else None) for n, a in found.items())
        known = {r: np.isfinite(rows[RATIO_COLUMNS[r].log_ratio]).sum() for r in ("update", "engine", "behaviour")}
        ratios = sorted(filter(known.get, known), key=lambda ratio: (ratio != "update", -known[ratio]))
        if blind := self.kept.rows > 0 and not ratios:
            lacking = "the clip cannot be judged: no row has a log-ratio; log one, or import again and name columns of "
            notes.append(f"{lacking}log-probabilities with --columns new=COLUMN,old=COLUMN (docs/diagnose.md)")
        told = [on for on in ratios if (tells_updates(rows.columns) if on == "update" else (rows["length"] >= 1).any())]
        label = self.rule.label if self.rule else "unknown"
        return Diagnosis(str(self.path), label, self.kept.rows, answers, tuple(notes), blind, (*told, "")[0])

    def _note(self, *lines: str) -> None:
        self.notes += [line for line in lines if line not in self.notes]


def examine(run: str | Path) -> Diagnosis:
    """Examine a run folder with every check; scalars of another trainer (without a table of responses) are imported.

    Without a gradient log, rldoctor's answers on the metrics are added, if that package is installed. Raise UserError
    if there is nothing to examine."""
    path = Path(run)
    if not path.is_file():
        check_run(path)
    if not log_paths(path) and (path / METRICS).is_file():
        doctor = Doctor.of(run)
        if not metrics_of(path, []):
            lacking = f"{path} has no gradient log and no number in {METRICS}"
            raise UserError(f"{lacking}: nothing to examine; name a run that has begun to train")
        doctor.notes.append("only scalars are examined; most checks need a row for each response (docs/diagnose.md)")
        diagnosis, (answers, note) = doctor.diagnosis(), by_rldoctor(records(path))
        return replace(diagnosis, answers=(*diagnosis.answers, *answers), notes=(*diagnosis.notes, note))
    if not log_paths(path) and _only_scalars(path):
        with TemporaryDirectory() as folder:
            import_run(path, Path(folder) / "run")
            return replace(examine(Path(folder) / "run"), run=str(path))
    files, damage = log_files(path)
    doctor = Doctor.of(run, next((file.metadata for file in files if file.metadata), {}))
    doctor.read(files, damage)
    if not doctor.kept.rows:
        raise UserError(f"{path}: the gradient log has no row of phase train; train or import at least one rollout")
    return doctor.diagnosis()


def _only_scalars(path: Path) -> bool:
    """Return whether a path is, or holds, another trainer's scalars and no table with a row for each response."""
    try:
        sources = find_sources(path)
    except UserError:
        return False
    return not sources.table and bool(sources)


def _setting(config: Any, *names: str) -> Any:
    """Return the value of the nested mapping ``config`` under the keys ``names``; None where it lacks one."""
    for name in names:
        config = config.get(name) if isinstance(config, Mapping) else None
    return config


def _of_preset(config: Mapping[str, Any], name: str) -> str | None:
    """Return the setting ``name`` ("advantage" or "aggregation") of the configuration, else of its preset, or None."""
    given = PRESETS.get(str(_setting(config, "rule", "preset")))
    named = _setting(config, "rule", name) or getattr(given, name, None)
    return str(named) if named else None


def _one_program(config: Mapping[str, Any]) -> bool:
    """Return whether the configuration says that the trainer sampled with its own program in float32, at a temperature
    above 0, without top-p and without policy lag."""
    engine, precision, top_p, temperature = (
        _setting(config, "sampling", name) for name in ("engine", "precision", "top_p", "temperature")
    )
    plain = precision in (None, "same") and top_p in (None, 1) and (temperature or 0) > 0
    own = engine in ("auto", "fast", "generate") and _setting(config, "model", "dtype") == "float32"
    return own and plain and not _setting(config, "batch", "staleness")
