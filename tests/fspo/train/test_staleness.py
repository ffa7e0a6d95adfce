"""Runs that sample with the weights of earlier rollouts: which weights, the staleness D that they log, resuming."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_run
import torch
from safetensors.torch import load_file

from fspo.base.errors import UserError
from fspo.gradlog import read_log
from fspo.train import checkpoint
from fspo.train.checkpoint import list_checkpoints
from fspo.train.past_weights import Versions
from tests.fspo.sampling.test_sample import plain_logprobs
from tests.fspo.train.test_resume import same

ARGUMENTS = ["--rollouts", "5", "--batch.staleness", "2", "--checkpoint_every", "1", "--keep_checkpoints", "9"]
VERSIONS = [0, 0, 0, 4, 8]
"""By hand: rollout r, of 4 updates, samples with the weights at the end of rollout r - 3."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A run with staleness 2, and its rollouts."""
    output, batches = tmp_path_factory.mktemp("stale") / "run", []
    trainer = tiny_run.trainer(output, *ARGUMENTS, "--eval.every", "2")
    sample = trainer.sample
    trainer.sample = lambda *args: batches.append(sample(*args)) or batches[-1]
    trainer.train()
    return output, batches


def weights(run: Path, version: int) -> Any:
    """The model after so many updates."""
    net = tiny_run.model()
    if version:
        net.load_state_dict(load_file(run / "checkpoints" / f"step-{version:08d}" / "model.safetensors"), strict=False)
    return net


def test_each_rollout_is_sampled_by_the_weights_of_its_version(run: tuple[Path, list[Any]]) -> None:
    output, batches = run
    assert [batch.behaviour_version for batch in batches] == VERSIONS
    train = read_log(output).table.to_pandas()
    assert train.groupby("rollout").behaviour_version.unique().map(list).tolist() == [[v] for v in VERSIONS]
    assert (train.policy_version == train.step).all()
    assert (train[train.updates_since_rollout == 0].log_ratio == 0).all()  # S starts from the present weights
    for rollout, (batch, version) in enumerate(zip(batches, VERSIONS, strict=True)):
        old, past = weights(output, 4 * rollout), weights(output, version)
        rows = train[(train.rollout == rollout) & (train.times_used == 0)].set_index("response_id")
        for i, key in enumerate(batch.response_ids):
            prompt, response, row = batch.prompts[i].tolist(), batch.responses[i], rows.loc[key]
            sums = [float(plain_logprobs(net, prompt, response, 1.0).sum()) for net in (old, past)]
            assert sums[1] == pytest.approx(float(np.sum(batch.sampler_log_probs[i])), abs=1e-3)  # it did sample
            assert row.staleness_log_ratio == pytest.approx(sums[0] - sums[1], abs=1e-3)
            assert abs(row.engine_log_ratio) < 1e-4
            assert row.behaviour_log_ratio == pytest.approx(row.engine_log_ratio + row.staleness_log_ratio, abs=1e-5)
        assert (rows.staleness_log_ratio.abs().max() > 0.1) == (rollout > 0)


def test_swapping_gives_back_the_same_bits() -> None:
    net = tiny_run.model()

    def holds(wanted: Any) -> bool:
        return all(torch.equal(p, wanted[name]) for name, p in net.named_parameters())

    versions = Versions(net, 1)
    versions.add(0)
    first = {name: p.clone() for name, p in net.named_parameters()}
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1.37)
    versions.add(4)
    now = {name: p.clone() for name, p in net.named_parameters()}
    with versions.sampling_weights():
        assert holds(first)
    assert holds(now)
    assert versions.sampling == 0
    assert [(version, holds(first)) for version in versions.past()] == [(0, True)]
    assert holds(now)
    versions.add(8)
    assert versions.sampling == 4


def test_killed_run_resumes_bit_by_bit(run: tuple[Path, list[Any]], tmp_path: Path) -> None:
    other, arguments = tmp_path / "run", [*ARGUMENTS, "--eval.every", "2"]
    assert tiny_run.in_child(other, *arguments, kill=("checkpoint", 10)) == [-9], tiny_run.child_log(other)
    assert tiny_run.in_child(other, *arguments, "--resume", "true") == [0], tiny_run.child_log(other)
    same(run[0], other)
    kept = list_checkpoints(run[0])[-1]
    assert sorted(p.name for p in kept.glob("past-*")) == [f"past-{v:08d}.safetensors" for v in (12, 16)]
    for file in kept.glob("past-*"):
        assert file.read_bytes() == (list_checkpoints(other)[-1] / file.name).read_bytes()
        assert load_file(file).keys() == load_file(kept / "model.safetensors").keys()


def test_lost_past_weights_are_named(run: tuple[Path, list[Any]], tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(list_checkpoints(run[0])[-1], tmp_path / "step-00000020"))
    (damaged / "past-00000012.safetensors").unlink()
    net = tiny_run.model()
    with pytest.raises(UserError, match=r"is damaged \(.*past-00000012.*\): remove it to go on"):
        checkpoint.load(damaged, net, torch.optim.AdamW(net.parameters()))
