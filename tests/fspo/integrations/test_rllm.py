"""rLLM's custom loss on its documented LossContext, against our objective; rLLM itself is not installed."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from fspo.base.errors import UserError
from fspo.integrations.rllm import fspo_loss
from fspo.objective import ObjectiveConfig, objective
from fspo.rules import preset


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
def test_the_loss_is_our_objective(name, default, ours):
    ctx = context(rule=name)
    ctx.aggregate = partial(aggregate, default=default)
    loss, metrics = fspo_loss(ctx)
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
    assert 0 <= metrics["fspo/in_band"] < 1  # some are cut


def test_one_response_alone_is_a_row_of_the_batch():
    ctx = context(size=1, width=5)
    alone = SimpleNamespace(**vars(ctx))
    for field in ("logp_curr", "logp_old", "advantages", "action_mask"):
        setattr(alone, field, getattr(ctx, field)[0])
    assert fspo_loss(alone)[0].item() == pytest.approx(fspo_loss(ctx)[0].item())


def test_what_cannot_work_is_refused():
    with pytest.raises(UserError, match="loss_params have no 'range'"):
        fspo_loss(context(range=0.1))
    with pytest.raises(UserError, match="rLLM shows a loss one microbatch: set drift=none"):
        fspo_loss(context(rule="fspo-kl"))
