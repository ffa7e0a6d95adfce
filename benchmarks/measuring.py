"""Helpers that all benchmarks share: measure seconds and memory of processes, describe the machine, write results.

This module imports little, so that importing it adds little to the memory that a benchmark measures.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from fspo.base.files import write_text

RESULTS = Path(__file__).parent / "results"


def peak_mib() -> float:
    """Return the largest resident memory of this process, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10  # Linux counts it in KiB


class Watched(NamedTuple):
    """Measurements of a command that has ended.

    ``status`` is its exit status, ``wall`` its wall seconds, ``cpu`` the CPU seconds of all its processes, and ``peak``
    the largest memory in bytes that all its processes had together at one time; a memory page that n of them share
    counts as 1/n in each.
    """

    status: int
    wall: float
    cpu: float
    peak: int


def watch(command: Sequence[str], pause: float, **options: Any) -> Watched:
    """Run a command to its end, and measure the memory of its processes every ``pause`` seconds.

    ``options`` are further arguments of ``subprocess.Popen``.
    """
    before, start, peak = os.times(), time.perf_counter(), 0
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, **options)
    while process.poll() is None:
        total = 0
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):  # raised for a process that has ended
                total += one.memory_full_info().pss
        peak = max(peak, total)
        time.sleep(pause)
    after = os.times()
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    return Watched(process.returncode, time.perf_counter() - start, cpu, peak)


def machine(*packages: str) -> dict[str, Any]:
    """Describe the machine: cores, load average, versions of packages (None for one that is not installed)."""
    installed = {one.metadata["Name"]: one.version for one in distributions()}
    versions = {name: installed.get(name) for name in packages}
    return {"cores": os.cpu_count(), "load_average": os.getloadavg(), "versions": versions}


def write_results(results: Mapping[str, Any], path: Path) -> None:
    """Write a benchmark's results as JSON and print the path; the file appears only when it is complete."""
    write_text(path, json.dumps(results, indent=1) + "\n")
    print(f"results: {path}")
