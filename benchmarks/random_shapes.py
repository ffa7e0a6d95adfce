"""Train models with random weights and the shapes of real models on this machine's CPU: measure the seconds of each
phase of training, and compare the memory with what `fspo plan` predicts.

    python benchmarks/random_shapes.py                                    # all cases
    python benchmarks/random_shapes.py --cases '[Qwen3-8B-lora]' --folder KEEP

Every case runs `fspo/presets/qwen3-8b-random.yaml` (bfloat16, gradient checkpointing, a score pass in every rollout)
with the options of `CASES`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import RESULTS, machine, watch, write_results

from fspo.base.command_line import CommandParser
from fspo.base.errors import UserError, run_cli, unknown_name
from fspo.base.options import parse
from fspo.config import TrainConfig
from fspo.config.machine import MachineConfig
from fspo.gradlog import metric_names as metric
from fspo.gradlog.metrics_file import MetricsFile
from fspo.models.shapes import RANDOM

PRESET = Path(__file__).parents[1] / "fspo" / "presets" / "qwen3-8b-random.yaml"
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "Qwen3-8B-lora": ("Qwen3-8B-Base", ()),
    "Qwen3-0.6B-lora": ("Qwen3-0.6B-Base", ()),
    "Qwen3-0.6B-all": ("Qwen3-0.6B-Base", ("--model.lora", "null", "--optim.learning_rate", "1e-5")),
}
"""For each case the shape of a model, and the options with which it is trained."""


def arguments(name: str, output: Path, rollouts: int) -> list[str]:
    """Return the command-line options of a training run of a case, with the run folder ``output``."""
    shape, options = CASES[name]
    words = ["--config", str(PRESET), "--model.name_or_path", RANDOM + shape, "--output", str(output), *options]
    return [*words, "--rollouts", str(rollouts), "--resume", "true"]


def measure(name: str, folder: Path, rollouts: int) -> dict[str, Any]:
    """Train a model of one shape; return the seconds of each phase, and its memory beside what `fspo plan` predicts."""
    from fspo.plan.memory import plan

    run = folder / name
    words = arguments(name, run, rollouts)
    done = watch([sys.executable, "-m", "fspo.train", *words], 0.1)
    if done.status:
        raise UserError(f"the run in {run} ended with status {done.status}: see its message above")
    lines = MetricsFile(run).of_phase("train")
    phases = {key: [line[key] for line in lines] for key in lines[0] if key.startswith((metric.TIME, metric.STEP_TIME))}
    scored = sum(phases[metric.TIME + "scores"]) / sum(phases[metric.STEP_TIME])
    config = parse(TrainConfig, words)
    planned = plan(config, MachineConfig(device="cpu", gpus=1))
    return {
        "options": list(CASES[name][1]),
        "rollouts": rollouts,
        "wall_seconds": done.wall,
        "cpu_seconds": done.cpu,
        "peak_gib": done.peak / 2**30,
        "planned_gib": planned.peak / 2**30,
        "peak_over_planned": done.peak / planned.peak,
        "planned_gib_by_phase": {phase: total / 2**30 for phase, total in planned.totals.items() if total},
        "seconds_of_phases_by_rollout": phases,
        "share_of_score_passes": scored,
    }


def main(args: list[str] | None = None) -> int:
    """Train and measure the cases that the command line names (models with random weights), and write the results."""
    parser = CommandParser(prog="python benchmarks/random_shapes.py", description=__doc__ or "")
    parser.add_argument("--cases", type=list[str], default=list(CASES), help=f"any of {', '.join(CASES)}")
    parser.add_argument("--rollouts", type=int, default=3, help="rollouts of each run")
    parser.add_argument("--folder", type=str, default=None, help="keep the runs here; removed by default")
    parser.add_argument("--out", type=str, default=str(RESULTS / "random_shapes.json"), help="file of the results")
    options = parser.parse_args(args)
    out = Path(options.out)
    found = json.loads(out.read_text())["cases"] if out.exists() else {}
    for name in options.cases:
        if name not in CASES:
            raise unknown_name("case", name, tuple(CASES))
        with tempfile.TemporaryDirectory() as scratch:
            measured = measure(name, Path(options.folder or scratch), options.rollouts)
        described = machine("torch", "transformers", "peft", "accelerate")
        found[name] = {"machine": described, **measured}
        write_results({"cases": found}, out)
    return 0


if __name__ == "__main__":
    run_cli(main)
