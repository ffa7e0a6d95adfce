"""What a training run shows and writes while it goes: the progress bar, timings, metrics.jsonl and the trackers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from accelerate.utils import gather_object
from tqdm.auto import tqdm

from fspo.base.files import writing
from fspo.config import TrainConfig
from fspo.gradlog.metrics_file import MetricsFile
from fspo.rollouts.counts import Counts
from fspo.train.launch import init_trackers
from fspo.train.metrics import finished


class Reporter:
    """Reports of one run; every process holds one, and the main process's bar and file are the ones that exist.

    Attributes
    ----------
    metrics : MetricsFile
    seconds : dict of float
        Wall time of the present rollout's or evaluation's parts.
    """

    def __init__(self, accelerator: Accelerator, config: TrainConfig) -> None:
        self.accelerator, self.config, self.run = accelerator, config, Path(config.output)
        self.metrics = MetricsFile(self.run)
        self.seconds: dict[str, float] = {}
        self._bar: tqdm | None = None
        self._warned: set[str] = set()

    @contextmanager
    def training(self, label: str, done: int, step: int) -> Iterator[None]:
        """Bar and trackers of a run that goes on after ``done`` rollouts and ``step`` updates."""
        init_trackers(self.accelerator, self.config, step)
        with tqdm(
            total=self.config.rollouts,
            initial=done,
            desc=f"train {label}",
            unit="rollout",
            disable=not self.accelerator.is_main_process,
            dynamic_ncols=True,
        ) as self._bar:  # closed before an error is printed: it gets a line of its own
            yield
        self.accelerator.end_training()

    def warn(self, kind: str, message: str) -> None:
        """Print a warning on the main process, one of each kind."""
        if self.accelerator.is_main_process and kind not in self._warned:
            self._warned.add(kind)
            tqdm.write(f"warning: {message}", file=sys.stderr)

    def say(self, what: str) -> None:
        """Name the present work in the progress bar; logs that are no terminal are spared."""
        if self._bar is not None:
            self._bar.set_postfix_str(what, refresh=sys.stderr.isatty())

    def sampling(self, total: int) -> Callable[[int, int], None]:
        """From a number of responses over all processes to `fspo.sampling.sample.sample`'s progress callback."""
        total = -(-total // self.accelerator.num_processes)
        done = 0

        def progress(responses: int, tokens: int) -> None:
            nonlocal done
            done += responses
            self.say(f"sampling {done}/{total}")

        self.say(f"sampling 0/{total}")
        return progress

    def restart_clock(self) -> dict[str, float]:
        """Begin to time the parts of a rollout or evaluation; the dictionary that fills up."""
        self.seconds = {}
        return self.seconds

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the block's wall time to a part."""
        began = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def times(self) -> dict[str, float]:
        """The parts' wall times as metrics, seconds."""
        return {f"time/{name}": seconds for name, seconds in self.seconds.items()}

    def divide(self, counts: Counts) -> dict[str, float]:
        """Add the counts of all processes and divide once."""
        merged = Counts()
        for pairs in gather_object([counts.pairs()]):
            merged.merge(pairs)
        return finished(merged, self.config.log.length_edges)

    def write(self, phase: str, rollout: int, step: int, values: dict[str, Any]) -> None:
        """A line of metrics.jsonl, and the finite values to the trackers."""
        if self.accelerator.is_main_process:
            self.metrics.write({"rollout": rollout, "step": step, "phase": phase, **values})
        with writing(self.run):
            self.accelerator.log({k: v for k, v in values.items() if np.isfinite(v)}, step=step)

    def rollout_done(self, label: str, values: dict[str, float]) -> None:
        """Move the bar on."""
        if self._bar is not None:
            self._bar.set_description_str(
                f"train {label} reward {values['reward']:.3f} "
                f"clip {values.get('clip_ratio/region_mean', 0.0):.3f} length {values['completions/mean_length']:.0f}",
                refresh=False,
            )
            self._bar.update()
