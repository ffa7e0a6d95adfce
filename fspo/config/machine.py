"""Options of the machine that a run is planned for."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

import psutil

from fspo.base.errors import UserError
from fspo.config.ranges import check_ranges, number
from fspo.config.train import TrainConfig

Sharding = Literal["fsdp2", "ddp"]


@dataclass(frozen=True)
class MachineConfig:
    """The machine that the run is planned for.

    Parameters
    ----------
    device : {"gpu", "cpu"}
        What the run computes on. On a CPU each process has an equal share of the machine's memory.
    gpus : int
        Number of GPUs on all nodes together; on a CPU the number of processes.
    memory : float, optional
        Memory of each GPU, or of a process on a CPU, GiB; by default 80 for a GPU, and a process's share of this
        machine's memory for a CPU.
    sharding : {"fsdp2", "ddp"}
        Whether weights, gradients and moments are sharded over the GPUs ("fsdp2") or copied to each of them ("ddp").
        It makes no difference on one GPU.
    mixed_precision : {"bf16", "no"}, optional
        As in the accelerate configuration: "bf16" computes in bfloat16 and keeps float32 weights. By default "bf16" on
        several GPUs, as in `fspo/presets/accelerate`, and "no" elsewhere.
    response_tokens : int, optional
        Mean length of a response, from which the plan computes its numbers of tokens; by default
        sampling.max_new_tokens.
    """

    device: Literal["gpu", "cpu"] = "gpu"
    gpus: int = number(8, 1, 10**6)
    memory: float | None = number(None, 0, 1e6, above=True)
    sharding: Sharding = "fsdp2"
    mixed_precision: Literal["bf16", "no"] | None = None
    response_tokens: int | None = number(None, 1)

    def __post_init__(self) -> None:
        check_ranges(self, "machine")

    @property
    def gib(self) -> float:
        """Memory of each GPU, or of each process on a CPU, GiB."""
        if self.memory is not None:
            return self.memory
        return 80.0 if self.device == "gpu" else psutil.virtual_memory().total / 2**30 / self.gpus

    @property
    def precision(self) -> Literal["bf16", "no"]:
        """The mixed precision of the run: the option ``mixed_precision``, or else the default of this machine."""
        return self.mixed_precision or ("bf16" if self.device == "gpu" and self.gpus > 1 else "no")

    @property
    def shards(self) -> int:
        """Number of processes over which the weights are sharded; 1 if every process holds all weights."""
        return self.gpus if self.sharding == "fsdp2" else 1


@dataclass(frozen=True)
class PlanConfig(TrainConfig):
    """A training run and the machine that it is planned for.

    Parameters
    ----------
    machine : MachineConfig
    json : str, optional
        Write the plan to this file too.
    """

    machine: MachineConfig = field(default_factory=MachineConfig)
    json: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.json is not None and not self.json.strip():
            raise UserError("json is empty: give the path of a file, or leave it out")

    def training(self) -> TrainConfig:
        """Return the options of the training run alone, without the options ``machine`` and ``json`` of the plan."""
        return TrainConfig(**{f.name: getattr(self, f.name) for f in fields(TrainConfig)})
