"""AdamW with 8-bit moments: close to AdamW, as small as planned, unbiased in bfloat16, repeatable."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import tiny_run
import torch
from torch import nn

from fspo.base.errors import UserError
from fspo.config import OptimConfig
from fspo.train import optimizers
from fspo.train.optimizers import make_optimizer, moment_bytes, optimizer_step, set_learning_rate

LOW = OptimConfig(name="adamw8bit", learning_rate=1e-3)

needs_torchao = pytest.mark.skipif(not find_spec("torchao"), reason="needs torchao (pip install 'fspo[8bit]')")


def trained(config: OptimConfig, dtype: torch.dtype = torch.float32, updates: int = 30) -> tuple[torch.Tensor, Any]:
    """A least-squares problem's weights after some updates, and the optimizer."""
    noise = torch.Generator().manual_seed(0)
    x, y = torch.randn(256, 128, generator=noise), torch.randn(256, 64, generator=noise)
    weight = nn.Parameter((0.1 * torch.randn(64, 128, generator=noise)).to(dtype))
    optimizer = make_optimizer([weight], config)
    for update in range(updates):
        ((x @ weight.float().T - y) ** 2).mean().backward()
        optimizer_step(optimizer, config.name, 0, update)
        optimizer.zero_grad()
    return weight.detach().float(), optimizer


@needs_torchao
def test_eight_bits_follow_adamw() -> None:
    start, _ = trained(LOW, updates=0)
    low, _ = trained(LOW)
    exact, _ = trained(OptimConfig(learning_rate=1e-3))
    moved = (exact - start).norm()
    assert moved > 1
    assert (low - exact).norm() < 0.1 * moved


@needs_torchao
def test_moments_take_what_is_planned() -> None:
    sizes = [(64, 128), (4096,), (100,), (65, 100)]  # the last: 6500 is no multiple of 256
    parameters = [nn.Parameter(torch.ones(size)) for size in sizes]
    for name in ("adamw", "adamw8bit"):
        optimizer = make_optimizer(parameters, OptimConfig(name=name))
        for p in parameters:
            p.grad = torch.ones_like(p)
        optimizer_step(optimizer, name, 0, 0)
        for p in parameters:
            kept = 0
            for key in ("exp_avg", "exp_avg_sq"):
                value = optimizer.state[p][key]
                kept += value.codes.nbytes + value.scale.nbytes if hasattr(value, "codes") else value.nbytes
            assert kept == moment_bytes(p.numel(), torch.float32, name), (name, p.shape)
    assert moment_bytes(64 * 128, torch.float32, "adamw8bit") == 2 * (8192 + 4 * 32)


@needs_torchao
def test_bfloat16_weights_follow_updates_below_their_spacing() -> None:
    """Weights of 1 are .0078 (above) and .0039 (below) from their neighbours; 100 of 1e-5 must move them 1e-3."""
    for name, moves in (("adamw", False), ("adamw8bit", True)):
        weight = nn.Parameter(torch.ones(128, 128, dtype=torch.bfloat16))
        optimizer = make_optimizer([weight], OptimConfig(name=name, learning_rate=1e-5))
        for update in range(100):
            weight.grad = torch.ones_like(weight)
            optimizer_step(optimizer, name, 0, update)
        shift = float((weight.detach().double() - 1).mean())
        if moves:  # standard error: sqrt(p (1 - p) / n) of a step of .0039, p = .26, is 1.3e-5
            assert shift == pytest.approx(-1e-3, abs=8e-5)
        else:
            assert shift == 0.0


@needs_torchao
def test_rounding_depends_on_seed_and_update_alone() -> None:
    def final(seed: int) -> torch.Tensor:
        weight = nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
        optimizer = make_optimizer([weight], LOW)
        for update in range(3):
            weight.grad = torch.ones_like(weight)
            optimizer_step(optimizer, LOW.name, seed, update)
            torch.rand(seed + 3)
        return weight.detach()

    state = torch.random.get_rng_state()
    first = final(1)
    torch.random.set_rng_state(state)
    torch.rand(99)
    assert torch.equal(first, final(1))
    assert not torch.equal(first, final(2))
    before = torch.random.get_rng_state()
    weight = nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
    weight.grad = torch.ones_like(weight)
    optimizer_step(make_optimizer([weight], LOW), LOW.name, 0, 0)
    assert torch.equal(before, torch.random.get_rng_state())  # the caller's generator is left alone


@pytest.mark.parametrize("name", ["adamw", pytest.param("adamw8bit", marks=needs_torchao)])
def test_learning_rate_reaches_the_step(name: str) -> None:
    weight = nn.Parameter(torch.zeros(64, 64))
    optimizer = make_optimizer([weight], OptimConfig(name=name, learning_rate=1.0))
    set_learning_rate(optimizer, 0.25)
    weight.grad = torch.ones_like(weight)
    optimizer_step(optimizer, name, 0, 0)
    torch.testing.assert_close(weight.detach(), torch.full((64, 64), -0.25))  # Adam's first step has the rate's size


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(UserError, match=r"adamw8bit needs torchao: pip install 'fspo\[8bit\]'"):
        make_optimizer([nn.Parameter(torch.zeros(2))], LOW)


@needs_torchao
def test_a_killed_run_goes_on_bit_by_bit(tmp_path: Path) -> None:
    """Three rollouts at once, and two with a third after resuming: weights and 8-bit moments are equal."""
    arguments = ("--optim.name", "adamw8bit", "--checkpoint_every", "1", "--model.dtype", "bfloat16")

    def train(run: str, rollouts: int, *more: str) -> Any:
        net = tiny_run.model(dtype=torch.bfloat16, vocabulary=256)  # embeddings of 8192 numbers have 8-bit moments
        trainer = tiny_run.trainer(tmp_path / run, *arguments, "--rollouts", str(rollouts), *more, net=net)
        trainer.train()
        return trainer

    whole = train("whole", 3)
    train("parts", 2)
    parts = train("parts", 3, "--resume", "true")
    low = 0
    for (name, a), (_, b) in zip(whole.raw.named_parameters(), parts.raw.named_parameters(), strict=True):
        assert torch.equal(a, b), name
        for key, value in whole.optimizer.state[a].items():
            other = parts.optimizer.state[b][key]
            if hasattr(value, "codes"):
                low += 1
                assert torch.equal(value.codes, other.codes)
                assert torch.equal(value.scale, other.scale)
            else:
                assert torch.equal(value, other)
    assert low >= 4


@needs_torchao
def test_a_large_parameter_is_stepped_compiled_on_a_cpu_with_the_same_result(monkeypatch):
    """float32 weights, so that no rounding draws noise; what is compiled leaves a trace in dynamo's counters."""
    counters = torch._dynamo.utils.counters
    found = {}
    for least in (2**30, 1):
        monkeypatch.setattr(optimizers, "COMPILED_FROM", least)
        counters.clear()
        weight = torch.nn.Parameter(torch.linspace(-1, 1, 8192).reshape(32, 256))
        optimizer = make_optimizer([weight], LOW)
        for update in range(2):
            weight.grad = torch.linspace(-3, 2, 8192).reshape(32, 256).sin()
            optimizer_step(optimizer, "adamw8bit", 0, update)
        found[least] = weight.detach().clone(), counters["stats"]["unique_graphs"]
    (eager, none), (compiled, some) = found.values()
    assert (none, some > 0) == (0, True)
    torch.testing.assert_close(compiled, eager, rtol=0, atol=1e-6)
