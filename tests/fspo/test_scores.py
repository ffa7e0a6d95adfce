"""Scores: the sketch against the exact gradient, the exact gradient against finite differences."""

from __future__ import annotations

import numpy as np
import peft
import pytest
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

from fspo import logprobs, sketch
from fspo.errors import UserError
from fspo.logprobs import make_batch, token_log_probs
from fspo.score_check import coverage
from fspo.scores import ScoreConfig, ScoreHooks, exact_scores, score

VOCAB = 24
TINY = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
MODELS = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**TINY, tie_word_embeddings=False)),
    "qwen3-tied": lambda: Qwen3ForCausalLM(Qwen3Config(**TINY, tie_word_embeddings=True, attention_bias=True)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**TINY, mlp_bias=True)),
    "llama-padding-row": lambda: LlamaForCausalLM(LlamaConfig(**{**TINY, "pad_token_id": 5})),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB, n_embd=16, n_layer=2, n_head=4, n_positions=48, bos_token_id=None, eos_token_id=None
        )
    ),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**TINY, sliding_window=8)),
}
BARE = {"width": None, "projection": None}


def build(name: str = "qwen3", dtype: torch.dtype = torch.float32):
    """A model with every parameter away from its special starting value (ones, zeros)."""
    torch.manual_seed(1)
    model = MODELS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return model.to(dtype).train()


def responses(count: int = 4, seed: int = 0, longest: int = 14) -> tuple[list[list[int]], list[list[int]]]:
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(1, VOCAB, rng.integers(1, 6)).tolist() for _ in range(count)]
    return prompts, [rng.integers(1, VOCAB, rng.integers(1, longest)).tolist() for _ in range(count)]


def batch_of(count: int = 4, side: str = "right", seed: int = 0, longest: int = 14) -> dict[str, torch.Tensor]:
    return make_batch(*responses(count, seed, longest), pad_token_id=0, padding_side=side)  # type: ignore[arg-type]


def sketches(model, batch, temperature: float = 1.0, **options) -> torch.Tensor:
    """Sketches in the model's full precision, from the public hooks in a plain forward pass."""
    with ScoreHooks(model, **options) as hooks:
        tokens, _ = token_log_probs(model, batch, temperature)
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


# -- the oracle ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["qwen3-tied", "gpt2"])
def test_exact_scores_match_finite_differences(name):
    model, batch, temperature = build(name, torch.float64), batch_of(3), 1.3
    exact, log_prob = exact_scores(model, batch, temperature)
    model.eval()

    def total() -> torch.Tensor:  # written out: no code of ours between the logits and S
        with torch.no_grad():
            rows = {k: batch[k] for k in ("input_ids", "attention_mask", "position_ids")}
            log_p = (model(**rows).logits / temperature).log_softmax(-1)[:, :-1]
            picked = log_p.gather(-1, batch["input_ids"][:, 1:, None])[..., 0]
            return (picked * batch["response_mask"][:, 1:]).sum(1)

    torch.testing.assert_close(log_prob, total(), rtol=1e-9, atol=1e-9)
    rng, start = np.random.default_rng(3), 0
    for parameter in model.parameters():
        flat = parameter.data.view(-1)
        index = int(exact[:, start : start + flat.numel()].abs().sum(0).argmax())
        for i in {index, int(rng.integers(flat.numel()))}:
            kept, step = flat[i].item(), 1e-4
            flat[i] = kept + step
            above = total()
            flat[i] = kept - step
            slope = (above - total()) / (2 * step)
            flat[i] = kept
            # Norm layers compute in float32, whatever the model's dtype.
            torch.testing.assert_close(exact[:, start + i], slope, rtol=2e-3, atol=5e-3)
        start += flat.numel()


# -- without projection the sketch is the gradient ----------------------------------------------------------------


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", list(MODELS))
def test_unprojected_sketch_is_the_exact_gradient(name, side):
    model, batch = build(name), batch_of(4, side)
    exact, _ = exact_scores(model, batch, 0.8)
    hooks = ScoreHooks(model, **BARE)
    got = sketches(model.eval(), batch, 0.8, **BARE)
    torch.testing.assert_close(got, reordered(model, exact, hooks), rtol=1e-3, atol=2e-5 * float(exact.abs().max()))


def test_projections_of_full_rank_are_the_identity():
    model, batch = build(), batch_of()
    torch.testing.assert_close(sketches(model, batch, width=None, projection=99), sketches(model, batch, **BARE))


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_padding_side_width_and_neighbours_do_not_matter(name):
    model = build(name)
    prompts, answers = responses(4)
    right, left = (score(model, batch_of(4, side)) for side in ("right", "left"))
    np.testing.assert_allclose(vectors(left), vectors(right), atol=2e-3 * right.norm.max())
    np.testing.assert_allclose(left.norm, right.norm, rtol=1e-4)
    for i in range(4):
        alone = score(model, make_batch([prompts[i]], [answers[i]], pad_token_id=0))
        np.testing.assert_allclose(alone.norm[0], right.norm[i], rtol=1e-4)
        np.testing.assert_allclose(alone.unit[0].astype(float), right.unit[i].astype(float), atol=1e-3)


def test_permuting_rows_permutes_scores():
    model, batch, order = build(), batch_of(5), [3, 0, 4, 1, 2]
    plain = score(model, batch)
    moved = score(model, {k: v[order] for k, v in batch.items()})
    np.testing.assert_allclose(moved.norm, plain.norm[order], rtol=1e-5)
    np.testing.assert_allclose(moved.unit.astype(float), plain.unit[order].astype(float), atol=5e-4)


def test_microbatches_do_not_matter():
    model, batch = build(), batch_of(7)
    whole, parts = score(model, batch), score(model, batch, config=ScoreConfig(microbatch_tokens=30))
    np.testing.assert_allclose(parts.norm, whole.norm, rtol=1e-4)
    np.testing.assert_allclose(parts.unit.astype(float), whole.unit.astype(float), atol=1e-3)
    np.testing.assert_allclose(parts.log_prob, whole.log_prob, rtol=1e-5)


def test_holes_in_the_response_mask_are_left_out():
    model, batch = build(), batch_of(3)
    batch["response_mask"] &= torch.arange(batch["input_ids"].shape[1]) % 3 != 2
    exact, _ = exact_scores(model, batch)
    got = sketches(model, batch, **BARE)
    torch.testing.assert_close(got.norm(dim=1), exact.norm(dim=1), rtol=1e-4, atol=1e-5)


def test_a_big_vocabulary_goes_through_the_output_layer_in_chunks(monkeypatch):
    model, batch = build("qwen3-tied"), batch_of(4)
    whole = sketches(model, batch, **BARE)
    monkeypatch.setattr(logprobs, "BIG_VOCABULARY", 2)
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 5 * VOCAB)
    shapes = []
    watch = model.lm_head.register_forward_pre_hook(lambda _, args: shapes.append(args[0].shape))
    sketches(model, batch, **BARE)
    assert all(len(shape) == 3 for shape in shapes)  # another's hook is shown the real output layer
    watch.remove()
    chunked = sketches(model, batch, **BARE)
    torch.testing.assert_close(chunked, whole, rtol=1e-4, atol=1e-5)
    projected = sketches(model, batch, projection=4)
    monkeypatch.undo()
    torch.testing.assert_close(projected, sketches(model, batch, projection=4), rtol=1e-4, atol=1e-4)


# -- inner products -----------------------------------------------------------------------------------------------


def z_scores(model, batch, draws: int = 96, **options) -> np.ndarray:
    exact = exact_scores(model, batch)[0].double()
    truth = (exact @ exact.T).numpy()
    grams = []
    for rollout in range(draws):
        taken = sketches(model.eval(), batch, rollout=rollout, **options).double()
        grams.append((taken @ taken.T).numpy())
    grams = np.stack(grams)
    error = grams.std(0, ddof=1) / np.sqrt(draws)
    return ((grams.mean(0) - truth) / error)[np.triu_indices(len(truth))]


@pytest.mark.parametrize("name", ["qwen3-tied", "gpt2"])
def test_inner_products_are_unbiased_over_redraws(name):
    model, batch = build(name), batch_of(4, longest=8)
    assert np.abs(z_scores(model, batch, width=128, projection=4)).max() < 4.5


def sketcher_error(draws: int = 300) -> float:
    """Standard errors between the mean sketched inner product and the true one, for two fixed gradients."""
    rng = np.random.default_rng(5)
    shapes = {"matrix": (12, 10), "vector": (200,)}
    parts = {name: torch.from_numpy(rng.uniform(0.5, 1.5, (2, *shape))) for name, shape in shapes.items()}
    truth = sum(float((part[0] * part[1]).sum()) for part in parts.values())
    found = []
    for rollout in range(draws):
        sketcher = sketch.Sketcher(shapes, 64, 4, 0, rollout)
        total = sketcher.zeros(2, torch.float64)
        columns = sketcher.project(parts["matrix"], "columns")
        rows = sketcher.project(columns.transpose(1, 2), "rows").transpose(1, 2)
        sketcher.add(total, "matrix", rows)
        sketcher.add(total, "vector", parts["vector"])
        found.append(float(total[0] @ total[1]))
    return abs(np.mean(found) - truth) / (np.std(found, ddof=1) / np.sqrt(draws))


def test_a_sketch_of_given_gradients_is_unbiased():
    assert sketcher_error() < 4.5


@pytest.mark.parametrize("broken", ["vector/sign", "columns", "rows"])
def test_control_the_test_above_sees_correlated_draws(monkeypatch, broken):
    """A hash without signs; a projection whose entries are all 1."""
    honest = sketch.random_signs
    monkeypatch.setattr(
        sketch, "random_signs", lambda *key: np.ones(key[3], np.int8) if key[2] == broken else honest(*key)
    )
    assert sketcher_error() > 4.5


def test_signs_are_fair_and_keyed():
    words = sketch.random_words(7, 3, "layer", 5)
    np.testing.assert_array_equal(words, sketch.random_words(7, 3, "layer", 9)[:5])
    signs = sketch.random_signs(7, 3, "layer", (200, 16))
    assert set(np.unique(signs)) == {-1, 1}
    assert abs(signs.mean()) < 4.5 / np.sqrt(signs.size)
    for other in [(8, 3, "layer"), (7, 4, "layer"), (7, 3, "player")]:
        overlap = (signs * sketch.random_signs(*other, (200, 16))).mean()
        assert abs(overlap) < 4.5 / np.sqrt(signs.size)
    # Pinned: a log written today must be comparable with one written tomorrow.
    assert sketch.random_signs(0, 0, "a", (8,)).tolist() == [1, -1, 1, 1, 1, -1, -1, -1]


def test_draws_follow_seed_and_rollout():
    model, batch = build(), batch_of(2)
    first, again, later = (score(model, batch, rollout=r).unit for r in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, later)
    frozen = ScoreConfig(redraw=False)
    np.testing.assert_array_equal(*(score(model, batch, rollout=r, config=frozen).unit for r in (1, 2)))
    assert not np.array_equal(first, score(model, batch, seed=1).unit)


# -- what the pass leaves alone -----------------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_gradient_checkpointing_gives_the_same_scores(name):
    model, batch = build(name), batch_of()
    plain = sketches(model, batch)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    calls = []
    handle = model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    torch.testing.assert_close(sketches(model, batch), plain, rtol=1e-4, atol=1e-4)
    assert len(calls) == 2  # it was in force
    taken = score(model, batch)
    assert len(calls) == 4
    handle.remove()
    np.testing.assert_allclose(taken.norm, plain.norm(dim=1).detach().numpy(), rtol=1e-4)


def test_reentrant_checkpointing_is_refused_with_the_cure():
    model = build()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(UserError, match="use_reentrant=False"):
        score(model, batch_of())


def test_wrapped_in_ddp(tmp_path):
    model, batch = build(), batch_of()
    plain = score(model, batch)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        taken = score(wrapped, batch)
        np.testing.assert_array_equal(taken.unit, plain.unit)
        wrapped(input_ids=batch["input_ids"]).logits.sum().backward()  # DDP still works afterwards
        assert all(p.grad is not None for p in model.parameters())
    finally:
        torch.distributed.destroy_process_group()


def test_bfloat16_is_near_float32():
    model, batch = build(), batch_of(6)
    full = vectors(score(model, batch))
    half = vectors(score(model.to(torch.bfloat16), batch))
    cosine = (full * half).sum(1) / np.linalg.norm(full, axis=1) / np.linalg.norm(half, axis=1)
    assert cosine.min() > 0.995


# -- coverage -----------------------------------------------------------------------------------------------------


def test_lora_covers_the_adapters_alone():
    model = peft.get_peft_model(
        build(), peft.LoraConfig(r=3, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    )
    batch = batch_of()
    exact, _ = exact_scores(model, batch)
    hooks = ScoreHooks(model, **BARE)
    assert all("lora_" in name for name in hooks.sketcher.shapes)
    got = sketches(model.eval(), batch, **BARE)
    torch.testing.assert_close(got, reordered(model, exact, hooks), rtol=1e-3, atol=1e-4)
    assert score(model, batch).uncovered == {}


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


def test_frozen_model_and_bad_input_name_the_cure():
    model = build()
    with pytest.raises(UserError, match="lacks response_mask"):
        score(model, {k: v for k, v in batch_of().items() if k != "response_mask"})
    with pytest.raises(UserError, match=r"scores\.width must be at least 1"):
        ScoreConfig(width=0)
    with pytest.raises(UserError, match="did you mean 'sketch'"):
        ScoreConfig(mode="sketsh")  # type: ignore[arg-type]
    with ScoreHooks(model) as hooks, pytest.raises(UserError, match="no forward pass"):
        hooks.backward(torch.zeros(2))
    model.requires_grad_(False)
    with pytest.raises(UserError, match="no trainable parameter"):
        score(model, batch_of())


# -- failures, modes ----------------------------------------------------------------------------------------------


def test_one_failed_response_leaves_the_others_alone():
    model, batch = build(), batch_of()
    good = score(model, batch)
    used = set(batch["input_ids"][[0, 1, 3]][batch["attention_mask"][[0, 1, 3]].bool()].tolist())
    poison = next(t for t in range(1, VOCAB) if t not in used)
    batch["input_ids"][2, 0] = poison
    with torch.no_grad():
        model.get_input_embeddings().weight[poison] = float("nan")
    taken = score(model, batch)
    assert taken.status == ["ok", "ok", "failed", "ok"]
    assert np.isnan(taken.norm[2])
    assert np.isnan(taken.unit[2]).all()
    np.testing.assert_allclose(taken.norm[[0, 1, 3]], good.norm[[0, 1, 3]], rtol=1e-5)
    assert taken.uncovered == {}


def test_a_response_without_tokens_has_no_score():
    batch = batch_of()
    batch["response_mask"][1] = False
    assert score(build(), batch).status == ["ok", "failed", "ok", "ok"]


def test_exact_mode_keeps_the_whole_gradient():
    model, batch = build(), batch_of()
    exact, _ = exact_scores(model, batch)
    taken = score(model, batch, config=ScoreConfig(mode="exact"))
    assert taken.unit.dtype == np.float32
    np.testing.assert_allclose(vectors(taken), exact.numpy(), rtol=1e-4, atol=1e-5)


def test_stored_norm_and_unit_give_the_sketch_back():
    model, batch = build(), batch_of()
    taken = score(model, batch)
    assert (taken.norm.dtype, taken.unit.dtype, taken.unit.shape) == (np.float32, np.float16, (4, 2048))
    bare = sketches(model, batch).detach().numpy()
    np.testing.assert_allclose(vectors(taken), bare, atol=1e-3 * np.abs(bare).max())


# -- the check against the oracle ---------------------------------------------------------------------------------


def test_coverage_measures_the_missing_share():
    model, batch = build(), batch_of(5)
    full = coverage(model, batch, config=ScoreConfig(**BARE))
    np.testing.assert_allclose(full.share, 1.0)
    np.testing.assert_allclose(full.norm_ratio, 1.0, rtol=1e-4)
    assert full.pair_cosine_rmse < 1e-3
    assert full.subset_cosine_rmse < 1e-3

    class Scaled(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.gain = inner, torch.nn.Parameter(torch.ones(16))

        def forward(self, x):
            return self.inner(x) * self.gain

    model.model.layers[0].mlp = Scaled(model.model.layers[0].mlp)
    part = coverage(model, batch, config=ScoreConfig(**BARE))
    exact, _ = exact_scores(model, batch)
    names, start = dict(model.named_parameters()), 0
    for name, parameter in names.items():
        if name == "model.layers.0.mlp.gain":
            missing = exact[:, start : start + 16].square().sum(1) / exact.square().sum(1)
            np.testing.assert_allclose(part.share, 1 - missing.numpy(), rtol=1e-4)
        start += parameter.numel()
    assert set(part.uncovered_share) == {"model.layers.0.mlp.gain"}
    assert 0 < part.uncovered_share["model.layers.0.mlp.gain"] < 1
    np.testing.assert_allclose(part.norm_ratio, np.sqrt(part.share), rtol=1e-4)


def test_sketch_error_falls_with_the_projection():
    model, batch = build(), batch_of(6)

    def error(k: int) -> float:
        taken = [coverage(model, batch, config=ScoreConfig(projection=k), rollout=r) for r in range(4)]
        return float(np.mean([found.pair_cosine_rmse for found in taken]))

    assert error(8) < 0.6 * error(2)
