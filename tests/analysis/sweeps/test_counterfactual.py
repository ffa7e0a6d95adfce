"""The counterfactual sweep against the tables of the analysis and against hand-made logs."""

import numpy as np
import pandas as pd
import pytest

from analysis.__main__ import main
from analysis.log.loading import load_run
from analysis.options import Options
from analysis.run import shared_bins
from analysis.sweeps.counterfactual import SweepRow, settings, sweep
from analysis.tables.typed_rows import frame, names
from fspo.rules import PRESETS


@pytest.fixture(scope="module")
def swept(fspo_run):
    run = load_run(fspo_run)
    bins = shared_bins([run], Options())
    return run, frame(SweepRow, sweep(run, bins))


def pick(table, **where):
    for column, value in where.items():
        table = table[table[column] == value]
    assert len(table) == 1
    return table.iloc[0]


def test_every_setting_has_every_quantity_or_a_reason(swept):
    _, table = swept
    assert list(table.columns) == list(names(SweepRow))
    assert {"range", "dual", "outside", "drift", "gamma"} == set(table["setting"])
    for _, row in table.iterrows():
        assert np.isfinite(row["estimate"]) or row["reason"], row.to_dict()
        if np.isfinite(row["ci_low"]):
            assert row["ci_low"] - 1e-12 <= row["estimate"] <= row["ci_high"] + 1e-12


def test_band_acceptance_is_a_count(swept):
    run, table = swept
    rows = run.rows.use("first")
    for c in (0.03, 0.06):
        row = pick(table, setting="range", value=f"{c:g} {c:g}", rule="fspo", quantity="band")
        assert row["estimate"] == pytest.approx(np.mean(np.abs(rows.S) <= c * np.sqrt(rows.length)))
    log = np.log1p(0.2), -np.log(0.8)
    row = pick(table, setting="range", value="0.2 0.2", rule="rloo", quantity="band")
    assert row["estimate"] == pytest.approx(np.mean((log[0] >= rows.S) & (-log[1] <= rows.S)))


def test_exponents_share_the_half_width_of_the_median_length(swept):
    run, _ = swept
    typical = np.median(run.rows.length)
    widths = [s.rule.range_hi * typical**s.rule.gamma for s in settings(run) if s.name == "gamma"]
    assert widths == pytest.approx([PRESETS["fspo"].rule.range_hi * typical**0.5] * 5)


def test_the_command_writes_a_table_and_prints_it_and_the_damage(simulate, capsys):
    run = simulate(rollouts=2, width=0)
    (damaged := run / "gradlog" / "rollout-00000001-rank-0000.parquet").write_bytes(b"")
    assert main(["sweep", str(run), "--only", "[outside]"]) == 0
    out = capsys.readouterr().out
    assert "truncate" in out
    assert damaged.name in out
    assert len(pd.read_csv(run / "analysis" / "sweep.csv"))


def test_the_sweep_of_a_mismatch_is_of_corrections(simulate, capsys):
    path = simulate(rollouts=2, engine=0.05, sigma=0.02)
    assert main(["sweep", str(path), "--on", "engine"]) == 0
    assert not (path / "analysis").exists()
    table = pd.read_csv(path / "analysis-on-engine" / "sweep.csv", keep_default_na=False, na_values={"estimate": [""]})
    assert set(table["setting"]) == {"range", "outside", "drift", "gamma"}
    assert set(table.loc[table["setting"] == "outside", "value"]) == {"mask", "cap"}
    rows = load_run(path, on="engine").rows
    assert len(rows) == 2 * 512
    row = pick(table, setting="drift", value="none", rule="engine-sqrt", quantity="band")
    assert row["estimate"] == pytest.approx(np.mean(np.abs(rows.S) <= 0.1 * np.sqrt(rows.length)))
    assert pick(table, setting="gamma", value="0.5", quantity="update")["estimate"] < 1
