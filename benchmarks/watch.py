"""Measure the CPU seconds that `fspo watch` spends on one more rollout of 512 rows, by how long the run already is.

    python benchmarks/watch.py --rollouts 1000

The benchmark writes a simulated gradient log rollout by rollout. After each rollout it reads the new rows and computes
the numbers that the page of `fspo watch` shows, as that command does while a run trains.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from analysis_scale import EPOCHS, GROUP, write_rollout
from measuring import RESULTS, seconds, versions, write_results

from analysis.live.follow import Follower
from fspo.base.command_line import CommandParser
from fspo.base.errors import run_cli
from fspo.gradlog import GradLogWriter
from fspo.gradlog.files import log_paths
from fspo.gradlog.run_folder import GRADLOG
from fspo.rules import preset

ROWS = 512
PROMPTS = ROWS // (GROUP * EPOCHS)
LAST = 5
"""Number of last rollouts over which the median of the CPU seconds is taken."""


def main() -> None:
    """Read a simulated log while it is written, rollout by rollout; print the CPU seconds for one more rollout, by
    number of rollouts, and write them to a file.
    """
    parser = CommandParser(prog="python benchmarks/watch.py", description=__doc__ or "")
    parser.add_argument("--rollouts", type=int, default=1000, help="rollouts of the longest run")
    options = parser.parse_args()
    lengths = [n for n in (10, 30, 100, 300, 1000) if n < options.rollouts] + [options.rollouts]
    found: list[dict[str, float]] = []
    with TemporaryDirectory() as place:
        made, run = Path(place) / "made", Path(place) / "run"
        (run / GRADLOG).mkdir(parents=True)
        made.mkdir()
        writer = GradLogWriter(made, metadata={"rule": preset("fspo").rule.to_dict(), "seed": 0})
        follower, rng, took = Follower(run), np.random.default_rng(0), []
        for number in range(options.rollouts):
            write_rollout(writer, number, PROMPTS, 0, rng)
            file = log_paths(made)[-1]
            old = time.time() - 60
            os.utime(file, (old, old))
            shutil.move(file, run / GRADLOG / file.name)
            took.append(seconds(lambda: (follower.poll(), follower.acceptance(), follower.points())))
            if number + 1 in lengths:
                rows = follower.seen[-1].rows
                found.append({"rollouts": number + 1, "rows": rows, "cpu_seconds": float(np.median(took[-LAST:]))})
                print(found[-1], flush=True)
                write_results(
                    {
                        "what": "CPU seconds for one more rollout: read, every panel, the doctor",
                        "by_length_of_run": found,
                        "versions": versions("numpy", "scipy", "pandas", "pyarrow", "fspo"),
                    },
                    RESULTS / "watch.json",
                )


if __name__ == "__main__":
    run_cli(main)
