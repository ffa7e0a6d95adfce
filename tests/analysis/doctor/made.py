"""Rows made for the doctor's laws, and the issues about a run."""

import numpy as np

from analysis.doctor.examine import Doctor
from analysis.doctor.patient import READ, Rows
from fspo.gradlog import read_log


def issues(run):
    doctor = Doctor.of(run, read_log(run, columns=["rollout"]).metadata)
    doctor.read()
    return {answer.id: answer for answer in doctor.diagnosis().issues}


def rows_of(n, group=8, **columns):
    """Rows of the first epoch, in groups of ``group`` and 10 rollouts; columns that are not given are NaN."""
    i = np.arange(n)
    made = {name: np.full(n, np.nan) for name in READ}
    made |= {"rollout": i * 10 // n, "step": i * 10 // n, "prompt_id": i // group, "response_id": i} | {
        "cluster": i // group
    }
    return Rows(made | {"updates_since_rollout": 0.0 * i + 1, "times_used": 0.0 * i} | columns)
