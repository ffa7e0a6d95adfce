"""The drifts of a log's rows, of their own minibatch and of the one before, against loops over the log."""

import numpy as np
import pandas as pd
import pytest

from analysis.log.loading import load_run
from fspo.rules import Rule


@pytest.mark.parametrize("source", ["two_pass", "lagged"])
def test_a_rows_centre_is_made_of_its_own_minibatch_or_of_the_one_before(simulate, source):
    path = simulate(rollouts=2, prompts=16, width=0)
    rows, log = load_run(path).rows, pd.read_parquet(path / "gradlog")
    steps = dict(list(log.groupby("step")))
    centres = {
        name: np.asarray(rows.centre(Rule("sqrt", 1.0, 1.0, drift=name, drift_source=source)))
        for name in ("kl", "gaussian", "tilted")
    }
    for i in range(0, len(rows), 7):
        part = steps[rows.step[i] - (source == "lagged")]  # no row is of step 0: nothing was updated there
        tokens = part["length"].sum()
        square = part["sum_sq_log_ratio"].sum() / tokens
        expected = {"kl": -part["k3_sum"].sum() / tokens, "gaussian": -square / 2, "tilted": square / 2}
        for name, value in expected.items():
            assert centres[name][i] == pytest.approx(value), name
