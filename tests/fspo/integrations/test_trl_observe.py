"""`observe` inside the real TRL: the same weights as without it, and a log of what TRL did."""

import re

import numpy as np
import pytest
import torch
import trl_runs
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl_runs import ROWS, UPDATES, Users, engine, made, train

from analysis.__main__ import main as analysis
from fspo.base.errors import UserError
from fspo.gradlog import read_log
from fspo.integrations.trl import observe
from fspo.integrations.trl_rules import clip_of
from fspo.models.load import build_embedded_model

CLIP = {"epsilon": 0.01, "epsilon_high": 0.02}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("observe")
    with engine() as options:
        options |= {"off_policy_mask_threshold": 0.5, "vllm_importance_sampling_clip_max": 1.5} | CLIP
        plain = train(folder / "plain", Users, **options)
        state = torch.get_rng_state()
        with pytest.warns(UserWarning, match="off_policy_mask_threshold masks further tokens"):
            watched = train(folder / "watched", observe(Users, score_every=1), **options)
    return plain, state, watched, torch.get_rng_state(), folder / "watched"


def test_the_weights_are_bit_for_bit_those_of_the_run_without_it(runs):
    plain, state, watched, watched_state, _ = runs
    start = dict(build_embedded_model(0).named_parameters())
    for (name, theirs), ours in zip(plain.model.named_parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(theirs, ours), name
        assert not torch.equal(theirs, start[name]), name
    assert torch.equal(state, watched_state)
    for theirs, ours in zip(plain.state.log_history, watched.state.log_history, strict=True):
        timed = {name for name in theirs if "time" in name or "second" in name or "runtime" in name}
        assert {n: v for n, v in ours.items() if n not in timed} == {n: v for n, v in theirs.items() if n not in timed}


def test_every_column_is_what_trls_loss_saw(runs):
    watched, log = runs[2], read_log(runs[4])
    seen = {name: np.concatenate([part[name] for part in watched.kept]) for name in watched.kept[0]}
    assert len(log) == UPDATES * 2 * ROWS
    for name, expected in seen.items():
        np.testing.assert_allclose(log.column(name), expected, rtol=1e-5, atol=1e-5, err_msg=name)
    step = log.column("step")
    assert np.abs(log.column("log_ratio")[step % 4 > 0]).max() > 0.02
    assert list(log.column("rollout")) == list(step // 4)
    assert list(log.column("updates_since_rollout")) == list(step % 4)
    assert list(log.column("times_used")) == list(step % 4 // 2)
    assert list(log.column("policy_version")) == list(step)
    assert list(log.column("behaviour_version")) == list(step // 4 * 4)
    assert watched.vllm_generation.syncs == 2
    assert set(log.column("step")[log.column("score_status") == "ok"]) == {1, 5}
    assert not log.column("staleness_log_ratio").any()
    correction = log.metadata["correction"]
    assert (correction["shape"], correction["outside"], correction["on"]) == ("fixed", "mask", "behaviour")
    cut = log.column("correction_side") == 1
    assert 0 < cut.mean() < 1
    assert set(log.column("correction_weight")[cut]) == {0}
    np.testing.assert_allclose(log.column("correction_hi"), np.log(1.5), rtol=1e-6)


def test_the_rule_is_trls_clip(runs):
    """The shares of clipped tokens that TRL reports, microbatch by microbatch, follow from the logged multipliers."""
    watched, log = runs[2], read_log(runs[4])
    assert (log.rule.shape, log.rule.range_lo, log.rule.range_hi, log.rule.label) == ("token", 0.01, 0.02, "trl-dapo")
    cut = (1 - log.column("multiplier")) * log.column("length")
    for name, sign in (("low", -1), ("high", 1)):
        per_microbatch = np.where(np.sign(log.column("advantage")) == sign, cut, 0).reshape(-1, ROWS).sum(1)
        share = per_microbatch / log.column("length").reshape(-1, ROWS).sum(1)
        reported = [entry[f"clip_ratio/{name}_mean"] for entry in watched.state.log_history[:UPDATES]]
        np.testing.assert_allclose(share.reshape(-1, 2).mean(1), reported, atol=1e-6)
        assert max(reported) > 0.01


@pytest.mark.parametrize(
    "options",
    [{"loss_type": "sapo"}, {"loss_type": "vespo"}, {"loss_type": "cispo", "epsilon_high": 0.9}, {"delta": 1.1}],
)
def test_a_clip_that_no_rule_of_ours_does_has_no_rule(tmp_path, options):
    assert clip_of(GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, **options)) is None


def test_without_a_rule_the_log_still_has_the_ratios(tmp_path):
    with pytest.warns(UserWarning, match="no clip rule does what loss_type='sapo' does"):
        train(tmp_path, observe(GRPOTrainer), loss_type="sapo", max_steps=2)
    log = read_log(tmp_path)
    assert set(log.column("rule")) == {"trl-sapo"}
    assert "side" not in log
    assert "engine_log_ratio" not in log  # TRL's own generation gives no log-probs
    assert np.abs(log.column("log_ratio")[log.column("step") == 1]).max() > 0.01
    assert analysis([str(tmp_path)]) == 0


def test_trls_rloo_is_observed_as_well(tmp_path, monkeypatch, capsys):
    """The weights stay the same, and TRL's shares of clipped responses follow from the log, update by update."""
    monkeypatch.setattr("trl.trainer.rloo_trainer.create_model_from_path", lambda *_, **__: build_embedded_model(1))
    options = {"max_completion_length": 24, "max_steps": UPDATES, "epsilon": 0.02, "epsilon_high": 0.05}
    options |= {"steps_per_generation": 4, "num_iterations": 2, "logging_steps": 1, "disable_dropout": True}
    options |= {"per_device_train_batch_size": ROWS}
    kinds = (RLOOTrainer, observe(RLOOTrainer))
    plain, watched = trainers = [made(tmp_path / kind.__name__, kind, RLOOConfig, **options) for kind in kinds]
    for trainer in trainers:
        torch.manual_seed(0)
        trainer.train()
    assert all(map(torch.equal, plain.model.parameters(), watched.model.parameters()))
    assert f"next: fspo doctor {tmp_path / 'ObservedRLOOTrainer'}" in capsys.readouterr().out
    log = read_log(tmp_path / "ObservedRLOOTrainer")
    assert (log.rule.shape, log.rule.range_lo, log.rule.range_hi, log.rule.label) == ("fixed", 0.02, 0.05, "trl-rloo")
    S, A = log.column("log_ratio"), log.column("advantage")
    assert np.abs(S[log.column("updates_since_rollout") == 0]).max() < 1e-5
    prompt, reward = log.column("prompt_id"), log.column("reward")
    others = (np.bincount(prompt, reward) / np.bincount(prompt))[prompt]  # each prompt has four responses
    np.testing.assert_allclose(A, 4 / 3 * (reward - others), atol=1e-3)  # less the KL to the reference, as A is
    for name, cut in (("low", (np.log(0.98) > S) & (A < 0)), ("high", (np.log(1.05) < S) & (A > 0))):
        reported = [entry[f"clip_ratio/{name}_mean"] for entry in plain.state.log_history[:UPDATES]]
        np.testing.assert_allclose(cut.reshape(UPDATES, -1).mean(1), reported, atol=1e-6)
        assert max(reported) > 0.1


def test_another_class_and_another_stop_are_refused_and_one_update_a_rollout_is_told(tmp_path):
    with pytest.warns(UserWarning, match="S is 0 in every row and no rule clips; set steps_per_generation above"):
        made(tmp_path, observe(GRPOTrainer), GRPOConfig, per_device_train_batch_size=ROWS)
    with pytest.raises(UserError, match=r"observe takes trl\.GRPOTrainer, trl\.RLOOTrainer or a subclass"):
        observe(Dataset)
    with pytest.raises(UserError, match=r"did you mean 'critical'\? choose from critical, warning$"):
        observe(GRPOTrainer, stop_on="criticl")


@pytest.mark.parametrize(
    ("name", "reward", "step", "reason"),
    [
        ("critical", 0.0, 9, "advantages_zero: every .*; fix: "),  # two rollouts of 4: the doctor wants 50 rows
        ("warning", 0.0, 9, "advantages_zero: every"),
        (lambda run: f"{len(read_log(run))} rows", 1.0, 5, "64 rows"),
        (lambda _: None, 1.0, 12, None),
    ],
)
def test_training_ends_with_a_checkpoint_where_stop_on_has_a_reason(
    tmp_path, monkeypatch, recwarn, name, reward, step, reason
):
    digits = trl_runs.digits
    monkeypatch.setattr(trl_runs, "digits", lambda **given: [reward * x for x in digits(**given)])
    run = train(tmp_path / "out", observe(GRPOTrainer, stop_on=name), max_steps=12)
    assert run.state.global_step == step
    told = [str(one.message) for one in recwarn if "training ends after" in str(one.message)]
    assert [path.name for path in (tmp_path / "out").glob("checkpoint-*")] == [f"checkpoint-{step}"] * len(told)
    assert bool(told) == (reason is not None)
    if reason is not None:
        assert (tmp_path / "out" / f"checkpoint-{step}" / "trainer_state.json").is_file()
        assert re.match(f"training ends after step {step}: {reason}", told[0])
