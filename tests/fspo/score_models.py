"""Models, batches and helpers that the tests of scores share."""

from __future__ import annotations

import numpy as np
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from fspo.policy.logprobs import make_batch, token_log_probs
from fspo.policy.scores import ScoreHooks

VOCAB = 24
TINY = (
    {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2}
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "pad_token_id": None, "bos_token_id": None}
    | {"eos_token_id": None}
)
MODELS = {
    "qwen3": lambda tiny: Qwen3ForCausalLM(Qwen3Config(**tiny, tie_word_embeddings=False)),
    "qwen3-tied": lambda tiny: Qwen3ForCausalLM(Qwen3Config(**tiny, tie_word_embeddings=True, attention_bias=True)),
    "llama": lambda tiny: LlamaForCausalLM(LlamaConfig(**tiny | {"pad_token_id": 5}, mlp_bias=True)),
    "gpt2": lambda tiny: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=tiny["vocab_size"], n_embd=16, n_layer=2, n_head=4, n_positions=48, bos_token_id=None,
            eos_token_id=None,
        )
    ),
    "gemma3": lambda tiny: Gemma3ForCausalLM(Gemma3TextConfig(**tiny, sliding_window=8)),
}  # fmt: skip
BARE = {"width": None, "projection": None}


def build(name: str = "qwen3", dtype: torch.dtype = torch.float32, vocabulary: int = VOCAB):
    """A model with every parameter away from its special starting value (ones, zeros)."""
    torch.manual_seed(1)
    model = MODELS[name](TINY | {"vocab_size": vocabulary})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return model.to(dtype).train()


def responses(count: int = 4, seed: int = 0, longest: int = 14) -> tuple[list[list[int]], list[list[int]]]:
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(1, VOCAB, rng.integers(1, 6)).tolist() for _ in range(count)]
    return prompts, [rng.integers(1, VOCAB, rng.integers(1, longest)).tolist() for _ in range(count)]


def batch_of(count: int = 4, seed: int = 0, longest: int = 14) -> dict[str, torch.Tensor]:
    return make_batch(*responses(count, seed, longest), pad_token_id=0)


def padded_left(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The batch as TRL pads it, without position ids."""
    mask = batch["attention_mask"]
    shifts = (mask.shape[1] - mask.sum(1)).tolist()
    return {
        name: torch.stack([row.roll(shift) for row, shift in zip(x, shifts, strict=True)])
        for name, x in batch.items()
        if name != "position_ids"
    }


def exact_scores(model, batch, temperature: float = 1.0) -> torch.Tensor:
    """The gradient of each response's S in all trainable parameters, (B, P): by autograd, alone, without dropout."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    training, gradients = model.training, []
    model.eval()
    for i in range(len(batch["input_ids"])):
        total = token_log_probs(model, {k: v[i : i + 1] for k, v in batch.items()}, temperature)[0].sum()
        parts = torch.autograd.grad(total, parameters, allow_unused=True, materialize_grads=True)
        gradients.append(torch.cat([part.flatten() for part in parts]))
    model.train(training)
    return torch.stack(gradients)


def sketches(model, batch, temperature: float = 1.0, **options) -> torch.Tensor:
    """Sketches in the model's full precision, from the public hooks in a plain forward pass."""
    with ScoreHooks(model, **options) as hooks:
        tokens, _ = token_log_probs(model, batch, temperature, scores=hooks)
        total = hooks.backward(tokens.sum(1))
        assert hooks.uncovered == {}
    return total


def vectors(taken) -> np.ndarray:
    return taken.norm[:, None].astype(float) * taken.unit.astype(float)


def reordered(model, exact: torch.Tensor, hooks: ScoreHooks) -> torch.Tensor:
    """The oracle's columns in the order of the sketch's parts (they differ where modules and names do)."""
    sizes = [p.numel() for p in model.parameters() if p.requires_grad]
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    parts = dict(zip(names, exact.split(sizes, 1), strict=True))
    return torch.cat([parts[name] for name in hooks.sketcher.shapes], 1)
