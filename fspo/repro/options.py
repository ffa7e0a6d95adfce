"""The options of ``fspo reproduce``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fspo.base.errors import UserError, unknown_name
from fspo.base.number_checks import checked_count
from fspo.repro.presets import PRESETS, TASKS, ReproductionDesign

STAGES = ("checks", "training", "estimates", "figures-theory", "analysis", "doctor", "figures")
"""Stages of a reproduction, in their order."""


@dataclass(frozen=True)
class ReproductionOptions:
    """What to reproduce.

    Parameters
    ----------
    preset : {"quick", "paper", "smoke"}
        How large the reproduction is; "smoke" only shows that every stage runs.
    output : str
        Results go to OUTPUT/PRESET, and where the preset has several tasks, reports to OUTPUT/PRESET/TASK.
    tasks : list of str, optional
        Those of the preset's tasks that are run now: chain-add, chain-add-64, products (needs the package extra "gym").
        The claims are judged by all estimates that there are.
    estimates : list of str, optional
        Files estimates.csv of the same preset from other machines. Their runs are not trained again, and count in the
        verdicts; seeds that the preset does not plan are left out.
    jobs : int
        Number of training processes that run at the same time, each with one thread.
    width : str
        Name of a conference or journal, whose page sets the width of the figures.
    force : str
        A stage to do again although it is done: checks, training, estimates, figures-theory, analysis, doctor or
        figures. The stages after it are done again too, but finished runs are kept unless "training" is forced; they
        are then moved to the folder superseded.
    """

    preset: Literal["quick", "paper", "smoke"] = "quick"
    output: str = "out"
    tasks: list[str] | None = None
    estimates: list[str] | None = None
    jobs: int = 2
    width: str = "neurips"
    force: str = ""

    def __post_init__(self) -> None:
        if not self.output.strip():
            raise UserError("--output is empty: name a folder, such as out")
        checked_count("--jobs", self.jobs, 1, 1024, "training processes")
        for task in self.tasks or ():
            if task not in TASKS:
                raise unknown_name("--tasks", task, tuple(TASKS))
            if task not in self.design.tasks:
                raise UserError(f"--tasks {task}: preset {self.preset} has only {', '.join(self.design.tasks)}")
        if self.force and self.force not in STAGES:
            raise unknown_name("stage", self.force, STAGES)

    @property
    def design(self) -> ReproductionDesign:
        """What the preset trains and checks."""
        return PRESETS[self.preset]

    @property
    def root(self) -> Path:
        """Folder of all results: OUTPUT/PRESET."""
        return Path(self.output) / self.preset

    def folder(self, task: str) -> Path:
        """Return the folder of a task's results: OUTPUT/PRESET, or OUTPUT/PRESET/TASK if the preset has several
        tasks."""
        return self.root if self.design.tasks == (task,) else self.root / task
