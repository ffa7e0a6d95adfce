"""Gradient checkpointing keeps its memory saving, and its scores, with the hooks on.

Memory is what PyTorch's own allocator reports to the profiler: the largest sum of live bytes over a pass, above the
bytes at its start. It counts whatever is alive, saved for the backward pass or held by a closure of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from score_models import BARE, TINY, VOCAB, batch_of, build, exact_scores, reordered, sketches
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen3Config, Qwen3ForCausalLM

from fspo.policy import logprobs
from fspo.policy.linear_logprobs import TILE
from fspo.policy.logprobs import token_log_probs
from fspo.policy.scores import ScoreHooks

WIDE = TINY | {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 6, "head_dim": 16}


def peak(step: Callable[[], object]) -> int:
    """Largest number of live bytes while `step` runs, above those at its start."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        step()
    live = most = 0
    for event in watched.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            live += event.nbytes()
            most = max(most, live)
    return most


def plain_pass(model: Any, batch: dict[str, torch.Tensor]) -> None:
    """Forward and backward pass to the embeddings without hooks."""
    embeddings = model.get_input_embeddings()(batch["input_ids"]).detach().requires_grad_()
    inputs = {"inputs_embeds": embeddings, "attention_mask": batch["attention_mask"]}
    log_p = model(**inputs, use_cache=False).logits.float().log_softmax(-1)
    torch.autograd.grad(log_p.gather(-1, batch["input_ids"].unsqueeze(-1)).sum(), embeddings)


def hooked_pass(model: Any, batch: dict[str, torch.Tensor]) -> None:
    with ScoreHooks(model) as hooks:
        hooks.backward(token_log_probs(model, batch, scores=hooks)[0].sum(1))


def peaks(layers: int = 6) -> dict[str, int]:
    """Peak bytes of the four passes; tables and other things that are made once are made before."""
    torch.manual_seed(0)
    config = Qwen3Config(**WIDE | {"num_hidden_layers": layers}, tie_word_embeddings=False)  # type: ignore[arg-type]
    model, batch, found = Qwen3ForCausalLM(config).train(), batch_of(6, seed=2, longest=120), {}
    for name in ("plain", "checkpointed"):
        if name == "checkpointed":
            model.gradient_checkpointing_enable({"use_reentrant": False})
        for kind, step in (("without", plain_pass), ("with", hooked_pass)):
            step(model, batch)
            found[f"{name} {kind} hooks"] = peak(lambda step=step: step(model, batch))
    return found


def growth() -> dict[str, float]:
    """Bytes that each further layer adds to the peak of each pass."""
    few, many = peaks(3), peaks(9)
    return {name: (many[name] - few[name]) / 6 for name in few}


def test_checkpointing_keeps_its_saving_with_hooks_on():
    """A layer's input is all that a checkpointed layer may keep, with hooks as without."""
    a_layer, tokens = growth(), batch_of(6, seed=2, longest=120)["input_ids"].numel()
    assert a_layer["checkpointed without hooks"] == pytest.approx(4 * 64 * tokens, rel=0.2)
    assert a_layer["plain without hooks"] > 8 * a_layer["checkpointed without hooks"]  # there is much to be saved
    more = a_layer["checkpointed with hooks"] - a_layer["checkpointed without hooks"]
    assert abs(more) < 0.02 * a_layer["checkpointed without hooks"]
    # Without checkpointing hooks keep 16 numbers a token and input, little beside the layer's own activations.
    assert a_layer["plain with hooks"] < 1.15 * a_layer["plain without hooks"]


@pytest.mark.parametrize("name", ["qwen3", "qwen3-tied", "gemma3"])
def test_a_recomputed_layer_is_counted_once(name: str, monkeypatch: pytest.MonkeyPatch):
    """In float64, against the oracle without checkpointing; the output layer in checkpointed chunks as well."""
    model, batch = build(name, torch.float64), batch_of(4)
    exact = exact_scores(model, batch)
    hooks = ScoreHooks(model, **BARE)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    monkeypatch.setattr(logprobs, "BIG_VOCABULARY", 2)
    monkeypatch.setitem(TILE, "cpu", 5 * VOCAB)
    calls = []
    model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    got = sketches(model, batch, **BARE)
    assert len(calls) == 2  # the layer was recomputed
    # Norm layers compute in float32, whatever the model's dtype.
    torch.testing.assert_close(got, reordered(model, exact, hooks), rtol=1e-5, atol=1e-6 * float(exact.abs().max()))
