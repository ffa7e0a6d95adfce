"""The GPU benchmark's own code at a tiny shape, and its FLOP by hand."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

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
    spec.loader.exec_module(module)
    return module


def test_it_runs_at_a_tiny_shape(script: Any, tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    assert script.main(["--tiny", "--responses", "4", "--rounds", "1", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["parameters"] == 400_128
    assert found["microbatches"] == 2  # 4 rows of 56 tokens, at most 128 together
    assert set(found["seconds"]) == {"update", "old_log_probs", "score_pass", "rollout"}
    taken = found["seconds"]
    step = 8 * (taken["old_log_probs"] + taken["update"]) + taken["score_pass"]
    assert found["gradient_log_share"] == pytest.approx(taken["score_pass"] / step)
    assert found["tokens_per_second"]["update"] == pytest.approx(4 * 56 / taken["update"])
    assert found["machine"]["versions"]["torch"] == torch.__version__
    assert found["tiny"]


def test_flop_by_hand(script: Any) -> None:
    """A layer: q and o 4096 x 4096, k and v 4096 x 1024, MLP 3 x 4096 x 12288; attention over T/2 positions."""
    config, length = shape_of("Qwen3-8B-Base"), 4096
    layer = 2 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12_288) + 2 * 2 * (length // 2) * 4096
    token = 36 * layer + 2 * 4096 * 151_936
    assert script.update_flop(config, 8_190_735_360, 8, length, 3) == pytest.approx(3 * 8 * length * token, rel=1e-3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_without_a_gpu_it_names_the_cure(script: Any) -> None:
    with pytest.raises(UserError, match="needs a GPU: add --tiny"):
        script.main([])
