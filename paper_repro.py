"""Reproduce the claims: theory checks, training, estimates, verdicts, tables, figures, report.

This file runs the stages in order, skips those that are done (fspo/repro/stages.py), and prints the claims' verdicts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fspo.base.command_line import CommandParser, next_step
from fspo.base.errors import UserError, run_cli, unknown_name
from fspo.base.options import make_parser, parse
from fspo.repro.options import ReproductionOptions
from fspo.repro.presets import PlannedRun, planned
from fspo.repro.stages import Stages, provenance, put_aside, rollouts_done, run_jobs

DESCRIPTION = """Reproduce the claims about FSPO on this machine: each with the numbers of every seed and a verdict.

examples:
  fspo reproduce                          the quick preset: 6 to 10 minutes on two cores
  fspo reproduce --preset paper           three tasks, fresh seeds: hours on two cores
  fspo reproduce --preset paper --tasks products --estimates other/estimates.csv
  fspo reproduce --force analysis         do this stage again, and those after it

A killed run goes on where it stopped: start the same command again.
"""
SHOWN = 2
"""Seeds of each arm whose runs are analysed, drawn and shown in the report; the claims count all."""


class Reproduction:
    """The stages of a reproduction: checks of the theory, training, estimates, verdicts, tables, figures, report."""

    def __init__(self, options: ReproductionOptions, words: Sequence[str]) -> None:
        self.options, self.design, self.words = options, options.design, words
        self.tasks = tuple(options.tasks or self.design.tasks)
        self.root = options.root
        self.stages = Stages(self.root / "stages", options.force)

    def run(self) -> int:
        """Run all stages. Return 0 if the theory checks pass and every report is written."""
        import pandas as pd

        from analysis.claims.estimands import holds, read_estimates
        from analysis.claims.verdicts import judge, write_claims
        from proofs_check.report import check_output

        if self.root.parent.exists() and not self.root.parent.is_dir():
            raise UserError(f"--output {self.root.parent} is a file: name a folder")
        if self.root.exists() and any(self.root.iterdir()) and not {"stages", "checks"} & set(os.listdir(self.root)):
            raise UserError(f"{self.root} holds files, and none that fspo reproduce wrote: name another --output")
        check_output(self.root / "checks")
        given = read_estimates([Path(file) for file in self.options.estimates or ()], self.design.seeds)
        every = (run for task in self.tasks for run in planned(self.design, task, self.options.folder(task), threads=1))
        mine = [run for run in every if not holds(given, run.task, run.runs, run.arm, run.seed)]
        if not mine:
            raise UserError("--estimates holds every run of the preset, so no run is left to show: leave a file out")
        checks = self.check_theory()
        stopped = self.train(mine)
        estimates = pd.concat([given, self.estimate(mine)], ignore_index=True)
        claims, parts = judge(estimates, tasks=self.design.tasks, planned=self.design.seed_counts)
        write_claims(self.root, estimates, claims, parts)
        self.draw("figures-theory", self.root / "figures-theory", "--theory")
        told = {"claims": [claim._asdict() for claim in claims], "parts": [part._asdict() for part in parts]}
        pages = [self.report(task, mine, checks=checks, **told) for task in self.tasks]
        self.tell(told, checks, stopped)
        print(*(f"report: {page}" for page in pages), sep="\n")
        if self.options.preset != "paper":
            print(next_step("reproduce", [], " --preset paper"))
        return 0 if checks["exit_status"] == 0 else 1

    def check_theory(self) -> dict[str, Any]:
        """Run the theory checks and return their report. A failed check does not stop the later stages."""
        folder = self.root / "checks"
        command = ("checks", "proofs_check", "--out", str(folder), "--only", self.design.checks)
        how: dict[str, Any] = {"beside": ("--jobs", str(self.options.jobs)), "passing": (0, 1)}
        return self.stages.module(*command, result=folder / "proofs_check.json", **how)

    def train(self, runs: Sequence[PlannedRun]) -> dict[str, str]:
        """Train all runs as a stage; return by run folder the last output line of each that diverged and stopped."""
        jobs = [run.job for run in runs]

        def work() -> dict[str, str]:
            for job in jobs if self.options.force == "training" else ():
                put_aside(job)
            return {str(run): why for run, why in run_jobs(jobs, self.options.jobs, "training (warm-up first)").items()}

        return self.stages.run("training", {"jobs": [job.arguments for job in jobs]}, work, [job.run for job in jobs])

    def estimate(self, runs: Sequence[PlannedRun]) -> Any:
        """Return the estimates of all runs as a DataFrame, a row for each number of a run."""
        import pandas as pd
        from tqdm.auto import tqdm

        from analysis.claims.estimands import Estimate, measure

        def work() -> list[Estimate]:
            bar = tqdm(runs, desc="estimates", unit="run", dynamic_ncols=True)
            return [
                row
                for run in bar
                for row in measure(run.job.run, run.task, run.runs, run.arm, run.seed, run.job.rollouts)
            ]

        found = self.stages.run("estimates", {"runs": [str(run.job.run) for run in runs]}, work)
        return pd.DataFrame([Estimate(*row) for row in found], columns=list(Estimate._fields))

    def report(self, task: str, runs: Sequence[PlannedRun], **parts: Any) -> Path:
        """Analyse, diagnose and draw the runs of a task's first ``SHOWN`` seeds (no stress runs), and write the task's
        report; return its path. ``parts`` are further arguments of `write_report`, such as ``claims``."""
        from figures.page.report import write_report

        out, sets = self.options.folder(task), self.design.sets
        some = [run for run in runs if run.task == task and run.seed in sets[run.runs].seeds[task][:SHOWN]]
        shown = [run.job.run for run in some if run.runs != "stress" and rollouts_done(run.job.run)]
        names, doctor = [str(run) for run in shown], out / "issues.json"
        tag = "" if out == self.root else f"-{task}"
        if self.options.force in ("analysis", "doctor", "figures"):
            self.stages.force = f"{self.options.force}{tag}"
        # Exit status 1 of a command is no failure of its stage: it says that a log failed its integrity check, or that
        # the doctor found something, and the report tells it.
        self.stages.module(f"analysis{tag}", "analysis", *names, quiet=True, passing=(0, 1))
        command = ("analysis", "doctor", *names, "--json", str(doctor))
        found = self.stages.module(f"doctor{tag}", *command, result=doctor, quiet=True, passing=(0, 1))
        figures = self.draw(f"figures{tag}", out / "figures", *names)
        said = provenance(["fspo", "reproduce", *self.words], sorted({run.seed for run in runs}))
        said |= {"stages": {stage["stage"]: f"{stage['seconds']:.0f} s" for stage in self.stages.report}}
        title = f"FSPO: reproduction, preset {self.options.preset}, task {task}"
        more = {"diagnoses": found, "folder": out / "figures", "captions": figures, "provenance": said}
        for line in write_report(out / "report.html", title=title, runs=shown, **more, **parts):
            print(f"log of {line}")
        return out / "report.html"

    def draw(self, stage: str, folder: Path, *arguments: str) -> list[dict[str, Any]]:
        """Draw figures into a folder as the stage ``stage``; return the name, title and caption of each."""
        command = (*arguments, "--output", str(folder), "--width", self.options.width)
        return self.stages.module(stage, "figures", *command, result=folder / "captions.json")

    def tell(self, told: dict[str, Any], checks: dict[str, Any], stopped: dict[str, str]) -> None:
        """Print each claim of ``told`` with its verdict and deciding number, whether the theory's ``checks`` hold, and
        the runs that diverged and stopped themselves: ``stopped`` has the reason by run folder."""
        from analysis.claims.estimands import ESTIMANDS
        from figures.page.report import decision

        for claim in told["claims"]:
            print(f"{claim['claim']:3} {claim['verdict']:9} {claim['sentence']}")
            print(f"{'':13} {decision(claim, told['parts'])}")
        print(f"numbers: {self.root}/claims.csv, parts.csv, estimates.csv")
        for name in ("slope", "sign gap"):
            print(f"{name}: {ESTIMANDS[name]}")
        if self.options.preset != "paper":
            print("one task and model, few seeds: docs/findings.md has the verdicts of three tasks, 7a, 7b and 9 too")
        print(f"theory: {checks['summary']} ({self.root / 'checks'})")
        for run, why in stopped.items():
            print(f"{Path(run).name} stopped itself after {rollouts_done(Path(run))} rollouts: {why}")


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
    return Reproduction(options, words).run()


if __name__ == "__main__":
    run_cli(main)
