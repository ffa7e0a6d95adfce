"""Measure time and memory of `fspo analyse` and `fspo doctor` by number of rows, of `fspo analyse` with sketches, and
of the commands that users wait for.

    python benchmarks/analysis_scale.py [--rows 100000000]
    python benchmarks/analysis_scale.py --run RUN      # commands on the run RUN, and refusals of fspo train

The benchmark first writes gradient logs with the trainer's writer. A rollout has 5,000 responses in groups of 8. Each
is used in 2 passes of 4 updates, which makes 10,000 rows. Then the analyses of the logs are timed, one after the other.
Memory is the sum over all processes; a page that n of them share counts as 1/n in each. ``load`` is the machine's load
average before a run: if it is not near 0, other work shared the cores, and CPU seconds tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
from measuring import RESULTS, machine, write_results

from fspo.advantages import advantages
from fspo.base.command_line import CommandParser
from fspo.base.errors import UserError, run_cli
from fspo.gradlog import GradLogWriter
from fspo.gradlog.files import log_paths
from fspo.gradlog.run_folder import GRADLOG
from fspo.policy.scores import Scores
from fspo.rules import preset
from fspo.train.log_rows import ResponseColumns, UpdateColumns, log_rows

PROMPTS, GROUP, MINIBATCHES, EPOCHS = 625, 8, 4, 2
A_ROLLOUT = PROMPTS * GROUP * EPOCHS
SIGMA = 0.015
SCORED, WIDTH = 10**5, 2048  # rows of the log with sketches, entries of a sketch


def write_rollout(writer: GradLogWriter, rollout: int, prompts: int, rng: np.random.Generator) -> None:
    """Write the simulated rows of one rollout of ``prompts`` prompts. If the log has sketches, each row gets one.

    S of each response is 0 in the first update. Each later update adds to it a normal random number with mean -L s^2 /
    2 and variance L s^2, where L is the response's length, tokens, and s = .015 nats."""
    rule, n = preset("fspo").rule, prompts * GROUP
    prompt = np.repeat(rng.permutation(100_000)[:prompts], GROUP)
    center = np.repeat(rng.uniform(np.log(32), np.log(6000), prompts), GROUP)
    length = np.clip(np.exp(center + 0.3 * rng.standard_normal(n)), 2, 8192).astype(np.int64)
    reward = (rng.random(n) < np.repeat(rng.random(prompts), GROUP)).astype(float)
    A, walk, size = advantages(reward, prompt, "grpo")[0], np.zeros(n), n // MINIBATCHES
    for update in range(MINIBATCHES * EPOCHS):
        if update:
            walk += SIGMA * np.sqrt(length) * rng.standard_normal(n) - 0.5 * SIGMA**2 * length
        at = np.arange(size) + (update % MINIBATCHES) * size
        S, L, step = walk[at], length[at].astype(np.float64), rollout * MINIBATCHES * EPOCHS + update
        square = S**2 / L + SIGMA**2 * L * update * rng.gamma(50, 1 / 50, size)
        done = rule.apply(S, L, A[at])
        records = {"length": length[at], "log_ratio": S, "sum_sq_log_ratio": square, "k3_sum": 0.5 * square}
        records |= {name: getattr(done, name) for name in ("lo", "hi", "side", "multiplier", "weight")}
        records |= {"band_accept": done.in_band, "drift": np.zeros(size)}
        ids, ended = (prompt[at], rollout * n + at), length[at] == 8192
        responses = ResponseColumns(*ids, ended, reward[at], A[at], entropy=rng.gamma(4, 0.1, size))
        scores = None
        if writer.width:
            psi = rng.standard_normal((size, writer.width), dtype=np.float32) + 0.1
            norm = np.linalg.norm(psi, axis=1)
            scores = Scores(norm * L, psi / norm[:, None], ["ok"] * size, {})
        columns = UpdateColumns(rollout, step, step - update, rule, "train", update, update // MINIBATCHES)
        writer.append(log_rows(columns, responses, records, scores=scores))
    writer.flush(rollout)


def write_log(run: Path, rows: int, width: int = 0, prompts: int = PROMPTS) -> Path:
    """Write a simulated run of about ``rows`` rows, with sketches of ``width`` entries (0: none); return its folder."""
    writer = GradLogWriter(run, width=width, metadata={"rule": preset("fspo").rule.to_dict(), "seed": 0})
    rng = np.random.default_rng(0)
    for rollout in range(max(1, rows // (prompts * GROUP * EPOCHS))):
        write_rollout(writer, rollout, prompts, rng)
    return run


def timed(*arguments: str | Path) -> dict[str, float]:
    """Run `fspo` with these arguments and return four measurements by name: ``seconds`` (wall time), ``cpu_seconds`` of
    all its processes, ``peak_mib`` (the largest memory that they had together, MiB, measured ten times a second), and
    ``load``, the machine's load average before the run."""
    load, command = os.getloadavg()[0], [sys.executable, "-m", "fspo", *map(str, arguments)]
    before, start, peak = os.times(), time.perf_counter(), 0
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    while process.poll() is None:
        total = 0
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):  # raised for a process that has ended
                total += one.memory_full_info().pss
        peak = max(peak, total)
        time.sleep(0.1)
    if process.returncode and arguments[0] != "train":  # its refusals are timed
        raise UserError(f"{' '.join(command)} ended with {process.returncode}")
    after, seconds = os.times(), time.perf_counter() - start
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    return {"seconds": seconds, "cpu_seconds": cpu, "peak_mib": peak / 2**20, "load": load}


def main() -> None:
    """Time the analysis of simulated logs, print the measurements and write them to a file."""
    parser = CommandParser(prog="python benchmarks/analysis_scale.py", description=__doc__ or "")
    parser.add_argument("--rows", type=int, default=10**7, help="rows of the largest log without sketches")
    parser.add_argument("--run", type=str, default="", help="time the commands on this trained run instead")
    options = parser.parse_args()
    if options.run:
        write_results(commands(Path(options.run)), RESULTS / "commands.json")
        return
    if options.rows < 1000 * A_ROLLOUT:
        raise UserError(f"--rows {options.rows}: at least {1000 * A_ROLLOUT}, of which a thousandth is one rollout")
    with tempfile.TemporaryDirectory() as folder:
        results = measure(Path(folder), options.rows)
    print(json.dumps(results, indent=1))
    write_results(results, RESULTS / "analysis_scale.json")


def commands(run: Path) -> dict[str, Any]:
    """Time `fspo check`, analyse, doctor, figures and report on the run ``run``, and refusals of `fspo train`: another
    run's folder, no such model, no such rule. Return what `timed` gives by command, log rows, and the machine."""
    with tempfile.TemporaryDirectory() as scratch:
        words: dict[str, Any] = {name: (name, str(run)) for name in ("analyse", "doctor", "figures", "report")}
        words["check"] = ("check", "--output", scratch)
        words["train: folder of another run"] = ("train", "--output", str(run))
        words["train: no such model"] = ("train", "--output", f"{scratch}/a", "--model.name_or_path", f"{scratch}/b")
        words["train: no such rule"] = ("train", "--output", f"{scratch}/a", "--rule.preset", "fspoo")
        found = {name: timed(*some) for name, some in words.items()}
    rows = sum(pq.read_metadata(path).num_rows for path in log_paths(run))
    return {"rows": rows, "commands": found} | machine("numpy", "pandas", "pyarrow", "matplotlib", "seaborn", "fspo")


def measure(folder: Path, most: int) -> dict[str, Any]:
    """Time `fspo analyse` and `fspo doctor` on simulated logs of at most ``most`` rows, and on one with sketches, in
    the folder ``folder``; return the measurements of `timed` by log and command."""
    whole = write_log(folder / f"rows-{most}", most)
    found: dict[str, Any] = {"analyse": [], "doctor": []}
    for rows in (most // 1000, most // 100, most // 10, most):
        run = folder / f"rows-{rows}"
        if run != whole:  # the first rollouts of the whole log
            (run / GRADLOG).mkdir(parents=True)
            for path in log_paths(whole)[: rows // A_ROLLOUT]:
                os.link(path, run / GRADLOG / path.name)
        for command, rows_of in found.items():
            rows_of.append({"rows": rows // A_ROLLOUT * A_ROLLOUT} | timed(command, run))
    run = write_log(folder / "scored", SCORED, WIDTH, prompts=64)
    found["with_sketches"] = {"rows": SCORED, "width": WIDTH} | timed("analyse", run)
    return found | machine("numpy", "scipy", "pandas", "pyarrow", "fspo")


if __name__ == "__main__":
    run_cli(main)
