"""The study of the mismatch: which rollouts are read, and what dependent tokens add up to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fspo.gradlog import GradLogWriter
from fspo.gradlog.files import log_paths
from fspo.gradlog.run_folder import GRADLOG
from studies import mismatch as study
from tests.analysis.conftest import Plan, write_log


def test_rollouts_before_the_first_are_left_out(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / GRADLOG).mkdir(parents=True)
    for rollout in range(3):
        (run / GRADLOG / f"rollout-{rollout:08d}-rank-0000.parquet").write_text(str(rollout))
    for _ in range(2):  # the links are made once
        assert [path.read_text() for path in log_paths(study.from_rollout(run, 1))] == ["1", "2"]


def test_tokens_that_err_alike_add_up_to_more_than_their_squares(tmp_path: Path) -> None:
    """Responses of 4 tokens: independent errors have Var = sum of squares, equal ones 4 times that."""
    for name, alike, expected in (("apart", False, 1.0), ("alike", True, 4.0)):
        rng = np.random.default_rng(7)
        errors = np.repeat(rng.standard_normal((3000, 1)), 4, axis=1) if alike else rng.standard_normal((3000, 4))
        writer = GradLogWriter(tmp_path / name)
        rows = {"step": 0, "rollout": 0, "prompt_id": np.arange(3000) // 4, "response_id": np.arange(3000), "length": 4}
        rows |= {"log_ratio": np.zeros(3000), "advantage": np.ones(3000), "times_used": 0}
        writer.append(rows | {"engine_log_ratio": errors.sum(1), "engine_sum_sq": (errors**2).sum(1)})
        writer.flush(0)
        value, low, high = study.alike(tmp_path / name, "engine")
        assert low < expected < high
        assert value == pytest.approx(expected, rel=0.1)


def test_a_run_is_measured_on_the_ratio_of_its_mismatch(tmp_path: Path) -> None:
    run = write_log(tmp_path / "run", Plan(rollouts=5, prompts=64, width=8, engine=0.02))
    rows = pd.DataFrame(list(study.measured("E", run, "engine")), columns=study.MismatchRow._fields)
    assert set(rows["quantity"]) == {
        *("H", "fair_exponent", "sd", "mean_weight", "alike", "cross"),
        *("acceptance", "trend", "LRE_2", "cosine", "bias2", "mse"),
    }
    of_masks = rows[rows["mask"] != ""]
    assert set(of_masks["mask"]) == set(study.MASKS)
    share = of_masks.query("quantity == 'acceptance' and bin == 'all'")
    assert share["estimate"].to_numpy() == pytest.approx(share["target"].to_numpy(), abs=0.01)
    alone = rows.query("quantity == 'sd' and bin == 'all'")["estimate"]
    assert len(alone) == 1
    assert 0.02 < float(alone.iloc[0]) < 0.02 * 16  # of independent tokens, sd = 0.02 sqrt(L)
