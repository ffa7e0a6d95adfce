"""Sampling: keyed noise, inverse CDF, engines with one result."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from score_models import build
from transformers import AutoModelForCausalLM, MambaConfig, PreTrainedModel

from fspo.base.errors import UserError
from fspo.base.keyed_noise import keyed_uniforms
from fspo.models.load import LoraOptions, build_embedded_model, build_random_model, load_model, ready_for_training
from fspo.models.shapes import small_qwen3
from fspo.sampling import picking
from fspo.sampling.picking import Noise, pick_tokens
from fspo.sampling.sample import Responses, SamplingConfig, choose_engine, sample
from tests.fspo.policy.test_score_memory import peak


def small_model(kind: str) -> PreTrainedModel:
    if kind == "lora":
        return load_model("embedded", lora=LoraOptions(rank=2))
    if kind == "embedded":
        return build_embedded_model()
    model = build(kind.removesuffix("-eager")).eval()
    model.set_attn_implementation("eager" if kind.endswith("-eager") else "sdpa")
    return model


CUT_INT8 = {"top_p": 0.8, "precision": "int8"}
MODELS = ["embedded", "qwen3-eager", "llama", "gemma3", "gpt2", "lora"]
PROMPTS = [list(range(3, 3 + 1 + (5 * i) % 7)) for i in range(24)]


def draw(model, prompts=PROMPTS, keys=None, rollout=0, eos=(1, 2), **options) -> Responses:
    keys = np.arange(len(prompts)) if keys is None else np.asarray(keys)
    config = SamplingConfig(**{"max_new_tokens": 20, **options})
    return sample(model, prompts, keys, seed=11, rollout=rollout, config=config, eos_token_id=eos, pad_token_id=0)


def assert_same(left: Responses, right: Responses) -> None:
    for mine, other in zip(left.tokens, right.tokens, strict=True):
        np.testing.assert_array_equal(mine, other)
    for mine, other in zip(left.logprobs, right.logprobs, strict=True):
        np.testing.assert_allclose(mine, other, atol=2e-5)
    np.testing.assert_array_equal(left.truncated, right.truncated)


def plain_logprobs(model, prompt: list[int], response: np.ndarray, temperature: float) -> torch.Tensor:
    """Log-probs of a response by one forward without padding or cache."""
    ids = torch.tensor([[*prompt, *response.tolist()]])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0].double() / temperature
    return torch.log_softmax(logits, -1)[len(prompt) - 1 : -1].gather(-1, ids[0, len(prompt) :, None])[:, 0]


# --- noise and inverse CDF


def test_noise_blocks_join_and_streams_differ():
    whole = keyed_uniforms(1, 5, (2, 3), 0, 40)
    for start in (0, 1, 3, 4, 17):
        np.testing.assert_array_equal(keyed_uniforms(1, 5, (2, 3), start, 40 - start), whole[start:])
    for other in ((2, 5, (2, 3)), (1, 6, (2, 3)), (1, 5, (3, 3)), (1, 5, (2, 4)), (1, 5, (3, 2))):
        assert not np.intersect1d(keyed_uniforms(*other, 0, 40), whole).size
    with pytest.raises(UserError, match="non-negative"):
        keyed_uniforms(1, -1, (0, 0), 0, 1)


def test_noise_table_crosses_its_blocks():
    noise = Noise(3, 4, np.array([9, 2]))
    for position in (0, 255, 256, 600):
        got = noise.at(position, np.array([1]), torch.device("cpu"))
        assert got.item() == keyed_uniforms(picking.NOISE_PURPOSE, 3, (4, 2), position, 1)[0]


def test_large_vocabulary_is_picked_in_parts(monkeypatch):
    logits = torch.randn(7, 1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    uniforms = torch.rand(7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole = pick_tokens(logits, uniforms, 1.0)
    monkeypatch.setattr(picking, "PICK_ELEMENTS", 2000)
    parts = pick_tokens(logits, uniforms, 1.0)
    assert torch.equal(whole[0], parts[0])
    assert torch.equal(whole[1], parts[1])
    expected = torch.log_softmax(logits.float(), -1).gather(-1, whole[0][:, None])[:, 0]
    torch.testing.assert_close(whole[1], expected)  # not in bfloat16


# --- engines


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("options", [{"temperature": 0.7}, {"temperature": 0.0}, {"top_p": 0.8}], ids=str)
def test_engines_give_the_same_responses(kind, options):
    model = small_model(kind)
    fast = draw(model, engine="fast", **options)
    assert_same(fast, draw(model, engine="generate", **options))
    if "top_p" in options:
        other = draw(model, engine="fast", **options | {"top_p": 1.0})
        assert any(not np.array_equal(a, b) for a, b in zip(fast.tokens, other.tokens, strict=True))
    elif options["temperature"]:
        assert len(set(fast.lengths.tolist())) > 3  # rows did finish at different times
        assert fast.truncated.any()


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "gpt2"])  # which has no linear layer
def test_engines_give_the_same_responses_in_int8(kind):
    model = small_model(kind)
    assert_same(draw(model, engine="fast", **CUT_INT8), draw(model, engine="generate", **CUT_INT8))


@pytest.mark.parametrize("engine", ["fast", "generate"])
def test_batching_and_order_change_nothing(engine):
    model = small_model("llama")
    whole = draw(model, engine=engine)
    assert_same(whole, draw(model, engine=engine, batch_size=5))
    order = np.random.default_rng(0).permutation(len(PROMPTS))
    mixed = draw(model, [PROMPTS[i] for i in order], keys=order, engine=engine)
    inverse = np.argsort(order)
    assert_same(
        whole,
        Responses([mixed.tokens[i] for i in inverse], [mixed.logprobs[i] for i in inverse], mixed.truncated[inverse]),
    )
    half = draw(model, PROMPTS[12:], keys=np.arange(12, 24), engine=engine)  # another process's share
    assert_same(half, Responses(whole.tokens[12:], whole.logprobs[12:], whole.truncated[12:]))


def test_a_model_generation_default_changes_nothing():
    model = small_model("llama")
    before = draw(model, engine="generate")
    model.generation_config.repetition_penalty = 3.0
    model.generation_config.max_length = 5
    assert_same(before, draw(model, engine="generate"))
    assert model.generation_config.repetition_penalty == 3.0


@pytest.mark.parametrize("engine", ["fast", "generate"])
def test_sampling_leaves_the_training_model_alone(engine):
    model = load_model("embedded", gradient_checkpointing=True).train()
    model.model.norm.eval()  # a module with a flag of its own
    ids = torch.tensor([PROMPTS[6]])

    def gradient() -> torch.Tensor:
        model.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()
        return model.lm_head.weight.grad.clone()

    before = gradient()
    state = torch.get_rng_state()
    responses = draw(model, engine=engine)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert model.model.layers[0].training
    assert not model.model.norm.training
    assert torch.equal(gradient(), before)
    assert_same(responses, draw(build_embedded_model(), engine=engine))


def test_engine_choice():
    assert choose_engine(build_embedded_model(), "auto") == "fast"
    assert choose_engine(build_embedded_model(), "generate") == "generate"
    shape = MambaConfig(vocab_size=24, hidden_size=16, num_hidden_layers=1, state_size=4)
    mamba = AutoModelForCausalLM.from_config(shape).eval()
    assert choose_engine(mamba, "auto") == "generate"
    with pytest.raises(UserError, match="'generate'"):
        choose_engine(mamba, "fast")


# --- bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": []}, "no prompt"),
        ({"prompts": [[]], "keys": [0]}, "at least one token"),
        ({"keys": [0]}, "one integer key"),
        ({"keys": np.zeros(24)}, "one integer key"),
        ({"keys": [-1] * 24}, "non-negative"),
        ({"prompts": [[24]]}, "24 tokens"),
        ({"eos": ()}, "end token"),
        ({"max_new_tokens": 2000}, "positions"),
        ({"engine": "fats"}, "did you mean 'fast'"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(UserError, match=message):
        draw(build_embedded_model(), **change)


@pytest.mark.parametrize("engine", ["fast", "generate"])
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_diverged_model_is_named(engine, temperature):
    model = build_embedded_model()
    torch.nn.init.constant_(model.lm_head.weight, float("nan"))
    with pytest.raises(UserError, match="not finite"):
        draw(model, engine=engine, temperature=temperature, max_new_tokens=4)


def test_the_first_step_copies_no_weight_for_each_prompt() -> None:
    """Adapters make the hidden states require gradients; torch then multiplied a slice by one weight copy a prompt."""
    shape = small_qwen3(128, 2, vocab_size=2_000, intermediate_size=16, num_hidden_layers=1, head_dim=8)
    net = build_random_model(shape, "bfloat16", seed=0)
    net = ready_for_training(net, "it", gradient_checkpointing=True, lora=LoraOptions(rank=2)).eval()
    prompts = [[5, 7, 9, 20 + i] for i in range(16)]
    config = SamplingConfig(max_new_tokens=1)

    def run() -> None:
        sample(net, prompts, np.arange(16), seed=0, rollout=0, config=config, eos_token_id=0, pad_token_id=0)

    logits = 16 * 2_000 * (2 + 4 + 4 + 4 + 8 + 8)  # bfloat16, float32 thrice, and the CDF in float64 twice
    copies = 16 * 2_000 * 128 * 2
    assert peak(run) < logits + copies / 4
