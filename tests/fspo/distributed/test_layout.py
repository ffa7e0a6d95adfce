"""No room but fspo/distributed names what FSDP2 is made of; DeepSpeed is refused before anything starts."""

import re
from pathlib import Path

import pytest
import tiny_run
import torch

import fspo
from fspo.base.errors import UserError
from fspo.distributed.layout import layout_of

ROOT = Path(fspo.__file__).parent
SHARDING = re.compile(r"DTensor|FSDPModule|is_fsdp2|fsdp2_prepare_model|DistributedType|\bzero3\b")


def test_what_is_sharded_is_asked_through_one_room() -> None:
    naming = {p.relative_to(ROOT).parts[0] for p in ROOT.rglob("*.py") if SHARDING.search(p.read_text())}
    assert naming == {"distributed"}


def test_deepspeed_is_refused_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(UserError, match=r"DeepSpeed, which is not supported: shard with FSDP2"):
        tiny_run.trainer(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_plain_model_clips_the_norm_of_all_its_gradients() -> None:
    """By hand: gradients 3 and 4 have norm 5, and are scaled to norm 1."""
    from accelerate import Accelerator

    model = torch.nn.Linear(1, 1)
    model.weight.grad, model.bias.grad = torch.tensor([[3.0]]), torch.tensor([4.0])
    layout = layout_of(model)
    assert not layout.in_step
    assert layout.clip_gradient(Accelerator(cpu=True), model, 1.0) == 5.0
    torch.testing.assert_close(model.weight.grad, torch.tensor([[0.6]]))
    torch.testing.assert_close(model.bias.grad, torch.tensor([0.8]))
