"""Tests of studies/model_size.py: the runs that it trains, what it measures of one, and the published section."""

import json
import shutil

import pandas as pd
import pytest

from fspo.base.options import parse
from fspo.config import TrainConfig
from studies import model_size
from studies.findings_tables import model_sizes
from tests.record.make_record import LOGS


def test_each_width_has_an_unclipped_run_of_each_seed_at_a_learning_rate_that_falls_with_the_width(tmp_path):
    narrow, wide = (
        [parse(TrainConfig, list(job.arguments)) for job in model_size.jobs(tmp_path, width, "warm")]
        for width in model_size.WIDTHS
    )
    assert {config.rule.preset for config in narrow + wide} == {"none"}
    assert [c.seed for c in narrow] == [c.seed for c in wide] == [31, 32, 33]
    assert len({config.output for config in narrow + wide}) == 6
    assert [narrow[0].optim.learning_rate, wide[0].optim.learning_rate] == pytest.approx([2e-4, 2e-4 * 128 / 448])
    assert narrow[0].model.name_or_path == "warm"


def test_a_run_is_measured_on_first_use_rows_after_an_update(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(LOGS / "fspo-kl", run)
    (run / "metrics.jsonl").write_text("".join(json.dumps({"rollout": i, "reward": i}) + "\n" for i in range(8)))
    row = model_size.measured(run)
    log = pd.concat(pd.read_parquet(file) for file in sorted((run / "gradlog").glob("*.parquet")))
    first = log[(log["times_used"] == 0) & (log["updates_since_rollout"] > 0)]
    assert row["rows"] == len(first)
    assert (row["shortest"], row["longest"]) == (first["length"].min(), first["length"].max())
    assert row["median_abs_S"] == pytest.approx(first["log_ratio"].abs().median())
    assert (row["reward_first"], row["reward_last"]) == (0, 7)
    assert row["ci_low"] < row["slope_2H"] < row["ci_high"]


def test_the_section_shows_every_run_with_its_intervals(tmp_path):
    file = tmp_path / "model_size.csv"
    assert model_sizes(file, tmp_path / "nothing") == ""
    one = {"parameters": 4_841_088, "seed": 31, "rows": 900, "shortest": 8, "longest": 256, "slope_2H": 1.2}
    ends = {"ci_low": 1.1, "ci_high": 1.3, "fair_value": 0.7, "fair_low": 0.6, "fair_high": 0.9}
    ends |= {"fair_nonzero_value": 0.4, "fair_nonzero_low": 0.3, "fair_nonzero_high": 0.5}
    pd.DataFrame([one | ends]).to_csv(file, index=False)
    text = model_sizes(file, tmp_path / "nothing")
    fair = "0.700 [0.600, 0.900] | 0.400 [0.300, 0.500]"
    line = f"| 4.84M | 31 | chain-add | 900 | 8 to 256 | 1.200 [1.100, 1.300] | {fair} |\n"
    assert text.count("\n|") == 3
    assert text.endswith(line + "\n")
