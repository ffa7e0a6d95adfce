"""The error class for bad input, and the wrapper of commands that prints it without a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from difflib import get_close_matches
from typing import NoReturn


class UserError(ValueError):
    """Bad input: one line that says what is wrong and names the cure."""


def unknown_name(kind: str, name: str, known: list[str] | tuple[str, ...]) -> UserError:
    """Build the error for a name that does not exist; its message suggests the nearest known name."""
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return UserError(f"unknown {kind} {name!r}: {hint}choose from {', '.join(known)}")


def run_cli(main: Callable[[], int | None]) -> NoReturn:
    """Run a command-line entry point and exit with its status.

    A UserError becomes one line on stderr and exit status 2. If the reader of the output ends first, as in
    ``... | head``, the command ends silently with status 141, as shell tools do.
    """
    try:
        status = main()
        sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted: finished work is kept; run the same command again to go on", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # Python flushes stdout again when it exits, and would raise for the closed pipe: so stdout becomes /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + 13)
    sys.exit(status or 0)
