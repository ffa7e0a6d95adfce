"""Freed memory goes back to the system, from as many bytes as are worth it."""

import platform
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from fspo.base.memory import return_freed_memory

GLIBC = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"


def resident() -> int:
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return 1024 * int(found[1])


@pytest.mark.skipif(not GLIBC, reason="other C libraries keep freed memory in their own ways")
def test_freed_blocks_are_given_back():
    # Blocks below 128 KiB come from the heap. Of each sixteen neighbours one stays, so that the heap cannot shrink.
    blocks = [np.ones(12_000) for _ in range(1_600)]
    kept = blocks[::16]
    held = resident()
    del blocks
    before = resident()
    assert before > held - 30e6  # the control: freeing alone gives little back
    assert not return_freed_memory(least=2**40)
    assert return_freed_memory(least=2**20)
    assert before - resident() > 100e6
    assert sum(block.sum() for block in kept) == 100 * 12_000


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr("fspo.base.memory._glibc", lambda: None)
    assert not return_freed_memory(least=0)
