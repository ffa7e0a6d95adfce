"""Reproduce every claim: theory checks, warm-up, calibration, training, analysis, figures, report.

This file runs the stages in order, skips those that are done (fspo/repro/stages.py), and prints the claims' verdicts.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fspo.base.command_line import CommandParser, next_step
from fspo.base.errors import UserError, run_cli, unknown_name
from fspo.base.options import make_parser, parse
from fspo.gradlog.run_folder import CONFIG, NOISE
from fspo.repro.options import ReproductionOptions
from fspo.repro.presets import TASKS, on_task
from fspo.repro.stages import Job, Stages, provenance, put_aside, rollouts_done, run_jobs, run_module
from fspo.repro.training import Training

DESCRIPTION = """Reproduce the claims about FSPO on this machine, each with an interval and a verdict.

examples:
  fspo reproduce                          the quick preset: 15 minutes on two cores
  fspo reproduce --preset paper           3 tasks, 6 rules and none, 5 seeds, 20 rollouts: 4 hours on two cores
  fspo reproduce --preset paper --rules rloo,gspo,fspo --rollouts 30
  fspo reproduce --force analysis         do this stage again, and those after it

A killed run goes on where it stopped: start the same command again.
"""


class Reproduction:
    """The stages of the reproduction on one task, in order."""

    def __init__(self, options: ReproductionOptions, words: Sequence[str], task: str) -> None:
        whole = options.sizes()
        self.options, self.sizes, self.words = options, on_task(whole, task), words
        self.root = Path(options.output) / options.preset
        self.out = options.folder(task)
        self.stages = Stages(self.out / "stages", options.force)
        self.common = Stages(self.root / "stages", options.force, self.stages.report)
        from fspo.config import TrainConfig
        from fspo.tasks import teaching_task

        self.config = parse(TrainConfig, [f"--{name}={value}" for name, value in self.sizes.options.items()])
        # If the package of the task is missing, this raises UserError before any stage runs.
        self.task = teaching_task(self.config.task.name, self.config.task.options)

    def run(self) -> int:
        """Run all stages of the reproduction, from the theory checks to the report. Return 0 if the theory checks pass
        and the report is written."""
        if self.root.parent.is_file():
            raise UserError(f"--output {self.root.parent} is a file: name a folder")
        from proofs_check.report import check_output  # imported here, so that --help does not wait for pandas

        for folder in (self.root, self.out):
            if folder.exists() and any(folder.iterdir()) and not {"stages", "checks"} & set(os.listdir(folder)):
                raise UserError(f"{folder} holds files, and none that fspo reproduce wrote: name another --output")
        check_output(self.root / "checks")
        checks = self.check_theory()
        training = Training(self.out, self.sizes, self.warm_up())
        shared = training.shared()
        stopped = self.train("shared-run", [shared], 1, "shared unclipped run")
        ranges = self.calibrate(shared) if self.options.ranges == "calibrated" else {}
        jobs = training.rules(ranges)
        stopped |= self.train("training", jobs, self.sizes.jobs)
        # A run that diverged and stopped itself counts in the claims with the rollouts up to its end. A run without a
        # complete rollout is left out, so the claims then lack its seed.
        jobs = [job for job in jobs if str(job.run) not in stopped or rollouts_done(job.run)]
        self.measure_noise([job for job in jobs if str(job.run) not in stopped] or jobs)
        jobs = [shared, *jobs]
        runs, module = [str(job.run) for job in jobs], self.stages.module
        claims_file, doctor_file = self.out / "claims.json", self.out / "doctor.json"
        # Exit status 1 of a command is no failure of its stage: it says that a log failed its integrity check, or that
        # the doctor found something, and the report tells it.
        how: dict[str, Any] = {"passing": (0, 1)}
        judged = module("analysis", "analysis", *runs, "--claims", str(claims_file), result=claims_file, **how)
        module("sweep", "analysis", "sweep", runs[0], quiet=True)
        command = ("doctor", *runs, "--json", str(doctor_file))
        diagnoses = module("doctor", "analysis", *command, result=doctor_file, quiet=True, **how)
        theory, figures = self.draw("figures-theory", "--theory"), self.draw("figures", *runs)
        parts = {"theory": theory, "figures": figures, "diagnoses": diagnoses, "ranges": ranges}
        self.write(runs=[job.run for job in jobs], checks=checks, claims=judged["claims"], **parts)
        for run, why in stopped.items():
            print(f"{Path(run).name} stopped itself after {rollouts_done(Path(run))} rollouts: {why}")
        return 0 if checks["exit_status"] == 0 else 1

    def check_theory(self) -> dict[str, Any]:
        """Run the theory checks and return their report. A failed check does not stop the later stages."""
        folder = self.root / "checks"
        command = ("checks", "proofs_check", "--out", str(folder), "--only", self.sizes.checks)
        how: dict[str, Any] = {"beside": ("--jobs", str(self.sizes.jobs)), "passing": (0, 1)}
        return self.common.module(*command, result=folder / "proofs_check.json", **how)

    def warm_up(self) -> str:
        """Warm up the embedded model once for all runs of the task; return its folder."""
        from fspo.models.warmup import RECIPE, warm_up

        def work() -> str:
            return str(warm_up(self.config.warmup, self.task))

        found = self.stages.run("warm-up", {"task": self.task.data_options(), "recipe": RECIPE}, work)
        return found if Path(found).is_dir() else work()  # warm up again if the cached model was deleted

    def train(self, name: str, jobs: Sequence[Job], at_once: int, words: str = "training") -> dict[str, str]:
        """Train runs as a stage. Return the last line of the output, by run folder, of each run that diverged and
        stopped itself.
        """

        def work() -> dict[str, str]:
            for job in jobs if self.options.force == name else ():
                put_aside(job)
            return {str(run): why for run, why in run_jobs(jobs, at_once, words).items()}

        return self.stages.run(name, {"jobs": [job.arguments for job in jobs]}, work, [job.run for job in jobs])

    def calibrate(self, shared: Job) -> dict[str, Any]:
        """Calibrate every rule's range to the same band acceptance on the log of the unclipped run."""
        from analysis.rules.calibrate import calibrate_run, write_calibration

        def work() -> dict[str, Any]:
            ranges = calibrate_run(shared.run, self.sizes.rules, self.options.target)
            write_calibration(self.out / "calibration.json", ranges)
            return ranges

        options = {"shared": shared.arguments, "rules": self.sizes.rules, "target": self.options.target}
        return self.stages.run("calibration", options, work)

    def measure_noise(self, runs: Sequence[Job]) -> None:
        """Measure the noise floor (what numerics alone do to S) on the first run of the rule fspo, or on the first of
        all runs if fspo was not trained.
        """
        job = next((job for job in runs if job.run.name.startswith("fspo-seed")), runs[0])

        def work() -> None:
            shutil.rmtree(job.run / NOISE, ignore_errors=True)  # remove an old or unfinished measurement
            run_module("fspo.train", "--config", str(job.run / CONFIG), "--noise-floor")

        self.stages.run("noise-floor", {"run": job.arguments}, work, [job.run / NOISE])

    def draw(self, name: str, *arguments: str) -> list[dict[str, Any]]:
        """Draw figures into the folder ``name``; return name, title and caption of each, as captions.json holds
        them."""
        folder = self.out / name
        command = (*arguments, "--output", str(folder), "--width", self.options.width)
        return self.stages.module(name, "figures", *command, result=folder / "captions.json")

    def write(self, *, checks: dict[str, Any], claims: list[dict[str, Any]], **parts: Any) -> None:
        """Write report.html and print the verdict of every claim."""
        from figures.page.reproduction import write_page

        page = write_page(
            self.out,
            preset=self.options.preset,
            checks=checks,
            claims=claims,
            **parts,
            stages=self.stages.report,
            provenance=provenance(["fspo", "reproduce", *self.words], self.sizes.seeds),
        )
        for claim in claims:
            print(f"{claim['id']:22} {claim['verdict']:14} {claim['statement']}")
        held = "all hold" if checks["exit_status"] == 0 else "SOME FAIL"
        print(f"{len(checks['rows'])} theory checks: {held} ({self.root / 'checks'})")
        for line in page.damaged:
            print(f"log of {line}")
        print(f"report: {page.path}")
        if self.options.preset != "paper":
            print(next_step("reproduce", [], " --preset paper"))


def pool(out: Path) -> None:
    """Write out/claims.json, every claim over all tasks that were judged, by this command or by an earlier one.

    Print the verdicts on each task side by side. With fewer than two judged tasks nothing is done. Tasks that were not
    judged alike are refused (`analysis.claims.pooling.pool_tasks`).
    """
    from analysis.claims.pooling import pool_tasks

    places = {task: out / task / "claims.json" for task in TASKS}
    files = {task: file for task, file in places.items() if file.is_file()}
    if len(files) < 2:
        return
    command = f"fspo reproduce --preset {out.name} --output {shlex.quote(str(out.parent))}"
    pooled, judged = pool_tasks(files, out / "claims.json", command)
    print(" ".join(f"{name:14}" for name in (f"{'claim':22}", "all tasks", *files)))
    for over_all, *each in zip(pooled, *judged.values(), strict=True):
        print(" ".join(f"{word:14}" for word in (f"{over_all.id:22}", over_all.verdict, *(c.verdict for c in each))))
    print(f"claims over all tasks: {out / 'claims.json'}")


def build_parser() -> CommandParser:
    """Return the parser of ``fspo reproduce``."""
    return make_parser(ReproductionOptions, "fspo reproduce", DESCRIPTION)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the options and run the reproduction."""
    words = sys.argv[1:] if arguments is None else arguments
    options = parse(ReproductionOptions, words, build_parser())
    from figures.widths import WIDTHS

    if options.width not in WIDTHS:
        raise unknown_name("--width", options.width, tuple(WIDTHS))
    tasks = options.sizes().tasks
    parts = [Reproduction(options, words, task) for task in tasks]
    status = max(part.run() for part in parts)
    if parts[0].out != parts[0].root:
        pool(parts[0].root)
    return status


if __name__ == "__main__":
    run_cli(main)
