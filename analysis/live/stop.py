"""End a training of transformers' Trainer at an issue that the doctor finds in the run's log."""

from __future__ import annotations

import warnings
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback

from analysis.doctor.doctor import Doctor
from fspo.gradlog.files import log_files, log_paths


class Stop(TrainerCallback):
    """Callback that asks the doctor after each rollout and ends training, with a checkpoint, at an issue."""

    def __init__(self, trainer: Any, threshold: str) -> None:
        self.trainer, self.threshold = trainer, threshold
        self.rollout: int | None = None
        self.doctor: Doctor | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ask about the rollouts that are written, once for each; every process ends at the same step."""
        if self.rollout == self.trainer.log_rollout:
            return
        self.rollout = self.trainer.log_rollout
        reason = [self._reason(args.output_dir) if state.is_world_process_zero else None]
        broadcast_object_list(reason)
        if reason[0] is not None:
            warnings.warn(f"training ends after step {state.global_step}: {reason[0]}", stacklevel=2)
            control.should_training_stop = control.should_save = True

    def _reason(self, run: str) -> str | None:
        """Return what the doctor says of the issue to stop at, or None if there is no such issue."""
        files = log_files(run)[0] if log_paths(run) else []
        if not files:
            return None
        self.doctor = self.doctor or Doctor.of(run, files[0].metadata)
        self.doctor.read(complete=self.trainer.accelerator.num_processes == 1)
        diagnosis = self.doctor.findings()
        if not diagnosis.fails(self.threshold):
            return None
        return "; ".join(f"{issue.id}: {issue.summary}" for issue in diagnosis.findings)
