"""Corrections of the sampler's mismatch inside TRL: whole runs that train what TRL's own corrections train."""

import numpy as np
import pytest
import torch
from trl_batch import MAX_LENGTH
from trl_runs import ROWS, Users, engine, train

from fspo.base.errors import UserError
from fspo.gradlog import read_log
from fspo.integrations.trl import FSPOConfig, FSPOTrainer, observe
from fspo.models.load import build_embedded_model

SGD = {"optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 1e9, "max_steps": 4, "disable_dropout": True}
CLIP = {"epsilon": 0.01, "epsilon_high": 0.02, "loss_type": "dapo", "learning_rate": 0.3}
OUR_CLIP = {"rule": "grpo", "range_lo": 0.01, "range_hi": 0.02, "aggregation": "token", "learning_rate": 0.3}
ONE_UPDATE = {"steps_per_generation": 2, "num_iterations": 1}
"""One update a generation: FSPOTrainer must compute the old log-probs that the correction needs."""
MODES = {  # TRL's mode, its upper and its lower end: TRL's options and ours
    "token_truncate": (1.1, None, CLIP, OUR_CLIP | {"correction": "tis", "correction_range_hi": 0.1}),
    "sequence_mask": (
        *(1.2, None, {"loss_type": "dr_grpo", "learning_rate": 0.3 * MAX_LENGTH, **ONE_UPDATE}),
        {"rule": "none", "aggregation": "response", "learning_rate": 0.3, **ONE_UPDATE}
        | {"correction": "mis", "correction_range_lo": 1.0, "correction_range_hi": 0.2},
    ),
}


def weights(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


@pytest.mark.parametrize("mode", MODES)
def test_a_run_with_our_correction_ends_at_the_weights_of_trls(tmp_path, mode):
    high, low, theirs, ours = MODES[mode]
    with engine() as options:
        bounds = {"vllm_importance_sampling_clip_max": high, "vllm_importance_sampling_clip_min": low}
        trl = train(
            tmp_path / "trl", observe(Users), vllm_importance_sampling_mode=mode, **bounds, **theirs, **SGD, **options
        )
        fspo = train(tmp_path / "fspo", FSPOTrainer, FSPOConfig, **ours, **SGD, **options)
    start = torch.cat([p.detach().flatten() for p in build_embedded_model(0).parameters()])
    moved = (weights(trl) - start).norm()
    assert moved > 1e-2
    assert (weights(fspo) - weights(trl)).norm() < 1e-4 * moved
    logs = [read_log(tmp_path / name) for name in ("trl", "fspo")]
    factors = np.concatenate([part["correction_weight"] for part in trl.kept])
    active = logs[0].column("advantage") != 0  # without an advantage there is no gradient, and we correct nothing
    for log in logs:
        np.testing.assert_allclose(log.column("correction_weight")[active], factors[active], rtol=1e-4, atol=1e-5)
        expected = np.concatenate([part["engine_log_ratio"] for part in trl.kept])
        np.testing.assert_allclose(log.column("behaviour_log_ratio"), expected, rtol=1e-4, atol=1e-4)
    assert np.mean(np.abs(factors[active] - 1) > 0.05) > 0.01
    cut = [entry["correction/cut"] for entry in fspo.state.log_history if "correction/cut" in entry]
    assert 0 < np.mean(cut) < 1


def test_the_correction_is_centred_on_its_generation_batch(tmp_path):
    with engine() as options:
        engine_sqrt = {"correction": "engine-sqrt", "correction_range_lo": 0.05, "correction_range_hi": 0.05}
        run = train(tmp_path, FSPOTrainer, FSPOConfig, **OUR_CLIP, **engine_sqrt, **SGD, **options)
    log = read_log(tmp_path)
    weight, live = (
        log.column("correction_weight").reshape(-1, 2, ROWS),
        log.column("advantage").reshape(-1, 2, ROWS) != 0,
    )
    means = [[w[a].mean() for w, a in zip(*step, strict=True)] for step in zip(weight, live, strict=True)]
    reported = [entry["correction/mean_weight"] for entry in run.state.log_history if "correction/cut" in entry]
    assert reported == pytest.approx(np.mean(means, 1), rel=1e-6)  # of each update's two microbatches
    assert np.mean(weight[live]) != pytest.approx(weight.mean(), rel=1e-3)
    first, rollout, n = log.column("times_used") == 0, log.column("rollout"), log.column("length")
    E, m = log.column("engine_log_ratio"), log.column("correction_drift")
    assert first.sum() == 4 * ROWS
    k3, tokens = log.column("engine_k3_sum"), n
    np.testing.assert_allclose(m, -k3[first].sum() / tokens[first].sum(), rtol=1e-6)
    assert m.max() < -1e-4
    assert set(rollout) == {0}
    side = np.where(m * n + 0.05 * np.sqrt(n) < E, 1, np.where(m * n - 0.05 * np.sqrt(n) > E, -1, 0))
    assert list(log.column("correction_side")) == list(np.where(log.column("advantage") == 0, 0, side))
    assert set(side) == {-1, 0, 1}
    assert log.metadata["correction"]["name"] == "engine-sqrt"


def test_a_correction_without_the_samplers_log_probs_is_refused(tmp_path):
    with pytest.raises(UserError, match="correction 'tis' needs the sampler's log-probs: set use_vllm=True"):
        train(tmp_path, FSPOTrainer, FSPOConfig, correction="tis")


def test_factors_without_a_rule_of_ours_are_logged_as_trls(tmp_path):
    """TRL raises small weights to clip_min, which no rule of ours does."""
    with engine() as options:
        options |= {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_min": 0.95}
        with pytest.warns(UserWarning, match="no correction does what 'token_truncate' does"):
            trl = train(tmp_path, observe(Users), **options, **SGD | {"max_steps": 1})
    log = read_log(tmp_path)
    factors = np.concatenate([part["correction_weight"] for part in trl.kept])
    np.testing.assert_allclose(log.column("correction_weight"), factors, rtol=1e-5)
    assert "correction_lo" not in log
    assert "correction" not in log.metadata
