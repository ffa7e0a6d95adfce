"""Options of the machine that a run is planned for."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

from fspo.base.errors import UserError
from fspo.config.ranges import check_ranges, number
from fspo.config.train import TrainConfig

Sharding = Literal["fsdp2", "ddp"]


@dataclass(frozen=True)
class MachineConfig:
    """The machine that the run is planned for.

    Parameters
    ----------
    gpus : int
        Number of GPUs on all nodes together.
    memory : float
        Memory of each GPU, GiB.
    sharding : {"fsdp2", "ddp"}
        Whether weights, gradients and moments are sharded over the GPUs ("fsdp2") or copied to each of them ("ddp").
        It makes no difference on one GPU.
    mixed_precision : {"bf16", "no"}
        As in the accelerate configuration: "bf16" computes in bfloat16 and keeps float32 weights.
    response_tokens : int, optional
        Mean length of a response, for the token counts; by default sampling.max_new_tokens.
    """

    gpus: int = number(8, 1, 10**6)
    memory: float = number(80.0, 0, 1e6, above=True)
    sharding: Sharding = "fsdp2"
    mixed_precision: Literal["bf16", "no"] = "bf16"
    response_tokens: int | None = number(None, 1)

    def __post_init__(self) -> None:
        check_ranges(self, "machine")


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
        """Return the options of the training run, without the machine."""
        return TrainConfig(**{f.name: getattr(self, f.name) for f in fields(TrainConfig)})
