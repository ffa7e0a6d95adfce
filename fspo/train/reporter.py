"""Show and store what a training run does: progress bar, warnings, timings, metrics.jsonl and trackers."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from accelerate.utils import gather_object
from tqdm.auto import tqdm

from fspo.base.files import writing
from fspo.config import TrainConfig
from fspo.gradlog import metric_names as metric
from fspo.gradlog.metrics_file import MetricsFile
from fspo.rollouts.metric_sums import Counts
from fspo.train.launch import init_trackers
from fspo.train.metrics import finished


class Reporter:
    """Shows the progress of one run and stores its metrics.

    Every process has a Reporter, but only that of the main process shows a progress bar and writes metrics.jsonl.
    ``seconds`` holds the wall time of each part of the present rollout or evaluation."""

    def __init__(self, accelerator: Accelerator, config: TrainConfig) -> None:
        self.accelerator, self.config, self.run = accelerator, config, Path(config.output)
        self.metrics = MetricsFile(self.run)
        self.seconds: dict[str, float] = {}
        self._bar: tqdm | None = None
        self._warned: set[str] = set()

    @contextmanager
    def training(self, label: str, done: int, step: int) -> Iterator[None]:
        """Start the trackers and progress bar (called ``label``) of a run; end them when the ``with`` block ends.

        ``done`` rollouts and ``step`` updates were made before, by the run that is resumed; both are 0 in a new run."""
        init_trackers(self.accelerator, self.config, step)
        with tqdm(
            total=self.config.rollouts,
            initial=done,
            desc=f"train {label}",
            unit="rollout",
            disable=not self.accelerator.is_main_process,
            dynamic_ncols=True,
        ) as self._bar:  # close the progress bar before an error is printed, because both would share a line
            yield
        self.accelerator.end_training()

    def warn(self, kind: str, message: str) -> None:
        """Print the warning ``message`` on the main process, at most once for each value of ``kind``."""
        if self.accelerator.is_main_process and kind not in self._warned:
            self._warned.add(kind)
            tqdm.write(f"warning: {message}", file=sys.stderr)

    def say(self, what: str) -> None:
        """Show in the progress bar what is being done. On a terminal the bar is redrawn at once."""
        if self._bar is not None:
            self._bar.set_postfix_str(what, refresh=sys.stderr.isatty())

    def restart_clock(self) -> dict[str, float]:
        """Begin to time a new rollout or evaluation, and return the dictionary to which the wall times are added."""
        self.seconds = {}
        return self.seconds

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the wall time of the ``with`` block to the time of the part ``name``."""
        began = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def times(self) -> dict[str, float]:
        """Return the wall time of each part of the rollout, seconds, under the metric's name ``time/PART``."""
        return {metric.TIME + name: seconds for name, seconds in self.seconds.items()}

    def divide(self, counts: Counts) -> dict[str, float]:
        """Add up the numerators and counts of all processes' metrics, divide each sum of numerators by that of counts,
        and return the metrics by name. Every process must call this."""
        merged = Counts()
        for pairs in gather_object([counts.pairs()]):
            merged.merge(pairs)
        return finished(merged, self.config.log.length_edges)

    def write(self, phase: str, rollout: int, step: int, values: dict[str, Any]) -> None:
        """Write a line of metrics.jsonl with the metrics ``values`` of a phase ("train" or "eval"), and hand the finite
        ones to the trackers."""
        if self.accelerator.is_main_process:
            self.metrics.write({"rollout": rollout, "step": step, "phase": phase, **values})
        with writing(self.run):
            self.accelerator.log({k: v for k, v in values.items() if np.isfinite(v)}, step=step)

    def rollout_done(self, label: str, values: dict[str, float]) -> None:
        """Advance the progress bar, called ``label``, by one rollout and show its reward, clip rate and mean length,
        from its metrics ``values``."""
        if self._bar is not None:
            self._bar.set_description_str(
                f"train {label} reward {values[metric.REWARD]:.3f} "
                f"clip {values.get(metric.CLIPPED, 0.0):.3f} length {values[metric.MEAN_LENGTH]:.0f}",
                refresh=False,
            )
            self._bar.update()
