"""The check of TRL's release: it passes on the installed TRL, names what another one changed, and leaves no trace."""

import inspect
import textwrap

import pytest
import torch
from trl import GRPOTrainer
from trl.trainer import grpo_trainer
from trl_batch import make_trainer

from fspo.base.errors import UserError
from fspo.integrations.trl import FSPOConfig, FSPOTrainer, observe
from fspo.integrations.trl_check import check_release

OURS = {"kind": (FSPOTrainer, FSPOConfig), "steps_per_generation": 4, "gradient_accumulation_steps": 2}


def simulate(monkeypatch, method, old, new):
    """Give TRL's class the method that another release would have: its source with ``old`` replaced."""
    source = textwrap.dedent(inspect.getsource(getattr(GRPOTrainer, method)))
    assert old in source
    scope = dict(vars(grpo_trainer))
    exec(source.replace(old, new), scope)
    monkeypatch.setattr(GRPOTrainer, method, scope[method])


SIGN = "-torch.min(per_token_loss1, per_token_loss2)"
CHANGES = {
    "sign": ("_compute_loss", SIGN, SIGN[1:], r"_compute_loss changed \(with an open band on each token"),
    "normaliser": (
        "_compute_loss",
        'normalizer * self.current_gradient_accumulation_steps / self.args.steps_per_generation',
        "mask.sum()",
        r"_compute_loss changed \(with an open band on each token",
    ),
    "accumulation": (
        "_compute_loss",
        'loss = ((per_token_loss * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()',
        "loss = ((per_token_loss * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).sum()",
        r"_compute_loss changed \(with an open band on each sequence",
    ),
    "level": (
        "_compute_loss",
        "(log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)",
        "(log_ratio * mask).sum(-1)",
        r"_compute_loss changed \(with an open band on each sequence",
    ),
    "log-probs": (
        "_compute_loss",
        "per_token_logps, entropies, aux_loss = self",
        "per_token_logps, entropies, aux_loss, more = self",
        "_compute_loss failed on the batch of the check .ValueError: not enough values",
    ),
    "argument": (
        "_get_per_token_logps_and_entropies",
        "compute_aux_loss=False",
        "with_aux_loss=False",
        "_compute_loss failed on the batch of the check .TypeError: .*compute_aux_loss",
    ),
    "entry": (
        "compute_loss",
        "self._compute_loss(model, inputs)",
        "GRPOTrainer._compute_loss(self, model, inputs)",
        "compute_loss does not call _compute_loss",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_method_is_named_in_one_line(tmp_path, monkeypatch, change):
    method, old, new, line = CHANGES[change]
    simulate(monkeypatch, method, old, new)
    with pytest.raises(UserError, match=f"does not fit TRL .*GRPOTrainer.*{line}.*pip install 'trl==1.16") as caught:
        make_trainer(tmp_path, 8, **OURS)
    assert "\n" not in str(caught.value)


def test_a_method_that_is_gone_is_named(tmp_path, monkeypatch):
    monkeypatch.delattr(GRPOTrainer, "_calculate_rewards")
    with pytest.raises(UserError, match=r"TRL has no GRPOTrainer\._calculate_rewards any more"):
        make_trainer(tmp_path, 8, **OURS)


def test_observe_says_which_method_is_gone(monkeypatch):
    monkeypatch.delattr(GRPOTrainer, "_compute_loss")
    with pytest.warns(UserWarning, match=r"TRL has no GRPOTrainer\._compute_loss any more"):
        observe(GRPOTrainer)


def test_the_check_leaves_no_trace(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, 8, rule="fspo", **OURS)
    before, metrics = dict(vars(trainer)), {name: dict(found) for name, found in trainer._metrics.items()}
    state, training = torch.get_rng_state(), [module.training for module in trainer.model.modules()]
    monkeypatch.setattr(type(trainer.model), "forward", None)  # no model runs
    check_release(trainer)
    assert vars(trainer) == before
    assert {name: dict(found) for name, found in trainer._metrics.items()} == metrics
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in trainer.model.modules()] == training
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
