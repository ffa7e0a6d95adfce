"""Train models with random weights at real shapes on this machine's CPU: seconds of each phase, and memory beside the
plan's.

    python benchmarks/random_shapes.py                                    # Qwen3-8B's shape, 3 rollouts
    python benchmarks/random_shapes.py --shapes '[Qwen3-0.6B-Base]' --folder KEEP

Every shape runs `fspo/presets/qwen3-8b-random.yaml` (adapters of rank 8, bfloat16, gradient checkpointing, a score pass
of every update) twice. The second run is killed by SIGKILL after its first checkpoint and resumed; its adapters must
then have the bits of the first. Then the analysis and the doctor read the first run's log. Memory is the largest
resident memory of the run; pages that its processes share count twice.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from measuring import RESULTS, machine, watch, write_results

from fspo.base.command_line import CommandParser
from fspo.base.errors import UserError, run_cli
from fspo.base.options import parse
from fspo.config import TrainConfig
from fspo.config.machine import MachineConfig
from fspo.gradlog import metric_names as metric
from fspo.gradlog.files import log_paths
from fspo.gradlog.metrics_file import MetricsFile
from fspo.gradlog.run_folder import CHECKPOINTS, MODEL
from fspo.models.shapes import RANDOM

PRESET = Path(__file__).parents[1] / "fspo" / "presets" / "qwen3-8b-random.yaml"
ADAPTERS = "adapter_model.safetensors"
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pid: int) -> int:
    """Return the resident memory of a process, bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def arguments(shape: str, output: Path, rollouts: int) -> list[str]:
    """Return the options of one run."""
    words = ["--config", str(PRESET), "--model.name_or_path", RANDOM + shape, "--output", str(output)]
    return [*words, "--rollouts", str(rollouts), "--resume", "true"]


def kill_after_a_checkpoint(command: list[str], run: Path) -> None:
    """Start a run and kill it by SIGKILL when it has written its first checkpoint."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not any((run / CHECKPOINTS).glob("step-*/state.json")):
        if process.poll() is not None:
            raise UserError(f"the run in {run} ended with status {process.returncode} before its first checkpoint")
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()


def measure(shape: str, folder: Path, rollouts: int) -> dict[str, Any]:
    """Run one shape to its end, kill and resume it, and compare its memory with the plan."""
    from fspo.plan.memory import plan

    straight, resumed = folder / shape / "straight", folder / shape / "resumed"
    words = arguments(shape, straight, rollouts)
    train = [sys.executable, "-m", "fspo.train"]
    done = watch([*train, *words], resident, 0.1)
    if done.status:
        raise UserError(f"the run in {straight} ended with status {done.status}: see its message above")
    again = [*train, *arguments(shape, resumed, rollouts)]
    kill_after_a_checkpoint(again, resumed)
    subprocess.run(again, check=True, stdout=subprocess.DEVNULL)
    same = (straight / MODEL / ADAPTERS).read_bytes() == (resumed / MODEL / ADAPTERS).read_bytes()
    seconds = {
        command: watch([sys.executable, "-m", "analysis", *([] if command == "analysis" else [command]), str(straight)],
                       resident, 0.1).wall
        for command in ("analysis", "doctor")
    }  # fmt: skip
    lines = MetricsFile(straight).of_phase("train")
    phases = {key: [line[key] for line in lines] for key in lines[0] if key.startswith((metric.TIME, metric.STEP_TIME))}
    scored = sum(phases[metric.TIME + "scores"]) / sum(phases[metric.STEP_TIME])
    rows = [pq.read_table(path, columns=["length", "log_ratio"]) for path in log_paths(straight)]
    length, log_ratio = (np.concatenate([t[name].to_numpy() for t in rows]) for name in ("length", "log_ratio"))
    config = parse(TrainConfig, words)
    planned = plan(config, replace(MachineConfig(), device="cpu", gpus=1))
    return {
        "rollouts": rollouts,
        "wall_seconds": done.wall,
        "cpu_seconds": done.cpu,
        "peak_gib": done.peak / 2**30,
        "planned_gib": planned.peak / 2**30,
        "peak_over_planned": done.peak / planned.peak,
        "seconds_of_phases_by_rollout": phases,
        "share_of_score_passes": scored,
        "resumed_to_the_same_bits": same,
        "rows": len(length),
        "lengths": [int(length.min()), int(length.max())],
        "largest_abs_log_ratio": float(np.abs(log_ratio).max()),
        "seconds_of_analysis_and_doctor": seconds,
    }


def main(args: list[str] | None = None) -> int:
    """Measure every shape and write the results."""
    parser = CommandParser(prog="python benchmarks/random_shapes.py", description=__doc__ or "")
    parser.add_argument("--shapes", type=list[str], default=["Qwen3-8B-Base"], help="names of shapes")
    parser.add_argument("--rollouts", type=int, default=3, help="rollouts of each run, 2 or more")
    parser.add_argument("--folder", type=str, default=None, help="keep the runs here; removed by default")
    parser.add_argument("--out", type=str, default=str(RESULTS / "random_shapes.json"), help="file of the results")
    options = parser.parse_args(args)
    if options.rollouts < 2:
        raise UserError(f"--rollouts is {options.rollouts}: use 2 or more, so that a run can be killed between two")
    out = Path(options.out)
    before = json.loads(out.read_text()) if out.exists() else {"shapes": {}}
    found = dict(before["shapes"])
    with tempfile.TemporaryDirectory() as scratch:
        for shape in options.shapes:
            found[shape] = measure(shape, Path(options.folder or scratch), options.rollouts)
            write_results({"machine": machine("torch", "transformers", "peft"), "shapes": found}, out)
    return 0


if __name__ == "__main__":
    run_cli(main)
