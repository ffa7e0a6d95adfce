"""Rows made for the doctor's laws, what the laws say of them, and the issues about a run."""

import numpy as np

from analysis.doctor.examine import examine
from analysis.doctor.first_epoch import FirstEpoch
from analysis.doctor.patient import READ, Rows


def issues(run):
    return {answer.id: answer for answer in examine(run).issues}


def rows_of(n, group=8, **columns):
    """Rows of the first epoch, in groups of ``group`` and 10 rollouts; columns that are not given are NaN."""
    i = np.arange(n)
    made = {name: np.full(n, np.nan) for name in READ}
    made |= {"rollout": i * 10 // n, "step": i * 10 // n, "prompt_id": i // group, "response_id": i}
    return Rows(made | {"updates_since_rollout": 0.0 * i + 1, "times_used": 0.0 * i} | columns)


def laws(float32=False, **columns):
    """The answers of the laws of the first epoch about rows with these columns."""
    n = len(columns["length"])
    return FirstEpoch(rows_of(n, **columns), np.ones(n, bool), float32=float32).answers()
