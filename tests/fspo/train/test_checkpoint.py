"""Checkpoints: exact, whole, without pickle; damage is named."""

import copy
import pickletools
from pathlib import Path

import pytest
import tiny_run
import torch

from fspo.base.errors import UserError
from fspo.train import checkpoint
from fspo.train.checkpoint import TrainState
from fspo.train.folder_owner import clean

STATE = TrainState(rollout=3, step=7, skipped=1, num_tokens=99, lagged={"k3_sum": 0.1})


def trained(run: Path) -> tuple[torch.nn.Module, torch.optim.AdamW, Path]:
    """A bfloat16 model after one step, its optimizer, and a checkpoint of both."""
    net = tiny_run.model(dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    step(net, optimizer)
    return net, optimizer, checkpoint.save(run, net, optimizer, STATE, keep=2)


def step(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    net(input_ids=torch.arange(6)[None]).logits.float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_round_trip_is_exact_without_pickle_and_trains_on_alike(tmp_path: Path) -> None:
    net, optimizer, path = trained(tmp_path)
    other = tiny_run.model(1, torch.bfloat16)
    fresh = torch.optim.AdamW(other.parameters(), lr=1e-3)
    assert checkpoint.load(path, other, fresh) == STATE
    for _ in range(2):
        step(net, optimizer)
        step(other, fresh)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))
    assert {p.name for p in path.iterdir()} == {"model.safetensors", "optimizer.safetensors", "state.json"}
    for file in path.iterdir():
        with pytest.raises(ValueError, match=r"."):  # no opcode, no STOP: no pickle
            list(pickletools.genops(file.read_bytes()))


def test_moments_and_step_counts_go_to_the_device_of_the_weights(tmp_path: Path) -> None:
    """Fused AdamW on a GPU refuses step counts on the CPU. The meta device stands for the GPU here."""
    _, _, path = trained(tmp_path)
    other = tiny_run.model().to("meta")
    fresh = torch.optim.AdamW(other.parameters(), lr=1e-3, fused=True)
    checkpoint.load(path, other, fresh)
    found = {(key, value.device.type) for state in fresh.state.values() for key, value in state.items()}
    assert found == {("step", "meta"), ("exp_avg", "meta"), ("exp_avg_sq", "meta")}


def test_only_the_newest_are_kept_and_half_ones_removed(tmp_path: Path) -> None:
    net, optimizer, _ = trained(tmp_path)
    for number in (8, 10, 12):
        checkpoint.save(tmp_path, net, optimizer, TrainState(step=number), keep=2)
    (tmp_path / "checkpoints" / ".part-1").mkdir()
    (tmp_path / "checkpoints" / "step-00000099").mkdir()  # without state.json: not whole
    assert [p.name for p in checkpoint.list_checkpoints(tmp_path)] == ["step-00000010", "step-00000012"]
    clean(tmp_path)
    assert not list((tmp_path / "checkpoints").glob(".part*"))


def test_another_model_is_refused(tmp_path: Path) -> None:
    _, _, path = trained(tmp_path)
    for other in (tiny_run.model(layers=2), tiny_run.model(vocabulary=25)):
        with pytest.raises(UserError, match="checkpoint of another model"):
            checkpoint.load(path, other, torch.optim.AdamW(other.parameters()))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_damage_is_named_and_changes_nothing(tmp_path: Path, name: str) -> None:
    net, optimizer, path = trained(tmp_path)
    (path / name).write_bytes((path / name).read_bytes()[:20])
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(UserError, match=r"is damaged.*remove it to go on from the checkpoint before"):
        checkpoint.load(path, net, optimizer)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_export_replaces_whole_and_quietly(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from fspo.models.load import load_tokenizer

    for seed in (0, 1):
        checkpoint.export(tmp_path, tiny_run.model(seed), load_tokenizer("embedded"))
    assert capfd.readouterr().err == ""
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), tiny_run.model(1).parameters(), strict=True))
    assert len(AutoTokenizer.from_pretrained(tmp_path / "model")) == 24
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
