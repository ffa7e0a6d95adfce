"""The whole GPU benchmark at tiny shapes on a CPU, its FLOP by hand, and what it does with a part that does not end."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fspo.base.errors import UserError
from fspo.models.shapes import shape_of

FILE = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


@pytest.fixture(scope="module")
def script() -> Any:
    sys.path.insert(0, str(FILE.parent))  # where python finds a script's neighbours
    spec = importlib.util.spec_from_file_location("gpu", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu"] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_every_part_runs_at_tiny_shapes(script: Any, tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    assert script.main(["--shapes", "tiny", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["shapes"] == "tiny"
    assert found["machine"]["versions"]["torch"] == torch.__version__
    assert {name: part["status"] for name, part in found["parts"].items()} == dict.fromkeys(script.PARTS, "done")
    parts = {name: part["found"] for name, part in found["parts"].items()}
    checks = parts["correctness"]
    assert all(one["pass"] for one in [*checks.pop("log_probs").values(), *checks.values()])
    for name in ("qwen3-8b-lora", "qwen3-8b-all"):
        run = parts[name]["rollouts"]
        assert run["number"] == 2
        assert 0 < run["share_of_matmul_rate"]["time/update"] < 1
        assert parts[name]["peak_gib"]["planned"] > 0
        for table in parts[name]["by_length"].values():
            assert {"fspo drop, own range", "fspo drop, 5% clipped"} <= set(table)
    learnt = parts["learning"]
    assert learnt["warmup"]["parameters"] == 400_128
    arms = ("none unclipped", "rloo equal", "gspo equal", "fspo equal")
    assert all(len(learnt[arm]["rewards"]) == learnt[arm]["rollouts"] >= 1 for arm in arms)
    assert set(parts["trl"]["tiny"]) == {"fspo", "trl-4"}


def test_flop_by_hand(script: Any) -> None:
    """A layer: q and o 4096 x 4096, k and v 4096 x 1024, MLP 3 x 4096 x 12288; attention over T/2 positions."""
    config, length = shape_of("Qwen3-8B-Base"), 4096
    layer = 2 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12_288) + 2 * 2 * (length // 2) * 4096
    token = 36 * layer + 2 * 4096 * 151_936
    found = script.forward_flop(config, 8_190_735_360, np.full(8, length))
    assert found == pytest.approx(8 * length * token, rel=1e-3)


def test_a_part_that_does_not_end_is_stopped_and_keeps_what_it_found(script: Any, tmp_path: Path, monkeypatch) -> None:
    part = script.run_part("correctness", "tiny", 0.5, tmp_path / "part.json")
    assert part["status"] == "time limit"
    assert part["seconds"] < 30
    monkeypatch.setattr(script, "run_part", lambda *_: {"status": "done", "results": {"resume": {"pass": False}}})
    assert script.main(["--parts", "[learning]", "--shapes", "tiny", "--out", str(tmp_path / "gpu.json")]) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_without_a_gpu_and_with_a_wrong_part_it_names_the_cure(script: Any) -> None:
    with pytest.raises(UserError, match="need a GPU: add --shapes tiny"):
        script.main([])
    with pytest.raises(UserError, match="did you mean 'learning'"):
        script.main(["--parts", "[learnin]"])
