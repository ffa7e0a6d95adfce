"""Processes: work of one analysis on several cores, and processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from fspo.base.errors import UserError

MOST = 8
"""Processes at most: each holds a chunk of the log."""
Job = Callable[[Callable[[], None]], Any]
"""A function of a signal that it gives at each step it is done with."""


def cores() -> int:
    """Processes to use: the cores that this one may run on, or 1 where processes cannot share memory."""
    if "fork" not in mp.get_all_start_methods():
        return 1
    affinity = getattr(os, "sched_getaffinity", None)
    return min(len(affinity(0)) if affinity else os.cpu_count() or 1, MOST)


def in_processes(jobs: Sequence[Job], step: Callable[[], None] = lambda: None) -> list[Any]:
    """The results of the jobs in their order; each runs in a process of its own, all at once.

    Parameters
    ----------
    step : callable
        Called here at each signal of a job.

    Raises
    ------
    UserError
        The first one of a job, or if a process was killed (memory).
    """
    if len(jobs) == 1 or cores() == 1:
        return [job(step) for job in jobs]
    context = mp.get_context("fork")
    places: dict[Any, int] = {}
    workers = []
    for place, job in enumerate(jobs):
        here, there = context.Pipe(duplex=False)
        workers.append(context.Process(target=_run, args=(job, there), daemon=True))
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
    try:
        out.send(("done", job(lambda: out.send(("step", None)))))
    except UserError as error:
        out.send(("refused", str(error)))
    except KeyboardInterrupt:
        pass
    except BaseException:
        out.send(("failed", traceback.format_exc()))


def end_with_parent() -> None:
    """Have this process end when the one that started it ends, however that ends (SIGKILL too)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG
    else:
        threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def end_with_launcher() -> None:
    """The same for a worker of torchrun (or accelerate launch), which would train on without its launcher."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent()
