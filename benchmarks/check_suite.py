"""Wall time and peak memory of ``python -m proofs_check`` as a whole, controls included.

    python benchmarks/check_suite.py [--jobs 2] [--seed 0]

Memory is the largest sum over the command's processes, from /proc, read four times a second (Linux).
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from fspo.base.command_line import CommandParser
from fspo.base.errors import UserError, run_cli
from fspo.base.files import write_text

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "check_suite.json"
WALL_GOAL, MEMORY_GOAL = 120.0, 2048.0  # seconds, MiB


def processes() -> dict[int, tuple[int, int]]:
    """Parent and proportional resident memory (KiB) of every process that may be read."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            rollup = (entry / "smaps_rollup").read_text()
        except (OSError, ValueError, IndexError):  # it has ended, or belongs to another user
            continue
        shares = [int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")]
        found[int(entry.name)] = parent, sum(shares)
    return found


def memory_mib(root: int) -> float:
    """Memory of a process and all its descendants; pages that they share count once."""
    known, family = processes(), {root}
    while True:
        children = {pid for pid, (parent, _) in known.items() if parent in family} - family
        if not children:
            return sum(known[pid][1] for pid in family if pid in known) / 1024
        family |= children


def main() -> int:
    """Run the suite once, print and write down time, memory and what it found; status 1 if it failed."""
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
        start, peak = time.perf_counter(), 0.0
        suite = subprocess.Popen([*command, "--out", folder], cwd=ROOT, stdout=subprocess.DEVNULL)
        while suite.poll() is None:
            peak = max(peak, memory_mib(suite.pid))
            time.sleep(0.25)
        wall = time.perf_counter() - start
        report = Path(folder) / "proofs_check.json"
        if not report.exists():
            raise UserError("the suite wrote no report: run python -m proofs_check to see why")
        rows = json.loads(report.read_text(encoding="utf-8"))["rows"]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    verdicts = [row["verdict"] for row in rows]
    slowest = sorted(rows, key=lambda row: -row["seconds"])[:5]
    results = {
        "wall_seconds": wall,
        "wall_goal_seconds": WALL_GOAL,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "load_average_at_the_end": os.getloadavg()[0],  # above the number of cores: others were at work too
        "peak_memory_mib": peak,
        "memory_goal_mib": MEMORY_GOAL,
        "jobs": options.jobs,
        "cores": os.cpu_count(),
        "checks": {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))},
        "sum_of_check_seconds": sum(row["seconds"] for row in rows),
        "slowest": {f"{row['id']}: {row['name']}": row["seconds"] for row in slowest},
        "exit_status": suite.returncode,
        "versions": {name: version(name) for name in ("numpy", "scipy", "mpmath", "fspo")},
    }
    for name, value in results.items():
        print(f"{name}: {value}")
    write_text(RESULTS, json.dumps(results, indent=1) + "\n")
    print(f"results: {RESULTS}")
    return suite.returncode


if __name__ == "__main__":
    run_cli(main)
