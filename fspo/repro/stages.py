"""Run the cached stages of a long job, and several training processes at once, for paper_repro.py.

A stage is done when its stamp holds the hash of everything that it depends on. A stamp is written last, so a job
that is killed continues with the stage at which it stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fspo.base.errors import TrainingDiverged, UserError
from fspo.base.files import digest_of, json_with, write_text
from fspo.base.processes import end_with_parent
from fspo.gradlog.metrics_file import MetricsFile
from fspo.gradlog.run_folder import MODEL
from fspo.train.claim import mark

GROUND_FLOOR = (
    *("fspo.base", "fspo.stats", "fspo.rules", "fspo.theory", "fspo.gradlog", "fspo.config"),
    "fspo.advantages",
)
"""The parts of fspo that need neither torch nor pandas. The packages analysis, proofs_check and figures import them, so
a stage that runs one of these packages is done again when a source of these parts changes."""

_SOURCES = (".py", ".v", ".j2", ".yaml")


def source_digest(*packages: str) -> str:
    """Return one hash of all source files (Python, Coq, templates, YAML) of the named packages or modules."""
    from importlib.util import find_spec

    found = hashlib.sha256()
    for name in packages:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise UserError(f"package {name} is not installed: run `pip install -e .` in the repository")
        root = Path(spec.origin)
        for path in sorted(root.parent.rglob("*")) if spec.submodule_search_locations else [root]:
            if path.suffix in _SOURCES:
                found.update(path.read_bytes())
    return found.hexdigest()[:16]


def environment() -> dict[str, str]:
    """Return the environment variables with which a child process imports this repository's packages.

    A package of the same name in the current folder, such as another ``analysis``, is then not imported instead."""
    paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(Path(__file__).parents[2])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


def run_module(module: str, *arguments: str, quiet: bool = False, passing: Sequence[int] = (0,)) -> int:
    """Run ``python -m module``, with its output on stderr (``quiet``: discarded), and return its exit status.

    Raises
    ------
    UserError
        If the exit status is none of those in ``passing``.
    """
    command = [sys.executable, "-m", module, *arguments]
    out = subprocess.DEVNULL if quiet else sys.stderr
    status = subprocess.run(command, check=False, stdout=out, env=environment()).returncode
    if status not in passing:
        raise UserError(f"python -m {module} stopped with status {status} (its message is above)")
    return status


def provenance(command: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """Return how a report was made: command line, seeds, versions of Python and packages, number of CPU cores."""
    packages = ("torch", "transformers", "accelerate", "numpy", "fspo")
    versions = {name: version(name) for name in packages}
    said = {"command": " ".join(command), "seeds": list(seeds), "python": platform.python_version()}
    return said | versions | {"cores": os.cpu_count()}


def is_stages(folder: Path) -> bool:
    """Return whether a folder holds nothing but stamps of finished stages."""
    stamps = [path for path in folder.glob("*") if not path.name.startswith(".part-")]
    return folder.is_dir() and all(json_with("key", "seconds", "result")(path) for path in stamps)


@dataclass
class Stages:
    """Runs the stages of a long job in order, and skips those whose stamp says that they are done.

    Parameters
    ----------
    folder : Path
        Where the stamps are kept.
    """

    folder: Path
    report: list[dict[str, Any]] = field(default_factory=list)

    def run(self, name: str, inputs: Mapping[str, Any], work: Callable[[], Any]) -> tuple[str, Any]:
        """Do ``work`` unless a stamp says that it was done with the same inputs.

        Returns
        -------
        key : str
            Hash of the inputs, which later stages take as one of their inputs.
        result
            What ``work`` returned (plain values), from the stamp if it was done before.
        """
        key = digest_of(inputs)
        stamp = self.folder / f"{name}.json"
        if stamp.is_file():
            done = json.loads(stamp.read_text(encoding="utf-8"))
            if done["key"] == key:
                self.report.append({"stage": name, "seconds": done["seconds"], "cached": True})
                print(f"[{name}] done before ({done['seconds']:.0f} s)", file=sys.stderr)
                return key, done["result"]
        print(f"[{name}] ...", file=sys.stderr)
        began = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - began
        write_text(stamp, json.dumps({"key": key, "seconds": seconds, "result": result}, indent=2))
        self.report.append({"stage": name, "seconds": seconds, "cached": False})
        print(f"[{name}] {seconds:.0f} s", file=sys.stderr)
        return key, result

    def module(
        self, name: str, inputs: Mapping[str, Any], module: str, *arguments: str, result: Path | None = None, **how: Any
    ) -> tuple[str, Any]:
        """Run ``python -m module`` as a stage; return the hash of its inputs and what it has written to ``result``.

        ``result`` is a JSON file; without it the second value is None. ``how`` are keyword arguments of `run_module`.
        """

        def work() -> Any:
            run_module(module, *arguments, **how)
            return json.loads(result.read_text(encoding="utf-8")) if result else None

        return self.run(name, inputs, work)


@dataclass(frozen=True)
class Job:
    """A training process: its run folder, the hash of its inputs, its options for fspo.train, its rollouts' number."""

    run: Path
    key: str
    arguments: tuple[str, ...]
    rollouts: int


def rollouts_done(run: Path) -> int:
    """Return how many rollouts a run has trained on: its metrics.jsonl has one line of phase train for each."""
    return len(MetricsFile(run).of_phase("train"))


def is_finished(job: Job) -> bool:
    """Return whether a job is done: its run folder holds a final model, and was made from the job's present inputs."""
    stamp = job.run / "key.txt"
    return (job.run / MODEL).is_dir() and stamp.exists() and stamp.read_text().strip() == job.key


def prepare(job: Job) -> None:
    """Make the job's run folder, or reuse it. A folder made from other inputs is moved aside, never deleted."""
    stamp = job.run / "key.txt"
    if job.run.exists() and not (stamp.exists() and stamp.read_text().strip() == job.key):
        old = stamp.read_text().strip() if stamp.exists() else f"unknown-{int(time.time())}"
        aside = job.run.parent.parent / "superseded" / f"{job.run.name}-{old}"
        aside.parent.mkdir(parents=True, exist_ok=True)
        while aside.exists():
            aside = aside.with_name(aside.name + "+")
        os.replace(job.run, aside)
    job.run.mkdir(parents=True, exist_ok=True)
    # Write run.json now: the trainer refuses a folder that holds files but no run.json.
    mark(job.run)
    write_text(stamp, job.key + "\n")


def run_jobs(
    jobs: Sequence[Job],
    at_once: int,
    description: str = "training",
    passing: Sequence[int] = (TrainingDiverged.status,),
) -> dict[Path, str]:
    """Run training processes, ``at_once`` at a time, with one progress bar; finished jobs are skipped.

    Parameters
    ----------
    passing : sequence of int
        Exit statuses after which the other processes go on: by default that of a run that diverged and stopped itself.

    Returns
    -------
    dict
        Run folder -> last line of the log, for each process that failed with a status in ``passing``.

    Raises
    ------
    UserError
        If a process fails with another status. The other processes are then ended; they resume when the reproduction is
        started again. The message shows the last line of the failed process's log.
    """
    from tqdm.auto import tqdm

    waiting = [job for job in jobs if not is_finished(job)]
    running: list[tuple[Job, subprocess.Popen[bytes]]] = []
    stopped: dict[Path, str] = {}

    def done() -> int:
        return sum(job.rollouts if is_finished(job) else rollouts_done(job.run) for job in jobs)

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
                    if status in passing:
                        stopped[job.run] = last.removeprefix("error: ")
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
    return stopped
