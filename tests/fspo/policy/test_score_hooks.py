"""Hooks: without projection the sketch is the exact gradient; batching, chunks, checkpointing and coverage."""

from __future__ import annotations

import peft
import pytest
import torch
from score_models import BARE, MODELS, VOCAB, batch_of, build, exact_scores, reordered, sketches

from fspo.base.errors import UserError
from fspo.policy import linear_logprobs, logprobs
from fspo.policy.linear_logprobs import TILE
from fspo.policy.logprobs import token_log_probs
from fspo.policy.scores import ScoreHooks, score


@pytest.mark.parametrize("name", list(MODELS))
def test_unprojected_sketch_is_the_exact_gradient(name):
    model, batch = build(name), batch_of(4)
    batch["response_mask"] &= torch.arange(batch["input_ids"].shape[1]) % 3 != 2  # holes
    exact = exact_scores(model, batch, 0.8)
    hooks = ScoreHooks(model, **BARE)
    got = sketches(model.eval(), batch, 0.8, **BARE)
    torch.testing.assert_close(got, reordered(model, exact, hooks), rtol=1e-3, atol=2e-5 * float(exact.abs().max()))


def test_projections_of_full_rank_are_the_identity():
    model, batch = build(), batch_of()
    torch.testing.assert_close(sketches(model, batch, width=None, projection=99), sketches(model, batch, **BARE))


@pytest.mark.parametrize("kind", ["tied", "bias", "lora", "frozen"])
def test_the_output_layer_is_scored_in_tiles_too(kind, monkeypatch):
    """Also a layer with a bias, with adapters (whose logits are whole) and a frozen one, in float64."""
    model = build("qwen3-tied" if kind == "tied" else "qwen3", torch.float64)
    if kind == "bias":
        model.lm_head = torch.nn.Linear(16, VOCAB, dtype=torch.float64)
    if kind == "lora":
        model = peft.get_peft_model(
            model, peft.LoraConfig(r=3, target_modules=["lm_head", "q_proj"], init_lora_weights=False)
        )
    if kind == "frozen":
        model.lm_head.requires_grad_(False)
    batch = batch_of(4)
    exact = exact_scores(model, batch, 0.8)
    hooks = ScoreHooks(model, **BARE)
    monkeypatch.setattr(logprobs, "BIG_VOCABULARY", 2)
    monkeypatch.setitem(TILE, "cpu", 5 * VOCAB)
    model.eval()
    close = {"rtol": 1e-5, "atol": 1e-6 * float(exact.abs().max())}
    expected = reordered(model, exact, hooks)
    torch.testing.assert_close(sketches(model, batch, 0.8, **BARE), expected, **close)
    assert any("lm_head" in name for name in hooks.sketcher.shapes) == (kind in ("bias", "lora"))
    with ScoreHooks(model, **BARE) as hooks:  # not told of the hooks, a pass makes logits whole and is scored as well
        untold = hooks.backward(token_log_probs(model, batch, 0.8)[0].sum(1))
    torch.testing.assert_close(untold, expected, **close)
    projected, shapes = sketches(model, batch, projection=4), []
    model.get_output_embeddings().register_forward_pre_hook(lambda _, args: shapes.append(args[0].shape))
    torch.testing.assert_close(projected, sketches(model, batch, projection=4), rtol=1e-6, atol=1e-6)
    assert all(len(shape) == 3 for shape in shapes)  # another's hook is shown the real output layer


def test_a_score_pass_in_tiles_forms_no_gradient_of_the_output_weight(monkeypatch):
    model, batch = build(), batch_of(4)
    monkeypatch.setattr(logprobs, "BIG_VOCABULARY", 2)
    shapes = []
    product = linear_logprobs._Logits.add_product

    def watch(self, total, a, b):
        shapes.append(total.shape)
        product(self, total, a, b)

    monkeypatch.setattr(linear_logprobs._Logits, "add_product", watch)
    sketches(model, batch)
    tokens = int(batch["response_mask"].sum())
    assert set(shapes) == {(tokens, 16)}
    token_log_probs(model, batch)[0].sum().backward()  # the control
    assert (VOCAB, 16) in shapes


def test_reentrant_checkpointing_is_refused_with_the_cure():
    model = build()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(UserError, match="use_reentrant=False"):
        score(model, batch_of())


def test_what_no_rule_covers_is_named():
    class Odd(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.gain = inner, torch.nn.Parameter(torch.ones(16))

        def forward(self, x):
            return self.inner(x) * self.gain

    class Squared(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((16,), 1.5))

        def forward(self, x):
            return x * self.weight**2

    model = build()
    model.model.layers[0].mlp = Odd(model.model.layers[0].mlp)
    model.model.layers[1].post_attention_layernorm = Squared()
    model.spare = torch.nn.Linear(3, 3)
    taken = score(model, batch_of())
    assert taken.status == ["ok"] * 4
    assert set(taken.uncovered) == {
        "model.layers.0.mlp.gain",
        "model.layers.1.post_attention_layernorm.weight",
        "spare.weight",
        "spare.bias",
    }
