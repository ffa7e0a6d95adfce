"""How responses are sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from fspo.base.errors import unknown_name
from fspo.config.ranges import check_ranges, number

Engine = Literal["auto", "fast", "generate", "vllm"]
ENGINES: tuple[str, ...] = get_args(Engine)


@dataclass(frozen=True)
class SamplingConfig:
    """How responses are sampled.

    Parameters
    ----------
    temperature : float
        Divides the logits; 0 takes the most probable token.
    max_new_tokens : int
        Longest response, its end token included.
    engine : {"auto", "fast", "generate", "vllm"}
        ``"auto"`` takes the fast engine on a CPU and for models below 1e9 parameters, if the model's layers are
        plain attention; else ``"generate"``.
    batch_size : int
        Responses sampled at once; vLLM gets all of them and fills its cache by itself.
    vllm_url : str
        Address of the server for engine ``"vllm"``.
    """

    temperature: float = number(1.0, 1e-3, 1e3, also=(0,))
    max_new_tokens: int = number(264, 1)
    engine: Engine = "auto"
    batch_size: int = number(512, 1)
    vllm_url: str = "http://localhost:8000"

    def __post_init__(self) -> None:
        check_ranges(self, "sampling")
        if self.engine not in ENGINES:
            raise unknown_name("sampling engine", self.engine, ENGINES)
