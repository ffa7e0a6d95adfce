"""Give freed memory back to the operating system."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

WORTH_A_TRIM = 2**28
"""Freed bytes from which on they are given back. Below, the time to get them again would cost more than they are worth:
on the embedded model's training a trim after every pass takes 4 % (docs/scale.md)."""


class _MallInfo2(ctypes.Structure):
    """The result of glibc's ``mallinfo2``; ``fordblks`` counts the bytes of freed blocks that its heaps keep."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


@cache
def _glibc() -> Any:
    """Return the C library if it is glibc 2.33 or newer, else None."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        return None
    library.mallinfo2.restype = _MallInfo2
    return library


def return_freed_memory(least: int = WORTH_A_TRIM) -> bool:
    """Give the freed blocks of the C library's heaps back to the system; return whether that was done.

    glibc keeps freed blocks of up to 32 MiB, scattered between those in use, and a later allocation may not fit into
    them: a process that trains grows from phase to phase. Nothing is done if fewer than ``least`` bytes are free, or
    without glibc 2.33 or newer.
    """
    library = _glibc()
    if library is None or library.mallinfo2().fordblks < least:
        return False
    library.malloc_trim(0)
    return True
