"""8-bit moments under FSDP2: weights of one process, and checkpoints that go on with any number of processes."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import tiny_run
import torch
from safetensors.torch import load_file

from fspo.models.load import build_embedded_model
from fspo.train.checkpoint import list_checkpoints
from tests.fspo.distributed.test_fsdp import ARGUMENTS, HALF, RESUME, WHOLE, one

LOW = ["--optim.name", "adamw8bit"]


def whole_moments(folder: Path) -> dict[str, torch.Tensor]:
    """A checkpoint's moments, joined by row where two processes wrote them."""
    if (folder / "optimizer.safetensors").is_file():
        return load_file(folder / "optimizer.safetensors")
    first, second = (load_file(file) for file in sorted((folder / "optimizer").iterdir()))
    joined = {n: torch.cat([x, second[n]]) if x.ndim else x for n, x in first.items()}
    return second | joined


@pytest.mark.skipif(not find_spec("torchao"), reason="needs torchao (pip install 'fspo[8bit]')")
def test_8_bit_moments_in_shards(tmp_path: Path) -> None:
    one(tmp_path / "1-1", *WHOLE, *LOW)
    one(tmp_path / "1-2", *HALF, *LOW)
    runs = [("2", WHOLE), ("2-2", HALF), ("2-2", RESUME), ("1-2", RESUME)]
    asked = [(tmp_path / name, [*ARGUMENTS, *arguments, *LOW]) for name, arguments in runs]
    done = tiny_run.in_children(asked, processes=2, sharded=True)
    assert done == [0, 0], tiny_run.child_log(tmp_path / "2") + tiny_run.child_log(tmp_path / "2", 1)
    names = ("1-1", "2", "2-2", "1-2")
    weights = {name: load_file(tmp_path / name / "model" / "model.safetensors") for name in names}
    moments = {name: whole_moments(list_checkpoints(tmp_path / name)[-1]) for name in names}
    start = build_embedded_model().state_dict()
    for name in names[1:]:
        for key, want in weights["1-1"].items():
            error = (weights[name][key] - want).norm()
            assert error <= 1e-3 * (want - start[key]).norm(), (name, key)  # of the way that it has moved
        assert {k: v.shape for k, v in moments[name].items()} == {k: v.shape for k, v in moments["1-1"].items()}
    assert any("#codes" in key for key in moments["2"])
    assert all(torch.equal(weights["2"][key], weights["2-2"][key]) for key in start)
    assert all(torch.equal(moments["2"][key], moments["2-2"][key]) for key in moments["2"])
