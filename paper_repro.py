"""Reproduce every claim: theory checks and maps, warm-up, calibration, training, analysis, figures, report.

Names the stages, caches each by its inputs and prints the claims; all mathematics is elsewhere.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from analysis.rules.calibrate import TRAINING_ACCEPTANCE
from fspo.base.arguments import checked_count, checked_seed
from fspo.base.errors import UserError, run_cli, unknown_name
from fspo.base.files import refuse_foreign
from fspo.gradlog.run_folder import ANALYSIS, CONFIG, NOISE, SUMMARY
from fspo.repro.presets import PRESETS, QUICK_RULES, SWEPT, Preset, with_changes
from fspo.repro.stages import GROUND_FLOOR, Job, Stages, is_stages, provenance, run_jobs, run_module, source_digest
from fspo.repro.training import Training
from fspo.rules import preset
from proofs_check.maps.output import check_output

DESCRIPTION = """Reproduce the claims about FSPO on this machine, each with an interval and a verdict.

examples:
  python paper_repro.py                          the quick preset: 15 minutes on two cores
  python paper_repro.py --preset full            12 rules, 5 seeds: about two days on two cores, resumable; its
                                                 sweep of settings as long again (--sweep false leaves it out)
  python paper_repro.py --preset quick --sweep true   retrain fspo, rloo, gspo with one setting changed at a time
  python paper_repro.py --preset full --rules '[rloo,gspo,fspo]' --seeds '[0,1,2,3,4]'
  python paper_repro.py --preset 8b              check the 8B configuration and print a cluster's commands

A killed run goes on where it stopped: start the same command again.
"""
TRAINED_SWEEP = "trained_sweep.csv"


@dataclass(frozen=True)
class Options:
    """What to reproduce.

    Parameters
    ----------
    preset : {"quick", "full", "smoke", "8b"}
        Sizes; "smoke" only shows that every stage runs.
    output : str
        Results go to OUTPUT/PRESET.
    rules : list of str, optional
        Rules to train instead of the preset's.
    seeds : list of int, optional
        Seeds instead of the preset's.
    rollouts : int, optional
        Length of each run instead of the preset's.
    jobs : int, optional
        Training processes beside each other.
    sweep : bool, optional
        Train variants of fspo, rloo and gspo too, one setting changed at a time: range, dual clip, outside,
        aggregation, group size, minibatches. By default presets full (2 seeds) and smoke do.
    target : float
        Band acceptance on the shared unclipped run that every rule is calibrated to.
    width : str
        Venue width of the figures.
    """

    preset: Literal["quick", "full", "smoke", "8b"] = "quick"
    output: str = "out"
    rules: list[str] | None = None
    seeds: list[int] | None = None
    rollouts: int | None = None
    jobs: int | None = None
    sweep: bool | None = None
    target: float = TRAINING_ACCEPTANCE
    width: str = "neurips"

    def __post_init__(self) -> None:
        from figures.style import WIDTHS

        if not self.output.strip():
            raise UserError("--output is empty: name a folder, such as out")
        if not 0 < self.target < 1:
            raise UserError(f"--target {self.target}: an acceptance lies strictly between 0 and 1, for example 0.65")
        if self.width not in WIDTHS:
            raise unknown_name("--width", self.width, tuple(WIDTHS))
        for name, most, why in (("rollouts", 10**6, "the length of each run"), ("jobs", 1024, "training processes")):
            if getattr(self, name) is not None:
                checked_count(f"--{name}", getattr(self, name), 1, most, why)
        for name, given in (("rules", self.rules), ("seeds", self.seeds)):
            if given is not None and (not given or len(set(given)) < len(given)):
                raise UserError(f"--{name} {given}: name at least one, and each once")
        for rule in self.rules or ():
            preset(rule)  # an unknown rule is refused before any work
        for seed in self.seeds or ():
            checked_seed("--seeds", seed)

    def sizes(self) -> Preset:
        """Return the preset's sizes with the changes of these options."""
        rules, seeds = (None if given is None else tuple(given) for given in (self.rules, self.seeds))
        changes = {"rules": rules, "seeds": seeds, "rollouts": self.rollouts, "jobs": self.jobs}
        return with_changes(PRESETS[self.preset], sweep=self.sweep, **changes)


class Reproduction:
    """The stages of one reproduction, in order."""

    def __init__(self, options: Options) -> None:
        self.options, self.sizes = options, options.sizes()
        self.out = Path(options.output) / options.preset
        self.stages = Stages(self.out / "stages")

    def run(self) -> int:
        """Run all stages; return 0 if the theory checks pass and the report is written."""
        refuse_foreign(self.out, {"stages": is_stages, "checks": _is_checks}, "python paper_repro.py")
        checks = self.checks()
        theory = self.draw_theory(self.maps())
        training = Training(self.out, self.sizes, self.warm_up())
        shared = self.train_shared(training)
        ranges = self.calibrate(shared)
        runs = self.train(training, ranges)
        noise = self.measure_noise(runs)
        claims = self.analyse([shared, *runs], noise)
        swept = self.sweep(shared)
        diagnoses = self.diagnose([shared, *runs], noise)
        trained = self.train_sweep(training, ranges, [shared, *runs]) if self.sizes.sweep else ""
        figures = self.draw([shared, *runs], noise, swept, trained)
        self.write(checks, theory, ranges, claims, figures, diagnoses, [shared, *runs])
        return 0 if checks["status"] == 0 else 1

    def checks(self) -> dict[str, Any]:
        """Run the theory checks. A failed check is reported and does not stop the later stages."""

        def work() -> dict[str, Any]:
            folder = self.out / "checks"
            arguments = ["--out", str(folder), "--jobs", str(self.sizes.jobs)]
            status = run_module("proofs_check", *arguments, passing=(0, 1))
            return {"status": status, **json.loads((folder / "proofs_check.json").read_text(encoding="utf-8"))}

        return self.stages.run("checks", {"source": source_digest("proofs_check", *GROUND_FLOOR)}, work)[1]

    def maps(self) -> str:
        """Write the maps of fairness and of the price of clipping beside the checks; return the key of the tables."""

        def work() -> None:
            arguments = ["--out", str(self.out / "checks"), "--jobs", str(self.sizes.jobs)]
            arguments += ["--draws", str(self.sizes.draws), "--only", self.sizes.maps]
            run_module("proofs_check.maps", *arguments)

        inputs = {"draws": self.sizes.draws, "parts": self.sizes.maps}
        return self.stages.run("maps", inputs | {"source": source_digest("proofs_check", *GROUND_FLOOR)}, work)[0]

    def draw_theory(self, maps: str) -> list[dict[str, Any]]:
        """Draw the figures of the theory; return the rows of captions.json."""
        folder = self.out / "figures-theory"

        def work() -> list[dict[str, Any]]:
            arguments = ["--theory", str(self.out / "checks"), "--output", str(folder), "--width", self.options.width]
            run_module("figures", *arguments)
            return json.loads((folder / "captions.json").read_text(encoding="utf-8"))

        inputs = {"maps": maps, "source": source_digest("figures", *GROUND_FLOOR), "width": self.options.width}
        return self.stages.run("figures-theory", inputs, work)[1]

    def warm_up(self) -> str:
        """Warm up the embedded model once for all runs; return its folder."""
        from fspo.config import TrainConfig
        from fspo.models.warmup import warm_up

        def work() -> str:
            return str(warm_up(TrainConfig().warmup))

        inputs = {
            "source": source_digest(
                "fspo.models.warmup", "fspo.models.warmup_training", "fspo.tasks.chain_add", "fspo.models.load"
            )
        }
        found = self.stages.run("warm-up", inputs, work)[1]
        return found if Path(found).is_dir() else work()  # the cache may have been emptied in the meantime

    def train_shared(self, training: Training) -> Job:
        """Train the unclipped run on which every range is calibrated."""
        job = training.shared()
        self.stages.run("shared-run", {"key": job.key}, lambda: run_jobs([job], 1, "shared unclipped run"))
        return job

    def calibrate(self, shared: Job) -> dict[str, Any]:
        """Calibrate every rule's range to the same band acceptance."""
        from analysis.rules.calibrate import calibrate_run, write_calibration

        def work() -> dict[str, Any]:
            ranges = calibrate_run(shared.run, self.sizes.rules, self.options.target)
            write_calibration(self.out / "calibration.json", ranges)
            return ranges

        inputs = {"shared": shared.key, "rules": self.sizes.rules, "target": self.options.target}
        return self.stages.run("calibration", inputs | {"source": source_digest("analysis", *GROUND_FLOOR)}, work)[1]

    def train(self, training: Training, ranges: dict[str, Any]) -> list[Job]:
        """Train every rule with every seed."""
        jobs = training.rules(ranges)
        self.stages.run("training", {"keys": [j.key for j in jobs]}, lambda: run_jobs(jobs, self.sizes.jobs))
        return jobs

    def train_sweep(self, training: Training, ranges: dict[str, Any], done: Sequence[Job]) -> str:
        """Train the variants of the swept rules and analyse them in the bins of the other runs; return the table's
        key."""
        from analysis.sweeps.trained import Entry, write_trained_sweep

        edges = json.loads((done[0].run / ANALYSIS / SUMMARY).read_text(encoding="utf-8"))["edges"]
        sweep = training.sweep(ranges, done)
        trained, found = sweep.train(self.sizes.jobs)
        entries = [
            Entry(variant.rule, variant.setting, variant.value, variant.changed, runs, reason)
            for variant, runs, reason in found
        ]

        def work() -> None:
            if trained:
                run_module("analysis", *map(str, trained), "--edges", json.dumps(edges), passing=(0, 1))
            write_trained_sweep(self.out / TRAINED_SWEEP, entries)

        inputs = self._from([*done, *sweep.jobs], "", "analysis") | {"entries": entries, "edges": edges}
        return self.stages.run("sweep-analysis", inputs, work)[0]

    def measure_noise(self, runs: Sequence[Job]) -> str:
        """Measure what numerics alone do to S, on the first seed of rule fspo (else the first run); return the key."""
        job = next((job for job in runs if job.run.name.startswith("fspo-seed")), runs[0])

        def work() -> None:
            shutil.rmtree(job.run / NOISE, ignore_errors=True)  # from other inputs, or from a killed measurement
            run_module("fspo.train", "--config", str(job.run / CONFIG), "--noise-floor")

        return self.stages.run("noise-floor", {"run": job.key, "source": source_digest("fspo")}, work)[0]

    def sweep(self, shared: Job) -> str:
        """Tabulate what other settings would have done to the unclipped run's log; return the table's key."""

        def work() -> None:
            run_module("analysis", "sweep", str(shared.run), quiet=True)

        inputs = {"run": shared.key, "source": source_digest("analysis", *GROUND_FLOOR)}
        return self.stages.run("sweep", inputs, work)[0]

    def diagnose(self, runs: Sequence[Job], noise: str) -> list[dict[str, Any]]:
        """Run the doctor on each run; its findings do not stop the later stages."""

        def work() -> list[dict[str, Any]]:
            path = self.out / "doctor.json"
            folders = [str(job.run) for job in runs]
            run_module("analysis", "doctor", *folders, "--json", str(path), quiet=True, passing=(0, 1))
            return json.loads(path.read_text(encoding="utf-8"))

        return self.stages.run("doctor", self._from(runs, noise, "analysis"), work)[1]

    def analyse(self, runs: Sequence[Job], noise: str) -> list[dict[str, Any]]:
        """Write the tables of each run and the claims; return the claims."""
        folders = [str(job.run) for job in runs]

        def work() -> list[dict[str, Any]]:
            claims = self.out / "claims.json"
            # status 1: the report tells that a log failed its integrity check
            run_module("analysis", *folders, "--claims", str(claims), passing=(0, 1))
            return json.loads(claims.read_text(encoding="utf-8"))

        return self.stages.run("analysis", self._from(runs, noise, "analysis"), work)[1]

    def draw(self, runs: Sequence[Job], noise: str, swept: str, trained: str) -> list[dict[str, Any]]:
        """Draw the publication figures; return the rows of captions.json."""
        folder = self.out / "figures"

        def work() -> list[dict[str, Any]]:
            folders = [str(job.run) for job in runs]
            if trained:
                folders += ["--trained-sweep", str(self.out / TRAINED_SWEEP)]
            run_module("figures", *folders, "--output", str(folder), "--width", self.options.width)
            return json.loads((folder / "captions.json").read_text(encoding="utf-8"))

        inputs = self._from(runs, noise, "analysis", "figures") | {"sweep": swept, "width": self.options.width}
        inputs |= {"trained_sweep": trained}
        return self.stages.run("figures", inputs, work)[1]

    def write(
        self,
        checks: dict[str, Any],
        theory: list[dict[str, Any]],
        ranges: dict[str, Any],
        claims: list[dict[str, Any]],
        figures: list[dict[str, Any]],
        diagnoses: list[dict[str, Any]],
        jobs: Sequence[Job],
    ) -> None:
        """Write report.html and print the verdicts."""
        from figures.page.reproduction import write_page

        page = write_page(
            self.out,
            preset=self.options.preset,
            runs=[job.run for job in jobs],
            checks=checks,
            theory=theory,
            ranges=ranges,
            claims=claims,
            figures=figures,
            diagnoses=diagnoses,
            trained_sweep=self.out / TRAINED_SWEEP if self.sizes.sweep else None,
            stages=self.stages.report,
            provenance=provenance(["paper_repro.py", *sys.argv[1:]], self.sizes.seeds),
        )
        for claim in claims:
            print(f"{claim['id']:4} {claim['verdict']:14} {claim['statement']}")
        print(f"theory checks: {'all hold' if checks['status'] == 0 else 'SOME FAIL'} ({self.out / 'checks'})")
        for line in page.damaged:
            print(f"log of {line}")
        print(f"report: {page.path}")

    @staticmethod
    def _from(runs: Sequence[Job], noise: str, *packages: str) -> dict[str, Any]:
        """Return the inputs of a stage over all runs."""
        return {"keys": [job.key for job in runs], "noise": noise, "source": source_digest(*packages, *GROUND_FLOOR)}


def _is_checks(folder: Path) -> bool:
    try:
        check_output(folder)
    except UserError:
        return False
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the options and run the reproduction."""
    from fspo.base.options import parse

    options = parse(Options, arguments, prog="python paper_repro.py", description=DESCRIPTION)
    if options.sweep and (options.preset == "8b" or not set(options.sizes().swept) & set(options.sizes().rules)):
        raise UserError(f"--sweep varies one of {', '.join(SWEPT)} that is trained here: add it to --rules (not in 8b)")
    if options.preset == "8b":
        from fspo.plan.cluster import cluster_commands

        rules, seeds = options.rules or QUICK_RULES, options.seeds or PRESETS["full"].seeds
        print(*cluster_commands(rules, seeds, f"{options.output}/8b", options.target, options.width), sep="\n")
        return 0
    return Reproduction(options).run()


if __name__ == "__main__":
    run_cli(main)
