"""Options of the sampling of responses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from fspo.base.errors import UserError, unknown_name
from fspo.config.option_ranges import check_ranges, number

Engine = Literal["auto", "fast", "generate", "vllm"]
ENGINES: tuple[str, ...] = get_args(Engine)
Precision = Literal["same", "bfloat16", "int8"]


@dataclass(frozen=True)
class SamplingConfig:
    """How responses are sampled.

    Parameters
    ----------
    temperature : float
        Divides the logits; 0 takes the most probable token.
    max_new_tokens : int
        Greatest length of a response, tokens, with its end token.
    engine : {"auto", "fast", "generate", "vllm"}
        Program that samples: ``"fast"`` is the package's own, ``"generate"`` that of transformers, ``"vllm"`` a vLLM
        server. ``"auto"`` takes ``"fast"`` on a CPU and for models below 1e9 parameters, if the model's layers are
        plain attention; else ``"generate"``.
    batch_size : int
        Responses sampled at once. A vLLM server gets all prompts and decides itself how many it samples at once.
    precision : {"same", "bfloat16", "int8"}
        ``"bfloat16"`` and ``"int8"`` sample from a copy of the weights in that precision, made at each rollout. int8
        rounds the weights of all linear layers but the output layer; activations keep their type. Held-out evaluations
        sample from the policy itself, without a copy and without top-p.
    top_p : float
        Sample only among the most probable tokens, until they hold this share of the probability; 1 for all tokens.
    vllm_url : str
        Address of the server for engine ``"vllm"``.
    vllm_weights : str
        Folder that this server serves. The trainer writes the model there, and the server loads it again after
        updates. A server on another machine needs the folder under the same path on a shared file system. A folder
        that holds other files is refused.
    vllm_timeout : float
        Seconds that one request to this server may take. All requests of a rollout are sent at once, so each may take
        as long as sampling the rollout.
    """

    temperature: float = number(1.0, 1e-3, 1e3, also=(0,))
    max_new_tokens: int = number(264, 1)
    engine: Engine = "auto"
    batch_size: int = number(512, 1)
    precision: Precision = "same"
    top_p: float = number(1.0, 0, 1, above=True)
    vllm_url: str = "http://localhost:8000"
    vllm_weights: str = "out/vllm"
    vllm_timeout: float = number(1800.0, 0, 1e6, above=True)

    def __post_init__(self) -> None:
        check_ranges(self, "sampling")
        _check_url(self.vllm_url)
        if self.engine not in ENGINES:
            raise unknown_name("sampling engine", self.engine, ENGINES)
        if self.precision not in get_args(Precision):
            raise unknown_name("sampling precision", self.precision, get_args(Precision))
        if self.engine == "vllm" and self.precision != "same":
            raise UserError(
                f"sampling.precision is {self.precision} and a vLLM server samples: leave sampling.precision out, and "
                "start the server with --dtype or --quantization"
            )
        if self.temperature == 0 and self.top_p < 1:
            raise UserError("sampling.top_p has no effect at temperature 0: leave it out")

    def of_policy(self, **changes: Any) -> SamplingConfig:
        """Return a copy of these sampling settings with ``changes``, without top-p, and with the trainer's own weights
        instead of weights in lower precision.

        Responses that are sampled with the returned settings follow the policy's own distribution."""
        return replace(self, precision="same", top_p=1.0, **changes)


def _check_url(url: str) -> None:
    """Raise UserError unless ``url`` is the address of a server."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # urlsplit raises ValueError if the port is not a number
        good = False
    if not good:
        raise UserError(f"sampling.vllm_url is {url!r}: write http://HOST:PORT")
