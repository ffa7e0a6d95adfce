"""Kills at random moments, broken updates, full disks, failing rewards: one clear line each, and nothing is lost."""

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_run
import torch

from fspo.base.errors import UserError, run_cli
from fspo.gradlog import read_log
from fspo.tasks import Rewards
from fspo.train.checkpoint import list_checkpoints
from tests.fspo.train.test_resume import same

ARGUMENTS = [
    *("--rollouts", "4", "--checkpoint_every", "1", "--keep_checkpoints", "1", "--eval.every", "2"),
    *("--rule.preset", "fspo-kl", "--rule.drift_source", "lagged"),
]
RESUME = [*ARGUMENTS, "--resume", "true"]


@pytest.mark.slow
def test_two_processes_killed_at_random_moments_resume_to_the_same_bits(tmp_path: Path) -> None:
    draw, whole, kills = random.Random(0), tmp_path / "whole", 20
    duration, finished, killed = 0.0, 0, 0
    for run in (whole, tmp_path / "again"):  # the first one also waits for the children's imports
        began = time.perf_counter()
        assert tiny_run.in_child(run, *ARGUMENTS, processes=2) == [0, 0], tiny_run.child_log(run)
        duration = time.perf_counter() - began
    same(tmp_path / "again", whole)
    while True:
        run = tmp_path / f"run-{finished}"
        children = tiny_run.start([(run, RESUME)], processes=2)
        victim = draw.choice(children)
        if killed < kills:
            victim.join(draw.uniform(0.15, 0.8) * duration)
            if victim.is_alive():
                os.kill(victim.pid, signal.SIGKILL)
                victim.join()
                killed += 1
        for child in children:
            child.join(0.3 if victim.exitcode == -9 else 240)  # the launcher ends the other one soon after
            if child.is_alive():
                child.kill()
                child.join()
        codes = [child.exitcode for child in children]
        assert codes == [0, 0] or victim.exitcode == -9, tiny_run.child_log(run) + tiny_run.child_log(run, 1)
        if codes == [0, 0]:
            same(run, whole)
            finished += 1
            if killed == kills:
                return


def test_broken_loss_on_one_process_skips_the_update_on_both(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["--rollouts", "2", "--rule.preset", "fspo-kl", "--rule.drift_source", "lagged"]
    done = tiny_run.in_children([(run, options)], kill=("nan", 2), rank_to_kill=1, processes=2)
    assert done == [0, 0], tiny_run.child_log(run) + tiny_run.child_log(run, 1)
    lines = tiny_run.metrics(run, "train")
    assert [line["skipped_updates"] for line in lines] == [0.25, 0]
    assert [line["skipped/loss"] for line in lines] == [0.25, 0]
    assert json.loads((list_checkpoints(run)[-1] / "state.json").read_text())["skipped"] == 1
    rows = read_log(run).table.to_pandas()
    broken = sorted(set(rows[~np.isfinite(rows.log_ratio)].step))
    assert len(broken) == 1
    later = rows[rows.step > broken[0]]
    assert np.isfinite(later.log_ratio).all()  # weights and the drift of the update before it are kept
    assert np.isfinite(later.drift).all()


def test_exploding_weights_stop_the_run_with_their_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Many real updates on one rollout under the rule that clips nothing: good responses become ever likelier."""
    options = ["--rule.preset", "none", "--optim.learning_rate", "0.03", "--optim.max_skipped_updates", "3"]
    options += ["--rollouts", "1", "--batch.epochs", "20", "--log.score_every", "0"]
    net = tiny_run.model()

    def main() -> None:
        tiny_run.trainer(tmp_path / "run", *options, net=net).train()

    with pytest.raises(SystemExit) as stop:
        run_cli(main)
    assert stop.value.code == 3
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: 4 updates were skipped, more than optim.max_skipped_updates=3")
    assert "the importance weight of a response that is not clipped exceeds e^20" in error
    assert all(torch.isfinite(p).all() for p in net.parameters())


@pytest.mark.parametrize(
    ("point", "count", "file"),
    [("full-log", 2, "rollout-00000001-rank-0000.parquet"), ("full-checkpoint", 2, "step-00000004")],
)
def test_full_disk_is_one_line_and_loses_nothing(tmp_path: Path, point: str, count: int, file: str) -> None:
    options = ["--rollouts", "2", "--checkpoint_every", "1", "--log.samples", "0"]
    run, whole = tmp_path / "run", tmp_path / "whole"
    tiny_run.trainer(whole, *options).train()
    assert tiny_run.in_child(run, *options, kill=(point, count)) == [2]
    last = tiny_run.child_log(run).splitlines()[-1]
    assert "error: cannot write" in last, tiny_run.child_log(run)
    assert file in last
    assert "File too large" in last
    assert "Traceback" not in tiny_run.child_log(run)
    tiny_run.trainer(run, *options, "--resume", "true").train()
    assert tiny_run.metrics(run) == tiny_run.metrics(whole)
    assert read_log(run).table.equals(read_log(whole).table)
    for name in ("checkpoints/step-00000008/model.safetensors", "model/model.safetensors"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    assert not list(run.rglob(".part*"))


class Failing(tiny_run.Digits):
    """A reward that fails on every response from the second rollout on."""

    def score(self, examples: Any, responses: Any, finished: Any) -> Rewards:
        found = super().score(examples, responses, finished)
        if examples[0].info["number"] >= 4:
            found.status = ["timeout"] * len(responses)
        return found


def test_reward_that_always_fails_stops_the_run_and_a_corrected_one_goes_on(tmp_path: Path) -> None:
    options = ["--rollouts", "2", "--checkpoint_every", "1"]
    with pytest.raises(UserError, match=r"all 16 responses of rollout 1 failed \(timeout\).*--resume true"):
        tiny_run.trainer(tmp_path / "run", *options, task=Failing()).train()
    tiny_run.trainer(tmp_path / "run", *options, "--resume", "true").train()
    tiny_run.trainer(tmp_path / "whole", *options).train()
    assert tiny_run.metrics(tmp_path / "run") == tiny_run.metrics(tmp_path / "whole")
