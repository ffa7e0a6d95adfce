"""Run all checks of the doctor on one run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from analysis.doctor import band, batch, ratios
from analysis.doctor.admit import admit
from analysis.doctor.findings import Answer, Diagnosis
from analysis.doctor.patient import Patient
from fspo.base.errors import UserError

CHECKS: dict[str, Callable[[Patient], Answer]] = {
    "s_zero": ratios.s_zero,
    "old_recomputed": ratios.old_recomputed,
    "not_finite": ratios.not_finite,
    "numerics": ratios.numerics,
    "advantages_zero": batch.advantages_zero,
    "truncation": batch.truncation,
    "dropped_sequences": batch.dropped_sequences,
    "length_weighted": batch.length_weighted,
    "drift": band.drift,
    "heavy_weights": band.heavy_weights,
    "acceptance": band.acceptance,
}


def examine(run: str | Path, target: float | None = None) -> Diagnosis:
    """Examine a run folder with every check.

    Parameters
    ----------
    target : float, optional
        The band acceptance that the rule was meant to have.

    Raises
    ------
    UserError
        If there is no log to examine, or the target does not lie strictly between 0 and 1.
    """
    if target is not None and not 0 < target < 1:
        raise UserError(f"--target {target}: an acceptance lies strictly between 0 and 1, for example 0.9")
    patient = admit(run)
    answers = []
    for name, check in CHECKS.items():
        answers.append(band.acceptance(patient, target) if name == "acceptance" else check(patient))
    label = patient.rule.label if patient.rule else "unknown"
    return Diagnosis(str(run), label, len(patient.rows), tuple(answers), patient.notes)
