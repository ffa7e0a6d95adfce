"""The options of ``fspo reproduce``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fspo.base.arguments import checked_count, checked_seed
from fspo.base.errors import UserError, unknown_name
from fspo.repro.presets import PRESETS, TASKS, ReproductionSizes, with_changes
from fspo.rules import TRAINING_ACCEPTANCE, preset

STAGES = ("checks", "warm-up", "shared-run", "calibration", "training", "noise-floor", "analysis", "sweep", "doctor")
STAGES += ("figures-theory", "figures")
"""Stages of a reproduction, in their order."""


@dataclass(frozen=True)
class ReproductionOptions:
    """What to reproduce.

    Parameters
    ----------
    preset : {"quick", "paper", "smoke"}
        How large the reproduction is; "smoke" only shows that every stage runs.
    output : str
        Results go to OUTPUT/PRESET.
    tasks : list of str, optional
        Tasks instead of the preset's: chain-add, chain-add-64, products (needs the package extra "gym"). With several
        tasks, or one that is not the preset's only task, each task has a folder OUTPUT/PRESET/TASK with a report. Every
        claim is then judged on each task, and over all tasks that have such a folder.
    rules : list of str, optional
        Rules to train instead of the preset's.
    seeds : list of int, optional
        Seeds instead of the preset's.
    rollouts : int, optional
        Number of rollouts of each run instead of the preset's.
    jobs : int, optional
        Number of training processes that run at the same time.
    ranges : {"published", "calibrated"}
        Whether each rule trains with the range of its preset ("published"), or with one calibrated to ``target``. The
        claims about rules as published need "published".
    target : float
        Band acceptance that each calibrated range gives on the responses of the shared unclipped run.
    width : str
        Name of a conference or journal, whose page sets the width of the figures.
    force : str
        A stage to do again although it is done: checks, warm-up, shared-run, calibration, training, noise-floor,
        analysis, sweep, doctor, figures-theory or figures. The stages after it are done again too. Finished runs are
        kept unless their own stage is forced; they are then moved to the folder ``superseded``.
    """

    preset: Literal["quick", "paper", "smoke"] = "quick"
    output: str = "out"
    tasks: list[str] | None = None
    rules: list[str] | None = None
    seeds: list[int] | None = None
    rollouts: int | None = None
    jobs: int | None = None
    ranges: Literal["published", "calibrated"] = "published"
    target: float = TRAINING_ACCEPTANCE
    width: str = "neurips"
    force: str = ""

    def __post_init__(self) -> None:
        if not self.output.strip():
            raise UserError("--output is empty: name a folder, such as out")
        if not 0 < self.target < 1:
            raise UserError(f"--target {self.target}: an acceptance lies strictly between 0 and 1, for example 0.65")
        for name, most, why in (("rollouts", 10**6, "the length of each run"), ("jobs", 1024, "training processes")):
            if getattr(self, name) is not None:
                checked_count(f"--{name}", getattr(self, name), 1, most, why)
        for name, given in (("tasks", self.tasks), ("rules", self.rules), ("seeds", self.seeds)):
            if given is not None and (not given or len(set(given)) < len(given)):
                raise UserError(f"--{name} {given}: name at least one, and each once")
        for task in self.tasks or ():
            if task not in TASKS:
                raise unknown_name("--tasks", task, tuple(TASKS))
        if self.force and self.force not in STAGES:
            raise unknown_name("stage", self.force, STAGES)
        for rule in self.rules or ():
            preset(rule)  # refuse an unknown rule before any work
        for seed in self.seeds or ():
            checked_seed("--seeds", seed)

    def sizes(self) -> ReproductionSizes:
        """Return the sizes of the reproduction (tasks, rules, seeds, rollouts, ...): those of its preset, replaced
        where these options give a value.
        """
        lists = {name: getattr(self, name) for name in ("tasks", "rules", "seeds")}
        changes = {name: given and tuple(given) for name, given in lists.items()}
        changes |= {"rollouts": self.rollouts, "jobs": self.jobs}
        return with_changes(PRESETS[self.preset], **changes)

    def folder(self, task: str) -> Path:
        """Return the folder of a task: that of the preset if the task is the preset's only one, else one inside it.

        So tasks that are run one after the other, by several commands, do not replace each other's results.
        """
        root = Path(self.output) / self.preset
        return root if self.sizes().tasks == PRESETS[self.preset].tasks == (task,) else root / task
