"""The example scripts run as they stand, and `python -m analysis` reads what they write.

`examples/verl_fspo.yaml` is read by verl itself in tests/fspo/integrations/test_verl.py.
"""

import runpy
from pathlib import Path

import pandas as pd
import pytest

from analysis.__main__ import main as analysis
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
    assert f"{after_first} rows, rule fspo, log sound" in capsys.readouterr().out
    for table in ("acceptance", "lre", "cosine"):
        assert len(pd.read_csv(tmp_path / "analysis" / f"{table}.csv")) > 0, table
