"""The custom loss, called as prime-rl and rLLM call one, against our objective; neither of them is installed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from fspo.base.errors import UserError
from fspo.integrations.custom_loss import prime_rl_loss, rllm_loss
from fspo.objective import ObjectiveConfig, objective
from fspo.rules import preset


@dataclass
class LossInputs:
    """The fields of prime-rl's class of this name: tensors (T,) of one response."""

    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    ref_logprobs: Tensor | None
    advantages: Tensor
    loss_mask: Tensor
    loss_weights: Tensor | None = None


def batch(seed: int = 0, spread: float = 0.1):
    g = torch.Generator().manual_seed(seed)
    new = -torch.rand(12, 9, generator=g)
    mask = torch.rand(12, 9, generator=g) > 0.3  # holes: what tools wrote
    mask[:, 0] = True
    return new, new - spread * torch.randn(12, 9, generator=g), mask, torch.randn(12, generator=g)


def sample(new, old, mask, advantage, **changes) -> LossInputs:
    fields = {"advantages": torch.where(mask, advantage, 0.0), "loss_weights": None} | changes
    return LossInputs(new, old, None, loss_mask=mask, **fields)


@pytest.mark.parametrize("name", ["fspo", "fspo-truncate", "fspo-cap", "rloo", "gspo", "grpo", "ctpo", "none"])
def test_the_sum_over_responses_is_the_objectives(name):
    """compute_loss of prime-rl: the samples' losses are added and divided by one number."""
    new, old, mask, A = batch()
    ours = new.clone().requires_grad_()
    total = sum(prime_rl_loss(sample(ours[i], old[i], mask[i], A[i]), rule=name).loss for i in range(12)) / 12
    total.backward()
    whole = new.clone().requires_grad_()
    loss = objective(whole, old, mask, A, preset(name).rule).loss
    loss.backward()
    assert total.item() == pytest.approx(loss.item(), rel=1e-5, abs=1e-7)
    assert whole.grad.abs().max() > 1e-4
    torch.testing.assert_close(ours.grad, whole.grad, rtol=1e-5, atol=1e-7)


def test_parts_change_the_rule_and_metrics_say_what_it_did():
    """S = .3 on one token, A > 0: outside fspo's .03, inside .5; the gradient is then -e^.3 A."""
    new, old, mask = torch.tensor([-1.0]), torch.tensor([-1.3]), torch.tensor([True])
    narrow = prime_rl_loss(sample(new, old, mask, 2.0))
    assert {k: v.item() for k, v in narrow.metrics.items()} == pytest.approx(
        {"fspo/clipped": 1.0, "fspo/band_acceptance": 0.0, "fspo/log_ratio": 0.3}
    )
    assert all(value.ndim == 0 for value in narrow.metrics.values())  # prime-rl stacks them
    leaf = new.clone().requires_grad_()
    wide = prime_rl_loss(sample(leaf, old, mask, 2.0), range_lo=0.5, range_hi=0.5)
    wide.loss.backward()
    assert wide.metrics["fspo/clipped"].item() == 0
    assert leaf.grad.item() == pytest.approx(-2 * torch.e**0.3, rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "options", "line"),
    [
        ({}, {"rule": "fspo-kl"}, "set drift=none"),
        ({}, {"rule": "fspo-auto"}, "take a preset with a fixed range"),
        ({}, {"rule": "fsop"}, "did you mean 'fspo'"),
        ({}, {"eps": 0.2}, "no 'eps': use rule, range_lo"),
        ({"advantages": torch.arange(9.0)}, {}, "advantages differ within a response"),
        ({"loss_weights": torch.full((9,), 0.5)}, {}, "loss_weights weigh tokens"),
    ],
)
def test_what_would_not_be_the_rule_is_refused(changes, options, line):
    new, old, _, A = batch(1)
    with pytest.raises(UserError, match=line) as caught:
        prime_rl_loss(sample(new[0], old[0], torch.ones(9, dtype=torch.bool), A[0], **changes), **options)
    assert "\n" not in str(caught.value)


def aggregate(terms, mask, mode=None, default="token-mean"):
    """rLLM's reducer, by its documentation."""
    terms, mask = (x if x.ndim == 2 else x[None] for x in (terms, mask))
    if (mode or default) == "token-mean":
        return (terms * mask).sum() / mask.sum()
    return ((terms * mask).sum(1) / mask.sum(1)).mean()


def context(seed=0, size=6, width=9, **params):
    g = torch.Generator().manual_seed(seed)
    new = -torch.rand(size, width, generator=g) - 0.1
    mask = (torch.arange(width) < torch.randint(1, width + 1, (size,), generator=g)[:, None]).float()
    advantages = torch.randn(size, 1, generator=g).expand(size, width) * mask
    old = new - 0.1 * torch.randn(size, width, generator=g)
    return SimpleNamespace(
        logp_curr=new.requires_grad_(), logp_old=old, advantages=advantages, action_mask=mask, obs_mask=1 - mask,
        logp_ref=None, logp_rollout=None, params=params, aggregate=aggregate,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "default", "ours"),
    [
        ("fspo", "token-mean", "response"),
        ("gspo", "token-mean", "response"),
        ("grpo", "token-mean", "token"),
        ("grpo", "seq-mean-token-mean", "sequence"),
    ],
)
def test_rllms_loss_is_our_objective(name, default, ours):
    ctx = context(rule=name)
    ctx.aggregate = partial(aggregate, default=default)
    loss, metrics = rllm_loss(ctx)
    loss.backward()
    new = ctx.logp_curr.detach().clone().requires_grad_()
    expected = objective(
        new, ctx.logp_old, ctx.action_mask > 0, ctx.advantages[:, 0], preset(name).rule, ObjectiveConfig(ours)
    )
    expected.loss.backward()
    assert loss.item() == pytest.approx(expected.loss.item(), rel=1e-5)
    torch.testing.assert_close(ctx.logp_curr.grad, new.grad, rtol=1e-5, atol=1e-7)
    assert new.grad is not None
    assert new.grad.abs().max() > 1e-4
    assert 0 <= metrics["fspo/band_acceptance"] < 1  # some are cut


OF_RLLM = {"eps_clip": 0.2, "eps_clip_high": None, "kl_beta": 0.0, "clip_ratio_c": 20.0}
"""What rLLM's resolve_loss and its verl backend add to the parameters of every custom loss."""


def test_tinker_calls_for_one_response_at_a_time():
    """The mean over responses of rLLM's managed path with agg_mode="seq-mean-token-mean" is our objective."""
    ctx = context(rule="fspo", **OF_RLLM)
    total = 0.0
    for i in range(6):
        fields = ("logp_curr", "logp_old", "advantages", "action_mask")
        alone = SimpleNamespace(**vars(ctx) | {field: getattr(ctx, field)[i] for field in fields})
        total += rllm_loss(alone)[0].item() / 6
    mask = ctx.action_mask > 0
    expected = objective(ctx.logp_curr, ctx.logp_old, mask, ctx.advantages[:, 0], preset("fspo").rule).loss
    assert total == pytest.approx(expected.item(), rel=1e-5)


def test_a_response_without_a_token_adds_nothing():
    ctx = context(size=1)
    ctx.action_mask = torch.zeros(1, 9)
    ctx.aggregate = lambda terms, mask, mode: (terms * mask).sum()
    loss, metrics = rllm_loss(ctx)
    assert (loss.item(), metrics) == (0.0, {})


@pytest.mark.parametrize(
    ("params", "line"),
    [
        ({"range": 0.1}, "loss_params have no 'range'"),
        ({"rule": "fspo-kl"}, "rLLM shows a loss one microbatch: set drift=none"),
        ({"kl_beta": 0.1}, "kl_beta has no effect on a custom loss"),
    ],
)
def test_what_rllm_cannot_do_is_refused(params, line):
    with pytest.raises(UserError, match=line):
        rllm_loss(context(**OF_RLLM | params))
