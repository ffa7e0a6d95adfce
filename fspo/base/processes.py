"""Run the jobs of an analysis in several forked processes, and let a process end when its parent ends."""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any

from fspo.base.errors import UserError

MOST = 8
"""Largest number of processes. The limit bounds memory, because each process holds a part of the gradient log."""
Job = Callable[[Callable[[], None]], Any]
"""A job: a function that takes a callback, calls it after each step of its work, and returns a result."""


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Let processes that are started inside the ``with`` block never see Ctrl-C: their parent sees it and ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # a new process inherits the mask
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def cores() -> int:
    """Return the number of processes to use: the available cores, at most 8; 1 on systems without fork."""
    if "fork" not in mp.get_all_start_methods():
        return 1
    affinity = getattr(os, "sched_getaffinity", None)
    return min(len(affinity(0)) if affinity else os.cpu_count() or 1, MOST)


def in_processes(jobs: Sequence[Job], step: Callable[[], None] = lambda: None) -> list[Any]:
    """Run each job in a separate process, all at the same time, and return their results in the order of the jobs. A
    job is a function that takes a callback, calls it after each step of its work, and returns a result.

    A single job, and jobs where only one process can be used (`cores`), run in the calling process one by one.

    Parameters
    ----------
    step : callable
        Called in the calling process each time that a job reports a finished step of its work.

    Raises
    ------
    UserError
        The first UserError that a job raised, or if a process was killed (most likely for want of memory).
    RuntimeError
        For any other exception that a job raised in a separate process; the message is its traceback.
    """
    if len(jobs) == 1 or cores() == 1:
        return [job(step) for job in jobs]
    context = mp.get_context("fork")
    places: dict[Any, int] = {}
    workers = []
    for place, job in enumerate(jobs):
        here, there = context.Pipe(duplex=False)
        workers.append(context.Process(target=_run, args=(job, there), daemon=True))
        with without_interrupts():
            workers[-1].start()
        there.close()
        places[here] = place
    results: list[Any] = [None] * len(jobs)
    try:
        while places:
            for ready in wait(list(places)):
                try:
                    kind, value = ready.recv()  # type: ignore[union-attr]
                except EOFError:
                    raise UserError(
                        "a process of the analysis was killed, most likely for want of memory: free some and run again"
                    ) from None
                if kind == "step":
                    step()
                elif kind == "refused":
                    raise UserError(value)
                elif kind == "failed":
                    raise RuntimeError(value)
                else:
                    results[places.pop(ready)] = value
    finally:
        for worker in workers:
            if places:
                worker.terminate()
            worker.join()
    return results


def _run(job: Job, out: Connection) -> None:
    end_with_parent()
    try:
        out.send(("done", job(lambda: out.send(("step", None)))))
    except UserError as error:
        out.send(("refused", str(error)))
    except BaseException:
        out.send(("failed", traceback.format_exc()))


def end_with_parent(parent: int | None = None) -> None:
    """Make this process end when its parent process ends, even if the parent is killed by SIGKILL (Linux).

    If the parent's process id is passed as ``parent``, the process also ends at once where that parent is gone already.
    """
    if sys.platform == "linux":  # other systems have no such signal, and the process outlives a parent that is killed
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # prctl(PR_SET_PDEATHSIG): send this signal when the parent ends
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def end_with_launcher() -> None:
    """Make this process end when its parent ends, if it is a worker process of torchrun or accelerate launch: such a
    worker would otherwise go on after its launcher was killed."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent()
