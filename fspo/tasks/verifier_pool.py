"""Verifiers in worker processes that can be killed: no content of a response can hang or crash training.

A worker that exceeds its time limit is killed by its parent (pebble's ProcessPool) and replaced. ``signal.alarm`` is
not used: it works in the main thread alone, and in other threads it would make every reward 0."""

from __future__ import annotations

import logging
import math
import multiprocessing
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from pebble import ProcessExpired, ProcessPool

from fspo.base.errors import UserError
from fspo.tasks.base import Rewards

log = logging.getLogger("fspo.tasks.verify")

START_GRACE_S = 120.0
"""Seconds that worker processes get to start.

A pool in which no call ends within the time limit of a call plus these seconds counts as broken."""
MAX_LOGGED_MESSAGES = 20

Verify = Callable[..., Any]

_verify: Verify | None = None
_setup_error = ""


def _set_up_worker(factory: Callable[..., Verify], args: tuple, memory_limit_gib: float | None) -> None:
    """Build the verifier in a worker process, before the time limit of the first call begins.

    If that fails, every verification of this worker fails with the error."""
    global _verify, _setup_error
    try:
        _verify = factory(*args)
        if memory_limit_gib is not None:
            _limit_memory(memory_limit_gib)
    except BaseException as error:
        _setup_error = f"{type(error).__name__}: {error}"


def _limit_memory(gib: float) -> None:
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):  # on systems other than Linux the memory of a process cannot be limited
        return
    limit = pages * resource.getpagesize() + int(gib * 2**30)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))


def _call(kwargs: Mapping[str, Any]) -> tuple[float, str]:
    """Call this worker's verifier with ``kwargs``; return its value (0 if it failed) and error message ('' if none)."""
    if _verify is None:
        return 0.0, f"the verifier could not be loaded ({_setup_error})"
    try:
        value = _verify(**kwargs)
        if not isinstance(value, Real | np.bool_) or not math.isfinite(value):
            return 0.0, f"the reward is {value!r:.100}, not a finite number"
        return float(value), ""
    except BaseException as error:
        return 0.0, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _stop(pool: ProcessPool) -> None:
    pool.stop()
    pool.join()


class VerifierPool:
    """Runs one verifier on many responses in worker processes, each call under a time limit.

    Workers start at the first call. They stop at `close`, when the object is garbage-collected, and at interpreter
    exit. Calls from any thread work. The start method is ``spawn``, so a script that scores must guard its entry point
    by ``if __name__ == "__main__"``.

    Parameters
    ----------
    factory : callable
        Importable ``factory(*args) -> verify``; called once in each worker. ``verify(**call)`` returns a number.
    args : tuple
        Picklable arguments of the factory.
    workers : int
        Number of worker processes.
    timeout_s : float
        Time limit of one call in seconds, counted from the moment at which a worker begins it.
    memory_limit_gib : float, optional
        Address space, GiB, that a worker may take beyond what it holds after set-up (Linux); a call that needs more
        ends as an error.
    """

    def __init__(
        self,
        factory: Callable[..., Verify],
        args: tuple = (),
        *,
        workers: int = 2,
        timeout_s: float = 5.0,
        memory_limit_gib: float | None = None,
    ) -> None:
        if workers < 1:
            raise UserError(f"verifier workers={workers}: use at least 1")
        if not timeout_s > 0 or not math.isfinite(timeout_s):
            raise UserError(f"verifier timeout_s={timeout_s}: use a positive number of seconds")
        self.timeout_s = timeout_s
        self._workers = workers
        self._setup = (factory, args, memory_limit_gib)
        self._lock = threading.Lock()
        self._pool: ProcessPool | None = None
        self._finalizer: weakref.finalize | None = None
        self._logged: set[str] = set()

    def close(self) -> None:
        """Kill the verifier's worker processes; a later call of `score` starts new ones."""
        with self._lock:
            if self._finalizer is not None:
                self._finalizer()
            self._pool = self._finalizer = None

    def _running_pool(self) -> ProcessPool:
        with self._lock:
            if self._pool is None:
                self._pool = ProcessPool(
                    max_workers=self._workers,
                    initializer=_set_up_worker,
                    initargs=self._setup,
                    context=multiprocessing.get_context("spawn"),
                )
                self._finalizer = weakref.finalize(self, _stop, self._pool)
            return self._pool

    def score(self, calls: Sequence[Mapping[str, Any]]) -> Rewards:
        """Run ``verify`` once for each entry of ``calls``, which holds its keyword arguments.

        Returns
        -------
        Rewards
            Value 0 and status ``"timeout"`` or ``"error"`` if the verifier hung, raised, died or returned no
            finite number. Each new error message is logged once.

        Raises
        ------
        UserError
            If the workers cannot be started.
        """
        ended: dict[int, tuple[float, str, str]] = {}
        for _ in range(2):
            # A worker that dies while idle (killed by the system, say) breaks the pool. The pool's unfinished calls are
            # then run once more, in a new pool.
            left = [i for i in range(len(calls)) if i not in ended]
            for i, future in zip(left, self._run([calls[i] for i in left]), strict=True):
                if not isinstance(future.exception(), BrokenProcessPool):
                    ended[i] = self._outcome(future)
            if len(ended) == len(calls):
                break
            self.close()
        else:
            raise UserError(
                "the verifier's worker processes die at start: guard the script's entry point by "
                'if __name__ == "__main__", and look above for the workers\' own error'
            )
        values, status, said = zip(*(ended[i] for i in range(len(calls))), strict=True) if calls else ((), (), ())
        messages = Counter(filter(None, said))
        for message in [m for m in messages if m not in self._logged][: MAX_LOGGED_MESSAGES - len(self._logged)]:
            self._logged.add(message)
            log.warning("verifier failed on %d response(s), counted apart: %s", messages[message], message)
        return Rewards(np.array(values, np.float64), list(status), dict(messages))

    def _run(self, calls: Sequence[Mapping[str, Any]]) -> list[Future]:
        pool = self._running_pool()
        futures: list[Future] = [pool.schedule(_call, args=(dict(call),), timeout=self.timeout_s) for call in calls]
        pending = set(futures)
        while pending:
            done, pending = wait(pending, timeout=self.timeout_s + START_GRACE_S, return_when=FIRST_COMPLETED)
            if not done:
                self.close()
                raise UserError(
                    f"no verifier answered within {self.timeout_s + START_GRACE_S:.0f} s: the workers hang while "
                    "they start; check what your reward module does on import"
                )
        return futures

    def _outcome(self, future: Future) -> tuple[float, str, str]:
        """Return the reward, the status and the error message ("" for none) of an ended call."""
        error = future.exception()
        if error is None:
            value, message = future.result()
            return value, "error" if message else "ok", message
        if isinstance(error, TimeoutError):
            return 0.0, "timeout", f"no result within {self.timeout_s:g} s"
        died = isinstance(error, ProcessExpired)
        return 0.0, "error", f"the worker died (exit status {error.exitcode})" if died else repr(error)
