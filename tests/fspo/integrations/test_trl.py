"""The loss of FSPOTrainer, inside the real TRL: equal to TRL's where the band is open, and to `objective` where not."""

import pytest
import torch
from trl import GRPOConfig, GRPOTrainer
from trl_batch import assert_same, make_trainer, our_loss, rows, trl_inputs, trl_loss
from trl_runs import MAX_LENGTH

from fspo.base.errors import UserError
from fspo.integrations.trl import FSPOConfig, FSPOTrainer, observe
from fspo.rules import preset

OURS = {"kind": (FSPOTrainer, FSPOConfig), "steps_per_generation": 4}


def test_rule_none_on_policy_is_trls_policy_gradient(tmp_path):
    data = rows(2)  # w = 1: the sum over tokens, which dr_grpo divides by the limit
    _, ours, _ = trl_loss(tmp_path / "a", data, None, rule="none", **OURS)
    _, theirs, _ = trl_loss(tmp_path / "b", data, None, loss_type="dr_grpo")
    assert_same(ours, theirs, scale=1 / MAX_LENGTH)


@pytest.mark.parametrize("beta", [0.0, 0.7])
@pytest.mark.parametrize(
    ("name", "outside"), [("fspo", "drop"), ("fspo", "truncate"), ("fspo", "cap"), ("gspo", "drop"), ("grpo", "drop")]
)
def test_with_a_rule_on_loss_and_gradient_are_ours(tmp_path, name, outside, beta):
    data = rows(3)
    holes = data[4] if name == "fspo" else None
    found, spread = preset(name, outside=outside), 2e-3 if name == "gspo" else 0.1
    out, expected, old, ref = our_loss(data, found.rule, found.aggregation, spread, holes=holes, kl_coef=beta)
    options = OURS | {"rule": name, "outside": outside, "beta": beta}
    loss, gradients, metrics = trl_loss(tmp_path, data, old, holes=holes, ref=ref, **options)
    assert loss == pytest.approx(out.loss.item(), rel=1e-5, abs=1e-7)
    assert_same(gradients, expected)
    cut = int((out.records.clipped_low + out.records.clipped_high).sum())
    assert 0 < cut < int(out.records.count.sum())
    assert metrics["clip_ratio/region_mean"] == pytest.approx(cut / int(out.records.count.sum()))
    assert metrics["fspo/band_acceptance"] == pytest.approx(float(out.records.band_accept.float().mean()))
    kl = float(out.records.kl.sum()) / int(out.records.length.sum())
    assert metrics.get("kl", 0.0) == pytest.approx(kl, rel=1e-4)


@pytest.mark.parametrize("aggregation", ["response", "sequence", "token", "constant"])
def test_microbatches_add_up_to_the_whole_batch(tmp_path, aggregation):
    """Also with a response that TRL has masked out, which counts in no denominator."""
    data = rows(5)
    _, _, old, _ = our_loss(data, preset("none").rule, "response", 0.1)
    trainer = make_trainer(tmp_path, len(data[0]), aggregation=aggregation, rule="grpo", **OURS)
    whole = trl_inputs(data, old)
    whole["completion_mask"][5] = 0
    expected = trainer.compute_loss(trainer.model, whole)
    expected.backward()
    theirs = {n: p.grad.clone() for n, p in trainer.model.named_parameters()}
    trainer.model.zero_grad()
    # a generation of two such updates, each of 4 microbatches
    kept, tokens = 7, int(whole["completion_mask"].sum())
    total = {"response": kept, "sequence": kept, "token": tokens, "constant": kept * MAX_LENGTH}[aggregation]
    trainer.args.steps_per_generation = 8
    trainer.current_gradient_accumulation_steps = 4
    losses = []
    for i in range(4):
        part = {name: x[2 * i : 2 * i + 2] for name, x in whole.items()}
        part["fspo_denominator"] = torch.tensor(2 * total)
        losses.append(trainer.compute_loss(trainer.model, part))
        losses[-1].backward()
    assert sum(x.item() for x in losses) == pytest.approx(expected.item(), rel=1e-5, abs=1e-7)
    assert_same({n: p.grad for n, p in trainer.model.named_parameters()}, theirs)


def test_other_arguments_and_options_changed_after_the_checks_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"pass args=FSPOConfig\(\.\.\.\)"):
        make_trainer(tmp_path, 8, kind=(FSPOTrainer, GRPOConfig))
    args = FSPOConfig(str(tmp_path), use_cpu=True, bf16=False, steps_per_generation=4)
    args.epsilon = 0.1
    with pytest.raises(UserError, match=r"epsilon=0\.1"):
        FSPOTrainer(model="never loaded", args=args)


def test_a_method_of_trl_that_is_gone_is_named(tmp_path, monkeypatch):
    monkeypatch.delattr(GRPOTrainer, "_calculate_rewards")
    with pytest.raises(UserError, match=r"has no GRPOTrainer\._calculate_rewards any more.*pip install 'trl==1\.16"):
        make_trainer(tmp_path, 8, **OURS)
    with pytest.warns(UserWarning, match=r"GRPOTrainer has no _calculate_rewards any more"):
        observe(GRPOTrainer)
