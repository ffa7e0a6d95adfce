"""The ``vllm`` engine of `fspo.sampling.sample.sample`: a vLLM server, through the client that TRL keeps.

vLLM draws with noise of its own, so responses are not those of the other engines and a resumed run does not repeat what
it lost. Its log-probs are logged beside the trainer's (``engine_log_ratio``) and used for nothing else; they belong to
the sampling temperature only if the server runs with ``--logprobs-mode processed_logprobs``.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
from accelerate import PartialState
from transformers import PreTrainedModel

from fspo.base.errors import UserError
from fspo.sampling.picking import Noise, Progress

SERVER = (
    'vllm serve MODEL --logprobs-mode processed_logprobs --weight-transfer-config \'{"backend": "nccl"}\' '
    "(with VLLM_SERVER_DEV_MODE=1)"
)
_clients: dict[str, tuple[Any, int | None]] = {}
"""By address: the client and the weights that its server has, as `_version` counts them."""


def run_vllm(
    model: PreTrainedModel,
    prompts: list[list[int]],
    noise: Noise,
    temperature: float,
    steps: int,
    eos: list[int],
    url: str,
    progress: Progress | None,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Send the model's weights where they changed, then sample; tokens int64 and log-probs float32, each (L_i,).

    Raises
    ------
    UserError
        If vLLM is not installed, the server does not answer or fails, or a response is missing: none is left out.
    """
    check_vllm()
    check_alone(PartialState().num_processes, hasattr(model, "peft_config"))
    try:
        client = _synced(model, url)
        reply = client.generate(
            prompts,
            temperature=temperature,
            max_tokens=steps,
            logprobs=0,
            # No seed: each row is a request of its own, and one seed would give a prompt's rows the same response.
            generation_kwargs={"stop_token_ids": eos},
        )
    except Exception as error:  # the client raises bare ones
        _clients.pop(url, None)
        text = " ".join(str(error).split())[:300]
        raise UserError(f"the vLLM server at {url} failed ({text}): start it with {SERVER}") from error
    tokens, logprobs = reply["completion_ids"], reply["logprobs"]
    if len(tokens) != len(prompts) or not all(tokens) or logprobs is None:
        raise UserError(f"the vLLM server at {url} gave {len(tokens)} responses to {len(prompts)} prompts: restart it")
    if progress is not None:
        progress(len(tokens), sum(map(len, tokens)))
    return (
        [np.array(row, np.int64) for row in tokens],
        [np.array([0.0 if temperature == 0 else float(value[0]) for value in row], np.float32) for row in logprobs],
    )


def check_vllm() -> None:
    """Raise UserError unless vLLM and TRL are installed."""
    for name in ("vllm", "trl"):
        if find_spec(name) is None:
            raise UserError(
                f"the vllm engine needs {name}: pip install 'fspo[vllm]', or set the sampling engine to 'generate'"
            )


def check_alone(processes: int, lora: bool) -> None:
    """Raise UserError where weights would have to come from several processes or from adapters."""
    if processes > 1 or lora:
        raise UserError("the vllm engine serves one training process without LoRA: use the generate engine instead")


def _synced(model: PreTrainedModel, url: str) -> Any:
    from trl.generation.vllm_client import VLLMClient

    if url not in _clients:
        client = VLLMClient(base_url=url, connection_timeout=60.0)
        client.init_communicator(device=model.device)
        _clients[url] = (client, None)
    client, had = _clients[url]
    # in-place updates raise a parameter's version; another model has other addresses
    version = hash(tuple((p.data_ptr(), p._version) for p in model.parameters()))
    if had != version:
        client.update_model_params(model)
        client.reset_prefix_cache()
        _clients[url] = (client, version)
    return client
