"""Run the stages of a long job, and several training processes at once, for paper_repro.py.

A stage is done when its output exists and its stamp holds the present options. A stamp is written last, so a job that
is killed continues with the stage at which it stopped."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from fspo.base.errors import TrainingDiverged, UserError
from fspo.base.files import write_text
from fspo.base.processes import end_with_parent
from fspo.gradlog.metrics_file import MetricsFile
from fspo.gradlog.run_folder import MODEL
from fspo.train.folder_owner import mark


def environment() -> dict[str, str]:
    """Return the environment variables with which a child process imports this repository's packages.

    A package of the same name in the current folder, such as another ``analysis``, is then not imported instead."""
    paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(Path(__file__).parents[2])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


def run_module(module: str, *arguments: str, quiet: bool = False, passing: Sequence[int] = (0,)) -> int:
    """Run ``python -m module`` with ``arguments`` and return its exit status, which must be one of ``passing``. Its
    output goes to stderr, or is discarded if ``quiet``."""
    command = [sys.executable, "-m", module, *arguments]
    out = subprocess.DEVNULL if quiet else sys.stderr
    how: dict[str, Any] = {"env": environment(), "preexec_fn": end_with_parent}
    status = subprocess.run(command, check=False, stdout=out, **how).returncode
    if status not in passing:
        raise UserError(f"python -m {module} stopped with status {status} (its message is above)")
    return status


def provenance(command: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """Return how a report was made: command line, seeds, versions of Python and packages, number of CPU cores."""
    packages = ("torch", "transformers", "accelerate", "numpy", "fspo")
    versions = {name: version(name) for name in packages}
    said = {"command": " ".join(command), "seeds": list(seeds), "python": platform.python_version()}
    return said | versions | {"cores": os.cpu_count()}


@dataclass
class Stages:
    """Runs the stages of a long job in order, and skips those that are done. ``report`` lists of each stage its name
    (``stage``), the seconds that it took, and whether it was done before (``cached``).
    A stage that runs makes the stages after it run too, since they may read what it writes: it first removes the stamps
    of all stages that this job has not come to yet.

    Parameters
    ----------
    folder : Path
        Where the stamps are kept.
    force : str
        Name of a stage that runs even if it is done; "" for none.
    """

    folder: Path
    force: str = ""
    report: list[dict[str, Any]] = field(default_factory=list)

    def run(self, name: str, options: Mapping[str, Any], work: Callable[[], Any], outputs: Sequence[Path] = ()) -> Any:
        """Do the ``work`` of the stage ``name`` and return its result (plain values, which the stamp keeps). If it was
        done before with the same ``options``, all its ``outputs`` exist, and it is not the forced stage, return the
        stamp's result. ``options`` are plain values on which the result depends, beside those of earlier stages."""
        stamp, told = self.folder / f"{name}.json", json.loads(json.dumps(options))
        cached = False
        if name != self.force and stamp.is_file() and all(path.exists() for path in outputs):
            done = json.loads(stamp.read_text(encoding="utf-8"))
            cached = done.get("options") == told
        if not cached:
            passed = {entry["stage"] for entry in self.report}
            for later in self.folder.glob("*.json"):
                if later.stem not in passed:
                    later.unlink()
            print(f"[{name}] ...", file=sys.stderr)
            began = time.perf_counter()
            done = {"options": told, "result": work(), "seconds": time.perf_counter() - began}
            write_text(stamp, json.dumps(done, indent=2))
        self.report.append({"stage": name, "seconds": done["seconds"], "cached": cached})
        print(f"[{name}] {'done before: ' if cached else ''}{done['seconds']:.0f} s", file=sys.stderr)
        return done["result"]

    def module(
        self,
        name: str,
        module: str,
        *arguments: str,
        beside: Sequence[str] = (),
        result: Path | None = None,
        **how: Any,
    ) -> Any:
        """Run ``python -m module`` as a stage; return what it has written to the JSON file ``result``, if one is named.

        ``beside`` are further arguments, on which the result does not depend; ``how`` may hold ``quiet`` and
        ``passing`` of `run_module`."""

        def work() -> Any:
            run_module(module, *arguments, *beside, **how)
            return json.loads(result.read_text(encoding="utf-8")) if result else None

        return self.run(name, {"arguments": arguments}, work, [result] if result else [])


@dataclass(frozen=True)
class Job:
    """A training process: its run folder, its options for ``fspo train`` as words of a command line, its number of
    rollouts."""

    run: Path
    arguments: tuple[str, ...]
    rollouts: int


def rollouts_done(run: Path) -> int:
    """Return how many rollouts a run has trained on: the lines of phase train in its metrics.jsonl, one for each."""
    return len(MetricsFile(run).of_phase("train"))


OPTIONS = "options.txt"
"""File in the run folder of a job: the job's options, one word a line."""
DIVERGED = "diverged.txt"
"""File in the run folder of a job whose run diverged and stopped itself: why, in one line."""


def _is_of(job: Job) -> bool:
    file = job.run / OPTIONS
    return file.is_file() and file.read_text(encoding="utf-8").splitlines() == [*job.arguments]


def is_over(run: Path) -> bool:
    """Return whether a run has ended: with a final model, or because it diverged and stopped itself."""
    return (run / MODEL).is_dir() or (run / DIVERGED).is_file()


def prepare(job: Job) -> None:
    """Make the job's run folder, or reuse it. A folder made with other options is moved aside, never deleted."""
    if not _is_of(job):
        put_aside(job)
    job.run.mkdir(parents=True, exist_ok=True)
    # Write run.json now: the trainer refuses a folder that holds files but no run.json.
    mark(job.run)
    write_text(job.run / OPTIONS, "\n".join(job.arguments) + "\n")


def put_aside(job: Job) -> None:
    """Move a job's run folder ``OUT/runs/NAME``, if there is one, to ``OUT/superseded/NAME-1``, or the first free
    number."""
    aside = job.run.parent.parent / "superseded"
    if job.run.exists():
        aside.mkdir(parents=True, exist_ok=True)
        number = next(i for i in count(1) if not (aside / f"{job.run.name}-{i}").exists())
        os.replace(job.run, aside / f"{job.run.name}-{number}")


def run_jobs(jobs: Sequence[Job], at_once: int, description: str = "training") -> dict[Path, str]:
    """Run training processes, ``at_once`` at a time, with one progress bar called ``description``; jobs that are over
    are skipped.

    Returns
    -------
    dict
        Run folder -> why, for each run that diverged and stopped itself, now or at an earlier start.

    Raises
    ------
    UserError
        If a process fails otherwise. The other processes are then ended; they resume when the reproduction is started
        again. The message shows the last line of the failed process's log.
    """
    waiting = [job for job in jobs if not (is_over(job.run) and _is_of(job))]
    running: list[tuple[Job, subprocess.Popen[bytes]]] = []

    def done() -> int:
        return sum(job.rollouts if is_over(job.run) and _is_of(job) else rollouts_done(job.run) for job in jobs)

    total = sum(job.rollouts for job in jobs)
    # The rollouts of earlier starts are not counted in the speed from which tqdm estimates the remaining time.
    bar = tqdm(total=total, initial=done(), desc=description, unit="rollout", dynamic_ncols=True)
    variables = environment() | {"OMP_WAIT_POLICY": "PASSIVE", "TQDM_DISABLE": "1"}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                prepare(job)
                command = [sys.executable, "-m", "fspo.train", *job.arguments, "--resume", "true"]
                with (job.run / "train.log").open("ab") as log:
                    started = subprocess.Popen(
                        command, stdout=log, stderr=subprocess.STDOUT, env=variables, preexec_fn=end_with_parent
                    )
                running.append((job, started))
            time.sleep(0.5)
            for job, process in list(running):
                status = process.poll()
                if status is None:
                    continue
                running.remove((job, process))
                if status != 0:
                    lines = (job.run / "train.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
                    last = lines[-1] if lines else "no output"
                    if status == TrainingDiverged.status:
                        write_text(job.run / DIVERGED, last.removeprefix("error: ") + "\n")
                        continue
                    raise UserError(
                        f"{job.run.name} stopped with status {status}: {last} "
                        f"(log: {job.run / 'train.log'}; run the same command again to go on)"
                    )
            bar.n = done()
            bar.set_postfix_str(", ".join(job.run.name for job, _ in running))
            bar.refresh()
    finally:
        for _, process in running:
            process.terminate()
        for _, process in running:
            process.wait()
        bar.close()
    files = {job.run: job.run / DIVERGED for job in jobs}
    return {run: file.read_text(encoding="utf-8").strip() for run, file in files.items() if file.is_file()}
