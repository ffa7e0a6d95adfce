"""The ``fast`` sampling engine: a loop over the model's forward with a preallocated cache that drops finished rows."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from fspo.config import SamplingConfig
from fspo.sampling.picking import Noise, base_model, pad_left, pick_tokens


class CacheLayer(CacheLayerMixin):
    """Keys and values of one attention layer in preallocated buffers, whose first rows are the unfinished responses.

    There is room for ``rows`` responses and ``capacity`` token positions, prompt included. Attention layers with a
    sliding window need no special case: their mask leaves old positions out."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, rows: int, capacity: int) -> None:
        super().__init__()
        self.rows, self.capacity, self.length = rows, capacity, 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate buffers for ``rows`` responses of ``capacity`` tokens, with heads, size and type as given here."""
        self.keys, self.values = (
            x.new_empty(self.rows, x.shape[1], self.capacity, x.shape[3]) for x in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the keys and values of new positions, (rows, heads, positions, size), to the first rows of the cache.

        Return views of the keys and values at all positions of these rows, the new ones included."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows, first = key_states.shape[0], self.length
        self.length += key_states.shape[2]
        self.keys[:rows, :, first : self.length] = key_states
        self.values[:rows, :, first : self.length] = value_states
        return self.keys[:rows, :, : self.length], self.values[:rows, :, : self.length]

    def spread(self, source: torch.Tensor) -> None:
        """Copy row source[i], the keys and values of the prompt of response i, to row i, for every response i."""
        for buffer in (self.keys, self.values):
            buffer[: len(source), :, : self.length] = buffer[source, :, : self.length]

    def keep(self, rows: np.ndarray) -> None:
        """Move row ``rows[i]`` of the cache (a response) to place i; only the first len(rows) rows count from then on.
        A row that keeps its place is not copied."""
        to = np.flatnonzero(rows != np.arange(len(rows)))
        if len(to) == 0:
            return
        for buffer in (self.keys, self.values):
            place, origin = (torch.from_numpy(x).to(buffer.device) for x in (to, rows[to]))
            buffer[place, :, : self.length] = buffer[origin, :, : self.length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the two numbers from which transformers builds the attention mask of ``query_length`` new tokens: the
        number of keys, those of the new tokens included, and an offset, 0."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Return the number of token positions whose keys and values are stored."""
        return self.length

    def get_max_length(self) -> int:
        """Return the number of token positions whose keys and values the cache has room for."""
        return self.capacity


def plain_attention_layers(model: PreTrainedModel) -> int:
    """Return the number of a model's attention layers if each keeps separate keys and values; 0 for models with another
    kind of cache."""
    config = model.config
    if getattr(model, "_is_stateful", False) or getattr(config, "is_encoder_decoder", False):
        return 0
    layers = DynamicCache(config=config).layers
    return len(layers) if all(type(x) in (DynamicLayer, DynamicSlidingWindowLayer) for x in layers) else 0


def run_fast(
    model: PreTrainedModel, prompts: list[list[int]], noise: Noise, config: SamplingConfig, eos: list[int], pad: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sample one response to each of B prompts (lists of token ids) with one preallocated cache; return token ids and
    log-probs (nats), both (B, max_new_tokens): ``pad`` and 0 after a response's end. ``noise`` gives the random
    numbers, ``eos`` are the tokens that end a response, and ``pad`` also fills short prompts."""
    steps = config.max_new_tokens
    distinct = list(dict.fromkeys(map(tuple, prompts)))
    number = {prompt: i for i, prompt in enumerate(distinct)}
    device = model.device
    rows = np.arange(len(prompts))
    source = torch.tensor([number[tuple(prompt)] for prompt in prompts], device=device)
    ids, mask = pad_left([list(prompt) for prompt in distinct], pad, device)
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
    for step in range(steps):
        uniforms = noise.at(step, rows, device) if config.temperature > 0 else None
        token, logprob = pick_tokens(logits, uniforms, config.temperature, config.top_p)
        where = torch.from_numpy(rows).to(device)
        tokens[where, step], logprobs[where, step] = token, logprob
        alive = ~torch.isin(token, ends)
        keep = _survivors(alive.cpu().numpy())
        if len(keep) == 0 or step == steps - 1:
            break
        if len(keep) < len(rows):
            moved = torch.from_numpy(keep).to(device)
            rows, token, position = rows[keep], token[moved], position[moved]
            for layer in layers:
                layer.keep(keep)
            if padded:
                full_mask = full_mask[moved]
        seen = full_mask[:, : width + step + 1] if padded else None
        logits = _forward(model, token[:, None], seen, position[:, None], cache)
        position = position + 1
    return tokens.cpu().numpy(), logprobs.cpu().numpy()


def _survivors(alive: np.ndarray) -> np.ndarray:
    """Return the numbers of the unfinished rows (``alive`` (B,), bool) in an order in which few rows of the key-value
    cache must be moved: the last unfinished rows take the places of finished ones; the others stay where they are."""
    count = int(alive.sum())
    keep = np.arange(count)
    keep[~alive[:count]] = count + np.flatnonzero(alive[count:])
    return keep


def _forward(
    model: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor | None, position: torch.Tensor, cache: Cache
) -> torch.Tensor:
    """Run the model on new tokens ``ids`` (B, n) at ``position`` (B, n), which it adds to ``cache``; return the logits
    (B, V) after the last. ``mask`` (B, cached + n) is true on tokens, false on padding; None if there is none."""
    # logits_to_keep gets the last position as a tensor. Given a number, the model would slice its hidden states, and
    # torch would copy the output layer's weight once for each prompt to multiply the slice in bfloat16.
    last = torch.tensor([ids.shape[1] - 1], device=ids.device) if ids.shape[1] > 1 else 1
    extra = {"position_ids": position, "logits_to_keep": last}
    known = _parameters(type(base_model(model)))  # some models take no position_ids or no logits_to_keep
    output = model(
        input_ids=ids,
        attention_mask=mask,
        use_cache=True,
        # The argument is named "cache" since transformers 5.24, and was named "past_key_values" before.
        **{"cache" if "cache" in known else "past_key_values": cache},
        **{name: value for name, value in extra.items() if name in known},
    )
    return output.logits[:, -1]


@lru_cache(maxsize=64)
def _parameters(kind: type) -> frozenset[str]:
    return frozenset(inspect.signature(kind.forward).parameters)  # type: ignore[attr-defined]


def _positions(mask: torch.Tensor) -> torch.Tensor:
    """Return each token's position (B, T), 0 at a row's first token that is not padding (``mask`` 1) and on padding."""
    return (mask.cumsum(-1) - 1).clamp(min=0)
