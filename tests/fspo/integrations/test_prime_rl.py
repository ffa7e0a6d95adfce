"""prime-rl's custom loss, called as its documentation says, against the objective of a whole batch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fspo.base.errors import UserError
from fspo.integrations.prime_rl import fspo_loss
from fspo.objective import objective
from fspo.rules import preset


@dataclass
class LossInputs:
    """The fields that prime-rl documents, of one sample: tensors (T,)."""

    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    teacher_logprobs: Tensor | None
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
    total = sum(fspo_loss(sample(ours[i], old[i], mask[i], A[i]), rule=name).loss for i in range(12)) / 12
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
    narrow = fspo_loss(sample(new, old, mask, 2.0))
    assert {k: v.item() for k, v in narrow.metrics.items()} == pytest.approx(
        {"fspo/clipped": 1.0, "fspo/band_acceptance": 0.0, "fspo/log_ratio": 0.3}
    )
    assert all(value.ndim == 0 for value in narrow.metrics.values())  # prime-rl stacks them
    leaf = new.clone().requires_grad_()
    wide = fspo_loss(sample(leaf, old, mask, 2.0), range_lo=0.5, range_hi=0.5)
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
        fspo_loss(sample(new[0], old[0], torch.ones(9, dtype=torch.bool), A[0], **changes), **options)
    assert "\n" not in str(caught.value)
