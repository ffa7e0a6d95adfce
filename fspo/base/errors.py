"""The error class for bad input, the search for the extra (``pip install fspo[EXTRA]``) with a missing package, and the
wrapper of commands that prints bad input and a missing package as one line, without a traceback.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, requires
from typing import NoReturn


class UserError(ValueError):
    """Bad input: one line that says what is wrong and names the cure."""

    status = 2
    """Exit status of a command that this error ends."""


class TrainingDiverged(UserError):
    """Training stopped because weights, the optimizer's moments or updates became infinite or NaN, or importance
    weights became too large.

    This is a result of the run, not an error in its input.
    """

    status = 3


def unknown_name(
    kind: str, name: str, known: list[str] | tuple[str, ...], written: Callable[[str], str] = str
) -> UserError:
    """Build the error for a name that does not exist; its message suggests the nearest known name.

    ``written`` turns a name into the form in which the user writes it.
    """
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {written(near[0])!r}? " if near else ""
    return UserError(f"unknown {kind} {written(name)!r}: {hint}choose from {', '.join(map(written, known))}")


_DISTRIBUTIONS = {"flint": "python-flint", "z3": "z3-solver", "yaml": "pyyaml"}
"""Name of a package on the package index for each module that is imported under another name."""


def extra_with(module: str) -> str | None:
    """Return the first extra (``pip install fspo[EXTRA]``) that installs the package of a module; None if no extra
    does.
    """
    name = module.partition(".")[0]
    wanted = _DISTRIBUTIONS.get(name, name.replace("_", "-"))
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


def run_cli(main: Callable[[], int | None]) -> NoReturn:
    """Run a command-line entry point and exit with its status.

    A UserError becomes one line on stderr and its exit status: 2, or 3 if training diverged. A package that is missing
    because the extra that brings it was not installed becomes one line and status 2. An interrupt by Ctrl-C becomes one
    line and status 130. If the reader of the output ends first, as in ``... | head``, the command ends silently with
    status 141, as shell tools do.
    """
    try:
        status = main()
        sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.status)
    except ModuleNotFoundError as error:
        extra = extra_with(error.name or "")
        if extra is None:
            raise
        print(f"error: {error.name} is not installed: pip install 'fspo[{extra}]'", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted: finished work is kept; run the same command again to go on", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # Python flushes stdout again when it exits, and would raise for the closed pipe: so stdout becomes /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + 13)
    sys.exit(status or 0)
