"""Log-probs against plain log_softmax, values and gradients, small and big vocabularies."""

from contextlib import nullcontext

import pytest
import torch
from score_models import build as built

from fspo.base.errors import UserError
from fspo.policy.logprobs import BIG_VOCABULARY, make_batch, token_log_probs
from tests.fspo.policy.test_linear_logprobs import Watch

BIG = BIG_VOCABULARY + 808
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [13, 14]]
RESPONSES = [[20, 21, 22, 23, 24, 25, 26], [2], [30, 31, 32, 33, 34, 35, 36, 37, 38, 39]]


def build(kind, dtype=torch.float64):
    name = {"tied": "qwen3-tied", "capped": "gemma3", "gpt2": "gpt2"}.get(kind, "qwen3")
    model = built(name, dtype, 50 if kind in ("small", "bias", "checkpointed") else BIG)
    if kind == "capped":
        model.config.final_logit_softcapping = 2.0
    if kind == "bias":
        model.lm_head = torch.nn.Linear(16, 50, dtype=dtype)
    if kind == "checkpointed":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train(kind == "checkpointed")


def plain(model, batch, temperature):
    """Log-probs and entropies by log_softmax over everything."""
    logits = model(**{k: v for k, v in batch.items() if k != "response_mask"}).logits
    log_p = (logits[:, :-1] / temperature).log_softmax(-1)
    mask = batch["response_mask"]
    picked = torch.nn.functional.pad(log_p.gather(-1, batch["input_ids"][:, 1:, None])[..., 0], (1, 0))
    entropy = torch.nn.functional.pad(-(log_p.exp() * log_p).sum(-1), (1, 0))
    return torch.where(mask, picked, 0.0), torch.where(mask, entropy, 0.0)


def gradients(model, scalar):
    model.zero_grad()
    scalar.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("kind", ["small", "big", "tied", "bias", "checkpointed", "gpt2", "capped"])
def test_values_entropies_and_gradients_are_log_softmaxs(kind):
    model, batch = build(kind), make_batch(PROMPTS, RESPONSES, 0)
    batch["response_mask"] &= torch.arange(batch["input_ids"].shape[1]) % 5 != 4  # holes
    logits = None if kind == "small" else 100  # tiles of 10 tokens and 10 vocabulary entries, the last ones smaller
    weights = torch.rand(batch["response_mask"].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    changed = pytest.warns(UserWarning, match="changes its logits after the output layer")
    with changed if kind == "capped" else nullcontext():
        log_probs, entropy = token_log_probs(model, batch, 0.7, entropy=True, logits=logits)
    expected, expected_entropy = plain(model, batch, 0.7)
    torch.testing.assert_close(log_probs, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(entropy, expected_entropy, rtol=1e-12, atol=1e-12)
    assert not entropy.requires_grad
    ours = gradients(model, (log_probs * weights).sum())
    for name, gradient in gradients(model, (expected * weights).sum()).items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-9, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


def test_no_tokens_by_vocabulary_tensor_is_ever_whole():
    """A forward and a backward pass allocate no tensor larger than the logits of 32 tokens (of 320)."""
    model = build("big", torch.float32)
    batch = make_batch([[5, 6]] * 8, [list(range(3, 43))] * 8, 0)  # 320 response tokens
    with Watch() as lean:
        token_log_probs(model, batch, logits=2**12)[0].sum().backward()
    assert lean.most <= 32 * BIG
    with Watch() as whole:  # the control: the plain path does make one
        plain(model, batch, 1.0)[0].sum().backward()
    assert whole.most >= 320 * BIG


def test_bfloat16_models_give_float32_log_probs_from_upcast_logits():
    model, batch = build("small", torch.bfloat16), make_batch(PROMPTS, RESPONSES, 0)
    log_probs = token_log_probs(model, batch)[0].detach()
    assert log_probs.dtype == torch.float32
    logits = model(**{k: v for k, v in batch.items() if k != "response_mask"}).logits.float()
    expected = logits[0, 2].detach().log_softmax(-1)[20]
    assert float(log_probs[0, 3]) == pytest.approx(float(expected), abs=1e-6)


def test_the_same_call_twice_gives_the_same_bits():
    for kind in ("small", "big"):
        model, batch = build(kind, torch.float32), make_batch(PROMPTS, RESPONSES, 0)
        first, _ = token_log_probs(model, batch)
        with torch.no_grad():  # old log-probs: no graph, no checkpoint, entropies on
            second, _ = token_log_probs(model, batch, entropy=True)
        assert torch.equal(first.detach(), second)


@pytest.mark.parametrize("kind", ["small", "big"])
def test_a_batch_without_response_tokens_keeps_its_graph(kind):
    model, batch = build(kind), make_batch([[5, 6]], [[]], 0)
    log_probs, _ = token_log_probs(model, batch)
    log_probs.sum().backward()
    assert not log_probs.any()
    assert model.model.embed_tokens.weight.grad is not None


def test_batches_by_hand():
    right = make_batch([[5, 6], [7]], [[8], [9, 10, 11]], 99)
    assert right["input_ids"].tolist() == [[5, 6, 8, 99], [7, 9, 10, 11]]
    assert right["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert right["position_ids"].tolist() == [[0, 1, 2, 2], [0, 1, 2, 3]]
    assert right["response_mask"].tolist() == [[False, False, True, False], [False, True, True, True]]


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: make_batch([[]], [[1]], 0), "empty prompt"),
        (lambda: token_log_probs(build("small"), make_batch([[1]], [[1]], 0), 0.0), "temperature"),
        (
            lambda: token_log_probs(
                build("small"), make_batch([[1]], [[1]], 0) | {"response_mask": torch.ones(1, 2, dtype=torch.bool)}
            ),
            "first column",
        ),
    ],
)
def test_bad_input_is_refused_with_the_cure(call, word):
    with pytest.raises(UserError, match=word):
        call()
