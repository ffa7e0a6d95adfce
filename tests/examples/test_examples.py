"""The example scripts run as they stand, and `fspo analyse` reads what they write.

`examples/verl_fspo.yaml` is read by verl itself in tests/fspo/integrations/test_verl.py.
"""

import runpy
from pathlib import Path

import pandas as pd
import pytest

from analysis.__main__ import main as analysis
from fspo.base.options import parse
from fspo.config import TrainConfig
from fspo.gradlog import read_log

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("script", "size", "rows", "after_first"),
    [
        ("trl_fspo.py", 4, 4 * 32, 3 * 32),  # updates of 32 responses, one generation
        ("own_trainer.py", 2, 2 * 64, 2 * 48),  # rollouts of 64 responses in 4 updates
    ],
)
def test_an_example_runs_and_analysis_reads_its_log(tmp_path, capsys, script, size, rows, after_first):
    runpy.run_path(str(EXAMPLES / script))["main"](str(tmp_path), size)
    assert len(read_log(tmp_path)) == rows
    assert analysis([str(tmp_path)]) == 0
    says = f"{after_first} of {rows} rows (after an update), rule fspo, columns of the log agree"
    assert says in capsys.readouterr().out
    for table in ("acceptance", "lre", "cosine"):
        assert len(pd.read_csv(tmp_path / "analysis" / f"{table}.csv")) > 0, table


@pytest.mark.parametrize("script", ["trl_fspo.py", "trl_observe.py", "own_trainer.py"])
def test_help_of_an_example_trains_nothing(tmp_path, monkeypatch, capsys, script):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [script, "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    assert end.value.code == 0
    assert "run folder to write" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
def test_a_watched_trl_run_says_which_lengths_corrections_cut(tmp_path):
    runpy.run_path(str(EXAMPLES / "trl_observe.py"))["main"](str(tmp_path), 4)
    log = read_log(tmp_path)
    assert len(log) == 4 * 64
    assert 0 < abs(log.column("behaviour_log_ratio")).max() < 1  # bfloat16 against float32
    assert analysis([str(tmp_path), "--on", "behaviour"]) == 0
    table = pd.read_csv(tmp_path / "analysis-on-behaviour" / "acceptance.csv")
    rows = table[(table.target == 0.85) & (table.subset == "all") & (table.measure == "band") & (table.bin >= 0)]
    by_length = rows.pivot_table(index="bin", columns="rule", values="estimate")
    shortest, longest = by_length.iloc[0], by_length.iloc[-1]
    assert longest["mis"] < shortest["mis"] - 0.1
    assert shortest["geo-mask"] < longest["geo-mask"] - 0.1


def test_the_vllm_runs_options_are_read():
    """tests/fspo/sampling/test_vllm.py trains with them against a real server."""
    config = parse(TrainConfig, ["--config", str(EXAMPLES / "vllm_run.yaml")])
    assert (config.sampling.engine, config.correction.rule().label) == ("vllm", "engine-sqrt")
    assert not config.warnings()
