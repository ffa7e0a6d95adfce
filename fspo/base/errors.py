"""The error class for bad input, the search for the extra (``pip install '.[EXTRA]'``) that installs a package, and the
wrapper of commands that prints every error as one line, without a traceback."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, requires
from typing import Any, NoReturn, TextIO


class UserError(ValueError):
    """Bad input: one line that says what is wrong and how to fix it."""

    status = 2
    """Exit status of a command that this error ends."""


class TrainingDiverged(UserError):
    """Training stopped because weights, the optimizer's moments or updates became infinite or NaN, or importance
    weights became too large.

    This is a result of the run, not an error in its input."""

    status = 3


def unknown_name(kind: str, name: str, known: list[str] | tuple[str, ...]) -> UserError:
    """Build the error for a name that does not exist; its message says what kind of name it is (``kind``) and suggests
    the nearest of the ``known`` names."""
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return UserError(f"unknown {kind} {name!r}: {hint}choose from {', '.join(known)}")


def extra_with(module: str) -> str | None:
    """Return the first extra (``pip install '.[EXTRA]'``) that installs the package of a module; None if none does."""
    wanted = module.partition(".")[0].replace("_", "-")
    try:
        lines = requires("fspo") or []
    except PackageNotFoundError:  # fspo itself is not installed: its code runs from its source folder
        return None
    for line in lines:
        package = re.match(r"[\w.\-]+", line)
        extra = re.search(r"extra == ['\"]([\w\-]+)['\"]", line)
        if package and extra and package[0].lower() == wanted.lower():
            return extra[1]
    return None


_CURES = {
    errno.ENOSPC: "make room, or name a place on another disk",
    errno.EACCES: "change its permissions, or name another place",
    errno.EROFS: "name a place that can be written",
    errno.ENAMETOOLONG: "give a shorter name",
}
"""Fixes of errors of the operating system, by number; of others the fix is to check the path."""


def in_one_line(error: Exception) -> tuple[str, int]:
    """Return an error's message in one line, and the exit status of a command that ends with the error."""
    if isinstance(error, UserError):
        return str(error), error.status
    if isinstance(error, ModuleNotFoundError) and (extra := extra_with(error.name or "")):
        return f"{error.name} is not installed: pip install '.[{extra}]' in fspo's repository", 2
    if isinstance(error, OSError) and error.errno is not None:
        place = error.filename if error.filename is not None else "the output"
        return f"{place}: {error.strerror}: {_CURES.get(error.errno, 'check the path')}", 2
    last = (str(error).strip().splitlines() or [""])[-1]
    return f"{type(error).__name__}: {last} (an error of this program: FSPO_TRACEBACK=1 shows where)", 1


def run_cli(main: Callable[[], int | None]) -> NoReturn:
    """Run ``main``, the function that a command line calls, and exit with the status that it returns (None: 0).

    An error becomes one line on stderr. The exit status is 2 for bad input, a package that is missing because the extra
    that brings it was not installed, and an error of the operating system, such as a full disk; 3 if training diverged;
    1 for any other error. With the environment variable FSPO_TRACEBACK=1 errors are raised instead. An interrupt by
    Ctrl-C becomes one line and status 130. If the reader of the output ends first, as in ``... | head``, the command
    ends silently with status 141, as shell tools do. Messages on stderr that cannot be written are lost, and no work
    ends for them."""
    if sys.stderr is None:  # the command was started with standard error closed
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    _keep_on_without(sys.stderr)
    try:
        status = main()
        if sys.stdout is not None:  # None if the command was started with standard output closed
            sys.stdout.flush()
    except BrokenPipeError:
        status = 128 + 13
    except KeyboardInterrupt:
        print("interrupted: finished work is kept; run the same command again to go on", file=sys.stderr)
        status = 130
    except Exception as error:
        if os.environ.get("FSPO_TRACEBACK") == "1":
            raise
        said, status = in_one_line(error)
        print("error:", " ".join(said.splitlines()), file=sys.stderr)
    if (out := sys.stdout) is not None:  # None where a program without a console runs
        try:
            out.flush()
        except OSError:  # discard it: Python flushes it again when it exits, and would raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
    sys.exit(status or 0)


def _keep_on_without(stream: TextIO | None) -> None:
    """Make stderr (``stream``) discard all that is written after its first error (a full disk, a reader that ended)."""

    def forgiving(call: Callable[..., Any]) -> Callable[..., Any]:
        def tried(*values: Any) -> Any:
            try:
                return call(*values)
            except OSError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)

        return tried

    if stream is not None and stream is sys.__stderr__:
        for name in ("write", "flush"):
            setattr(stream, name, forgiving(getattr(stream, name)))
