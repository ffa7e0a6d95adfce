"""Run all checks of the doctor on one run folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from analysis.doctor.checks import CHECKS, Doctor
from analysis.doctor.issues import Diagnosis
from analysis.doctor.scalars import by_rldoctor, records
from analysis.importing.run import import_run
from analysis.importing.sources import find_sources
from fspo.base.errors import UserError
from fspo.gradlog.files import log_files, log_paths
from fspo.gradlog.run_folder import METRICS, check_run

__all__ = ["CHECKS", "examine"]


def examine(run: str | Path) -> Diagnosis:
    """Examine a run folder with every check; scalars of another trainer (without a table of responses) are imported.

    Without a gradient log, rldoctor's answers on the metrics are added, if that package is installed. Raise UserError
    if there is nothing to examine."""
    path = Path(run)
    if not path.is_file():
        check_run(path)
    if not log_paths(path) and not (path / METRICS).is_file() and _scalars_of(path):
        with TemporaryDirectory() as folder:
            import_run(path, Path(folder) / "run")
            return replace(examine(Path(folder) / "run"), run=str(path))
    if not log_paths(path) and (path / METRICS).is_file():
        doctor = Doctor.of(run)
        doctor.notes.append("no gradient log: only metrics.jsonl is examined, and most checks need rows")
        diagnosis = doctor.diagnosis()
        if not doctor.scalars:
            raise UserError(
                f"{path} has no gradient log and no number in {METRICS}: nothing to examine; name a run that has begun "
                "to train"
            )
        answers, note = by_rldoctor(records(path))
        return replace(diagnosis, answers=(*diagnosis.answers, *answers), notes=(*diagnosis.notes, note))
    files, _ = log_files(path)
    metadata = next((file.metadata for file in files if file.metadata), {})
    doctor = Doctor.of(run, metadata)
    doctor.read()
    if not doctor.kept.rows:
        raise UserError(f"{path}: the gradient log has no row of phase train; train or import at least one rollout")
    return doctor.diagnosis()


def _scalars_of(path: Path) -> bool:
    """Return whether a path is, or holds, another trainer's scalars and no table with a row for each response."""
    try:
        sources = find_sources(path)
    except UserError:
        return False
    return not sources.table and bool(sources)
