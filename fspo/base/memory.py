"""Give freed memory back to the operating system."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

WORTH_A_TRIM = 2**28
"""Fewest freed bytes that are given back. For fewer bytes it costs more time to get them again than they are worth: in
training of the embedded model, giving back after every pass takes 4 % of the time (measured)."""


class _MallInfo2(ctypes.Structure):
    """The result of glibc's ``mallinfo2``; ``fordblks`` counts the bytes of freed blocks that its heaps keep."""

    _fields_ = [(name, ctypes.c_size_t) for name in (*"abcdefgh", "fordblks", "keepcost")]


@cache
def _glibc() -> Any:
    """Return the C library if it is glibc 2.33 or newer, else None."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        return None
    library.mallinfo2.restype = _MallInfo2
    return library


def return_freed_memory(least: int = WORTH_A_TRIM) -> bool:
    """Give the freed blocks of the C library's heaps back to the system; return whether they were given back.

    glibc keeps freed blocks of up to 32 MiB, scattered between blocks in use. A later allocation may not fit into the
    freed blocks, so a process that trains takes more memory from phase to phase. Nothing is given back if fewer than
    ``least`` bytes are free, or if the C library is not glibc 2.33 or newer."""
    library = _glibc()
    if library is None or library.mallinfo2().fordblks < least:
        return False
    library.malloc_trim(0)
    return True
