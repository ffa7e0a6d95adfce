"""Helpers of the sampling engines: random numbers, the choice of a token, padding of prompts, the end of responses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, TopPLogitsWarper

from fspo.base.keyed_noise import keyed_uniforms

NOISE_PURPOSE = 0x5A3E
_NOISE_BLOCK = 256  # number of token positions for which uniform random numbers are drawn at a time
PICK_ELEMENTS = 1 << 24  # largest number of logits that are turned into a CDF at a time: 128 MiB in float64


def pick_tokens(
    logits: torch.Tensor, uniforms: torch.Tensor | None, temperature: float, top_p: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pick a token for each of B rows by the inverse CDF of softmax(logits / temperature); at 0 the most probable one.

    Parameters
    ----------
    logits : torch.Tensor
        (B, V), any float type; the arithmetic is float32, the CDF float64.
    uniforms : torch.Tensor or None
        Random numbers, one for each row: float64 (B,) in [0, 1); not used at temperature 0.
    top_p : float
        Tokens are drawn only from the fewest most probable tokens that together have at least this probability.

    Returns
    -------
    tokens : torch.Tensor
        Int64 (B,); never a token of probability 0.
    logprobs : torch.Tensor
        Float32 (B,), nats, under the distribution that drew the tokens: at the sampling temperature, and with top-p
        renormalised over the tokens that are left; 0 at temperature 0.
    """
    logits = logits.float()
    if temperature == 0 or uniforms is None:
        best = logits.max(-1)
        return best.indices, best.values * 0.0  # greedy: log-prob 0, or NaN if the largest logit is not finite
    step = max(1, PICK_ELEMENTS // logits.shape[-1])
    parts = [
        _inverse_cdf(part / temperature, at, top_p)
        for part, at in zip(logits.split(step), uniforms.split(step), strict=True)
    ]
    tokens, logprobs = zip(*parts, strict=True)
    return torch.cat(tokens), torch.cat(logprobs)


def _inverse_cdf(logits: torch.Tensor, uniforms: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    if top_p < 1:
        logits = TopPLogitsWarper(top_p)(None, logits)  # type: ignore[arg-type]
    logprobs = torch.log_softmax(logits, -1)
    cdf = logprobs.exp().cumsum(-1, dtype=torch.float64)
    total = cdf[:, -1:]
    # The target is the uniform number times the sum of all probabilities. The drawn token is the first whose cumulative
    # probability exceeds the target. The target is kept below the sum, so that there is such a token, of positive
    # probability.
    target = torch.minimum(uniforms[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    tokens = torch.searchsorted(cdf, target, right=True).clamp_(max=logits.shape[-1] - 1)
    return tokens[:, 0], logprobs.gather(-1, tokens)[:, 0]


class Noise:
    """Uniform random numbers in [0, 1) for a batch of responses; those of one response depend on seed, rollout and its
    key in ``keys`` (B,). They are computed for a block of token positions at a time."""

    def __init__(self, seed: int, rollout: int, keys: np.ndarray) -> None:
        self.seed, self.rollout, self.keys = seed, rollout, keys
        self.block = -1
        self.table = np.empty((0, 0))

    def at(self, position: int, rows: np.ndarray, device: torch.device) -> torch.Tensor:
        """Return the uniform numbers, float64 (len(rows),), at token ``position`` (from 0) of the responses ``rows``.

        ``rows`` are places in ``keys``. The first call in a block of 256 positions draws the whole block for its rows;
        later calls in the block may name only some of these rows."""
        block, column = divmod(position, _NOISE_BLOCK)
        if block != self.block:
            self.block, self.table = block, np.zeros((len(self.keys), _NOISE_BLOCK))
            for row in rows:
                address = (self.rollout, int(self.keys[row]))
                self.table[row] = keyed_uniforms(NOISE_PURPOSE, self.seed, address, block * _NOISE_BLOCK, _NOISE_BLOCK)
        return torch.from_numpy(self.table[rows, column]).to(device)


def base_model(model: PreTrainedModel) -> Any:
    """Return the Hugging Face model inside a peft wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "peft_config") and hasattr(model, "get_base_model") else model  # type: ignore[operator]


def pad_left(prompts: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad prompts (token ids) on the left with the id ``pad``; return token ids and mask, both int64 (B, longest
    prompt)."""
    width = max(len(prompt) for prompt in prompts)
    ids = np.full((len(prompts), width), pad, dtype=np.int64)
    mask = np.zeros((len(prompts), width), dtype=np.int64)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = prompt
        mask[row, width - len(prompt) :] = 1
    return torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)


def trim(tokens: np.ndarray, logprobs: np.ndarray, eos: list[int]) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """End each sampled response at its first end token, one of ``eos``; yield its tokens, its log-probs, and whether it
    has no end token. ``tokens`` and ``logprobs`` are arrays (B, T)."""
    ended = np.isin(tokens, eos)
    lengths = np.where(ended.any(1), ended.argmax(1) + 1, tokens.shape[1])
    for row, length in enumerate(lengths):
        yield tokens[row, :length].copy(), logprobs[row, :length].astype(np.float32), not ended[row].any()
