"""Wall time and peak memory of all checks of the theory, ``fspo check``, with their controls.

    python benchmarks/check_suite.py [--jobs 2] [--seed 0]

Memory is the largest sum over the command's processes, from /proc, read four times a second (Linux).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from measuring import RESULTS, machine, watch, write_results

from fspo.base.command_line import CommandParser
from fspo.base.errors import UserError, run_cli

ROOT = Path(__file__).parents[1]
WALL_GOAL, MEMORY_GOAL = 120.0, 2048.0  # goals for a run of all checks: wall seconds, MiB of peak memory


def own_share(pid: int) -> int:
    """Return a process's resident memory in bytes; a memory page that n processes share counts as 1/n of it."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))


def main() -> int:
    """Run all checks of the theory once, and print and store time, memory and failures; return 1 if a check failed."""
    parser = CommandParser(prog="python benchmarks/check_suite.py", description=__doc__ or "")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seed", type=int, default=0, help="root of every random stream")
    options = parser.parse_args()
    if options.jobs < 1 or options.seed < 0:
        raise UserError("--jobs must be at least 1 and --seed at least 0")
    if not Path("/proc/self/smaps_rollup").exists():
        raise UserError("memory is read from /proc: run this benchmark on Linux")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "proofs_check", "--jobs", str(options.jobs), "--seed", str(options.seed)]
        suite = watch([*command, "--out", folder], own_share, 0.25, cwd=ROOT)
        report = Path(folder) / "proofs_check.json"
        if not report.exists():
            raise UserError("the suite wrote no report: run fspo check to see why")
        rows = json.loads(report.read_text(encoding="utf-8"))["rows"]
    verdicts = [row["verdict"] for row in rows]
    slowest = sorted(rows, key=lambda row: -row["seconds"])[:5]
    results = {
        "wall_seconds": suite.wall,
        "wall_goal_seconds": WALL_GOAL,
        "cpu_seconds": suite.cpu,
        "peak_memory_mib": suite.peak / 2**20,
        "memory_goal_mib": MEMORY_GOAL,
        "jobs": options.jobs,
        "checks": {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))},
        "sum_of_check_seconds": sum(row["seconds"] for row in rows),
        "slowest": {f"{row['id']}: {row['name']}": row["seconds"] for row in slowest},
        "exit_status": suite.status,
        # If this load average is above the number of cores, other processes slowed the benchmark down.
        **machine("numpy", "scipy", "mpmath", "fspo"),
    }
    for name, value in results.items():
        print(f"{name}: {value}")
    write_results(results, RESULTS / "check_suite.json")
    return suite.status


if __name__ == "__main__":
    run_cli(main)
