"""The runs that a reproduction trains: the options of each, and the variants of its sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fspo.base.errors import TrainingDiverged, UserError
from fspo.base.files import digest_of
from fspo.repro.presets import ReproductionSizes, Variant, variants
from fspo.repro.stages import Job, run_jobs, source_digest
from fspo.rules import COMPARED_ADVANTAGE

Ranges = Mapping[str, Mapping[str, Any]]
"""``range_lo`` and ``range_hi`` by name of the rule, calibrated on one unclipped run. A rule without trains as
published."""


@dataclass(frozen=True)
class Training:
    """The training runs of one reproduction.

    Attributes
    ----------
    out : Path
        Run folders go to ``out/runs`` and ``out/sweep``.
    sizes : ReproductionSizes
    warm : str
        Folder of the warmed-up model that every run starts from.
    """

    out: Path
    sizes: ReproductionSizes
    warm: str

    def job(
        self,
        rule: str,
        seed: int,
        rollouts: int,
        ranges: Ranges,
        threads: int | None = None,
        variant: Variant | None = None,
    ) -> Job:
        """Return the job that trains one rule with one seed, and with one setting changed if ``variant`` names it."""
        fit = ranges.get(rule, {})
        name = f"sweep/{variant.trained_as}" if variant else f"runs/{rule}"
        options = {
            "output": str(self.out / f"{name}-seed{seed}"),
            "seed": seed,
            "rollouts": rollouts,
            "threads": threads or self.sizes.threads,
            "model.name_or_path": self.warm,
            "rule.preset": rule,
            "rule.advantage": COMPARED_ADVANTAGE,
            **{f"rule.{name}": fit[name] for name in ("range_lo", "range_hi") if name in fit},
            **self.sizes.options,
            **(variant.options if variant else {}),
        }
        key = digest_of({"options": options, "source": source_digest("fspo"), "torch": version("torch")})
        arguments = tuple(part for name, value in options.items() for part in (f"--{name}", str(value)))
        return Job(Path(options["output"]), key, arguments, rollouts)

    def shared(self) -> Job:
        """Return the job of the unclipped run on which every range is calibrated. It runs alone, with all threads."""
        threads = self.sizes.jobs * self.sizes.threads
        return self.job("none", self.sizes.seeds[0], self.sizes.calibration_rollouts, {}, threads)

    def rules(self, ranges: Ranges) -> list[Job]:
        """Return a training job for every rule and seed, except rule "none" with the first seed, which is `shared`."""
        return [
            self.job(rule, seed, self.sizes.rollouts, ranges)
            for seed in self.sizes.seeds
            for rule in self.sizes.rules
            if (rule, seed) != ("none", self.sizes.seeds[0])
        ]

    def sweep(self, ranges: Ranges, done: Sequence[Job]) -> Sweep:
        """Plan the sweep: the variants of the swept rules, and the runs to train for them.

        A variant that is the same as a job in ``done`` uses that job's run.
        """
        own = {job.run.name: job for job in done}
        jobs: dict[Path, Job] = {}
        planned: list[tuple[Variant, list[Path]]] = []
        for variant in variants(self.sizes, ranges):
            runs: list[Path] = []
            for seed in () if variant.reason else self.sizes.seeds[: self.sizes.sweep_seeds]:
                job = own.get(f"{variant.trained_as}-seed{seed}")
                if job is None:
                    job = self.job(variant.rule, seed, self.sizes.rollouts, ranges, variant=variant)
                    jobs[job.run] = job
                runs.append(job.run)
            planned.append((variant, runs))
        return Sweep([*jobs.values()], planned)


@dataclass(frozen=True)
class Sweep:
    """The runs that a sweep must train, and each variant with the runs that belong to it."""

    jobs: list[Job]
    planned: list[tuple[Variant, list[Path]]]

    def train(self, at_once: int) -> tuple[list[Path], list[tuple[Variant, tuple[Path, ...], str]]]:
        """Train the runs of the sweep that are missing.

        A setting that the trainer refuses, or under which training diverges, is a result: its run is left out, and
        tried again next time.

        Returns
        -------
        trained : list of Path
            The finished runs that only the sweep needs.
        variants : list of (variant, runs, reason)
            The finished runs of each variant, and why the variant's other runs are missing ("" if none is).
        """
        refused = UserError.status, TrainingDiverged.status
        stopped = run_jobs(self.jobs, at_once, "sweep", refused)
        found = []
        for variant, runs in self.planned:
            left = tuple(run for run in runs if run not in stopped)
            why = [variant.reason, *(f"{run.name} stopped: {stopped[run]}" for run in runs if run in stopped)]
            found.append((variant, left, "; ".join(filter(None, why))))
        return [job.run for job in self.jobs if job.run not in stopped], found
