"""Top-p and lower precision: the tokens that are drawn, and log-probs of exactly the law that drew them."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import tiny_run
import torch
from scipy import stats
from score_models import MODELS as SCORED
from score_models import TINY
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from fspo.base.errors import UserError
from fspo.config import SamplingConfig
from fspo.gradlog import read_log
from fspo.models.load import load_model
from fspo.sampling.picking import pick_tokens
from fspo.sampling.precision import lowered
from tests.fspo.sampling.test_sample import MODELS, PROMPTS, assert_same, draw, plain_logprobs, small_model

FOUR, SIX = [0.15, 0.5, 0.05, 0.3], [0.0, 0.25, 0.0, 0.5, 0.25, 0.0]


@pytest.mark.parametrize(
    ("law", "top_p", "temperature", "u", "token", "probability"),
    [
        (SIX, 1.0, 1.0, 0.0, 1, 0.25),  # never a token of probability 0
        (SIX, 1.0, 1.0, 0.24, 1, 0.25),
        (SIX, 1.0, 1.0, 0.26, 3, 0.5),
        (SIX, 1.0, 1.0, 1 - 2.0**-53, 4, 0.25),
        (SIX, 1.0, 0.5, 0.2, 3, 2 / 3),  # squares 1/16, 1/4, 1/16 -> 1/6, 2/3, 1/6
        (FOUR, 1.0, 0.0, None, 1, 1.0),
        (FOUR, 0.7, 1.0, 0.62, 1, 0.625),  # .5 + .3 hold .7 first: 5/8 and 3/8 of what is left
        (FOUR, 0.7, 1.0, 0.63, 3, 0.375),
        (FOUR, 0.7, 1.0, 0.0, 1, 0.625),  # token 0 is first in the vocabulary and left out
        (FOUR, 0.9, 1.0, 0.15, 0, 0.15 / 0.95),
        (FOUR, 0.4, 1.0, 0.99, 1, 1.0),  # the most probable token is always kept
        (FOUR, 0.6, 0.5, 0.99, 1, 1.0),  # squares .0225 .25 .0025 .09 of .365: the first holds .68
    ],
)
def test_a_token_by_hand(law, top_p, temperature, u, token, probability) -> None:
    logits, uniforms = torch.log(torch.tensor([law])), None if u is None else torch.tensor([u], dtype=torch.float64)
    got, logprob = pick_tokens(logits, uniforms, temperature, top_p)
    assert got.item() == token
    assert logprob.exp().item() == pytest.approx(probability, abs=1e-6)


def enumerated(model: PreTrainedModel, prompt: list[int], steps: int, eos: tuple, top_p: float) -> dict:
    """Probabilities (under the model, under top-p) of every response, by sorting each next-token law in NumPy."""
    found, vocabulary = {}, model.config.vocab_size
    for tokens in product(range(vocabulary), repeat=steps):
        tokens = tokens[: next((t + 1 for t in range(steps) if tokens[t] in eos), steps)]
        if tokens in found:
            continue
        whole = kept = 1.0
        for t in range(len(tokens)):
            with torch.no_grad():
                p = torch.softmax(model(torch.tensor([[*prompt, *tokens[:t]]])).logits[0, -1].double(), -1).numpy()
            order = np.argsort(-p)
            nucleus = order[: int(np.searchsorted(np.cumsum(p[order]), top_p)) + 1]
            whole *= p[tokens[t]]
            kept *= p[tokens[t]] / p[nucleus].sum() * (tokens[t] in nucleus)
        found[tokens] = whole, kept
    return found


def test_responses_follow_the_cut_law_and_their_mean_weight_is_the_kept_mass() -> None:
    torch.manual_seed(1)
    shape = {"vocab_size": 4, "hidden_size": 32, "intermediate_size": 32, "num_key_value_heads": 4, "head_dim": 8}
    model, count = LlamaForCausalLM(LlamaConfig(**TINY | shape, initializer_range=0.6)).eval(), 6000
    eos = (2, 3)  # one ends responses early, one at the last position
    law = enumerated(model, [2, 3], 3, eos, 0.8)
    whole, kept = np.array(list(law.values())).T
    assert whole.sum() == pytest.approx(1)
    assert kept.sum() == pytest.approx(1)
    got = draw(model, [[2, 3]] * count, eos=eos, max_new_tokens=3, top_p=0.8)
    drawn = [tuple(int(t) for t in row) for row in got.tokens]
    assert got.truncated.tolist() == [row[-1] not in eos for row in drawn]
    assert {len(row) for row in drawn if row[-1] in eos} == {2, 3}
    for tokens, logprobs in zip(drawn[:300], got.logprobs, strict=False):
        assert logprobs.dtype == np.float32
        assert np.exp(logprobs.sum()) == pytest.approx(law[tokens][1], rel=1e-5)
    seen = np.array([drawn.count(tokens) for tokens in law])
    assert (seen[kept == 0] == 0).all()
    assert stats.chisquare(seen[kept > 0], kept[kept > 0] * count).pvalue > 1e-4
    # E_mu[e^E] is the probability that the model gives to the responses that can be drawn: below 1.
    mass = whole[kept > 0].sum()
    assert 0.3 < mass < 0.9
    weight = np.array([law[tokens][0] for tokens in drawn]) / np.exp([row.sum() for row in got.logprobs])
    assert abs(weight.mean() - mass) < 4 * weight.std() / np.sqrt(count)


def test_int8_rounds_rows_of_the_linear_layers_alone() -> None:
    model = small_model("llama")
    torch.nn.init.zeros_(model.model.layers[0].self_attn.o_proj.weight)
    copy = lowered(model, "int8")
    assert (copy.model.layers[0].self_attn.o_proj.weight == 0).all()
    weight = model.model.layers[1].mlp.up_proj.weight.detach().numpy().astype(np.float64)
    step = np.abs(weight).max(1, keepdims=True) / 127
    got = copy.model.layers[1].mlp.up_proj.weight.numpy()
    np.testing.assert_allclose(got, np.rint(weight / step) * step, atol=1e-6)
    assert 1e-3 < np.abs(got - weight).max() / np.abs(weight).max() < 1 / 254 + 1e-6
    assert copy.lm_head.weight is model.lm_head.weight
    assert copy.model.embed_tokens.weight is model.model.embed_tokens.weight
    assert copy.model.norm.weight is model.model.norm.weight
    with pytest.raises(UserError, match="no linear layers to round to int8"):  # GPT-2 has layers of another class
        lowered(SCORED["gpt2"](TINY), "int8")


def test_bfloat16_is_the_model_loaded_in_bfloat16(tmp_path: Path) -> None:
    model = small_model("llama")
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, "bfloat16")
    assert_same(draw(model, precision="bfloat16"), draw(loaded))
    assert model.dtype == torch.float32
    plain = draw(model)
    assert any(not np.allclose(a, b, atol=1e-3) for a, b in zip(plain.logprobs, draw(loaded).logprobs, strict=True))


@pytest.mark.parametrize(("kind", "precision"), [*((kind, "same") for kind in MODELS), ("qwen3-eager", "int8")])
def test_log_probs_are_those_of_the_model_that_sampled(kind: str, precision: str) -> None:
    model = small_model(kind)
    found, errors = draw(model, temperature=0.8, precision=precision), {}
    for net in (model, lowered(model, precision)):
        rows = zip(PROMPTS, found.tokens, found.logprobs, strict=True)
        errors[net] = [plain_logprobs(net, prompt, tokens, 0.8).numpy() - logprobs for prompt, tokens, logprobs in rows]
    assert max(np.abs(row).max() for row in errors[net]) < 2e-5
    assert max(abs(row.sum()) for row in errors[net]) < 1e-4
    assert (max(np.abs(row).max() for row in errors[model]) > 1e-2) == (precision == "int8")


@pytest.mark.parametrize(("option", "value", "negative"), [("precision", "int8", False), ("top_p", "0.7", True)])
def test_a_run_logs_the_mismatch(tmp_path: Path, option: str, value: str, negative: bool) -> None:
    run = tmp_path / "run"
    tiny_run.trainer(run, f"--sampling.{option}", value, "--eval.every", "1", "--eval.temperature", "0").train()
    E = read_log(run).table.to_pandas().engine_log_ratio
    assert E.abs().max() > 1e-3
    assert (E < 1e-4).all() == negative  # top-p raises the probability of every token that is left


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0, "top_p": 0.9}, "no effect at temperature 0: leave it out"),
        ({"engine": "vllm", "precision": "int8"}, "start the server with --dtype"),
        ({"precision": "int9"}, "did you mean 'int8'"),
        ({"top_p": 0.0}, r"sampling.top_p is 0.0: use a number above 0"),
        ({"top_p": 1.5}, r"sampling.top_p is 1.5: use 1 or less"),
    ],
)
def test_senseless_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        SamplingConfig(**options)
    assert SamplingConfig(top_p=0.5, precision="int8").of_policy(temperature=0.0) == SamplingConfig(temperature=0.0)
