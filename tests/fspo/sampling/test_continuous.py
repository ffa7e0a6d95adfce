"""transformers' continuous batching on the CPU: the responses of the other engines, none lost."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.continuous_batching.requests import RequestState

import fspo.sampling.continuous
from fspo.base.errors import UserError
from fspo.sampling import vllm
from fspo.sampling.continuous import KeyedPicker
from fspo.sampling.picking import Noise
from tests.fspo.sampling.test_sample import PROMPTS, assert_same, draw, plain_logprobs, small_model


@pytest.mark.parametrize("kind", ["embedded", "qwen3-eager", "llama", "lora"])
def test_same_responses_as_the_fast_engine(kind: str) -> None:
    model = small_model(kind)
    fast, other = draw(model, engine="fast"), draw(model, engine="continuous")
    assert_same(fast, other)
    assert other.truncated.any()
    assert not other.truncated.all()
    for prompt, tokens, logprobs in zip(PROMPTS[:4], other.tokens, other.logprobs, strict=False):
        np.testing.assert_allclose(plain_logprobs(model, prompt, tokens, 1.0), logprobs, atol=2e-5)


def test_greedy_equals_generate() -> None:
    model = small_model("llama")
    found = draw(model, engine="continuous", temperature=0.0)
    plain = GenerationConfig(max_new_tokens=20, do_sample=False, eos_token_id=[1, 2], pad_token_id=0)
    for prompt, tokens in zip(PROMPTS, found.tokens, strict=True):
        said = model.generate(torch.tensor([prompt]), generation_config=plain)[0, len(prompt) :]  # type: ignore[operator]
        assert said.tolist() == tokens.tolist()


def test_a_warm_temperature_and_another_rollout() -> None:
    model = small_model("embedded")
    options = {"temperature": 1.7, "rollout": 3, "keys": 5 + np.arange(len(PROMPTS))}
    assert_same(draw(model, engine="fast", **options), draw(model, engine="continuous", **options))


def test_the_model_is_given_back_as_it_was() -> None:
    model = small_model("qwen3-eager").train()
    kept = model.generation_config
    draw(model, engine="continuous")
    assert model.training
    assert model.config._attn_implementation == "eager"
    assert model.generation_config is kept
    model(input_ids=torch.tensor([[3, 4]])).logits.sum().backward()


def test_evicted_responses_go_on_with_their_own_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that holds one long response and few short ones: requests wait, or give up pages and start again."""
    evicted, again = [], RequestState.create_equivalent_initial_request
    monkeypatch.setattr(
        RequestState, "create_equivalent_initial_request", lambda self: evicted.append(self.request_id) or again(self)
    )
    monkeypatch.setattr(fspo.sampling.continuous, "_PAGE", 16)
    monkeypatch.setattr(fspo.sampling.continuous, "_spare_pages", lambda pages: 8)
    model, options = small_model("llama"), {"max_new_tokens": 100, "eos": (1,)}
    assert_same(draw(model, engine="fast", **options), draw(model, engine="continuous", **options))
    assert evicted


def test_a_cache_that_holds_not_one_response_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fspo.sampling.continuous, "_PAGE", 16)
    monkeypatch.setattr(fspo.sampling.continuous, "_spare_pages", lambda pages: 2)
    with pytest.raises(UserError, match=r"lost the response to prompt .* give the cache more room"):
        draw(small_model("llama"), engine="continuous", max_new_tokens=100, eos=(1,))


def test_uniforms_reach_their_tokens_whole() -> None:
    """Two words carry all 53 bits: the picked token is that of the float64 uniform."""
    picker = KeyedPicker(Noise(1, 2, np.array([7, 8])), [[3], [3, 4]], 1.0, torch.device("cpu"), 4)
    scores = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    for position in (0, 255, 256, 700):
        for row in (0, 1):
            u = picker.uniform(f"row-{row}", position)
            high, low = divmod(int(u * 2.0**53), 1 << 31)
            assert (high * (1 << 31) + low) * 2.0**-53 == u
            assert max(high, low) < 1 << 31
    picked = picker.pick(scores, torch.tensor([0, 1 << 21], dtype=torch.int32), torch.tensor([0, 5], dtype=torch.int32))
    assert (picked > -np.inf).sum(1).tolist() == [1, 1]
    assert picked[0].argmax() == 0  # uniform 0 is the first token


def test_lost_responses_are_never_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("embedded")

    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("device went away")

    monkeypatch.setattr(KeyedPicker, "pick", broken)
    with pytest.raises(UserError, match=r"continuous batching lost the response to prompt 0 of 24 \(.*went away"):
        draw(model, engine="continuous")


def test_models_that_cannot_run_it_say_so() -> None:
    from transformers import MambaConfig, MambaForCausalLM

    from tests.fspo.sampling.test_sample import SMALL

    options = {k: v for k, v in SMALL.items() if k not in ("num_attention_heads", "intermediate_size")}
    model = MambaForCausalLM(MambaConfig(**options)).eval()
    with pytest.raises(UserError, match="sampling engine to 'generate'"):
        draw(model, engine="continuous")


def test_vllm_that_is_not_installed_is_one_line() -> None:
    if find_spec("vllm") is not None:
        pytest.skip("vllm is installed")
    with pytest.raises(UserError, match=r"the vllm engine needs vllm: pip install 'fspo\[vllm\]', or set the sampling"):
        draw(small_model("embedded"), engine="vllm")


def test_vllm_gives_equal_prompts_responses_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that seeds as vLLM does: each request with a seed has a generator of its own, the others share one."""

    class Server:
        shared = np.random.default_rng(0)

        def generate(self, prompts: list, *, max_tokens: int, generation_kwargs: dict, **_: object) -> dict:
            found = []
            for _prompt in prompts:
                seed = generation_kwargs.get("seed")
                draw = self.shared if seed is None else np.random.default_rng(seed)
                found.append(draw.integers(2, 20, max_tokens).tolist())
            return {"completion_ids": found, "logprobs": [[[-1.0]] * len(row) for row in found]}

    monkeypatch.setattr(vllm, "check_vllm", lambda: None)
    monkeypatch.setattr(vllm, "_synced", lambda model, url: Server())
    noise = Noise(0, 0, np.arange(4))
    tokens, logprobs = vllm.run_vllm(small_model("embedded"), [[5, 6]] * 4, noise, 1.0, 12, [1], "http://x", None)
    assert len({tuple(row.tolist()) for row in tokens}) == 4
    assert all((row == -1.0).all() and len(row) == 12 for row in logprobs)
