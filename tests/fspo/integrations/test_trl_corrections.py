"""TRL's corrections of vLLM's mismatch inside FSPOTrainer: whole runs that train what TRL's own trainer trains."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from trl_runs import MAX_LENGTH, Users, engine, train

from fspo.gradlog import read_log
from fspo.integrations.trl import FSPOConfig, FSPOTrainer, observe
from fspo.models.load import build_embedded_model

SGD = {"optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 1e9, "max_steps": 4, "disable_dropout": True}
CLIP = {"epsilon": 0.01, "epsilon_high": 0.02, "loss_type": "dapo", "learning_rate": 0.3}
OUR_CLIP = {"rule": "grpo", "range_lo": 0.01, "range_hi": 0.02, "aggregation": "token", "learning_rate": 0.3}
ONE_UPDATE = {"steps_per_generation": 2, "num_iterations": 1}
"""One update a generation: S is 0, and the correction alone weighs responses."""
MODES = {  # TRL's mode, its upper and its lower end, the clip: TRL's options and ours
    "token_truncate": (1.1, None, CLIP, OUR_CLIP),
    "token_mask": (1.1, 0.9, CLIP, OUR_CLIP),
    "sequence_truncate": (1.2, 0.9, CLIP, OUR_CLIP),  # no rule of ours raises small weights to clip_min
    "sequence_mask": (
        *(1.2, None, {"loss_type": "dr_grpo", "learning_rate": 0.3 * MAX_LENGTH, **ONE_UPDATE}),
        {"rule": "none", "aggregation": "response", "learning_rate": 0.3, **ONE_UPDATE},
    ),
}


def weights(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


@pytest.mark.parametrize("mode", MODES)
def test_a_run_with_our_loss_and_trls_correction_ends_at_the_weights_of_trls(tmp_path, mode):
    high, low, theirs, ours = MODES[mode]
    with engine() as options:
        options |= {"vllm_importance_sampling_mode": mode, "vllm_importance_sampling_correction": True, **SGD}
        options |= {"vllm_importance_sampling_clip_max": high, "vllm_importance_sampling_clip_min": low}
        told = pytest.warns(UserWarning, match="no correction does what 'sequence_truncate' does")
        with told if mode == "sequence_truncate" else nullcontext():
            trl = train(tmp_path / "trl", observe(Users), **theirs, **options)
        fspo = train(tmp_path / "fspo", FSPOTrainer, FSPOConfig, **ours, **options)
    start = torch.cat([p.detach().flatten() for p in build_embedded_model(0).parameters()])
    moved = (weights(trl) - start).norm()
    assert moved > 1e-2
    assert (weights(fspo) - weights(trl)).norm() < 1e-4 * moved
    logs = [read_log(tmp_path / name) for name in ("trl", "fspo")]
    factors = np.concatenate([part["correction_weight"] for part in trl.kept])
    active = logs[0].column("advantage") != 0  # without an advantage there is no gradient
    for log in logs:
        np.testing.assert_allclose(log.column("correction_weight")[active], factors[active], rtol=1e-4, atol=1e-5)
        expected = np.concatenate([part["engine_log_ratio"] for part in trl.kept])
        np.testing.assert_allclose(log.column("behaviour_log_ratio"), expected, rtol=1e-4, atol=1e-4)
    assert np.mean(np.abs(factors[active] - 1) > 0.05) > 0.01
    assert ("correction_lo" in logs[0]) == (mode != "sequence_truncate")
    assert [log.metadata.get("correction") for log in logs] == [trl.log_correction and trl.log_correction.to_dict()] * 2
