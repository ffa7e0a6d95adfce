"""Helpers that all benchmarks share: measure seconds and memory of processes, describe the machine, write results.

This module imports only the standard library, so that importing it adds little to the memory that a benchmark measures.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def peak_mib() -> float:
    """Return the largest resident memory of this process, MiB (ru_maxrss is in KiB on Linux, bytes on macOS)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if platform.system() == "Darwin" else 2**10)


def family(root: int) -> set[int]:
    """Return the ids of a process and of all its descendants, from /proc (Linux)."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:  # a process that has ended has no stat file
            continue
    found = {root}
    while children := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= children
    return found


def own_share(pid: int) -> int:
    """Return a process's resident memory in bytes; a memory page that n processes share counts as 1/n of it."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))


@dataclass(frozen=True)
class Watched:
    """Measurements of a command that has ended.

    ``status`` is its exit status, ``wall`` its wall seconds, ``cpu`` the CPU seconds of all its processes, and ``peak``
    the largest memory in bytes that all its processes had together at one time.
    """

    status: int
    wall: float
    cpu: float
    peak: int


def watch(command: Sequence[str], pause: float, **options: Any) -> Watched:
    """Run a command to its end, and measure the memory of its processes every ``pause`` seconds (`own_share`).

    ``options`` are further arguments of ``subprocess.Popen``.
    """
    before, start, peak = os.times(), time.perf_counter(), 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, **options)
    while process.poll() is None:
        total = 0
        for pid in family(process.pid):
            try:
                total += own_share(pid)
            except OSError:
                continue
        peak = max(peak, total)
        time.sleep(pause)
    after = os.times()
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    return Watched(process.returncode, time.perf_counter() - start, cpu, peak)


def machine(*packages: str) -> dict[str, Any]:
    """Describe the machine: cores, load average, versions of packages (None for one that is not installed)."""
    found: dict[str, str | None] = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return {"cores": os.cpu_count(), "load_average": os.getloadavg(), "versions": found}


def write_results(results: Mapping[str, Any], path: Path) -> None:
    """Write a benchmark's results as JSON and print the path; the file appears only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    part.replace(path)
    print(f"results: {path}")
