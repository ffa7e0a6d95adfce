"""Train models with random weights and the shapes of real models on this machine's CPU: measure the seconds of each
phase of training, and compare the memory with what `fspo plan` predicts.

    python benchmarks/random_shapes.py                                    # all cases
    python benchmarks/random_shapes.py --cases '[Qwen3-8B-lora]' --folder KEEP

Every case runs `fspo/presets/qwen3-8b-random.yaml` (bfloat16, gradient checkpointing, a score pass in every rollout)
with the options of `CASES`. A second run of the case, one rollout shorter, is killed after its first checkpoint and
resumed. The results say whether its last checkpoint has the same weights, bit for bit, as the first run's checkpoint of
that step. Then `fspo analyse`, `fspo doctor` and `fspo figures` read the first run. Memory is the largest resident
memory of one process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from measuring import RESULTS, family, machine, watch, write_results
from safetensors import safe_open

from fspo.base.command_line import CommandParser
from fspo.base.errors import UserError, run_cli, unknown_name
from fspo.base.options import parse
from fspo.config import TrainConfig
from fspo.config.machine import MachineConfig
from fspo.gradlog import metric_names as metric
from fspo.gradlog.files import log_paths
from fspo.gradlog.metrics_file import MetricsFile
from fspo.gradlog.run_folder import CHECKPOINTS
from fspo.models.shapes import RANDOM

PRESET = Path(__file__).parents[1] / "fspo" / "presets" / "qwen3-8b-random.yaml"
SHARDED = Path(__file__).parent / "sharded_train.py"
PAGE = os.sysconf("SC_PAGE_SIZE")
ALL_WEIGHTS = ("--model.lora", "null", "--optim.learning_rate", "1e-5")


@dataclass(frozen=True)
class MeasuredShape:
    """A case of the benchmark: the shape of a model, the options with which it is trained, and the number of processes
    over which FSDP2 shards it.
    """

    shape: str
    options: tuple[str, ...] = ()
    processes: int = 1

    def arguments(self, output: Path, rollouts: int) -> list[str]:
        """Return the command-line options of a training run that measures this shape."""
        words = ["--config", str(PRESET), "--model.name_or_path", RANDOM + self.shape, "--output", str(output)]
        return [*words, *self.options, "--rollouts", str(rollouts), "--resume", "true", "--keep_checkpoints", "9"]

    def command(self, output: Path, rollouts: int) -> list[str]:
        """Return the command that starts a training run of one of the benchmark's `CASES` with the run folder
        ``output``.
        """
        start = ["-m", "fspo.train"]
        if self.processes > 1:
            start = ["-m", "torch.distributed.run", "--nproc_per_node", str(self.processes), str(SHARDED)]
        return [sys.executable, *start, *self.arguments(output, rollouts)]


CASES = {
    "Qwen3-8B-lora": MeasuredShape("Qwen3-8B-Base"),
    "Qwen3-0.6B-lora": MeasuredShape("Qwen3-0.6B-Base"),
    "Qwen3-0.6B-all": MeasuredShape("Qwen3-0.6B-Base", ALL_WEIGHTS),
    "Qwen3-0.6B-fsdp2": MeasuredShape("Qwen3-0.6B-Base", (*ALL_WEIGHTS, "--threads", "1"), processes=2),
}


class Memory:
    """A callable that returns the resident memory of a process in bytes. ``largest`` keeps the largest value that it
    returned for each process id.
    """

    def __init__(self) -> None:
        self.largest: dict[int, int] = {}

    def __call__(self, pid: int) -> int:
        """Return the resident memory of a process now, bytes."""
        now = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
        self.largest[pid] = max(now, self.largest.get(pid, 0))
        return now


def kill_after_a_checkpoint(command: list[str], run: Path) -> None:
    """Start a run and kill it by SIGKILL when it has written its first checkpoint."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not any((run / CHECKPOINTS).glob("step-*/state.json")):
        if process.poll() is not None:
            raise UserError(f"the run in {run} ended with status {process.returncode} before its first checkpoint")
        time.sleep(0.1)
    for pid in family(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.wait()


def same_tensors(one: Path, other: Path) -> bool:
    """Return whether two safetensors files hold tensors of the same names with equal values."""
    with safe_open(one, "pt") as ours, safe_open(other, "pt") as theirs:
        names = list(ours.keys())
        same = names == list(theirs.keys())
        return same and all(torch.equal(ours.get_tensor(n), theirs.get_tensor(n)) for n in names)


def measure(name: str, case: MeasuredShape, folder: Path, rollouts: int) -> dict[str, Any]:
    """Train a model of one shape twice, once without a break and once killed and resumed; return what was measured.

    The result holds the seconds of each phase of training, the largest memory of a process, the memory that `fspo plan`
    predicts, and whether the resumed run's last checkpoint equals the other run's checkpoint of the same step. It also
    holds seconds and exit status of `fspo analyse`, `fspo doctor` and `fspo figures` on the run that was not killed.
    """
    from fspo.plan.memory import plan
    from fspo.train.checkpoint import list_checkpoints

    straight, resumed = folder / name / "straight", folder / name / "resumed"
    memory = Memory()
    done = watch(case.command(straight, rollouts), memory, 0.1)
    if done.status:
        raise UserError(f"the run in {straight} ended with status {done.status}: see its message above")
    peak = max(memory.largest.values())
    again = case.command(resumed, rollouts - 1)
    kill_after_a_checkpoint(again, resumed)
    subprocess.run(again, check=True, stdout=subprocess.DEVNULL)
    last = list_checkpoints(resumed)[-1]
    same = all(same_tensors(file, straight / file.relative_to(resumed)) for file in last.rglob("*.safetensors"))
    readers = {
        "analysis": ["-m", "analysis", str(straight)],
        "doctor": ["-m", "analysis", "doctor", str(straight)],
        "figures": ["-m", "figures", str(straight)],
    }
    read = {reader: watch([sys.executable, *words], memory, 0.1) for reader, words in readers.items()}
    log = log_paths(straight)
    lines = MetricsFile(straight).of_phase("train")
    phases = {key: [line[key] for line in lines] for key in lines[0] if key.startswith((metric.TIME, metric.STEP_TIME))}
    scored = sum(phases[metric.TIME + "scores"]) / sum(phases[metric.STEP_TIME])
    rows = [pq.read_table(path, columns=["length", "log_ratio"]) for path in log]
    length, log_ratio = (np.concatenate([t[name].to_numpy() for t in rows]) for name in ("length", "log_ratio"))
    config = parse(TrainConfig, case.arguments(straight, rollouts))
    planned = plan(config, MachineConfig(device="cpu", gpus=case.processes))
    return {
        "options": list(case.options),
        "processes": case.processes,
        "rollouts": rollouts,
        "wall_seconds": done.wall,
        "cpu_seconds": done.cpu,
        "peak_gib_of_a_process": peak / 2**30,
        "planned_gib": planned.peak / 2**30,
        "peak_over_planned": peak / planned.peak,
        "planned_gib_by_phase": {phase: total / 2**30 for phase, total in planned.totals.items() if total},
        "seconds_of_phases_by_rollout": phases,
        "share_of_score_passes": scored,
        "resumed_to_the_same_bits": same,
        "rows": len(length),
        "lengths": [int(length.min()), int(length.max())],
        "largest_abs_log_ratio": float(np.abs(log_ratio).max()),
        "log_bytes": sum(Path(path).stat().st_size for path in log),
        "seconds_and_status_of_readers": {reader: [found.wall, found.status] for reader, found in read.items()},
    }


def main(args: list[str] | None = None) -> int:
    """Train and measure the cases that the command line names (models with random weights), and write the results."""
    parser = CommandParser(prog="python benchmarks/random_shapes.py", description=__doc__ or "")
    parser.add_argument("--cases", type=list[str], default=list(CASES), help=f"any of {', '.join(CASES)}")
    parser.add_argument("--rollouts", type=int, default=3, help="rollouts of each run, 3 or more")
    parser.add_argument("--folder", type=str, default=None, help="keep the runs here; removed by default")
    parser.add_argument("--out", type=str, default=str(RESULTS / "random_shapes.json"), help="file of the results")
    options = parser.parse_args(args)
    if options.rollouts < 3:
        raise UserError(f"--rollouts is {options.rollouts}: use 3 or more, so that a run can be killed between two")
    out = Path(options.out)
    found = json.loads(out.read_text())["cases"] if out.exists() else {}
    for name in options.cases:
        if name not in CASES:
            raise unknown_name("case", name, tuple(CASES))
        with tempfile.TemporaryDirectory() as scratch:
            measured = measure(name, CASES[name], Path(options.folder or scratch), options.rollouts)
        described = machine("torch", "transformers", "peft", "accelerate", "torchao")
        found[name] = {"machine": described, **measured}
        write_results({"cases": found}, out)
    return 0


if __name__ == "__main__":
    run_cli(main)
