"""Run checks of the theory in one or several processes, and judge them with one correction for multiple tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import active_children, get_context
from typing import Any

from fspo.base.errors import UserError
from fspo.base.number_checks import checked_count
from fspo.base.processes import end_with_parent, without_interrupts
from proofs_check.catalogue import CHECKS
from proofs_check.frame import Check, Raw, Row, assemble, run_one

MOST_JOBS = 1024


def _run_key(index: int, key: str, seed: int) -> Raw:
    return run_one(index, next(check for check in CHECKS if check.key == key), seed)


def check_jobs(jobs: int) -> None:
    """Raise UserError if the number of processes ``jobs`` is below 1 or above 1,024."""
    checked_count("--jobs", jobs, 1, MOST_JOBS, "the number of processes")


def run_checks(
    checks: Sequence[Check], seed: int = 0, jobs: int = 1, done: Callable[[Check], object] | None = None
) -> list[Row]:
    """Run checks and judge them together: each p-value is corrected for the number of all p-values.

    Parameters
    ----------
    checks : sequence of Check, each with another name
    seed : int
        Root of every random stream. The same seed gives the same draws, whatever ``jobs`` is and whichever checks are
        selected, and the same rows up to rounding: the last bits of a sum depend on how many threads BLAS has in a
        process.
    jobs : int
        Number of processes. With several, a worker process looks up its checks in the catalogue by name. Checks that
        are not in the catalogue run first, in this process.
    done : function, optional
        Called with each check as it finishes (a progress bar).

    Returns
    -------
    list of Row, one for each check and in their order"""
    check_jobs(jobs)
    if len({check.key for check in checks}) != len(checks):
        raise UserError("two checks share one name; give each (statement, method, name) once")
    raws: list[Raw] = []
    known = {check.key for check in CHECKS} if jobs > 1 else set()
    away = [(i, check) for i, check in enumerate(checks) if check.key in known]
    for i, check in enumerate(checks):
        if check.key not in known:
            raws.append(run_one(i, check, seed))
            if done:
                done(check)
    if away:
        how: dict[str, Any] = {"initializer": end_with_parent, "initargs": (os.getpid(),)}
        before = active_children()
        with ProcessPoolExecutor(min(jobs, len(away)), mp_context=get_context("spawn"), **how) as pool:
            with without_interrupts():  # the first checks start the workers
                futures = [pool.submit(_run_key, i, check.key, seed) for i, check in away]
            try:
                for future in as_completed(futures):
                    raws.append(future.result())
                    if done:
                        done(checks[raws[-1].index])
            except BaseException:  # do not wait for the checks that are left
                for worker in set(active_children()) - set(before):
                    worker.terminate()
                raise
    return assemble(checks, sorted(raws, key=lambda raw: raw.index))
