"""Share the parts of a log among the workers of a Dask cluster, which may run on several machines.

A worker reads its parts from the log's files, so every worker must see the files under the same path. If a worker ends,
Dask gives its parts to another worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from itertools import pairwise
from pathlib import Path
from typing import Any

from fspo.base.errors import UserError

PARTS = 4
"""Number of parts of a log for each thread of a worker. With more parts, less work is lost if a worker ends. With fewer
parts, workers send fewer results."""
WAIT = 30
"""Seconds within which the Dask scheduler must answer and have a worker."""


def known_workers(workers: str) -> int | str:
    """Return what the text ``workers`` says: a number of workers to start here, or the address of a Dask scheduler.

    Raise UserError if the text is neither."""
    if workers.isdecimal() and int(workers) > 0:
        return int(workers)
    if ":" not in workers:
        raise UserError(f"--workers {workers}: give a number from 1, or the address of a Dask scheduler (HOST:PORT)")
    return workers


def on_workers(
    workers: str,
    work: Callable[[Sequence[Any]], Any],
    items: Sequence[Any],
    files: Sequence[Path],
    done: Callable[[float], None],
) -> Iterator[Any]:
    """Divide ``items`` into parts, do ``work`` on each on a Dask worker, and yield the results in the order of parts.

    Parameters
    ----------
    workers : str
        Number of worker processes to start on this machine, or the address of a Dask scheduler.
    work : callable
        Function of a part of the items. A worker receives it once for all parts, so it must not change its own data.
    files : sequence of path
        Files that ``work`` reads.
    done : callable
        Called after each part with the share of the items that was done since the last call.

    Raises
    ------
    UserError
        If no scheduler or worker answers, a worker has another version of fspo or lacks a file, or the workers end
        while they run a part.
    """
    from distributed import CancelledError, Client, KilledWorker, LocalCluster

    with ExitStack() as stack:
        address: Any = known_workers(workers)
        if isinstance(address, int):
            quiet: dict[str, Any] = {"dashboard_address": None, "silence_logs": "CRITICAL"}
            address = stack.enter_context(LocalCluster(n_workers=address, threads_per_worker=1, **quiet))
        try:
            client: Any = stack.enter_context(Client(address, timeout=WAIT, set_as_default=False))
            client.wait_for_workers(1, timeout=WAIT)
        except OSError:  # also a TimeoutError, which is a kind of OSError
            raise UserError(
                f"--workers {workers}: no Dask scheduler with a worker answers there within {WAIT} s: start both "
                "(`dask scheduler`, `dask worker ADDRESS`), or give a number of workers"
            ) from None
        for worker, problem in client.run(partial(_problem, _version(), [str(path) for path in files])).items():
            if problem:
                raise UserError(f"--workers {workers}: the worker at {worker} {problem}")
        number = min(PARTS * sum(client.nthreads().values()), len(items))
        cuts = [i * len(items) // number for i in range(number + 1)]
        parts = [items[start:stop] for start, stop in pairwise(cuts)]
        # `work` is sent as the result of a task: if the worker with the only copy ends, Dask runs the task again. Dask
        # could not restore data that was sent with `scatter`.
        shared = client.submit(lambda: work, pure=False)
        futures = [client.submit(_do, shared, part, pure=False) for part in parts]
        for place, part in enumerate(parts):
            try:
                yield futures[place].result()
            except (KilledWorker, CancelledError) as error:
                raise UserError(
                    f"--workers {workers}: the workers ended while they read the log, most likely for want of memory "
                    f"({type(error).__name__}): give each more, or take more of them"
                ) from None
            futures[place].release()
            done(len(part) / len(items))


def _do(work: Callable[[Sequence[Any]], Any], part: Sequence[Any]) -> Any:
    return work(part)


def _version() -> str:
    try:
        return version_of("fspo")
    except PackageNotFoundError:
        return "from a folder, without an installation"


def _problem(version: str, files: Sequence[str]) -> str:
    """Say why this Dask worker cannot read the log's ``files`` for a process that has the fspo version ``version``.

    Return "" if it can."""
    if _version() != version:
        return f"has fspo {_version()}, and this process {version}: install one version on both"
    missing = next((file for file in files if not os.access(file, os.R_OK)), None)
    return f"cannot read {missing}: workers read the log's files under the same path as this process" if missing else ""
