"""Sample responses with any engine; the noise of a response does not depend on the batch in which it is sampled.

Token t of response k in rollout r is the inverse CDF of the model's distribution at one uniform u(seed, r, k, t) from a
counter-based generator (`fspo.base.keyed_noise`). So batch size, order, number of processes and engine change the
responses only through the last bits of the logits.

Two engines draw the same tokens: ``fast``, a short loop over the model's forward with one preallocated key-value cache
that drops finished rows, and ``generate``, transformers' own generation. A third, ``vllm``, has a vLLM server sample
with its own noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from fspo.base.errors import UserError
from fspo.config import SamplingConfig
from fspo.sampling.fast import plain_attention_layers, run_fast
from fspo.sampling.generate import run_generate
from fspo.sampling.picking import Noise, trim
from fspo.sampling.precision import lowered
from fspo.sampling.vllm import Server, run_vllm

FAST_PARAMETERS = 1_000_000_000
"""On an accelerator, engine ``auto`` means ``generate`` for models with this number of parameters or more."""


@dataclass
class Responses:
    """Sampled responses, in the order of the prompts.

    Attributes
    ----------
    tokens : list of numpy.ndarray
        Int64 (L_i,), L_i >= 1; the end token is included when it was sampled.
    logprobs : list of numpy.ndarray
        Float32 (L_i,), log-probability of each token under the distribution that drew it (weights in the sampler's
        precision, sampling temperature, top-p), nats; 0 under greedy sampling, whose distribution is a point mass.
    truncated : numpy.ndarray
        Bool (N,), True when max_new_tokens ended the response.
    """

    tokens: list[np.ndarray]
    logprobs: list[np.ndarray]
    truncated: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Response lengths in tokens, int64 (N,)."""
        return np.array([len(row) for row in self.tokens], dtype=np.int64)


def sample(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    keys: np.ndarray,
    *,
    seed: int,
    rollout: int,
    config: SamplingConfig,
    eos_token_id: int | Sequence[int],
    pad_token_id: int,
) -> Responses:
    """Sample one response to each prompt; return token ids, log-probs and truncation, in the order of the prompts.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A causal LM (or a peft model around one). It runs in eval mode without gradients; each module's training
        flag is restored afterwards.
    prompts : sequence of N sequences of int
        Token ids, at least one each, of any lengths. The engine "fast" runs equal prompts through the model once.
    keys : numpy.ndarray
        Int64 (N,), each response's number within the rollout over all processes; the sampling noise depends on it.
    seed, rollout : int
        The sampling noise depends on seed, rollout, the response's key and the token position.
    eos_token_id : int or sequence of int
        Tokens that end a response.
    pad_token_id : int
        Id that fills short prompts on the left; padding is masked.

    Raises
    ------
    UserError
        For invalid prompts or keys, more tokens than the model may have positions for, or logits that are not finite.
    """
    keys = np.asarray(keys)
    eos = [eos_token_id] if isinstance(eos_token_id, int) else [int(token) for token in eos_token_id]
    _check(model, prompts, keys, eos, config)
    engine = choose_engine(model, config.engine)
    if engine == "vllm":
        server = Server(config.vllm_url, Path(config.vllm_weights).resolve(), config.vllm_timeout)
        return _responses(list(run_vllm(model, [list(prompt) for prompt in prompts], server, config, eos)))
    model = lowered(model, config.precision)
    run, at_once = _RUNS[engine], config.batch_size
    order = np.argsort([len(prompt) for prompt in prompts], kind="stable")
    results: list[tuple[np.ndarray, np.ndarray, bool]] = [_NOTHING] * len(prompts)
    # inference_mode would make buffers that the model renews in its forward useless for training, so no_grad is used.
    with _frozen(model), torch.no_grad():
        for first in range(0, len(order), at_once):
            rows = order[first : first + at_once]
            noise = Noise(seed, rollout, keys[rows])
            tokens, logprobs = run(model, [list(prompts[i]) for i in rows], noise, config, eos, pad_token_id)
            for i, result in zip(rows, trim(tokens, logprobs, eos), strict=True):
                results[i] = result
    return _responses(results)


def _responses(results: list[tuple[np.ndarray, np.ndarray, bool]]) -> Responses:
    if not all(np.isfinite(row).all() for _, row, _ in results):
        raise UserError(
            "the model gives logits that are not finite: training has diverged or the weights are damaged; "
            "lower the learning rate or go back to an earlier checkpoint"
        )
    return Responses([r[0] for r in results], [r[1] for r in results], np.array([r[2] for r in results], bool))


_RUNS = {"fast": run_fast, "generate": run_generate}
_NOTHING = (np.empty(0, np.int64), np.empty(0, np.float32), False)


def choose_engine(model: PreTrainedModel, wanted: str) -> str:
    """Return the engine ``wanted``; for "auto" return "fast" if it can run the model and this is small or on a CPU,
    else "generate". Raise UserError if "fast" is wanted and cannot run the model."""
    if wanted in ("generate", "vllm"):
        return wanted
    fits = plain_attention_layers(model) > 0
    if wanted == "fast":
        if not fits:
            raise UserError("the fast engine needs plain attention layers: set the sampling engine to 'generate'")
        return wanted
    small = model.device.type == "cpu" or sum(p.numel() for p in model.parameters()) < FAST_PARAMETERS
    return "fast" if fits and small else "generate"


@contextmanager
def _frozen(model: torch.nn.Module) -> Iterator[None]:
    """Put the model in eval mode for the block, and restore each module's training flag afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in flags:
            module.training = training


def _check(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], keys: np.ndarray, eos: list[int], config: SamplingConfig
) -> None:
    if keys.shape != (len(prompts),) or not np.issubdtype(keys.dtype, np.integer):
        raise UserError(f"{len(prompts)} prompts but keys {keys.dtype} {keys.shape}: pass one integer key each")
    if len(prompts) == 0 or min(len(prompt) for prompt in prompts) == 0:
        raise UserError("no prompt, or an empty one: every prompt needs at least one token")
    if not eos:
        raise UserError("no end token: pass the tokenizer's eos_token_id")
    text = model.config.get_text_config(decoder=True)
    low, high = min(min(prompt) for prompt in prompts), max(max(prompt) for prompt in prompts)
    if low < 0 or high >= text.vocab_size:
        raise UserError(
            f"prompt token {low if low < 0 else high} is outside the model's {text.vocab_size} tokens: use the "
            "tokenizer that belongs to the model"
        )
    limit = getattr(text, "max_position_embeddings", None)
    longest = max(len(prompt) for prompt in prompts)
    if limit is not None and longest + config.max_new_tokens > limit:
        raise UserError(
            f"a prompt of {longest} tokens and max_new_tokens {config.max_new_tokens} exceed the model's {limit} "
            "positions: lower max_new_tokens or drop the longest prompts"
        )
