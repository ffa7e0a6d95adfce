"""The ``generate`` sampling engine: transformers' greedy search with all logits but the sampled token's set to -inf."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from fspo.config import SamplingConfig
from fspo.sampling.picking import Noise, base_model, pad_left, pick_tokens


class _Picker(LogitsProcessor):
    """Sample a token for each response and set all other logits to -inf, so that greedy search takes the sampled token.

    ``width`` is the prompts' padded length; ``logprobs`` collects the sampled tokens' log-probs, (B,) for each step."""

    def __init__(self, noise: Noise, width: int, config: SamplingConfig) -> None:
        self.noise, self.width, self.config = noise, width, config
        self.logprobs: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        rows = np.arange(len(scores))
        position = input_ids.shape[1] - self.width
        uniforms = self.noise.at(position, rows, scores.device) if self.config.temperature > 0 else None
        token, logprob = pick_tokens(scores, uniforms, self.config.temperature, self.config.top_p)
        self.logprobs.append(logprob)
        only = torch.full_like(scores, -math.inf)
        return only.scatter_(1, token[:, None], 0.0)  # type: ignore[return-value]


def run_generate(
    model: PreTrainedModel, prompts: list[list[int]], noise: Noise, config: SamplingConfig, eos: list[int], pad: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sample one response to each of B prompts (lists of token ids) with transformers' generation; return tokens int64
    and log-probs float32 (nats), both (B, T), T the longest response. What follows a response's end does not count
    (`trim`). ``noise`` gives the random numbers, ``eos`` are the tokens that end a response, ``pad`` fills prompts."""
    ids, mask = pad_left(prompts, pad, model.device)
    picker = _Picker(noise, ids.shape[1], config)
    with _plain_generation(model):
        output = model.generate(  # type: ignore[operator]
            input_ids=ids,
            attention_mask=mask,
            generation_config=GenerationConfig(
                max_new_tokens=config.max_new_tokens, do_sample=False, eos_token_id=eos, pad_token_id=pad
            ),
            logits_processor=LogitsProcessorList([picker]),
            # Under FSDP2, transformers would by default wait for all processes at each token. That would hang here:
            # each process holds all weights and samples alone, and may have fewer batches than another process.
            synced_gpus=False,
        )
    tokens = output[:, ids.shape[1] :].cpu().numpy()
    return tokens, torch.stack(picker.logprobs, 1).cpu().numpy()


@contextmanager
def _plain_generation(model: PreTrainedModel) -> Iterator[None]:
    """Hide the model's generation defaults during the block.

    A repetition penalty or top-p among them would change the distribution."""
    base = base_model(model)
    kept = base.generation_config
    base.generation_config = GenerationConfig()
    try:
        yield
    finally:
        base.generation_config = kept
