"""``import fspo``: tables of a DataFrame and of a run folder, the doctor's answers, and names that load nothing."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fspo
from analysis.tables.files import TABLES
from tests.analysis.doctor.planted import DEFECTS, write_run


def responses(rows: int = 1024) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    length = rng.integers(2, 200, rows)
    S = 0.1 * np.sqrt(length) * rng.standard_normal(rows)
    return pd.DataFrame({"prompt": np.arange(rows) // 8, "S": S, "L": length, "A": rng.choice([-1.0, 1.0], rows)})


def test_a_dataframe_to_tables() -> None:
    table = responses()
    log = fspo.load_run(table)
    np.testing.assert_allclose(log["log_ratio"], table["S"])
    assert log["length"].tolist() == table["L"].tolist()
    tables = fspo.analyse(table, rules=("rloo", "gspo", "fspo"), targets=(0.85,), draws=2, bins=2)
    assert tables.keys() == TABLES.keys()
    shares = tables["acceptance"].query("measure == 'band' and subset == 'all' and use == 'first' and target == .85")
    shares = shares.set_index(["rule", "bin"])["estimate"]
    # S is normal with variance 0.01 L: a fixed band cuts the longer half more, a linear one the shorter half
    assert shares["rloo", 0] - shares["rloo", 1] > 0.1
    assert shares["gspo", 1] - shares["gspo", 0] > 0.1
    assert abs(shares["fspo", 1] - shares["fspo", 0]) < 0.05
    renamed = table.rename(columns={"S": "delta"})
    assert len(fspo.load_run(renamed, columns={"log_ratio": "delta"})) == len(table)


def test_the_doctor_answers_with_a_row_for_each_check(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", DEFECTS["advantages_zero"], 0)
    answers = fspo.doctor(run).set_index("check")
    assert answers.loc["advantages_zero", "status"] == "found"
    assert answers.loc["advantages_zero", "fix"]
    assert answers.loc["s_zero", "status"] == "clear"


def test_the_package_loads_a_name_when_it_is_used() -> None:
    code = "import fspo, sys; print({'numpy', 'pandas', 'torch'} & set(sys.modules), fspo.preset('fspo').rule.shape)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set() sqrt\n"
    assert {"Trainer", "TrainConfig", "GradLogWriter", "Rule", "load_run"} <= set(dir(fspo))
    assert fspo.GradLogWriter.__module__ == "fspo.gradlog.log"
    with pytest.raises(AttributeError, match="no attribute 'Rull'"):
        _ = fspo.Rull
