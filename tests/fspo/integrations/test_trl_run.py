"""Real TRL runs of a few updates: the gradient log they write and resuming."""

import numpy as np
import pytest
from transformers import TrainerCallback
from trl_runs import made

from fspo.base.errors import UserError
from fspo.gradlog import read_log
from fspo.integrations.shared import UpdateMemory
from fspo.integrations.trl import FSPOConfig, FSPOTrainer
from fspo.rules import preset
from fspo.rules.online import OnlineRule

ROWS, GENERATIONS = 8, 4
AUTO = {"adapt": "range", "target": 0.8}
MICRO = 4
"""Microbatches of a generation: 2 updates of 2 microbatches each, of 8 responses."""


def trainer(folder, **options):
    usual = {"logging_strategy": "no", "per_device_train_batch_size": ROWS, "max_completion_length": 8}
    usual |= {"scale_rewards": "none", "steps_per_generation": MICRO}
    return made(folder, FSPOTrainer, FSPOConfig, **usual | options)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    run = trainer(folder, rule="fspo-kl", drift_source="lagged", range_lo=0.01, range_hi=0.01, num_iterations=2,
                  max_steps=8, max_grad_norm=1.0, score_every=2)  # fmt: skip
    run.train()
    return read_log(folder)


def test_every_response_has_a_row_for_each_update_that_used_it(log):
    assert len(log) == 8 * 2 * ROWS  # updates x microbatches x responses
    step, used, advantage, length = (log.column(c) for c in ("step", "times_used", "advantage", "length"))
    rollout, response, prompt, reward = (log.column(c) for c in ("rollout", "response_id", "prompt_id", "reward"))
    assert list(rollout) == list(step // 4)
    assert list(log.column("updates_since_rollout")) == list(step % 4)
    assert list(used) == list(step % 4 // 2)
    assert [set(response[rollout == k]) for k in range(2)] == [set(range(32)), set(range(32, 64))]
    assert list(prompt) == list(response // GENERATIONS)
    for r in set(response):  # the advantage and the length follow the response through TRL's shuffling
        assert len(set(advantage[response == r])) == len(set(length[response == r])) == 1
        assert sorted(used[response == r]) == [0, 1]
    mean = (np.bincount(prompt, reward) / np.bincount(prompt))[prompt]  # scale_rewards="none"
    np.testing.assert_allclose(advantage, reward - mean, atol=1e-5)
    assert log.rule.label == "fspo-kl"


def test_the_lagged_drift_is_the_update_befores(log):
    step, drift, length = (log.column(c) for c in ("step", "drift", "length"))
    for k in range(8):
        before = step == k - 1
        expected = 0.0 if k % 4 == 0 else -log.column("k3_sum")[before].sum() / length[before].sum()
        np.testing.assert_allclose(drift[step == k], expected, atol=1e-12, rtol=1e-9)
    assert drift.min() < -1e-7
    np.testing.assert_allclose(log.column("hi") - log.column("lo"), 2 * 0.01 * np.sqrt(length))
    assert set(log.column("side")) == {-1, 0, 1}


def test_scores_are_taken_on_the_last_update_of_the_first_pass(log):
    scored = log.column("score_status") == "ok"
    assert set(log.column("step")[scored]) == {1}  # of rollouts 0, 2, ...
    index, psi = log.scores()
    assert scored.sum() == len(index) == 2 * ROWS
    assert np.isfinite(psi).all()
    assert np.linalg.norm(psi, axis=1).min() > 0


def test_a_resumed_run_logs_each_update_once_and_its_band_goes_on(tmp_path):
    options = AUTO | {"steps_per_generation": 8, "max_steps": 6}
    trainer(tmp_path, **options, save_strategy="steps", save_steps=3).train()
    assert set(read_log(tmp_path).column("step")) == set(range(6))
    again = trainer(tmp_path, **options)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    log = read_log(tmp_path)
    step, rollout = log.column("step"), log.column("rollout")
    assert sorted(step) == sorted(list(range(6)) * 2 * ROWS)
    # the generation that the checkpoint cut in two is not continued: a new one is made
    assert [set(rollout[step == k]) for k in range(6)] == [{0}, {0}, {0}, {1}, {1}, {1}]
    assert list(log.column("updates_since_rollout")[step == 3]) == [0] * 2 * ROWS
    # the band is what the rows of earlier updates of the log teach, those before the checkpoint included
    online, widths = OnlineRule(preset("fspo", **AUTO).rule), []
    for k in range(6):
        S, n, A, lo, hi = (log.column(c)[step == k] for c in ("log_ratio", "length", "advantage", "lo", "hi"))
        widths.append((hi - lo) / np.sqrt(n))
        np.testing.assert_allclose(widths[-1], online.rule.range_lo + online.rule.range_hi, rtol=1e-9)
        if k % 3 > 0:
            online.observe(S, n, A)
    assert len({round(float(w[0]), 9) for w in widths}) == 4  # it moved after the updates 1, 2 and 4


def test_a_checkpoint_without_the_rules_state_is_refused(tmp_path):
    (tmp_path / "fspo_rule.json").write_text("{")
    with pytest.raises(UserError, match="resume from another checkpoint"):
        UpdateMemory(preset("fspo", **AUTO).rule).load(tmp_path)


def test_completions_that_trl_masks_out_teach_the_band_nothing(tmp_path):
    """Nothing ends within 8 tokens here but by chance: many rows have no token, and so no S."""
    run = trainer(tmp_path, **AUTO, steps_per_generation=8, max_steps=4, mask_truncated_completions=True)
    run.train()
    log = read_log(tmp_path)
    n, since, S, A = (log.column(c) for c in ("length", "updates_since_rollout", "log_ratio", "advantage"))
    assert 0 < np.mean(n == 0) < 1
    online = OnlineRule(preset("fspo", **AUTO).rule)
    for k in range(1, 4):
        rows = (log.column("step") == k) & (since > 0) & (n > 0)
        online.observe(S[rows], n[rows], A[rows])
    assert run.memory.online.state["log_scale"] == pytest.approx(online.state["log_scale"], rel=1e-9)


class Crash(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 4:
            raise KeyboardInterrupt


def test_rows_before_a_checkpoint_survive_a_crash_after_it_and_another_run(tmp_path):
    run = trainer(tmp_path, steps_per_generation=8, max_steps=4, save_strategy="steps", save_steps=3)
    run.add_callback(Crash())
    with pytest.raises(KeyboardInterrupt):
        run.train()
    with pytest.raises(UserError, match="choose another output_dir"):
        trainer(tmp_path, max_steps=1).train()
    assert set(read_log(tmp_path).column("step")) == {0, 1, 2}
