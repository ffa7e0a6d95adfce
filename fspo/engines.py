"""Two of the engines behind `fspo.rollout.sample`: they draw the same tokens from the same keyed uniforms."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from transformers import (
    Cache,
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
)
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from fspo.noise import keyed_uniforms

Progress = Callable[[int, int], None]

NOISE_PURPOSE = 0x5A3E
_NOISE_BLOCK = 256  # positions of noise held at once
_PICK_ELEMENTS = 1 << 24  # logits turned into a CDF at once: 128 MiB in float64


def pick_tokens(
    logits: torch.Tensor, uniforms: torch.Tensor | None, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pick one token a row by inverse CDF.

    Parameters
    ----------
    logits : torch.Tensor
        (B, V), any float type; the arithmetic is float32, the CDF float64.
    uniforms : torch.Tensor or None
        Float64 (B,) in [0, 1); not used at temperature 0.
    temperature : float

    Returns
    -------
    tokens : torch.Tensor
        Int64 (B,); never a token of probability 0.
    logprobs : torch.Tensor
        Float32 (B,), at the sampling temperature.
    """
    logits = logits.float()
    if temperature == 0 or uniforms is None:
        best = logits.max(-1)
        return best.indices, best.values * 0.0  # 0, or NaN where the logits are not finite
    step = max(1, _PICK_ELEMENTS // logits.shape[-1])
    parts = [
        _inverse_cdf(part, at, temperature) for part, at in zip(logits.split(step), uniforms.split(step), strict=True)
    ]
    tokens, logprobs = zip(*parts, strict=True)
    return torch.cat(tokens), torch.cat(logprobs)


def _inverse_cdf(logits: torch.Tensor, uniforms: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs = torch.log_softmax(logits / temperature, -1)
    cdf = logprobs.exp().cumsum(-1, dtype=torch.float64)
    total = cdf[:, -1:]
    # Strictly below the total, so that the first entry above the target belongs to a token of positive probability.
    target = torch.minimum(uniforms[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    tokens = torch.searchsorted(cdf, target, right=True).clamp_(max=logits.shape[-1] - 1)
    return tokens[:, 0], logprobs.gather(-1, tokens)[:, 0]


class Noise:
    """The uniforms of some rows, computed a block of positions at a time."""

    def __init__(self, seed: int, rollout: int, keys: np.ndarray) -> None:
        self.seed, self.rollout, self.keys = seed, rollout, keys
        self.block = -1
        self.table = np.empty((0, 0))

    def at(self, position: int, rows: np.ndarray, device: torch.device) -> torch.Tensor:
        """Float64 (len(rows),): the uniforms of these rows at a position; rows only ever leave."""
        block, column = divmod(position, _NOISE_BLOCK)
        if block != self.block:
            self.block, self.table = block, np.zeros((len(self.keys), _NOISE_BLOCK))
            for row in rows:
                address = (self.rollout, int(self.keys[row]))
                self.table[row] = keyed_uniforms(NOISE_PURPOSE, self.seed, address, block * _NOISE_BLOCK, _NOISE_BLOCK)
        return torch.from_numpy(self.table[rows, column]).to(device)


class CacheLayer(CacheLayerMixin):
    """Keys and values of one attention layer in a preallocated buffer of which the first rows are in use.

    It keeps all positions, also for layers with a sliding window: their mask leaves the old ones out.
    """

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, rows: int, capacity: int) -> None:
        super().__init__()
        self.rows, self.capacity, self.length = rows, capacity, 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate both buffers in the type and on the device of the first states."""
        self.keys, self.values = (
            x.new_empty(self.rows, x.shape[1], self.capacity, x.shape[3]) for x in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append states (rows, heads, positions, size) and return views of all that these rows hold."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows, first = key_states.shape[0], self.length
        self.length += key_states.shape[2]
        self.keys[:rows, :, first : self.length] = key_states
        self.values[:rows, :, first : self.length] = value_states
        return self.keys[:rows, :, : self.length], self.values[:rows, :, : self.length]

    def spread(self, source: torch.Tensor) -> None:
        """Give row i what row source[i] holds."""
        for buffer in (self.keys, self.values):
            buffer[: len(source), :, : self.length] = buffer[source, :, : self.length]

    def keep(self, rows: np.ndarray) -> None:
        """Move row rows[i] to place i and forget the rest; a row that keeps its place is not copied."""
        to = np.flatnonzero(rows != np.arange(len(rows)))
        if len(to) == 0:
            return
        for buffer in (self.keys, self.values):
            place, origin = (torch.from_numpy(x).to(buffer.device) for x in (to, rows[to]))
            buffer[place, :, : self.length] = buffer[origin, :, : self.length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(key length, offset) for the mask of the next ``query_length`` tokens."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Positions held."""
        return self.length

    def get_max_length(self) -> int:
        """Positions that fit."""
        return self.capacity


def plain_attention_layers(model: PreTrainedModel) -> int:
    """Number of layers when each keeps keys and values of its own; 0 for recurrent, shared and other caches."""
    config = model.config
    if getattr(model, "_is_stateful", False) or getattr(config, "is_encoder_decoder", False):
        return 0
    layers = DynamicCache(config=config).layers
    return len(layers) if all(type(x) in (DynamicLayer, DynamicSlidingWindowLayer) for x in layers) else 0


def run_fast(
    model: PreTrainedModel,
    prompts: list[list[int]],
    noise: Noise,
    temperature: float,
    steps: int,
    eos: list[int],
    pad: int,
    progress: Progress | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Sample with one preallocated cache; return tokens int64 and log-probs float32, both (B, steps)."""
    distinct = list(dict.fromkeys(map(tuple, prompts)))
    number = {prompt: i for i, prompt in enumerate(distinct)}
    device = model.device
    rows = np.arange(len(prompts))
    source = torch.tensor([number[tuple(prompt)] for prompt in prompts], device=device)
    ids, mask = _pad_left([list(prompt) for prompt in distinct], pad, device)
    width = ids.shape[1]
    layers = [CacheLayer(len(prompts), width + steps) for _ in range(plain_attention_layers(model))]
    cache = Cache(layers=layers)  # type: ignore[arg-type]
    logits = _forward(model, ids, mask, _positions(mask), cache)[source]
    for layer in layers:
        layer.spread(source)
    padded = not bool(mask.all())
    full_mask = torch.ones(len(prompts), width + steps, dtype=torch.bool, device=device)
    full_mask[:, :width] = mask[source]
    position = mask.sum(-1)[source]
    tokens = torch.full((len(prompts), steps), pad, dtype=torch.long, device=device)
    logprobs = torch.zeros(len(prompts), steps, device=device)
    ends = torch.tensor(eos, device=device)
    reported = 0
    for step in range(steps):
        uniforms = noise.at(step, rows, device) if temperature > 0 else None
        token, logprob = pick_tokens(logits, uniforms, temperature)
        where = torch.from_numpy(rows).to(device)
        tokens[where, step], logprobs[where, step] = token, logprob
        reported += len(rows)
        alive = ~torch.isin(token, ends)
        keep = _survivors(alive.cpu().numpy())
        finished = len(rows) - len(keep)
        if progress is not None and (finished or reported >= 4096):
            progress(finished, reported)
            reported = 0
        if len(keep) == 0 or step == steps - 1:
            break
        if finished:
            moved = torch.from_numpy(keep).to(device)
            rows, token, position = rows[keep], token[moved], position[moved]
            for layer in layers:
                layer.keep(keep)
            if padded:
                full_mask = full_mask[moved]
        seen = full_mask[:, : width + step + 1] if padded else None
        logits = _forward(model, token[:, None], seen, position[:, None], cache)
        position = position + 1
    if progress is not None:
        progress(len(rows) - finished, reported)
    return tokens.cpu().numpy(), logprobs.cpu().numpy()


def _survivors(alive: np.ndarray) -> np.ndarray:
    """Order of the surviving rows in which few rows move: the last survivors fill the holes of the dead."""
    count = int(alive.sum())
    keep = np.arange(count)
    keep[~alive[:count]] = count + np.flatnonzero(alive[count:])
    return keep


def _forward(
    model: PreTrainedModel,
    ids: torch.Tensor,
    mask: torch.Tensor | None,
    position: torch.Tensor,
    cache: Cache,
) -> torch.Tensor:
    """Next-token logits (B, V) after the last column of ``ids``."""
    extra = {"position_ids": position, "logits_to_keep": 1}
    known = _parameters(type(base_model(model)))  # models without positions know neither
    output = model(
        input_ids=ids,
        attention_mask=mask,
        past_key_values=cache,
        use_cache=True,
        **{name: value for name, value in extra.items() if name in known},
    )
    return output.logits[:, -1]


@lru_cache(maxsize=64)
def _parameters(kind: type) -> frozenset[str]:
    return frozenset(inspect.signature(kind.forward).parameters)  # type: ignore[attr-defined]


def base_model(model: PreTrainedModel) -> Any:
    """The Hugging Face model inside a peft wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "peft_config") and hasattr(model, "get_base_model") else model  # type: ignore[operator]


class _Picker(LogitsProcessor):
    """Leave only the keyed inverse-CDF token to transformers' greedy search, and note its log-probability."""

    def __init__(self, noise: Noise, width: int, temperature: float) -> None:
        self.noise, self.width, self.temperature = noise, width, temperature
        self.logprobs: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        rows = np.arange(len(scores))
        position = input_ids.shape[1] - self.width
        uniforms = self.noise.at(position, rows, scores.device) if self.temperature > 0 else None
        token, logprob = pick_tokens(scores, uniforms, self.temperature)
        self.logprobs.append(logprob)
        only = torch.full_like(scores, -math.inf)
        return only.scatter_(1, token[:, None], 0.0)  # type: ignore[return-value]


def run_generate(
    model: PreTrainedModel,
    prompts: list[list[int]],
    noise: Noise,
    temperature: float,
    steps: int,
    eos: list[int],
    pad: int,
    progress: Progress | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Sample with transformers' generation; return tokens int64 and log-probs float32, both (B, steps)."""
    ids, mask = _pad_left(prompts, pad, model.device)
    picker = _Picker(noise, ids.shape[1], temperature)
    with _plain_generation(model):
        output = model.generate(  # type: ignore[operator]
            input_ids=ids,
            attention_mask=mask,
            generation_config=GenerationConfig(
                max_new_tokens=steps, do_sample=False, eos_token_id=eos, pad_token_id=pad
            ),
            logits_processor=LogitsProcessorList([picker]),
        )
    tokens = output[:, ids.shape[1] :].cpu().numpy()
    logprobs = torch.stack(picker.logprobs, 1).cpu().numpy()
    if progress is not None:
        progress(len(prompts), sum(len(row) for row, _, _ in trim(tokens, logprobs, eos)))
    return tokens, logprobs


@contextmanager
def _plain_generation(model: PreTrainedModel) -> Iterator[None]:
    """Hide the model's own generation defaults: a repetition penalty or top-p would change the distribution."""
    base = base_model(model)
    kept = base.generation_config
    base.generation_config = GenerationConfig()
    try:
        yield
    finally:
        base.generation_config = kept


def _pad_left(prompts: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids int64 and mask int64, both (B, longest), with the padding on the left."""
    width = max(len(prompt) for prompt in prompts)
    ids = np.full((len(prompts), width), pad, dtype=np.int64)
    mask = np.zeros((len(prompts), width), dtype=np.int64)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = prompt
        mask[row, width - len(prompt) :] = 1
    return torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)


def _positions(mask: torch.Tensor) -> torch.Tensor:
    """Position of each token counted from the first real one; 0 on the padding."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def trim(tokens: np.ndarray, logprobs: np.ndarray, eos: list[int]) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """Cut each row after its first end token; yield (tokens, log-probs, truncated)."""
    ended = np.isin(tokens, eos)
    lengths = np.where(ended.any(1), ended.argmax(1) + 1, tokens.shape[1])
    for row, length in enumerate(lengths):
        yield tokens[row, :length].copy(), logprobs[row, :length].astype(np.float32), not ended[row].any()
