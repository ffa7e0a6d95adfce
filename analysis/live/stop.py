"""Functions that say why training should stop; `fspo.integrations.trl.observe` takes them by name."""

from __future__ import annotations

from functools import lru_cache

from analysis.doctor.issues import Severity
from analysis.live.follow import Follower

_follower = lru_cache(maxsize=1)(Follower)


def critical(run: str) -> str | None:
    """Return the doctor's critical issues of the log in the folder ``run``, as the reason to end training; or None.

    A later call with the same folder reads only the rollouts that are new."""
    return _reason(run, Severity.CRITICAL)


def warning(run: str) -> str | None:
    """Return the issues that are a warning or worse, as the reason to end training; None if there are none."""
    return _reason(run, Severity.WARNING)


def _reason(run: str, least: Severity) -> str | None:
    follower = _follower(run)
    while follower.poll():
        pass
    issues = follower.diagnosis.issues if follower.diagnosis else []
    told = [f"{one.id}: {one.summary}; fix: {one.fix}" for one in issues if (one.severity or 0) >= least]
    return "; ".join(told) or None
