"""What holds for every rule and batch: padding, order, microbatches, an open band, exact zeros, huge ratios, dtypes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_run import RULES, SEQUENCE, STATS, run

from fspo.objective import ObjectiveConfig, denominator_for, log_ratios, objective
from fspo.objective.loss import apply_rule
from fspo.rules import Rule


@st.composite
def batches(draw):
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    B, T = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    mask = rng.random((B, T)) < draw(st.sampled_from([0.5, 0.8, 1.0]))
    return rng.normal(0, draw(st.sampled_from([1e-3, 0.05, 0.5])), (B, T)), rng.normal(size=B), mask


rules = st.sampled_from(sorted(RULES)).map(RULES.__getitem__)
configs = st.sampled_from(
    [ObjectiveConfig("response"), SEQUENCE, ObjectiveConfig("token"), ObjectiveConfig("constant", constant_length=5)]
)


@settings(max_examples=80)
@given(batch=batches(), rule=rules, config=configs)
def test_a_padded_batch_equals_the_unpadded_one(batch, rule, config):
    s, A, mask = batch
    J, grad, records = run(rule, s, A, config, mask, stats=STATS)
    # columns before and after, and one whole row, of rubbish
    wide = np.pad(s, ((0, 1), (2, 3)), constant_values=np.nan)
    J2, grad2, records2 = run(rule, wide, np.append(A, 5.0), config, np.pad(mask, ((0, 1), (2, 3))), stats=STATS)
    assert pytest.approx(J, rel=1e-12, abs=1e-15) == J2
    np.testing.assert_allclose(grad2[:-1, 2:-3], grad, rtol=1e-12, atol=1e-15)
    assert not grad2[-1].any()
    assert not grad2[:, :2].any()
    for name, x in records.to_numpy().items():
        np.testing.assert_allclose(records2.to_numpy()[name][:-1], x, rtol=1e-12, err_msg=name)


@settings(max_examples=40)
@given(batch=batches(), rule=rules, config=configs, cut=st.integers(0, 6))
def test_microbatches_add_up_under_the_global_denominator(batch, rule, config, cut):
    s, A, mask = batch
    whole, grad, _ = run(rule, s, A, config, mask, stats=STATS)
    parts = [slice(0, min(cut, len(A))), slice(min(cut, len(A)), len(A))]
    parts = [p for p in parts if p.start < p.stop]
    total = sum(denominator_for(config, torch.as_tensor(mask[p])) for p in parts)
    results = [run(rule, s[p], A[p], config, mask[p], stats=STATS, denominator=total) for p in parts]
    assert sum(r[0] for r in results) == pytest.approx(whole, rel=1e-12, abs=1e-15)
    np.testing.assert_allclose(np.concatenate([r[1] for r in results]), grad, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", sorted(RULES))
@pytest.mark.parametrize("size", [1e4, -1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_finite_for_huge_ratios_and_very_long_responses(name, size, dtype):
    T, rule = 131_072, RULES[name]
    for A in (1.0, -1.0):
        new = torch.full((1, T), -1.0, dtype=dtype, requires_grad=True)
        old = new.detach().clone()
        old[0, 0] -= size  # S = size, within the dtype's resolution
        mask = torch.ones(1, T, dtype=torch.bool)
        out = objective(new, old, mask, torch.tensor([A]), rule, m=rule.centre(STATS))
        out.loss.backward()
        assert torch.isfinite(out.loss)
        assert torch.isfinite(new.grad).all()
        assert new.grad.dtype == dtype
        assert float(out.records.log_ratio) == pytest.approx(size, rel=0.01)


def test_nothing_leaks_from_under_the_mask():
    bad = torch.tensor([[-1.0, math.nan, -math.inf, math.inf]], requires_grad=True)
    mask = torch.tensor([[True, False, False, False]])
    s = log_ratios(bad, torch.tensor([[-1.5, math.inf, 0.0, math.nan]]), mask)
    assert s.tolist() == [[0.5, 0.0, 0.0, 0.0]]
    (s.exp().sum()).backward()
    assert bad.grad.tolist() == [[pytest.approx(math.exp(0.5)), 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("A", [-1, 1])
def test_a_row_without_a_token_is_not_cut(A):
    """Its S is 0, which lies outside of a band about -5 A nats a token; its A must count as 0."""
    mask = torch.tensor([[True, True], [False, False]])
    applied = apply_rule(
        Rule("sqrt", 0.1, 0.1, drift="kl"), torch.zeros(2, 2), mask, torch.full((2,), float(A)), -5 * A
    )
    assert applied.side.tolist() == [A, 0]


def test_gspo_is_precise_on_bfloat16_log_probs():
    """exp(S/L) differs from 1 by 1e-4, which bfloat16 (resolution 4e-3 at 1) cannot hold: float64 from the same
    inputs must give the same number, and the gradient only its own rounding."""
    g = torch.Generator().manual_seed(0)
    L = 4096
    old = (-torch.rand(3, L, generator=g)).to(torch.bfloat16)
    new = old.clone()
    new[:, ::500] *= 1.05
    new.requires_grad_()
    mask, A = torch.ones(3, L, dtype=torch.bool), torch.tensor([1.0, -0.5, 2.0])
    out = objective(new, old, mask, A, Rule("none", weight="geometric"))
    exact = new.detach().double().requires_grad_()
    reference = -(((exact - old.double()).mean(1)).exp() * A).mean()
    reference.backward()
    assert out.loss.item() == pytest.approx(reference.item(), abs=2e-7)
    assert abs(float(out.records.weight[0]) - 1) > 1e-5  # something to resolve
    out.loss.backward()
    torch.testing.assert_close(new.grad.double(), exact.grad, rtol=2**-8, atol=0)
