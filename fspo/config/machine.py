"""Options of the machine that a run is planned for."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

import psutil

from fspo.config.option_ranges import Ranged, number
from fspo.config.train import TrainConfig


@dataclass(frozen=True)
class MachineConfig(Ranged, group="machine"):
    """The machine that the run is planned for.

    Parameters
    ----------
    device : {"gpu", "cpu"}
        What the run computes on. On a CPU each process has an equal share of the machine's memory.
    gpus : int
        Number of GPUs over which FSDP2 shards the run, on all nodes together; on a CPU the number of processes. DDP
        shards nothing: each of its GPUs needs as much memory as a single GPU (gpus = 1).
    memory : float, optional
        Memory of each GPU, or of a process on a CPU, GiB; by default 80 for a GPU, and a process's share of this
        machine's memory for a CPU.
    mixed_precision : {"bf16", "no"}, optional
        As in the accelerate configuration: "bf16" computes in bfloat16 and keeps float32 weights. By default "bf16" on
        several GPUs, as in `fspo/presets/accelerate`, and "no" elsewhere.
    """

    device: Literal["gpu", "cpu"] = "gpu"
    gpus: int = number(8, 1, 10**6)
    memory: float | None = number(None, 0, 1e6, above=True)
    mixed_precision: Literal["bf16", "no"] | None = None

    @property
    def gib(self) -> float:
        """Memory of each GPU, or of each process on a CPU, GiB: the option ``memory``, or its default."""
        if self.memory is not None:
            return self.memory
        return 80.0 if self.device == "gpu" else psutil.virtual_memory().total / 2**30 / self.gpus

    @property
    def precision(self) -> Literal["bf16", "no"]:
        """The mixed precision of the run: the option ``mixed_precision``, or else the default of this machine."""
        return self.mixed_precision or ("bf16" if self.device == "gpu" and self.gpus > 1 else "no")


@dataclass(frozen=True)
class PlanConfig(TrainConfig):
    """A training run and the machine that it is planned for."""

    machine: MachineConfig = field(default_factory=MachineConfig)

    def training(self) -> TrainConfig:
        """Return the options of the training run alone."""
        return TrainConfig(**{f.name: getattr(self, f.name) for f in fields(TrainConfig)})
