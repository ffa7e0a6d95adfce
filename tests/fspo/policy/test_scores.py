"""Scores: batching, what the pass leaves alone, failures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from score_models import VOCAB, batch_of, build, padded_left, responses, sketches, vectors
from transformers import GPT2Config, GPT2LMHeadModel

from fspo.base.errors import UserError
from fspo.policy.logprobs import make_batch
from fspo.policy.scores import ScoreConfig, ScoreHooks, score


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_padding_side_width_and_neighbours_do_not_matter(name):
    model = build(name)
    prompts, answers = responses(4)
    right, left = (score(model, batch) for batch in (batch_of(4), padded_left(batch_of(4))))
    np.testing.assert_allclose(vectors(left), vectors(right), atol=2e-3 * right.norm.max())
    np.testing.assert_allclose(left.norm, right.norm, rtol=1e-4)
    for i in range(4):
        alone = score(model, make_batch([prompts[i]], [answers[i]], pad_token_id=0))
        np.testing.assert_allclose(alone.norm[0], right.norm[i], rtol=1e-4)
        np.testing.assert_allclose(alone.unit[0].astype(float), right.unit[i].astype(float), atol=1e-3)


def test_gradients_modes_and_hooks_are_left_as_they_were():
    model, batch = build(), batch_of()
    model.model.layers[0].eval()
    kept = {n: torch.full_like(p, 0.5) for n, p in model.named_parameters() if "mlp" in n}
    for name, parameter in model.named_parameters():
        parameter.grad = kept.get(name)
    modes = [module.training for module in model.modules()]
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    score(model, batch)
    with torch.no_grad():  # taken inside another's no_grad all the same
        assert score(model, batch).status == ["ok"] * 4
    assert [module.training for module in model.modules()] == modes
    for name, parameter in model.named_parameters():
        assert parameter.grad is kept.get(name)
        assert parameter.grad is None or bool((parameter.grad == 0.5).all())
        torch.testing.assert_close(parameter, before[name], rtol=0, atol=0)
    assert not any(module._forward_hooks for module in model.modules())


def test_dropout_is_off_even_in_training_mode():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=16, n_layer=1, n_head=2, n_positions=48)).train()
    np.testing.assert_array_equal(score(model, batch_of()).norm, score(model, batch_of()).norm)
    assert model.training


def test_bfloat16_is_near_float32():
    model, batch = build(), batch_of(6)
    full = vectors(score(model, batch))
    half = vectors(score(model.to(torch.bfloat16), batch))
    cosine = (full * half).sum(1) / np.linalg.norm(full, axis=1) / np.linalg.norm(half, axis=1)
    assert cosine.min() > 0.995


def test_frozen_model_and_bad_input_name_the_cure():
    model = build()
    with pytest.raises(UserError, match=r"log\.scores\.width is 0: use 1 or more"):
        ScoreConfig(width=0)
    with ScoreHooks(model) as hooks, pytest.raises(UserError, match="no forward pass"):
        hooks.backward(torch.zeros(2))
    model.requires_grad_(False)
    with pytest.raises(UserError, match="no trainable parameter"):
        score(model, batch_of())


def test_a_failed_response_and_one_without_tokens_leave_the_others_alone():
    model, batch = build(), batch_of()
    good = score(model, batch)
    used = set(batch["input_ids"][[0, 1, 3]][batch["attention_mask"][[0, 1, 3]].bool()].tolist())
    poison = next(t for t in range(1, VOCAB) if t not in used)
    batch["input_ids"][2, 0] = poison
    with torch.no_grad():
        model.get_input_embeddings().weight[poison] = float("nan")
    batch["response_mask"][1] = False
    taken = score(model, batch)
    assert taken.status == ["ok", "failed", "failed", "ok"]
    assert np.isnan(taken.norm[2])
    assert np.isnan(taken.unit[2]).all()
    np.testing.assert_allclose(taken.norm[[0, 3]], good.norm[[0, 3]], rtol=1e-5)
    assert taken.uncovered == {}


def test_stored_norm_and_unit_give_the_sketch_back():
    model, batch = build(), batch_of()
    taken = score(model, batch, 0.8)
    assert (taken.norm.dtype, taken.unit.dtype, taken.unit.shape) == (np.float32, np.float16, (4, 2048))
    bare = sketches(model, batch, 0.8).detach().numpy()
    np.testing.assert_allclose(vectors(taken), bare, atol=1e-3 * np.abs(bare).max())
