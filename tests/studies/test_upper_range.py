"""The grid of upper ranges: what is read from its runs."""

import json
from pathlib import Path

import pytest

from fspo.repro.presets import planned
from studies.upper_range import ARMS, DESIGN, ROLLOUTS, measured


def test_a_run_that_is_not_finished_is_left_out(tmp_path: Path) -> None:
    """Rewards 0 to 11: mean 5.5, first half 2.5; the second run has one rollout too few."""
    some = list(planned(DESIGN, "chain-add", tmp_path, 1))
    assert len(some) == len(ARMS) == 16
    for run, rollouts in zip(some, (ROLLOUTS, ROLLOUTS - 1), strict=False):
        run.job.run.mkdir(parents=True)
        lines = [json.dumps({"phase": "train", "rollout": i, "reward": float(i)}) for i in range(rollouts)]
        (run.job.run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (row,) = measured(tmp_path).itertuples()
    assert (row.updates, row.times) == (4, 1)
    assert (row.reward, row.first_half) == pytest.approx((5.5, 2.5))
