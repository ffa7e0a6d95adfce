"""Test which rollouts the study of the mismatch reads, and what it measures."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

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


def test_a_run_is_measured_on_the_ratio_of_its_mismatch(tmp_path: Path) -> None:
    run = write_log(tmp_path / "run", Plan(rollouts=5, prompts=64, width=8, engine=0.02))
    rows = pd.DataFrame(list(study.measured("E", run, "engine")), columns=study.MismatchRow._fields)
    assert set(rows["quantity"]) == {"fair_95", "fair_85", "sd", "acceptance", "trend", "LRE_2", "bias2"}
    of_masks = rows[rows["mask"] != ""]
    assert set(of_masks["mask"]) == set(study.MASKS)
    share = of_masks.query("quantity == 'acceptance' and bin == 'all'")
    assert share["estimate"].to_numpy() == pytest.approx(share["target"].to_numpy(), abs=0.01)
    alone = rows.query("quantity == 'sd' and bin == 'all'")["estimate"]
    assert len(alone) == 1
    assert 0.02 < float(alone.iloc[0]) < 0.02 * 16  # of independent tokens, sd = 0.02 sqrt(L)
