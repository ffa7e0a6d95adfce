"""Helpers that all benchmarks share: the memory of this process, the machine, files of results.

This module imports little, so that importing it adds little to the memory that a benchmark measures."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from fspo.base.files import write_text

RESULTS = Path(__file__).parent / "results"


def peak_mib() -> float:
    """Return the largest resident memory of this process, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10  # Linux counts it in KiB


def machine(*packages: str) -> dict[str, Any]:
    """Return by name what the machine has: cores, load average, versions of ``packages`` (None: not installed)."""
    installed = {one.metadata["Name"]: one.version for one in reversed([*distributions()])}  # the first one is imported
    versions = {name: installed.get(name) for name in packages}
    return {"cores": os.cpu_count(), "load_average": os.getloadavg(), "versions": versions}


def write_results(results: Mapping[str, Any], path: Path) -> None:
    """Write a benchmark's results as JSON and print the path; the file appears only when it is complete."""
    write_text(path, json.dumps(results, indent=1) + "\n")
    print(f"results: {path}")
