"""Two processes inside TRL train what one trains: denominators, drift and the log are those of all processes."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fspo.gradlog import read_log

SCRIPT = Path(__file__).with_name("trl_processes.py")


@pytest.mark.slow
def test_two_processes_train_what_one_trains(tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    for name, launcher in (("one", [sys.executable]), ("two", torchrun)):
        (tmp_path / name).mkdir()
        done = subprocess.run(
            [*launcher, str(SCRIPT), str(tmp_path / name)], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-3000:]
    one, two = (np.load(tmp_path / name / "weights.npy") for name in ("one", "two"))
    np.testing.assert_allclose(two, one, atol=1e-6)
    rows = []
    for name in ("one", "two"):
        log = read_log(tmp_path / name)
        order = np.lexsort((log.column("response_id"), log.column("step")))
        columns = ("step", "response_id", "prompt_id", "length", "side", "advantage", "log_ratio", "drift", "lo", "hi")
        columns += ("engine_log_ratio",)
        rows.append({c: log.column(c)[order] for c in columns})
    assert len(rows[0]["step"]) == 6 * 16
    for column, values in rows[0].items():
        np.testing.assert_allclose(rows[1][column], values, atol=2e-5, err_msg=column)
    assert set(rows[0]["side"]) != {0}
    for step in (2, 5):  # lagged: in the third update of a batch all have the drift of the second
        (drift,) = np.unique(rows[0]["drift"][rows[0]["step"] == step])
        assert drift < -1e-7
