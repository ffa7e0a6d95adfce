"""The runs that a reproduction trains, and the options of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fspo.repro.presets import ReproductionSizes
from fspo.repro.stages import Job
from fspo.rules import COMPARED_ADVANTAGE

Ranges = Mapping[str, Mapping[str, Any]]
"""Calibrated ranges: name of a rule -> its ``range_lo`` and ``range_hi``, set on one unclipped run. A rule without an
entry trains with the range of its preset."""


@dataclass(frozen=True)
class Training:
    """The training runs of one reproduction.

    Attributes
    ----------
    out : Path
        Run folders go to ``out/runs``.
    sizes : ReproductionSizes
    warm : str
        Folder of the warmed-up model that every run starts from.
    """

    out: Path
    sizes: ReproductionSizes
    warm: str

    def job(self, rule: str, seed: int, rollouts: int, ranges: Ranges, threads: int | None = None) -> Job:
        """Return the job that trains one rule with one seed."""
        fit = ranges.get(rule, {})
        options = {
            "output": str(self.out / f"runs/{rule}-seed{seed}"),
            "seed": seed,
            "rollouts": rollouts,
            "threads": threads or self.sizes.threads,
            "model.name_or_path": self.warm,
            "rule.preset": rule,
            "rule.advantage": COMPARED_ADVANTAGE,
            **{f"rule.{name}": fit[name] for name in ("range_lo", "range_hi") if name in fit},
            **self.sizes.options,
        }
        arguments = tuple(part for name, value in options.items() for part in (f"--{name}", str(value)))
        return Job(Path(options["output"]), arguments, rollouts)

    def shared(self) -> Job:
        """Return the training job of rule "none" with the first seed. Every rule's range is calibrated on this run, so
        it runs before the others, with the threads of all jobs.
        """
        threads = self.sizes.jobs * self.sizes.threads
        return self.job("none", self.sizes.seeds[0], self.sizes.unclipped_rollouts, {}, threads)

    def rules(self, ranges: Ranges) -> list[Job]:
        """Return a training job for every rule and seed, except rule "none" with the first seed, which is `shared`."""
        return [
            self.job(rule, seed, self.sizes.unclipped_rollouts if rule == "none" else self.sizes.rollouts, ranges)
            for seed in self.sizes.seeds
            for rule in self.sizes.rules
            if (rule, seed) != ("none", self.sizes.seeds[0])
        ]
