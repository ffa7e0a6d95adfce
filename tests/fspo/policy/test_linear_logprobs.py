"""Tiled log-probs against log_softmax in float64 and finite differences: values, entropies, gradients, memory."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from fspo.policy import linear_logprobs
from fspo.policy.linear_logprobs import linear_log_probs, tile_shape

QWEN = 151_936


def parts(tokens, vocabulary, features, dtype=torch.float64, scale=1.0, bias=False, seed=0):
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, features, generator=draw, dtype=torch.float64)
    weight = torch.randn(vocabulary, features, generator=draw, dtype=torch.float64) * scale / math.sqrt(features)
    shift = torch.randn(vocabulary, generator=draw, dtype=torch.float64).to(dtype) if bias else None
    targets = torch.randint(vocabulary, (tokens,), generator=draw)
    return hidden.to(dtype), weight.to(dtype), shift, targets


def exact(hidden, weight, bias, targets, temperature):
    """By log_softmax in float64, on the very numbers given."""
    logits = torch.nn.functional.linear(hidden.double(), weight.double(), None if bias is None else bias.double())
    log_p = (logits / temperature).log_softmax(-1)
    return log_p.gather(1, targets[:, None])[:, 0], torch.special.entr(log_p.exp()).sum(-1)


def slopes(values, weights, *inputs):
    return torch.autograd.grad((values * weights.to(values.dtype)).sum(), inputs)


def sampled(logits):
    """Targets as a policy samples them."""
    return torch.multinomial(logits.softmax(-1), 1, generator=torch.Generator().manual_seed(1))[:, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_qwens_vocabulary_within_1e_6_of_float64_for_given_logits(dtype):
    """One-hot hidden states make the logits exact: what is left is the softmax's own error, in nats."""
    tokens = 24
    weight = (3 * torch.randn(QWEN, tokens, generator=torch.Generator().manual_seed(0))).to(dtype)
    hidden, targets = torch.eye(tokens, dtype=dtype), sampled(weight.double().T / 0.7)
    values, entropy = linear_log_probs(hidden, weight, None, targets, 0.7, entropy=True)
    expected, expected_entropy = exact(hidden, weight, None, targets, 0.7)
    assert values.dtype == torch.float32
    assert float((values - expected).abs().max()) < 1e-6
    assert float((entropy - expected_entropy).abs().max()) < 1e-6


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.bfloat16, 2**-8)])
def test_qwens_vocabulary_from_hidden_states(dtype, bound):
    """The error is that of a float32 logit, relative to the largest one, and of gradients in the weights' type."""
    hidden, weight, _, _ = parts(24, QWEN, 64, dtype, scale=3.0)
    ours = [x.requires_grad_() for x in (hidden, weight)]
    true = [x.detach().double().requires_grad_() for x in ours]
    logits = (true[0] @ true[1].T / 0.7).detach()
    targets, weights = sampled(logits), torch.linspace(-1, 2, 24)
    values, _ = linear_log_probs(ours[0], ours[1], None, targets, 0.7)
    expected, _ = exact(true[0], true[1], None, targets, 0.7)
    assert float((values - expected).detach().abs().max()) < 3e-7 * float(logits.abs().max())
    for found, slope in zip(slopes(values, weights, *ours), slopes(expected, weights, *true), strict=True):
        assert found.dtype == dtype
        assert float((found - slope).abs().max() / slope.abs().max()) < bound
    plain = torch.nn.functional.linear(hidden, weight).float().div(0.7).log_softmax(-1)
    error = float((plain.gather(1, targets[:, None])[:, 0] - expected).abs().max())
    assert error > 1e-3 or dtype == torch.float32  # the control: logits rounded to bfloat16


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(0, 9),
    vocabulary=st.integers(1, 40),
    rows=st.integers(1, 12),
    columns=st.integers(1, 50),
    temperature=st.floats(0.1, 5.0),
    scale=st.sampled_from([0.0, 1.0, 30.0, 1e4]),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_shape_and_tile(tokens, vocabulary, rows, columns, temperature, scale, bias, seed):
    hidden, weight, shift, targets = parts(tokens, vocabulary, 4, scale=scale, bias=bias, seed=seed)
    inputs = [x.requires_grad_() for x in (hidden, weight, shift) if x is not None]
    weights = torch.arange(1.0, tokens + 1)
    values, entropy = linear_log_probs(hidden, weight, shift, targets, temperature, entropy=True, tile=(rows, columns))
    expected, expected_entropy = exact(hidden, weight, shift, targets, temperature)
    tight = {"rtol": 1e-11, "atol": 1e-11 * max(1.0, scale / temperature)}
    torch.testing.assert_close(values, expected, **tight)
    torch.testing.assert_close(entropy, expected_entropy, **tight)
    assert (values <= 0).all()
    for ours, theirs in zip(slopes(values, weights, *inputs), slopes(expected, weights, *inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9 * max(1.0, scale / temperature))


def test_entries_that_cannot_be_drawn_and_failed_rows():
    hidden, weight, bias, targets = parts(4, 12, 3, bias=True)
    bias[3:9] = -math.inf  # whole tiles of them
    targets = torch.tensor([0, 1, 10, 4])
    hidden[2] = math.nan
    values, entropy = linear_log_probs(hidden, weight, bias, targets, entropy=True, tile=(2, 3))
    expected, expected_entropy = exact(hidden, weight, bias, targets, 1.0)
    torch.testing.assert_close(values, expected, equal_nan=True)
    assert values[3] == -math.inf
    torch.testing.assert_close(entropy, expected_entropy, equal_nan=True)
    assert values[2].isnan()


def test_autocast_rounds_the_operands_alone():
    hidden, weight, _, targets = parts(6, 50, 8, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        values, _ = linear_log_probs(hidden.requires_grad_(), weight.requires_grad_(), None, targets)
    expected, _ = exact(hidden.bfloat16(), weight.bfloat16(), None, targets, 1.0)
    torch.testing.assert_close(values.double(), expected, rtol=1e-6, atol=1e-6)
    assert [g.dtype for g in slopes(values, torch.ones(6), hidden, weight)] == [torch.float32] * 2


class Watch(TorchDispatchMode):
    """The most elements of one floating tensor that an operation makes (views of what exists are not new)."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, torch.Tensor) and x.is_floating_point() and x._base is None:
                self.most = max(self.most, x.numel())
        return out


@pytest.mark.parametrize("tokens", [1, 9])
def test_few_tokens_convert_no_more_weights_at_a_time(tokens, monkeypatch):
    """A tile of few tokens has many vocabulary entries; their weights in float32 are then most of the memory."""
    vocabulary, features, logits = 5_000, 16, 2**14
    hidden, weight, _, targets = parts(tokens, vocabulary, features, torch.bfloat16)
    tile = tile_shape(tokens, vocabulary, hidden.device, logits)
    assert tile[1] * features > 20_000
    found = {}
    for most in (700 * features, 10**9):  # the second is the control
        monkeypatch.setattr(linear_logprobs, "CONVERTED_WEIGHTS", most)
        with Watch() as watch, torch.no_grad():
            found[most] = linear_log_probs(hidden, weight, None, targets, tile=tile)[0], watch
    (values, lean), (whole, wasteful) = found.values()
    assert lean.most == max(700 * features, tokens * 700)
    assert wasteful.most >= tile[1] * features
    torch.testing.assert_close(values, whole, rtol=1e-6, atol=1e-6)


def test_tiles_by_hand():
    cpu = torch.device("cpu")
    assert tile_shape(5000, QWEN, cpu, 10_000) == (100, 100)
    assert tile_shape(10, QWEN, cpu, 10_000) == (10, 1000)
    assert tile_shape(3, 7, cpu, 10_000) == (3, 7)
    assert tile_shape(0, 7, cpu) == (1, 7)
    assert tile_shape(9, 7, cpu, 1) == (1, 1)
    assert tile_shape(5000, QWEN, torch.device("cuda")) == (4096, 4096)
    assert tile_shape(5000, QWEN, cpu) == (1024, 1024)
