"""The ``continuous`` engine of `fspo.sampling.sample.sample`: transformers' continuous batching with the keyed noise.

transformers schedules the requests over a paged key-value cache; the tokens are picked here, from the same uniforms as
in the other engines, so the responses are theirs but for the last bits of the logits. A uniform reaches its row as two
int32 words, the only thing that continuous batching hands to a logits processor.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)

from fspo.base.errors import UserError
from fspo.base.keyed_noise import keyed_uniforms
from fspo.sampling.picking import NOISE_PURPOSE, Noise, Progress, base_model, pick_tokens

_PAGE = 32  # tokens of a cache page on a CPU, where the cache is sized here
_MOST_PAGES = 1 << 14
_BLOCK = 256  # uniforms of a response computed at once
_WORD = 1 << 31
FREE_SHARE = 0.8
"""Of an accelerator's free memory, for the cache."""


class KeyedPicker:
    """Picks each request's token at its own uniform and keeps the log-probability.

    Parameters
    ----------
    noise : Noise
        Its keys belong to the requests in order.
    prompts : list of lists of int
    temperature : float
    device : torch.device
    capacity : int
        Most requests in one forward pass.
    """

    def __init__(
        self, noise: Noise, prompts: list[list[int]], temperature: float, device: torch.device, capacity: int
    ) -> None:
        self.noise, self.temperature = noise, temperature
        self.width = {request_id(i): len(prompt) for i, prompt in enumerate(prompts)}
        self.logprobs: dict[str, list[float]] = {name: [] for name in self.width}
        self.high, self.low = _Half(self), _Half(self)
        self._number = {name: i for i, name in enumerate(self.width)}
        self._blocks: dict[str, tuple[int, np.ndarray]] = {}
        self._picked = torch.zeros(capacity, device=device)
        self._waiting: list[str] = []

    def uniform(self, name: str, position: int) -> float:
        """Uniform of a request's token."""
        block, column = divmod(position, _BLOCK)
        if self._blocks.get(name, (-1,))[0] != block:
            address = (self.noise.rollout, int(self.noise.keys[self._number[name]]))
            values = keyed_uniforms(NOISE_PURPOSE, self.noise.seed, address, block * _BLOCK, _BLOCK)
            self._blocks[name] = (block, values)
        return float(self._blocks[name][1][column])

    def words(self, requests: list[Any]) -> list[tuple[int, int]]:
        """Both words of each request's next uniform; what the last pass picked is collected first."""
        self.collect()
        found = []
        for request in requests:
            state = request.state
            name = state.request_id
            if name not in self.width:  # transformers' own warm-up
                found.append((0, 0))
                continue
            # Evicted and taken up again, a request counts its tokens among the initial ones.
            position = len(state.initial_tokens) + len(state.generated_tokens) - self.width[name]
            found.append(divmod(int(self.uniform(name, position) * 2.0**53), _WORD))
            self._waiting.append(name)
        return found

    def collect(self) -> None:
        """Take the log-probabilities of the last forward pass."""
        for name, value in zip(self._waiting, self._picked[: len(self._waiting)].tolist(), strict=True):
            self.logprobs[name].append(value)
        self._waiting = []

    def pick(self, scores: torch.Tensor, high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
        """Scores (B, V) in which only the picked token is possible."""
        uniforms = (high.double() * _WORD + low.double()) * 2.0**-53
        tokens, logprobs = pick_tokens(scores, uniforms, self.temperature)
        self._picked[: len(scores)].copy_(logprobs)
        return torch.full_like(scores, -math.inf).scatter_(1, tokens[:, None], 0.0)


class _Half(ContinuousBatchingLogitsProcessor):
    """One word of the uniforms; the low one, which comes second, picks."""

    supported_kwargs: dict[str, type] = {}  # noqa: RUF012 (the base class's form)
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(self, picker: KeyedPicker) -> None:
        self.picker = picker
        self.words: list[int] = []
        self.given: torch.Tensor | None = None

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        if self is self.picker.high:
            both = self.picker.words(requests_with_new_token)
            self.words, self.picker.low.words = [pair[0] for pair in both], [pair[1] for pair in both]
        return torch.tensor(self.words, dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        given = tensor_arg[: scores.size(0)]
        if self is self.picker.high:
            self.given = given
            return scores
        assert self.picker.high.given is not None
        return self.picker.pick(scores, self.picker.high.given, given)


def request_id(number: int) -> str:
    """Name of the request of a row."""
    return f"row-{number}"


def _spare_pages(pages: int) -> int:
    """Pages of a cache on the CPU that would hold ``pages``."""
    return min(pages, _MOST_PAGES)


def run_continuous(
    model: PreTrainedModel,
    prompts: list[list[int]],
    noise: Noise,
    temperature: float,
    steps: int,
    eos: list[int],
    pad: int,
    progress: Progress | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Sample with transformers' continuous batching; return tokens int64 and log-probs float32, both (B, steps).

    Raises
    ------
    UserError
        If the model's layers or this machine cannot run it, or if any response was lost: none is ever left out.
    """
    base = base_model(model)
    on_cpu = model.device.type == "cpu"
    pages = sum(-(-(len(prompt) + steps) // _PAGE) + 1 for prompt in prompts)
    sizes: dict[str, Any] = {"max_memory_percent": FREE_SHARE}
    if on_cpu:
        room = _spare_pages(pages)
        sizes = {"page_size": _PAGE, "num_blocks": room, "max_batch_tokens": max(512, len(prompts))}
    config = ContinuousBatchingConfig(
        **sizes,
        max_requests_per_batch=min(len(prompts), 1024),
        auto_switch_to_flash=False,  # the model's own attention, as in the trainer
        # In step with the scheduler: a request's next position must be known when its uniform is handed over.
        use_async_batching=False,
        use_cuda_graph=False,
    )
    tokens = np.full((len(prompts), steps), pad, np.int64)
    logprobs = np.zeros((len(prompts), steps), np.float32)
    found: dict[str, Any] = {}
    try:
        manager = base.init_continuous_batching(
            generation_config=GenerationConfig(
                max_new_tokens=steps, do_sample=False, eos_token_id=eos, pad_token_id=pad
            ),
            continuous_batching_config=config,
        )
        picker = KeyedPicker(noise, prompts, temperature, model.device, config.max_requests_per_batch or 1024)
        manager.logit_processor = ContinuousBatchingLogitsProcessorList(
            LogitsProcessorList([picker.high, picker.low])  # type: ignore[list-item]
        )
        manager.logit_processor.tensors_required = 2
        manager.start()
        try:
            for i, prompt in enumerate(prompts):
                manager.add_request(prompt, request_id=request_id(i), max_new_tokens=steps, eos_token_id=eos)
            while len(found) < len(prompts):
                result = manager.get_result(timeout=1)
                if result is None and not manager.is_running():
                    break
                if result is not None and (result.is_finished() or result.error):
                    found[result.request_id] = result
                    if progress is not None:
                        progress(1, len(result.generated_tokens))
        finally:
            manager.stop(block=True, timeout=60)
            manager.destroy()
    except (ValueError, RuntimeError, AttributeError, ImportError) as error:
        text = " ".join(str(error).split())[:300]
        raise UserError(
            f"continuous batching cannot run here ({text}): set the sampling engine to 'generate'"
        ) from error
    picker.collect()
    for i in range(len(prompts)):
        result = found.get(request_id(i))
        if result is None or result.error:
            problem = "no answer" if result is None else result.error
            raise UserError(
                f"continuous batching lost the response to prompt {i} of {len(prompts)} ({problem}): set the sampling "
                "engine to 'generate', or give the cache more room"
            )
        row, values = result.generated_tokens, picker.logprobs[request_id(i)]
        tokens[i, : len(row)] = row
        logprobs[i, : len(row)] = values[: len(row)]
    return tokens, logprobs
